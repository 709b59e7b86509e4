"""Signals: which are sent and when, their arguments, and receivers that raise."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from blinker import NamedSignal
from flask import Flask, abort, request

from flask_multilimit import Ban, LimitType, MultiLimit, RateLimitExceeded, rate_limiter, signals
from flask_multilimit.declare.unwrap import name_of
from flask_multilimit.signals import limit_event, limits_checked, log_once_a_minute, request_rejected, subject_banned
from support.asking import heard, limit, statuses
from support.doubles import raising

Sent = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def sent(app: Flask) -> Iterator[Sent]:
    """The signals that the app sent, in order: the name of each, and its arguments."""
    with heard(app, limits_checked, request_rejected) as found:
        yield found


def test_check_sends_limits_checked_and_refusal_also_sends_request_rejected(limited_app: Flask, sent: Sent) -> None:
    client = limit(limited_app)

    client.get("/")
    client.get("/")

    assert [name for name, _ in sent] == ["limits-checked", "limits-checked", "request-rejected"]
    (_, first), (_, checked), (_, rejected) = sent
    assert [told["decision"].allowed for _, told in sent] == [True, False, False]
    assert checked == rejected
    assert first["decision"].id != checked["decision"].id


def test_signal_has_endpoint_and_subjects(app: Flask, sent: Sent) -> None:
    MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))

    @app.get("/")
    @rate_limiter(type=LimitType.IP)
    @rate_limiter(type=LimitType.USER)
    @rate_limiter(type=lambda: "t1", name="tenant")
    @rate_limiter(rules="1000/hour")
    def view() -> str:
        return "ok"

    client = app.test_client()
    client.get("/", environ_base={"REMOTE_ADDR": "::ffff:203.0.113.7"}, headers={"X-User": "a:b"})
    client.get("/", environ_base={"REMOTE_ADDR": "2001:db8::1"})

    assert [told["endpoint"] for _, told in sent] == ["view"] * 2
    assert sent[0][1]["subjects"] == {"ip": "203.0.113.7", "user": "a:b", "tenant": "t1", "default": ""}
    assert sent[1][1]["subjects"] == {
        "ip": "2001:db8::/64",
        "anonymous": "2001:db8::/64",
        "tenant": "t1",
        "default": "",
    }


def test_signals_and_events_name_the_id_that_the_app_knows(app: Flask, sent: Sent) -> None:
    """Also if it looks like a digest, so that storage has another form of it."""
    user = f"*{'0a' * 20}"
    MultiLimit(app, user_loader=lambda: user)
    app.add_url_rule("/", "view", rate_limiter(type=LimitType.USER, rules="1/minute", ban=Ban(after=1))(lambda: "ok"))

    with heard(app, limit_event) as events, heard(app, subject_banned) as banned:
        statuses(app, *["/"] * 2)

    assert [told["subjects"] for _, told in sent] == [{"user": user}] * 3
    assert [each["event"].subjects for _, each in events] == [{"user": user}] * 2
    assert [each["subject"] for _, each in banned] == [user]


def test_signal_does_not_name_the_subject_of_several_parts_that_a_client_chose_to_look_like(
    app: Flask, sent: Sent
) -> None:
    MultiLimit(app)
    tenant = lambda: request.args["tenant"]  # noqa: E731
    app.add_url_rule("/both", "both", rate_limiter(type=(LimitType.IP, tenant), name="tenant")(lambda: "ok"))
    app.add_url_rule("/one", "one", rate_limiter(type=tenant, name="tenant")(lambda: "ok"))
    statuses(app, "/both?tenant=ours")

    statuses(app, f"/one?tenant={sent[0][1]['subjects']['tenant']}", environ_base={"REMOTE_ADDR": "192.0.2.1"})

    assert sent[1][1]["subjects"] != sent[0][1]["subjects"]


def test_signal_has_no_subject_of_a_limiter_that_does_not_apply(limited_app: Flask, sent: Sent) -> None:
    exempt = rate_limiter(type=LimitType.IP, exempt_when=lambda: True)
    without_subject = rate_limiter(type=lambda: None, name="tenant")
    limited_app.add_url_rule("/", "view", exempt(without_subject(rate_limiter()(lambda: "ok"))))

    limited_app.test_client().get("/")

    assert sent[0][1]["subjects"] == {"default": ""}


def test_exempt_request_sends_no_signal(limited_app: Flask, sent: Sent) -> None:
    client = limit(limited_app, exempt_when=lambda: True)
    client.get("/")
    assert sent == []


def test_signal_names_a_function_by_module_and_name(limited_app: Flask, sent: Sent) -> None:
    @rate_limiter()
    def service() -> None: ...

    with limited_app.app_context():
        service()

    assert sent[0][1]["endpoint"].endswith(
        "test_signals:test_signal_names_a_function_by_module_and_name.<locals>.service"
    )


def test_refusal_is_signalled_before_error_handlers_run(limited_app: Flask, sent: Sent) -> None:
    seen: list[int] = []

    @limited_app.errorhandler(RateLimitExceeded)
    def handler(_error: RateLimitExceeded) -> tuple[str, int]:
        seen.append(len(sent))
        return "no", 429

    client = limit(limited_app)

    client.get("/")
    client.get("/")

    assert seen == [3]


@pytest.mark.parametrize("is_async", [False, True])
def test_receiver_can_read_the_request(limited_app: Flask, is_async: bool) -> None:
    paths: list[str] = []

    def receiver(_: object, **__: object) -> None:
        paths.append(request.path)

    async def async_receiver(_: object, **__: object) -> None:
        paths.append(request.path)

    client = limit(limited_app)
    with limits_checked.connected_to(async_receiver if is_async else receiver):
        client.get("/?x=1")

    assert paths == ["/"]


@pytest.mark.parametrize("signal", [limits_checked, request_rejected], ids=lambda signal: signal.name)
@pytest.mark.parametrize("error", [ZeroDivisionError("broken"), RateLimitExceeded], ids=["error", "refusal"])
def test_receiver_that_raises_is_logged_and_changes_no_decision(
    limited_app: Flask, caplog: pytest.LogCaptureFixture, signal: NamedSignal, error: Exception, sent: Sent
) -> None:
    def receiver(_: object, **__: object) -> None:
        if isinstance(error, Exception):
            raise error
        abort(403)

    client = limit(limited_app)

    with signal.connected_to(receiver), caplog.at_level(logging.ERROR):
        statuses = [client.get("/").status_code for _ in range(2)]

    assert statuses == [200, 429]
    assert [name for name, _ in sent] == ["limits-checked", "limits-checked", "request-rejected"]
    assert [(record.levelname, record.name, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "shop", f"Rate limits: the receiver {name_of(receiver)} of the signal '{signal.name}' raised")
    ]
    assert all(record.exc_info is not None for record in caplog.records)


def test_each_receiver_that_raises_is_logged(limited_app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    one = raising(ZeroDivisionError)

    class Another:
        def __call__(self, _: object, **__: object) -> None:
            raise KeyError

    receivers: list[Callable[..., Any]] = [one, Another(), lambda *_, **__: [].pop(), lambda *_, **__: int("x")]
    client = limit(limited_app)

    with ExitStack() as connected:
        for receiver in receivers:
            connected.enter_context(limits_checked.connected_to(receiver))
        client.get("/")
        client.get("/")

    errors = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert sorted(map(str, errors)) == sorted(map(str, (ZeroDivisionError, KeyError, IndexError, ValueError)))


def test_failures_with_ever_new_lines_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "MOST_LINES", 3)
    app = Flask(__name__)

    for number in range(10):
        log_once_a_minute(app, ValueError(), "failure %d", number)

    assert len(app.extensions["multilimit.logged"]) <= 3
