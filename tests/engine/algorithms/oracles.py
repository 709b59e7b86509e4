"""The algorithms a second time, from their definitions, in exact rationals, slow and plain.

Nothing here is taken from the package. An oracle answers only what its definition says: whether units conform at an
instant, and what charging them does. All else follows from that by search: ``remaining`` is how many single units in
a row conform, ``retry_after`` the first microsecond at which the cost conforms if no other request comes,
``reset_after`` the first at which all is as if no request had ever come.

Times are microseconds on a clock that does not step back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Protocol

from support.oracle import Charge, Window

FOR_EVER = -1
"""A ``retry_after`` that no waiting can reach."""


@dataclass(frozen=True)
class Terms:
    """A rule. Each oracle fills in what was left out as the documentation of its algorithm says."""

    window: int
    count: int
    burst: int | None = None
    max_delay: int | None = None

    @property
    def rate(self) -> Fraction:
        """Units a microsecond."""
        return Fraction(self.count, self.window)

    @property
    def interval(self) -> Fraction:
        """Microseconds a unit."""
        return Fraction(self.window, self.count)


class Oracle(Protocol):
    most: int
    """Units that can ever conform together."""

    def conforms(self, now: int, cost: int) -> bool: ...

    def row_conforms(self, now: int, units: int) -> bool:
        """Whether ``units`` requests of one unit each would all be admitted at ``now``."""

    def charge(self, now: int, cost: int) -> None: ...

    def is_whole(self, now: int) -> bool: ...

    def delay(self, now: int) -> Fraction: ...


class WithoutQueue:
    def conforms(self, now: int, cost: int) -> bool:
        raise NotImplementedError

    def row_conforms(self, now: int, units: int) -> bool:
        return self.conforms(now, units)

    def delay(self, now: int) -> Fraction:
        del now
        return Fraction(0)


class SlidingWindow(WithoutQueue):
    """At most ``count`` units in any window (now - window, now]."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.most = terms, terms.count
        self.window = Window(terms.window)

    def _used(self, now: int) -> int:
        return self.window.used(now)

    def conforms(self, now: int, cost: int) -> bool:
        return cost == 0 or self._used(now) + cost <= self.terms.count

    def charge(self, now: int, cost: int) -> None:
        self.window = self.window.charged(Charge(now, cost))

    def is_whole(self, now: int) -> bool:
        return self._used(now) == 0


class FixedWindow(SlidingWindow):
    """A window begins with the first charge after the one before has ended, and starts from nothing."""

    def _used(self, now: int) -> int:
        used, end = 0, None
        for charge in self.window.charges:
            if end is None or charge.at >= end:
                used, end = 0, charge.at + self.terms.window
            used += charge.cost
        return used if end is not None and now < end else 0


class SlidingWindowCounter(WithoutQueue):
    """Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017): the rate is
    ``previous * ((window - elapsed) / window) + current``, over windows that follow on from the first charge."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.most = terms, terms.count
        self.origin = 0
        self.used: dict[int, int] = {}

    def _estimate(self, now: int) -> Fraction:
        number, elapsed = divmod(now - self.origin, self.terms.window)
        share = Fraction(self.terms.window - elapsed, self.terms.window)
        return self.used.get(number - 1, 0) * share + self.used.get(number, 0)

    def conforms(self, now: int, cost: int) -> bool:
        return cost == 0 or self._estimate(now) + cost <= self.terms.count

    def charge(self, now: int, cost: int) -> None:
        if self.is_whole(now):
            self.origin, self.used = now, {}
        number = (now - self.origin) // self.terms.window
        self.used[number] = self.used.get(number, 0) + cost

    def is_whole(self, now: int) -> bool:
        return self._estimate(now) == 0


class TokenBucket(WithoutQueue):
    """Tanenbaum, "Computer Networks", 5.4 (Quality of Service): tokens come at a fixed rate until the bucket is full,
    and every unit that passes takes one out."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.most = terms, terms.burst or terms.count
        self.tokens, self.last = Fraction(self.most), 0

    def _tokens(self, now: int) -> Fraction:
        return min(Fraction(self.most), self.tokens + (now - self.last) * self.terms.rate)

    def conforms(self, now: int, cost: int) -> bool:
        return cost <= self._tokens(now)

    def charge(self, now: int, cost: int) -> None:
        self.tokens, self.last = self._tokens(now) - cost, now

    def is_whole(self, now: int) -> bool:
        return self._tokens(now) == self.most


class LeakyMeter(WithoutQueue):
    """Turner, "New directions in communications" (1986), and Tanenbaum 5.4: a unit is water; the bucket leaks at a
    fixed rate until it is empty, and what would overflow it is refused."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.most = terms, terms.burst or terms.count
        self.water, self.last = Fraction(0), 0

    def _water(self, now: int) -> Fraction:
        return max(Fraction(0), self.water - (now - self.last) * self.terms.rate)

    def conforms(self, now: int, cost: int) -> bool:
        return cost == 0 or self._water(now) + cost <= self.most

    def charge(self, now: int, cost: int) -> None:
        self.water, self.last = self._water(now) + cost, now

    def is_whole(self, now: int) -> bool:
        return self._water(now) == 0


class LeakyQueue:
    """A first-in first-out queue with one server that takes ``interval`` a unit: a request starts when the one before
    it is done, and is refused when that is more than ``max_delay`` away or more than ``burst`` units would be in it."""

    def __init__(self, terms: Terms) -> None:
        assert terms.max_delay is not None
        roomy = floor(terms.max_delay * terms.rate) + terms.count
        self.terms, self.most, self.longest = terms, terms.burst or roomy, terms.max_delay
        self.done = Fraction(0)

    def delay(self, now: int) -> Fraction:
        return max(self.done - now, Fraction(0))

    def _waits_conform(self, now: int, wait: Fraction, units: int) -> bool:
        inside = self.delay(now) * self.terms.rate
        return wait <= self.longest and inside + units <= self.most

    def conforms(self, now: int, cost: int) -> bool:
        return cost == 0 or self._waits_conform(now, self.delay(now), cost)

    def row_conforms(self, now: int, units: int) -> bool:
        wait_of_the_last = self.delay(now) + (units - 1) * self.terms.interval
        return units == 0 or self._waits_conform(now, wait_of_the_last, units)

    def charge(self, now: int, cost: int) -> None:
        self.done = now + self.delay(now) + cost * self.terms.interval

    def is_whole(self, now: int) -> bool:
        return self.done <= now


class Gcra(WithoutQueue):
    """ITU-T I.371, Annex A, "virtual scheduling algorithm" with increment T and limit (burst - 1) T: a cell at ``now``
    conforms unless ``now < TAT - limit``; then ``TAT = max(now, TAT) + T``. A cost is so many cells at once."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.most = terms, terms.burst or 1
        self.limit = (self.most - 1) * terms.interval
        self.tat = Fraction(0)

    def conforms(self, now: int, cost: int) -> bool:
        tat_of_the_last = max(self.tat, Fraction(now)) + (cost - 1) * self.terms.interval
        return cost == 0 or now >= tat_of_the_last - self.limit

    def charge(self, now: int, cost: int) -> None:
        self.tat = max(self.tat, Fraction(now)) + cost * self.terms.interval

    def is_whole(self, now: int) -> bool:
        return now >= self.tat


ORACLES: dict[str, Callable[[Terms], Oracle]] = {
    "sliding_window": SlidingWindow,
    "fixed_window": FixedWindow,
    "sliding_window_counter": SlidingWindowCounter,
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyMeter,
    "leaky_queue": LeakyQueue,
    "gcra": Gcra,
}
"""By the name of the algorithm. The leaky bucket is two: a meter, and with ``max_delay`` a queue."""

DEFINED = [name for name in ORACLES if name != "leaky_queue"]
"""The algorithms that have an oracle."""


def oracle_for(algorithm: str, window: int, count: int, burst: int | None, max_delay: int | None) -> Oracle:
    """``window`` and ``max_delay`` in microseconds."""
    name = algorithm if max_delay is None else "leaky_queue"
    return ORACLES[name](Terms(window, count, burst, max_delay))


@dataclass(frozen=True)
class Answer:
    """The expected answer of one rule, in whole microseconds."""

    allowed: bool
    remaining: int
    retry_after: int
    reset_after: int


def answer(oracle: Oracle, now: int, cost: int) -> Answer:
    """The answer of ``oracle``, without charging it."""
    allowed = oracle.conforms(now, cost)
    return Answer(allowed, _remaining(oracle, now), _retry_after(oracle, now, cost), _reset_after(oracle, now))


def _remaining(oracle: Oracle, now: int) -> int:
    return _first(lambda units: not oracle.row_conforms(now, units), upto=oracle.most + 1) - 1


def _retry_after(oracle: Oracle, now: int, cost: int) -> int:
    if cost > oracle.most:
        return FOR_EVER
    return _first(lambda wait: oracle.conforms(now + wait, cost))


def _reset_after(oracle: Oracle, now: int) -> int:
    return _first(lambda wait: oracle.is_whole(now + wait))


def _first(holds: Callable[[int], bool], upto: int = 2**50) -> int:
    """The smallest number from 0 for which ``holds`` is true. It is true for all larger ones, too."""
    low, step = 0, 1
    while step < upto and not holds(step):
        low, step = step + 1, step * 2
    high = min(step, upto)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
