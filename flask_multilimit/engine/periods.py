"""Where hours, days, weeks, months and years begin, as the clocks of a time zone show them."""

from __future__ import annotations

import struct
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import brief
from .text import Phrase

Period = Literal["hour", "day", "week", "month", "year"]

AROUND = 2
"""Whole periods that are known before and after the present one."""
SECOND = 1_000_000
HOUR = 3600
CARRIED = 2 * AROUND + 2
"""The boundaries of these periods."""
LONGEST_ZONE = 64
"""Characters of the name of a time zone."""

Boundaries = tuple[int, ...]
"""Microseconds since 1970, ascending, each the end of one period and the begin of the next."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_packed = struct.Struct(f"<{CARRIED}d").pack


class Periods:
    """The periods of one calendar. Thread-safe. Boundaries change rarely, so the latest are kept."""

    __slots__ = ("_latest", "_next_boundary", "_previous_boundary")

    def __init__(self, period: Period, zone: tzinfo, anchor: str | int | None) -> None:
        self._previous_boundary, self._next_boundary = _walk(period, zone, anchor)
        self._latest: tuple[Boundaries, bytes] | None = None

    def around(self, now: int) -> Boundaries:
        """:data:`AROUND` periods, that of ``now`` (microseconds since 1970), and :data:`AROUND` periods. Raises
        ``OverflowError`` or ``ValueError`` at the ends of the calendar."""
        return self._at(now)[0]

    def packed_around(self, now: int) -> bytes:
        """:meth:`around`, as scripts read it."""
        return self._at(now)[1]

    def _at(self, now: int) -> tuple[Boundaries, bytes]:
        latest = self._latest
        if latest is None or not latest[0][AROUND] <= now < latest[0][AROUND + 1]:
            found = self._found(now)
            latest = self._latest = found, _packed(*found)
        return latest

    def _found(self, now: int) -> Boundaries:
        begin = self._previous_boundary(now // SECOND)
        found = [begin]
        for _ in range(AROUND):
            found.insert(0, self._previous_boundary(found[0] - 1))
        for _ in range(AROUND + 1):
            found.append(self._next_boundary(found[-1]))
        return tuple(each * SECOND for each in found)


@lru_cache(maxsize=1024)
def periods_of(period: Period, zone: str, anchor: str | int | None) -> Periods:
    """The periods of a calendar whose fields were checked."""
    return Periods(period, zone_named(zone), anchor)


def zone_named(name: object) -> tzinfo:
    """The time zone of that name. Raises ``ValueError`` that says what to do."""
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_ZONE:
        raise ValueError(Phrase('must be the name of a time zone, such as "Europe/Berlin" or "UTC"'))
    if name == "UTC":  # everywhere, even without time zones
        return timezone.utc
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError:
        pass
    except (ValueError, OSError):  # a path, a folder
        raise ValueError(Phrase('must be the name of a time zone, such as "Europe/Berlin" or "UTC"')) from None
    try:
        ZoneInfo("Europe/Berlin")
    except ZoneInfoNotFoundError:
        raise ValueError(
            f"is {brief(name)}, but this system has no time zones; install the package tzdata (pip install tzdata)"
        ) from None
    raise ValueError(
        Phrase("is not a time zone that this system knows; check the spelling, or upgrade the package tzdata")
    )


Walk = tuple[Callable[[int], int], Callable[[int], int]]
"""The boundary at or before a second, and the one after it."""


def _walk(period: Period, zone: tzinfo, anchor: str | int | None) -> Walk:
    if period == "hour":
        return _hours(zone)
    first_day, number_of = _days(period, anchor)

    @lru_cache(maxsize=8)
    def begin_of(number: int) -> int:
        return _first_second(zone, first_day(number))

    def previous(second: int) -> int:
        number = number_of((_EPOCH + timedelta(seconds=second)).astimezone(zone).date()) + 1
        while begin_of(number) > second:
            number -= 1
        return begin_of(number)

    def following(second: int) -> int:
        number = number_of((_EPOCH + timedelta(seconds=second)).astimezone(zone).date())
        while begin_of(number) <= second:
            number += 1
        return begin_of(number)

    return previous, following


# Periods of whole days


def _days(period: Period, anchor: str | int | None) -> tuple[Callable[[int], date], Callable[[date], int]]:
    """The first day of a period, by its number; and about the number of the period that a day is in: perhaps the next
    one."""
    if period == "day":
        return date.fromordinal, date.toordinal
    if period == "week":
        weekday = int(anchor or 1)
        return lambda number: date.fromordinal(7 * number + weekday), lambda day: (day.toordinal() - weekday) // 7
    if period == "month":
        return lambda number: _in_month(
            *divmod(number, 12), int(anchor or 1)
        ), lambda day: 12 * day.year + day.month - 1
    month, day_of_month = (int(part) for part in str(anchor or "01-01").split("-"))
    return lambda year: _in_month(year, month - 1, day_of_month), lambda day: day.year


def _in_month(year: int, month: int, day: int) -> date:
    """The day of a month, which is counted from 0; of a shorter one, its last."""
    return date(year, month + 1, min(day, monthrange(year, month + 1)[1]))


def _first_second(zone: tzinfo, day: date) -> int:
    """The second at which clocks first show midnight of ``day``, or jump over it."""
    shown = datetime(day.year, day.month, day.day, tzinfo=zone)
    early, late = sorted(_second_of(shown.replace(fold=fold)) for fold in (0, 1))
    if early == late or _shown_at(early, zone) == shown.replace(tzinfo=None):
        return early
    return _first(early, late, lambda second: _shown_at(second, zone) >= shown.replace(tzinfo=None))


def _second_of(shown: datetime) -> int:
    offset = shown.utcoffset()
    assert offset is not None
    return (shown.replace(tzinfo=timezone.utc) - offset - _EPOCH) // timedelta(seconds=1)


def _shown_at(second: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(seconds=second)).astimezone(zone).replace(tzinfo=None)


def _first(early: int, late: int, holds: Callable[[int], bool]) -> int:
    """The first second after ``early``, up to ``late``, from which on it ``holds``."""
    return early + bisect_right(range(early, late), False, key=holds)


# Hours


def _hours(zone: tzinfo) -> Walk:
    """An hour begins when clocks show it, and when they are put forward or back."""

    def offset_at(second: int) -> int:
        offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
        assert offset is not None
        return offset // timedelta(seconds=1)

    def previous(second: int) -> int:
        offset = offset_at(second)
        begin = second - (second + offset) % HOUR
        if offset_at(begin) == offset:
            return begin
        return _first(begin, second, lambda each: offset_at(each) == offset)

    def following(second: int) -> int:
        offset = offset_at(second)
        end = second - (second + offset) % HOUR + HOUR
        if offset_at(end - 1) == offset:
            return end
        return _first(second, end, lambda each: offset_at(each) != offset)

    return previous, following
