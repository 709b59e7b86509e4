"""The interface of an algorithm: what its functions take and return.

They are pure functions of a key's state, a quota, a cost and an instant, and know no storage, lock, clock or Flask.
Numbers are integers: units, and microseconds by the storage's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..periods import Periods

NEVER = -1
"""A ``retry_after`` that says that waiting does not help: the cost is more than the rule ever admits."""

UNKNOWN = -2
"""A ``retry_after`` that says that the time is not known: it depends on when other work ends."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A rule in the integers that algorithms calculate with."""

    window: int
    """Length of the window, in microseconds."""
    count: int
    """Units admitted in a window."""
    burst: int
    """Units admitted at once, if the algorithm has a burst; else ``count``."""
    max_delay: int
    """Longest wait in a queue, in microseconds; 0 for algorithms and rules without a queue."""
    time: int = 0
    """How long the first ban lasts, in microseconds. A ban begins after ``count`` strikes within ``window``."""
    factor: float = 1
    """A ban that repeats another one lasts this many times as long."""
    most: int = 0
    """The longest that a ban lasts, in microseconds."""
    memory: int = 0
    """Microseconds after the end of a ban within which the next one repeats it."""
    periods: Periods | None = field(default=None, compare=False)
    """The periods of a calendar, whose ``window`` is as long as the longest of them. Not compared, because scripts get
    their boundaries as an argument."""

    @property
    def full(self) -> int:
        """What is left of it while nothing is used: of a queue, the places whose turn comes in time."""
        return min(self.burst, self.max_delay * self.count // self.window + 1) if self.max_delay > 0 else self.burst


def plain_quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    """The quota of algorithms without optional parameters."""
    return Quota(window, count, count, 0)


def encode_ban(level: int, *, begun: bool) -> int:
    """The number that replaces ``remaining`` while a ban holds: its level, and whether this check began it. It is below
    0, as no number of strikes is."""
    return -2 * (level + 1) - begun


def level_of(remaining: int) -> int:
    """The level in a number of :func:`encode_ban`."""
    return -remaining // 2 - 1


def is_begun(remaining: int) -> bool:
    """Whether a number of :func:`encode_ban` says that this check began the ban."""
    return remaining < 0 and remaining % 2 == 1


AHEAD = 100_000
"""Microseconds. A charge that is at most this far in the future was made before the clock stepped back a little, and
counts. A charge further ahead is dropped, so that a wrong clock does not lock anybody out for long."""

Outcome = tuple[int, int, int, Any]
"""``remaining`` units before a charge (below 0: a debt), ``retry_after`` (0 if it allows), ``delay``, and ``seen``:
what the algorithm found in the state, to be passed on to ``charge`` and ``reset_after``."""

NO_PARAMETERS: frozenset[str] = frozenset()

COUNTED = 10**9
"""The largest cost for algorithms that keep a number of units, not an entry for each unit."""

MOST_USED = 10**10
"""The most units that a counter holds, whatever was settled. The arithmetic of the Lua twins is exact even beyond that
(``span.lua``)."""


Unit = tuple[str, Quota, int]
"""A unit to charge: its key, the quota of its rule, and the index of its ``remaining`` in a reply."""


class Algorithm(Protocol):
    """The Python twin: a module with these names. ``NAME.lua`` beside it defines the same functions.

    ``state`` is whatever the algorithm keeps for one key, ``None`` before the first charge and after its
    ``reset_after`` has passed. Only :meth:`charge`, :meth:`settle` and :meth:`drop_future` may change it.
    """

    @property
    def PARAMETERS(self) -> frozenset[str]:  # noqa: N802
        """The optional parameters of a rule (``burst``, ``max_delay``, ``lease``) that this algorithm takes."""

    @property
    def MAX_COST(self) -> int:  # noqa: N802
        """The largest cost of one hit."""

    @property
    def INCLUDES(self) -> tuple[str, ...]:  # noqa: N802
        """Lua files, without suffix, that the script needs before ``NAME.lua``. Several algorithms may share them."""

    def quota(self, window: int, count: int, burst: int | None, max_delay: int | None, /) -> Quota:
        """The quota of a rule, with defaults for parameters that are ``None``."""

    def evaluate(self, state: Any, quota: Quota, cost: int, now: int, /) -> Outcome:
        """Whether ``cost`` more units may pass at ``now``. If not, they are refused until ``retry_after`` has passed,
        and then allowed."""

    def charge(self, state: Any, quota: Quota, cost: int, now: int, seen: Any, check_id: bytes, /) -> tuple[Any, int]:
        """Charge ``cost`` units (at least 1); return the new state and its ``reset_after``."""

    def reset_after(self, state: Any, quota: Quota, now: int, seen: Any, /) -> int:
        """Microseconds until the quota is full again if there are no requests."""

    def drop_future(self, state: Any, quota: Quota, now: int, /) -> Any:
        """Drop what lies more than ``AHEAD`` in the future (the clock stepped back), so that it does not count when its
        time comes; return the new state. Called when a check does not charge this key. :meth:`charge` does the
        same."""

    def settle(self, state: Any, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes, /) -> Any:
        """Change the charge of ``check_id`` from ``cost`` to ``units``; return the new state. After the charge, the
        quota was to be full again at ``until``. Units that were charged too much are given back where they were
        charged, if they still count; missing units are charged at ``now``, even beyond the count. ``state`` is ``None``
        if nothing counts any more."""

    @property
    def recognise(self) -> Callable[[Any, Quota, int, bytes], bool] | None:
        """Whether a charge of a check still counts: of ``state``, ``quota``, ``now`` and ``check_id``. ``None`` if the
        state keeps no check ids."""
