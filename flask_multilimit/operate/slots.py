"""The slots of Concurrent rules that are in use, and by whom: looked for in storage, for people."""

from __future__ import annotations

import heapq

from ..engine.key_parts import parts_of_key
from ..engine.rules import CONCURRENCY
from ..engine.storage import Inspectable
from ..serve.gate import AppGate
from .listing import describe_keys, limiters_of, stored_keys
from .top import SlotsInUse

MOST_LIMITERS = 20
"""Limiters whose keys are looked for, each by a SCAN."""
MOST_KEYS = 1000
"""Keys that are looked at."""


def slots_in_use(gate: AppGate, most: int = 20) -> list[SlotsInUse]:
    """The subjects that hold most of what they may. None where the storage lists no keys. Raises
    :class:`StorageError`."""
    scopes = _scopes(gate)
    if not scopes or not isinstance(gate.limiter.storage, Inspectable):
        return []
    stored = stored_keys(gate, list(scopes)[:MOST_LIMITERS], MOST_KEYS)
    found = []
    for key in describe_keys(gate, [each for each in stored if _is_of_slots(each.key)]):
        parts = parts_of_key(key.key)
        if key.rule is not None and key.used and parts is not None:
            found.append(SlotsInUse(scopes[parts.stem], key.used, key.rule.count, parts.type, parts.subject))
    return heapq.nlargest(most, found, key=lambda each: (each.used / each.limit, each.used))


def _is_of_slots(key: str) -> bool:
    parts = parts_of_key(key)
    return parts is not None and parts.algorithm == CONCURRENCY


def _scopes(gate: AppGate) -> dict[str, str]:
    """The scopes of limiters with slots, by what their keys begin with."""
    return {
        limiter.planned.stem: limiter.scope
        for limiter in limiters_of(gate)
        if any(rule.holds_slots for rule in limiter.planned.counted)
    }
