"""Sliding window log: exact, O(count) memory. At most ``count`` units in ANY ``window``.

A unit charged at ``s`` counts at ``now`` while ``now - window < s <= now + AHEAD``. Units further in the future (the
clock stepped back) do not count, and the next check drops them. The ``reset_after`` of a charge is that of the units it
has charged, even if others are in the future. Twin of ``sliding_window.lua``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, MutableMapping, Sequence

from .base import AHEAD, NEVER, Outcome, Quota, Unit, plain_quota

PARAMETERS = frozenset({"lease"})

MAX_COST = 10_000
"""Each unit is one entry: with a larger cost, a single check would take long."""

INCLUDES = ("log",)

quota = plain_quota

TRIM = 128
"""The most entries of each kind (expired, future) that one charge drops, plus one for each of its units."""

FEW = 8
"""The array is cut only if at least this many entries are dropped."""

_entry = struct.Struct("n16s" if sys.maxsize > 2**32 else "q16s").pack
"""An instant and a check id, as the array keeps them. Where ``n`` has 64 bits, it is packed in a third less time."""
_PER_ENTRY = 3
"""Numbers in the array for each entry: one for the instant, two for the id."""
_COMPLEMENT = bytes(255 - byte for byte in range(256))
"""Translates the id of a check to the id of what it was settled at beyond its cost, which no check has."""


class Log:
    """Entries in order of time, each an instant and the id of its check: 24 bytes per entry.

    Entries before ``head`` are dropped. The array is cut when these are at least half of all and at least :data:`FEW`,
    so dropping is O(1) on average. ``quota`` is that of the last charge. By this quota, all entries count until
    ``known_until`` (0 if not known), and there is ``room`` for that many more.
    """

    __slots__ = ("entries", "head", "known_until", "quota", "room")

    def __init__(self, quota: Quota) -> None:
        self.entries: array[int] = array("q")
        self.head: int = 0
        self.quota: Quota = quota
        self.room: int = 0
        self.known_until: int = 0

    @property
    def end(self) -> int:
        """The index after the last entry."""
        return len(self.entries) // _PER_ENTRY

    def after(self, instant: int, start: int) -> int:
        """The index of the first entry later than ``instant``, from ``start`` on."""
        return bisect_right(memoryview(self.entries)[::_PER_ENTRY], instant, start)

    def add(self, place: int, now: int, check_id: bytes, cost: int) -> None:
        """Insert ``cost`` entries at index ``place``, which is the end unless there are entries in the future."""
        self.known_until = 0
        if place < self.end:
            self.entries[place * _PER_ENTRY : place * _PER_ENTRY] = array("q", _entry(now, check_id) * cost)
        else:
            self.entries.frombytes(_entry(now, check_id) * cost)

    def find(self, check_id: bytes, start: int, stop: int) -> int:
        """The index of the first entry of ``check_id``; -1 if there is none."""
        searched = memoryview(self.entries)[start * _PER_ENTRY : stop * _PER_ENTRY].tobytes()
        at = searched.find(check_id)
        while at >= 0 and at % (8 * _PER_ENTRY) != 8:  # an id follows the 8 bytes of an instant
            at = searched.find(check_id, at + 1)
        return -1 if at < 0 else start + at // (8 * _PER_ENTRY)

    def row(self, check_id: bytes, start: int, stop: int) -> tuple[int, int]:
        """The index of the first entry of ``check_id``, and the one after those that follow it in a row; the same one
        twice if there is none."""
        begin = self.find(check_id, start, stop)
        if begin < 0:
            return stop, stop
        numbers, end = self.entries[begin * _PER_ENTRY + 1 : (begin + 1) * _PER_ENTRY], begin + 1
        while end < stop and self.entries[end * _PER_ENTRY + 1 : (end + 1) * _PER_ENTRY] == numbers:
            end += 1
        return begin, end

    def total(self, check_id: bytes, start: int) -> int:
        """How many entries of ``check_id`` there are from ``start`` on, adjacent or not."""
        return memoryview(self.entries)[start * _PER_ENTRY :].tobytes().count(check_id)

    def remove(self, begin: int, end: int) -> None:
        if begin < end:
            self.known_until = 0
            self._cut(begin, end)

    def drop_first(self, number: int) -> None:
        self.head += number
        if self.head >= FEW and self.head * (2 * _PER_ENTRY) >= len(self.entries):
            self._cut(0, self.head)
            self.head = 0

    def drop_last(self, number: int) -> None:
        self.known_until = 0
        self._cut(self.end - number, self.end)

    def measure_room(self, quota: Quota, now: int) -> int:
        """Set ``room`` and ``known_until`` by ``quota``. Returns how many entries have expired. No entry may be in the
        future."""
        entries, first, begin = self.entries, self.head, now - quota.window
        end = len(entries) // _PER_ENTRY
        if first < end and entries[first * _PER_ENTRY] <= begin:
            first += 1
            if first < end and entries[first * _PER_ENTRY] <= begin:
                first = self.after(begin, first)
        self.quota, self.room = quota, quota.count - end + first
        self.known_until = quota.window + (entries[first * _PER_ENTRY] if first < end else now)
        return first - self.head

    def _cut(self, begin: int, end: int) -> None:
        del self.entries[begin * _PER_ENTRY : end * _PER_ENTRY]


def evaluate(log: Log | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``seen`` is the range of the entries that count, as a pair of indices."""
    first = end = 0
    if log is not None:
        entries, first = log.entries, log.head
        end = len(entries) // _PER_ENTRY
        if first < end:
            if entries[-_PER_ENTRY] > now + AHEAD:
                end = log.after(now + AHEAD, first)
            if entries[first * _PER_ENTRY] <= now - quota.window:
                first = min(log.after(now - quota.window, first), end)
    remaining = quota.count - end + first
    if cost <= remaining or not cost:
        return remaining, 0, 0, (first, end)
    if cost > quota.count or log is None:
        return remaining, NEVER, 0, (first, end)
    return remaining, log.entries[(end + cost - quota.count - 1) * _PER_ENTRY] + quota.window - now, 0, (first, end)


def charge(
    log: Log | None, quota: Quota, cost: int, now: int, seen: tuple[int, int], check_id: bytes
) -> tuple[Log, int]:
    if log is None:
        log = Log(quota)
    log.quota, log.known_until = quota, 0
    first, end = seen
    entries = log.entries
    if end * _PER_ENTRY == len(entries) and (end == log.head or entries[-_PER_ENTRY] <= now):  # nearly always
        entries.frombytes(_entry(now, check_id) * cost)
    else:
        log.drop_last(min(log.end - end, TRIM + cost))
        log.add(min(log.after(now, first), end), now, check_id, cost)
    if first > log.head:
        log.drop_first(min(first - log.head, TRIM + cost))
    return log, quota.window


def charge_unit(
    logs: MutableMapping[str, Log | None], unit: Unit, now: int, check_id: bytes, reply: list[int]
) -> Sequence[str] | None:
    """:func:`charge_units` for one unit, all that most checks ask for."""
    key, quota, place = unit
    log = logs.get(key)
    if log is None or log.known_until <= now or log.quota is not quota:
        return charge_units(logs, (unit,), now, check_id, reply)
    left = log.room - 1
    if left > 0:
        reply[place] = left
    elif left == 0:
        reply[place] = now - log.known_until
    else:
        return None
    log.room = left
    log.entries.frombytes(_entry(now, check_id))
    return ()


def charge_units(
    logs: MutableMapping[str, Log | None], units: Sequence[Unit], now: int, check_id: bytes, reply: list[int]
) -> Sequence[str] | None:
    """:func:`evaluate` and :func:`charge` one unit of each key, if all allow.

    Writes the units that are left into ``reply``, and returns the keys that had no log. If a key refuses, or was last
    charged by another window, returns ``None`` and charges nothing. No entry may be in the future.

    Charges in a single pass, because nearly always all allow, and undoes that if one does not.
    """
    entry = _entry(now, check_id)
    missing: tuple[tuple[str, Quota], ...] = ()
    expired: tuple[tuple[Log, int], ...] = ()
    for key, quota, place in units:
        log = logs.get(key)
        if log is None:
            if not quota.count:
                break
            missing += ((key, quota),)
            reply[place] = quota.count - 1 or -quota.window
            continue
        if log.known_until <= now or log.quota is not quota:
            if log.quota.window != quota.window:
                break
            number = log.measure_room(quota, now)
            if number:
                expired += ((log, number),)
        left = log.room - 1
        if left > 0:  # nearly always
            reply[place] = left
        elif left == 0:
            reply[place] = now - log.known_until
        else:
            break
        log.room = left
        log.entries.frombytes(entry)
    else:
        if expired:
            _drop_expired(expired)
        return _start_logs(logs, missing, now, entry) if missing else ()
    _take_back(logs, units, key)
    for log, _ in expired:
        log.known_until = 0  # so that the next charge drops expired entries
    return None


def refuse_units(logs: MutableMapping[str, Log | None], units: Iterable[Unit], now: int, reply: list[int]) -> bool:
    """Write the standings of ``units`` into ``reply`` after :func:`charge_units` has refused them: those of
    :func:`evaluate` and :func:`reset_after`. If a log says too little, return ``False``."""
    for key, quota, place in units:
        log = logs.get(key)
        if log is None or log.known_until <= now or log.quota is not quota or not 0 <= log.room < quota.count:
            return False
        reply[place] = log.room
        reply[place + 1] = 0 if log.room else log.known_until - now
        reply[place + 2] = log.entries[-_PER_ENTRY] + quota.window - now
    return True


def _take_back(logs: MutableMapping[str, Log | None], units: Iterable[Unit], refusing: str) -> None:
    """Take out the new entries of ``units`` before that of the key ``refusing``."""
    for key, _, _ in units:
        if key == refusing:
            return
        log = logs.get(key)
        if log is not None:
            del log.entries[-_PER_ENTRY:]
            log.room += 1
            if log.room == log.quota.count:  # empty: what it had measured holds for this instant alone
                log.known_until = 0


def _drop_expired(expired: Iterable[tuple[Log, int]]) -> None:
    for log, number in expired:
        log.drop_first(min(number, TRIM + 1))
        if number > TRIM + 1:
            log.known_until = 0


def _start_logs(
    logs: MutableMapping[str, Log | None], missing: Iterable[tuple[str, Quota]], now: int, entry: bytes
) -> list[str]:
    for key, quota in missing:
        log = logs[key] = Log(quota)
        log.entries.frombytes(entry)
        log.room, log.known_until = quota.count - 1, now + quota.window
    return [key for key, _ in missing]


def reset_after(log: Log | None, quota: Quota, now: int, seen: tuple[int, int]) -> int:
    first, end = seen
    if log is None or first == end:
        return 0
    return log.entries[(end - 1) * _PER_ENTRY] + quota.window - now


def drop_future(log: Log | None, quota: Quota, now: int) -> Log | None:
    if log is not None and log.entries and log.entries[-_PER_ENTRY] > now + AHEAD:
        log.drop_last(min(log.end - log.after(now + AHEAD, log.head), TRIM))
    return log


def settle(log: Log | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes) -> Log | None:
    """Take out entries of this check, or add some at ``now``. Doing this again changes nothing. ``until`` says where
    its entries are, unless the check was repeated."""
    if log is None and units <= cost:
        return None
    log, at = Log(quota) if log is None else log, until - quota.window
    if units > cost:
        excess = check_id.translate(_COMPLEMENT)
        charged = log.total(excess, log.after(now - quota.window, log.head))
        log.add(log.after(now, log.head), now, excess, units - cost - charged)
    elif units < cost:
        begin, end = log.row(check_id, log.after(at - 1, log.head), log.after(at, log.head))
        if begin == end:
            begin, end = log.row(check_id, log.head, log.end)
        log.remove(begin + units, min(begin + cost, end))
    return log


def recognise(log: Log | None, quota: Quota, now: int, check_id: bytes) -> bool:
    """Whether ``check_id`` was charged here, as long as the charge counts."""
    if log is None:
        return False
    return log.find(check_id, log.after(now - quota.window, log.head), log.end) >= 0
