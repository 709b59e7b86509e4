"""What is wrong with an argument. Flask-Limiter itself fails somewhere inside, or at a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flask_multilimit import ConfigurationError


def check_callable(name: str, given: object) -> None:
    """Raises :class:`ConfigurationError` unless it is one, or ``None``."""
    if given is not None and not callable(given):
        raise _wrong(name, given, "a callable")


def check_several(name: str, given: object) -> None:
    """Raises :class:`ConfigurationError` for what is no list, or is text, of which each character would be an item."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, dict)):
        raise _wrong(name, given, "a list")


def check_texts(**given: object) -> None:
    """Raises :class:`ConfigurationError` for one that is neither text nor ``None``."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "text")


def check_dicts(**given: object) -> None:
    """Raises :class:`ConfigurationError` for one that is neither a dict nor ``None``."""
    for name, value in given.items():
        if value is not None and not isinstance(value, dict):
            raise _wrong(name, value, "a dict")


def check_cost(given: Any) -> None:
    """Raises :class:`ConfigurationError` for what is neither a number of units nor gives one."""
    if given is not None and not callable(given) and type(given) is not int:
        raise _wrong("cost", given, "a whole number, or a callable that returns one")


def _wrong(name: str, given: object, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={given!r:.80}: give {remedy}")
