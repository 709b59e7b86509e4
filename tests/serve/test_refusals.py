"""Refused requests: the 429 and its body, error handlers, `on_rejected`, messages and languages."""

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import flask_babel
import pytest
from flask import Flask, Request, Response, abort, jsonify, redirect, render_template_string, request
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers
from werkzeug.exceptions import Forbidden, HTTPException, TooManyRequests
from werkzeug.test import TestResponse, create_environ, run_wsgi_app

from flask_multilimit import (
    AccessDenied,
    Concurrent,
    Decision,
    LimitType,
    MultiLimit,
    MultiLimitError,
    RateLimiter,
    RateLimitExceeded,
    Rule,
    rate_limiter,
)
from support.asking import ask, policy, statuses, view
from support.changes import control_of
from support.clock import Clock
from support.doubles import RecordingStorage, limited_service, raising

FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
PROBLEM = "application/problem+json"
HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


@pytest.fixture
def limited(limited_app: Flask, client: FlaskClient) -> FlaskClient:
    """The client of an app that admits one request a minute."""
    limited_app.add_url_rule("/", "view", rate_limiter(rules=Rule(time=60, count=1))(view()), methods=["GET", "POST"])

    return client


def refusal(client: FlaskClient, **options: Any) -> TestResponse:
    """The response to the second of two requests."""
    assert client.get("/").status_code == 200
    return client.get("/", **options)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, PROBLEM),
        ("", PROBLEM),
        ("*/*", PROBLEM),
        ("application/json, text/plain, */*", PROBLEM),
        ("application/*", PROBLEM),
        ("text/html;q=0, */*", PROBLEM),
        ("application/json;q=0.5, text/html;q=0.4", PROBLEM),
        (FIREFOX, HTML),
        ("text/*", HTML),
        ("TEXT/HTML", HTML),
        ("text/html, application/json;q=0.9", HTML),
        ("text/plain", TEXT),
        ("text/plain, text/html;q=0.5", TEXT),
        ("image/png", PROBLEM),
        (";;;,,,=", PROBLEM),
        ("text/html;q=many", PROBLEM),
        ("\u00fc/\u00fc", PROBLEM),
        ("a/b," * 2000, PROBLEM),
    ],
)
def test_body_of_a_refusal_is_negotiated_by_accept(limited: FlaskClient, accept: str | None, expected: str) -> None:
    response = refusal(limited, environ_overrides={} if accept is None else {"HTTP_ACCEPT": accept})

    assert response.status_code == 429
    assert response.content_type == expected
    assert response.headers["Vary"] == "Accept, Accept-Language"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Retry-After"] == "60"


def test_problem_details_name_every_rule_that_refuses(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.get("/")
    @rate_limiter(type=LimitType.IP, rules=Rule(time=20, count=1), message="Not so fast.")
    @rate_limiter(rules=[Rule(time=1.5, count=1), Rule(time=60, count=9)])
    def view() -> str:
        return "ok"

    client.get("/")
    response = client.get("/", headers={"Accept": "application/json"})

    assert json.loads(response.data) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Not so fast.",
        "violated-policies": ["ip-20s", "default-1500ms"],
        "violations": [
            {"policy": "ip-20s", "limit": 1, "window": 20, "retry-after": 20},
            {"policy": "default-1500ms", "limit": 1, "window": 1.5, "retry-after": 2},
        ],
    }


def test_problem_details_leave_out_shadows(limited_app: Flask, client: FlaskClient) -> None:
    tried_out = rate_limiter(rules=Rule(time=60, count=1, name="tried-out"), shadow=True, scope="tried-out")
    in_earnest = rate_limiter(rules=Rule(time=60, count=1, name="in-earnest"))
    limited_app.add_url_rule("/", "view", tried_out(in_earnest(lambda: "ok")))
    assert refusal(client).get_json()["violated-policies"] == ["in-earnest"]


def test_problem_details_have_no_retry_after_when_waiting_does_not_help(
    limited_app: Flask, client: FlaskClient
) -> None:
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1/minute", cost=lambda: 2)(lambda: "ok"))
    response = client.get("/")
    assert response.get_json(force=True)["violations"] == [{"policy": "default-60s", "limit": 1, "window": 60}]


def test_problem_details_say_what_a_limit_counts_unless_it_is_requests(limited_app: Flask, client: FlaskClient) -> None:
    limiter = rate_limiter(rules=Rule(60, 1000, name="tokens"), cost=lambda: 1001, unit="tokens")
    limited_app.add_url_rule("/", "view", limiter(lambda: "ok"))
    (tokens,) = client.get("/").get_json(force=True)["violations"]
    assert tokens == {"policy": "tokens", "limit": 1000, "window": 60, "unit": "tokens"}


@pytest.mark.parametrize(("waited", "text"), [(0, "60 seconds"), (58.5, "2 seconds"), (59, "1 second."), (59.9, "1 s")])
def test_text_and_html_say_how_long_to_wait(limited: FlaskClient, clock: Clock, waited: float, text: str) -> None:
    refusal(limited)
    clock.advance(waited)
    for accept in ("text/plain", "text/html"):
        assert f"You can try again in {text}" in limited.get("/", headers={"Accept": accept}).text


@pytest.mark.parametrize("accept", ["text/plain", "text/html"])
def test_text_and_html_say_that_a_request_in_progress_must_finish(
    limited_app: Flask, client: FlaskClient, accept: str
) -> None:
    @limited_app.get("/")
    @rate_limiter(rules=Concurrent(1))
    def view() -> str:
        return limited_app.test_client().get("/", headers={"Accept": accept}).text

    assert "You can try again when a request in progress has finished." in client.get("/").text


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ("119 seconds", "in 119 seconds."),
        ("121 seconds", "in 3 minutes."),
        ("2 hours", "in 2 hours."),
        ("3 days", "in 3 days."),
    ],
)
def test_long_waits_are_told_in_minutes_hours_or_days(
    limited_app: Flask, client: FlaskClient, window: str, text: str
) -> None:
    limited_app.add_url_rule("/", "view", rate_limiter(rules=f"1 per {window}")(lambda: "ok"))
    refused = refusal(client)
    assert f"You can try again {text}" in client.get("/", headers={"Accept": "text/html"}).text
    assert int(refused.headers["Retry-After"]) > 100


def test_html_escapes_the_message(limited_app: Flask, client: FlaskClient) -> None:
    hostile = "<script>alert('x')</script>&\"{{ 7 * 7 }}"
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1/minute", message=hostile)(lambda: "ok"))

    client.get("/")
    responses = {accept: client.get("/", headers={"Accept": accept}) for accept in ("text/html", "text/plain", "*/*")}

    assert "<script" not in responses["text/html"].text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&#34;{{ 7 * 7 }}" in responses["text/html"].text
    assert responses["text/plain"].text.startswith(hostile)
    assert responses["*/*"].get_json(force=True)["detail"] == hostile


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_refusal_uses_the_response_class_of_the_app(limited_app: Flask, limited: FlaskClient, method: str) -> None:
    class Own(Response):
        def __init__(self, response: Any = None, *arguments: Any, **options: Any) -> None:
            assert not arguments or not isinstance(arguments[0], int), "Flask gives it the status by name"
            super().__init__(response, *arguments, **options)
            self.headers["X-Own"] = "yes"

    limited_app.response_class = Own
    refusal(limited)

    response = limited.open("/", method=method)

    assert (response.status, response.headers["X-Own"]) == ("429 TOO MANY REQUESTS", "yes")
    assert len(response.data) == (0 if method == "HEAD" else int(response.headers["Content-Length"]))
    assert int(response.headers["Content-Length"]) > 0


def test_retry_after_and_cache_control_of_the_app_are_replaced(limited_app: Flask, limited: FlaskClient) -> None:
    theirs = {"retry-after": "1", "cache-control": "public"}
    limited_app.register_error_handler(429, lambda _: ("slower!", 429, theirs))

    response = refusal(limited)

    assert response.headers.getlist("Retry-After") == ["60"]
    assert response.headers.getlist("Cache-Control") == ["no-store"]


@pytest.mark.parametrize("field", ["CDN-Cache-Control", "surrogate-control", "Edge-Control", "X-Accel-Expires"])
@pytest.mark.parametrize("status", [429, 202])
def test_no_cache_has_a_field_of_its_own_that_lets_it_store_a_refusal(
    limited_app: Flask, limited: FlaskClient, status: int, field: str
) -> None:
    kept = Response("busy", status, {"Cache-Control": "private"})
    limited_app.register_error_handler(429, lambda _: kept)
    limited_app.add_url_rule("/busy", "busy", lambda: kept)

    @limited_app.after_request
    def cached(response: Response) -> Response:
        response.headers[field] = "60"
        return response

    answer, shown = refusal(limited), limited.get("/busy")

    assert (answer.text, field in answer.headers, answer.headers["Cache-Control"]) == ("busy", False, "no-store")
    assert (shown.text, shown.headers[field], shown.headers["Cache-Control"]) == ("busy", "60", "private")


class TestErrorHandlers:
    @pytest.mark.parametrize("registered", [429, RateLimitExceeded, TooManyRequests, MultiLimitError, HTTPException])
    def test_handler_gets_the_exception_with_its_decision(
        self, limited_app: Flask, limited: FlaskClient, registered: Any
    ) -> None:
        @limited_app.errorhandler(registered)
        def handler(error: RateLimitExceeded) -> tuple[str, int]:
            return f"{error.retry_after} {[status.name for status in error.decision.violated]}", 429

        response = refusal(limited)

        assert response.text == "60 ['default-60s']"
        assert response.headers["Retry-After"] == "60"
        assert response.headers["RateLimit"] == '"default-60s";r=0;t=60'

    @pytest.mark.parametrize(
        ("rules", "cost", "wait"), [("1/minute", 1, "60"), ("1 at once", 1, "1"), ("9/minute", lambda: 10, None)]
    )
    def test_exception_has_the_wait_of_the_header_field(
        self, limited_app: Flask, client: FlaskClient, rules: str, cost: Any, wait: str | None
    ) -> None:
        limited_app.register_error_handler(429, lambda error: (str(error.retry_after), 429))
        limited_app.add_url_rule("/", "view", rate_limiter(rules=rules, cost=cost)(lambda: iter("ab")))
        with client.get("/"):  # it holds its slot
            response = client.get("/")
        assert (response.text, response.headers.get("Retry-After")) == (str(wait), wait)

    def test_handler_can_return_the_exception(self, limited_app: Flask, limited: FlaskClient) -> None:
        limited_app.register_error_handler(429, lambda error: error)
        response = refusal(limited, headers={"Accept": "text/plain"})
        assert (response.status_code, response.content_type) == (429, TEXT)

    def test_handler_can_change_the_response_of_the_exception(self, limited_app: Flask, limited: FlaskClient) -> None:
        @limited_app.errorhandler(HTTPException)
        def handler(error: HTTPException) -> Any:
            response = error.get_response()
            response.data = json.dumps({"code": error.code, "message": error.description})
            return response

        assert refusal(limited).get_json(force=True)["code"] == 429

    def test_handler_can_answer_with_another_status(self, limited_app: Flask, limited: FlaskClient) -> None:
        limited_app.register_error_handler(429, lambda _error: ("queued", 202))
        response = refusal(limited)
        assert (response.status_code, response.text) == (202, "queued")
        assert "Retry-After" not in response.headers

    def test_handler_that_calls_a_limited_function_keeps_retry_after(
        self, limited_app: Flask, limited: FlaskClient
    ) -> None:
        log = limited_service(rules="100/hour")

        @limited_app.errorhandler(429)
        def handler(_error: RateLimitExceeded) -> tuple[str, int]:
            log()
            return "refused", 429

        assert refusal(limited).headers["Retry-After"] == "60"


def test_view_can_catch_the_refusal_of_a_function(limited_app: Flask, client: FlaskClient) -> None:
    service = limited_service(rules="1/minute")

    @limited_app.get("/")
    def view() -> str:
        try:
            return service()
        except RateLimitExceeded:
            return "stale"

    responses = [client.get("/") for _ in range(2)]

    assert [response.text for response in responses] == ["done", "stale"]
    assert "Retry-After" not in responses[1].headers


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_of_a_429_or_503_of_the_view_is_kept(limited_app: Flask, client: FlaskClient, status: int) -> None:
    answer = ("mine", status, {"Retry-After": "120"})
    limited_app.add_url_rule("/", "view", rate_limiter(rules="10/minute")(lambda: answer))
    response = client.get("/")
    assert (response.text, response.headers["Retry-After"]) == ("mine", "120")


def exception_of(app: Flask) -> RateLimitExceeded:
    """The exception of a function whose message is "Enough."."""
    service = limited_service(rules="1/minute", message="Enough.")
    with app.app_context():
        service()
        with pytest.raises(RateLimitExceeded) as refused:
            service()
    return refused.value


def test_exception_can_be_pickled_and_copied(limited_app: Flask) -> None:
    refused = exception_of(limited_app)
    pickled = pickle.dumps(refused)
    with limited_app.test_request_context():
        in_request = pickle.loads(pickled)

    for twin in (pickle.loads(pickled), in_request, copy.copy(refused)):
        assert str(twin) == "429 Too Many Requests: Enough."
        assert (twin.decision.id, twin.decision.reply) == (refused.decision.id, refused.decision.reply)


def test_copy_of_a_refusal_whose_response_is_lost_refuses(limited_app: Flask) -> None:
    service = limited_service(rules="1/minute", on_rejected=lambda _: ("slow", 202))

    @limited_app.get("/")
    def view() -> str:
        try:
            return service()
        except RateLimitExceeded as refused:
            raise pickle.loads(pickle.dumps(refused)) from None

    responses = [ask(limited_app) for _ in range(2)]

    assert [response.status_code for response in responses] == [200, 429]


def test_cache_above_the_limiter_that_keeps_errors_does_not_refuse_other_clients(limited_app: Flask) -> None:
    kept: dict[str, bytes] = {}

    def cached() -> str:
        """What ``cache.cached`` of Flask-Caching does from version 2.5 on."""
        found = pickle.loads(kept["/"]) if kept else None
        if found is None:
            try:
                found = limited()
            except HTTPException as error:
                found = error
            kept["/"] = pickle.dumps(found)
        if isinstance(found, HTTPException):
            raise found
        return str(found)

    limited = rate_limiter(type=LimitType.IP, rules="1/minute", on_rejected=lambda _: ("slow", 200))(lambda: "page")
    limited_app.add_url_rule("/", "view", cached)

    def answers(address: str) -> list[str]:
        return [ask(limited_app, environ_base={"REMOTE_ADDR": address}).text for _ in range(2)]

    assert answers("203.0.113.1") == ["page", "page"]
    kept.clear()
    assert answers("203.0.113.1") == ["slow", "slow"]
    assert answers("203.0.113.2") == ["page", "page"]


def test_denial_is_pickled_and_copied_but_not_for_another_request(limited_app: Flask) -> None:
    control_of(limited_app).deny("127.0.0.1", lasting=True)
    copies: list[AccessDenied] = []
    pickled: list[bytes] = []

    @limited_app.errorhandler(AccessDenied)
    def keep(error: AccessDenied) -> str:
        copies.append(copy.copy(error))
        pickled.append(pickle.dumps(error))
        return ""

    ask(limited_app)

    assert str(copies[0]) == str(pickle.loads(pickled[0])) == "403 Forbidden: Access denied."
    with limited_app.test_request_context():
        assert pickle.loads(pickled[0]) is None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("accept", ["*/*", "text/html", "text/plain"])
@pytest.mark.parametrize("response", [None, Response("slower!", 503)], ids=["default response", "given response"])
def test_exception_as_wsgi_application_answers_like_its_response(
    limited_app: Flask, accept: str, method: str, response: Response | None
) -> None:
    error = RateLimitExceeded(exception_of(limited_app).decision, "慢一点", response=response)
    environ = create_environ(method=method, headers={"Accept": accept})

    raised, responded = (run_wsgi_app(each, environ) for each in (error, error.get_response(environ)))

    assert b"".join(raised[0]) == b"".join(responded[0])
    assert raised[1:] == responded[1:]


@pytest.mark.parametrize("is_async", [False, True])
def test_exception_is_freed_when_the_response_is_sent(limited_app: Flask, is_async: bool) -> None:
    async def answer() -> str:
        return "ok"

    limited_app.add_url_rule("/", "index", rate_limiter(rules="1/minute")(answer if is_async else view()))
    kept = []

    @limited_app.errorhandler(RateLimitExceeded)
    def keep(error: RateLimitExceeded) -> RateLimitExceeded:
        kept.append(weakref.ref(error))
        return error

    ask(limited_app)
    gc.disable()
    try:
        run_wsgi_app(limited_app, create_environ(), buffered=True)
        assert [reference() for reference in kept] == [None]
    finally:
        gc.enable()


def test_subclass_of_the_exception_can_replace_its_response(limited_app: Flask) -> None:
    class Slower(RateLimitExceeded):
        def get_response(self, *_: object, **__: object) -> Response:
            return Response("slower!", 503)

    error = Slower(exception_of(limited_app).decision, "Slow down")

    assert run_wsgi_app(error, create_environ())[1] == "503 SERVICE UNAVAILABLE"


@pytest.mark.parametrize(
    ("asked", "expected"), [(Request(create_environ(headers={"Accept": "text/plain"})), TEXT), (None, PROBLEM)]
)
def test_response_of_the_exception_is_negotiated_with_the_given_request(
    limited_app: Flask, asked: Request | None, expected: str
) -> None:
    response: Any = exception_of(limited_app).get_response(asked)
    assert (response.status_code, response.content_type) == (429, expected)


ENGLISH = "Too many requests. Please try again later."
CHINESE = "访问过于频繁,请稍候再试"


def fail(_: Decision) -> None:
    raise KeyError("missing")


class Untranslatable:
    """A lazy translation that fails."""

    def __str__(self) -> str:
        raise KeyError("no such text")


def refuse(app: Flask, path: str = "/", **headers: str) -> Any:
    """The response to the second request, as JSON unless ``headers`` ask for another type."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"Accept": "application/json", **headers}
    return [ask(app, path, headers=given) for _ in range(2)][1]


def limit(app: Flask, storage: RecordingStorage, level: str, **options: Any) -> None:
    """Add a view with one limiter; ``level`` says where ``options`` are given: limiter, app or setting."""
    app.config.update({f"MULTILIMIT_{name.upper()}": each for name, each in options.items() if level == "setting"})
    MultiLimit(app, storage=storage, **options if level == "app" else {})
    app.add_url_rule("/", "view", limiter(**options if level == "limiter" else {})(view()))


def limiter(**options: Any) -> RateLimiter:
    return rate_limiter(rules="1/minute", **options)


def assert_default(refusal: Any) -> None:
    assert refusal.status_code == 429
    assert refusal.json["violated-policies"] == ["default-60s"]


def detail(app: Flask, **headers: str) -> str:
    return str(refuse(app, **headers).json["detail"])


class TestOnRejected:
    @pytest.mark.parametrize(
        ("answer", "status", "text"),
        [
            pytest.param(lambda decision: f"wait {decision.retry_after:.0f}", 429, "wait 60", id="text"),
            pytest.param(lambda _: b"busy", 429, "busy", id="bytes"),
            pytest.param(lambda _: {"busy": True}, 429, '{"busy":true}\n', id="dict"),
            pytest.param(lambda _: ["busy"], 429, '["busy"]\n', id="list"),
            pytest.param(lambda _: iter(["bu", "sy"]), 429, "busy", id="iterator"),
            pytest.param(lambda _: render_template_string("{{ request.path }}"), 429, "/", id="template"),
            pytest.param(lambda _: ("busy", {"X-A": "b"}), 429, "busy", id="text and header dict"),
            pytest.param(lambda _: ("busy", [("X-A", "b")]), 429, "busy", id="text and header list"),
            pytest.param(lambda _: ("busy", Headers({"X-A": "b"})), 429, "busy", id="text and Headers"),
            pytest.param(lambda _: ("busy", None, {"X-A": "b"}), 429, "busy", id="text, no status and headers"),
            pytest.param(lambda _: ("busy", 503), 503, "busy", id="text and status"),
            pytest.param(lambda _: ("busy", "200 OK"), 200, "busy", id="text and status line"),
            pytest.param(lambda _: ("busy", HTTPStatus.OK, {"X-A": "b"}), 200, "busy", id="text, status and headers"),
            pytest.param(lambda _: (Response("busy", 403), {"X-A": "b"}), 403, "busy", id="response and headers"),
            pytest.param(lambda _: jsonify(busy=True), 200, '{"busy":true}\n', id="jsonify"),
            pytest.param(lambda _: redirect("/captcha"), 302, None, id="redirect"),
            pytest.param(lambda _: Forbidden("busy"), 403, None, id="exception"),
            pytest.param(lambda _: Response("own", 429), 429, "own", id="response"),
        ],
    )
    @pytest.mark.parametrize("level", ["limiter", "app"])
    def test_return_value_is_the_response(
        self, app: Flask, storage: RecordingStorage, answer: Any, status: int, text: str | None, level: str
    ) -> None:
        limit(app, storage, level, on_rejected=answer)

        response = refuse(app)

        assert response.status_code == status
        assert text is None or response.text == text
        assert policy(response) == ["default-60s"], "what it returns has header fields like every response"

    @pytest.mark.parametrize("level", ["limiter", "application"])
    @pytest.mark.parametrize("framework", ["flask-restx", "Connexion"])
    def test_framework_that_formats_all_errors_does_not_replace_the_response(
        self, app: Flask, storage: RecordingStorage, framework: str, level: str
    ) -> None:
        limits = limiter(on_rejected=lambda _: ("mine", 202))
        MultiLimit(app, storage=storage, application_limits=limits if level == "application" else ())
        app.add_url_rule("/", "view", limits(view()) if level == "limiter" else view())
        if framework == "Connexion":
            app.config["TRAP_HTTP_EXCEPTIONS"] = True
        else:
            app.handle_user_exception = lambda *_: ("theirs", 429)  # type: ignore[method-assign]

        response = refuse(app)

        assert (response.text, response.status_code) == ("mine", 202)

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (lambda: "busy", "no-store"),
            (lambda: redirect("/waiting-room"), "no-store"),
            (lambda: jsonify(busy=True), "no-store"),
            (lambda: ("busy", 200, {"Cache-Control": "private"}), "private"),
        ],
        ids=["text", "redirect", "jsonify", "own Cache-Control"],
    )
    @pytest.mark.parametrize("by_default", [False, True])
    def test_response_is_not_cached_unless_it_says_so(
        self, app: Flask, storage: RecordingStorage, answer: Any, expected: str, by_default: bool
    ) -> None:
        """What ``after_request`` gives every response is not about a refusal: a cache would send it to others."""
        limit(app, storage, "limiter", on_rejected=lambda _: answer())

        @app.after_request
        def cached(response: Response) -> Response:
            if by_default:
                response.headers.setdefault("Cache-Control", "public, max-age=60")
            return response

        assert ask(app).headers.get("Cache-Control") == ("public, max-age=60" if by_default else None)
        assert refuse(app).headers.getlist("Cache-Control") == [expected]

    def test_kept_response_does_not_take_fields_of_after_request_for_its_own(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        kept = redirect("/waiting-room")
        limit(app, storage, "limiter", on_rejected=lambda _: kept)
        app.add_url_rule("/waiting-room", "waiting", lambda: kept)

        @app.after_request
        def cached(response: Response) -> Response:
            response.headers.setdefault("Cache-Control", "public, max-age=60")
            return response

        ask(app)
        refusals = [refuse(app), refuse(app)]
        shown = app.test_client().get("/waiting-room")
        refusals.append(refuse(app))

        assert shown.headers["Cache-Control"] == "public, max-age=60"
        assert [response.headers["Cache-Control"] for response in refusals] == ["no-store"] * 3

    def test_returning_none_leaves_the_default_refusal(self, app: Flask, storage: RecordingStorage) -> None:
        seen: list[Decision] = []
        limit(app, storage, "app", on_rejected=seen.append)
        assert refuse(app).status_code == 429
        assert [decision.retry_after for decision in seen] == [60]

    def test_callable_of_a_limiter_overrides_that_of_the_app(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, on_rejected=lambda _: "app", default_limits="1/minute")
        app.add_url_rule("/", "own", limiter(on_rejected=lambda _: "limiter")(view()))
        app.add_url_rule("/other", "other", view())
        assert (refuse(app).text, refuse(app, "/other").text) == ("limiter", "app")

    def test_callable_of_the_limiter_with_the_longest_wait_is_used(self, limited_app: Flask) -> None:
        brief = rate_limiter(rules="1/second", on_rejected=lambda _: "brief")
        long = rate_limiter(type=LimitType.IP, rules="1/minute", on_rejected=lambda _: "long")
        limited_app.add_url_rule("/", "view", brief(long(view())))
        assert refuse(limited_app).text == "long"

    def test_error_handler_runs_only_when_it_returns_none(self, app: Flask, storage: RecordingStorage) -> None:
        app.register_error_handler(429, lambda _: ("handled", 429))
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "looks", limiter(on_rejected=lambda _: None)(view()))
        app.add_url_rule("/a", "answers", limiter(on_rejected=lambda _: ("mine", 429))(view()))

        assert refuse(app).text == "handled"
        assert refuse(app, "/a").text == "mine"

    def test_exception_with_an_error_handler_is_handled(self, app: Flask, storage: RecordingStorage) -> None:
        app.register_error_handler(PermissionError, lambda _: ("go away", 403))
        MultiLimit(app, storage=storage, unmatched_limits="1/minute", on_rejected=raising(PermissionError))
        assert statuses(app, "/no", "/no") == [404, 403]

    def test_handler_of_all_exceptions_is_not_called(self, app: Flask, storage: RecordingStorage) -> None:
        app.register_error_handler(Exception, lambda _: ("broken", 500))
        MultiLimit(app, storage=storage, unmatched_limits="1/minute", on_rejected=fail)
        app.register_error_handler(404, lambda error: error)
        app.register_error_handler(429, lambda error: error)

        assert statuses(app, "/no", "/no") == [404, 429]

    def test_other_thread_may_look_for_handlers_of_another_status_meanwhile(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        class Handlers(dict[type[Exception], Any]):
            def __iter__(self) -> Iterator[type[Exception]]:
                by_code[418]  # Flask keeps an empty entry for what it has looked for
                return super().__iter__()

        by_code = app.error_handler_spec[None]
        by_code[None] = Handlers()
        limit(app, storage, "limiter", on_rejected=fail)

        assert_default(refuse(app))

    def test_failures_of_each_callback_are_logged_once_while_a_client_is_refused(
        self, app: Flask, storage: RecordingStorage, caplog: pytest.LogCaptureFixture
    ) -> None:
        limit(app, storage, "limiter", message=fail, on_rejected=fail)
        app.add_url_rule("/other", "other", rate_limiter(rules="1/minute", message=lambda _: [].pop())(view()))

        for _ in range(5):
            assert_default(refuse(app))
        assert statuses(app, "/other", "/other", "/other") == [200, 429, 429]

        assert [each.partition(" failed;")[0] for each in caplog.messages] == [
            "Rate limits: message",
            "Rate limits: on_rejected",
            "Rate limits: message",
        ]

    @pytest.mark.parametrize("option", ["on_rejected", "message"])
    def test_callback_that_calls_what_it_limits_is_asked_once(
        self, limited_app: Flask, caplog: pytest.LogCaptureFixture, option: str
    ) -> None:
        decisions: list[Decision] = []

        def callback(decision: Decision) -> Any:
            decisions.append(decision)
            return serve()

        serve = limited_service(rules="1/minute", **{option: callback})
        limited_app.add_url_rule("/", "show", lambda: serve())  # noqa: PLW0108 - as a view, it would have the limits itself

        assert statuses(limited_app, "/", "/") == [200, 429]
        assert len(decisions) == 1
        assert f"{option} failed; the client gets the default refusal" in caplog.text
        assert "calls itself: it calls a function, or makes a check, whose limit calls it" in caplog.text

    @pytest.mark.parametrize("level", ["limiter", "app"])
    @pytest.mark.parametrize(
        "answer",
        [5, True, object(), ("a", "b", "c", "d"), {"a": object()}, "\ud800", ("x", {"X-A": "b\nc"})],
        ids=["number", "bool", "object", "tuple", "dict", "surrogate", "field"],
    )
    def test_invalid_return_value_leaves_the_default_refusal(
        self, app: Flask, storage: RecordingStorage, answer: Any, level: str
    ) -> None:
        limit(app, storage, level, on_rejected=lambda _: answer)
        assert_default(refuse(app))

    def test_abort_is_the_response(self, app: Flask, storage: RecordingStorage) -> None:
        MultiLimit(app, storage=storage, unmatched_limits="1/minute", on_rejected=lambda _: abort(418))
        assert statuses(app, "/no", "/no") == [404, 418]


class TestMessages:
    @pytest.mark.parametrize("level", ["limiter", "setting"])
    @pytest.mark.parametrize(
        "message",
        [fail, Untranslatable(), lambda _: Untranslatable(), lambda _: "\ud800", "\ud800"],
        ids=["raises", "lazy", "returned lazy", "returned surrogate", "surrogate"],
    )
    def test_message_that_fails_or_is_no_valid_text_leaves_the_default(
        self, app: Flask, storage: RecordingStorage, message: Any, level: str
    ) -> None:
        limit(app, storage, level, message=message)
        assert [detail(app), ask(app, headers={"Accept": "text/plain"}).text.splitlines()[0]] == [ENGLISH] * 2

    def test_message_of_a_limiter_overrides_the_setting(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_MESSAGE"] = "of the app"
        MultiLimit(app, storage=storage, default_limits="1/minute")
        app.add_url_rule("/", "own", limiter(message="of the limiter")(view()))
        app.add_url_rule("/other", "other", view())

        assert detail(app) == "of the limiter"
        assert refuse(app, "/other").json["detail"] == "of the app"

    def test_setting_applies_to_a_limiter_with_on_rejected_alone(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_MESSAGE"] = "of the app"
        MultiLimit(app, storage=storage)
        app.add_url_rule("/", "view", limiter(on_rejected=lambda _: None)(view()))
        assert detail(app) == "of the app"

    @pytest.mark.parametrize("level", ["limiter", "setting"])
    def test_callable_gets_the_decision_and_can_read_the_request(
        self, app: Flask, storage: RecordingStorage, level: str
    ) -> None:
        def message(decision: Decision) -> str:
            return f"{request.path}: {decision.violated[0].name}, {decision.retry_after:.0f} s"

        limit(app, storage, level, message=message)

        assert detail(app) == "/: default-60s, 60 s"

    @pytest.mark.parametrize("level", ["limiter", "setting", "callable"])
    def test_lazy_translation_is_made_for_each_client(self, app: Flask, storage: RecordingStorage, level: str) -> None:
        words = {"de": "Zu viele Anfragen", "en": "Too many requests"}
        flask_babel.Babel(app, locale_selector=lambda: request.accept_languages.best_match(list(words)))
        lazy = flask_babel.LazyString(lambda: words[str(flask_babel.get_locale())])
        message: Any = (lambda _: lazy) if level == "callable" else lazy
        limit(app, storage, "setting" if level == "setting" else "limiter", message=message)

        assert detail(app, Accept_Language="de") == "Zu viele Anfragen"
        assert detail(app, Accept_Language="en") == "Too many requests"


class TestLanguages:
    @pytest.fixture
    def speaking(self, app: Flask, storage: RecordingStorage) -> Callable[[str], Flask]:
        def make(locale: str) -> Flask:
            app.config["MULTILIMIT_LOCALE"] = locale
            MultiLimit(app, storage=storage, default_limits="1/minute")
            app.add_url_rule("/", "view", view())
            return app

        return make

    @pytest.mark.parametrize(
        ("locale", "accepted", "expected"),
        [
            ("en", "zh", ENGLISH),
            ("zh", "en", CHINESE),
            ("zh", "", CHINESE),
            ("auto", "", ENGLISH),
            ("auto", "zh", CHINESE),
            ("auto", "zh-CN,zh;q=0.9,en;q=0.8", CHINESE),
            ("auto", "en-GB,en;q=0.9,zh;q=0.8", ENGLISH),
            ("auto", "de,fr;q=0.9", ENGLISH),
            ("auto", "de,zh-TW;q=0.5", CHINESE),
            ("auto", "zh-CN,en;q=0.5", CHINESE),
            ("auto", "en;q=0.5, zh-TW", CHINESE),
            ("auto", "zh-Hant-HK;q=0.2, en;q=0.1", CHINESE),
            ("auto", "zh-CN;q=0, en-US;q=0.1", ENGLISH),
            ("auto", "zh;q=0", ENGLISH),
            ("auto", "zh" + ", de" * 10_000, ENGLISH),
            ("auto", "*", ENGLISH),
            ("auto", ";;,,\x00nonsense", ENGLISH),
        ],
    )
    def test_language_follows_the_setting_or_accept_language(
        self, speaking: Callable[[str], Flask], locale: str, accepted: str, expected: str
    ) -> None:
        assert detail(speaking(locale), Accept_Language=accepted) == expected

    def test_text_and_html_bodies_are_translated(self, speaking: Callable[[str], Flask]) -> None:
        app = speaking("zh")

        text = refuse(app, Accept="text/plain").text
        page = refuse(app, Accept="text/html")

        assert text == f"{CHINESE}\n请在 60 秒后重试。\n"
        assert f"<p>{CHINESE}</p>" in page.text
        assert page.content_type == "text/html; charset=utf-8"
