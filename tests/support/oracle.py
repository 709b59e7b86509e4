"""The sliding window by brute force: every charge is kept, and every answer is counted from all of them.

It is slow and simple on purpose, and the fast implementations must agree with it. It takes nothing from the package.
:class:`Window` is the definition: every oracle and every model of the tests answers by it.
"""

from __future__ import annotations

from typing import NamedTuple

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
