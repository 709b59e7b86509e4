"""Checks data against the models, and says what is wrong: the field as TOML and Python write it, and what to give."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..engine import ConfigurationError
from ..engine.bounds import LONGEST_FILE, LONGEST_NAME
from ..engine.errors import brief
from ..engine.keys import NAME_PATTERN, PREFIX_PATTERN
from ..engine.rules import NAME
from .data import CALLABLES, COST_FORMS, STATUSES_FORMS, LimitsFile, WrittenBan, WrittenLimiter, WrittenRule
from .limiter import OPTIONS, Declaration, reject_unknown_options
from .subjects import LimitType
from .written import IMPORT_PATTERN, FileLimits, InvalidData, Mistake, is_import_path, nearest

NO_IMPORTS = {"imports": False}
"""The validation context of data that must not import modules, because importing a module runs it."""
M = TypeVar("M", bound=BaseModel)


def limiter_options(where: str, given: object) -> dict[str, Any]:
    """The options of :func:`rate_limiter`, from data that was read, or from a mapping in which some values are written
    as data, and others are Python objects, such as a callable or a :class:`Rule`. Raises
    :class:`ConfigurationError`."""
    if isinstance(given, WrittenLimiter):
        return given.options
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'{where}: {brief(given)} is not a limit; give text such as "100/minute", a dict such as '
            '{"type": "ip", "rules": "100/minute"}, a rate_limiter(...), or a list of these'
        )
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
        raise invalid_data(where, error, model) from None


def invalid_data(where: str, error: ValidationError, model: type[BaseModel]) -> InvalidData:
    """All that pydantic found wrong in data for ``model``, in our words."""
    return InvalidData(where, [_mistake(found, model) for found in error.errors(include_url=False)])


def _mistake(found: Any, model: type[BaseModel]) -> Mistake:
    steps = [step for step in found["loc"] if not str(step).startswith("<")]
    path = "".join(map(_step, enumerate(steps)))
    if found["type"] == "extra_forbidden":
        return Mistake(path, "", f"is not an option{_belonging(str(steps[-1]), _model_at(steps[:-1], model))}")
    reason = _remedy_for(found, str(steps[-1]) if steps else "")
    reason = reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]
    return Mistake(path, brief(found["input"]) if path else "", reason)


def _remedy_for(found: Any, field: str) -> str:
    told = str(found["msg"]).removeprefix("Value error, ")
    if found["type"] == "string_pattern_mismatch":
        pattern = found["ctx"]["pattern"]
        return _FORMS.get(field, _CALLABLE) if IMPORT_PATTERN in pattern else _PATTERNS.get(pattern, told)
    return _REMEDIES.get(found["type"], told)


_REMEDIES = {
    "tuple_type": "give a list",
    "missing": "is missing; give it",
    "model_type": "give a table",
    "dict_type": "give a table",
    "string_type": "give text",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false",
}
_CALLABLE = 'name a callable as "module:function"'
_FORMS = {"cost": COST_FORMS, "charge_when": STATUSES_FORMS}
_PATTERNS = {
    f"^{PREFIX_PATTERN.pattern}$": "1 to 32 printable ASCII characters, no blanks, no braces",
    f"^{NAME_PATTERN}$": "1 to 20 characters, a letter and then letters, digits, - and _",
    f"^{NAME}$": "1 to 64 of letters, digits and _.:*/-",
}


def _step(numbered: tuple[int, Any]) -> str:
    """One step of a path as TOML and Python write it: ``limits."api.*"[0].rules``."""
    number, step = numbered
    if isinstance(step, int):
        return f"[{step}]"
    step = step[:LONGEST_NAME]
    plain = step if re.fullmatch(r"[\w-]+", step) else json.dumps(step, ensure_ascii=False)
    return plain if number == 0 else f".{plain}"


def _model_at(steps: Sequence[Any], model: type[BaseModel]) -> type[BaseModel]:
    """The model of the value at a path in ``model``."""
    fields = [step for step in steps if isinstance(step, str)]
    if fields[:1] == ["limits"]:
        del fields[1:2]  # the name of an endpoint
    return _INNER.get(fields[-1], WrittenLimiter) if fields else model


_INNER: dict[str, type[BaseModel]] = {
    "rules": WrittenRule,
    "ban": WrittenBan,
    "limit": WrittenLimiter,
    "default_limits": WrittenLimiter,
}
"""The models of these fields; those of all others are limiters."""
_WORDS: dict[type[BaseModel], str] = {WrittenRule: "a rule", WrittenBan: "a ban", WrittenLimiter: "a limiter"}


def _belonging(option: str, model: type[BaseModel]) -> str:
    """Where ``option``, which ``model`` does not have, belongs, or which option of ``model`` may be meant."""
    for field, inner in _INNER.items():
        if field in model.model_fields and option in inner.model_fields:
            return f'; it is one of {_WORDS[inner]}: "{field}": {{"{option}": ...}}'
    if model in {WrittenRule, WrittenBan} and option in WrittenLimiter.model_fields:
        return f"; it is one of a limiter: put it beside {'rules' if model is WrittenRule else 'ban'}"
    return nearest(option[:LONGEST_NAME], model.model_fields)


def read_limits(path: Path) -> FileLimits:
    """The limits in a file, which is TOML or JSON according to its suffix. Raises :class:`ConfigurationError`."""
    return file_limits(path.name, _parsed(path))


def file_limits(where: str, given: Any) -> FileLimits:
    """The limits in ``given``, which has the form of a file. Raises :class:`ConfigurationError`."""
    read = validated(LimitsFile, where, given)
    return FileLimits(*(getattr(read, name) for name in FileLimits._fields))


def _parsed(path: Path) -> Any:
    parsers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": parse_toml}
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise ConfigurationError(f"{path}: give a file whose name ends in {' or '.join(parsers)}")
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise ConfigurationError(f"{path}: has more than {LONGEST_FILE} bytes")
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also for bad UTF-8, and for brackets in brackets
        raise ConfigurationError(f"{path}: is not valid {path.suffix[1:].upper()}: {error}") from error


def parse_toml(text: str) -> Any:
    try:  # here, and not at the top: few apps read a file, and the import would slow the start of all
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise ConfigurationError(
            "Python 3.10 cannot read TOML: pip install 'flask-multilimit[toml]', or write JSON"
        ) from None
    return tomllib.loads(text)
