"""Checks arguments. Flask-Limiter itself would fail somewhere inside, or at a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flask_multilimit import ConfigurationError


def check_callable(name: str, given: object) -> None:
    """Raises :class:`ConfigurationError` unless ``given`` is a callable or ``None``."""
    if given is not None and not callable(given):
        raise _wrong(name, given, "a callable")


def check_several(name: str, given: object) -> None:
    """Raises :class:`ConfigurationError` unless ``given`` is a list, and not text, whose characters would be items."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, dict)):
        raise _wrong(name, given, "a list")


def check_texts(**given: object) -> None:
    """Raises :class:`ConfigurationError` unless each is text or ``None``."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "text")


def check_dicts(**given: object) -> None:
    """Raises :class:`ConfigurationError` unless each is a dict or ``None``."""
    for name, value in given.items():
        if value is not None and not isinstance(value, dict):
            raise _wrong(name, value, "a dict")


def check_cost(given: Any) -> None:
    """Raises :class:`ConfigurationError` unless ``given`` is a number of units, or a callable that returns one."""
    if given is not None and not callable(given) and type(given) is not int:
        raise _wrong("cost", given, "a whole number, or a callable that returns one")


def _wrong(name: str, given: object, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={given!r:.80}: give {remedy}")
