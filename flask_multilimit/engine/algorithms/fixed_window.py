"""Fixed window counter: the cheapest, one counter per subject. Around the end of a window, up to twice ``count`` pass.

A subject's window begins with its first charge and ends ``window`` later; the next charge begins another. A
window that begins more than ``AHEAD`` in the future (the clock stepped back) is dropped. Twin of ``fixed_window.lua``.
"""

from __future__ import annotations

from .base import AHEAD, COUNTED, MOST_USED, NEVER, Outcome, Quota, plain_quota

PARAMETERS = frozenset({"lease"})
MAX_COST = COUNTED
INCLUDES = ("numbers",)

State = tuple[int, int]
"""The beginning of the window, and the units used in it."""

quota = plain_quota
recognise = None


def evaluate(state: State | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is the window in force at ``now``, if necessary a new one."""
    start, used = _in_force(state, quota, now)
    remaining = quota.count - used
    if cost <= remaining or not cost:
        return remaining, 0, 0, (start, used)
    if cost > quota.count:
        return remaining, NEVER, 0, (start, used)
    return remaining, start + quota.window - now, 0, (start, used)


def charge(state: State | None, quota: Quota, cost: int, now: int, seen: State, check_id: bytes) -> tuple[State, int]:
    start, used = seen
    return (start, used + cost), start + quota.window - now


def reset_after(state: State | None, quota: Quota, now: int, seen: State) -> int:
    start, used = seen
    return start + quota.window - now if used else 0


def drop_future(state: State | None, quota: Quota, now: int) -> State | None:
    return None if state is not None and state[0] > now + AHEAD else state


def settle(
    state: State | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes
) -> State | None:
    """Give back within the window of the charge, and nothing once that is over."""
    if units > cost:
        start, used = _in_force(state, quota, now)
        return start, min(used + units - cost, MOST_USED)
    if state is None or until <= now or until != state[0] + quota.window:
        return state
    start, used = state
    return (start, used - cost + units) if used > cost - units else None


def _in_force(state: State | None, quota: Quota, now: int) -> State:
    return state if state and state[0] - AHEAD <= now < state[0] + quota.window else (now, 0)
