"""``memory://``: quotas of this process, under one lock: evaluate all, then write all."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any
from uuid import UUID, uuid4

from ..decision import Charge, Decision, Hit

SWEEPS = 2
"""Due keys looked at for each hit of a check: more than a hit can add, so the dead never pile up."""


def monotonic_microseconds() -> int:
    return time.monotonic_ns() // 1000


class MemoryStorage:
    """Gives the reply that Redis would give to the same history, and keeps nothing beyond its window.

    ``clock`` returns microseconds, from any origin. A key whose quota is whole again is forgotten by the checks
    that follow, a few each; no thread, no timer.
    """

    shared = False

    def __init__(self, clock: Callable[[], int] = monotonic_microseconds) -> None:
        self._clock = clock
        self._lock = Lock()
        self._states: dict[str, Any] = {}
        self._serial = itertools.count()
        self._due: list[tuple[int, int, Hit]] = []  # a heap: when to look whether a key can be forgotten

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        with self._lock:
            now = self._clock()
            self._sweep(now, SWEEPS * len(hits))
            if check_id is not None and self._already_charged(hits, check_id.int):
                return _as_allowed(self._answer(hits, now, check_id, charging=False))
            return self._answer(hits, now, check_id or uuid4(), charging=True)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        with self._lock:
            return self._answer(hits, self._clock(), uuid4(), charging=False)

    def check_many(self, many: Sequence[tuple[Hit, ...]]) -> list[Decision]:
        return [self.check(hits) for hits in many]

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        with self._lock:
            now = self._clock()
            for charge in charges:
                self._refund(charge, now, check_id.int)

    def reset(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._states.pop(key, None)

    def close(self) -> None:
        """Nothing to give back."""

    def __len__(self) -> int:
        return len(self._states)

    def _answer(self, hits: tuple[Hit, ...], now: int, check_id: UUID, *, charging: bool) -> Decision:
        states = self._states
        outcomes = [hit.rule.twin.evaluate(states.get(hit.key), hit.rule.quota, hit.cost, now) for hit in hits]
        enforced = [outcome for hit, outcome in zip(hits, outcomes, strict=True) if not hit.shadow]
        charging = charging and all(outcome[1] == 0 for outcome in enforced)
        reply = [now, max((outcome[2] for outcome in enforced), default=0)]
        for hit, (remaining, retry_after, _, seen) in zip(hits, outcomes, strict=True):
            if charging and hit.cost and retry_after == 0:
                reply += remaining - hit.cost, 0, self._charge(hit, now, seen, check_id.int)
            else:
                state = states.get(hit.key)
                reply += remaining, retry_after, hit.rule.twin.reset_after(state, hit.rule.quota, now, seen)
        return Decision.from_reply(check_id, hits, reply)

    def _charge(self, hit: Hit, now: int, seen: Any, check_id: int) -> int:
        old = self._states.get(hit.key)
        state, reset_after = hit.rule.twin.charge(old, hit.rule.quota, hit.cost, now, seen, check_id)
        self._states[hit.key] = state
        if old is None:
            self._look_again(now + reset_after, hit)
        return reset_after

    def _refund(self, charge: Charge, now: int, check_id: int) -> None:
        hit = charge.hit
        state = self._states.get(hit.key)
        if state is None:
            return
        state = hit.rule.twin.refund(state, hit.rule.quota, hit.cost, charge.until, now, check_id)
        if state is None:
            del self._states[hit.key]
        else:
            self._states[hit.key] = state

    def _already_charged(self, hits: tuple[Hit, ...], check_id: int) -> bool:
        return any(hit.cost and hit.rule.twin.recognise(self._states.get(hit.key), check_id) for hit in hits)

    def _sweep(self, now: int, most: int) -> None:
        """Forget keys whose quota is whole again, at most ``most``."""
        while most and self._due and self._due[0][0] <= now:
            most -= 1
            self._forget(heapq.heappop(self._due)[2], now)

    def _forget(self, hit: Hit, now: int) -> None:
        state = self._states.get(hit.key)
        if state is None:
            return
        twins, quota = hit.rule.twin, hit.rule.quota
        reset_after = twins.reset_after(state, quota, now, twins.evaluate(state, quota, 0, now)[3])
        if reset_after > 0:
            self._look_again(now + reset_after, hit)
        else:
            del self._states[hit.key]

    def _look_again(self, due: int, hit: Hit) -> None:
        heapq.heappush(self._due, (due, next(self._serial), hit))


def _as_allowed(decision: Decision) -> Decision:
    """The answer to a repeated check: what was charged is allowed, also when the last unit was its own."""
    reply = list(decision.reply)
    reply[3::3] = [0] * len(decision.hits)
    return Decision.from_reply(decision.id, decision.hits, reply)
