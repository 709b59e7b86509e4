"""Calendar: a counter that starts again with each period of a calendar. O(1) memory.

``now`` is Unix time. The state has the units of the latest period that was charged, and those of the period before it:
if the clock steps back over a boundary, the earlier period continues with the units used in it, and the later one keeps
its own. A state belongs to the period that begins nearest to its beginning: processes may know other rules of a zone.
Twin of ``calendar.lua``.
"""

from __future__ import annotations

from ..periods import AROUND
from .base import COUNTED, MOST_USED, NEVER, NO_PARAMETERS, Outcome, Quota, plain_quota

PARAMETERS = NO_PARAMETERS
MAX_COST = COUNTED
INCLUDES = ("numbers",)

LINGERS = 3_600_000_000
"""Microseconds for which a state outlives its period, in case the clock steps back."""

State = tuple[int, int, int]
"""The beginning of the latest period, the units used in it, and those used in the period before."""

quota = plain_quota
recognise = None


def evaluate(state: State | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is the state in force at ``now``."""
    _, _, end, after = around = _around(quota, now)
    start, used, before = seen = _in_force(state, around)
    remaining = quota.count - (used if start < end else before)
    if cost <= remaining or not cost:
        return remaining, 0, 0, seen
    if cost > quota.count:
        return remaining, NEVER, 0, seen
    is_next_full = start >= end and used + cost > quota.count
    return remaining, (after if is_next_full else end) - now, 0, seen


def charge(state: State | None, quota: Quota, cost: int, now: int, seen: State, check_id: bytes) -> tuple[State, int]:
    end = _around(quota, now)[2]
    return _added(seen, cost, is_before=seen[0] >= end), end - now


def reset_after(state: State | None, quota: Quota, now: int, seen: State) -> int:
    """Until the present period ends, as :func:`charge` says, also if the next one has been charged before a step."""
    end = _around(quota, now)[2]
    return end - now if seen[0] >= end or seen[1] else 0


def kept_for(state: State | None, quota: Quota, now: int) -> int:
    """Microseconds until ``state`` may be forgotten: how long its period lasts, and :data:`LINGERS`."""
    begun = now - LINGERS
    _, begin, end, after = _around(quota, begun)
    if state is None or not begin <= state[0] < after:
        return 0
    return (end if state[0] < end else after) - begun


def drop_future(state: State | None, quota: Quota, now: int) -> State | None:
    return None if state is not None and state[0] >= _around(quota, now)[3] else state


def settle(
    state: State | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes
) -> State | None:
    """Give back within the period of the charge, and nothing once that is over."""
    _, _, end, after = around = _around(quota, now)
    seen = _in_force(state, around)
    is_next = seen[0] >= end
    if units > cost or until == end:
        start, used, before = _added(seen, units - cost, is_before=is_next)
    elif is_next and until == after:
        start, used, before = _added(seen, units - cost, is_before=False)
    else:
        return state
    return (start, used, before) if used or before else None


def _around(quota: Quota, now: int) -> tuple[int, ...]:
    """Four boundaries: the beginnings of the previous and of the present period, and the ends of the present and of the
    next one."""
    assert quota.periods is not None
    return quota.periods.around(now)[AROUND - 1 : AROUND + 3]


def _in_force(state: State | None, around: tuple[int, ...]) -> State:
    earlier, begin, end, after = around
    if state is None or state[0] < earlier or 2 * state[0] >= end + after:
        return begin, 0, 0
    start, used, before = state
    if 2 * start < earlier + begin:
        return begin, 0, used
    return (begin if 2 * start < begin + end else end), used, before


def _added(state: State, units: int, *, is_before: bool) -> State:
    """``state`` with ``units`` more (below 0: fewer) in its latest period, or if ``is_before``, in the one before."""
    start, used, before = state
    if is_before:
        return start, used, min(max(before + units, 0), MOST_USED)
    return start, min(max(used + units, 0), MOST_USED), before
