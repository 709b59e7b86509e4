"""The arithmetic that token bucket, leaky bucket and GCRA share: one instant per subject.

The three are one algorithm described in three ways (ITU-T I.371, Annex A, describes GCRA as a "virtual scheduling
algorithm" and as a "continuous-state leaky bucket", and shows that they are equal). One unit takes an interval of
``window / count`` to come back. The state is the instant when all units will have come back, the theoretical arrival
time. The tokens missing from the bucket, or the water in it, are the time from now to that instant, divided by the
interval.

Nothing is ever rounded: an instant is whole microseconds and a rest, in ``1 / count`` of a microsecond, so neither
windows of a millisecond nor 10**9 operations drift. The state also says when it was charged or settled last. If that
lies in the future, the clock has stepped back, and an instant that is further away than ``burst`` intervals plus
``AHEAD`` is dropped. Otherwise such an instant counts: it is a debt, or was charged under a larger ``burst``.
"""

from __future__ import annotations

from .base import AHEAD, NEVER, Outcome, Quota

Instant = tuple[int, int, int]
"""Whole microseconds, the rest in 1 / count of a microsecond, and when it was charged or settled."""

LONGEST_DEBT = 400 * 86_400_000_000
"""The longest time until the instant, in microseconds: the longest window."""


def evaluate(state: Instant | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is the time from now to the instant, in 1 / count of a microsecond."""
    behind = _behind(state, quota, now)
    slack = quota.burst * quota.window - behind
    remaining = slack // quota.window
    if cost <= remaining or not cost:
        return remaining, 0, 0, behind
    if cost > quota.burst:
        return remaining, NEVER, 0, behind
    return remaining, -((slack - cost * quota.window) // quota.count), 0, behind


def charge(state: Instant | None, quota: Quota, cost: int, now: int, seen: int, check_id: bytes) -> tuple[Instant, int]:
    whole, rest = divmod(seen + cost * quota.window, quota.count)
    return (now + whole, rest, now), whole + (rest > 0)


def reset_after(state: Instant | None, quota: Quota, now: int, seen: int) -> int:
    return -(-seen // quota.count)


def drop_future(state: Instant | None, quota: Quota, now: int) -> Instant | None:
    return state if _behind(state, quota, now) else None


def settle(
    state: Instant | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes
) -> Instant | None:
    """Give back the part of the charge that has not come back by itself: exactly if there were no other requests in
    between, and never more."""
    behind = _behind(state, quota, now)
    if units > cost:
        behind = min(behind + (units - cost) * quota.window, LONGEST_DEBT * quota.count)
    elif units < cost:
        behind -= min((cost - units) * quota.window, max(until - now, 0) * quota.count)
    if behind <= 0:
        return None
    whole, rest = divmod(behind, quota.count)
    return now + whole, rest, now


def _behind(state: Instant | None, quota: Quota, now: int) -> int:
    """The time from ``now`` to the instant, in 1 / count of a microsecond; 0 if it has passed or is dropped."""
    if state is None:
        return 0
    whole, rest, charged = state
    behind = (whole - now) * quota.count + min(rest, quota.count - 1)
    if behind > quota.burst * quota.window + AHEAD * quota.count and charged > now + AHEAD:
        return 0
    return max(behind, 0)
