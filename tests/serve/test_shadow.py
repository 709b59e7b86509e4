"""`shadow=True`: evaluated, counted, signalled, shown on request, never refusing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask

from flask_multilimit import Decision, LimitType, MultiLimit, current_decision, rate_limiter
from flask_multilimit.signals import limits_checked, request_rejected, shadow_rejected
from support.asking import ask, policy, statuses, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.clock import Clock


@pytest.fixture
def sent(app: Flask) -> Iterator[list[tuple[str, list[str]]]]:
    """The name of each signal, and the shadows that would have refused."""
    told: list[tuple[str, list[str]]] = []

    def receiver_of(name: str) -> Any:
        def receive(_app: Flask, *, decision: Decision, **_: Any) -> None:
            told.append((name, [status.name for status in decision.shadowed]))

        return receive

    receivers = {signal: receiver_of(signal.name) for signal in (limits_checked, request_rejected, shadow_rejected)}
    for signal, receiver in receivers.items():
        signal.connect(receiver, app)
    yield told
    for signal, receiver in receivers.items():
        signal.disconnect(receiver, app)


def test_a_shadow_is_signalled_when_it_would_have_refused(
    app: Flask, any_storage: Any, sent: list[tuple[str, list[str]]], clock: Clock
) -> None:
    MultiLimit(app, storage=any_storage)
    app.add_url_rule("/", "view", rate_limiter(rules="1/minute", shadow=True, name="trial")(view()))

    for seconds in (0, 0, 60):
        clock.advance(seconds)
        ask(app)

    assert sent == [
        ("limits-checked", []),
        ("limits-checked", ["trial-60s"]),
        ("shadow-rejected", ["trial-60s"]),
        ("limits-checked", []),
    ]


def test_counts_like_the_limit_that_it_tries_out(app: Flask, any_storage: Any) -> None:
    """What it would have refused is not charged, so it says the same as the limit will once it is in earnest."""
    MultiLimit(app, storage=any_storage)
    tried = rate_limiter(rules="2/minute", shadow=True, scope="trial")
    real = rate_limiter(rules="2/minute", scope="trial")
    app.add_url_rule("/", "view", tried(lambda: ",".join(str(status.allowed) for status in current_decision.statuses)))
    app.add_url_rule("/real", "real", real(view()))

    assert [ask(app).text for _ in range(3)] == ["True", "True", "False"]
    assert statuses(app, "/real") == [429]


def test_a_shadow_is_not_charged_by_what_another_limit_refuses(app: Flask, any_storage: Any, clock: Clock) -> None:
    app.config["MULTILIMIT_SHADOW_HEADERS"] = True
    MultiLimit(app, storage=any_storage)
    shadow, earnest = rate_limiter(rules="9/minute", shadow=True), rate_limiter(type=LimitType.IP, rules="1/second")
    app.add_url_rule("/", "view", shadow(earnest(view())))

    statuses(app, "/", "/", "/")
    clock.advance(1)

    assert '"default-60s";r=7' in ask(app).headers["RateLimit"]


def test_a_shadow_is_in_header_fields_only_on_request(app: Flask, any_storage: Any) -> None:
    other = Flask("other")
    other.config["MULTILIMIT_SHADOW_HEADERS"] = True
    for each in (app, other):
        MultiLimit(each, storage=any_storage)
        shadow = rate_limiter(rules="1/minute", shadow=True, name="trial")
        each.add_url_rule("/", "view", shadow(rate_limiter(rules="9/hour")(view())))
        each.add_url_rule("/alone", "alone", rate_limiter(rules="1/minute", shadow=True)(view()))

    assert policy(ask(app)) == ["default-3600s"]
    assert policy(ask(app, "/alone")) == []
    assert policy(ask(other)) == ["trial-60s", "default-3600s"]
    assert ask(other, "/alone").headers["RateLimit"] == '"default-60s";r=0;t=60'


def test_shadows_of_every_level_refuse_nobody(app: Flask, any_storage: Any, sent: list[tuple[str, list[str]]]) -> None:
    shadow = {"rules": "1/minute", "shadow": True}
    app.config |= {"MULTILIMIT_LIMITS": {"view": {**shadow, "rules": "1/hour"}}, "MULTILIMIT_SHADOW_HEADERS": True}
    MultiLimit(app, storage=any_storage, application_limits=shadow, unmatched_limits=shadow)
    app.add_url_rule("/", "view", view())

    assert statuses(app, "/", "/") == [200, 200]
    assert statuses(app, "/no", "/no") == [404, 404]
    assert ("shadow-rejected", ["application-60s", "default-3600s"]) in sent


def test_does_not_wait_and_calls_no_one(app: Flask, any_storage: Any) -> None:
    def never(_: Any) -> Any:
        raise AssertionError("nobody has been refused")

    MultiLimit(app, storage=any_storage, on_rejected=never)
    app.add_url_rule("/", "view", rate_limiter(rules="1/minute", shadow=True, wait=30, on_rejected=never)(view()))

    assert statuses(app, "/", "/") == [200, 200]
