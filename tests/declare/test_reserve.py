"""`reserve=`: a part of each count is kept for requests with a priority."""

import platform
from typing import Any

import pytest
from flask import Flask, request

from flask_multilimit import Calendar, Concurrent, ConfigurationError, MultiLimit, Reserve, Rule, rate_limiter
from flask_multilimit.declare.data import limiter_options
from flask_multilimit.declare.limiter import Declaration
from flask_multilimit.engine.algorithms import ALGORITHMS
from support.asking import view

COUNTING = [name for name, algorithm in ALGORITHMS.items() if "burst" not in algorithm.PARAMETERS]
RULES: dict[str, Any] = {
    **{name: Rule(60, 10, algorithm=name) for name in COUNTING if name != "concurrency"},
    "leased": Rule(60, 10, lease=5),
    "concurrency": Concurrent(10),
    "dynamic": lambda: "10/minute",
    "calendar": Calendar(10, "day"),
}


def by_query() -> str | None:
    return request.args.get("p")


def app_with(reserve: Any, **options: Any) -> Flask:
    options["reserve"] = Reserve(reserve, by_query)
    app = Flask(__name__)
    MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(**options)(view()))

    return app


class Client:
    """Keeps its responses, so that slots stay in use."""

    def __init__(self, app: Flask) -> None:
        self._client, self._kept = app.test_client(), list[Any]()

    def admitted(self, priority: str, most: int = 20) -> int:
        for times in range(most):
            response = self._client.get("/", query_string={"p": priority})
            self._kept.append(response)
            if response.status_code != 200:
                return times
        raise AssertionError("all were admitted")


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_reserved_fifth_is_kept_for_critical_requests(rules: Any) -> None:
    client = Client(app_with(rules=rules, reserve={"critical": 0.2}))
    assert client.admitted("normal") == 8
    assert client.admitted("critical") == 2
    assert client.admitted("normal") == 0


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_critical_requests_can_use_the_whole_count(rules: Any) -> None:
    client = Client(app_with(rules=rules, reserve={"critical": 0.2}))
    assert client.admitted("critical") == 10
    assert client.admitted("normal") == 0


def test_each_priority_can_use_units_not_reserved_for_higher_ones() -> None:
    client = Client(app_with(rules="100/minute", reserve={"payments": 0.1, "users": 0.3}))
    assert client.admitted("crawler", 200) == 60
    assert client.admitted("users", 200) == 30
    assert client.admitted("payments", 200) == 10


def test_policy_shows_the_count_for_the_priority_of_the_request() -> None:
    app = app_with(rules="10/minute", reserve={"critical": 0.2})
    assert app.test_client().get("/").headers["RateLimit-Policy"] == '"default-60s";q=8;w=60'
    assert app.test_client().get("/?p=critical").headers["RateLimit-Policy"] == '"default-60s";q=10;w=60'


@pytest.mark.parametrize(
    ("rules", "expected"), [(lambda: "1/minute", [200, 503]), (Rule(60, 10, lease=5), [200, 200, 503])]
)
def test_request_without_priority_has_at_least_one_unit_and_no_lease_above_its_count(
    rules: Any, expected: list[int]
) -> None:
    client = app_with({"critical": 0.8}, rules=rules).test_client()
    assert [client.get("/").status_code for _ in expected] == expected


def test_parts_of_a_reserve_are_added_without_rounding_errors() -> None:
    client = Client(app_with(rules="10/minute", reserve={"a": 0.1, "b": 0.2}))
    assert client.admitted("other") == 7


@pytest.mark.parametrize(
    ("reserve", "message"),
    [
        ({"critical": 0}, "a part is above 0 and below 1, not 0"),
        ({"critical": 1}, "a part is above 0 and below 1, not 1"),
        ({"critical": "0.2"}, "a part is above 0 and below 1, not '0.2'"),
        ({"critical": True}, "a part is above 0 and below 1, not True"),
        ({"a": 0.5, "b": 0.5}, "give less than 1 in all, or nothing is left for others"),
        ({"": 0.5}, "a priority is text, not ''"),
        ({7: 0.5}, "a priority is text, not 7"),
        ({}, "give parts by priority"),
        (0.2, "give parts by priority"),
        ({"critical": 0.95}, r"leaves nothing of Rule\(10 per minute\) for others; reserve less, or raise its count"),
    ],
)
def test_invalid_reserve_is_an_error_at_the_decorator(reserve: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app_with(rules="10/minute", reserve=reserve)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(COUNTING)))
def test_reserve_on_a_bucket_algorithm_is_an_error(algorithm: str) -> None:
    with pytest.raises(ConfigurationError, match=f"reserve works with sliding_window.*, not with {algorithm}"):
        app_with(rules=Rule(60, 10, algorithm=algorithm), reserve={"critical": 0.2})


def test_dynamic_bucket_rule_with_a_reserve_leaves_the_last_good_rules(caplog: pytest.LogCaptureFixture) -> None:
    algorithms = iter(["fixed_window", "gcra", "gcra"])
    rules = lambda: Rule(60, 10, algorithm=next(algorithms))  # noqa: E731
    app = app_with(rules=rules, reserve={"critical": 0.2})

    assert [app.test_client().get("/").headers["RateLimit"] for _ in range(3)] == [
        f'"default-60s";r={left};t=60' for left in (7, 6, 5)
    ]
    assert caplog.text.count("not with gcra") == 1


@pytest.mark.parametrize("priority", ["critical", 5, len])
def test_priority_that_cannot_be_called_without_arguments_is_an_error(priority: Any) -> None:
    with pytest.raises(ConfigurationError, match="priority"):
        rate_limiter(rules="10/minute", reserve=Reserve({"critical": 0.2}, priority))(lambda: "ok")


@pytest.mark.parametrize("reserve", [{"critical": 0.2}, 0.2, "critical"])
def test_reserve_of_another_type_is_an_error(reserve: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"reserve=.*: give Reserve\("):
        rate_limiter(rules="10/minute", reserve=reserve)(lambda: "ok")


def test_reserve_that_leaves_nothing_of_a_fallback_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="leaves nothing of"):
        app_with({"critical": 0.5}, rules=lambda: "9/minute", fallback="1/minute")


def test_priority_that_returns_no_text_is_an_error() -> None:
    app = app_with(rules="10/minute", reserve={"critical": 0.2})
    app.testing = True
    number: Any = lambda: 3  # noqa: E731
    limiter = rate_limiter(rules="10/minute", reserve=Reserve({"critical": 0.2}, number))
    app.view_functions["index"] = limiter(lambda: "ok")

    with pytest.raises(ConfigurationError, match="priority returned 3: return text, or None"):
        app.test_client().get("/")


def test_reserve_can_be_declared_in_data() -> None:
    written = {"rules": "10/minute", "reserve": {"parts": {"critical": 0.2}, "priority": "platform:node"}}
    options = limiter_options("here", written)
    assert Declaration.of("here", options).reserve == Reserve({"critical": 0.2}, platform.node)
