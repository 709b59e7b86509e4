"""The boundaries of calendars, against definitions that look only at what clocks show."""

import importlib.util
import time
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flask_multilimit.engine import periods
from flask_multilimit.engine.periods import AROUND, BOUNDARIES_AROUND, Periods, periods_of, zone_named

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",  # until 2011, clocks changed at 00:01
    "America/Sao_Paulo",  # clocks were put forward at midnight, and back to 23:00 of the day before
    "America/Caracas",  # half an hour back in 2007, and forward in 2016
    "Africa/Cairo",  # introduced and abolished summer time several times
    "Asia/Kathmandu",  # 5:45
    "Asia/Pyongyang",  # half an hour back in 2015, and forward in 2018
    "Australia/Lord_Howe",  # summer time is half an hour
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Chatham",  # 12:45
)
CALENDARS: tuple[tuple[Any, Any], ...] = (
    ("day", None),
    ("week", None),
    ("week", 7),
    ("month", None),
    ("month", 15),
    ("month", 29),
    ("month", 30),
    ("month", 31),
    ("year", None),
    ("year", "02-29"),
    ("year", "12-31"),
    ("year", "12-30"),
)
SECOND = 1_000_000
BEGIN, END = (int(datetime(year, 1, 1, tzinfo=timezone.utc).timestamp()) for year in (1998, 2028))


def local_time(second: int, zone: str) -> datetime:
    return datetime.fromtimestamp(second, ZoneInfo(zone))


def number_of(day: date, period: str, anchor: Any) -> object:
    """The number of the period of a day, by its definition: the same for all its days, and higher for later ones."""
    if period == "day":
        return day
    if period == "week":
        return day - timedelta(days=(day.isoweekday() - (anchor or 1)) % 7)
    if period == "month":
        begun = day.day >= min(anchor or 1, monthrange(day.year, day.month)[1])
        return 12 * day.year + day.month - (not begun)
    month, first = (int(part) for part in (anchor or "01-01").split("-"))
    return day.year - ((day.month, day.day) < (month, min(first, monthrange(day.year, month)[1])))


def boundaries_between(periods: Periods, begin: int, end: int) -> Iterator[int]:
    """Found one after the other, by the boundaries around each."""
    around = periods.around(begin * SECOND)
    while around[AROUND + 1] < end * SECOND:
        yield around[AROUND + 1] // SECOND
        following = periods.around(around[AROUND + 1])
        assert following[:-1] == around[1:], "the next period of one instant is the own period of a later one"
        assert periods.around(around[AROUND + 1] - 1) == around
        around = following


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    ("step", "calendars"),
    [(5 * 86_400, CALENDARS[6:10:3]), pytest.param(10_800, CALENDARS, marks=pytest.mark.slow)],
    ids=["some calendars", "all calendars"],
)
def test_each_period_of_30_years_begins_when_local_clocks_first_show_it(
    zone: str, step: int, calendars: tuple[tuple[Any, Any], ...]
) -> None:
    minutes = (each for change in changes(zone) for each in range(change - 7_200, change + 7_200, 60))
    seconds = sorted({*range(BEGIN, END, step), *(minutes if step == 10_800 else ())})
    days = [(second, local_time(second, zone).date()) for second in seconds]
    for period, anchor in calendars:
        boundaries = list(boundaries_between(Periods(period, zone_named(zone), anchor), BEGIN, days[-1][0] + 1))
        latest = number_of(days[0][1], period, anchor)
        waiting = iter(boundaries)
        boundary = next(waiting, None)
        for (earlier, _), (second, day) in pairwise(days):
            number: Any = number_of(day, period, anchor)
            if number > latest:
                assert boundary is not None
                assert earlier < boundary <= second, (period, anchor, day)
                assert number_of(local_time(boundary, zone).date(), period, anchor) == number
                before: Any = number_of(local_time(boundary - 1, zone).date(), period, anchor)
                assert before <= latest
                latest, boundary = number, next(waiting, None)
        assert boundary is None, (period, anchor, "begins although no clock shows it")


@pytest.mark.parametrize(
    ("zone", "at", "hours"),
    [
        ("Europe/Berlin", "2026-03-29 12:00", 23),
        ("Europe/Berlin", "2026-10-25 12:00", 25),
        ("Australia/Lord_Howe", "2026-04-05 12:00", 24.5),
        ("America/St_Johns", "2010-11-06 12:00", 24),
        ("America/St_Johns", "2010-11-07 12:00", 25),  # clocks showed midnight, and were put back at 00:01
        ("America/Sao_Paulo", "2018-11-04 12:00", 23),
        ("Pacific/Apia", "2011-12-29 12:00", 24),  # the next day was the 31st
        ("UTC", "2026-03-29 12:00", 24),
    ],
)
def test_day_is_shorter_or_longer_when_clocks_change(zone: str, at: str, hours: float) -> None:
    now = round(datetime.fromisoformat(at).replace(tzinfo=ZoneInfo(zone)).timestamp() * SECOND)
    *_, begin, end, _, _ = periods_of("day", zone, None).around(now)
    assert (end - begin) / 3_600 / SECOND == hours


@pytest.mark.parametrize("zone", ZONES)
def test_repeated_hour_is_two_periods_and_skipped_hour_is_none(zone: str) -> None:
    periods = Periods("hour", zone_named(zone), None)
    for change in changes(zone)[::20]:
        begin, end = change - 3 * 3_600, change + 3 * 3_600
        expected = [each for each in range(begin + 1, end) if hour_at(each, zone) != hour_at(each - 1, zone)]
        assert list(boundaries_between(periods, begin, end)) == expected


def hour_at(second: int, zone: str) -> object:
    now = local_time(second, zone)
    return now.date(), now.hour, now.utcoffset()


@cache
def changes(zone: str) -> list[int]:
    """When clocks are put forward or back."""
    found = []
    for day in range(BEGIN, END, 86_400):
        before = local_time(day, zone).utcoffset()
        if local_time(day + 86_400, zone).utcoffset() != before:
            found.append(
                next(each for each in range(day, day + 86_401, 60) if local_time(each, zone).utcoffset() != before)
            )
    return [BEGIN + 40 * 86_400, *found]


def test_boundaries_are_complete_and_ascending_centuries_away() -> None:
    for zone in ZONES:
        for period, anchor in (("hour", None), *CALENDARS):
            periods = Periods(period, zone_named(zone), anchor)
            for now in (-1, 0, -(10**16), 10**16):
                around = periods.around(now)
                assert len(around) == BOUNDARIES_AROUND == len(set(around))
                assert list(around) == sorted(around)
                assert around[AROUND] <= now < around[AROUND + 1]


@pytest.mark.parametrize(("end", "year"), [(2**31, 2038), (32_535_216_000, 3000)], ids=["32 bits", "Windows"])
def test_latest_date_is_one_that_the_system_has(monkeypatch: pytest.MonkeyPatch, end: int, year: int) -> None:
    class Short(datetime):
        @classmethod
        def fromtimestamp(cls, timestamp: float, tz: Any = None) -> Any:
            if timestamp >= end:
                raise OverflowError("timestamp out of range for platform time_t")
            return super().fromtimestamp(timestamp, tz)

    monkeypatch.setattr("datetime.datetime", Short)
    there = _periods_loaded_again()

    assert (there.instant(1e300).year, periods.instant(1e300).year) == (year, 9999)


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_latest_date_is_found_in_each_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert _periods_loaded_again().LATEST_DATE == periods.LATEST_DATE
        assert periods.instant(1e300).astimezone().year == 9999
    finally:
        monkeypatch.undo()
        time.tzset()


def _periods_loaded_again() -> Any:
    spec = importlib.util.spec_from_file_location("flask_multilimit.engine.periods_there", periods.__file__)
    assert spec is not None
    assert spec.loader is not None
    there = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(there)
    return there
