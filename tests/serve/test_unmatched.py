"""Requests that match no route or not its methods, OPTIONS, and the methods that a limiter serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flask import Blueprint, Flask, Response, abort
from flask.views import MethodView
from werkzeug.routing import Rule as Route

from flask_multilimit import LimitType, MultiLimit, rate_limiter
from flask_multilimit.serve.applier import applier_of
from support.asking import ask, policy, statuses, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.doubles import RecordingStorage


class TestUnmatchedRequests:
    def test_are_not_limited_unless_asked_for(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, application_limits="1/minute", default_limits="1/minute")
        app.add_url_rule("/", "view", view())

        assert statuses(app, "/no", "/no", "/no") == [404] * 3
        assert statuses(app, "/", method="DELETE") == [405]
        assert storage.checks == []

    def test_share_one_quota_when_asked_for(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(storage=storage).init_app(app, unmatched_limits={"type": "ip", "rules": "3/minute"})
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

    def test_are_not_redirects_to_a_slash(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute")
        app.add_url_rule("/folder/", "view", view())

        assert statuses(app, "/folder", "/folder") == [308, 308]
        assert storage.checks == []

    @pytest.mark.parametrize("path", ["/folder", "/no", "/socket"])
    def test_count_when_a_before_request_function_refuses_them(
        self, app: Flask, storage: RecordingStorage, path: str
    ) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="2/minute")
        app.add_url_rule("/folder/", "view", view())
        app.url_map.add(Route("/socket", endpoint="socket", websocket=True))
        app.before_request(lambda: abort(401))

        assert statuses(app, path, path, path) == [401, 401, 429]

    def test_to_a_websocket_without_a_handshake_count(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute")
        app.url_map.add(Route("/socket", endpoint="socket", websocket=True))

        assert statuses(app, "/socket", "/socket") == [400, 429]

    def test_with_options_count_and_are_refused_while_banned(self, app: Flask, storage: RecordingStorage) -> None:
        limit = {"type": "ip", "rules": "1/minute", "ban": {"after": 1, "within": 60, "time": 3600}}
        MultiLimit(app, storage=storage, unmatched_limits=limit)

        assert statuses(app, "/no", "/no", "/no", method="OPTIONS") == [404, 429, 429]
        assert ask(app, "/no", method="OPTIONS").headers["Retry-After"] == "3600"


class TestOptions:
    """Only OPTIONS that Flask answers by itself are free: a view that takes them does its work for them, too."""

    PREFLIGHT = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}  # noqa: RUF012

    def preflights(self, app: Flask) -> list[int]:
        return statuses(app, "/", "/", "/", method="OPTIONS", headers=self.PREFLIGHT)

    def test_that_flask_answers_are_free_of_limits_of_every_level(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"view": "1/hour"}
        MultiLimit(app, storage=storage, application_limits="1/day", default_limits="1/second")
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", with_defaults=True)(view()), methods=["POST"])

        @app.after_request
        def allow(response: Response) -> Response:
            response.access_control_allow_origin = "https://app.example"
            return response

        assert self.preflights(app) == [200, 200, 200]
        assert storage.checks == []

    def test_that_flask_answers_count_where_a_limiter_names_them(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        limited = rate_limiter(rules="1/minute", methods=["OPTIONS", "POST"])(view())
        app.add_url_rule("/", "view", limited, methods=["POST"])

        assert self.preflights(app) == [200, 429, 429]

    @pytest.mark.parametrize("place", ["application", "default", "configuration", "blueprint", "decorator", "function"])
    @pytest.mark.parametrize("methods", [["POST", "OPTIONS"], ["OPTIONS"]])
    def test_that_the_view_takes_count_wherever_the_limit_is_declared(
        self, app: Flask, storage: RecordingStorage, place: str, methods: list[str]
    ) -> None:
        limit, pages = rate_limiter(rules="2/minute"), Blueprint("pages", "pages")
        limited = limit(view())
        if place == "configuration":
            app.config["MULTILIMIT_LIMITS"] = {"pages.login": "2/minute"}
        elif place == "blueprint":
            limit(pages)
        by_place: dict[str, Any] = {f"{place}_limits": "2/minute"} if place in {"application", "default"} else {}
        MultiLimit(app, storage=storage, **by_place)
        shown = {"decorator": limited, "function": lambda: f"{limited()}!"}.get(place, view())
        pages.add_url_rule("/", "login", shown, methods=methods)
        app.register_blueprint(pages)

        assert self.preflights(app) == [200, 200, 429]

    def test_of_a_class_based_view_count(self, app: Flask, storage: RecordingStorage) -> None:
        class Login(MethodView):
            decorators = [rate_limiter(rules="9/hour")]  # noqa: RUF012 - as Flask declares it

            @rate_limiter(rules="2/minute")
            def options(self) -> str:
                return "ok"

        MultiLimit(app, storage=storage)
        app.add_url_rule("/", view_func=Login.as_view("login"))

        assert self.preflights(app) == [200, 200, 429]
        assert storage.windows[0] == [3600, 60]

    def test_of_a_route_without_methods_count(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        app.url_map.add(Route("/", endpoint="view"))
        app.view_functions["view"] = rate_limiter(rules="2/minute")(view())

        assert self.preflights(app) == [200, 200, 429]

    def test_count_by_route_if_flask_answers_some_and_the_view_others(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(app, storage=storage, application_limits="1/minute")
        limited = rate_limiter(rules="1/minute", type=LimitType.IP)(view())
        app.add_url_rule("/free", "view", limited, methods=["POST"])
        app.add_url_rule("/", "view", limited, methods=["POST", "OPTIONS"])

        assert statuses(app, "/free", "/", "/free", "/", method="OPTIONS") == [200, 200, 200, 429]
        assert len(storage.checks) == 2

    @pytest.mark.parametrize("answer", [lambda: abort(401), lambda: ("refused", 401)])
    def test_that_a_before_request_function_answers_count(
        self, app: Flask, storage: RecordingStorage, answer: Callable[[], Any]
    ) -> None:
        MultiLimit(app, storage=storage, application_limits="2/minute")
        app.add_url_rule("/", "view", view())
        app.before_request(answer)

        assert self.preflights(app) == [401, 401, 429]

    def test_by_a_denied_client_are_refused(self, app: Flask) -> None:
        MultiLimit(app, deny=["127.0.0.1"])
        app.add_url_rule("/", "view", view())

        assert self.preflights(app) == [403, 403, 403]


class TestMethods:
    def test_get_includes_head(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", rate_limiter(rules="2/minute", methods=["GET"])(view()))

        assert [ask(app, method=method).status_code for method in ("HEAD", "GET", "HEAD")] == [200, 200, 429]

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
            applier_of(app).control.override("unmatched", limit=limit, lasting=True)

        assert statuses(app, "/no", "/no", method="PROPFIND") == [404, 429]
