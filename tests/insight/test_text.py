"""How numbers are written for people."""

import time

import pytest

from flask_multilimit import Concurrent, Rule
from flask_multilimit.insight.text import local_time, rate, rule_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.004, "<0.01"), (0.5, "0.50"), (9.994, "9.99"), (10, "10.0"), (99.94, "99.9"), (1234.5, "1,234")],
)
def test_rate_has_three_digits_and_is_never_rounded_to_zero(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (1.25, "1.25 s"),
        (60, "minute"),
        (90, "90 s"),
        (600, "10 min"),
        (3599, "3599 s"),
        (5000, "5000 s"),
        (7200, "2 h"),
        (172_800, "2 d"),
    ],
)
def test_time_of_a_rule_is_never_rounded(seconds: float, text: str) -> None:
    assert rule_text(Rule(seconds, 5)) == f"5 per {text}"


@pytest.mark.parametrize("rule", [Concurrent(5), Concurrent(5, timeout=300)], ids=["default", "given"])
def test_concurrent_rule_is_written_without_its_timeout(rule: Rule) -> None:
    assert rule_text(rule) == "5 at once"


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "Pacific/Honolulu"])
@pytest.mark.parametrize(("at", "year"), [(1e300, "9999"), (-1e300, "19")])
def test_instant_that_no_calendar_has_is_shown_in_every_time_zone(
    monkeypatch: pytest.MonkeyPatch, zone: str, at: float, year: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        text = local_time(at)
    time.tzset()

    assert text.startswith(year)
