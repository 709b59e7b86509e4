"""Finds the slots of Concurrent rules that are in use, and who uses them: read from storage, for people."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..engine.keys import parts_of_key, scope_of_stem
from ..engine.rules import CONCURRENCY
from ..engine.storage import Inspectable
from ..serve.gate import AppGate
from .listing import describe_keys, limiters_of, prefixes_of, stored_keys
from .top import SlotsInUse

MOST_KEYS = 1000
"""The most keys to look at."""
MOST_SUBJECTS = 20


def slots_in_use(gate: AppGate) -> list[SlotsInUse]:
    """The subjects that hold the largest part of their slots, including those taken in checks, in functions and by
    rules that depend on the request. Empty if the storage cannot list keys. Raises :class:`StorageError`."""
    if not isinstance(gate.limiter.storage, Inspectable):
        return []
    return heapq.nlargest(MOST_SUBJECTS, _found(gate), key=_rank)


def _rank(found: SlotsInUse) -> tuple[float, int]:
    """The order: by the used part of the limit. An unknown limit may be used up."""
    return 1 if found.limit is None else found.used / found.limit, found.used


def _found(gate: AppGate) -> Iterator[SlotsInUse]:
    scopes = {listed.planned.stem: listed.scope for listed in limiters_of(gate)}
    for prefix in prefixes_of(gate):
        for key in describe_keys(gate, stored_keys(gate, [prefix], MOST_KEYS, containing=f":{CONCURRENCY}:")):
            parts = parts_of_key(key.key)
            if parts is None or parts.algorithm != CONCURRENCY or not key.used:
                continue
            scope = scopes.get(parts.stem) or scope_of_stem(parts.stem, prefix)
            limit = None if key.rule is None else key.rule.count
            yield SlotsInUse(scope, key.used, limit, parts.type, parts.subject)
