"""How a mistake is told: the field as TOML and Python write it, and what to give."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..engine.errors import brief
from ..engine.keys import NAME_PATTERN, PREFIX_PATTERN
from ..engine.rules import NAME
from .callables import IMPORT_PATTERN, nearest
from .data import COST_FORMS, STATUSES_FORMS, WrittenBan, WrittenLimiter, WrittenRule
from .mistakes import InvalidData, Mistake


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
    return nearest(option, model.model_fields)
