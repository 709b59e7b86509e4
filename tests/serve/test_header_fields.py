"""What header fields tell a client, and that they tell the truth."""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, Response, request
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_multilimit import Decision, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.config import Settings
from flask_multilimit.engine import Hit, MemoryStorage
from flask_multilimit.engine.hits import Hits
from flask_multilimit.engine.reply import head
from flask_multilimit.serve.headers import DIALECTS, describe
from support.asking import read_list
from support.clock import Clock
from support.doubles import limited_service

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from support.doubles import RecordingStorage

WAITS = st.one_of(st.integers(0, 3 * 10**6), st.integers(0, 10**13))
"""Microseconds."""
STANDARD = {"RateLimit", "RateLimit-Policy"}
LEGACY = {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}


def limit(app: Flask, **options: Any) -> FlaskClient:
    app.add_url_rule("/", "view", rate_limiter(**options)(lambda: "ok"))
    return app.test_client()


def test_policies_and_limits_are_structured_fields(limited_app: Flask, clock: Clock) -> None:
    client = limit(
        limited_app, type=LimitType.IP, rules=[Rule(time=50, count=3), Rule(time=1.5, count=2, name="burst/1.5s")]
    )

    client.get("/")
    clock.advance(0.75)
    response = client.get("/")

    assert read_list(response.headers["RateLimit-Policy"]) == [
        ("ip-50s", {"q": 3, "w": 50}),
        ("burst/1.5s", {"q": 2, "w": 2}),
    ]
    assert read_list(response.headers["RateLimit"]) == [
        ("ip-50s", {"r": 1, "t": 17}),
        ("burst/1.5s", {"r": 0, "t": 1}),
    ]


def test_a_rule_that_refuses_tells_when_the_request_would_pass(limited_app: Flask, clock: Clock) -> None:
    client = limit(limited_app, rules=[Rule(time=50, count=3), Rule(time=10, count=2)])

    client.get("/")
    clock.advance(5)
    client.get("/")
    response = client.get("/")

    assert response.status_code == 429
    assert read_list(response.headers["RateLimit"]) == [
        ("default-50s", {"r": 1, "t": 5}),
        ("default-10s", {"r": 0, "t": 5}),
    ]
    assert response.headers["Retry-After"] == "5"


def test_numbers_as_large_as_rules_admit_are_still_structured(limited_app: Flask) -> None:
    client = limit(limited_app, rules=Rule(time=400 * 86_400, count=10**9, name="x" * 64))

    response = client.get("/")

    assert read_list(response.headers["RateLimit-Policy"]) == [("x" * 64, {"q": 10**9, "w": 34_560_000})]
    assert read_list(response.headers["RateLimit"]) == [("x" * 64, {"r": 10**9 - 1, "t": 34_560_000})]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("draft-11", STANDARD),
        ("draft-06", {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy"}),
        ("legacy", LEGACY),
        ("both", STANDARD | LEGACY),
        ("off", set[str]()),
    ],
)
def test_which_fields_are_sent_is_a_setting(app: Flask, clock: Clock, setting: str, expected: set[str]) -> None:
    app.config["MULTILIMIT_HEADERS"] = setting
    MultiLimit(app, storage=MemoryStorage(clock=clock))
    client = limit(app, rules="1/minute")

    allowed, refused = client.get("/"), client.get("/")

    for response in (allowed, refused):
        assert {name for name in response.headers.keys() if "ratelimit" in name.lower()} == expected  # noqa: SIM118
    assert [each.headers.get("Retry-After") for each in (allowed, refused)] == [None, "60"]
    assert [each.headers.get("Cache-Control") for each in (allowed, refused)] == [None, "no-store"]


def test_retry_after_may_be_a_date(app: Flask) -> None:
    app.config["MULTILIMIT_RETRY_AFTER"] = "date"
    MultiLimit(app)
    client, before = limit(app, rules="1/minute"), time.time()

    client.get("/")
    response = client.get("/")

    date = parsedate_to_datetime(response.headers["Retry-After"]).timestamp()
    assert before + 59 <= date <= math.ceil(time.time()) + 60
    assert response.retry_after is not None, "werkzeug can read it"


@pytest.mark.parametrize("setting", DIALECTS)
def test_every_field_of_a_dialect_takes_the_place_of_one_that_the_view_has_set(app: Flask, setting: str) -> None:
    app.config["MULTILIMIT_HEADERS"] = setting
    MultiLimit(app)
    of_the_view: dict[str, str] = {}
    app.add_url_rule("/", "view", rate_limiter(rules="9/minute")(lambda: ("ok", of_the_view)))
    app.add_url_rule("/free", "free", lambda: "ok")
    client = app.test_client()
    sent = set(client.get("/").headers.keys()) - set(client.get("/free").headers.keys())
    of_the_view.update(dict.fromkeys(sent, "of the view"))

    headers = client.get("/").headers

    assert "of the view" not in headers.values()
    assert all(len(headers.getlist(name)) == 1 for name in sent)


def test_legacy_fields_tell_of_the_tightest_rule(app: Flask, clock: Clock) -> None:
    app.config["MULTILIMIT_HEADERS"] = "legacy"
    MultiLimit(app, storage=MemoryStorage(clock=clock))
    client = limit(app, rules=[Rule(time=600, count=5), Rule(time=60, count=2)])

    before = time.time()
    responses = [client.get("/") for _ in range(3)]
    after = time.time()

    for response, remaining in zip(responses, ("1", "0", "0"), strict=True):
        assert (response.headers["X-RateLimit-Limit"], response.headers["X-RateLimit-Remaining"]) == ("2", remaining)
        assert before + 60 <= int(response.headers["X-RateLimit-Reset"]) <= after + 61


def test_a_service_called_many_times_is_told_of_once_as_it_stands_last(limited_app: Flask, client: FlaskClient) -> None:
    service = limited_service(rules="100/minute", name="mail")

    @limited_app.get("/")
    @rate_limiter(rules="10/hour")
    def view() -> str:
        for _ in range(5):
            service()
        return "ok"

    response = client.get("/")

    assert read_list(response.headers["RateLimit"]) == [
        ("default-3600s", {"r": 9, "t": 3240}),
        ("mail-60s", {"r": 95, "t": 57}),
    ]
    assert [name for name, _ in read_list(response.headers["RateLimit-Policy"])] == ["default-3600s", "mail-60s"]


def test_of_several_quotas_of_one_name_the_tightest_is_told(limited_app: Flask, client: FlaskClient) -> None:
    service = limited_service(rules="100/minute")

    @limited_app.get("/")
    @rate_limiter(rules="10/minute")
    def view() -> str:
        service()
        return "ok"

    response = client.get("/")

    assert response.headers["RateLimit-Policy"] == '"default-60s";q=10;w=60'
    assert response.headers["RateLimit"] == '"default-60s";r=9;t=54'


@given(
    numbers=st.lists(
        st.tuples(st.integers(-2, 10**6), st.one_of(st.just(-1), st.just(0), WAITS), WAITS), min_size=1, max_size=4
    ),
    shadows=st.booleans(),
)
def test_the_header_fields_of_one_check_equal_those_of_the_last_of_several(
    numbers: list[tuple[int, int, int]], shadows: bool
) -> None:
    hits = Hits(Hit(str(i), Rule(60 + i, 9), name=f"r{i}", shadow=shadows and i == 1) for i in range(len(numbers)))
    refuses = any(wait and not hit.shadow for hit, (_, wait, _) in zip(hits, numbers, strict=True))
    decision = Decision(bytes(16), hits, [*head(0, allowed=not refuses), *chain.from_iterable(numbers)])
    told = []

    for decisions in ([decision], [decision, decision]):
        response = Response()
        describe(response, decisions, Settings())
        told.append(list(response.headers))

    assert told[0] == told[1]
    assert read_list(response.headers["RateLimit"])


def test_fields_of_one_request_are_not_those_of_the_next(limited_app: Flask, client: FlaskClient) -> None:
    limit(limited_app, rules="100/minute")
    limited_app.add_url_rule("/free", "free", lambda: "ok")

    client.get("/")

    assert "RateLimit" not in client.get("/free").headers


@pytest.mark.parametrize("setting", DIALECTS)
def test_no_address_and_no_user_stands_in_any_field(app: Flask, clock: Clock, setting: str) -> None:
    app.config.update(MULTILIMIT_HEADERS=setting, MULTILIMIT_SHADOW_HEADERS=True)
    MultiLimit(app, storage=MemoryStorage(clock=clock), user_loader=lambda: request.headers.get("X-User"))

    @app.get("/")
    @rate_limiter(type=LimitType.IP, rules="2/minute")
    @rate_limiter(type=LimitType.USER, rules="2/minute")
    @rate_limiter(type=lambda: "tenant-7f3a", name="tenant", rules="2/minute")
    def view() -> str:
        return "ok"

    client = app.test_client()
    for user, accept in product(("someone@shop.example", ""), ("application/json", "text/html", "text/plain")):
        headers = {"X-User": user, "Accept": accept}
        for _ in range(3):
            response = client.get("/", headers=headers, environ_base={"REMOTE_ADDR": "203.0.113.77"})
            seen = str(response.headers) + response.text
            assert not any(secret in seen for secret in ("203.0.113", "someone", "7f3a", "rate_limit:"))


@settings(max_examples=60)
@given(
    rules=st.lists(
        st.builds(Rule, time=st.integers(1, 90_000).map(lambda ms: ms / 1000), count=st.integers(1, 4)),
        min_size=1,
        max_size=3,
        unique_by=lambda rule: rule.window_ms,
    ),
    steps=st.lists(st.floats(0, 30), max_size=12),
)
@pytest.mark.filterwarnings("ignore::flask_multilimit.ConfigurationWarning")
def test_retry_after_is_true_and_rounded_by_less_than_a_second(rules: list[Rule], steps: list[float]) -> None:
    clock, app = Clock(), Flask("shop")
    MultiLimit(app, storage=MemoryStorage(clock=clock))
    client = limit(app, rules=rules)
    response = client.get("/")
    for step in steps:
        clock.advance(step)
        response = client.get("/")
    while response.status_code == 200:
        response = client.get("/")

    wait = int(response.headers["Retry-After"])
    clock.advance(wait - 1)
    a_second_less = client.get("/")
    if a_second_less.status_code == 200:  # the wait was a whole number of seconds less one, and no more
        pytest.fail(f"Retry-After: {wait}, but {wait - 1} s are enough")
    clock.advance(1)

    assert client.get("/").status_code == 200


def test_one_check_serves_all_fields(limited_app: Flask, storage: RecordingStorage) -> None:
    client = limit(limited_app, rules="1/minute")

    client.get("/")
    client.get("/")

    assert (len(storage.checks), storage.other_calls) == (2, [])
