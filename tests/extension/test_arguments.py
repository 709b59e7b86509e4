"""Arguments of the extension and its methods: an unusable one is an error that says what to give."""

import socket
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from flask import Flask, Response, current_app, request
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, exempt, rate_limiter
from support.asking import ask, statuses, view
from support.clock import Clock
from support.doubles import RecordingStorage


def test_peek_and_reset_of_nothing_outside_of_a_request_are_an_error(app: Flask, multilimit: MultiLimit) -> None:
    for ask_for in (multilimit.peek, multilimit.reset):
        with app.app_context(), pytest.raises(ConfigurationError, match="name an endpoint and a subject"):
            ask_for()


def test_peek_at_an_endpoint_outside_of_a_request_asks_for_a_subject(app: Flask, multilimit: MultiLimit) -> None:
    app.get("/", endpoint="view")(rate_limiter(type=LimitType.IP, rules="1/minute")(view()))
    with app.app_context(), pytest.raises(RuntimeError, match=r'name a subject, such as "ip:203\.0\.113\.7"'):
        multilimit.peek("view")


def test_numeric_subject_is_found_by_its_text(app: Flask, multilimit: MultiLimit) -> None:
    app.get("/", endpoint="view")(rate_limiter(type=lambda: 5, name="tenant", rules="3/minute")(view()))
    assert statuses(app, "/") == [200]

    with app.app_context():
        standing = multilimit.peek("view", f"tenant:{5}")

    assert standing.remaining == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda multilimit: multilimit.check(None, scope="mail"), 'rules=None: give rules, such as "5/minute"'),
        (lambda multilimit: multilimit.check("1/minute", scope=None), "scope=None: give text"),
        (lambda multilimit: multilimit.refund(None), "decision=None: give the Decision of a check"),
        (lambda multilimit: multilimit.control.history(0), "most=0: give a whole number, 1 or more"),
    ],
)
def test_argument_with_nothing_in_it_is_an_error(
    app: Flask, multilimit: MultiLimit, call: Callable[[Any], object], message: str
) -> None:
    with app.app_context(), pytest.raises(ConfigurationError, match=message):
        call(multilimit)


@pytest.mark.parametrize("option", ["allow", "deny", "observers"])
@pytest.mark.parametrize("given", [None, 5, "10.0.0.0/8", ""])
def test_single_value_in_place_of_a_list_is_an_error(option: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}=.*: give a list"):
        MultiLimit(**{option: given})


@pytest.mark.parametrize("unmatched", [None, "9/minute"])
def test_peek_in_an_unmatched_request_shows_unmatched_limits(
    app: Flask, storage: RecordingStorage, unmatched: str | None
) -> None:
    multilimit = MultiLimit(app, storage=storage, unmatched_limits=unmatched)
    app.register_error_handler(404, lambda _: ([each.remaining for each in multilimit.peek().statuses], 404))

    assert ask(app, "/nowhere").json == ([8] if unmatched else [])


@pytest.mark.parametrize("target", [print, len, dict.get])
def test_exempt_on_a_builtin_function_is_an_error(target: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"exempt\(.*takes no attributes; wrap it in a function"):
        exempt(target)


@pytest.mark.usefixtures("multilimit")
def test_function_of_another_app_is_limited_during_an_options_request(app: Flask, clock: Clock) -> None:
    inner, kept = Flask("inner"), RecordingStorage(clock)
    MultiLimit(inner, storage=kept)

    @rate_limiter(rules="5/minute", methods=["OPTIONS", "GET"], scope="mail")
    def service() -> str:
        return "sent"

    @app.after_request
    def send(response: Response) -> Response:
        with inner.app_context():
            response.headers["X-Sent"] = f"{service()} for {request.method}"
        return response

    app.add_url_rule("/", "view", view())

    assert ask(app, "/", method="OPTIONS").headers["X-Sent"] == "sent for OPTIONS"
    assert statuses(app, "/") == [200]
    assert kept.windows == [[60], [60]]


def app_of(framework: str, module: str, name: str) -> Any:
    base = type(name, (), {"__module__": f"{framework}.{module}", "extensions": {}})
    return type("MyApp", (base,), {"__module__": "shop"})()


@pytest.mark.parametrize(
    ("other", "remedy"),
    [
        (app_of("quart", "app", "Quart"), "for Quart there is quart-rate-limiter, or ask the engine's Limiter"),
        (app_of("starlette", "applications", "FastAPI"), "for Starlette and FastAPI there is slowapi, or ask"),
        (ProxyFix(Flask("shop").wsgi_app), "give the Flask object itself, not a wrapper around it"),
        (object(), "give the Flask object itself"),
    ],
    ids=["Quart", "FastAPI", "ProxyFix", "object"],
)
def test_multilimit_on_anything_but_a_flask_app_is_an_error(other: Any, remedy: str) -> None:
    for register in (MultiLimit, MultiLimit().init_app):
        with pytest.raises(ConfigurationError, match=rf"app=\w+ of .*{remedy}"):
            register(other)


def test_multilimit_accepts_current_app(app: Flask, storage: RecordingStorage) -> None:
    with app.app_context():
        MultiLimit(current_app, storage=storage, default_limits="1/minute")
    app.get("/", endpoint="view")(view())
    assert statuses(app, "/", "/") == [200, 429]


def test_configured_storage_timeout_is_the_time_that_a_silent_server_gets(app: Flask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        app.config.update(MULTILIMIT_STORAGE_URI=f"redis://127.0.0.1:{port}", MULTILIMIT_STORAGE_TIMEOUT=0.6)
        MultiLimit(app, limits={"index": "5/minute"})
        app.add_url_rule("/", "index", view())

        began = monotonic()
        assert ask(app).status_code == 200  # decided by this process

    assert monotonic() - began >= 0.5
