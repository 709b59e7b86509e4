"""The sliding window by brute force: every charge is kept, and every answer is counted from all of them.

It is slow and simple on purpose, and the fast implementations must agree with it. It takes nothing from the package but
the layout of a reply. :class:`Window` is the definition: every oracle and every model of the tests answers by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from flask_multilimit.engine import Decision, Hit
from flask_multilimit.engine.reply import ALLOWED, joined

NEVER = -1


class Charge(NamedTuple):
    at: int
    cost: int
    check_id: bytes = b""


class Window(NamedTuple):
    """What counts at ``now``: the charges in (now - length, now + ahead]. A value; times are microseconds."""

    length: int
    charges: tuple[Charge, ...] = ()
    ahead: int = 0
    """How far the clock may have stepped back since a charge that still counts."""

    def live(self, now: int) -> tuple[Charge, ...]:
        return tuple(charge for charge in self.charges if now - self.length < charge.at <= now + self.ahead)

    def used(self, now: int) -> int:
        return sum(charge.cost for charge in self.live(now))

    def knows(self, check_id: bytes, now: int) -> bool:
        return any(charge.check_id == check_id for charge in self.live(now))

    def wait(self, count: int, cost: int, now: int) -> int:
        """The time until the first instant with room: now, or an instant at which a charge leaves the window."""
        if cost == 0:  # asks only, also when the count has been lowered below what is used
            return 0
        if cost > count:
            return NEVER
        leaving = {charge.at + self.length for charge in self.live(now)}
        return min(at for at in {now, *leaving} if self.used(at) + cost <= count) - now

    def reset_after(self, now: int) -> int:
        return max((charge.at + self.length - now for charge in self.live(now)), default=0)

    def charged(self, charge: Charge) -> Window:
        return self._replace(charges=(*self.charges, charge))

    def without(self, check_id: bytes) -> Window:
        return self._replace(charges=tuple(charge for charge in self.charges if charge.check_id != check_id))


class Oracle:
    """Answers as a storage does, with the full reply, under a clock that does not step back."""

    def __init__(self) -> None:
        self._charges: dict[str, tuple[Charge, ...]] = {}

    def check(self, hits: Sequence[Hit], now: int, check_id: UUID) -> list[int]:
        if self._knows(hits, now, check_id):
            return self._reply(hits, now, repeated=True)
        reply = self._reply(hits, now)
        if not reply[ALLOWED]:
            return reply
        for hit in hits:
            if hit.cost:
                # A charge drops what has left its own window, also where a rule with a lease, whose window is longer,
                # would count it a second more.
                counting = Window(hit.rule.quota.window, self._window(hit).live(now))
                self._charges[hit.key] = counting.charged(Charge(now, hit.cost, check_id.bytes)).charges
        return self._reply(hits, now, repeated=True, charged=True)

    def peek(self, hits: Sequence[Hit], now: int) -> list[int]:
        return self._reply(hits, now)

    def settle(self, decision: Decision, units: int, now: int) -> None:
        """Each charge becomes ``units``: a smaller one at its own instant; additional units are charged now."""
        for hit, *_ in decision.charges:
            window, check_id = self._window(hit), decision.id.bytes
            kept = [
                charge._replace(cost=min(charge.cost, units)) if charge.check_id == check_id else charge
                for charge in window.charges
            ]
            more = [Charge(now, units - hit.cost, check_id)] if units > hit.cost else []
            self._charges[hit.key] = tuple(charge for charge in [*kept, *more] if charge.cost)

    def reset(self, hits: Sequence[Hit]) -> None:
        for hit in hits:
            self._charges.pop(hit.key, None)

    def _window(self, hit: Hit) -> Window:
        return Window(hit.rule.quota.window, self._charges.get(hit.key, ()))

    def _knows(self, hits: Sequence[Hit], now: int, check_id: UUID) -> bool:
        return any(self._window(hit).knows(check_id.bytes, now) for hit in hits if hit.cost)

    def _reply(self, hits: Sequence[Hit], now: int, *, repeated: bool = False, charged: bool = False) -> list[int]:
        standings = [self._standing(hit, now, repeated=repeated, charged=charged and hit.cost > 0) for hit in hits]
        return joined(now, 0, [(standing, False) for standing in standings])

    def _standing(self, hit: Hit, now: int, *, repeated: bool, charged: bool) -> tuple[int, int, int]:
        window, count = self._window(hit), hit.rule.count
        retry_after = 0 if repeated else window.wait(count, hit.needed, now)
        left = count - window.used(now)
        if charged and not left:  # when the next unit comes back
            left = -window.wait(count, 1, now)
        return max(left, 0) if hit.rule.holds_slots else left, retry_after, window.reset_after(now)
