"""Rules: arguments that are accepted and refused, errors, equality and text."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flask_multilimit.engine import Calendar, ConfigurationError, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.rules import rules_from
from support.rates import RATES

DAY = 86_400
LONGEST = 400 * DAY
MOST = 10**9
HUGE = 10**5000

# Good input


def test_the_default_rule_is_a_hundred_a_minute_by_the_sliding_window() -> None:
    assert (Rule().time, Rule().count, Rule().algorithm, Rule().name) == (60, 100, "sliding_window", None)


@pytest.mark.parametrize(
    ("given_time", "seconds", "milliseconds"),
    [
        (1, 1, 1000),
        (60.0, 60, 60_000),
        (0.001, 0.001, 1),
        (0.3, 0.3, 300),
        (1.001, 1.001, 1001),
        (1.1 + 2.2, 3.3, 3300),
        (LONGEST, LONGEST, 34_560_000_000),
        (LONGEST - 0.001, LONGEST - 0.001, 34_559_999_999),
        (timedelta(minutes=1), 60, 60_000),
        (timedelta(milliseconds=1), 0.001, 1),
        (timedelta(days=400), LONGEST, 34_560_000_000),
    ],
    ids=str,
)
def test_time_of_a_rule_is_seconds_or_a_timedelta_in_whole_milliseconds(
    given_time: float | timedelta, seconds: float, milliseconds: int
) -> None:
    rule = Rule(given_time)
    assert rule.time == pytest.approx(seconds, rel=1e-12)
    assert rule.window_ms == milliseconds
    assert rule.quota.window == milliseconds * 1000


@given(st.integers(1, LONGEST * 1000))
def test_every_number_of_milliseconds_is_kept_exactly(milliseconds: int) -> None:
    assert Rule(milliseconds / 1000).window_ms == milliseconds
    assert Rule(timedelta(milliseconds=milliseconds)).window_ms == milliseconds


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("count", count) for count in (1, 2, MOST)),
        *(("algorithm", algorithm) for algorithm in RATES),
        *(("name", name) for name in ("a", "ip-50s", "A.b_c:d*e/f", "x" * 64)),
    ],
)
def test_rule_keeps_its_count_algorithm_and_name(field: str, value: Any) -> None:
    assert getattr(Rule(**{field: value}), field) == value


def test_members_of_an_enum_are_taken_as_their_text() -> None:
    class Word(str, Enum):
        GCRA = "gcra"
        YEAR = "year"
        BERLIN = "Europe/Berlin"
        JULY = "07-01"
        NAME = "few"

    rule = Rule(60, 5, algorithm=Word.GCRA, name=Word.NAME)
    calendar = Calendar(5, cast("Any", Word.YEAR), timezone=Word.BERLIN, anchor=Word.JULY, name=Word.NAME)

    assert rule.key_part == "gcra:60000"
    assert calendar.key_part == Calendar(5, "year", timezone="Europe/Berlin", anchor="07-01").key_part
    texts = [rule.algorithm, rule.name, calendar.period, calendar.timezone, calendar.anchor, calendar.name]
    assert {type(text) for text in texts} == {str}
    assert "Word" not in f"{rule} {rule!r} {calendar} {calendar!r}"


# Bad input


def brief(value: object) -> str:
    """The id of a parameter; an int of so many digits has no repr."""
    return "10**5000" if value == HUGE else repr(value)[:30]


BAD_NUMBERS: list[Any] = [
    *(0, -1, -0.5, 0.0, -math.inf, math.inf, math.nan, 10**400, -(10**400), HUGE, 1e300),
    *(True, False, None, "", "60", "5/min", b"60", [60], (60,), {60}, {}, ..., 1j, Decimal(60), Rule),
]


BAD_TIMES = [
    *(0.0009, 0.0005, 0.0015, 1e-9, 5e-324, 1000.0005, 34_559_999.9995),
    *(LONGEST + 0.001, LONGEST + 1, 10**9),
    *(timedelta(0), timedelta(seconds=-1), timedelta(microseconds=1), timedelta(microseconds=1500)),
    *(timedelta(days=401), timedelta.max),
]
GIVEN = [each for each in BAD_NUMBERS if each is not None]
BAD_ARGUMENTS: dict[str, tuple[str, list[Any]]] = {
    "time": ("sliding_window", [*BAD_NUMBERS, *BAD_TIMES]),
    "count": ("sliding_window", [*BAD_NUMBERS, 1.0, 1.5, 100.0, MOST + 1, "100/minute"]),
    "burst": ("token_bucket", [*GIVEN, 1.0, MOST + 1]),
    "max_delay": ("leaky_bucket", [*GIVEN, 0.0005, LONGEST + 1]),
    "lease": ("sliding_window", [*GIVEN, 1, 1.5, 101]),
    "algorithm": ("", ["", "SLIDING_WINDOW", "sliding window", "nonsense", None, 1, True, ["gcra"], {}]),
    "name": ("gcra", ["", " ", "a b", "a\n", "é", "x" * 65, 'a"b', "a;b", 7, True, b"a", ["a"]]),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_wrong_argument_of_a_rule_is_an_error_that_names_it(name: str) -> None:
    algorithm, wrong = BAD_ARGUMENTS[name]
    for value in wrong:
        with pytest.raises(ValueError, match=f"{name}( must be |=.* is more than )"):
            Rule(**{"algorithm": algorithm, name: value})


ALL_ALGORITHMS = "must be one of " + ", ".join(ALGORITHMS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule(time=0, count=-5), "Rule(time=0, count=-5): time must be between 0.001 (1 ms) and 34560000 "),
        (lambda: Rule(time=0, count=-5), "got 0; count must be a whole number from 1 to 1000000000, got -5"),
        (lambda: Rule(algorithm="slidingwindow"), f"{ALL_ALGORITHMS} (did you mean 'sliding_window'?)"),
        (lambda: Rule(algorithm="sliding"), f"{ALL_ALGORITHMS} (did you mean 'sliding"),
        (lambda: Rule.parse("5/min"), "rule '5/min': unknown unit 'min', use one of second, minute,"),
        (lambda: Rule.parse("5/min"), "(did you mean 'minute'?)"),
        (lambda: Rule.parse("5/2 years"), "rule '5/2 years': Rule(time=63072000, count=5): time must be between"),
        (lambda: rules_from([]), "none given, so nothing would be limited"),
        (lambda: rules_from(iter([])), "none given, so nothing would be limited"),
    ],
    ids=[
        "time",
        "time and count",
        "misspelt algorithm",
        "part of an algorithm",
        "unknown unit",
        "misspelt unit",
        "too many years",
        "empty list",
        "empty iterator",
    ],
)
def test_error_of_a_rule_names_the_place_the_value_and_the_remedy(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        make()


def test_error_stays_short_when_the_value_is_long() -> None:
    for value in ("x" * 10_000, 10**400, HUGE, ["x"] * 10_000):
        with pytest.raises(ConfigurationError) as caught:
            Rule(time=value)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 500


# Value


def test_a_rule_is_frozen() -> None:
    for name, value in {"time": 1, "count": 1, "algorithm": "gcra", "name": "x"}.items():
        with pytest.raises(FrozenInstanceError):
            setattr(Rule(), name, value)


def test_equal_rules_are_one_element_of_a_set() -> None:
    used = Rule(60, 5)
    assert used.quota.count == 5
    assert {used, Rule(60.0, 5), Rule(timedelta(minutes=1), 5), Rule.parse("5/minute")} == {Rule(60, 5)}


def test_rules_that_differ_in_one_field_are_not_equal() -> None:
    rules = [Rule(60, 5), Rule(61, 5), Rule(60, 6), Rule(60, 5, name="x"), Rule(60, 5, algorithm=list(RATES)[-1])]
    assert len(set(rules)) == len(rules)


def test_a_rule_survives_copying_and_pickling() -> None:
    rule = Rule(0.3, 7, name="x")
    assert rule.quota.window == 300_000

    for other in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert other == rule
        assert isinstance(other, Rule)
        assert hash(other) == hash(rule)
        assert other.quota == rule.quota


@pytest.mark.parametrize(
    ("rule", "text", "window"),
    [
        (Rule(60, 5), "5 per minute", "60s"),
        (Rule(1.5, 5), "5 per 1.5 s", "1500ms"),
        (Rule(0.001, 1), "1 per 1 ms", "1ms"),
        (Rule(60, 50, lease=10), "50 per minute, lease of 10", "60s"),
        (Rule(60, 5, algorithm="gcra"), "5 per minute by gcra", "60s"),
    ],
    ids=str,
)
def test_a_rule_is_shown_as_text(rule: Rule, text: str, window: str) -> None:
    assert str(rule) == text
    assert rule.window == window


# Text


@pytest.mark.parametrize(
    ("text", "time", "count"),
    [
        ("100/minute", 60, 100),
        ("100 per minute", 60, 100),
        ("10 per 20 seconds", 20, 10),
        ("10 PER 20 Seconds", 20, 10),
        ("10/20 seconds", 20, 10),
        ("10/20seconds", 20, 10),
        ("10/2minutes", 120, 10),
        ("  7  /  3   hours  ", 3 * 3600, 7),
        ("1/second", 1, 1),
        ("1 per 1 second", 1, 1),
        ("5/Minute", 60, 5),
        ("5/HOURS", 3600, 5),
        ("5/day", DAY, 5),
        ("5/week", 7 * DAY, 5),
        ("5/month", 30 * DAY, 5),
        ("5/year", 365 * DAY, 5),
        ("1000000000/400 days", LONGEST, MOST),
        ("007/minute", 60, 7),
    ],
)
def test_a_rule_can_be_written_as_text(text: str, time: int, count: int) -> None:
    assert Rule.parse(text) == Rule(time=time, count=count)


BAD_TEXTS = [
    *("", " ", "/", "per", "minute", "/minute", "100", "100/", "100 per", "100/minute/second", "100 minute"),
    *("5/min", "5/s", "5/m", "5/h", "5/d", "5/secs", "5/minutess", "5/fortnight", "5/\u0441\u0435\u043a"),
    *("-1/minute", "0/minute", "+5/minute", "1.5/minute", "1e3/minute", "1,000/minute", "nan/minute", "inf/minute"),
    *("True/minute", "x/minute", "5/0 seconds", "5/-1 seconds", "5/1.5 seconds", "0x10/minute", "1_000/minute"),
    *("5/401 days", "5/14 months", "5/2 years", "1000000001/minute", "5perminute", "5 perminute", "\u0665/minute"),
    *("9" * 400 + "/minute", "9" * 5000 + "/minute", "5/" + "9" * 400 + " seconds", "5/" + "9" * 5000 + " seconds"),
    *(" " * 20_000, "5/minute" + " " * 20_000, "5" + " per" * 5000, "5 at once;" * 1000, "1 0/minute"),
    *("5/minute per user", "5\0/minute", "5/minute\0", "5//minute", "5/minute;", ";", ",", "5/minute;;6/hour"),
]


@pytest.mark.parametrize("text", BAD_TEXTS, ids=brief)
def test_malformed_rule_text_is_a_short_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="rule") as caught:
        rules_from(text)
    assert len(str(caught.value)) < 500


def test_error_in_one_of_several_rules_names_the_whole_text_and_what_separates_rules() -> None:
    message = "^rule '1': write it as .*; commas and semicolons in '1,000/minute' separate rules$"
    with pytest.raises(ConfigurationError, match=message):
        rules_from("1,000/minute")


def test_error_about_a_calendar_shows_the_order_of_its_parts() -> None:
    with pytest.raises(ConfigurationError, match=r'or "100 per calendar month from 15 in Asia/Tokyo"$') as caught:
        rules_from("5 per calendar month in Europe/Berlin from 15")
    shown = str(caught.value).rpartition(' or "')[2].rstrip('"')
    assert rules_from(shown) == (Calendar(100, "month", timezone="Asia/Tokyo", anchor=15),)


# Several


@pytest.mark.parametrize(
    "given_rules",
    [
        "5/second; 100/minute",
        "5/second,100/minute",
        " 5 per second ;100 per 60 seconds ",
        ["5/second", "100/minute"],
        ("5/second", Rule(60, 100)),
        ["5/second; 100/minute"],
        (rule for rule in [Rule(1, 5), Rule(60, 100)]),
    ],
    ids=["semicolon", "comma", "blanks", "list", "text and rule", "list of one text", "generator"],
)
def test_several_rules_can_be_given_as_text_or_any_iterable(given_rules: Any) -> None:
    assert rules_from(given_rules) == (Rule(1, 5), Rule(60, 100))
    assert rules_from(Rule(1, 5)) == (Rule(1, 5),)


@pytest.mark.parametrize(
    "wrong", [None, 7, True, math.nan, b"5/minute", [None], [7], [[Rule()]], [Rule], Rule, {"time": 60}, [b"5/minute"]]
)
def test_an_object_that_is_no_rule_is_an_error(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="rule"):
        rules_from(wrong)
    with pytest.raises(ConfigurationError, match="rule"):
        hits_for(wrong, scope="api")
