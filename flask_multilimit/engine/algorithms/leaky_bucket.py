"""Leaky bucket: units are water, of which ``count`` leak in every ``time``; the bucket holds ``burst``.

Without ``max_delay`` it is a meter: a request that would overflow it is refused. With ``max_delay`` it is a queue that
drains at a fixed rate: a request is admitted with a ``delay``, the time until those before it have drained, and refused
if that is longer than ``max_delay``. The order of the queue is the order of arrival at the storage, across all
processes.

Without ``burst`` it is ``count``, and for a queue, ``count`` more than what drains in ``max_delay``. The arithmetic is
in ``rate.py``. Twin of ``leaky_bucket.lua``.
"""

from __future__ import annotations

from . import rate
from .base import COUNTED, NEVER, Outcome, Quota
from .rate import charge as charge
from .rate import drop_future as drop_future
from .rate import reset_after as reset_after
from .rate import settle as settle

PARAMETERS = frozenset({"burst", "max_delay"})
MAX_COST = COUNTED
INCLUDES = ("numbers", "span", "rate")

METER = -1
"""Stands for a missing ``max_delay``."""

LONGEST_QUEUE = 10**10
"""The most units in a queue. The arithmetic of the Lua twin is exact even beyond that (``span.lua``)."""

recognise = None


def quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    if max_delay is None:
        return Quota(window, count, burst or count, METER)
    burst = burst or max_delay * count // window + count
    if burst > LONGEST_QUEUE:
        raise ValueError(
            f"max_delay would let {burst} units wait, and a queue holds at most {LONGEST_QUEUE}; "
            "shorten it, lower count, or give burst"
        )
    return Quota(window, count, burst, max_delay)


def evaluate(state: rate.Instant | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is as in ``rate.py``. Rounded up to whole microseconds, it is the delay. A check of cost 0 never
    waits."""
    remaining, retry_after, _, behind = rate.evaluate(state, quota, cost, now)
    if quota.max_delay == METER:
        return remaining, retry_after, 0, behind
    delay = -(-behind // quota.count)
    places = (quota.max_delay * quota.count - behind) // quota.window + 1
    remaining = min(remaining, max(places, 0))
    if cost == 0 or retry_after == NEVER:
        return remaining, retry_after, 0, behind
    retry_after = max(retry_after, delay - quota.max_delay, 0)
    return remaining, retry_after, 0 if retry_after else delay, behind
