"""The slots of Concurrent rules that are in use, and by whom: looked for in storage, for people."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..engine.storage import Inspectable
from ..serve.gate import AppGate
from .listing import ListedLimiter, describe_keys, endpoints_of, stored_keys, subject_of, unmatched_of
from .top import SlotsInUse

MOST_PLACES = 20
"""Limiters whose keys are looked for, each by a SCAN."""
MOST_KEYS = 1000
"""Keys that are looked at."""


def slots_in_use(gate: AppGate, most: int = 20) -> list[SlotsInUse]:
    """The subjects that hold most of what they may. None where the storage lists no keys. Raises
    :class:`StorageError`."""
    places = _places(gate)
    if not places or not isinstance(gate.limiter.storage, Inspectable):
        return []
    stored = stored_keys(gate, list(places)[:MOST_PLACES], MOST_KEYS)
    found = []
    for key in describe_keys(gate, [each for each in stored if ":concurrency:" in each.key]):
        subject, place = subject_of(key.key), next(stem for stem in places if key.key.startswith(stem))
        if key.rule is not None and key.used and subject is not None:
            found.append(SlotsInUse(places[place], key.used, key.rule.count, *subject))
    return heapq.nlargest(most, found, key=lambda each: (each.used / each.limit, each.used))


def _places(gate: AppGate) -> dict[str, str]:
    """What the keys of limiters with slots begin with, and where those stand."""
    limiters: Sequence[ListedLimiter] = (
        *(limiter for endpoint in endpoints_of(gate) for limiter in endpoint.limiters),
        *unmatched_of(gate),
    )
    return {
        limiter.planned.stem: limiter.scope
        for limiter in limiters
        if any(rule.holds_slots for rule in limiter.planned.counted)
    }
