"""The contract of a check once more, in a world where one comes after the other.

Worlds are values: to try another order of what happened, go on from an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.algorithms.base import AHEAD
from support.oracle import NEVER

if TYPE_CHECKING:
    from types import ModuleType

    from flask_multilimit.engine import Hit
    from flask_multilimit.engine.algorithms import Quota
    from history.operations import Operation


class Unit(NamedTuple):
    """One unit in a sliding window."""

    at: int
    id: bytes


Units = tuple[Unit, ...]


class SlidingWindow:
    """By brute force, as :class:`oracle.Oracle`, with the signatures of the Python twins."""

    @staticmethod
    def live(state: Units | None, quota: Quota, now: int) -> Units:
        return tuple(unit for unit in state or () if now - quota.window < unit.at <= now + AHEAD)

    @classmethod
    def evaluate(cls, state: Units | None, quota: Quota, cost: int, now: int) -> tuple[int, int, int, Units]:
        live = cls.live(state, quota, now)
        remaining = quota.count - len(live)
        if cost <= remaining:
            return remaining, 0, 0, live
        if cost > quota.count:
            return remaining, NEVER, 0, live
        leaving = sorted(unit.at + quota.window for unit in live)
        return remaining, leaving[cost - remaining - 1] - now, 0, live

    @staticmethod
    def charge(
        state: Units | None, quota: Quota, cost: int, now: int, seen: Units, check_id: bytes
    ) -> tuple[Units, int]:
        del state
        return (*seen, *[Unit(now, check_id)] * cost), quota.window

    @staticmethod
    def reset_after(state: Units | None, quota: Quota, now: int, seen: Units) -> int:
        del state
        return max((unit.at + quota.window - now for unit in seen), default=0)

    @staticmethod
    def refund(state: Units, quota: Quota, cost: int, until: int, now: int, check_id: bytes) -> Units:
        del quota, cost, until, now
        return tuple(unit for unit in state if unit.id != check_id)

    @classmethod
    def recognise(cls, state: Units | None, quota: Quota, now: int, check_id: bytes) -> bool:
        return any(unit.id == check_id for unit in cls.live(state, quota, now))


def _algorithm_of(hit: Hit) -> type[SlidingWindow] | ModuleType | Any:
    return SlidingWindow if hit.rule.algorithm == "sliding_window" else ALGORITHMS[hit.rule.algorithm]


class World(NamedTuple):
    """All that storage would hold, with the instant it was changed or asked last."""

    now: int = 0
    states: frozenset[tuple[str, Any]] = frozenset()

    def after(self, operation: Operation) -> tuple[tuple[int, ...], World]:
        """The reply to ``operation``, and the world it leaves; its instant is the one that was recorded."""
        if operation.kind == "refund":
            return (), self._after_refund(operation)
        return self._after_check(operation)

    def _after_check(self, operation: Operation) -> tuple[tuple[int, ...], World]:
        states, now, hits = dict(self.states), operation.at, operation.hits
        again = operation.kind == "repeat" and any(
            hit.cost and _algorithm_of(hit).recognise(states.get(hit.key), hit.rule.quota, now, operation.id)
            for hit in hits
        )
        found = [_algorithm_of(hit).evaluate(states.get(hit.key), hit.rule.quota, hit.cost, now) for hit in hits]
        refusals = [0 if again else outcome[1] for outcome in found]
        allowed = all(hit.shadow or not refusal for hit, refusal in zip(hits, refusals, strict=True))
        delay = max((outcome[2] for hit, outcome in zip(hits, found, strict=True) if not hit.shadow), default=0)
        reply = [now, delay if allowed else ~delay]
        for hit, outcome, refusal in zip(hits, found, refusals, strict=True):
            algorithm, state, remaining = _algorithm_of(hit), states.get(hit.key), outcome[0]
            if allowed and not again and operation.kind != "peek" and hit.cost and not refusal:
                states[hit.key], reset_after = algorithm.charge(
                    state, hit.rule.quota, hit.cost, now, outcome[3], operation.id
                )
                remaining -= hit.cost
            else:
                reset_after = algorithm.reset_after(state, hit.rule.quota, now, outcome[3])
            reply += remaining, refusal, reset_after
        return tuple(reply), World(max(self.now, now), frozenset(states.items()))

    def _after_refund(self, operation: Operation) -> World:
        states = dict(self.states)
        for hit, until in ((charge.hit, charge.until) for charge in operation.charges):
            state = states.get(hit.key)
            if state is not None:
                states[hit.key] = _algorithm_of(hit).refund(
                    state, hit.rule.quota, hit.cost, until, self.now, operation.id
                )
        return World(self.now, frozenset(states.items()))
