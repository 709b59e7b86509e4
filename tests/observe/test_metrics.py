"""Prometheus and OpenTelemetry export the same table of metrics."""

import re
import subprocess
import sys
from typing import Any

import pytest
from flask import Flask
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from flask_multilimit import Ban, LimitType, MultiLimit, rate_limiter
from flask_multilimit.engine import Health
from flask_multilimit.observe.metrics import COUNTS, READINGS
from flask_multilimit.observe.opentelemetry import OpenTelemetryObserver
from flask_multilimit.observe.prometheus import PrometheusMetrics
from flask_multilimit.serve.audience import AppAudience
from flask_multilimit.signals import Event
from support.asking import pass_a_second
from support.folders import DOCS

REAL = ("ok", {"X-Units": "5"})
Series = tuple[str, frozenset[tuple[str, str]]]


def of_prometheus(registry: CollectorRegistry) -> dict[Series, float]:
    return {
        (
            family.name.removeprefix("multilimit_").removesuffix("_seconds"),
            frozenset(sample.labels.items()),
        ): sample.value
        for family in registry.collect()
        for sample in family.samples
        if family.type in {"counter", "gauge"} and not sample.name.endswith("_created")
    }


def of_opentelemetry(reader: InMemoryMetricReader) -> dict[Series, float]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        (
            without_prefix(metric.name).replace(".", "_"),
            frozenset((without_prefix(label), str(value)) for label, value in (point.attributes or {}).items()),
        ): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


def without_prefix(name: str) -> str:
    assert name.startswith("multilimit.")
    return name.removeprefix("multilimit.")


def test_app_is_asked_for_its_state_without_the_lock_that_a_fork_takes(
    app: Flask, meters: MeterProvider, reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app takes another lock to answer, so the fork and this thread would wait for each other."""
    registry = CollectorRegistry()
    observers: list[Any] = [PrometheusMetrics(registry=registry), OpenTelemetryObserver(meter_provider=meters)]
    asked, health = list[tuple[bool, ...]](), AppAudience.health

    def noting(app: AppAudience) -> Health:
        asked.append(tuple(each._lock.locked() for each in observers))
        return health(app)

    monkeypatch.setattr(AppAudience, "health", noting)
    MultiLimit(app, observers=observers)

    of_prometheus(registry)
    by_prometheus = asked.copy()
    of_opentelemetry(reader)

    assert by_prometheus
    assert len(asked) > len(by_prometheus)
    assert set(asked) == {(False, False)}


def test_prometheus_and_opentelemetry_export_the_same_numbers(
    app: Flask, meters: MeterProvider, reader: InMemoryMetricReader
) -> None:
    registry = CollectorRegistry()
    prometheus, opentelemetry = PrometheusMetrics(registry=registry), OpenTelemetryObserver(meter_provider=meters)
    apps = [app, Flask(app.name)]
    for each in apps:
        MultiLimit(each, observers=[prometheus, opentelemetry])
    app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules="3/hour", ban=Ban(after=2))(lambda: "ok"))
    app.add_url_rule("/trial", "trial", rate_limiter(rules="1/hour", shadow=True)(lambda: "ok"))
    app.add_url_rule("/real", "real", rate_limiter(rules="9/hour", cost=2, settle="header:X-Units")(lambda: REAL))
    client = app.test_client()
    for path in ("/", "/trial", "/real"):
        for _ in range(6):
            client.get(path)
    for observer in (prometheus, opentelemetry):
        observer(Event("view", "refunded", "storage", None, 0.0, 0.0, (), None))
    pass_a_second(app)
    opentelemetry.flush()

    one, other = of_prometheus(registry), of_opentelemetry(reader)

    assert {name for name, _ in one} == {shown(name) for name in (*COUNTS, *READINGS)}
    assert without_clock(one) == without_clock(other)


def shown(metric: str) -> str:
    return metric.replace(".", "_")


def without_clock(values: dict[Series, float]) -> dict[Series, float]:
    """Without the age of control, which grows between two looks."""
    return {series: value for series, value in values.items() if series[0] != "control_age"}


def test_every_metric_is_documented_for_both_libraries() -> None:
    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    prometheus = re.findall(r"^\| `multilimit_(\w+?)(?:_total|_seconds)?` \| (?:counter|gauge) ", page, re.MULTILINE)
    opentelemetry = re.findall(
        r"^\| `multilimit\.([\w.]+)` \| (?:counter|observable gauge|observable up-down counter), `(.*?)` \| (.*?) \|$",
        page,
        re.MULTILINE,
    )

    assert set(prometheus) == {shown(name) for name in (*COUNTS, *READINGS)}
    assert {(name, unit, re.sub(r"`multilimit\.(\w+)`", r"\1", labels)) for name, unit, labels in opentelemetry} == {
        *((each.name, each.unit, ", ".join(each.labels)) for each in COUNTS.values()),
        *((each.name, each.unit, ", ".join(("app", *each.labels))) for each in READINGS.values()),
    }


@pytest.mark.parametrize(("room", "library"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")])
def test_import_error_names_the_extra_when_library_is_missing(room: str, library: str) -> None:
    code = f"import sys; sys.modules['{library}'] = None; import flask_multilimit.observe.{room}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"pip install 'flask-multilimit[{room}]'" in run.stderr.splitlines()[-1]
