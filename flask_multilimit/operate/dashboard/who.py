"""Subjects as people write and read them, and as links contain them."""

from __future__ import annotations

import json
import re
from typing import Any

from ...declare.subjects import EVERYONE
from ...observe.traffic.counts import LONGEST_SUBJECT
from ...serve.gate import AppGate

_SHORTENED = re.compile(rf".{{{LONGEST_SUBJECT - 17}}}\*[0-9a-f]{{16}}", re.DOTALL)


def named(gate: AppGate, type_name: str, value: str) -> dict[str, Any]:
    """A subject of traffic for people. ``known`` says whether it is complete, so that it can be looked up."""
    plain = gate.settings.traffic_subjects == "plain"
    return {"shown": readable(type_name, value), "known": plain and not _SHORTENED.fullmatch(value)}


def readable(type_name: str, value: str) -> str:
    """``ada + 203.0.113.7`` for several together; ``""`` is everyone, or an empty one."""
    if "+" in type_name or value.startswith("[["):
        try:
            return " + ".join(str(part) or "(everyone)" for _, part in json.loads(value))
        except (ValueError, TypeError):
            return value
    if type_name == EVERYONE.type:
        return "(everyone)"
    return value or "(empty)"
