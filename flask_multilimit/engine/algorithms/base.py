"""The parameters and the answers of every algorithm.

An algorithm is a pure function of a key's state, a quota, a cost and an instant. It knows no storage, no lock, no
clock and no Flask. Numbers are integers: units, and microseconds of the storage's clock.
"""

from __future__ import annotations

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
    """How long the first ban lasts, in microseconds. ``window`` and ``count`` are those of its strikes."""
    factor: float = 1
    """How many times as long each ban lasts that repeats one."""
    most: int = 0
    """The longest that a ban lasts, in microseconds."""
    memory: int = 0
    """Microseconds after the end of a ban within which the next one repeats it."""
    periods: Periods | None = field(default=None, compare=False)
    """Where the periods of a calendar begin; its ``window`` is as long as the longest of them. Not compared, because it
    is an argument of scripts, and no part of them."""


def plain_quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    """The quota of algorithms without optional parameters."""
    return Quota(window, count, count, 0)


def encode_ban(level: int, *, begun: bool) -> int:
    """A number in place of remaining units while a ban holds: its level, and whether this check began it. It is below
    0, which no number of units is."""
    return -2 * (level + 1) - begun


def level_of(remaining: int) -> int:
    """The level in a number of :func:`encode_ban`."""
    return -remaining // 2 - 1


def is_begun(remaining: int) -> bool:
    """Whether a number of :func:`encode_ban` says that this check began the ban."""
    return remaining < 0 and remaining % 2 == 1


AHEAD = 100_000
"""Microseconds. A charge that is at most this far in the future was made before the clock stepped back a little, and
counts. One that is further ahead is dropped, so that a wrong clock locks nobody out for long."""

Outcome = tuple[int, int, int, Any]
"""``remaining`` units before a charge (below 0: a debt), ``retry_after`` (0 if it allows), ``delay``, and ``seen``,
which is passed on to ``charge``."""


NO_PARAMETERS: frozenset[str] = frozenset()

COUNTED = 10**9
"""The largest cost if units are a number rather than entries."""

MOST_USED = 10**10
"""The most units that a counter holds, whatever was settled. The arithmetic of the Lua twins is exact up to more
(``span.lua``)."""


def recognise_nothing(state: Any, quota: Quota, now: int, check_id: bytes) -> bool:
    """Return ``False``, for algorithms that keep no ids."""
    return False


Unit = tuple[str, Quota, int]
"""One unit of a key: the key, the quota of its rule, and the index of ``remaining`` in a reply."""


class Algorithm(Protocol):
    """The Python twin: a module with these names. ``NAME.lua`` beside it defines the same functions.

    ``state`` is whatever the algorithm keeps for one key, ``None`` before the first charge and after its
    ``reset_after`` has passed. Only :meth:`charge`, :meth:`settle` and
    :meth:`drop_future` may change it.
    """

    @property
    def PARAMETERS(self) -> frozenset[str]:  # noqa: N802
        """The optional parameters of a rule (``burst``, ``max_delay``, ``lease``) that this algorithm takes."""

    @property
    def MAX_COST(self) -> int:  # noqa: N802
        """The largest cost of one hit."""

    @property
    def INCLUDES(self) -> tuple[str, ...]:  # noqa: N802
        """Lua files that the script needs before ``NAME.lua``, which several algorithms may share."""

    @property
    def REMEMBERS_IDS(self) -> bool:  # noqa: N802
        """Whether the state keeps check ids, so that a repeated check can be recognised."""

    def quota(self, window: int, count: int, burst: int | None, max_delay: int | None, /) -> Quota:
        """A rule in integers, with defaults for the parameters that it leaves out."""

    def evaluate(self, state: Any, quota: Quota, cost: int, now: int, /) -> Outcome:
        """May ``cost`` more units pass at ``now``? Refused at every instant before ``retry_after``, allowed at it."""

    def charge(self, state: Any, quota: Quota, cost: int, now: int, seen: Any, check_id: bytes, /) -> tuple[Any, int]:
        """Charge ``cost`` units (at least 1); return the new state and its ``reset_after``."""

    def reset_after(self, state: Any, quota: Quota, now: int, seen: Any, /) -> int:
        """Microseconds until the quota is full again if there are no requests."""

    def drop_future(self, state: Any, quota: Quota, now: int, /) -> Any:
        """Drop what lies more than ``AHEAD`` in the future (the clock stepped back), so that it does not count when its
        time comes; return the new state. Called when a check does not charge this key; :meth:`charge` drops it by
        itself."""

    def settle(self, state: Any, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes, /) -> Any:
        """Make what ``check_id`` was charged, ``cost`` units of a quota that was full again at ``until``, ``units``;
        return the new state. What is too much is given back where it was charged, as far as it still counts; what is
        missing is charged at ``now``, even beyond the count. ``state`` is ``None`` if nothing counts any more."""

    def recognise(self, state: Any, quota: Quota, now: int, check_id: bytes, /) -> bool:
        """Whether ``check_id`` was charged here, and still counts. Asked only where ``REMEMBERS_IDS``."""
