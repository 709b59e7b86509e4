"""Limited functions that are no views: inside a view, outside a request, without an app."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import pytest
import redis
from flask import Flask, g
from flask.cli import ScriptInfo, run_command
from flask.testing import FlaskClient
from flask_login import LoginManager
from werkzeug import routing

from flask_multilimit import (
    ConfigurationError,
    LimitType,
    MultiLimit,
    RateLimitExceeded,
    current_decision,
    rate_limiter,
)
from flask_multilimit.serve.gate import gate_of
from support.asking import view
from support.doubles import FOREIGN, RecordingStorage, limited_service


@rate_limiter(rules="3/minute")
def send_mail() -> str:
    return "sent"


@rate_limiter(rules="3/minute")
@rate_limiter(rules="100/hour")
def countdown(number: int) -> int:
    return countdown(number - 1) if number else 0


class Mailer:
    def __init__(self, name: str) -> None:
        self.name = name

    @rate_limiter(rules="2/minute")
    def send(self, to: str) -> str:
        return f"{self.name} to {to}"

    @staticmethod
    @rate_limiter(rules="2/minute")
    def check(to: str) -> str:
        return to

    @classmethod
    @rate_limiter(rules="2/minute")
    def make(cls, name: str) -> Mailer:
        return cls(name)


def test_function_called_by_a_view_is_charged_at_every_call(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    @limited_app.get("/<int:times>")
    def view(times: int) -> str:
        return " ".join(send_mail() for _ in range(times))

    assert client.get("/2").text == "sent sent"
    assert client.get("/0").text == ""
    assert client.get("/2").status_code == 429
    assert len(storage.checks) == 4


@pytest.mark.parametrize(
    ("kept", "settings", "warned"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"TESTING": True}, False),
        (False, {"MULTILIMIT_ENABLED": False}, False),
    ],
    ids=["in memory", "on a server", "in a test", "disabled"],
)
def test_command_warns_once_that_quotas_in_memory_end_with_it(
    app: Flask,
    redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    kept: bool,
    settings: dict[str, bool],
    warned: bool,
) -> None:
    app.testing = False
    app.config.update(settings)
    MultiLimit(app, storage=redis_client if kept else None)

    @app.cli.command("mail")
    def mail() -> None:
        send_mail()
        send_mail()

    app.test_cli_runner().invoke(args=["mail"], catch_exceptions=False)

    logged = [record.getMessage() for record in caplog.records]
    warning = 'STORAGE_URI=memory://, the quotas of the command "mail" are lost when it ends'
    assert [warning in each for each in logged] == [True] * warned


@pytest.mark.parametrize(
    "context",
    [click.Context(click.Command("worker")), click.Context(run_command, obj=ScriptInfo())],
    ids=["worker of a click program", "flask run that loads the app"],
)
def test_function_in_a_program_that_goes_on_is_not_warned(
    app: Flask, caplog: pytest.LogCaptureFixture, context: click.Context
) -> None:
    app.testing = False
    MultiLimit(app)  # in memory, for which a command of Flask would be warned

    with context, app.app_context():
        send_mail()

    assert not caplog.records


def test_long_lived_app_context_keeps_only_the_latest_decision(limited_app: Flask) -> None:
    service = limited_service(rules="1000/minute")

    with limited_app.app_context():
        for _ in range(100):
            service()

        assert current_decision.remaining == 900
        (record,) = (getattr(g, name) for name in g)
        assert len(record.decisions) == 1


def test_call_without_an_app_context_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(RuntimeError, match=r'test_services:send_mail" is rate limited and needs an app.*app_context'):
        send_mail()


def test_call_in_an_app_without_multilimit_is_an_error_that_names_the_remedy(app: Flask) -> None:
    with (
        app.app_context(),
        pytest.raises(ConfigurationError, match=r"send_mail.*'shop' has no MultiLimit.*MultiLimit\(app\)"),
    ):
        send_mail()


@pytest.mark.parametrize(
    ("kind", "options"),
    [(LimitType.IP, {}), (LimitType.USER, {"user_loader": lambda: None}), (LimitType.USER, {})],
    ids=["address", "user of a loader", "user of flask-login"],
)
def test_limit_by_ip_or_user_outside_a_request_is_an_error(app: Flask, kind: LimitType, options: Any) -> None:
    LoginManager(app)
    MultiLimit(app, **options)

    @rate_limiter(type=kind)
    def service() -> None: ...

    with app.app_context(), pytest.raises(RuntimeError, match=r"address.*outside of a request"):
        service()


def test_limit_by_user_works_outside_a_request_when_the_user_loader_does(app: Flask, storage: RecordingStorage) -> None:
    MultiLimit(app, storage=storage, user_loader=lambda: 7)

    @rate_limiter(type=LimitType.USER, scope="jobs")
    def service() -> None: ...

    with app.app_context():
        service()

    assert storage.keys_asked == [["rate_limit:{jobs}:user:7:sliding_window:60000"]]


def test_recursive_function_is_charged_once_at_every_level(limited_app: Flask, storage: RecordingStorage) -> None:
    with limited_app.app_context():
        assert countdown(2) == 0
        with pytest.raises(RateLimitExceeded):
            countdown(0)

    assert storage.windows == [[60, 3600]] * 4


@pytest.mark.parametrize("between", [False, True], ids=["one wrapper", "another decorator between"])
def test_inner_limiter_is_charged_when_the_function_calls_itself(
    limited_app: Flask, storage: RecordingStorage, between: bool
) -> None:
    @rate_limiter(rules="100/hour")
    def service(times: int) -> None:
        for _ in range(times):
            service(0)

    @functools.wraps(service)
    def decorated(times: int) -> None:
        service(times)

    outer = rate_limiter(rules="10/minute")(decorated if between else service)

    with limited_app.app_context():
        outer(2)

    assert storage.windows == [[60, 3600], [3600], [3600]]


def test_inner_call_through_an_outer_limiter_is_charged_by_both(limited_app: Flask, storage: RecordingStorage) -> None:
    @rate_limiter(rules="100/hour")
    def below(*, back: bool) -> None:
        if back:
            above(back=False)

    above = rate_limiter(rules="10/minute")(below)

    @functools.wraps(above)
    def past_the_first(*, back: bool) -> None:
        below(back=back)

    with limited_app.app_context():
        rate_limiter(rules="1000/day")(past_the_first)(back=True)

    assert storage.windows == [[86400, 60, 3600], [60, 3600]]


def test_method_has_one_quota_for_all_objects(limited_app: Flask) -> None:
    first, second = Mailer("a"), Mailer("b")

    with limited_app.app_context():
        assert [first.send("x"), second.send("y")] == ["a to x", "b to y"]
        with pytest.raises(RateLimitExceeded):
            first.send("z")


def test_static_and_class_methods_can_be_limited(limited_app: Flask) -> None:
    with limited_app.app_context():
        assert [Mailer.check("x"), Mailer("a").check("y")] == ["x", "y"]
        assert Mailer.make("x").name == "x"
        with pytest.raises(RateLimitExceeded):
            Mailer.check("z")


def test_async_function_is_charged_at_every_call(limited_app: Flask, storage: RecordingStorage) -> None:
    @rate_limiter(rules="5/minute")
    @rate_limiter(rules="100/hour")
    async def service(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def all_at_once() -> list[int]:
        return await asyncio.gather(*(service(number) for number in range(5)))

    with limited_app.app_context():
        assert asyncio.run(all_at_once()) == list(range(5))
        with pytest.raises(RateLimitExceeded):
            asyncio.run(service(5))

    assert storage.windows == [[60, 3600]] * 6


def test_call_in_another_thread_is_charged(limited_app: Flask, storage: RecordingStorage) -> None:
    @rate_limiter(rules="100/hour")
    def service(again: bool) -> None:
        if again:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(contextvars.copy_context().run, service, False).result()

    outer = rate_limiter(rules="10/minute")(service)

    with limited_app.app_context():
        outer(True)

    assert storage.windows == [[60, 3600], [3600]]


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
def test_functions_below_the_same_decorator_have_separate_quotas(
    limited_app: Flask, storage: RecordingStorage, foreign: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    @rate_limiter(rules="1/minute")
    @foreign
    def one() -> str:
        return "one"

    @rate_limiter(rules="1/minute")
    @foreign
    def two() -> str:
        return "two"

    with limited_app.app_context():
        assert [one(), two()] == ["one", "two"]

    assert storage.keys_asked[0] != storage.keys_asked[1]


def test_limited_before_request_function_is_charged_for_every_request(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.before_request
    @rate_limiter(type=LimitType.IP, rules="2/minute", scope="everything")
    def guard() -> None: ...

    limited_app.add_url_rule("/", "view", view())

    assert [client.get(path).status_code for path in ("/", "/nowhere", "/")] == [200, 404, 429]


def test_made_up_methods_leave_no_plans_in_memory(limited_app: Flask, client: FlaskClient) -> None:
    limited_app.before_request(rate_limiter(type=LimitType.IP, rules="1000/minute", scope="everything")(lambda: None))
    limited_app.url_map.add(routing.Rule("/any", endpoint="any"))
    limited_app.endpoint("any")(rate_limiter(rules="3/minute")(view()))
    client.get("/any")
    plans = len(gate_of(limited_app).plans.planned)

    assert [client.open("/any", method=f"MADE{number}").status_code for number in range(4)] == [200, 200, 429, 429]
    assert [client.open("/nowhere", method=f"UP{number}").status_code for number in range(4)] == [404] * 4
    assert len(gate_of(limited_app).plans.planned) == plans


def test_limited_view_called_by_another_view_has_another_scope(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    one = rate_limiter(rules="3/minute")(view())
    limited_app.add_url_rule("/one", "one", one)
    limited_app.add_url_rule("/two", "two", lambda: one())  # noqa: PLW0108 - another view

    assert [client.get("/one").text, client.get("/two").text] == ["ok", "ok"]
    assert storage.keys_asked[0] == ["rate_limit:{one}:default::sliding_window:60000"]
    assert storage.keys_asked[1] != storage.keys_asked[0]
