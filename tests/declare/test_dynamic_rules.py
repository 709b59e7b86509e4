"""Rules that are asked for at each request, and what holds when whoever gives them fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask, request

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.signals import rules_failed
from support.asking import ask, statuses, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.doubles import RecordingStorage
    from support.servers import Server

PLANS = {"free": "1/minute", "gold": "3/minute; 100/hour"}


class Tiers:
    """Where the rules of a customer are looked up; `answer` takes its place when it is broken."""

    def __init__(self) -> None:
        self.answer: Any = None

    def __call__(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if self.answer is not None else PLANS[request.headers["X-Plan"]]


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()


@pytest.fixture
def limited(app: Flask, storage: RecordingStorage, tiers: Tiers) -> Flask:
    MultiLimit(app, storage=storage)
    by_key = rate_limiter(type=lambda: request.headers.get("X-Key", ""), name="api_key", rules=tiers)
    app.add_url_rule("/", "view", by_key(view()), methods=["GET", "POST"])
    return app


@pytest.fixture
def failures(app: Flask) -> Iterator[list[dict[str, Any]]]:
    """What the signal tells."""
    told: list[dict[str, Any]] = []

    def receive(_app: Flask, **arguments: Any) -> None:
        told.append(arguments)

    with rules_failed.connected_to(receive, app):
        yield told


def get(app: Flask, key: str, plan: str = "free") -> int:
    return ask(app, headers={"X-Key": key, "X-Plan": plan}).status_code


def test_each_customer_has_the_rules_of_a_plan(limited: Flask) -> None:
    assert [get(limited, "f", "free") for _ in range(2)] == [200, 429]
    assert [get(limited, "g", "gold") for _ in range(4)] == [200, 200, 200, 429]


def test_header_fields_tell_the_rules_of_the_request(limited: Flask) -> None:
    response = ask(limited, headers={"X-Key": "g", "X-Plan": "gold"})

    assert response.headers["RateLimit-Policy"] == '"api_key-60s";q=3;w=60, "api_key-3600s";q=100;w=3600'


def test_a_change_of_plan_holds_at_once_with_the_history_that_is_there(limited: Flask) -> None:
    assert [get(limited, "k", plan) for plan in ("free", "free", "gold", "gold", "free")] == [200, 429, 200, 200, 429]


def test_are_one_check_with_all_else(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="100/day")
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: [Rule(1, 2), "5/minute"])(view()))

    ask(app)

    assert storage.windows == [[86400, 1, 60]]


def test_that_meet_a_fixed_rule_in_one_key_leave_the_stricter_in_force(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: "9/minute")(rate_limiter(rules="2/minute")(view())))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("database away"),
        5,
        False,
        "  ",
        [""],
        "5/fortnight",
        [Rule(1, 1), None],
        {"rules": "5/minute"},
        ...,
    ],
    ids=repr,
)
class TestFailure:
    def test_leaves_the_last_good_rules_of_the_customer_in_force(
        self, limited: Flask, tiers: Tiers, answer: Any
    ) -> None:
        assert [get(limited, "g", "gold"), get(limited, "f", "free")] == [200, 200]

        tiers.answer = answer

        assert [get(limited, "g", "gold") for _ in range(3)] == [200, 200, 429]
        assert get(limited, "f", "free") == 429

    def test_is_told_once_until_it_is_over(
        self,
        limited: Flask,
        tiers: Tiers,
        failures: list[dict[str, Any]],
        caplog: pytest.LogCaptureFixture,
        answer: Any,
    ) -> None:
        get(limited, "g", "gold")
        with caplog.at_level(logging.ERROR):
            tiers.answer = answer
            for _ in range(3):
                get(limited, "g", "gold")
            ask(limited, method="POST", headers={"X-Key": "g"})

        (record,) = caplog.records
        assert "failed; the last good ones stay in force" in record.getMessage()
        assert 'limiter on "support.asking:view' in record.getMessage()
        (told,) = failures
        assert isinstance(told["error"], Exception)
        assert told["where"].startswith("support.asking:view")

    def test_is_over_when_good_rules_come_and_told_again_when_it_returns(
        self, limited: Flask, tiers: Tiers, failures: list[dict[str, Any]], answer: Any
    ) -> None:
        for now in (None, answer, None, answer):
            tiers.answer = now
            get(limited, "g", "gold")
        tiers.answer = None

        assert len(failures) == 2
        assert [get(limited, "f", "free") for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    "answer", [None, "", [], (), iter(())], ids=["None", "no text", "no list", "no tuple", "none left"]
)
def test_may_say_that_there_is_no_limit_now(
    app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]], answer: Any
) -> None:
    MultiLimit(app, storage=storage, application_limits="100/day")
    answers = iter(["1/minute", answer, "1/minute"])
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: next(answers))(view()))

    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert storage.windows == [[86400, 60], [86400], [86400, 60]]
    assert failures == []


@pytest.mark.parametrize("nothing", [{}, b"", False, 0.0])
def test_what_is_empty_but_no_list_is_nonsense_and_no_freedom(
    app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]], nothing: Any
) -> None:
    MultiLimit(app, storage=storage)
    answers = iter(["1/minute", nothing])
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: next(answers))(view()))

    assert statuses(app, "/", "/") == [200, 429]
    assert len(failures) == 1


def test_may_say_that_nothing_passes(app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]]) -> None:
    multilimit = MultiLimit(app, storage=storage)
    answers = iter([0, "1/minute", 0, RuntimeError("database away"), 0])

    @app.get("/")
    @rate_limiter(rules=lambda: _returned(next(answers)))
    def index() -> str:
        return "ok"

    refused, admitted, *others = [ask(app) for _ in range(4)]

    assert [refused.status_code, admitted.status_code] == [429, 200]
    assert "Retry-After" not in refused.headers
    assert refused.headers["RateLimit-Policy"] == '"default-60s";q=0;w=60'
    assert [other.status_code for other in others] == [429, 429]
    assert len(failures) == 1
    with app.app_context():
        decision = multilimit.peek("index", everyone=True)
        assert decision.hits[0].rule.count == 0


def _returned(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.usefixtures("redis_client")  # empties the server
def test_nothing_passes_on_a_real_server_either(app: Flask, server: Server) -> None:
    MultiLimit(app, storage=server.url)
    app.add_url_rule("/", "view", rate_limiter(rules=lambda: 0)(view()))

    assert statuses(app, "/", "/") == [429, 429]


def test_of_one_callable_are_kept_for_each_limiter(app: Flask, storage: RecordingStorage) -> None:
    multilimit = MultiLimit(app, storage=storage)
    broken = False

    def by_endpoint() -> str:
        if broken:
            raise RuntimeError("database away")
        return {"login": "1/minute", "feed": "1000/minute"}[str(request.endpoint)]

    for name in ("login", "feed"):
        app.add_url_rule(f"/{name}", name, rate_limiter(rules=by_endpoint)(view()))
    assert statuses(app, "/login", "/feed") == [200, 200]

    broken = True

    assert statuses(app, "/login", "/feed") == [429, 200]
    with app.app_context():
        counts = {}
        for name in ("login", "feed"):
            decision = multilimit.peek(name, everyone=True)
            counts[name] = decision.hits[0].rule.count
    assert counts == {"login": 1, "feed": 1000}


def test_of_one_callable_for_a_blueprint_are_kept_for_each_endpoint(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage)
    answers: list[Any] = ["1/minute", "1000/minute"]
    shop = rate_limiter(rules=lambda: answers.pop(0))(Blueprint("shop", "shop"))
    for name in ("login", "feed"):
        shop.add_url_rule(f"/{name}", name, view())
    app.register_blueprint(shop)

    assert statuses(app, "/login", "/feed", "/login", "/feed") == [200, 200, 429, 200]


def test_from_the_start_is_never_unlimited(limited: Flask, tiers: Tiers, storage: RecordingStorage) -> None:
    tiers.answer = RuntimeError("database away")

    assert get(limited, "new") == 200
    assert [hit.rule for hit in storage.checks[0]] == [Rule()]


def test_of_a_limit_of_the_whole_app_is_told_once_for_all_endpoints(
    app: Flask, storage: RecordingStorage, failures: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Any:
        raise RuntimeError("database away")

    MultiLimit(app, storage=storage, application_limits=rate_limiter(type=LimitType.IP, rules=fail))
    for path in ("/a", "/b"):
        app.add_url_rule(path, path, view(), methods=["GET", "POST"])

    statuses(app, "/a", "/b")
    statuses(app, "/a", "/b", method="POST")

    assert (len(failures), len(caplog.records)) == (1, 1)


def test_rules_last_good_on_one_endpoint_hold_on_all(app: Flask, storage: RecordingStorage, tiers: Tiers) -> None:
    MultiLimit(app, storage=storage, application_limits=rate_limiter(type=LimitType.IP, rules=tiers))
    for path in ("/a", "/b"):
        app.add_url_rule(path, path, view())

    assert statuses(app, "/a", headers={"X-Plan": "gold"}) == [200]
    tiers.answer = RuntimeError("database away")

    assert statuses(app, "/b", "/b", "/b") == [200, 200, 429]


def test_failing_for_one_customer_among_many_is_told_once(
    limited: Flask, tiers: Tiers, failures: list[dict[str, Any]]
) -> None:
    get(limited, "g", "gold")
    for _ in range(3):
        get(limited, "broken", "no such plan")
        get(limited, "g", "gold")

    assert len(failures) == 1
    assert isinstance(failures[0]["error"], KeyError)
    assert tiers.answer is None


def test_one_callable_on_several_limiters_fails_and_holds_as_one(
    app: Flask, storage: RecordingStorage, tiers: Tiers, failures: list[dict[str, Any]]
) -> None:
    MultiLimit(app, storage=storage)
    by_address = rate_limiter(type=LimitType.IP, rules=tiers, scope="api")
    for path in ("/a", "/b"):
        app.add_url_rule(path, path, by_address(view()))

    assert statuses(app, "/a", headers={"X-Plan": "gold"}) == [200]
    tiers.answer = RuntimeError("database away")

    assert statuses(app, "/b", "/a", "/b") == [200, 200, 429]
    assert len(failures) == 1


def test_customers_beyond_memory_fall_back_to_rules_that_refuse(
    app: Flask, storage: RecordingStorage, tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.declare.dynamic.REMEMBERED", 2)
    MultiLimit(app, storage=storage)
    by_key = rate_limiter(type=lambda: request.headers["X-Key"], name="api_key", rules=tiers)
    app.add_url_rule("/", "view", by_key(view()))
    for key in "abc":
        get(app, key, "free")
    tiers.answer = RuntimeError("database away")

    assert [get(app, key) for key in "abc"] == [429] * 3
