"""Metrics of Prometheus: what is scraped is what happened."""

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest
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
from support.asking import pass_a_second
from support.doubles import RecordingStorage
from support.forks import forked
from support.waiting import until


class Shop:
    """An app with one limited view, whose metrics are scraped."""

    def __init__(self, app: Flask, **buckets: Any) -> None:
        self.app = app
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(registry=self.registry, **buckets)

    def limit(self, *, storage: Any = None, deny: tuple[str, ...] = (), **limiter: Any) -> FlaskClient:
        MultiLimit(self.app, observers=[self.metrics], storage=storage, deny=deny)
        view = rate_limiter(**{"type": LimitType.IP, "rules": "3/hour", **limiter})(lambda: "ok")
        self.app.add_url_rule("/", "view", view)
        return self.app.test_client()

    def pass_a_second(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            pass_a_second(self.app)

    def shows(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of one metric, by its labels in the order of their names."""
        text = generate_latest(self.registry).decode()
        return {
            tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"multilimit_{name}"
        }


@pytest.fixture
def shop(app: Flask) -> Shop:
    return Shop(app)


def unanswered(endpoint: str = "view", seconds: float = 0.1) -> Event:
    return Event(endpoint, "unanswered", "nobody", None, seconds, 0.0, (), None)


def settling(units: int) -> dict[str, Any]:
    return {"rules": "100/hour", "cost": 10, "settle": lambda _: units}


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
    "two rules refuse": (
        *({"rules": "2/minute; 3/hour", "cost": 2}, 2),
        {"refusals_total": {OF_RULE: 1, ("view", "ip-60s"): 1}},
    ),
    "a shadow": (
        *({"shadow": True}, 5),
        {
            "checks_total": {("memory", "view", "allowed"): 3, ("memory", "view", "shadowed"): 2},
            "shadow_refusals_total": {OF_RULE: 2},
            "refusals_total": {},
        },
    ),
    "refunds are no checks": (
        *({"charge_when": lambda _: False}, 5),
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
        *({"rules": "1/hour", "ban": Ban(after=2, within=60, time=600)}, 5),
        {
            "checks_total": {
                ("memory", "view", each): n for each, n in (("allowed", 1), ("refused", 1), ("banned", 3))
            },
            "bans_total": {OF_BAN: 1},
            "bans_in_force": {("shop", *OF_BAN): 1},
        },
    ),
    "the ban of a shadow": (
        *({"rules": "1/hour", "ban": Ban(after=1), "shadow": True}, 3),
        {"bans_total": {}, "bans_in_force": {}},
    ),
    "a ban without traffic": (
        *({"rules": "1/hour", "ban": Ban(after=1), "settings": {"TRAFFIC": False}}, 3),
        {"bans_total": {OF_BAN: 1}, "bans_in_force": {}},
    ),
    "control": ({}, 1, {"control_version": {("shop",): 0}}),
    "control switched off": ({"settings": {"CONTROL": False}}, 1, {"control_version": {}}),
}
"""Options of the app, the number of requests, and what metrics show of them."""


@pytest.mark.parametrize(("options", "requests", "shown"), SHOWN.values(), ids=SHOWN)
def test_metrics_count_outcomes_of_requests(
    shop: Shop, options: dict[str, Any], requests: int, shown: dict[str, Any]
) -> None:
    settings = options.get("settings", {})
    shop.app.config.update({f"MULTILIMIT_{name}": value for name, value in settings.items()})
    client = shop.limit(**{name: value for name, value in options.items() if name != "settings"})
    for _ in range(requests):
        client.get("/")
    shop.pass_a_second()

    assert {name: shop.shows(name) for name in shown} == shown


def test_metrics_show_that_storage_is_down(shop: Shop, storage: RecordingStorage) -> None:
    client = shop.limit(storage=storage, rules="100/hour")
    client.get("/")
    before = shop.shows("storage_up")
    storage.broken = True
    for _ in range(3):
        client.get("/")

    assert before == {("shop",): 1}
    assert shop.shows("storage_up") == {("shop",): 0}
    states = shop.shows("storage_breaker")
    assert set(states) == {("shop", "closed"), ("shop", "half-open"), ("shop", "open")}
    assert states["shop", "closed"] == 0
    assert sum(states.values()) == 1
    assert shop.shows("pending_charges")["shop",] == 3
    assert shop.shows("fallback_keys")["shop",] == 1
    assert shop.shows("checks_total")["local", "view", "allowed"] == 3


def test_metrics_show_leases(shop: Shop, server: Any) -> None:
    client = shop.limit(storage=server.url, rules=Rule(3600, 10_000, lease=10))
    for _ in range(3):
        client.get("/")

    assert shop.shows("leases") == {("shop",): 1}


def test_metrics_show_bans_in_force_until_they_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """After their end, the metric is 0."""
    client = shop.limit(rules="1/hour", ban=Ban(after=1, within=60, time=600))
    for number in (1, 1, 1, 2, 2, 3):
        client.get("/", environ_base={"REMOTE_ADDR": f"203.0.113.{number}"})
    shop.pass_a_second()

    assert shop.shows("bans_in_force") == {("shop", *OF_BAN): 2}
    monkeypatch.setattr(gate_of(shop.app).audience, "bans", dict)
    assert shop.shows("bans_in_force") == {("shop", *OF_BAN): 0}


def test_metric_of_bans_in_force_ignores_a_reset(shop: Shop) -> None:
    """As the reference says: only the end of a ban is noted, and not whose ban it is."""
    client = shop.limit(rules="1/hour", ban=Ban(after=1, time=600))
    for _ in range(2):
        client.get("/")
    with shop.app.app_context():
        shop.app.extensions["multilimit"].reset("view", "ip:127.0.0.1")
    shop.pass_a_second()

    assert client.get("/").status_code == 200
    assert shop.shows("bans_in_force") == {("shop", *OF_BAN): 1}


def test_new_process_shows_bans_in_force_before_its_first_check(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SECONDS", 0.01)
    limited: dict[str, Any] = {"storage": MemoryStorage(), "rules": "1/hour", "ban": Ban(after=1, within=60, time=600)}
    client, other = shop.limit(**limited), Shop(Flask("shop"))
    for _ in range(2):
        client.get("/")
    shop.pass_a_second()
    other.limit(**limited).get("/static/no")

    until(lambda: other.shows("bans_in_force") == {("shop", *OF_BAN): 1})
    assert other.shows("checks_total") == {}


def test_labels_of_bans_in_force_are_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_NAMES", 0)
    shop.limit()
    held = {("login", "ip-ban"): 2, ("signup", "ip-ban"): 3}
    monkeypatch.setattr(gate_of(shop.app).audience, "bans", lambda: held)
    shop.metrics.flush()

    assert shop.shows("bans_in_force") == {("shop", OTHERS, OTHERS): 5}


def test_metrics_show_entries_version_and_age_of_control(shop: Shop) -> None:
    shop.limit().get("/")
    control = gate_of(shop.app).applier.control

    def entries() -> tuple[float, ...]:
        shown = shop.shows("control_entries")
        return tuple(shown["shop", kind] for kind in ("allow", "ban", "deny", "override"))

    assert entries() == (0, 0, 0, 0)
    control.ban("203.0.113.7", reason="an attack", for_="5 minutes")
    control.ban("203.0.113.8", reason="an attack", for_="5 minutes")
    entry = control.deny("203.0.113.0/24", reason="an attack", for_="5 minutes")
    assert entries() == (0, 2, 1, 0)
    assert shop.shows("control_version") == {("shop",): 3}
    control.undo(entry.id, reason="over")
    assert entries() == (0, 2, 0, 0)
    (age,) = shop.shows("control_age_seconds").values()
    assert 0 <= age < 60


def test_subjects_are_never_labels(shop: Shop) -> None:
    client = shop.limit()
    for address in ("203.0.113.1", "203.0.113.2"):
        for _ in range(5):
            client.get("/", environ_base={"REMOTE_ADDR": address})
    shop.pass_a_second(2)  # counts are sent, then read

    text = generate_latest(shop.registry).decode()

    assert "multilimit_top_subject_share{" in text
    assert "203.0.113" not in text


def test_labels_are_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_NAMES", 3)
    for number in range(10):
        shop.metrics(unanswered(f"mail-{number}"))
        shop.metrics.flush()

    found = shop.shows("checks_total")
    assert len(found) == 4
    assert found["nobody", OTHERS, "unanswered"] == 7


def test_histogram_has_seconds_and_the_given_buckets(app: Flask) -> None:
    shop = Shop(app, buckets=(0.001, 0.01))
    for seconds in (0.0005, 0.005, 0.05):
        shop.metrics(unanswered(seconds=seconds))
    assert shop.shows("check_seconds_bucket") == {("nobody", "0.001"): 1, ("nobody", "0.01"): 2, ("nobody", "+Inf"): 3}


def test_scrape_is_valid_open_metrics(shop: Shop) -> None:
    shop.limit().get("/")
    text = generate_open_metrics(shop.registry).decode()  # type: ignore[no-untyped-call]
    assert text.endswith("# EOF\n")
    assert 'multilimit_checks_total{decided_by="memory",endpoint="view",outcome="allowed"} 1.0' in text


def test_scrape_of_one_metric_alone_is_up_to_date(shop: Shop) -> None:
    shop.metrics(unanswered())
    only = shop.registry.restricted_registry(["multilimit_checks_total"])
    assert "multilimit_checks_total{" in generate_latest(only).decode()


def test_registry_with_the_same_names_is_an_error_and_unchanged() -> None:
    registry = CollectorRegistry()
    Counter("multilimit_near_limit", "Somebody else's.", registry=registry)
    before = generate_latest(registry)

    with pytest.raises(ConfigurationError, match=r"multilimit_near_limit.*Give one object to all apps"):
        PrometheusMetrics(registry=registry)

    assert generate_latest(registry) == before
    PrometheusMetrics(registry=registry, namespace="shop")


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        *(("namespace", each, "give a letter, then") for each in ("shop-limits", "1x", "", "a b", "x\n", None)),
        *(("buckets", each, "give at least one") for each in ((), (float("nan"),), (0.1, float("nan"), 1))),
        *(("buckets", each, "each must be more") for each in ((1, 0.5), (1, 1))),
    ],
    ids=repr,
)
def test_invalid_options_are_errors(option: str, value: Any, remedy: str) -> None:
    registry = CollectorRegistry()
    with pytest.raises(ConfigurationError, match=rf"{option}=.*: {remedy}"):
        PrometheusMetrics(registry=registry, **{option: value})
    assert generate_latest(registry) == b""


def test_one_object_may_observe_several_apps(shop: Shop) -> None:
    apps = [Flask("one"), Flask("two")]
    for shop.app in apps:
        shop.limit().get("/")

    assert shop.shows("checks_total") == {("memory", "view", "allowed"): 2}
    assert shop.shows("storage_up") == {("one",): 1, ("two",): 1}
    assert not shop.metrics.flush()


def test_metrics_are_updated_without_a_request_while_one_of_several_apps_has_no_storage(
    shop: Shop, storage: RecordingStorage
) -> None:
    storage.broken = True
    for shop.app, of_app in zip([Flask("one"), Flask("two")], (storage, None), strict=True):
        shop.app.config["MULTILIMIT_ON_STORAGE_ERROR"] = "deny"  # so no keys are counted in its place
        shop.limit(storage=of_app).get("/")

    assert shop.metrics.flush()


def test_apps_of_one_name_are_shown_as_processes_of_one_app_are(shop: Shop, storage: RecordingStorage) -> None:
    storage.broken = True
    apps = [Flask("shop"), Flask("shop")]
    for shop.app, of_app in zip(apps, (storage, None), strict=True):
        shop.limit(storage=of_app).get("/")

    assert shop.shows("storage_up") == {("shop",): 0}
    assert sum(shop.shows("storage_breaker").values()) == 2


def test_observer_does_not_keep_dropped_apps_alive_and_shows_only_their_counts(shop: Shop) -> None:
    shop.app = Flask("dropped")
    shop.limit().get("/")
    dropped = weakref.ref(shop.app)

    assert shop.shows("storage_up") == {("dropped",): 1}
    del shop.app
    gc.collect()

    assert dropped() is None
    assert shop.shows("checks_total") == {("memory", "view", "allowed"): 1}
    assert not shop.shows("storage_up"), "an alert on it would never end"


def test_counts_before_a_fork_stay_with_the_parent(shop: Shop) -> None:
    shop.metrics(unanswered())

    def count_twice() -> list[float]:
        shop.metrics(unanswered())
        shop.metrics(unanswered())
        return [sum(shop.shows(name).values()) for name in ("checks_total", "check_seconds_count")]

    assert forked(count_twice)() == [2, 2]
    assert sum(shop.shows("checks_total").values()) == 1


def test_no_fork_happens_while_metrics_are_collected(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child would find the locks of these metrics locked, and never count anything."""
    is_locked, collect = list[bool](), Gauge.collect

    def noting(gauge: Gauge) -> Iterable[Metric]:
        is_locked.append(shop.metrics._lock.locked())
        return collect(gauge)

    monkeypatch.setattr(Gauge, "collect", noting)
    generate_latest(shop.registry)

    assert is_locked
    assert all(is_locked)


@pytest.mark.parametrize(
    ("type_", "clients", "share"),
    [(LimitType.IP, [9], 1.0), (LimitType.IP, [9, 5], 0.75), (LimitType.DEFAULT, [9], 0.0)],
    ids=["one client", "two clients", "limit of everyone"],
)
def test_top_subject_share_is_that_of_the_most_refused_client(
    shop: Shop, type_: LimitType, clients: list[int], share: float
) -> None:
    client = shop.limit(type=type_)
    for number, times in enumerate(clients):
        for _ in range(times):
            client.get("/", environ_base={"REMOTE_ADDR": f"203.0.113.{number}"})
    shop.pass_a_second(2)  # counts are sent, then read

    assert shop.shows("top_subject_share") == {("shop", "view"): share}
