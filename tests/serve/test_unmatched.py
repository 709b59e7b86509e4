"""Requests that match no route or not its methods, OPTIONS, and the methods that a limiter serves."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Blueprint, Flask, Response, abort, request
from flask.views import MethodView
from werkzeug.routing import Rule as Route

from flask_multilimit import LimitType, MultiLimit, rate_limiter
from support.asking import ask, policy, statuses, view
from support.changes import control_of
from support.doubles import RecordingStorage


class TestUnmatchedRequests:
    def test_unmatched_limits_are_one_quota_for_all_paths_and_methods(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(storage=storage).init_app(app, unmatched_limits={"type": "ip", "rules": "3/minute"})
        app.add_url_rule("/", "view", view())

        assert statuses(app, "/wp-login.php", "/.env", "/a") == [404] * 3
        refused = ask(app, "/b")
        assert (refused.status_code, refused.headers["Retry-After"], policy(refused)) == (429, "60", ["ip-60s"])
        assert statuses(app, "/", method="DELETE") == [429]
        assert statuses(app, "/") == [200]
        assert ask(app, "/b", environ_base={"REMOTE_ADDR": "203.0.113.7"}).status_code == 404

    def test_unmatched_limits_that_charge_a_404_count_no_page_of_the_handler_for_404(self, app: Flask) -> None:
        MultiLimit(app, unmatched_limits=rate_limiter(rules="2/minute", charge_when=404))
        app.register_error_handler(404, lambda error: "page" if request.path.startswith("/app/") else error)

        assert statuses(app, *["/app/tokens"] * 3) == [200] * 3
        assert statuses(app, *["/.env"] * 3) == [404, 404, 429]

    def test_unmatched_requests_are_charged_by_application_limits_too(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(app, storage=storage, application_limits="2/minute", unmatched_limits="9/minute")
        app.add_url_rule("/", "view", view())
        assert statuses(app, "/no", "/no", "/", "/no") == [404, 404, 429, 429]
        assert len(storage.checks) == 4

    def test_unmatched_limit_on_trial_does_not_bring_application_limits(self, app: Flask) -> None:
        MultiLimit(app, application_limits="2/minute", unmatched_limits=rate_limiter(rules="1/minute", shadow=True))
        app.add_url_rule("/", "view", view())
        assert statuses(app, "/no", "/no", "/no", "/", "/", "/") == [404, 404, 404, 200, 200, 429]

    def test_redirect_to_a_trailing_slash_is_not_limited(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute")
        app.add_url_rule("/folder/", "view", view())
        assert statuses(app, "/folder", "/folder") == [308, 308]
        assert storage.checks == []

    @pytest.mark.parametrize("path", ["/folder", "/no", "/socket"])
    def test_unmatched_request_ended_by_before_request_is_charged(
        self, app: Flask, storage: RecordingStorage, path: str
    ) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="2/minute")
        app.add_url_rule("/folder/", "view", view())
        app.url_map.add(Route("/socket", endpoint="socket", websocket=True))
        app.before_request(lambda: abort(401))

        assert statuses(app, path, path, path) == [401, 401, 429]

    def test_websocket_route_without_a_handshake_is_charged_as_unmatched(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute")
        app.url_map.add(Route("/socket", endpoint="socket", websocket=True))
        assert statuses(app, "/socket", "/socket") == [400, 429]

    def test_unmatched_options_requests_are_charged_and_can_be_banned(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        limit = {"type": "ip", "rules": "1/minute", "ban": {"after": 1, "within": 60, "time": 3600}}
        MultiLimit(app, storage=storage, unmatched_limits=limit)
        assert statuses(app, "/no", "/no", "/no", method="OPTIONS") == [404, 429, 429]
        assert ask(app, "/no", method="OPTIONS").headers["Retry-After"] == "3600"


class TestOptions:
    """Only OPTIONS requests that Flask answers by itself are free of limits."""

    PREFLIGHT = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}  # noqa: RUF012

    def preflights(self, app: Flask) -> list[int]:
        return statuses(app, "/", "/", "/", method="OPTIONS", headers=self.PREFLIGHT)

    def test_options_answered_by_flask_is_not_limited(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"view": "1/hour"}
        MultiLimit(app, storage=storage, application_limits="1/day", default_limits="1/second")
        app.add_url_rule("/", "view", rate_limiter(rules="1/minute", with_defaults=True)(view()), methods=["POST"])

        @app.after_request
        def allow(response: Response) -> Response:
            response.access_control_allow_origin = "https://app.example"
            return response

        assert self.preflights(app) == [200, 200, 200]
        assert storage.checks == []

    def test_options_answered_by_flask_is_charged_by_a_limiter_that_names_it(self, limited_app: Flask) -> None:
        limited = rate_limiter(rules="1/minute", methods=["OPTIONS", "POST"])(view())
        limited_app.add_url_rule("/", "view", limited, methods=["POST"])
        assert self.preflights(limited_app) == [200, 429, 429]

    @pytest.mark.parametrize("place", ["application", "default", "configuration", "blueprint", "decorator", "function"])
    @pytest.mark.parametrize("methods", [["POST", "OPTIONS"], ["OPTIONS"]])
    def test_options_answered_by_the_view_is_charged(
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
        login = {"decorator": limited, "function": lambda: f"{limited()}!"}.get(place, view())
        pages.add_url_rule("/", "login", login, methods=methods)
        app.register_blueprint(pages)

        assert self.preflights(app) == [200, 200, 429]

    def test_options_method_of_a_class_based_view_is_charged(self, app: Flask, storage: RecordingStorage) -> None:
        class Login(MethodView):
            decorators = [rate_limiter(rules="9/hour")]  # noqa: RUF012 - as Flask declares it

            @rate_limiter(rules="2/minute")
            def options(self) -> str:
                return "ok"

        MultiLimit(app, storage=storage)
        app.add_url_rule("/", view_func=Login.as_view("login"))

        assert self.preflights(app) == [200, 200, 429]
        assert storage.windows[0] == [3600, 60]

    def test_options_on_a_route_without_methods_is_charged(self, limited_app: Flask) -> None:
        limited_app.url_map.add(Route("/", endpoint="view"))
        limited_app.view_functions["view"] = rate_limiter(rules="2/minute")(view())
        assert self.preflights(limited_app) == [200, 200, 429]

    def test_options_is_charged_only_on_routes_whose_view_answers_it(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        MultiLimit(app, storage=storage, application_limits="1/minute")
        limited = rate_limiter(rules="1/minute", type=LimitType.IP)(view())
        app.add_url_rule("/free", "view", limited, methods=["POST"])
        app.add_url_rule("/", "view", limited, methods=["POST", "OPTIONS"])
        app.add_url_rule("/other", "other", view())
        control_of(app).override("other", times=2, lasting=True)

        assert statuses(app, "/free", "/", "/free", "/", method="OPTIONS") == [200, 200, 200, 429]
        assert len(storage.checks) == 2

    @pytest.mark.parametrize("answer", [lambda: abort(401), lambda: ("refused", 401)], ids=["abort", "return"])
    def test_options_answered_by_a_before_request_function_is_charged(
        self, app: Flask, storage: RecordingStorage, answer: Callable[[], Any]
    ) -> None:
        MultiLimit(app, storage=storage, application_limits="2/minute")
        app.add_url_rule("/", "view", view())
        app.before_request(answer)
        assert self.preflights(app) == [401, 401, 429]

    def test_options_of_a_denied_client_is_refused(self, app: Flask) -> None:
        MultiLimit(app, deny=["127.0.0.1"])
        app.add_url_rule("/", "view", view())
        assert self.preflights(app) == [403, 403, 403]


class TestMethods:
    def test_limiter_for_get_counts_head(self, limited_app: Flask) -> None:
        limited_app.add_url_rule("/", "view", rate_limiter(rules="2/minute", methods=["GET"])(view()))
        assert [ask(limited_app, method=method).status_code for method in ("HEAD", "GET", "HEAD")] == [200, 200, 429]

    def test_methods_of_a_limited_function_are_those_of_the_request(self, limited_app: Flask) -> None:
        service = rate_limiter(rules="1/minute", methods=["POST"], type=LimitType.IP)(view())
        limited_app.add_url_rule("/", "view", lambda: f"{service()}!", methods=["GET", "POST"])
        assert statuses(limited_app, "/", "/", "/") == [200, 200, 200]
        assert statuses(limited_app, "/", "/", method="POST") == [200, 429]

    @pytest.mark.parametrize("method", ["PROPFIND", "MADE-UP"])
    def test_uncommon_method_is_charged_by_a_limiter_that_names_it(
        self, app: Flask, storage: RecordingStorage, method: str
    ) -> None:
        named = ["GET", "PROPFIND", "MADE-UP"]
        MultiLimit(app, storage=storage, unmatched_limits={"rules": "1/minute", "methods": named})
        service = rate_limiter(rules="1/minute", methods=named)(view())
        app.add_url_rule("/", "view", lambda: f"{service()}!", methods=named)

        assert statuses(app, "/", "/", method=method) == [200, 429]
        assert statuses(app, "/no", "/no", method=method) == [404, 429]
        assert statuses(app, "/no", "/no", method="OTHER") == [404, 404]

    def test_uncommon_method_named_by_an_override_is_charged(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits={"rules": "9/minute", "methods": ["POST"]})
        limit = {"type": "ip", "rules": "1/minute", "methods": ["PROPFIND"]}
        control_of(app).override("unmatched", limit=limit, lasting=True)

        assert statuses(app, "/no", "/no", method="PROPFIND") == [404, 429]
