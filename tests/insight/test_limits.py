"""The list of limits says what applies to requests: it asks the plans, also for changes made while the app runs."""

from typing import Any

import pytest
import redis
from flask import Flask, request
from flask.views import MethodView
from werkzeug.routing import Rule as Route

from flask_multilimit import IP, MultiLimit, Reserve, rate_limiter
from flask_multilimit.engine import RedisStorage
from flask_multilimit.insight.doctor import examine
from flask_multilimit.insight.keys import SlotsInUse, keys, prefixes_of, slots_in_use, stored_keys
from flask_multilimit.insight.limits import Limit, endpoint_limits, places_of
from flask_multilimit.serve.gate import AppGate, gate_of
from support.asking import limit, statuses, view
from support.changes import control_of


def limits_of(gate: AppGate, endpoint: str) -> list[Limit]:
    places = [place for place in places_of(gate) if place.name == endpoint]
    return [limit for place in places for limit in endpoint_limits(gate, place).limits]


def rules_of(gate: AppGate) -> list[str]:
    return [f"{each.name}: {each.text}" for each in limits_of(gate, "unmatched")]


def methods_of(gate: AppGate, endpoint: str) -> list[tuple[str, ...] | None]:
    return [each.methods for each in limits_of(gate, endpoint)]


def test_limit_shows_its_reserve_its_unit_and_what_happens_in_an_outage(app: Flask) -> None:
    MultiLimit(app)
    reserve = Reserve({"critical": 0.2}, lambda: None)
    limit(app, "/chat", rules="10/minute", unit="tokens", on_storage_error="deny", reserve=reserve)

    (listed,) = limits_of(gate_of(app), "chat")

    assert listed.options == ("reserve", "unit tokens", "on_storage_error deny")


class TestUnmatchedRequests:
    """Listed as overrides make them."""

    @pytest.mark.parametrize("endpoint", ["*", "unmatched"])
    def test_override_of_unmatched_limits_shows_its_count(self, app: Flask, endpoint: str) -> None:
        MultiLimit(app, unmatched_limits="5/minute")
        control_of(app).override(endpoint, rule="default-60s", rules="3/minute", lasting=True)
        assert statuses(app, "/a", "/b", "/c", "/d") == [404, 404, 404, 429]
        assert rules_of(gate_of(app)) == ["default-60s: 3 per minute"]

    def test_additional_limits_are_listed_and_switched_off_ones_are_not(self, app: Flask) -> None:
        limits = [{"type": "ip", "rules": "5/minute"}, "9/hour"]
        MultiLimit(app, unmatched_limits=limits, user_loader=lambda: request.headers.get("X-User"))
        control = control_of(app)
        further = {"type": "user", "rules": "2/minute", "name": "further"}

        entry = control.override("unmatched", limit=further, lasting=True)
        control.override("unmatched", limiter="ip", off=True, lasting=True)

        gate = gate_of(app)
        assert statuses(app, "/a", "/b", "/c") == [404, 404, 429]
        assert rules_of(gate) == ["default-3600s: 9 per hour", "further-60s: 2 per minute"]
        assert limits_of(gate, "unmatched")[-1].from_ == f"override {entry.id}"
        assert "users" in {each.name for each in examine(gate)}

    def test_keys_of_overridden_unmatched_limits_have_rules(self, app: Flask, redis_client: redis.Redis) -> None:
        MultiLimit(app, storage=RedisStorage(redis_client), unmatched_limits="5/minute")
        control_of(app).override("*", rule="default-60s", rules="3/minute", lasting=True)
        control_of(app).override("unmatched", limit={"type": "ip", "rules": "7 at once"}, lasting=True)
        gate = gate_of(app)
        app.testing = False  # an error page then holds its slot until it is closed

        responses = [app.test_client().get(path) for path in ("/a", "/b")]

        listed = keys(gate, stored_keys(gate, prefixes_of(gate)))
        assert {(each.quota, each.used, each.rule and each.rule.algorithm) for each in listed} == {
            (3, 2, "sliding_window"),
            (7, 2, "concurrency"),
        }
        assert slots_in_use(gate) == [SlotsInUse("unmatched", 2, 7, "ip", "127.0.0.1", "127.0.0.1")]
        for response in responses:
            response.close()
        gate.limiter.close()

    def test_limits_show_their_methods(self, app: Flask) -> None:
        limits: list[dict[str, Any]] = [
            {"rules": "1/minute", "methods": ["POST", "PROPFIND"]},
            {"rules": "2/hour", "methods": ["GET"], "name": "reads"},
            {"rules": "3/day"},
        ]
        MultiLimit(app, unmatched_limits=limits)

        listed = {each.text: each.methods for each in limits_of(gate_of(app), "unmatched")}

        assert listed == {"1 per minute": ("POST", "PROPFIND"), "2 per hour": ("GET",), "3 per day": None}


class TestEndpoints:
    """A limiter is listed for every method that it limits."""

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS"])
    def test_limit_of_a_method_that_flask_adds_is_listed(self, app: Flask, method: str) -> None:
        MultiLimit(app)
        limited = rate_limiter(type=IP, rules="1/minute", methods=[method])(view())
        app.add_url_rule("/", "show", limited, provide_automatic_options=False, methods=["GET", "OPTIONS"])

        assert statuses(app, "/", "/", method=method) == [200, 429]
        assert methods_of(gate_of(app), "show") == [(method,)]

    def test_limit_of_a_route_without_methods_is_listed(self, app: Flask) -> None:
        MultiLimit(app)
        app.url_map.add(Route("/", endpoint="show"))
        app.view_functions["show"] = rate_limiter(rules="1/minute")(view())

        assert statuses(app, "/", "/") == [200, 429]
        assert methods_of(gate_of(app), "show") == [None]

    def test_limits_of_view_class_methods_are_listed(self, app: Flask) -> None:
        class Page(MethodView):
            @rate_limiter(rules="1/minute")
            def get(self) -> str:
                return "got"

            @rate_limiter(rules="2/minute")
            def post(self) -> str:
                return "posted"

        MultiLimit(app, application_limits="9/minute")
        app.add_url_rule("/", view_func=Page.as_view("page"))

        assert methods_of(gate_of(app), "page") == [None, ("GET",), ("POST",)]
