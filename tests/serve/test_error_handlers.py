"""Limits on error handlers: a refusal in one is a refusal, and no server error."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from flask import Blueprint, Flask, abort
from flask.testing import FlaskClient
from werkzeug.exceptions import Forbidden, HTTPException, NotFound

from flask_multilimit import (
    AccessDenied,
    Ban,
    LimitType,
    MultiLimit,
    RateLimitExceeded,
    StorageUnavailable,
    rate_limiter,
)
from support.asking import ask, policy, statuses, view
from support.doubles import RecordingStorage, limited_service, raising


@pytest.fixture(params=[True, False], ids=["raising", "answering"])
def limited_app(limited_app: Flask, request: pytest.FixtureRequest) -> Flask:
    """As in tests, where Flask raises what no handler took, and as in production, where it answers 500."""
    limited_app.testing = request.param
    return limited_app


def not_found_handler(app: Flask, **options: Any) -> None:
    @app.errorhandler(404)
    @rate_limiter(**{"type": LimitType.IP, "rules": "2/minute", **options})
    def not_found(_: NotFound) -> tuple[str, int]:
        return "nothing here", 404


def test_refusal_in_a_handler_is_answered_like_one_in_a_view(limited_app: Flask) -> None:
    not_found_handler(limited_app)
    limited_app.add_url_rule("/", "index", view())

    assert statuses(limited_app, "/wp-login.php", "/.env") == [404, 404]
    refused = ask(limited_app, "/admin.php")

    assert (refused.status_code, refused.headers["Retry-After"], policy(refused)) == (429, "60", ["ip-60s"])
    assert refused.get_json()["violated-policies"] == ["ip-60s"]
    assert statuses(limited_app, "/") == [200]


def test_errors_raised_by_views_are_charged_by_the_handler(limited_app: Flask) -> None:
    not_found_handler(limited_app)
    limited_app.add_url_rule("/sold-out", "sold_out", lambda: abort(404))
    assert statuses(limited_app, "/sold-out", "/nowhere", "/sold-out") == [404, 404, 429]


def test_limited_handler_can_ban(limited_app: Flask) -> None:
    not_found_handler(limited_app, rules="1/minute", ban=Ban(after=1, within=60, time=3600))
    assert statuses(limited_app, "/a", "/b", "/c") == [404, 429, 429]
    assert ask(limited_app, "/d").headers["Retry-After"] == "3600"


def test_on_rejected_answers_a_refusal_in_a_handler_before_any_handler_for_refusals(limited_app: Flask) -> None:
    not_found_handler(limited_app, rules="1/minute", on_rejected=lambda _: ("gone", 410))
    limited_app.register_error_handler(429, lambda _: ("slower", 429))
    assert statuses(limited_app, "/a", "/b") == [404, 410]


@pytest.mark.parametrize("registered", [429, RateLimitExceeded, HTTPException, Exception])
def test_error_handler_for_refusals_answers_a_refusal_in_another_handler(limited_app: Flask, registered: Any) -> None:
    not_found_handler(limited_app, rules="1/minute")
    limited_app.register_error_handler(registered, lambda error: (f"slower: {error.code}", 429))

    answers = [ask(limited_app, path) for path in ("/a", "/b")]

    assert [answer.text for answer in answers] == ["nothing here", "slower: 429"]
    assert "Retry-After" in answers[1].headers


def test_refusal_in_a_handler_for_refusals_gets_the_default_answer(limited_app: Flask) -> None:
    not_found_handler(limited_app, rules="1/hour")

    slower: Callable[[Exception], Any] = rate_limiter(rules="1/minute")(lambda _: ("slower", 429))
    limited_app.register_error_handler(429, slower)

    answers = [ask(limited_app, "/nowhere") for _ in range(3)]

    assert [answer.status_code for answer in answers] == [404, 429, 429]
    assert answers[1].text == "slower"
    assert answers[2].get_json()["violated-policies"] == ["default-60s"]


def test_handler_that_calls_a_limited_function_is_refused(limited_app: Flask, client: FlaskClient) -> None:
    report = limited_service(rules="1/minute")
    limited_app.register_error_handler(404, lambda _: (report(), 404))
    assert [client.get("/nowhere").status_code for _ in range(2)] == [404, 429]


@pytest.mark.parametrize("registered", [ZeroDivisionError, Exception, 500])
def test_handler_for_exceptions_of_views_can_be_limited(limited_app: Flask, registered: Any) -> None:
    limited_app.config["PROPAGATE_EXCEPTIONS"] = False
    limited_app.add_url_rule("/", "broken", lambda: str(1 / 0))
    handler: Callable[[Exception], Any] = rate_limiter(rules="1/minute")(lambda _: ("sorry", 500))
    limited_app.register_error_handler(registered, handler)

    assert statuses(limited_app, "/", "/") == [500, 429]
    assert ask(limited_app).headers["Retry-After"] == "60"


def test_handler_of_a_blueprint_can_be_limited(limited_app: Flask) -> None:
    api = Blueprint("api", __name__)
    api.add_url_rule("/items", "items", lambda: abort(403))
    handler: Callable[[Forbidden], Any] = rate_limiter(rules="1/minute")(lambda _: ("no", 403))
    api.register_error_handler(403, handler)
    limited_app.register_blueprint(api)

    assert statuses(limited_app, "/items", "/items") == [403, 429]


def test_async_handler_can_be_limited(limited_app: Flask) -> None:
    @limited_app.errorhandler(404)
    @rate_limiter(rules="1/minute")
    async def not_found(_: NotFound) -> tuple[str, int]:
        return "nothing here", 404

    assert statuses(limited_app, "/a", "/b") == [404, 429]


def test_limited_handler_is_503_when_storage_does_not_answer(limited_app: Flask, storage: RecordingStorage) -> None:
    not_found_handler(limited_app, on_storage_error="deny")
    limited_app.register_error_handler(StorageUnavailable, lambda _: ("maintenance", 503))
    storage.broken = True

    refused = ask(limited_app, "/nowhere")

    assert (refused.status_code, refused.text) == (503, "maintenance")


def test_denied_user_gets_403_from_a_limited_handler(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: "42", deny=["user:42"])
    app.register_error_handler(AccessDenied, lambda _: ("go away", 403))
    not_found_handler(app)

    refused = ask(app, "/nowhere")

    assert (refused.status_code, refused.text) == (403, "go away")


def test_refusal_in_a_handler_is_raised_when_the_app_traps_http_exceptions(limited_app: Flask) -> None:
    limited_app.testing = True
    limited_app.config["TRAP_HTTP_EXCEPTIONS"] = True
    not_found_handler(limited_app, rules="1/minute")

    assert statuses(limited_app, "/a") == [404]
    with pytest.raises(RateLimitExceeded):
        ask(limited_app, "/b")


def test_refusal_in_the_handler_of_server_errors_is_raised_when_the_app_traps_http_exceptions(
    limited_app: Flask,
) -> None:
    limited_app.testing = True
    limited_app.config |= {"TRAP_HTTP_EXCEPTIONS": True, "PROPAGATE_EXCEPTIONS": False}
    limited_app.add_url_rule("/", "broken", lambda: str(1 / 0))
    handler: Callable[[Exception], Any] = rate_limiter(rules="1/minute")(lambda _: ("sorry", 500))
    limited_app.register_error_handler(500, handler)

    assert statuses(limited_app, "/") == [500]
    with pytest.raises(RateLimitExceeded):
        ask(limited_app)


def test_handler_that_raises_the_refusal_again_runs_once(limited_app: Flask, client: FlaskClient) -> None:
    limited_app.config["PROPAGATE_EXCEPTIONS"] = False
    limited_app.add_url_rule("/", "index", rate_limiter(rules="1/minute")(view()))
    handled: list[RateLimitExceeded] = []

    @limited_app.errorhandler(429)
    def raise_again(error: RateLimitExceeded) -> NoReturn:
        handled.append(error)
        raise error

    assert [client.get("/").status_code for _ in range(2)] == [200, 500]
    assert len(handled) == 1


@pytest.mark.parametrize("raised", [Forbidden, ZeroDivisionError])
def test_other_exceptions_of_a_handler_reach_the_app(limited_app: Flask, raised: type[Exception]) -> None:
    limited_app.testing = True
    limited_app.register_error_handler(404, raising(raised))
    with pytest.raises(raised):
        ask(limited_app, "/nowhere")
