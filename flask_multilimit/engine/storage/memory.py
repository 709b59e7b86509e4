"""``memory://``: quotas of this process, under one lock: evaluate all, then write all."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock
from time import monotonic_ns
from typing import Any, NamedTuple
from uuid import UUID

from ..algorithms import Quota, sliding_window
from ..algorithms.sliding_window import Unit, charge_units
from ..clock import monotonic_microseconds
from ..decision import NOTHING, Charge, Decision, decision_of
from ..forks import mind_forks
from ..hits import PEEKED, Hit, memoized, new_id
from ..reply import ALLOWED, DELAY, NOW, head, joined, standings_of, start_of
from ..rules import Rule
from .base import StoredKey
from .tallies import Tallies, TalliesInMemory, Tally

SWEEPS = 2
"""Due keys looked at for each hit of a check: more than a hit can add, so the dead never pile up."""
NOTHING_DUE = sys.maxsize
"""In place of the instant when to look again, as long as there are no keys."""


class MemoryStorage:
    """Gives the reply that Redis would give to the same history, and keeps nothing beyond its window.

    ``clock`` returns microseconds, from any origin; ``None``: that of the process, which cannot step back. A key whose
    quota is whole again, by a rule with a lease or without, is forgotten by the checks that follow, a few each; no
    thread, no timer.
    """

    shared = False

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.clock = clock
        self._lock = Lock()
        mind_forks(self, inner=True)
        self._states: dict[str, Any] = {}
        self._rules: dict[str, Rule] = {}  # by which each state was written last
        self._serial = itertools.count()
        self._due: list[tuple[int, int, str]] = []  # a heap: when to look whether a key can be forgotten
        self._first_due = NOTHING_DUE
        self._tallies = TalliesInMemory()
        self._latest = 0  # instant of a charge: no state knows a later one

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        lock = self._lock
        lock.acquire()  # `with` would take longer than all that the lock is for
        try:
            now = monotonic_ns() // 1000 if self.clock is None else self.clock()
            if now >= self._first_due:
                self._sweep(now, SWEEPS * len(hits))
            if check_id is not None:
                return self._check_again(hits, now, check_id.bytes)
            plan, new = memoized(hits, _plan_of), new_id()
            if plan.units and now >= self._latest:
                reply = plan.reply.copy()
                reply[NOW] = now
                if charge_units(self._states, plan.units, now, new, reply):
                    self._latest = now
                    return decision_of((new, hits, reply, "memory", NOTHING, None))
            return self._answer(hits, now, new, charging=True)
        finally:
            lock.release()

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        with self._lock:
            return self._answer(hits, self._now(), PEEKED, charging=False)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        if ids is None:
            return [self.check(hits) for hits in many]
        return [self.check(hits, id_) for hits, id_ in zip(many, ids, strict=True)]

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        with self._lock:
            now = self._now()
            for charge in charges:
                self._refund(charge, now, check_id.bytes)

    def reset(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                if key in self._states:
                    self._states[key] = None  # stays until its turn in `_due`, so that it never has two of them

    def close(self) -> None:
        """Nothing to give back."""

    def keys(self, prefix: str, limit: int | None = None) -> list[StoredKey]:
        with self._lock:
            now = self._now()
            due = {key: when for when, _, key in self._due if self._states[key] is not None}
            keys = sorted(key for key in due if key.startswith(prefix))[:limit]
            return [StoredKey(key, max(due[key] - now, 0) / 1_000_000) for key in keys]

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        return self._tallies.tally(tallies, source=source, number=number)

    def tallies(self, keys: Sequence[str]) -> Tallies:
        return self._tallies.tallies(keys)

    def sweep(self, most: int) -> None:
        """Forget keys whose quota is whole again, at most ``most``, as every check does for itself."""
        with self._lock:
            self._sweep(self._now(), most)

    def usage(self) -> list[tuple[str, int]]:
        """Of each key the algorithm, and how many entries it keeps: for estimates."""
        with self._lock:
            known = [(self._rules[key], state) for key, state in self._states.items() if state is not None]
        return [(rule.algorithm, len(state) if isinstance(state, sliding_window.Log) else 1) for rule, state in known]

    def __len__(self) -> int:
        return len(self._states)

    def _now(self) -> int:
        return monotonic_microseconds() if self.clock is None else self.clock()

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()

    def _check_again(self, hits: tuple[Hit, ...], now: int, check_id: bytes) -> Decision:
        if self._already_charged(hits, now, check_id):
            return _as_allowed(self._answer(hits, now, check_id, charging=False))
        return self._answer(hits, now, check_id, charging=True)

    def _answer(self, hits: tuple[Hit, ...], now: int, check_id: bytes, *, charging: bool) -> Decision:
        states, rules, steps = self._states, self._rules, memoized(hits, _plan_of).steps
        reply, outcomes = head(now), []
        for key, quota, cost, shadow, evaluate, _, _, _ in steps:
            outcome = evaluate(states.get(key), quota, cost, now)
            outcomes.append(outcome)
            if (outcome[1] or outcome[2]) and not shadow:
                reply[ALLOWED] = reply[ALLOWED] if not outcome[1] else 0
                reply[DELAY] = max(reply[DELAY], outcome[2])
        asking, charging = charging, charging and reply[ALLOWED] > 0
        if charging and now > self._latest:
            self._latest = now
        for (key, quota, cost, _, _, charge, reset_after, rule), outcome in zip(steps, outcomes, strict=True):
            remaining, retry_after, _, seen = outcome
            if charging and cost and not retry_after:
                states[key], whole_after = charge(states.get(key), quota, cost, now, seen, check_id)
                if rules.get(key) is not rule:
                    self._written_by(rule, key, now + whole_after)
                reply += (remaining - cost, 0, whole_after)
            else:
                state = states.get(key)
                if asking and state is not None:
                    state = states[key] = rule.implementation.drop_future(state, quota, now)
                reply += (remaining, retry_after, reset_after(state, quota, now, seen))
        return Decision(check_id, hits, reply, "memory")

    def _refund(self, charge: Charge, now: int, check_id: bytes) -> None:
        hit = charge.hit
        state = self._states.get(hit.key)
        if state is None:
            return
        self._states[hit.key] = hit.rule.implementation.refund(
            state, hit.rule.quota, hit.cost, charge.until, now, check_id
        )

    def _already_charged(self, hits: tuple[Hit, ...], now: int, check_id: bytes) -> bool:
        return any(
            hit.cost and hit.rule.implementation.recognise(self._states.get(hit.key), hit.rule.quota, now, check_id)
            for hit in hits
        )

    def _written_by(self, rule: Rule, key: str, due: int) -> None:
        if key not in self._rules:
            self._look_again(due + rule.longest_quota.window - rule.quota.window, key)
        self._rules[key] = rule

    def _sweep(self, now: int, most: int) -> None:
        while most and self._first_due <= now:
            most -= 1
            _, _, key = heapq.heappop(self._due)
            self._first_due = self._due[0][0] if self._due else NOTHING_DUE
            self._forget(key, now)

    def _forget(self, key: str, now: int) -> None:
        state, rule = self._states[key], self._rules[key]
        algorithm, quota = rule.implementation, rule.longest_quota
        reset_after = algorithm.reset_after(state, quota, now, algorithm.evaluate(state, quota, 0, now)[3])
        if reset_after > 0:
            self._look_again(now + reset_after, key)
        else:
            del self._states[key], self._rules[key]

    def _look_again(self, due: int, key: str) -> None:
        heapq.heappush(self._due, (due, next(self._serial), key))
        self._first_due = self._due[0][0]


_Step = tuple[str, Quota, int, bool, Callable[..., Any], Callable[..., Any], Callable[..., Any], Rule]


class _Plan(NamedTuple):
    """What a check needs of its hits, looked up once."""

    steps: tuple[_Step, ...]
    units: tuple[Unit, ...] | None
    """Where each hit is one unit of a sliding window, as nearly always; else ``None``."""
    reply: list[int]
    """When the ``units`` are all charged, but for the instant and what remains."""


def _plan_of(hits: tuple[Hit, ...]) -> _Plan:
    reply = [*head(0), *chain.from_iterable((0, 0, hit.rule.quota.window) for hit in hits)]
    return _Plan(tuple(map(_step, hits)), _units(hits), reply)


def _step(hit: Hit) -> _Step:
    rule = hit.rule
    algorithm = rule.implementation
    steps = algorithm.evaluate, algorithm.charge, algorithm.reset_after
    return (hit.key, rule.quota, hit.cost, hit.shadow, *steps, rule)


def _units(hits: tuple[Hit, ...]) -> tuple[Unit, ...] | None:
    if any(hit.rule.implementation is not sliding_window or hit.cost != 1 for hit in hits):
        return None
    return tuple((hit.key, hit.rule.quota.window, hit.rule.count, start_of(i)) for i, hit in enumerate(hits))


def _as_allowed(decision: Decision) -> Decision:
    """The answer to a repeated check: what was charged is allowed, also when the last unit was its own."""
    standings = [((remaining, 0, reset_after), False) for remaining, _, reset_after in standings_of(decision.reply)]
    return decision._replace(reply=joined(decision.at, decision.reply[DELAY], standings))
