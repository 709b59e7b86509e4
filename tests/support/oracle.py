"""The sliding window by brute force: every timestamp is kept, and every answer counted anew.

Slow and without cleverness on purpose; what is fast must agree with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from flask_multilimit.engine import Decision, Hit

NEVER = -1


class Charge(NamedTuple):
    at: int
    cost: int
    check_id: UUID


class Oracle:
    """Answers as a storage does, with the full reply, under a clock that does not step back."""

    def __init__(self) -> None:
        self._charges: dict[str, list[Charge]] = {}

    def check(self, hits: Sequence[Hit], now: int, check_id: UUID) -> list[int]:
        if self._knows(hits, now, check_id):
            return self._reply(hits, now, repeated=True)
        reply = self._reply(hits, now)
        if any(reply[3::3]):
            return reply
        for hit in hits:
            if hit.cost:
                self._charges.setdefault(hit.key, []).append(Charge(now, hit.cost, check_id))
        return self._reply(hits, now, repeated=True)

    def peek(self, hits: Sequence[Hit], now: int) -> list[int]:
        return self._reply(hits, now)

    def refund(self, decision: Decision) -> None:
        for hit in decision.hits if decision.allowed else ():
            kept = [charge for charge in self._charges.get(hit.key, []) if charge.check_id != decision.id]
            self._charges[hit.key] = kept

    def reset(self, hits: Sequence[Hit]) -> None:
        for hit in hits:
            self._charges.pop(hit.key, None)

    def _live(self, hit: Hit, at: int) -> list[Charge]:
        return [charge for charge in self._charges.get(hit.key, []) if at - hit.rule.quota.window < charge.at <= at]

    def _used(self, hit: Hit, at: int) -> int:
        return sum(charge.cost for charge in self._live(hit, at))

    def _knows(self, hits: Sequence[Hit], now: int, check_id: UUID) -> bool:
        return any(charge.check_id == check_id for hit in hits if hit.cost for charge in self._live(hit, now))

    def _reply(self, hits: Sequence[Hit], now: int, *, repeated: bool = False) -> list[int]:
        reply = [now, 0]
        for hit in hits:
            remaining = max(hit.rule.count - self._used(hit, now), 0)
            retry_after = 0 if repeated else self._wait(hit, now)
            reply += remaining, retry_after, self._reset_after(hit, now)
        return reply

    def _wait(self, hit: Hit, now: int) -> int:
        """Until the first instant with room: now, or one at which some charge leaves the window."""
        if hit.cost == 0:  # asks only, also when the count has been lowered below what is used
            return 0
        if hit.cost > hit.rule.count:
            return NEVER
        leaving = {charge.at + hit.rule.quota.window for charge in self._live(hit, now)}
        return min(at for at in {now, *leaving} if self._used(hit, at) + hit.cost <= hit.rule.count) - now

    def _reset_after(self, hit: Hit, now: int) -> int:
        return max((charge.at + hit.rule.quota.window - now for charge in self._live(hit, now)), default=0)
