"""Sliding window counter: two counters per subject. It estimates as if the previous window had been used evenly.

At ``now``, the units used are those of the current window, plus the share of the previous window that the sliding
window still covers: ``previous x (window - elapsed) / window``, rounded up. (The formula of Cloudflare's "How we built
rate limiting capable of scaling to millions of domains", 2017.) A subject's windows start with its first charge. A
window that begins more than ``AHEAD`` in the future (the clock stepped back) is dropped. Twin of
``sliding_window_counter.lua``.
"""

from __future__ import annotations

from .base import AHEAD, COUNTED, MOST_USED, NEVER, NO_PARAMETERS, Outcome, Quota, plain_quota

PARAMETERS = NO_PARAMETERS
MAX_COST = COUNTED
INCLUDES = ("numbers", "span")

State = tuple[int, int, int]
"""The beginning of the current window, the units used in it, and the units used in the previous one."""

quota = plain_quota
recognise = None


def evaluate(state: State | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is the state in force at ``now``."""
    seen = start, current, previous = _in_force(state, quota, now)
    elapsed = now - start
    weighted = -(-previous * (quota.window - elapsed) // quota.window)
    remaining = quota.count - current - weighted
    if cost <= remaining or not cost:
        return remaining, 0, 0, seen
    if cost > quota.count:
        return remaining, NEVER, 0, seen
    room = quota.count - current - cost
    if room >= 0:
        wait = _elapsed_until(previous, room, quota) - elapsed
    else:
        wait = quota.window - elapsed + _elapsed_until(current, quota.count - cost, quota)
    return remaining, wait, 0, seen


def charge(state: State | None, quota: Quota, cost: int, now: int, seen: State, check_id: bytes) -> tuple[State, int]:
    start, current, previous = seen
    return (start, current + cost, previous), start + 2 * quota.window - now


def reset_after(state: State | None, quota: Quota, now: int, seen: State) -> int:
    start, current, previous = seen
    if current:
        return start + 2 * quota.window - now
    return start + quota.window - now if previous else 0


def drop_future(state: State | None, quota: Quota, now: int) -> State | None:
    return None if state is not None and state[0] > now + AHEAD else state


def settle(
    state: State | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes
) -> State | None:
    """Give back while the window of the charge is the current or the previous one, and nothing after that."""
    if units > cost:
        start, current, previous = _in_force(state, quota, now)
        return start, min(current + units - cost, MOST_USED), previous
    if state is None or until <= now:
        return state
    start, current, previous = state
    end = start + 2 * quota.window
    if until == end:
        return start, max(current - cost + units, 0), previous
    if until == end - quota.window:
        return start, current, max(previous - cost + units, 0)
    return state


def _in_force(state: State | None, quota: Quota, now: int) -> State:
    if state is None or not state[0] - AHEAD <= now < state[0] + 2 * quota.window:
        return now, 0, 0
    start, current, previous = state
    if now >= start + quota.window:
        start, current, previous = start + quota.window, 0, current
    # If nothing counts any more after a settlement at 0, the next charge begins a new window.
    return (start, current, previous) if current or previous else (now, 0, 0)


def _elapsed_until(used: int, room: int, quota: Quota) -> int:
    """The time into a window at which the weight of the ``used`` units of the previous one has fallen to ``room``;
    below 0 if that is before the window, to where the clock may have stepped back."""
    return quota.window - room * quota.window // used
