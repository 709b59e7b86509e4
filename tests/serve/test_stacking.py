"""Stacked limiters, mixed with other decorators: one check, at the outermost limiter."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, current_app, request
from flask.testing import FlaskClient

from flask_multilimit import LimitType, MultiLimit, Rule, exempt, rate_limiter
from support.asking import view
from support.doubles import (
    FOREIGN,
    OPAQUE,
    RecordingStorage,
    copying_attributes,
    limited_service,
)


def test_stacked_limiters_are_one_check_outermost_first(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    @limited_app.get("/update")
    @rate_limiter(type=LimitType.IP, rules=[Rule(time=50, count=100), Rule(time=20, count=50)])
    @rate_limiter(type=LimitType.DEFAULT, rules=[Rule(time=60, count=1000)])
    def update() -> str:
        return "ok"

    assert client.get("/update").text == "ok"

    assert storage.keys_asked == [
        [
            "rate_limit:{update}:ip:127.0.0.1:sliding_window:50000",
            "rate_limit:{update}:ip:127.0.0.1:sliding_window:20000",
            "rate_limit:{update}:default::sliding_window:60000",
        ]
    ]
    assert storage.other_calls == []


class TestViewsThatHoldLimitedFunctions:
    """A view that may or may not call the function: the limits of the view itself apply, and are checked first."""

    @pytest.fixture
    def limited_app(self, app: Flask, storage: RecordingStorage) -> Flask:
        app.config["MULTILIMIT_LIMITS"] = {"view": "70 per 3 hours"}
        MultiLimit(app, storage=storage, application_limits="90/hour", default_limits="50 per 2 hours")
        return app

    def holders(self) -> dict[str, Callable[[Callable[[], str]], Callable[..., str]]]:
        def closure(service: Callable[[], str]) -> Callable[..., str]:
            def view(*_args: Any, **_kwargs: Any) -> str:
                return service() if "mail" in request.args else "nothing sent"

            return view

        class Page:
            def __init__(self, service: Callable[[], str]) -> None:
                self.service = service

            def __call__(self, **_arguments: Any) -> str:
                return self.service() if "mail" in request.args else "nothing sent"

        return {"closure": closure, "object": Page}

    @pytest.mark.parametrize("kind", ["closure", "object"])
    def test_view_that_holds_a_limited_function_keeps_its_own_limits(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage, kind: str
    ) -> None:
        limited_app.add_url_rule("/", "view", self.holders()[kind](limited_service(rules="10/minute", scope="mail")))

        assert [client.get("/").text, client.get("/?mail").text] == ["nothing sent", "done"]
        before = [3600, 10800]
        assert storage.windows == [before, before, [60]]
        assert storage.keys_asked[-1] == ["rate_limit:{mail}:default::sliding_window:60000"]

    @pytest.mark.parametrize("kind", ["closure", "object"])
    def test_view_that_holds_an_exempt_function_is_not_exempt(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage, kind: str
    ) -> None:
        limited_app.add_url_rule("/", "view", self.holders()[kind](exempt(lambda: "done")))
        assert client.get("/").text == "nothing sent"
        assert storage.windows == [[3600, 10800]]

    def test_limited_function_that_calls_a_view_does_not_limit_the_view(
        self, limited_app: Flask, client: FlaskClient, storage: RecordingStorage
    ) -> None:
        served = view()
        limited_app.add_url_rule("/", "view", served)

        @rate_limiter(rules="10/minute")
        def audit(*args: Any, **kwargs: Any) -> str:
            return served(*args, **kwargs)

        assert client.get("/").text == "ok"
        assert storage.windows == [[3600, 10800]]


def test_decorator_that_copies_attributes_is_transparent(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    limited = copying_attributes(rate_limiter(rules="10/minute")(view()))
    limited_app.add_url_rule("/", "endpoint", rate_limiter(rules="100/hour")(limited))
    assert client.get("/").text == "ok"
    assert storage.windows == [[3600, 60]]


def test_view_object_with_a_limited_call_is_one_check(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, application_limits="90/hour", default_limits="50 per 2 hours")

    class Page:
        @rate_limiter(rules="10/minute")
        def __call__(self) -> str:
            return "ok"

    app.add_url_rule("/", "page", Page())

    assert app.test_client().get("/").text == "ok"
    assert storage.windows == [[3600, 60]]


@pytest.mark.parametrize("copying", [False, True], ids=["plain", "with functools.wraps"])
def test_decorators_between_limiters_run_after_the_check(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage, copying: bool
) -> None:
    ran: list[int] = []

    def counting(view: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ran.append(len(storage.checks))
            return view(*args, **kwargs)

        return functools.wraps(view)(wrapper) if copying else wrapper

    limited = counting(rate_limiter(rules="20/hour", type=LimitType.IP)(view()))
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(limited))

    assert [client.get("/").status_code for _ in range(3)] == [200, 429, 429]
    assert ran == [1]


def awaiting(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await view(*args, **kwargs)

    return wrapper


def synchronous(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return current_app.ensure_sync(view)(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "between", [lambda view: view, awaiting, synchronous], ids=["nothing", "awaits", "ensure_sync"]
)
def test_async_view_is_one_check_with_a_decorator_between_limiters(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage, between: Callable[..., Any]
) -> None:
    @rate_limiter(rules="2/minute")
    @between
    @rate_limiter(rules="100/hour")
    async def view() -> str:
        return "ok"

    limited_app.add_url_rule("/", "view", view)

    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    assert storage.windows == [[60, 3600]] * 3


async def _service() -> str:
    return "sent"


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
def test_async_function_below_a_synchronous_decorator_is_limited(
    limited_app: Flask, storage: RecordingStorage, foreign: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    service = rate_limiter(rules="10/minute")(foreign(rate_limiter(rules="100/hour")(_service)))
    with limited_app.app_context():
        assert asyncio.run(_awaited(service)) == "sent"
    assert storage.windows == ([[60], [3600]] if foreign in OPAQUE.values() else [[60, 3600]])


async def _awaited(function: Callable[[], Any]) -> Any:
    return await function()


def test_limited_functions_that_a_wrapper_chooses_from_are_checked_when_called(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    def either(one: Callable[[], str], other: Callable[[], str]) -> Callable[..., str]:
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return one(*args, **kwargs) if "one" in request.args else other(*args, **kwargs)

        return wrapper

    one = rate_limiter(rules="10/minute")(lambda: "one")
    other = rate_limiter(rules="100/hour")(lambda: "other")
    limited_app.add_url_rule("/", "view", rate_limiter(rules="1000/day")(either(one, other)))

    assert [client.get("/?one").text, client.get("/").text] == ["one", "other"]
    assert storage.windows == [[86400], [60], [86400], [3600]]


def test_arguments_and_result_pass_through(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.get("/<int:first>/<second>")
    @rate_limiter(rules="10/minute")
    @rate_limiter(rules="100/hour")
    def view(first: int, second: str = "") -> tuple[dict[str, object], int]:
        return {"first": first, "second": second}, 201

    response = client.get("/1/two")

    assert (response.status_code, response.json) == (201, {"first": 1, "second": "two"})


def test_decorated_function_keeps_its_name_and_docstring() -> None:
    @rate_limiter()
    @rate_limiter(type=LimitType.IP, rules="1/second")
    def documented() -> None:
        """Explain."""

    assert (documented.__name__, documented.__doc__) == ("documented", "Explain.")


def test_limited_view_can_close_over_flask_proxies(limited_app: Flask, client: FlaskClient) -> None:
    from flask import g, request, session

    limited_app.add_url_rule("/", "show", rate_limiter()(lambda: f"{request.path}{'x' in session}{'x' in g}"))
    assert client.get("/").text == "/FalseFalse"


def test_objects_that_a_limited_view_closes_over_are_not_inspected(limited_app: Flask, client: FlaskClient) -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

        def __call__(self) -> str:
            return "ok"

    touchy = Touchy()
    limited_app.add_url_rule("/", "show", rate_limiter()(lambda: touchy() + ""))

    assert client.get("/").text == "ok"


def test_limited_view_can_close_over_a_name_defined_later(limited_app: Flask, client: FlaskClient) -> None:
    limited_app.add_url_rule("/", "show", rate_limiter()(lambda: later() + ""))

    def later() -> str:
        return "ok"

    assert client.get("/").text == "ok"
