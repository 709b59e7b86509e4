"""Checks data against the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..engine import ConfigurationError
from .callables import is_import_path
from .data import CALLABLES, WrittenLimiter
from .limiter import OPTIONS, Declaration, reject_unknown_options
from .subjects import LimitType

NO_IMPORTS = {"imports": False}
"""The validation context of data that must not import modules, because importing a module runs it."""
M = TypeVar("M", bound=BaseModel)


def limiter_options(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of :func:`rate_limiter`, from a mapping in which some values are written as data, and others are
    Python objects, such as a callable or a :class:`Rule`. Raises :class:`ConfigurationError`."""
    objects = {name: value for name, value in given.items() if _has_object(value)}
    written = {name: value for name, value in given.items() if name not in objects}
    reject_unknown_options(where, (name for name in given if name not in WrittenLimiter.model_fields))
    try:
        options = validated(WrittenLimiter, f'limiter on "{where}"', written).options
    except ConfigurationError:
        Declaration.of(where, _same_in_python(written))  # raises the same error as a decorator
        raise
    return {**options, **objects}


def _same_in_python(written: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are written the same way in data and in Python."""
    alike = set(OPTIONS) - {"type"} | ({"rules"} if not isinstance(written.get("rules"), Mapping) else set())
    return {
        name: value
        for name, value in written.items()
        if name in alike and not _holds_data(value) and not (name in CALLABLES and isinstance(value, str))
    }


def _holds_data(value: object) -> bool:
    if is_import_path(value) or isinstance(value, Mapping):
        return True
    return isinstance(value, (list, tuple)) and any(isinstance(each, (Mapping, int)) for each in value)


def _has_object(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_object, value))
    if isinstance(value, Mapping):
        return any(map(_has_object, value.values()))
    return not isinstance(value, (str, int, float, bool, type(None))) or isinstance(value, LimitType)


def validated(model: type[M], where: str, given: Any, *, imports: bool = True) -> M:
    """``given`` as ``model``; without ``imports``, an import path is a mistake.

    Raises :class:`ConfigurationError`, which says for each mistake ``where`` it is, the path, the value and the remedy.
    """
    try:
        return model.model_validate(given, context=None if imports else NO_IMPORTS)
    except ValidationError as error:
        from .wording import invalid_data  # noqa: PLC0415 - no start without a mistake needs its words

        raise invalid_data(where, error, model) from None
