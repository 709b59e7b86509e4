"""Metrics of Prometheus: what is scraped is what happened."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from flask_multilimit import Ban, ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.observe import metrics as table
from flask_multilimit.observe.events import OTHERS
from flask_multilimit.observe.prometheus import PrometheusMetrics
from flask_multilimit.observe.traffic import flushing
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import Event
from support.doubles import RecordingStorage
from support.forks import forked
from support.waiting import until


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> PrometheusMetrics:
    return PrometheusMetrics(registry=registry)


def client_of(app: Flask, metrics: PrometheusMetrics, **options: Any) -> FlaskClient:
    limiter = {"type": LimitType.IP, "rules": "3/hour"}
    limiter.update(options.pop("limiter", {}))
    MultiLimit(app, observers=[metrics], **options)
    app.add_url_rule("/", "view", rate_limiter(**limiter)(lambda: "ok"))  # type: ignore[arg-type]
    return app.test_client()


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """The values of one metric, by its labels in the order of their names."""
    text = generate_latest(registry).decode()
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def settling(units: int) -> dict[str, Any]:
    return {"limiter": {"rules": "100/hour", "cost": 10, "settle": lambda _: units}}


OF_RULE, OF_BAN = ("view", "ip-3600s"), ("view", "ip-ban")
SHOWN: dict[str, tuple[dict[str, Any], int, dict[str, dict[tuple[str, ...], int]]]] = {
    "admitted and refused": (
        *({}, 10),
        {
            "checks_total": {("memory", "view", "allowed"): 3, ("memory", "view", "refused"): 7},
            "refusals_total": {OF_RULE: 7},
            "near_limit_total": {OF_RULE: 1},
            "check_seconds_count": {("memory",): 10},
        },
    ),
    "a shadow": (
        *({"limiter": {"shadow": True}}, 5),
        {
            "checks_total": {("memory", "view", "allowed"): 3, ("memory", "view", "shadowed"): 2},
            "shadow_refusals_total": {OF_RULE: 2},
            "refusals_total": {},
        },
    ),
    "refunds are no checks": (
        *({"limiter": {"charge_when": lambda _: False}}, 5),
        {
            "checks_total": {("memory", "view", "allowed"): 5},
            "refunds_total": {("view",): 5},
            "check_seconds_count": {("memory",): 5},
        },
    ),
    "returned": (settling(4), 2, {"settled_units_total": {("returned", *OF_RULE): 12}}),
    "all returned": (settling(0), 2, {"settled_units_total": {("returned", *OF_RULE): 20}}),
    "added": (settling(13), 2, {"settled_units_total": {("added", *OF_RULE): 6}}),
    "as estimated": (settling(10), 2, {"settled_units_total": {}}),
    "a list takes no time": (
        *({"deny": ["127.0.0.1"]}, 1),
        {"checks_total": {("list", "view", "denied"): 1}, "check_seconds_count": {}},
    ),
    "a ban": (
        *({"limiter": {"rules": "1/hour", "ban": Ban(after=2, within=60, time=600)}}, 5),
        {
            "checks_total": {
                ("memory", "view", each): n for each, n in (("allowed", 1), ("refused", 1), ("banned", 3))
            },
            "bans_total": {OF_BAN: 1},
            "bans_in_force": {("shop", *OF_BAN): 1},
        },
    ),
    "the ban of a shadow": (
        *({"limiter": {"rules": "1/hour", "ban": Ban(after=1), "shadow": True}}, 3),
        {"bans_total": {}, "bans_in_force": {}},
    ),
}
"""Options of the app, the number of requests, and what metrics show of them."""


@pytest.mark.parametrize(("options", "requests", "shown"), SHOWN.values(), ids=SHOWN)
def test_metrics_count_outcomes_of_requests(
    app: Flask,
    metrics: PrometheusMetrics,
    registry: CollectorRegistry,
    options: dict[str, Any],
    requests: int,
    shown: dict[str, Any],
) -> None:
    client = client_of(app, metrics, **options)
    for _ in range(requests):
        client.get("/")
    gate_of(app).audience.background.once()

    assert {name: samples(registry, f"multilimit_{name}") for name in shown} == shown


def test_metrics_show_that_storage_is_down(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry, storage: RecordingStorage
) -> None:
    client = client_of(app, metrics, storage=storage, limiter={"rules": "100/hour"})
    client.get("/")
    before = samples(registry, "multilimit_storage_up")
    storage.broken = True
    for _ in range(3):
        client.get("/")

    assert before == {("shop",): 1}
    assert samples(registry, "multilimit_storage_up") == {("shop",): 0}
    states = samples(registry, "multilimit_storage_breaker")
    assert set(states) == {("shop", "closed"), ("shop", "half-open"), ("shop", "open")}
    assert states["shop", "closed"] == 0
    assert sum(states.values()) == 1
    assert samples(registry, "multilimit_pending_charges")["shop",] == 3
    assert samples(registry, "multilimit_fallback_keys")["shop",] == 1
    assert samples(registry, "multilimit_checks_total")["local", "view", "allowed"] == 3


@pytest.mark.usefixtures("redis_client")
def test_metrics_show_leases(app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry, server: Any) -> None:
    app.config["MULTILIMIT_STORAGE_TIMEOUT"] = 10
    client = client_of(
        app, metrics, storage=server.url, limiter={"rules": Rule(3600, 10_000, lease=10), "type": LimitType.IP}
    )
    for _ in range(3):
        client.get("/")

    assert samples(registry, "multilimit_leases") == {("shop",): 1}


def test_metrics_show_bans_in_force_until_they_end(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After their end, the metric is 0."""
    ban = Ban(after=1, within=60, time=600)
    client = client_of(app, metrics, limiter={"rules": "1/hour", "type": LimitType.IP, "ban": ban})
    for number in (1, 1, 1, 2, 2, 3):
        client.get("/", environ_base={"REMOTE_ADDR": f"203.0.113.{number}"})
    watched = gate_of(app).audience
    watched.background.once()

    assert samples(registry, "multilimit_bans_in_force") == {("shop", "view", "ip-ban"): 2}
    monkeypatch.setattr(watched, "bans", dict)
    assert samples(registry, "multilimit_bans_in_force") == {("shop", "view", "ip-ban"): 0}


def test_metric_of_bans_in_force_ignores_a_reset(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    """As the reference says: only the end of a ban is noted, and not whose ban it is."""
    client = client_of(app, metrics, limiter={"rules": "1/hour", "ban": Ban(after=1, time=600)})
    for _ in range(2):
        client.get("/")
    with app.app_context():
        app.extensions["multilimit"].reset("view", "ip:127.0.0.1")
    gate_of(app).audience.background.once()

    assert client.get("/").status_code == 200
    assert samples(registry, "multilimit_bans_in_force") == {("shop", "view", "ip-ban"): 1}


def test_new_process_shows_bans_in_force_before_its_first_check(
    app: Flask, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "SECONDS", 0.01)
    storage = MemoryStorage()
    limiter = {"rules": "1/hour", "type": LimitType.IP, "ban": Ban(after=1, within=60, time=600)}
    client = client_of(app, PrometheusMetrics(registry=CollectorRegistry()), storage=storage, limiter=limiter)
    for _ in range(2):
        client.get("/")
    gate_of(app).audience.background.once()
    other = Flask("shop")
    client_of(other, PrometheusMetrics(registry=registry), storage=storage, limiter=limiter).get("/static/no")

    until(lambda: samples(registry, "multilimit_bans_in_force") == {("shop", "view", "ip-ban"): 1})
    assert samples(registry, "multilimit_checks_total") == {}


def test_shadow_ban_beside_a_real_ban_is_not_counted(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    MultiLimit(app, observers=[metrics])
    trial = rate_limiter(type=LimitType.IP, name="trial", rules="1/hour", ban=Ban(after=1), shadow=True, scope="trial")
    real = rate_limiter(type=LimitType.IP, rules="1/hour", ban=Ban(after=1))
    app.add_url_rule("/", "view", trial(real(lambda: "ok")))
    for _ in range(2):
        app.test_client().get("/")
    gate_of(app).audience.background.once()

    assert samples(registry, "multilimit_bans_total") == {("view", "ip-ban"): 1}
    assert samples(registry, "multilimit_bans_in_force") == {("shop", "view", "ip-ban"): 1}


def test_labels_of_bans_in_force_are_bounded(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_NAMES", 0)
    client_of(app, metrics)
    held = {("login", "ip-ban"): 2, ("signup", "ip-ban"): 3}
    monkeypatch.setattr(gate_of(app).audience, "bans", lambda: held)
    metrics.flush()

    assert samples(registry, "multilimit_bans_in_force") == {("shop", OTHERS, OTHERS): 5}


def test_bans_in_force_have_no_metric_without_traffic(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = False
    client = client_of(app, metrics, limiter={"rules": "1/hour", "type": LimitType.IP, "ban": Ban(after=1)})
    for _ in range(3):
        client.get("/")
    gate_of(app).audience.background.once()

    assert samples(registry, "multilimit_bans_total") == {("view", "ip-ban"): 1}
    assert samples(registry, "multilimit_bans_in_force") == {}


def test_metrics_show_entries_of_control_in_force(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    client_of(app, metrics).get("/")
    kinds = ("allow", "ban", "deny", "override")
    before = samples(registry, "multilimit_control_entries")
    control = gate_of(app).applier.control
    control.ban("203.0.113.7", reason="an attack", for_="5 minutes")
    control.ban("203.0.113.8", reason="an attack", for_="5 minutes")
    entry = control.deny("203.0.113.0/24", reason="an attack", for_="5 minutes")

    assert before == {("shop", kind): 0 for kind in kinds}
    assert samples(registry, "multilimit_control_entries") == dict(
        zip((("shop", kind) for kind in kinds), (0, 2, 1, 0), strict=True)
    )
    control.undo(entry.id, reason="over")
    assert samples(registry, "multilimit_control_entries")["shop", "deny"] == 0


def test_metrics_show_version_and_age_of_control(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    client = client_of(app, metrics)
    client.get("/")
    assert samples(registry, "multilimit_control_version") == {("shop",): 0}

    gate_of(app).applier.control.deny("203.0.113.0/24", reason="an attack", for_="5 minutes")

    assert samples(registry, "multilimit_control_version") == {("shop",): 1}
    (age,) = samples(registry, "multilimit_control_age_seconds").values()
    assert 0 <= age < 60


def test_control_has_no_metrics_when_switched_off(
    app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry
) -> None:
    app.config["MULTILIMIT_CONTROL"] = False
    client_of(app, metrics).get("/")

    assert samples(registry, "multilimit_control_version") == {}


def test_subjects_are_never_labels(app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry) -> None:
    client = client_of(app, metrics)
    for address in ("203.0.113.1", "203.0.113.2"):
        for _ in range(5):
            client.get("/", environ_base={"REMOTE_ADDR": address})
    for _ in range(2):  # counts are sent, then read
        gate_of(app).audience.background.once()

    text = generate_latest(registry).decode()

    assert "multilimit_top_subject_share{" in text
    assert "203.0.113" not in text


def test_labels_are_bounded(
    metrics: PrometheusMetrics, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_NAMES", 3)
    for number in range(10):
        metrics(Event(f"mail-{number}", "unanswered", "nobody", None, 0.1, 0.0, (), None))
        metrics.flush()

    found = samples(registry, "multilimit_checks_total")
    assert len(found) == 4
    assert found["nobody", OTHERS, "unanswered"] == 7


def test_histogram_has_seconds_and_the_given_buckets(registry: CollectorRegistry) -> None:
    metrics = PrometheusMetrics(registry=registry, buckets=(0.001, 0.01))
    for seconds in (0.0005, 0.005, 0.05):
        metrics(Event("view", "unanswered", "nobody", None, seconds, 0.0, (), None))

    assert samples(registry, "multilimit_check_seconds_bucket") == {
        ("nobody", "0.001"): 1,
        ("nobody", "0.01"): 2,
        ("nobody", "+Inf"): 3,
    }


def test_scrape_is_valid_open_metrics(app: Flask, metrics: PrometheusMetrics, registry: CollectorRegistry) -> None:
    client_of(app, metrics).get("/")

    text = generate_open_metrics(registry).decode()  # type: ignore[no-untyped-call]
    assert text.endswith("# EOF\n")
    assert 'multilimit_checks_total{decided_by="memory",endpoint="view",outcome="allowed"} 1.0' in text


def test_registry_with_the_same_names_is_an_error_and_unchanged(registry: CollectorRegistry) -> None:
    Counter("multilimit_near_limit", "Somebody else's.", registry=registry)
    before = generate_latest(registry)

    with pytest.raises(ConfigurationError, match=r"multilimit_near_limit.*Give one object to all apps"):
        PrometheusMetrics(registry=registry)

    assert generate_latest(registry) == before
    PrometheusMetrics(registry=registry, namespace="shop")


@pytest.mark.parametrize("namespace", ["shop-limits", "1x", "", "a b", "x\n", None])
def test_invalid_namespace_is_an_error(registry: CollectorRegistry, namespace: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"namespace=.*: give a letter, then"):
        PrometheusMetrics(registry=registry, namespace=namespace)

    assert generate_latest(registry) == b""


@pytest.mark.parametrize("buckets", [(), (1, 0.5), (1, 1), (float("nan"),), (0.1, float("nan"), 1)], ids=str)
def test_invalid_buckets_are_an_error(registry: CollectorRegistry, buckets: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"buckets=.*: (give at least one|each must be more)"):
        PrometheusMetrics(registry=registry, buckets=buckets)


def test_one_object_may_observe_several_apps(metrics: PrometheusMetrics, registry: CollectorRegistry) -> None:
    for name in ("one", "two"):
        app = Flask(name)
        client_of(app, metrics).get("/")

    assert samples(registry, "multilimit_checks_total") == {("memory", "view", "allowed"): 2}
    assert samples(registry, "multilimit_storage_up") == {("one",): 1, ("two",): 1}


def test_counts_before_a_fork_stay_with_the_parent(metrics: PrometheusMetrics, registry: CollectorRegistry) -> None:
    event = Event("view", "unanswered", "nobody", None, 0.1, 0.0, (), None)
    metrics(event)

    def count_twice() -> list[float]:
        metrics(event)
        metrics(event)
        return [
            sum(samples(registry, f"multilimit_{name}").values()) for name in ("checks_total", "check_seconds_count")
        ]

    assert forked(count_twice)() == [2, 2]
    assert sum(samples(registry, "multilimit_checks_total").values()) == 1


@pytest.mark.parametrize(
    ("type_", "clients", "share"),
    [(LimitType.IP, [9], 1.0), (LimitType.IP, [9, 5], 0.75), (LimitType.DEFAULT, [9], 0.0)],
    ids=["one client", "two clients", "limit of everyone"],
)
def test_top_subject_share_is_that_of_the_most_refused_client(
    app: Flask,
    metrics: PrometheusMetrics,
    registry: CollectorRegistry,
    type_: LimitType,
    clients: list[int],
    share: float,
) -> None:
    client = client_of(app, metrics, limiter={"type": type_})
    for number, times in enumerate(clients):
        for _ in range(times):
            client.get("/", environ_base={"REMOTE_ADDR": f"203.0.113.{number}"})
    for _ in range(2):  # counts are sent, then read
        gate_of(app).audience.background.once()

    assert samples(registry, "multilimit_top_subject_share") == {(app.name, "view"): share}
