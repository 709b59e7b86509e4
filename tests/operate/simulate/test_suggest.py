"""Counts chosen from data, compared with an oracle that tries all of them."""

import re
import shlex
import sys
from array import array
from collections import Counter
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from flask import Flask
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_multilimit import Calendar, ConfigurationError, MultiLimit, Rule, exempt
from flask_multilimit.declare.data import LimitsFile, limiter_options, parse_toml, validated
from flask_multilimit.engine.rules import rules_from
from flask_multilimit.operate.cli.logs import suggestion_lines
from flask_multilimit.operate.simulate.logged import LoggedRequest
from flask_multilimit.operate.simulate.questions import simulate, suggest_limits
from flask_multilimit.operate.simulate.suggest import (
    Arrivals,
    Gap,
    Requests,
    Suggestion,
    Traffic,
    command_to_try,
    counts_for_requests,
    counts_for_subjects,
    curve,
    declaration,
    gap_in,
    suggest_for,
    toml,
    traffic_of,
    windows_of,
)
from support.oracle import Charge, Window
from support.servers import Server

SECOND = 1_000_000

instants = st.lists(st.integers(0, 20), min_size=1, max_size=25).map(lambda each: sorted(at * SECOND for at in each))
traffics = st.lists(instants, min_size=1, max_size=4)
shares = st.fractions(0, Fraction(9, 10), max_denominator=50)


def arrivals_of(*subjects: list[int], who: str = "ip", endpoint: str | None = "search") -> Arrivals:
    arrivals = Arrivals(who, endpoint)
    for at, number in sorted((at, number) for number, each in enumerate(subjects) for at in each):
        arrivals.add(str(number), at)
    return arrivals


def suggest(arrivals: Arrivals, *windows: float | str, share: Fraction = Fraction(0)) -> Suggestion:
    return suggest_for(traffic_of(arrivals, windows_of(windows)), share)


def tokens(*units: int, who: str = "ip", cost_field: str = "", pause: int = 0) -> Arrivals:
    """Requests that cost ``units`` tokens: of one subject each at once, or of one subject after each ``pause``."""
    arrivals = Arrivals(who, "search", cost_field)
    for number, each in enumerate(units):
        arrivals.add("ada" if pause else str(number), number * pause, each)
    return arrivals


def oracle(instants: list[int], limits: tuple[tuple[int, int], ...]) -> int:
    """The refused requests, if every request is admitted that keeps all windows within their counts."""
    refused, windows = 0, [(Window(length), count) for length, count in limits]
    for at in instants:
        if all(window.used(at) < count for window, count in windows):
            windows = [(window.charged(Charge(at, 1)), count) for window, count in windows]
        else:
            refused += 1
    return refused


@given(instants, st.integers(1, 25))
def test_peak_is_the_smallest_count_that_refuses_nothing(times: list[int], window: int) -> None:
    all_of_them = Window(window * SECOND, tuple(Charge(at, 1) for at in times))
    requests = Requests(array("q", times))

    most = requests.most_in(Rule(window, 1))

    assert most == max(map(all_of_them.used, times))
    assert requests.refused_by([Rule(window, most)]) == 0
    assert most == 1 or requests.refused_by([Rule(window, most - 1)]) > 0


@given(traffics, st.integers(1, 25), shares)
def test_one_window_gets_the_smallest_sufficient_count(subjects: list[list[int]], window: int, share: Fraction) -> None:
    by_count = {count: [oracle(each, ((window * SECOND, count),)) for each in subjects] for count in range(1, 27)}

    traffic = Traffic(arrivals_of(*subjects), [Rule(window, 1)])

    most, few = share * sum(map(len, subjects)), share * len(subjects)
    assert counts_for_requests(traffic, share) == (min(c for c, refused in by_count.items() if sum(refused) <= most),)
    (count,) = counts_for_subjects(traffic, share)
    assert count == min(c for c, refused in by_count.items() if sum(map(bool, refused)) <= few)
    assert traffic.refused_subjects((count,)) == sum(map(bool, by_count[count]))


@given(traffics, st.integers(1, 6), st.integers(7, 25), shares)
def test_several_windows_get_counts_that_cannot_be_smaller(
    subjects: list[list[int]], short: int, long: int, share: Fraction
) -> None:
    traffic = Traffic(arrivals_of(*subjects), [Rule(long, 1), Rule(short, 1)])

    def refused(counts: tuple[int, ...]) -> int:
        limits = tuple(zip((short * SECOND, long * SECOND), counts, strict=True))
        return sum(oracle(each, limits) for each in subjects)

    counts = counts_for_requests(traffic, share)

    most = share * sum(map(len, subjects))
    assert refused(counts) == traffic.refused_requests(counts) <= most
    for number in range(2):
        smaller = tuple(count - (place == number) for place, count in enumerate(counts))
        assert smaller[number] == 0 or refused(smaller) > most


def test_counts_of_a_known_example_are_found() -> None:
    """999 clients make 5 requests a minute, and one makes 600 at once."""
    calm = [[minute * 60 * SECOND + i * SECOND for minute in range(3) for i in range(5)] for _ in range(999)]
    arrivals = arrivals_of(*calm, [SECOND] * 600)

    found = suggest(arrivals, 60, share=Fraction(1, 1000))

    (peaks,) = found.peaks
    assert (peaks.p50, peaks.p99, peaks.p999, peaks.max) == (5, 5, 5, 600)
    (by_subjects,) = found.for_subjects
    assert by_subjects.rules == (Rule(60, 5),)
    assert (by_subjects.refused.requests, by_subjects.refused.subjects) == (595, 1)
    (by_requests,) = found.for_requests
    assert by_requests.rules == (Rule(60, 585),), "0.1 % of 15,585 requests are 15"
    assert by_requests.refused.requests == 15


def test_counts_of_the_first_half_are_tried_on_the_second() -> None:
    """One client comes only in the second half."""
    steady = [i * 10 * SECOND for i in range(100)]
    burst = [990 * SECOND] * 30
    found = suggest(arrivals_of(steady, burst), 10)

    (choice,) = found.for_requests
    assert choice.rules == (Rule(10, 30),)
    assert choice.refused.requests == 0
    assert choice.later is not None
    assert choice.later.requests == 29
    assert choice.later.of_subjects == 2


def test_curve_ends_where_nothing_is_refused() -> None:
    points = curve(Traffic(arrivals_of([0] * 3, [0] * 50, [0] * 200), [Rule(60, 1)]), {})
    assert (points[0].count, points[0].requests, points[0].clients) == (50, 150, 1)
    assert (points[-1].count, points[-1].requests, points[-1].clients) == (200, 0, 0)
    assert sorted(points, key=lambda point: -point.requests) == points


@given(traffics)
def test_halves_are_apart_in_time_and_complete(subjects: list[list[int]]) -> None:
    arrivals = arrivals_of(*subjects)

    first, second = arrivals.halves()

    assert first.requests + second.requests == arrivals.requests
    assert 2 * first.requests >= arrivals.requests
    assert not second or first.span[1] < second.span[0]


def test_halves_are_found_in_more_microseconds_than_a_range_can_have() -> None:
    """On a 32-bit system, those of 36 minutes."""
    first, second = arrivals_of([-sys.maxsize, 0, sys.maxsize]).halves()
    assert (first.span, second.span) == ((-sys.maxsize, 0), (sys.maxsize, sys.maxsize))


@pytest.mark.parametrize(
    ("windows", "share", "message"),
    [
        *((["60"], Fraction(1), "less than 1"), ([60, 60], Fraction(0), "each window once")),
        ([], Fraction(0), "each window"),
        *(
            ([each], Fraction(0), re.escape(str(each)))
            for each in ("calendar moth", "soon", "calendar day in Berlin", "60 per 2", "0", -1)
        ),
    ],
)
def test_invalid_windows_and_shares_are_errors_that_name_them(
    windows: list[float | str], share: Fraction, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        suggest(arrivals_of([0]), *windows, share=share)


@pytest.mark.parametrize(
    ("peaks", "gap"),
    [
        ([*range(66, 85), 2445], Gap(19, 84, 1, 2445, 2445)),
        ([5] * 40 + [100, 90], Gap(40, 5, 2, 90, 100)),
        ([5] * 10 + [10], None),
        ([5] * 5 + [100] * 5, None),
        ([7], None),
        ([1, 100], None),
    ],
    ids=["one above", "two above", "too narrow", "too many above", "one subject", "half of them"],
)
def test_gap_is_wide_with_few_subjects_above_it(peaks: list[int], gap: Gap | None) -> None:
    assert gap_in(sorted(peaks)) == gap


@pytest.mark.parametrize(
    ("above", "text"),
    [
        ([[0] * 2445], "19 of 20 subjects need at most 85; one made 2,445."),
        ([[0] * 1000, [0] * 999], "19 of 21 subjects need at most 85; 2 made 999 to 1,000."),
    ],
)
def test_screen_tells_the_subjects_below_and_above_a_gap(above: list[list[int]], text: str) -> None:
    found = suggest(arrivals_of(*[[0] * 85] * 19, *above), 60, share=Fraction(1, 1000))
    assert f"In any 60 s, {text}" in " ".join(suggestion_lines(found, timezone.utc))


def test_proposed_count_is_below_the_gap() -> None:
    found = suggest(arrivals_of(*[[0] * 85] * 19, [0] * 2445), 60, 3600, share=Fraction(1, 1000))
    assert [rule.count for rule in found.proposed] == [85, 85]
    assert found.as_json()["gaps"][0]["subjects"] == 19
    assert toml(found) == '[limits]\n"search" = { type = "ip", rules = "85/minute; 85/hour" }'


def test_count_of_the_whole_app_becomes_an_application_limit() -> None:
    """A default limit, or a limit that a command adds to all endpoints, would count each endpoint separately."""
    found = suggest(arrivals_of([0] * 5, endpoint=None), 60)

    assert toml(found) == 'application_limits = { type = "ip", rules = "5/minute" }'
    assert declaration(found, found.proposed) == (
        "MultiLimit(app, application_limits=rate_limiter(type=IP, rules=[Rule(time=60, count=5)]))"
    )
    assert command_to_try(found) is None


def test_suggest_ignores_requests_that_no_limit_would_count(app: Flask) -> None:
    app.config.update(MULTILIMIT_UNKNOWN_NAMES="warn", MULTILIMIT_EXEMPT=["static", "gone"])
    MultiLimit(app, limits={"old": "off"})
    app.add_url_rule("/search", "search", lambda: "ok")
    app.add_url_rule("/old", "old", lambda: "ok")
    app.add_url_rule("/alive", "alive", exempt(lambda: "ok"))
    app.route("/cross", endpoint="cross", methods=["GET", "OPTIONS"])(lambda: "ok")
    paths = ["/search", "/alive", "/nowhere", "/old", "/static/shop.css"]
    asked = [("OPTIONS", "/search"), ("OPTIONS", "/cross"), *(("GET", path) for path in paths)]
    requests = [LoggedRequest.of(0, *each) for each in asked]

    learned_from = [suggest_limits(app, requests, endpoint=each).requests for each in ("search", "cross", None)]

    assert learned_from == [1, 1, 2]


def test_suggest_ignores_clients_on_lists(app: Flask) -> None:
    MultiLimit(app, user_loader=lambda: None, allow=["10.0.0.0/8", "user:monitor"], deny=["203.0.113.7"])
    app.add_url_rule("/search", "search", lambda: "ok")
    clients = [("10.0.0.1", None), ("192.0.2.1", "monitor"), ("203.0.113.7", None), ("192.0.2.1", "ann")]
    requests = [LoggedRequest.of(0, "GET", "/search", address=address, user=user) for address, user in clients]

    learned_from = [suggest_limits(app, requests, endpoint=each).requests for each in ("search", None)]

    assert learned_from == [1, 1]


HOUR = 3600 * SECOND
ABOUT_DAYS = st.lists(st.integers(0, 24 * 90), min_size=1, max_size=30).map(
    lambda hours: sorted(1_774_000_000 * SECOND + hour * HOUR for hour in hours)
)
"""Hours of the days around 29 March 2026, when Berlin puts its clocks forward."""


@given(st.lists(ABOUT_DAYS, min_size=1, max_size=3), st.sampled_from(["day", "week", "month"]), shares)
def test_calendar_gets_the_smallest_sufficient_count(subjects: list[list[int]], period: str, share: Fraction) -> None:
    def begin_of(at: int) -> object:
        day = datetime.fromtimestamp(at / SECOND, ZoneInfo("Europe/Berlin")).date()
        return {"day": day, "week": day.isocalendar()[:2], "month": (day.year, day.month)}[period]

    periods = [Counter(map(begin_of, instants)) for instants in subjects]
    refused = {count: sum(max(n - count, 0) for each in periods for n in each.values()) for count in range(1, 31)}

    found = suggest(arrivals_of(*subjects, who="user"), f"calendar {period} in Europe/Berlin", share=share)

    assert found.peaks[0].max == max(n for each in periods for n in each.values())
    ((rule,),) = [choice.rules for choice in found.for_requests]
    assert isinstance(rule, Calendar)
    assert rule.count == min(c for c, n in refused.items() if n <= share * found.requests)
    assert found.for_requests[0].refused.requests == refused[rule.count]
    ((few,),) = [choice.rules for choice in found.for_subjects]
    assert sum(max(each.values()) > few.count for each in periods) <= share * len(subjects)


def test_request_at_midnight_counts_for_the_new_day() -> None:
    midnight = 24 * HOUR
    assert Requests(array("q", [midnight - 1, midnight])).most_in(Calendar(1, "day")) == 1


def test_calendar_and_rate_are_proposed_in_every_form() -> None:
    of_a_month = [1_774_000_000 * SECOND + hour * HOUR for hour in range(0, 800, 100)]

    found = suggest(arrivals_of(of_a_month, who="user"), "calendar month from 15 in Europe/Berlin", 60)

    assert [peaks.window for peaks in found.peaks] == [60, "calendar month from 15 in Europe/Berlin"]
    calendar = Calendar(7, "month", timezone="Europe/Berlin", anchor=15)
    assert found.proposed == (Rule(60, 1), calendar)
    assert found.as_json()["proposed"] == [
        {"time": 60, "count": 1},
        {"count": 7, "per": "month", "timezone": "Europe/Berlin", "anchor": 15},
    ]
    assert declaration(found, found.proposed) == (
        "@rate_limiter(type=USER, rules=[Rule(time=60, count=1), "
        "Calendar(7, 'month', timezone='Europe/Berlin', anchor=15)])"
    )
    assert toml(found) == (
        '[limits]\n"search" = { type = "user", rules = "1/minute; 7 per calendar month from 15 in Europe/Berlin" }'
    )
    words = shlex.split(command_to_try(found) or "")
    assert rules_from(words[words.index("--limit") + 1]) == found.proposed


@pytest.mark.parametrize("window", [0.5, 60, 90.0, 14 * 86_400, 30 * 86_400, "calendar day"])
def test_pasted_limit_has_the_proposed_rules_for_any_window(window: float | str) -> None:
    found = suggest(arrivals_of([0] * 5), window)

    pasted = validated(LimitsFile, "pasted", parse_toml(toml(found)))
    assert rules_from(limiter_options("search", pasted.limits["search"])["rules"]) == found.proposed
    words = shlex.split(command_to_try(found) or "")
    assert words or window == 0.5, "no text can say half a second"
    assert not words or rules_from(words[words.index("--limit") + 1]) == found.proposed


def test_pasted_decorator_names_a_header_type_as_decorators_do() -> None:
    found = suggest(arrivals_of([0], who="header:X-Api-Key"), 60)
    assert 'type="header:X-Api-Key", rules=' in declaration(found, found.proposed)


def test_proposed_calendar_of_units_has_a_cost_to_settle() -> None:
    found = suggest(tokens(*range(100, 105), who="user", cost_field="x_tokens", pause=HOUR), "calendar day")

    assert found.for_requests[0].refused.requests == 0
    pasted = toml(found)
    assert '{ count = 508, per = "day", timezone = "UTC" }' in pasted
    validated(LimitsFile, "pasted", parse_toml(pasted))
    assert "Calendar(508, 'day')" in declaration(found, found.proposed)


def test_command_to_try_a_limit_is_quoted_for_a_shell() -> None:
    assert command_to_try(suggest(arrivals_of([0] * 5, endpoint="a b"), 10)) == (
        "flask multilimit set 'a b' --limit '5 per 10 seconds' --type ip --shadow --for 1d"
    )


def test_command_to_try_a_limit_adds_a_shadow_limit(app: Flask, server: Server, redis_client: redis.Redis) -> None:  # noqa: ARG001
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    MultiLimit(app, storage=server.url)
    app.add_url_rule("/search", "search", lambda: "ok")
    _, *words = shlex.split(command_to_try(suggest(arrivals_of([0]), 60)) or "")

    said = app.test_cli_runner().invoke(args=[*words, "--yes"])
    client = app.test_client()

    assert "1 per minute (shadow)" in said.output
    assert [client.get("/search").status_code for _ in range(3)] == [200] * 3


# Units

costly = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 100 * SECOND), st.integers(0, 50)), min_size=1, max_size=30
).map(lambda several: sorted(several, key=lambda each: each[1]))


def logged(requests: list[tuple[int, int, int]]) -> list[LoggedRequest]:
    return [
        LoggedRequest(at, "GET", "/", address=f"203.0.113.{who}", fields={"tokens": str(units)})
        for who, at, units in requests
    ]


def chat() -> Flask:
    app = Flask("chat")
    MultiLimit(app)
    app.add_url_rule("/", "chat", lambda: "ok")
    return app


@pytest.mark.parametrize("options", [{"windows": ["fortnight"]}, {"refuse_at_most": "lots"}])
def test_wrong_option_is_an_error_before_the_log_is_read(options: dict[str, Any]) -> None:
    requests = iter(logged([(0, 0, 1)]))
    with pytest.raises(ConfigurationError, match="give"):
        suggest_limits(chat(), requests, **options)
    assert list(requests)


@pytest.mark.parametrize("share", ["0", "20%"])
@given(requests=costly)
@settings(max_examples=40)
def test_counts_in_units_agree_with_a_replay_at_the_real_cost(share: str, requests: list[tuple[int, int, int]]) -> None:
    app = chat()

    found = suggest_limits(app, logged(requests), windows=[10], refuse_at_most=share, cost_field="tokens")

    for choice in (*found.for_requests, *found.for_subjects):
        (rule,) = choice.rules
        rules = [{"time": rule.time, "count": rule.count, "algorithm": rule.algorithm}]
        limit = {"type": "ip", "rules": rules, "cost": found.estimate, "settle": "header:X-Tokens"}
        report = simulate(app, logged(requests), limits={"limits": {"chat": limit}}, cost_field="tokens")
        assert (report.refused, report.clients_refused) == (choice.refused.requests, choice.refused.subjects)
    assert found.for_requests[0].refused.requests <= len(requests) * found.share
    assert found.for_subjects[0].refused.subjects <= found.subjects * found.share


def test_proposed_rules_in_units_are_below_a_gap_and_settle() -> None:
    found = suggest(tokens(2445, *[85] * 19, cost_field="upstream_http_x_tokens"), 3600, share=Fraction(1, 1000))

    assert found.gaps == (Gap(19, 85, 1, 2445, 2445),)
    pasted = toml(found)
    assert pasted == (
        '[limits]\n"search" = { type = "ip", '
        'rules = [{ time = 3600, count = 170, algorithm = "sliding_window_counter" }], '
        'cost = 85, settle = "header:X-Tokens" }'
    )
    validated(LimitsFile, "pasted", parse_toml(pasted))
    assert declaration(found, found.proposed) == (
        '@rate_limiter(type=IP, rules=[Rule(time=3600, count=170, algorithm="sliding_window_counter")], '
        'cost=85, settle="header:X-Tokens")'
    )
    assert command_to_try(found) is None


def test_requests_without_a_cost_are_left_out_and_counted() -> None:
    app = chat()
    requests = [*logged([(1, 0, 7)]), LoggedRequest(1, "GET", "/", address="203.0.113.1")]

    found = suggest_limits(app, requests, cost_field="tokens")

    assert (found.requests, found.without_cost, found.peaks[0].max) == (1, 1, 7)
    with pytest.raises(ConfigurationError, match="nothing says what they cost; none has a number in the field 'units'"):
        suggest_limits(app, requests, cost_field="units")
