"""Header fields follow the grammar of the draft, and their ``r``, ``t`` and ``Retry-After`` are true."""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from itertools import chain, product
from threading import Barrier
from typing import Any

import pytest
from flask import Flask, Response, request
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from flask_multilimit import (
    Ban,
    Calendar,
    ConfigurationError,
    Decision,
    LimitType,
    MultiLimit,
    RateLimitExceeded,
    Rule,
    rate_limiter,
)
from flask_multilimit.config import Settings
from flask_multilimit.engine import Hit, Limiter, MemoryStorage, hits_for
from flask_multilimit.engine.hits import Hits
from flask_multilimit.engine.reply import head
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.serve.headers import DIALECTS, describe, unshared
from flask_multilimit.serve.state import NO_PLAN, Record
from support.asking import ask, limit, read_list
from support.changes import control_of
from support.clock import Clock
from support.doubles import limited_service

WAITS = st.one_of(st.integers(0, 3 * 10**6), st.integers(0, 10**13))
"""Microseconds."""


def test_largest_numbers_of_a_rule_are_valid_in_structured_fields(limited_app: Flask) -> None:
    client = limit(limited_app, rules=Rule(time=400 * 86_400, count=10**9, name="x" * 64))
    response = client.get("/")
    assert read_list(response.headers["RateLimit-Policy"]) == [("x" * 64, {"q": 10**9, "w": 34_560_000})]
    assert read_list(response.headers["RateLimit"]) == [("x" * 64, {"r": 10**9 - 1, "t": 34_560_000})]


def test_retry_after_can_be_a_date(app: Flask) -> None:
    app.config["MULTILIMIT_RETRY_AFTER"] = "date"
    MultiLimit(app)
    client, before = limit(app, rules="1/minute"), time.time()

    client.get("/")
    response = client.get("/")

    date = parsedate_to_datetime(response.headers["Retry-After"]).timestamp()
    assert before + 60 <= date <= math.ceil(time.time()) + 60
    assert response.retry_after is not None, "werkzeug can read it"


def test_response_object_that_a_view_returns_again_shows_no_fields_of_another_client(limited_app: Flask) -> None:
    kept = Response("ok", headers={"Cache-Control": "max-age=60"})
    limited_app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules="9/minute")(lambda: kept))
    limited_app.add_url_rule("/free", "free", lambda: kept)

    def fields_of(path: str, address: str) -> Response:
        with limited_app.test_request_context(path, environ_overrides={"REMOTE_ADDR": address}):
            return limited_app.full_dispatch_request()

    first, again, other, free = (
        fields_of(path, ip)
        for path, ip in [("/", "10.0.0.1"), ("/", "10.0.0.1"), ("/", "10.0.0.2"), ("/free", "10.0.0.3")]
    )

    assert [each.headers["RateLimit"].partition(";t")[0] for each in (first, again, other)] == [
        '"ip-60s";r=8',
        '"ip-60s";r=7',
        '"ip-60s";r=8',
    ], "each is that of its request, also while another one is sent"
    assert "RateLimit" not in free.headers
    assert free.headers["Cache-Control"] == "max-age=60"


@pytest.mark.parametrize("status", [429, 403], ids=["by a limit", "by a list"])
def test_refusal_of_a_request_that_a_view_dispatches_keeps_its_retry_after(limited_app: Flask, status: int) -> None:
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))

    def forward() -> Response:
        with limited_app.test_request_context("/", environ_base={"REMOTE_ADDR": "10.0.0.1"}):
            return limited_app.full_dispatch_request()

    limited_app.add_url_rule("/forward", "forward", rate_limiter(rules="9/hour", name="own")(forward))
    passed = ask(limited_app, "/forward")
    if status == 403:
        control_of(limited_app).deny("10.0.0.1", for_=60)
        gate_of(limited_app).applier.look()
    refused = ask(limited_app, "/forward")

    assert (passed.status_code, passed.headers.get("Retry-After")) == (200, None)
    (wait,) = refused.headers.getlist("Retry-After")
    assert (refused.status_code, 0 < int(wait) <= 60) == (status, True)
    assert refused.headers["RateLimit"].startswith('"own-3600s";r=7;')


def test_only_one_of_several_threads_sends_the_response_object_itself() -> None:
    def send(kept: Sequence[Response], start: Barrier) -> list[Response]:
        start.wait()
        return [unshared(each) for each in kept]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                kept, start = [Response("ok") for _ in range(300)], Barrier(4)
                sent = [each.result() for each in [threads.submit(send, kept, start) for _ in range(4)]]
                assert [sum(each is one for each in all_) for one, *all_ in zip(kept, *sent, strict=True)] == [1] * 300
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("observed", [False, True], ids=["", "with a function that observes the garbage collector"])
def test_threads_that_send_one_response_object_do_not_crash_the_interpreter(observed: bool) -> None:
    code = f"""
import gc, sys
from threading import Barrier, Thread
from flask import Response
from flask_multilimit.serve.headers import unshared

if {observed}:
    gc.callbacks.append(lambda *_: sum(range(3)))
gc.set_threshold(20, 3, 3)
sys.setswitchinterval(1e-6)

def send(kept, start):
    start.wait()
    for each in kept:
        unshared(each)

for _ in range(50):
    kept, start = [Response("ok") for _ in range(300)], Barrier(4)
    threads = [Thread(target=send, args=(kept, start)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONMALLOC": "debug"}, check=False)

    assert ended.returncode == 0


def test_response_of_any_class_can_be_returned_again(limited_app: Flask) -> None:
    class Wrapping(Response):
        __slots__ = ("empty", "slot")

        def __getattr__(self, name: str) -> Any:
            return self.wrapped[name]

    kept: Any = Wrapping("ok")
    kept.wrapped, kept.slot = {"mimetype": "text/plain"}, "in a slot"
    limited_app.add_url_rule("/", "view", rate_limiter(rules="9/minute")(lambda: kept))

    assert [limited_app.test_client().get("/").headers["RateLimit"].partition(";t")[0] for _ in range(3)] == [
        f'"default-60s";r={left}' for left in (8, 7, 6)
    ]
    with limited_app.test_request_context("/"):
        again: Any = limited_app.full_dispatch_request()
    assert (again is kept, again.slot, again.wrapped) == (False, "in a slot", kept.wrapped)


def test_refusal_that_an_error_handler_returns_again_shows_no_wait_of_another_client(limited_app: Flask) -> None:
    kept = Response("wait", 429)
    limited_app.register_error_handler(429, lambda _: kept)
    client = limit(limited_app, rules="1/minute", cost=lambda: int(request.args["cost"]))

    waits = [client.get(f"/?cost={cost}").headers.get("Retry-After") for cost in (1, 1, 2)]

    assert waits == [None, "60", None], "waiting does not help the last one, which costs more than the limit"


@pytest.mark.parametrize("setting", DIALECTS)
def test_fields_of_a_dialect_replace_fields_set_by_the_view(app: Flask, setting: str) -> None:
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


def test_function_called_several_times_is_shown_once_with_its_last_status(
    limited_app: Flask, client: FlaskClient
) -> None:
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


@pytest.mark.parametrize("options", [{"shadow": True}, {"ban": Ban()}], ids=["shadow", "ban"])
def test_quota_that_a_view_shares_with_a_function_is_shown_under_both_names(
    limited_app: Flask, client: FlaskClient, options: dict[str, Any]
) -> None:
    service = limited_service(rules="4/minute", scope="sent", type=LimitType.IP, name="mail")

    @limited_app.get("/")
    @rate_limiter("9/hour", type=LimitType.IP, name="other", **options)
    @rate_limiter("4/minute", scope="sent", type=LimitType.IP, name="mine")
    def view() -> str:
        service()
        return "ok"

    shown = dict(read_list(client.get("/").headers["RateLimit"]))

    assert (shown["mine-60s"]["r"], shown["mail-60s"]["r"]) == (3, 2)


@pytest.mark.parametrize(
    ("options", "count"),
    [({"rules": "100/minute"}, 10), ({"rules": "1/minute", "shadow": True}, 10), ({"rules": "6/minute"}, 6)],
    ids=str,
)
def test_tightest_of_several_quotas_with_one_name_that_may_refuse_is_shown(
    limited_app: Flask, client: FlaskClient, options: dict[str, Any], count: int
) -> None:
    service = limited_service(**options)

    @limited_app.get("/")
    @rate_limiter(rules="10/minute")
    def view() -> str:
        service()
        return "ok"

    response = client.get("/")

    assert response.headers["RateLimit-Policy"] == f'"default-60s";q={count};w=60'
    assert response.headers["RateLimit"] == f'"default-60s";r={count - 1};t={60 - 60 // count}'


@given(
    numbers=st.lists(
        st.tuples(st.integers(-2, 10**6), st.one_of(st.just(-1), st.just(0), WAITS), WAITS), min_size=1, max_size=4
    ),
    shadows=st.booleans(),
)
def test_fields_after_one_check_equal_those_after_two_equal_checks(
    numbers: list[tuple[int, int, int]], shadows: bool
) -> None:
    hits = Hits(Hit(str(i), Rule(60 + i, 9), name=f"r{i}", shadow=shadows and i == 1) for i in range(len(numbers)))
    refuses = any(wait and not hit.shadow for hit, (_, wait, _) in zip(hits, numbers, strict=True))
    decision = Decision(bytes(16), hits, [*head(0, allowed=not refuses), *chain.from_iterable(numbers)])
    fields = []

    for decisions in ([decision], [decision, decision]):
        response = Response()
        describe(response, record_of(decisions), Settings())
        fields.append(list(response.headers))

    assert fields[0] == fields[1]
    assert read_list(response.headers["RateLimit"])


def test_quota_that_has_recovered_during_a_request_is_shown_as_it_is_now(clock: Clock) -> None:
    limiter, hits, decisions = Limiter(MemoryStorage(clock=clock)), hits_for("5/minute", scope="mail"), []
    for passed in (0, 0, 61):
        clock.advance(passed)
        decisions.append(limiter.check(hits))

    response = Response()
    describe(response, record_of(decisions), Settings())

    assert [parameters["r"] for _, parameters in read_list(response.headers["RateLimit"])] == [4]


def test_retry_after_is_that_of_the_latest_refusal(limited_app: Flask, client: FlaskClient) -> None:
    mail, sms = limited_service(rules="1/hour", name="mail"), limited_service(rules="1/minute", name="sms")

    @limited_app.get("/")
    def view() -> str:
        with contextlib.suppress(RateLimitExceeded):
            mail()
        sms()
        return "ok"

    client.get("/")

    assert client.get("/").headers["Retry-After"] == "60"


@pytest.mark.parametrize("setting", DIALECTS)
def test_response_never_contains_address_user_or_storage_key(app: Flask, clock: Clock, setting: str) -> None:
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
def test_retry_after_is_the_first_whole_second_at_which_a_request_passes(rules: list[Rule], steps: list[float]) -> None:
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


# The draft


ALGORITHMS: list[dict[str, Any]] = [
    {"algorithm": "sliding_window"},
    {"algorithm": "fixed_window"},
    {"algorithm": "sliding_window_counter"},
    {"algorithm": "token_bucket"},
    {"algorithm": "leaky_bucket"},
    {"algorithm": "leaky_bucket", "max_delay": 5},
    {"algorithm": "gcra", "burst": 4},
]
RULES = st.builds(
    lambda time, count, how: Rule(time, count, **how),
    st.integers(1, 60),
    st.integers(1, 12),
    st.sampled_from(ALGORITHMS),
)


def record_of(decisions: Iterable[Decision]) -> Record:
    record = Record(NO_PLAN)
    for decision in decisions:
        record.add(decision)
    return record


def items(response: TestResponse | Response, field: str) -> dict[str, dict[str, Any]]:
    """The members of a list of strings with parameters, as RFC 9651 reads it."""
    return dict(read_list(response.headers[field]))


def assert_follows_draft(response: TestResponse | Response) -> None:
    """The two fields are as the draft demands."""
    policies, limits = items(response, "RateLimit-Policy"), items(response, "RateLimit")
    assert policies.keys() == limits.keys()
    for parameters in policies.values():
        assert parameters.keys() <= {"q", "qu", "w", "pk"}
        assert type(parameters["q"]) is int
        assert parameters["q"] >= 0
        assert parameters.get("w", 1) > 0
        assert type(parameters.get("qu", "requests")) is str
        assert type(parameters.get("pk", b"")) is bytes
    for name, parameters in limits.items():
        assert parameters.keys() <= {"r", "t", "pk"}
        assert type(parameters["r"]) is int
        assert parameters["r"] >= 0
        assert parameters.get("t", 1) >= 0
        assert parameters.get("pk") == policies[name].get("pk")
    if "Retry-After" in response.headers:
        assert all(limit.get("t", 0) <= int(response.headers["Retry-After"]) for limit in limits.values())


def serve(clock: Clock, *rules: Rule, config: dict[str, Any] | None = None, **options: Any) -> FlaskClient:
    app = Flask("shop")
    app.config.update(config or {})
    MultiLimit(app, storage=MemoryStorage(clock=clock))
    app.add_url_rule("/", "view", rate_limiter(rules=list(rules), **options)(lambda: "ok"))
    return app.test_client()


@settings(max_examples=150, deadline=None)
@given(
    rules=st.lists(RULES, min_size=1, max_size=3, unique_by=lambda rule: (rule.algorithm, rule.window_ms)),
    steps=st.lists(st.floats(0, 30), max_size=15),
    partition_keys=st.booleans(),
)
@pytest.mark.filterwarnings("ignore::flask_multilimit.ConfigurationWarning")
def test_every_response_follows_the_draft(rules: list[Rule], steps: list[float], partition_keys: bool) -> None:
    clock = Clock()
    config = {"SECRET_KEY": "a secret", "MULTILIMIT_PARTITION_KEYS": partition_keys}
    client = serve(clock, *rules, config=config, unit="tokens")

    for step in steps:
        assert_follows_draft(client.get("/"))
        clock.advance(step)


def asked_after(rule: Rule, steps: list[float]) -> tuple[Clock, FlaskClient, TestResponse]:
    """A client that has sent a request, and another after each of ``steps``; with the last response."""
    clock = Clock()
    client = serve(clock, rule)
    response = client.get("/")
    for step in steps:
        clock.advance(step)
        response = client.get("/")
    return clock, client, response


@settings(max_examples=150, deadline=None)
@given(rule=RULES, steps=st.lists(st.floats(0, 20), max_size=12))
def test_client_that_uses_no_more_than_r_within_t_is_never_refused(rule: Rule, steps: list[float]) -> None:
    clock, client, response = asked_after(rule, steps)

    for _ in range(20):
        (limit,) = items(response, "RateLimit").values()
        if not limit["r"]:
            clock.advance(limit["t"])
        response = client.get("/")
        assert response.status_code == 200


@settings(max_examples=150, deadline=None)
@given(rule=RULES, steps=st.lists(st.floats(0, 20), max_size=12))
def test_when_nothing_is_left_t_is_the_first_second_at_which_a_request_passes(rule: Rule, steps: list[float]) -> None:
    clock, client, response = asked_after(rule, steps)
    while response.status_code == 200 and items(response, "RateLimit").popitem()[1]["r"]:
        response = client.get("/")

    (limit,) = items(response, "RateLimit").values()
    clock.advance(limit["t"] - 1)
    too_early = client.get("/").status_code
    clock.advance(1)

    assert (too_early, client.get("/").status_code) == (429, 200)


def test_queue_that_admits_more_units_than_it_has_places_for_says_when_the_next_request_passes(clock: Clock) -> None:
    client = serve(clock, Rule(60, 3, algorithm="leaky_bucket", max_delay=10), cost=2)

    assert items(client.get("/"), "RateLimit") == {"default-60s": {"r": 0, "t": 30}}
    clock.advance(29)
    assert client.get("/").status_code == 429
    clock.advance(1)
    assert client.get("/").status_code == 200


def test_client_that_waits_t_gets_units_as_soon_as_they_return(clock: Clock) -> None:
    client = serve(clock, Rule(20, 10))
    for _ in range(5):
        client.get("/")
    clock.advance(10)
    for _ in range(4):
        response = client.get("/")

    assert items(response, "RateLimit") == {"default-20s": {"r": 1, "t": 2}}  # ten in 20 s are one in 2 s
    assert items(client.get("/"), "RateLimit") == {"default-20s": {"r": 0, "t": 10}}
    clock.advance(10)
    assert [client.get("/").status_code for _ in range(6)] == [200] * 5 + [429]


@pytest.mark.parametrize(("setting", "times"), [("draft-11", (10, 5, 14, 9)), ("draft-10", (20, 20, 20, 9))])
def test_each_rule_that_refuses_shows_when_the_request_would_pass(
    clock: Clock, setting: str, times: tuple[int, ...]
) -> None:
    client = serve(clock, Rule(20, 2), Rule(60, 3), config={"MULTILIMIT_HEADERS": setting})
    shown = []
    for seconds in (0, 15, 6, 5):
        clock.advance(seconds)
        shown.append(items(client.get("/"), "RateLimit")["default-20s"])

    assert shown == [{"r": left, "t": t} for left, t in zip((1, 0, 0, 0), times, strict=True)]


@pytest.mark.parametrize(
    ("rule", "standing", "fields"),
    [
        pytest.param(Rule(60, 2), (-5, 0, 30_000_000), {"r": 0, "t": 30}, id="a debt is no time"),
        pytest.param(Rule(60, 2, algorithm="fixed_window"), (2, 0, 0), {"r": 2, "t": 60}, id="the window begins"),
        pytest.param(Calendar(2, "day"), (2, 0, 0), {"r": 2}, id="the end of the period is not known"),
    ],
)
def test_fields_of_a_check_that_costs_nothing(
    rule: Rule, standing: tuple[int, int, int], fields: dict[str, int]
) -> None:
    response = Response()
    describe(response, record_of([Decision(bytes(16), Hits([Hit("key", rule, 0)]), [*head(0), *standing])]), Settings())
    assert [*items(response, "RateLimit").values()] == [fields]


@pytest.mark.parametrize(
    ("options", "burst"),
    [
        ({"algorithm": "token_bucket", "burst": 30}, 30),
        ({"algorithm": "gcra", "burst": 3}, 3),
        ({"algorithm": "leaky_bucket", "burst": 10}, 10),
        ({"algorithm": "leaky_bucket", "max_delay": 60}, 11),
        ({"algorithm": "leaky_bucket", "max_delay": 60, "burst": 5}, 5),
    ],
)
@pytest.mark.parametrize(("setting", "prefix"), [("legacy", "X-RateLimit"), ("draft-06", "RateLimit")])
def test_limit_of_a_bucket_is_what_is_left_of_a_full_one(
    app: Flask, setting: str, prefix: str, options: dict[str, Any], burst: int
) -> None:
    app.config["MULTILIMIT_HEADERS"] = setting
    MultiLimit(app)

    fields = limit(app, rules=Rule(60, 10, **options)).get("/").headers

    assert [fields[f"{prefix}-Limit"], fields[f"{prefix}-Remaining"]] == [str(burst), str(burst - 1)]


@pytest.mark.parametrize(
    ("rules", "seconds", "cost", "limit", "remaining"),
    [
        pytest.param([Rule(1, 1), Rule(3600, 2)], 1, 1, "2", "0", id="the exhausted one that resets last"),
        pytest.param(
            [Rule(60, 1), Rule(3600, 2)], 3599, 1, "2", "0", id="that one, although it has a unit again before"
        ),
        pytest.param([Rule(60, 1), Rule(3600, 9)], 0, 1, "1", "0", id="the one that refuses"),
        pytest.param([Rule(1, 2), Rule(3600, 3)], 0, 2, "3", "1", id="the one that refuses longest"),
    ],
)
@pytest.mark.parametrize(("setting", "prefix"), [("legacy", "X-RateLimit"), ("draft-06", "RateLimit")])
def test_single_limit_dialects_show_the_tightest_rule(
    clock: Clock, setting: str, prefix: str, rules: list[Rule], seconds: float, cost: int, limit: str, remaining: str
) -> None:
    client = serve(clock, *rules, config={"MULTILIMIT_HEADERS": setting}, cost=cost)
    client.get("/")
    clock.advance(seconds)

    fields = client.get("/").headers

    assert (fields[f"{prefix}-Limit"], fields[f"{prefix}-Remaining"]) == (limit, remaining)
    if limit != "1":
        assert int(fields[f"{prefix}-Reset"]) - (time.time() if setting == "legacy" else 0) > 3590


def test_policy_shows_a_unit_other_than_requests(clock: Clock) -> None:
    client = serve(clock, Rule(60, 5000), unit="content-bytes", cost=1200)
    response = client.get("/")
    assert items(response, "RateLimit-Policy")["default-60s"] == {"q": 5000, "qu": "content-bytes", "w": 60}
    assert items(response, "RateLimit")["default-60s"]["r"] == 3800


@pytest.mark.parametrize("unit", ["", "content bytes", 'a"b', "ü", 7, "x" * 21])
def test_unit_that_is_invalid_in_a_field_is_an_error(unit: object) -> None:
    with pytest.raises(ConfigurationError, match="unit="):
        rate_limiter(unit=unit)(lambda: "ok")  # type: ignore[arg-type]


class TestPartitionKeys:
    @staticmethod
    def serve(secret: str = "a secret") -> FlaskClient:
        app = Flask("shop")
        app.config.update(SECRET_KEY=secret, MULTILIMIT_PARTITION_KEYS=True)
        MultiLimit(app)
        user = rate_limiter(type=lambda: request.headers["X-User"], name="person", rules="9/minute")
        app.add_url_rule("/", "view", user(rate_limiter(rules="99/hour")(lambda: "ok")))
        return app.test_client()

    @staticmethod
    def partition_keys(client: FlaskClient, user: str) -> dict[str, bytes]:
        response = client.get("/", headers={"X-User": user})
        assert_follows_draft(response)
        return {name: parameters["pk"] for name, parameters in items(response, "RateLimit").items()}

    def test_partition_keys_are_equal_only_for_a_shared_quota(self) -> None:
        client = self.serve()

        ann, again, bob = (
            self.partition_keys(client, "ann"),
            self.partition_keys(client, "ann"),
            self.partition_keys(client, "bob"),
        )

        assert ann == again
        assert ann["person-60s"] != bob["person-60s"]
        assert ann["default-3600s"] == bob["default-3600s"]

    def test_partition_keys_hide_the_subject_and_depend_on_the_secret(self) -> None:
        keys = [self.partition_keys(self.serve(secret), "ann@shop.example") for secret in ("one", "two")]
        assert keys[0]["person-60s"] != keys[1]["person-60s"]
        assert all(len(key) == 9 for each in keys for key in each.values())
        assert not any(b"ann" in key for each in keys for key in each.values())

    def test_partition_keys_without_a_secret_key_are_an_error(self, app: Flask) -> None:
        app.config["MULTILIMIT_PARTITION_KEYS"] = True
        with pytest.raises(ConfigurationError, match="MULTILIMIT_PARTITION_KEYS needs a key: set SECRET_KEY"):
            MultiLimit(app)
