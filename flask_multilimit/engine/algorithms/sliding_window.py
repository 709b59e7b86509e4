"""Sliding window log: exact, O(count) memory. At most ``count`` units in ANY ``window``.

A unit charged at ``s`` counts at ``now`` while ``now - window < s <= now``. Scores in the future (the clock
stepped back) do not count and are dropped by the next charge. Twin of ``sliding_window.lua``.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from .base import NEVER, NO_PARAMETERS, Outcome, Quota, plain_quota

PARAMETERS = NO_PARAMETERS

MAX_COST = 10_000
"""Each unit is one entry: a larger cost would make a single check a long one."""

WITNESS = True
INCLUDES = ()

quota = plain_quota

TRIM = 128
"""At most so many entries of each kind (expired, future) are dropped by one charge."""

_ID_BITS = 128
_ID = (1 << _ID_BITS) - 1


class Log:
    """Entries in order of time, each one integer: the instant above, the id of its check in the low 128 bits.

    (One integer of 48 bytes, shared by all rules of a check, instead of a tuple of three objects.) What lies
    before ``head`` has been dropped; the list is cut when that has become half of it, so dropping stays O(1).
    """

    __slots__ = ("entries", "head")

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.head = 0

    def find(self, instant: int) -> int:
        """Index of the first entry at ``instant`` or later."""
        return bisect_left(self.entries, instant << _ID_BITS, self.head)

    def add(self, entry: int, cost: int) -> None:
        if self.entries and self.entries[-1] > entry:
            for _ in range(cost):
                insort(self.entries, entry, self.head)
        else:
            self.entries.extend([entry] * cost)

    def remove(self, check_id: int, start: int, stop: int) -> int:
        kept = [entry for entry in self.entries[start:stop] if entry & _ID != check_id]
        removed = stop - start - len(kept)
        if removed:
            self.entries[start:stop] = kept
        return removed

    def drop_first(self, many: int) -> None:
        self.head += many
        if self.head * 2 >= len(self.entries):
            del self.entries[: self.head]
            self.head = 0


def evaluate(log: Log | None, quota: Quota, cost: int, now: int) -> Outcome:
    """Seen: the range of live entries, as a pair of indices."""
    if log is None:
        first = end = 0
    else:
        first, end = log.find(now - quota.window + 1), log.find(now + 1)
    remaining = quota.count - (end - first)
    if cost <= remaining:
        return remaining, 0, 0, (first, end)
    if cost > quota.count or log is None:
        return max(remaining, 0), NEVER, 0, (first, end)
    last_to_leave = log.entries[first + cost - remaining - 1] >> _ID_BITS
    return max(remaining, 0), last_to_leave + quota.window - now, 0, (first, end)


def charge(log: Log | None, quota: Quota, cost: int, now: int, seen: tuple[int, int], check_id: int) -> tuple[Log, int]:
    log = log or Log()
    first, end = seen
    future = len(log.entries) - end
    if future:
        del log.entries[-min(future, TRIM) :]
    log.add(now << _ID_BITS | check_id, cost)
    log.drop_first(min(first - log.head, TRIM))
    return log, quota.window


def reset_after(log: Log | None, quota: Quota, now: int, seen: tuple[int, int]) -> int:
    first, end = seen
    if log is None or first == end:
        return 0
    return (log.entries[end - 1] >> _ID_BITS) + quota.window - now


def refund(log: Log, quota: Quota, cost: int, until: int, now: int, check_id: int) -> Log:
    """Take out the entries of this very check, which lie where ``until`` says unless it was a repeated one."""
    at = until - quota.window
    if not log.remove(check_id, log.find(at), log.find(at + 1)):
        log.remove(check_id, log.head, len(log.entries))
    return log


def recognise(log: Log | None, check_id: int) -> bool:
    return log is not None and any(entry & _ID == check_id for entry in log.entries[log.head :])
