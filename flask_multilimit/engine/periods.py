"""Periods: when hours, days, weeks, months and years begin by the clocks of a time zone."""

from __future__ import annotations

import struct
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import brief
from .text import Phrase

Period = Literal["hour", "day", "week", "month", "year"]

AROUND = 2
"""How many whole periods are known before the present one, and after it."""
SECOND = 1_000_000
HOUR = 3600
BOUNDARIES_AROUND = 2 * AROUND + 2
"""The number of boundaries of these periods and the present one."""
LONGEST_ZONE = 64
"""The longest name of a time zone, in characters."""

Boundaries = tuple[int, ...]
"""Microseconds since 1970, ascending; each is the end of one period and the begin of the next."""

LATEST_DATE = 2**31 - 86_400
"""POSIX time, a day before calendars end, so that each time zone has it: in 9999, or where the system ends sooner."""
with suppress(OverflowError, OSError):
    for _end in (32_535_215_999, 253_402_300_799):  # of 3000, the last year of Windows, and of 9999
        LATEST_DATE = round(datetime.fromtimestamp(_end - 86_400, timezone.utc).timestamp())
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_packed = struct.Struct(f"<{BOUNDARIES_AROUND}d").pack


class Periods:
    """The periods of one calendar. Thread-safe. The latest boundaries are cached, because they change rarely."""

    __slots__ = ("_latest", "_next_boundary", "_previous_boundary")

    def __init__(self, period: Period, zone: tzinfo, anchor: str | int | None) -> None:
        self._previous_boundary, self._next_boundary = _walk_over(period, zone, anchor)
        self._latest: tuple[Boundaries, bytes] | None = None

    def around(self, now: int) -> Boundaries:
        """The boundaries of the period of ``now`` (microseconds since 1970), of the :data:`AROUND` periods before it,
        and of as many after it. Raises ``OverflowError`` or ``ValueError`` at the ends of the calendar."""
        return self._at(now)[0]

    def packed_around(self, now: int) -> bytes:
        """:meth:`around`, as scripts read it."""
        return self._at(now)[1]

    def _at(self, now: int) -> tuple[Boundaries, bytes]:
        latest = self._latest
        if latest is None or not latest[0][AROUND] <= now < latest[0][AROUND + 1]:
            boundaries = self._boundaries_around(now)
            latest = self._latest = boundaries, _packed(*boundaries)
        return latest

    def _boundaries_around(self, now: int) -> Boundaries:
        seconds = [self._previous_boundary(now // SECOND)]
        for _ in range(AROUND):
            seconds.insert(0, self._previous_boundary(seconds[0] - 1))
        for _ in range(AROUND + 1):
            seconds.append(self._next_boundary(seconds[-1]))
        return tuple(each * SECOND for each in seconds)


@lru_cache(maxsize=1024)
def periods_of(period: Period, zone: str, anchor: str | int | None) -> Periods:
    """The periods of a calendar whose fields are valid."""
    return Periods(period, zone_named(zone), anchor)


def zone_named(name: object) -> tzinfo:
    """The time zone called ``name``. Raises ``ValueError``, which says what to do."""
    if not isinstance(name, str) or len(name) > LONGEST_ZONE:
        raise ValueError(Phrase('must be the name of a time zone, such as "Europe/Berlin" or "UTC"'))
    if name == "UTC":  # works everywhere, even without a time zone database
        return timezone.utc
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError:
        pass
    except (ValueError, OSError):  # the name is a path or a folder
        raise ValueError(Phrase('must be the name of a time zone, such as "Europe/Berlin" or "UTC"')) from None
    try:
        ZoneInfo("Europe/Berlin")
    except ZoneInfoNotFoundError:
        raise ValueError(
            f"is {brief(name)}, but this system has no time zones; install the package tzdata (pip install tzdata)"
        ) from None
    raise ValueError(
        Phrase(
            "is not a time zone that this system knows; check the spelling, or run pip install --upgrade tzdata, which "
            "also has the old names"
        )
    )


Walk = tuple[Callable[[int], int], Callable[[int], int]]
"""Two functions of a second: the boundary at or before it, and the one after it."""


def _walk_over(period: Period, zone: tzinfo, anchor: str | int | None) -> Walk:
    if period == "hour":
        return _hours_of(zone)
    first_day, number_of = _numbered_periods(period, anchor)

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


def _numbered_periods(period: Period, anchor: str | int | None) -> tuple[Callable[[int], date], Callable[[date], int]]:
    """Two functions: the first day of the period with a number, and the number of the period that a day is in, or of
    the period after that."""
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
    """The ``day`` of a month, or its last day if it is shorter. Months count from 0."""
    return date(year, month + 1, min(day, monthrange(year, month + 1)[1]))


def _first_second(zone: tzinfo, day: date) -> int:
    """The second at which clocks first show midnight at the beginning of ``day``, or skip it."""
    shown = datetime(day.year, day.month, day.day, tzinfo=zone)
    early, late = sorted(_second_of(shown.replace(fold=fold)) for fold in (0, 1))
    if early == late or _shown_at(early, zone) == shown.replace(tzinfo=None):
        return early
    return _first_where(early, late, lambda second: _shown_at(second, zone) >= shown.replace(tzinfo=None))


def _second_of(shown: datetime) -> int:
    offset = shown.utcoffset()
    assert offset is not None
    return (shown.replace(tzinfo=timezone.utc) - offset - _EPOCH) // timedelta(seconds=1)


def _shown_at(second: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(seconds=second)).astimezone(zone).replace(tzinfo=None)


def _first_where(early: int, late: int, holds: Callable[[int], bool]) -> int:
    """The first second from ``early`` to ``late`` at which ``holds`` is true. Later it stays true."""
    return early + bisect_right(range(early, late), False, key=holds)


# Hours


def _hours_of(zone: tzinfo) -> Walk:
    """Hours begin when clocks show a full hour, and when clocks are put forward or back."""

    def offset_at(second: int) -> int:
        offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
        assert offset is not None
        return offset // timedelta(seconds=1)

    def previous(second: int) -> int:
        offset = offset_at(second)
        begin = second - (second + offset) % HOUR
        if offset_at(begin) == offset:
            return begin
        return _first_where(begin, second, lambda each: offset_at(each) == offset)

    def following(second: int) -> int:
        offset = offset_at(second)
        end = second - (second + offset) % HOUR + HOUR
        if offset_at(end - 1) == offset:
            return end
        return _first_where(second, end, lambda each: offset_at(each) != offset)

    return previous, following


def instant(at: float) -> datetime:
    """A POSIX time in UTC, or the nearest that calendars have: entries of the control document may have any number."""
    return datetime.fromtimestamp(min(max(at, 0), LATEST_DATE), timezone.utc)
