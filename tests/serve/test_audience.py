"""Every outcome is one event, for observers and receivers of the signal; no observer changes a decision."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, abort
from flask.testing import FlaskClient

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter, signals
from flask_multilimit.engine import DenyCache, Hit, Limiter, MemoryStorage, StorageError, hits_for
from flask_multilimit.observe.events import (
    AFTERWARDS,
    OTHERS,
    OUTCOMES,
    PASSED,
    SLEPT_SECONDS,
    TURNED_AWAY,
    Refusal,
    hits_near_limit,
)
from flask_multilimit.signals import Event, limit_event
from support.asking import heard
from support.doubles import RecordingStorage
from support.waiting import until


class RecordedEvents(list[Event]):
    """An observer that keeps its events."""

    def __call__(self, event: Event, /) -> None:
        self.append(event)


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def client_of(app: Flask, storage: RecordingStorage, events: RecordedEvents) -> Callable[..., FlaskClient]:
    """Makes a client of one view with one limiter."""

    def make(view: Callable[[], Any] = lambda: "ok", **options: Any) -> FlaskClient:
        MultiLimit(app, storage=storage, observers=[events])
        app.add_url_rule("/", "view", rate_limiter(**{"rules": "1/minute", **options})(view))
        return app.test_client()

    return make


def outcomes(events: RecordedEvents) -> list[tuple[str, str, str]]:
    return [event[:3] for event in events]


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
def test_shadowed_refunded_and_aborted_requests_are_events(
    client_of: Callable[..., FlaskClient],
    events: RecordedEvents,
    options: dict[str, Any],
    view: Any,
    expected: list[str],
) -> None:
    client = client_of(view, **options)

    client.get("/")
    client.get("/")

    assert outcomes(events) == [("view", outcome, "memory") for outcome in expected]
    assert [event.passed for event in events] == [outcome != "refunded" for outcome in expected]


@pytest.mark.parametrize("policy", ["local", "allow"])
def test_decisions_of_the_fallback_are_events(
    client_of: Callable[..., FlaskClient], events: RecordedEvents, storage: RecordingStorage, policy: str
) -> None:
    client = client_of(rules="100/minute", on_storage_error=policy)
    storage.broken = True
    client.get("/")
    assert outcomes(events) == [("view", "allowed", policy)]


def test_refusal_event_names_rules_that_refuse_and_shadows_that_would(
    client_of: Callable[..., FlaskClient], events: RecordedEvents
) -> None:
    tried = rate_limiter(rules="1 per 2 hours", shadow=True)
    by_tenant = rate_limiter(type=lambda: "t1", name="tenant", rules="1/hour")
    client = client_of(tried(by_tenant(lambda: "ok")), type=LimitType.IP, rules=[Rule(60, 1), Rule(7200, 100)])

    client.get("/")
    client.get("/")

    assert events[1].outcome == "refused"
    assert events[1].rules == ("ip-60s", "tenant-3600s")
    assert events[1].refusals == [Refusal("ip-60s", "ip", "127.0.0.1"), Refusal("tenant-3600s", "tenant", "t1")]
    assert events[1].shadowed_rules == ("default-7200s",)


def test_admitted_and_refused_checks_are_events(client_of: Callable[..., FlaskClient], events: RecordedEvents) -> None:
    client = client_of(type=LimitType.IP)

    client.get("/")
    client.get("/")

    assert outcomes(events) == [("view", "allowed", "memory"), ("view", "refused", "memory")]
    allowed, refused = events
    assert (allowed.passed, refused.passed) == (True, False)
    assert (allowed.rules, refused.rules) == ((), ("ip-60s",))
    assert refused.refusals == [Refusal("ip-60s", "ip", "127.0.0.1")]
    assert refused.subjects == {"ip": "127.0.0.1"}
    assert refused.decision is not None
    assert not refused.decision.allowed
    assert refused.error is None
    assert refused.seconds > 0
    assert refused.waited == 0


def test_request_that_waits_is_an_event_with_its_wait(app: Flask, events: RecordedEvents) -> None:
    MultiLimit(app, observers=[events])
    app.add_url_rule("/", "view", rate_limiter(rules=Rule(0.05, 1), wait=5)(lambda: "ok"))
    client = app.test_client()

    def waits() -> bool:
        """A request that comes too late does not have to wait."""
        return client.get("/").status_code == 200 and events[-1].outcome != "allowed"

    until(waits, every=0)

    assert outcomes(events)[-2:] == [("view", "allowed", "memory"), ("view", "waited", "memory")]
    assert events[-2].waited == 0
    assert events[-1].waited > SLEPT_SECONDS
    assert events[-1].seconds > 0


@pytest.mark.parametrize(("policy", "error"), [("deny", "StorageDenied"), ("raise", "StorageError")])
def test_unanswered_check_is_an_event_with_its_error(
    client_of: Callable[..., FlaskClient],
    events: RecordedEvents,
    storage: RecordingStorage,
    app: Flask,
    policy: str,
    error: str,
) -> None:
    app.testing = False
    client = client_of(on_storage_error=policy)
    storage.broken = True

    status = client.get("/").status_code

    assert status == (503 if policy == "deny" else 500)
    assert outcomes(events) == [("view", "unanswered", "nobody")]
    assert type(events[0].error).__name__ == error
    assert isinstance(events[0].error, StorageError)
    assert events[0].decision is None
    assert events[0].rules == ()
    assert events[0].refusals == []


def test_refusals_of_the_deny_cache_are_events(app: Flask, events: RecordedEvents) -> None:
    MultiLimit(app, storage=DenyCache(MemoryStorage()), observers=[events])
    app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))
    client = app.test_client()

    for _ in range(3):
        client.get("/")

    assert [event.decided_by for event in events] == ["memory", "memory", "deny_cache"]


def test_events_of_a_check_and_its_refund_name_the_scope(
    app: Flask, storage: RecordingStorage, events: RecordedEvents
) -> None:
    multilimit = MultiLimit(app, storage=storage, observers=[events])

    with app.app_context():
        decision = multilimit.check("1/minute", scope="mail", subject="user:a")
        multilimit.check("1/minute", scope="sms", subject="user:a")  # its record replaces that of the first
        multilimit.refund(multilimit.refund(decision))
        multilimit.refund(multilimit.limiter.check([Hit("rate_limit:{own}", Rule(60, 1))]))

    assert [event[:2] for event in events] == [
        ("mail", "allowed"),
        ("sms", "allowed"),
        ("mail", "refunded"),
        (OTHERS, "refunded"),
    ]


@pytest.mark.parametrize(
    ("settings", "limited"),
    [({}, False), ({"MULTILIMIT_ENABLED": False}, True), ({"MULTILIMIT_ALLOW": ["127.0.0.1"]}, False)],
    ids=["no limits", "switched off", "allowed where nothing is limited"],
)
def test_request_without_limits_is_no_event(
    app: Flask, events: RecordedEvents, settings: dict[str, Any], limited: bool
) -> None:
    app.config.update(settings)
    MultiLimit(app, observers=[events])
    app.add_url_rule("/", "view", rate_limiter()(lambda: "ok") if limited else lambda: "ok")

    app.test_client().get("/")

    assert events == []


@pytest.mark.parametrize("traffic", [True, False])
def test_requests_of_allowed_and_denied_clients_are_events(
    app: Flask, events: RecordedEvents, *, traffic: bool
) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = traffic
    MultiLimit(app, observers=[events], allow=["203.0.113.0/24"], deny=["198.51.100.7"])
    app.add_url_rule("/", "view", rate_limiter()(lambda: "ok"))
    client = app.test_client()

    for address in ("203.0.113.9", "198.51.100.7", "192.0.2.1"):
        client.get("/", environ_base={"REMOTE_ADDR": address})

    assert outcomes(events) == [
        ("view", "allow_listed", "list"),
        ("view", "denied", "list"),
        ("view", "allowed", "memory"),
    ]
    assert events[0].decision is None
    assert [event.passed for event in events] == [True, False, True]


def test_events_of_unmatched_requests_share_one_endpoint(app: Flask, events: RecordedEvents) -> None:
    MultiLimit(app, observers=[events], unmatched_limits="100/minute")
    client = app.test_client()

    client.get("/a")
    client.get("/b")

    assert len({event.endpoint for event in events}) == 1


@pytest.mark.parametrize("traffic", [True, False])
def test_limit_event_signal_sends_each_event_of_the_app(
    app: Flask, storage: RecordingStorage, *, traffic: bool
) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = traffic
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "view", rate_limiter(charge_when=lambda _: False)(lambda: "ok"))

    with heard(app, limit_event) as signals:
        app.test_client().get("/")

    assert [told["event"].outcome for _, told in signals] == ["allowed", "refunded"]
    assert signals[0][1]["event"].seconds > 0


def test_observer_that_raises_is_logged_once_a_minute_and_the_request_goes_on(
    app: Flask, events: RecordedEvents, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_event: Event) -> None:
        raise RuntimeError("no")

    now = [0.0]
    monkeypatch.setattr(signals, "monotonic", lambda: now[0])
    MultiLimit(app, observers=[broken, events])
    app.add_url_rule("/", "view", rate_limiter()(lambda: "ok"))

    for now[0] in (0, 59, 60, 61, 121):
        assert app.test_client().get("/").status_code == 200

    assert len(events) == 5
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert "broken" in caplog.text
    assert "RuntimeError: no" in caplog.text


def test_observer_that_is_not_callable_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="observers"):
        MultiLimit(observers=["prometheus"])  # type: ignore[list-item]


def test_observer_that_cannot_be_attached_is_an_error_at_start_up(app: Flask) -> None:
    class Refusing:
        def attach(self, watched: Any) -> None:
            raise ConfigurationError(f"not to {watched.name}")

        def __call__(self, event: Event, /) -> None: ...

    with pytest.raises(ConfigurationError, match="not to shop"):
        MultiLimit(app, observers=[Refusing()])


def test_observer_can_read_name_health_and_leases_of_its_app(app: Flask, storage: RecordingStorage) -> None:
    found: list[Any] = []

    class Asking(RecordedEvents):
        def attach(self, watched: Any) -> None:
            found.append(watched)

    MultiLimit(app, storage=storage, observers=[Asking()])

    (watched,) = found
    assert watched.name == "shop"
    assert watched.health().state == "working"
    assert watched.leases() == 0


def test_rule_is_near_its_limit_from_80_percent_on(storage: RecordingStorage) -> None:
    limiter, near = Limiter(storage), []
    for _ in range(11):
        decision = limiter.check(hits_for("10/minute", scope="a"))
        near.append(bool(hits_near_limit(decision)))

    assert near == [False] * 8 + [True, True] + [False], "the last is refused"


def test_every_outcome_is_classified_and_none_both_passed_and_turned_away() -> None:
    assert frozenset(OUTCOMES) == PASSED | TURNED_AWAY | AFTERWARDS
    assert not PASSED & TURNED_AWAY
