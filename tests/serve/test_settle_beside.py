"""Settling beside the other options of a limiter: each keeps its promise, and the charge is what the request took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from flask import Flask, request

from flask_multilimit import IP, Ban, MultiLimit, Reserve, Rule, rate_limiter
from flask_multilimit.engine import Hit, MemoryStorage, hits_for
from support.clock import Clock

if TYPE_CHECKING:
    from werkzeug.test import TestResponse

HOURLY = Rule(3600, 1000, algorithm="fixed_window")


def took(_: object) -> int:
    """What a request says that it took."""
    return int(request.args.get("took", 1))


class Served(NamedTuple):
    """An app with one view, and its extension."""

    app: Flask
    multilimit: MultiLimit

    def get(self, units: int = 1, more: str = "") -> TestResponse:
        return self.app.test_client().get(f"/?took={units}{more}")


def limited(**options: Any) -> Served:
    app = Flask("beside")
    multilimit = MultiLimit(app, storage=MemoryStorage(Clock()))
    options = {"rules": HOURLY, "cost": 100, "settle": took, **options}
    app.add_url_rule("/", "view", rate_limiter(**options)(lambda: "ok"))
    return Served(app, multilimit)


def left(answer: TestResponse) -> int:
    return int(answer.headers["RateLimit"].split("r=")[1].split(";")[0])


def test_a_shadow_that_would_have_refused_is_not_charged_and_not_settled() -> None:
    served = limited(shadow=True)
    served.get(950)

    assert served.get(340).status_code == 200
    with served.app.app_context():
        assert served.multilimit.peek("view").remaining == 50


def test_each_request_that_a_debt_refuses_is_a_strike() -> None:
    served = limited(type=IP, ban=Ban(after=2, within=600, time=7200))
    served.get(5000)

    answers = [served.get() for _ in range(3)]

    assert [answer.status_code for answer in answers] == [429] * 3
    assert int(answers[-1].headers["Retry-After"]) == 7200


def test_what_is_reserved_stays_reserved_until_a_debt_takes_it() -> None:
    served = limited(reserve=Reserve({"critical": 0.2}, lambda: request.args.get("priority")), cost=10)
    served.get(795)

    assert served.get().status_code == 503
    assert [served.get(100, "&priority=critical").status_code for _ in range(3)] == [200, 200, 503]


@pytest.mark.parametrize("rules", [lambda: HOURLY, lambda: "1000/hour"])
def test_rules_by_request_are_settled(rules: Any) -> None:
    served = limited(rules=rules)

    assert [left(served.get(340)) for _ in range(2)] == [660, 320]


def test_a_rule_by_request_that_does_not_apply_is_not_settled() -> None:
    served = limited(rules=lambda: HOURLY if "took" in request.args else None, cost=0)

    assert served.app.test_client().get("/").status_code == 200
    assert left(served.get(40)) == 960


def test_an_override_counts_what_was_settled_before_and_is_settled() -> None:
    served = limited()
    served.get(340)
    with served.app.app_context():
        served.multilimit.control.override("view", rule="default-3600s", rules={"count": 500}, lasting=True)

    assert left(served.get(150)) == 10
    assert served.get().status_code == 429


def test_an_override_by_another_algorithm_is_settled_and_without_an_estimate_too() -> None:
    for cost in (0, 10):
        served = limited(cost=cost)
        with served.app.app_context():
            served.multilimit.control.override(
                "view", rule="default-3600s", rules={"algorithm": "sliding_window_counter"}, lasting=True
            )

        assert [left(served.get(340)) for _ in range(2)] == [660, 320]


def test_an_override_during_a_request_leaves_its_settlement_where_it_was_charged() -> None:
    app = Flask("beside")
    multilimit = MultiLimit(app)

    @app.get("/")
    @rate_limiter(rules=HOURLY, cost=100, settle=lambda _: 40)
    def view() -> str:
        multilimit.control.override("view", rule="default-3600s", rules={"algorithm": "token_bucket"}, lasting=True)
        return "ok"

    app.test_client().get("/")

    with app.app_context():
        as_before = [Hit(hit.key, hit.rule) for hit in hits_for(HOURLY, scope="view")]  # no override finds them
        assert multilimit.limiter.peek(as_before).remaining == 960


def test_a_request_that_waited_is_settled_once_at_what_it_took() -> None:
    app = Flask("beside")
    MultiLimit(app)
    rule = Rule(0.2, 10, algorithm="fixed_window")
    app.add_url_rule("/", "view", rate_limiter(rules=rule, cost=6, settle=took, wait=5)(lambda: "ok"))
    client = app.test_client()

    answers = [client.get("/?took=8") for _ in range(2)]

    assert [left(answer) for answer in answers] == [2, 2]


def test_lists_and_exemptions_leave_nothing_to_settle() -> None:
    served = limited(exempt_when=lambda: "free" in request.args)

    assert served.get(40, "&free=1").status_code == 200
    assert left(served.get(10)) == 990
    with served.app.app_context():
        served.multilimit.control.allow("127.0.0.1", lasting=True)
    assert "RateLimit" not in served.get(500).headers
