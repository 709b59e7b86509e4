"""Every outcome is one event, told once, whoever decided; and nobody who is told changes a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, abort

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import DenyCache, Limiter, MemoryStorage, StorageError, hits_for
from flask_multilimit.observe.events import (
    AFTERWARDS,
    OUTCOMES,
    PASSED,
    SLEPT_SECONDS,
    TURNED_AWAY,
    Refusal,
    hits_near_limit,
)
from flask_multilimit.serve import audience
from flask_multilimit.signals import Event, limit_event
from support.doubles import RecordingStorage
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask.testing import FlaskClient

    from support.clock import Clock


class Told(list[Event]):
    """An observer that keeps what it is told."""

    def __call__(self, event: Event, /) -> None:
        self.append(event)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def client_of(app: Flask, storage: RecordingStorage, told: Told) -> Callable[..., FlaskClient]:
    """Makes a client of one view with one limiter."""

    def make(view: Callable[[], Any] = lambda: "ok", **options: Any) -> FlaskClient:
        MultiLimit(app, storage=storage, observers=[told])
        app.add_url_rule("/", "view", rate_limiter(**{"rules": "1/minute", **options})(view))
        return app.test_client()

    return make


def outcomes(told: Told) -> list[tuple[str, str, str]]:
    return [event[:3] for event in told]


REFUND_ALL: dict[str, Any] = {"rules": "5/minute", "charge_when": [401]}


@pytest.mark.parametrize(
    ("options", "view", "expected"),
    [
        ({"shadow": True}, lambda: "ok", ["allowed", "shadowed"]),
        (REFUND_ALL, lambda: "ok", ["allowed", "refunded"] * 2),
        ({"rules": "5/minute"}, lambda: abort(404), ["allowed"] * 2),
    ],
    ids=["shadow", "refund", "abort in the view"],
)
def test_each_outcome_is_an_event(
    client_of: Callable[..., FlaskClient], told: Told, options: dict[str, Any], view: Any, expected: list[str]
) -> None:
    client = client_of(view, **options)

    client.get("/")
    client.get("/")

    assert outcomes(told) == [("view", outcome, "memory") for outcome in expected]
    assert [event.passed for event in told] == [outcome != "refunded" for outcome in expected]


@pytest.mark.parametrize("policy", ["local", "allow"])
def test_decisions_of_the_fallback_are_events(
    client_of: Callable[..., FlaskClient], told: Told, storage: RecordingStorage, policy: str
) -> None:
    client = client_of(rules="100/minute", on_storage_error=policy)
    storage.broken = True

    client.get("/")

    assert outcomes(told) == [("view", "allowed", policy)]


def test_a_refusal_names_every_rule_that_refuses_and_every_shadow_that_would(
    client_of: Callable[..., FlaskClient], told: Told
) -> None:
    tried = rate_limiter(rules="1 per 2 hours", shadow=True)
    by_tenant = rate_limiter(type=lambda: "t1", name="tenant", rules="1/hour")
    client = client_of(tried(by_tenant(lambda: "ok")), type=LimitType.IP, rules=[Rule(60, 1), Rule(7200, 100)])

    client.get("/")
    client.get("/")

    assert told[1].outcome == "refused"
    assert told[1].rules == ("ip-60s", "tenant-3600s")
    assert told[1].refusals == [Refusal("ip-60s", "ip", "127.0.0.1"), Refusal("tenant-3600s", "tenant", "t1")]
    assert told[1].shadowed_rules == ("default-7200s",)


def test_admitted_and_refused_checks_are_events(client_of: Callable[..., FlaskClient], told: Told) -> None:
    client = client_of(type=LimitType.IP)

    client.get("/")
    client.get("/")

    assert outcomes(told) == [("view", "allowed", "memory"), ("view", "refused", "memory")]
    allowed, refused = told
    assert (allowed.passed, refused.passed) == (True, False)
    assert (allowed.rules, refused.rules) == ((), ("ip-60s",))
    assert refused.refusals == [Refusal("ip-60s", "ip", "127.0.0.1")]
    assert refused.subjects == {"ip": "127.0.0.1"}
    assert refused.decision is not None
    assert not refused.decision.allowed
    assert refused.error is None
    assert refused.seconds > 0
    assert refused.waited == 0


def test_who_is_kept_asleep(app: Flask, told: Told) -> None:
    MultiLimit(app, observers=[told])
    app.add_url_rule("/", "view", rate_limiter(rules=Rule(0.05, 1), wait=5)(lambda: "ok"))
    client = app.test_client()

    def waits() -> bool:
        """Unless it comes so late that it need not."""
        return client.get("/").status_code == 200 and told[-1].outcome != "allowed"

    until(waits, every=0)

    assert outcomes(told)[-2:] == [("view", "allowed", "memory"), ("view", "waited", "memory")]
    assert told[-2].waited == 0
    assert told[-1].waited > SLEPT_SECONDS
    assert told[-1].seconds > 0


@pytest.mark.parametrize(("policy", "error"), [("deny", "StorageDenied"), ("raise", "StorageError")])
def test_a_check_that_storage_does_not_answer(
    client_of: Callable[..., FlaskClient], told: Told, storage: RecordingStorage, app: Flask, policy: str, error: str
) -> None:
    app.testing = False
    client = client_of(on_storage_error=policy)
    storage.broken = True

    status = client.get("/").status_code

    assert status == (503 if policy == "deny" else 500)
    assert outcomes(told) == [("view", "unanswered", "nobody")]
    assert type(told[0].error).__name__ == error
    assert isinstance(told[0].error, StorageError)
    assert told[0].decision is None
    assert told[0].rules == ()
    assert told[0].refusals == []


def test_refusals_of_the_deny_cache_are_events(app: Flask, told: Told) -> None:
    MultiLimit(app, storage=DenyCache(MemoryStorage()), observers=[told])
    app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))
    client = app.test_client()

    for _ in range(3):
        client.get("/")

    assert [event.decided_by for event in told] == ["memory", "memory", "deny_cache"]


def test_a_check_on_the_spot_and_its_refund_are_told_by_their_scope(
    app: Flask, storage: RecordingStorage, told: Told
) -> None:
    multilimit = MultiLimit(app, storage=storage, observers=[told])

    with app.app_context():
        decision = multilimit.check("1/minute", scope="mail", subject="a")
        multilimit.refund(multilimit.refund(decision))

    assert [event[:2] for event in told] == [("mail", "allowed"), ("mail", "refunded")]


@pytest.mark.parametrize(
    ("settings", "limited"),
    [({}, False), ({"MULTILIMIT_ENABLED": False}, True), ({"MULTILIMIT_ALLOW": ["127.0.0.1"]}, False)],
    ids=["no limits", "switched off", "allowed where nothing is limited"],
)
def test_a_request_that_nothing_could_limit_is_told_to_nobody(
    app: Flask, told: Told, settings: dict[str, Any], limited: bool
) -> None:
    app.config.update(settings)
    MultiLimit(app, observers=[told])
    app.add_url_rule("/", "view", rate_limiter()(lambda: "ok") if limited else lambda: "ok")

    app.test_client().get("/")

    assert told == []


@pytest.mark.parametrize("traffic", [True, False])
def test_who_is_on_a_list(app: Flask, told: Told, *, traffic: bool) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = traffic
    MultiLimit(app, observers=[told], allow=["203.0.113.0/24"], deny=["198.51.100.7"])
    app.add_url_rule("/", "view", rate_limiter()(lambda: "ok"))
    client = app.test_client()

    for address in ("203.0.113.9", "198.51.100.7", "192.0.2.1"):
        client.get("/", environ_base={"REMOTE_ADDR": address})

    assert outcomes(told) == [
        ("view", "allow_listed", "list"),
        ("view", "denied", "list"),
        ("view", "allowed", "memory"),
    ]
    assert told[0].decision is None
    assert [event.passed for event in told] == [True, False, True]


def test_unmatched_requests_have_one_endpoint(app: Flask, told: Told) -> None:
    MultiLimit(app, observers=[told], unmatched_limits="100/minute")
    client = app.test_client()

    client.get("/a")
    client.get("/b")

    assert len({event.endpoint for event in told}) == 1


@pytest.mark.parametrize("traffic", [True, False])
def test_receivers_of_the_signal_are_told_the_same(app: Flask, storage: RecordingStorage, *, traffic: bool) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = traffic
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", rate_limiter(charge_when=lambda _: False)(lambda: "ok"))
    heard: list[tuple[object, Event]] = []

    def receiver(sender: object, event: Event) -> None:
        heard.append((sender, event))

    with limit_event.connected_to(receiver):
        app.test_client().get("/")

    assert [(sender, event.outcome) for sender, event in heard] == [(app, "allowed"), (app, "refunded")]
    assert heard[0][1].seconds > 0


def test_an_observer_that_raises_is_logged_once_a_minute_and_the_request_goes_on(
    app: Flask, told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_event: Event) -> None:
        raise RuntimeError("no")

    now = [0.0]
    monkeypatch.setattr(audience, "monotonic", lambda: now[0])
    MultiLimit(app, observers=[broken, told])
    app.add_url_rule("/", "view", rate_limiter()(lambda: "ok"))

    for now[0] in (0, 59, 60, 61, 121):
        assert app.test_client().get("/").status_code == 200

    assert len(told) == 5
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "broken" in caplog.text
    assert "RuntimeError: no" in caplog.text


def test_an_observer_that_cannot_be_called_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="observers"):
        MultiLimit(observers=["prometheus"])  # type: ignore[list-item]


def test_an_observer_that_cannot_be_attached_stops_the_start(app: Flask) -> None:
    class Refusing:
        def attach(self, watched: Any) -> None:
            raise ConfigurationError(f"not to {watched.name}")

        def __call__(self, event: Event, /) -> None: ...

    with pytest.raises(ConfigurationError, match="not to shop"):
        MultiLimit(app, observers=[Refusing()])


def test_an_observer_may_ask_about_the_app(app: Flask, storage: RecordingStorage) -> None:
    found: list[Any] = []

    class Asking(Told):
        def attach(self, watched: Any) -> None:
            found.append(watched)

    MultiLimit(app, storage=storage, observers=[Asking()])

    (watched,) = found
    assert watched.name == "shop"
    assert watched.health().state == "working"
    assert watched.leases() == 0


def test_a_rule_is_near_its_limit_from_80_percent_on(storage: RecordingStorage, clock: Clock) -> None:
    del clock
    limiter, near = Limiter(storage), []
    for _ in range(11):
        decision = limiter.check(hits_for("10/minute", scope="a"))
        near.append(bool(hits_near_limit(decision)))

    assert near == [False] * 8 + [True, True] + [False], "the last is refused"


def test_each_outcome_is_one_of_three_kinds() -> None:
    assert frozenset(OUTCOMES) == PASSED | TURNED_AWAY | AFTERWARDS
    assert not PASSED & TURNED_AWAY
