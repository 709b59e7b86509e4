"""The contract of a check a second time, for operations one after the other.

Worlds are values: to try another order of operations, continue from an earlier world.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from flask_multilimit.engine import Hit
from flask_multilimit.engine.algorithms import ALGORITHMS, SLIDING, Quota
from flask_multilimit.engine.algorithms.base import AHEAD
from history.operations import Operation
from support.oracle import Charge, Window

Charges = tuple[Charge, ...]


class SlidingWindow:
    """The window of ``support.oracle``, with the signatures of the package's algorithms. Its state is the charges."""

    @staticmethod
    def evaluate(state: Charges | None, quota: Quota, cost: int, now: int) -> tuple[int, int, int, Charges]:
        window = _window(state, quota)
        return quota.count - window.used(now), window.wait(quota.count, cost, now), 0, window.live(now)

    @staticmethod
    def charge(
        state: Charges | None, quota: Quota, cost: int, now: int, seen: Charges, check_id: bytes
    ) -> tuple[Charges, int]:
        del state
        return (*seen, Charge(now, cost, check_id)), quota.window

    @staticmethod
    def reset_after(state: Charges | None, quota: Quota, now: int, seen: Charges) -> int:
        del state
        return _window(seen, quota).reset_after(now)

    @staticmethod
    def settle(
        state: Charges | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes
    ) -> Charges:
        """A smaller charge stays at its own instant; additional units are charged now."""
        del quota, until
        kept = [
            each._replace(cost=min(each.cost, units)) if each.check_id == check_id else each for each in state or ()
        ]
        return tuple(each for each in (*kept, Charge(now, max(units - cost, 0), check_id)) if each.cost)

    @staticmethod
    def drop_future(state: Charges | None, quota: Quota, now: int) -> Charges | None:
        """Keep it, because no charge of a history lies that far ahead."""
        del quota, now
        return state

    @staticmethod
    def recognise(state: Charges | None, quota: Quota, now: int, check_id: bytes) -> bool:
        return _window(state, quota).knows(check_id, now)


def _window(state: Charges | None, quota: Quota) -> Window:
    return Window(quota.window, state or (), AHEAD)


def _algorithm_of(hit: Hit) -> type[SlidingWindow] | ModuleType | Any:
    return SlidingWindow if hit.rule.algorithm == "sliding_window" else ALGORITHMS[hit.rule.algorithm]


class World(NamedTuple):
    """All that a storage would hold, with the instant of the last operation."""

    now: int = 0
    states: frozenset[tuple[str, Any]] = frozenset()

    def after(self, operation: Operation) -> tuple[tuple[int, ...], World]:
        """The reply to ``operation`` at its recorded instant, and the world after it."""
        if operation.kind in {"refund", "settle"}:
            return (), self._after_settlement(operation)
        return self._after_check(operation)

    def _after_check(self, operation: Operation) -> tuple[tuple[int, ...], World]:
        states, now, hits = dict(self.states), operation.at, operation.hits
        again = operation.kind == "repeat" and any(
            recognise(states.get(hit.key), hit.rule.quota, now, operation.id)
            for hit in hits
            if hit.cost and (recognise := _algorithm_of(hit).recognise)
        )
        found = [_algorithm_of(hit).evaluate(states.get(hit.key), hit.rule.quota, hit.needed, now) for hit in hits]
        refusals = [0 if again else outcome[1] for outcome in found]
        allowed = all(hit.shadow or not refusal for hit, refusal in zip(hits, refusals, strict=True))
        delay = max((outcome[2] for hit, outcome in zip(hits, found, strict=True) if not hit.shadow), default=0)
        reply = [now, int(allowed), delay]
        for hit, outcome, refusal in zip(hits, found, refusals, strict=True):
            algorithm, state, remaining = _algorithm_of(hit), states.get(hit.key), outcome[0]
            if allowed and not again and operation.kind != "peek" and hit.cost and not refusal:
                states[hit.key], reset_after = algorithm.charge(
                    state, hit.rule.quota, hit.cost, now, outcome[3], operation.id
                )
                remaining -= hit.cost
                if not remaining and hit.rule.algorithm in SLIDING:  # how long until the next unit comes back
                    remaining = -algorithm.evaluate(states[hit.key], hit.rule.quota, 1, now)[1]
            else:
                if operation.kind != "peek" and not again:
                    states[hit.key] = algorithm.drop_future(state, hit.rule.quota, now)
                reset_after = algorithm.reset_after(state, hit.rule.quota, now, outcome[3])
            reply += remaining, refusal, reset_after
        return tuple(reply), World(max(self.now, now), frozenset(states.items()))

    def _after_settlement(self, operation: Operation) -> World:
        states, now = dict(self.states), operation.at if operation.reply else self.now
        for hit, until, units in operation.charges:
            state = states.get(hit.key)
            if state is not None or units:
                states[hit.key] = _algorithm_of(hit).settle(
                    state, hit.rule.quota, hit.cost, units, until, now, operation.id
                )
        return World(self.now, frozenset(states.items()))

    def without(self, hits: tuple[Hit, ...]) -> World:
        """The world after a reset."""
        reset = {hit.key for hit in hits}
        return World(self.now, frozenset(each for each in self.states if each[0] not in reset))
