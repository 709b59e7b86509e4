"""Concurrency: at most ``count`` units *in progress*. O(units in progress) memory.

A unit is a slot. It is taken when the check passes, renewed (:func:`renew`) while the work goes on, and given back
(:func:`settle`) when the work is done. If its worker dies, it expires ``window`` after it was taken or last renewed. So
the state is the log of a sliding window whose entries leave early. When they will leave is not known, and a refusal
says so. Twin of ``concurrency.lua``.
"""

from __future__ import annotations

from . import sliding_window
from .base import NO_PARAMETERS, UNKNOWN, Outcome, Quota, plain_quota
from .sliding_window import Log
from .sliding_window import charge as charge
from .sliding_window import drop_future as drop_future
from .sliding_window import recognise as recognise
from .sliding_window import reset_after as reset_after

PARAMETERS: frozenset[str] = NO_PARAMETERS

MAX_COST = 1000
"""Low, because each unit is one entry, which is renewed while the work goes on."""

INCLUDES = ("log",)

quota = plain_quota


def evaluate(log: Log | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is the range of the slots that count, as a pair of indices."""
    remaining, retry_after, delay, seen = sliding_window.evaluate(log, quota, cost, now)
    return max(remaining, 0), UNKNOWN if retry_after > 0 else retry_after, delay, seen


def settle(log: Log | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes) -> Log | None:
    """Take slots out, wherever a renewal has moved them. Slots are never added."""
    if log is not None and units < cost:
        begin, end = log.row(check_id, log.head, log.end)
        log.remove(begin, min(begin + cost - units, end))
    return log


def renew(log: Log | None, quota: Quota, cost: int, now: int, check_id: bytes) -> Log:
    """Let the slots of ``check_id`` count from ``now`` on, even those that were gone, and even beyond the count."""
    if log is None:
        log = Log(quota)
    begin, end = log.row(check_id, log.head, log.end)
    log.remove(begin, min(begin + cost, end))
    log.add(log.after(now, log.head), now, check_id, cost)
    return log


def release_command(key: bytes, cost: int, check_id: bytes) -> tuple[bytes, ...]:
    return (b"ZREM", key, check_id, *[b"%b%d" % (check_id, unit) for unit in range(2, cost + 1)])
