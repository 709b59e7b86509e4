"""Calendar as a value: its arguments, text and equality; its clock in memory, and its quota in an outage."""

import copy
import pickle
import subprocess
import sys
import time
from datetime import datetime, timezone
from typing import Any

import pytest

from flask_multilimit.engine import Calendar, ConfigurationError, GuardedStorage, Limiter, MemoryStorage, Rule, hits_for
from flask_multilimit.engine.keys import MAX_KEY, parts_of_key
from flask_multilimit.engine.rules import changed, fields_of, rule_of
from flask_multilimit.engine.storage.base import ORIGIN
from support.clock import SECOND, Clock
from support.doubles import RecordingStorage

WRONG_ARGUMENTS = [
    ({"period": "moth"}, "did you mean 'month'"),
    ({"period": 30}, "must be one of hour"),
    ({"count": 0}, "count must be a whole number"),
    ({"period": "day", "anchor": 1}, "anchor is for weeks, months and years, not for days"),
    ({"period": "week", "anchor": 8}, r"1 \(Monday\) to 7"),
    ({"anchor": 0}, "1 to 31"),
    ({"anchor": True}, "1 to 31"),
    ({"period": "year", "anchor": 15}, "MM-DD"),
    ({"period": "year", "anchor": "02-30"}, "MM-DD"),
    ({"period": "year", "anchor": "13-01"}, "MM-DD"),
    ({"period": "year", "anchor": "\u0660\u0661-\u0660\u0661"}, "MM-DD"),
    ({"timezone": "Europe/Berln"}, "not a time zone that this system knows"),
    ({"timezone": "../../etc/passwd"}, "name of a time zone"),
    ({"timezone": "Europe"}, "time zone"),
    ({"timezone": "x" * 1000}, "name of a time zone"),
    ({"timezone": "UTC\0"}, "time zone"),
    ({"timezone": None}, "name of a time zone"),
    ({"timezone": ""}, "name of a time zone"),
    ({"name": "é"}, "1 to 64 characters"),
]


@pytest.mark.parametrize(("given", "message"), WRONG_ARGUMENTS, ids=[str(given)[:40] for given, _ in WRONG_ARGUMENTS])
def test_wrong_argument_of_a_calendar_is_an_error_with_its_remedy(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Calendar(**{"count": 5, "period": "month", **given})


def test_error_names_tzdata_when_the_system_has_no_time_zones() -> None:
    code = (
        "import sys; sys.modules['tzdata'] = None; import zoneinfo; zoneinfo.reset_tzpath(to=[])\n"
        "from flask_multilimit import Calendar\n"
        "Calendar(5, 'month')\n"
        "Calendar(5, 'month', timezone='Europe/Berlin')\n"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install tzdata" in ended.stderr
    assert "line 4" in ended.stderr, "UTC needs none"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("10000 per calendar month", Calendar(10_000, "month")),
        ("5/calendar Day", Calendar(5, "day")),
        ("7 PER CALENDAR week", Calendar(7, "week", anchor=1)),
        ("7 / calendar week  from sunday", Calendar(7, "week", anchor=7)),
        ("7/calendar month in Europe/Berlin", Calendar(7, "month", timezone="Europe/Berlin")),
        ("7 per calendar year from 04-06 in UTC", Calendar(7, "year", anchor="04-06")),
        ("7 per calendar year from 01-31", Calendar(7, "year", anchor="01-31")),
    ],
    ids=str,
)
def test_calendar_can_be_written_as_text(text: str, same: Calendar) -> None:
    assert Rule.parse(text) == same


@pytest.mark.parametrize(
    "text",
    [
        *("5 per calendar", "5 per calendar moth", "x per calendar day", "5 per 2 calendar day"),
        *("5 per calendar day from 2", "5 per calendar month from 32", "5 per calendar month from Monday"),
        *("5 per calendar month in", "5 per calendar month in Berlin", "5 per calendar month in UTC from 2"),
        *("5 per calendar week from 8", "5 per minute in UTC", "5 per calendar month from ²"),
        *(f"5 per calendar year from {day}" for day in ("00-10", "13-01", "02-30", "04-31", "01-00")),
    ],
)
def test_malformed_calendar_text_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Rule.parse(text)


CALENDARS = (
    Calendar(5, "hour", timezone="Asia/Kathmandu"),
    Calendar(5, "week", anchor=7, name="weekly"),
    Calendar(5, "month", timezone="Europe/Berlin", anchor=15),
    Calendar(5, "year", anchor="02-29"),
)


@pytest.mark.parametrize("calendar", CALENDARS, ids=str)
def test_text_of_a_calendar_can_be_parsed_again(calendar: Calendar) -> None:
    assert str(Rule.parse(str(calendar))) == str(calendar)


@pytest.mark.parametrize("calendar", CALENDARS, ids=str)
def test_copied_calendar_is_equal_and_has_the_same_key(calendar: Calendar) -> None:
    for same in (copy.deepcopy(calendar), pickle.loads(pickle.dumps(calendar)), rule_of(fields_of(calendar))):
        assert (same, hash(same), same.key_part, repr(same)) == (
            calendar,
            hash(calendar),
            calendar.key_part,
            repr(calendar),
        )
    assert calendar not in [None, str(calendar), Rule(3600, 5)]
    more = changed(calendar, count=6)
    assert more != calendar
    assert more.key_part == calendar.key_part
    assert eval(repr(calendar), {"Calendar": Calendar}) == calendar


def test_calendars_of_different_period_zone_or_anchor_have_different_keys() -> None:
    assert len({each.key_part for each in CALENDARS}) == len(CALENDARS)
    assert Calendar(5, "month", anchor=1) == Calendar(5, "month")


def test_longest_calendar_fits_into_the_longest_key() -> None:
    calendar = Calendar(5, "year", timezone="America/Argentina/ComodRivadavia", anchor="12-31")
    (hit,) = hits_for(calendar, scope="x" * 56, subject=f"{'z' * 20}:{'y' * 48}", prefix="p" * 32)

    assert len(hit.key) <= MAX_KEY
    parts = parts_of_key(hit.key)
    assert parts is not None
    assert parts.rule == calendar.key_part


def test_memory_storage_ends_a_calendar_day_by_the_system_clock() -> None:
    wanted = hits_for(Calendar(5, "day"), scope="api")

    decision = Limiter(MemoryStorage()).check(wanted)

    now = datetime.now(timezone.utc)
    midnight = now.timestamp() + decision.reset_after
    assert abs(midnight - round(midnight / 86_400) * 86_400) < 2


def test_memory_storage_follows_the_system_clock_when_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was wrong when the process began."""
    monkeypatch.setattr("flask_multilimit.engine.storage.memory.ORIGIN", ORIGIN + 40 * 86_400 * SECOND)
    limiter = Limiter(MemoryStorage())
    assert limiter.check(hits_for("5/minute", scope="rate")).at > (time.time() + 39 * 86_400) * SECOND

    decision = limiter.check(hits_for(Calendar(5, "year"), scope="api"))

    year = datetime.now(timezone.utc).year
    assert abs(decision.at / SECOND - time.time()) < 5
    end = datetime.fromtimestamp(decision.at / SECOND + decision.reset_after + 1, timezone.utc)
    assert (end.year, end.month, end.day) == (year + 1, 1, 1)


@pytest.mark.parametrize("used_at", [0, 10 * 60, 86_399], ids=["at its begin", "in its first hour", "at its end"])
def test_memory_keeps_a_calendar_for_an_hour_after_its_period(used_at: int) -> None:
    midnight = round(datetime(2026, 11, 15, tzinfo=timezone.utc).timestamp())
    clock = Clock((midnight + used_at) * SECOND)
    storage = MemoryStorage(clock)
    wanted = hits_for(Calendar(5, "day"), scope="api")
    Limiter(storage).check(wanted)

    (key,) = storage.keys("")

    assert key.ttl == 86_400 - used_at + 3_600


OUTAGES = [
    (datetime(2026, 11, 14, 23, 59, 50, tzinfo=timezone.utc), 15, 10.0),
    (datetime(2026, 2, 3, tzinfo=timezone.utc), 1, 26 * 86_400.0),
]


@pytest.mark.parametrize(
    ("begins", "anchor", "left"), OUTAGES, ids=["10 s of the month left", "26 days of the month left"]
)
def test_worker_admits_its_share_of_the_remaining_calendar_quota_in_an_outage(
    begins: datetime, anchor: int, left: float
) -> None:
    clock = Clock(round(begins.timestamp()) * SECOND)
    failing = RecordingStorage(clock)
    storage = GuardedStorage(failing, workers=2, clock=clock)
    limiter = Limiter(storage)
    wanted = hits_for(Calendar(40, "month", anchor=anchor), scope="api")
    for _ in range(20):
        assert limiter.check(wanted).allowed
    failing.broken = True

    admitted = [limiter.check(wanted) for _ in range(30)]
    assert {decision.decided_by for decision in admitted} == {"local"}
    assert sum(decision.allowed for decision in admitted) <= 10, "half of what was left"
    assert admitted[-1].retry_after == left
    unknown = hits_for(Calendar(40, "month", anchor=anchor), scope="api", subject="user:never seen before")
    assert sum(limiter.check(unknown).allowed for _ in range(50)) == 10, (
        "half of the limit counts as used by an unknown client"
    )

    clock.advance(left)
    for hits in (wanted, unknown):
        assert sum(limiter.check(hits).allowed for _ in range(50)) == 20, "half of the new month"
        assert limiter.peek(hits).retry_after > 27 * 86_400
    storage.stop()
