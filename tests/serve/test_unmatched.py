"""Requests that match no route or not its methods, OPTIONS, and the methods a limiter serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flask import Flask, Response
from werkzeug.test import TestResponse

from flask_multilimit import LimitType, MultiLimit, rate_limiter
from flask_multilimit.serve.steer import steering_of
from support.asking import ask, policy, statuses, view

if TYPE_CHECKING:
    from support.doubles import RecordingStorage


class TestUnmatchedRequests:
    def test_are_not_limited_unless_asked_for(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, application_limits="1/minute", default_limits="1/minute")
        app.add_url_rule("/", "view", view())

        assert statuses(app, "/no", "/no", "/no") == [404] * 3
        assert statuses(app, "/", method="DELETE") == [405]
        assert storage.checks == []

    @pytest.mark.parametrize("place", ["constructor", "init_app", "setting"])
    def test_share_one_quota_when_asked_for(self, app: Flask, storage: RecordingStorage, place: str) -> None:
        limits = {"type": "ip", "rules": "3/minute"}
        if place == "constructor":
            MultiLimit(app, storage=storage, unmatched_limits=limits)
        elif place == "init_app":
            MultiLimit(storage=storage).init_app(app, unmatched_limits=limits)
        else:
            app.config["MULTILIMIT_UNMATCHED_LIMITS"] = limits
            MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", view())

        assert statuses(app, "/wp-login.php", "/.env", "/a") == [404] * 3
        refused = ask(app, "/b")
        assert (refused.status_code, refused.headers["Retry-After"], policy(refused)) == (429, "60", ["ip-60s"])
        assert statuses(app, "/", method="DELETE") == [429]
        assert statuses(app, "/") == [200]
        assert ask(app, "/b", environ_base={"REMOTE_ADDR": "203.0.113.7"}).status_code == 404

    def test_use_up_the_quota_of_the_app_beside_their_own(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, application_limits="2/minute", unmatched_limits="9/minute")
        app.add_url_rule("/", "view", view())

        assert statuses(app, "/no", "/no", "/", "/no") == [404, 404, 429, 429]
        assert len(storage.checks) == 4

    def test_of_made_up_methods_count_as_well(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="2/minute")

        assert [ask(app, "/no", method=f"M{n}").status_code for n in range(4)] == [404, 404, 429, 429]

    def test_are_not_redirects_to_a_slash(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute")
        app.add_url_rule("/folder/", "view", view())

        assert statuses(app, "/folder", "/folder") == [308, 308]
        assert storage.checks == []


class TestPreflights:
    PREFLIGHT = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}  # noqa: RUF012

    def preflight(self, app: Flask) -> TestResponse:
        return ask(app, method="OPTIONS", headers=self.PREFLIGHT)

    def test_are_exempt_from_limits_of_every_level(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"view": "1/hour"}
        MultiLimit(app, storage=storage, application_limits="1/day", default_limits="1/second")
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", with_defaults=True)(view()), methods=["POST"])

        @app.after_request
        def allow(response: Response) -> Response:
            response.access_control_allow_origin = "https://app.example"
            return response

        responses = [self.preflight(app) for _ in range(3)]

        assert [response.status_code for response in responses] == [200] * 3
        assert all(response.headers["Access-Control-Allow-Origin"] for response in responses)
        assert storage.checks == []

    def test_count_when_a_limiter_asks_for_them(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule(
            "/", "view", rate_limiter(rules="1/minute", methods=["OPTIONS", "POST"])(view()), methods=["POST"]
        )

        assert [self.preflight(app).status_code for _ in range(2)] == [200, 429]

    def test_that_a_view_answers_itself_are_exempt_too(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(view()), methods=["POST", "OPTIONS"])

        assert [ask(app, method="OPTIONS").text for _ in range(2)] == ["ok", "ok"]
        assert storage.checks == []

    def test_that_a_view_answers_itself_count_when_asked_for(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        limited = rate_limiter(rules="1/minute", methods=["options"])(view())
        app.add_url_rule("/", "view", limited, methods=["POST", "OPTIONS"])

        assert statuses(app, "/", "/", method="OPTIONS") == [200, 429]
        assert statuses(app, "/", "/", method="POST") == [200, 200]


class TestMethods:
    def test_others_pass_freely(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", methods=["POST"])(view()), methods=["GET", "POST"])

        assert statuses(app, "/", "/", method="POST") == [200, 429]
        assert statuses(app, "/", "/", method="GET") == [200, 200]

    def test_get_includes_head(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(rules="2/minute", methods=["GET"])(view()))

        assert [*statuses(app, "/", method="HEAD"), *statuses(app, "/"), *statuses(app, "/", method="HEAD")] == [
            200,
            200,
            429,
        ]

    def test_of_a_stacked_limiter_are_its_own(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        stacked = rate_limiter(rules="9/hour")(rate_limiter(rules="1/minute", methods=["POST"])(view()))
        app.add_url_rule("/", "view", stacked, methods=["GET", "POST"])

        statuses(app, "/", method="GET")
        statuses(app, "/", method="POST")

        assert storage.windows == [[3600], [3600, 60]]

    def test_of_a_function_that_is_no_view_go_by_the_request(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        service = rate_limiter(rules="1/minute", methods=["POST"], type=LimitType.IP)(view())
        app.add_url_rule("/", "view", lambda: f"{service()}!", methods=["GET", "POST"])

        assert statuses(app, "/", "/", "/") == [200, 200, 200]
        assert statuses(app, "/", "/", method="POST") == [200, 429]

    @pytest.mark.parametrize("method", ["PROPFIND", "MADE-UP"])
    def test_that_are_rare_count_where_a_limiter_names_them(
        self, app: Flask, storage: RecordingStorage, method: str
    ) -> None:
        named = ["GET", "PROPFIND", "MADE-UP"]
        MultiLimit(app, storage=storage, unmatched_limits={"rules": "1/minute", "methods": named})
        service = rate_limiter(rules="1/minute", methods=named)(view())
        app.add_url_rule("/", "view", lambda: f"{service()}!", methods=named)

        assert statuses(app, "/", "/", method=method) == [200, 429]
        assert statuses(app, "/no", "/no", method=method) == [404, 429]
        assert statuses(app, "/no", "/no", method="OTHER") == [404, 404]

    def test_that_an_override_names_count_too(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits={"rules": "9/minute", "methods": ["POST"]})
        limit = {"type": "ip", "rules": "1/minute", "methods": ["PROPFIND"]}
        with app.app_context():
            steering_of(app).control.override("unmatched", limit=limit, lasting=True)

        assert statuses(app, "/no", "/no", method="PROPFIND") == [404, 429]
