"""Metrics and spans of OpenTelemetry, as its own exporters in memory have them."""

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flask_multilimit import LimitType, MultiLimit, rate_limiter
from flask_multilimit.observe import opentelemetry
from flask_multilimit.observe.opentelemetry import OpenTelemetryObserver
from support.servers import Server


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracers(spans: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


@pytest.fixture
def observer(meters: MeterProvider, tracers: TracerProvider) -> OpenTelemetryObserver:
    return OpenTelemetryObserver(meter_provider=meters, tracer_provider=tracers)


def client_of(app: Flask, observer: OpenTelemetryObserver, **options: Any) -> FlaskClient:
    MultiLimit(app, observers=[observer], **options)
    app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules="3/hour")(lambda: "ok"))
    return app.test_client()


def test_times_of_checks_are_a_histogram_with_the_advised_bounds(
    app: Flask, observer: OpenTelemetryObserver, reader: InMemoryMetricReader
) -> None:
    client = client_of(app, observer)
    for _ in range(10):
        client.get("/")
    observer.flush()

    data: Any = reader.get_metrics_data()
    metrics = (each for resource in data.resource_metrics for scope in resource.scope_metrics for each in scope.metrics)
    (times,) = next(each for each in metrics if each.name == "multilimit.check.duration").data.data_points
    assert (dict(times.attributes), times.count) == ({"multilimit.decided_by": "memory"}, 10)
    assert list(times.explicit_bounds) == opentelemetry.SECONDS
    assert 0 < times.sum < 10


def test_current_span_has_attributes_of_the_decision(
    app: Flask, observer: OpenTelemetryObserver, tracers: TracerProvider, spans: InMemorySpanExporter
) -> None:
    client = client_of(app, observer)
    tracer = tracers.get_tracer("test")

    for _ in range(4):
        with tracer.start_as_current_span("GET /"):
            client.get("/")

    finished = spans.get_finished_spans()
    assert len(finished) == 4
    assert dict(finished[0].attributes or {}) == {
        "multilimit.endpoint": "view",
        "multilimit.outcome": "allowed",
        "multilimit.decided_by": "memory",
    }
    assert (finished[3].attributes or {})["multilimit.outcome"] == "refused"
    assert (finished[3].attributes or {})["multilimit.rules"] == ("ip-3600s",)


def test_span_of_several_checks_has_attributes_of_the_last(
    app: Flask, observer: OpenTelemetryObserver, tracers: TracerProvider, spans: InMemorySpanExporter
) -> None:
    client = client_of(app, observer)
    with tracers.get_tracer("test").start_as_current_span("batch"):
        for address in ("203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2"):
            client.get("/", environ_base={"REMOTE_ADDR": address})

    (span,) = spans.get_finished_spans()
    assert dict(span.attributes or {}) == {
        "multilimit.endpoint": "view",
        "multilimit.outcome": "allowed",
        "multilimit.decided_by": "memory",
        "multilimit.rules": (),
    }


def test_round_trips_are_spans_when_switched_on(
    app: Flask, meters: MeterProvider, tracers: TracerProvider, spans: InMemorySpanExporter, server: Server
) -> None:
    observer = OpenTelemetryObserver(meter_provider=meters, tracer_provider=tracers, spans=True)
    client = client_of(app, observer, storage=server.url)

    with tracers.get_tracer("test").start_as_current_span("GET /"):
        for _ in range(6):  # the last ones are refused by the deny cache
            client.get("/")

    *trips, request = spans.get_finished_spans()
    assert {span.name for span in trips} == {"multilimit.check"}
    assert len(trips) == 4
    assert [dict(span.attributes or {}) for span in trips] == [
        {"multilimit.endpoint": "view", "multilimit.outcome": outcome}
        for outcome in ("allowed", "allowed", "allowed", "refused")
    ]
    assert all(span.parent is not None and request.context is not None for span in trips)
    assert all(span.parent.span_id == request.context.span_id for span in trips if span.parent and request.context)
    assert all((span.end_time or 0) > (span.start_time or 0) for span in trips)


def test_nothing_is_traced_outside_of_a_span(
    app: Flask, observer: OpenTelemetryObserver, spans: InMemorySpanExporter
) -> None:
    client_of(app, observer).get("/")
    assert spans.get_finished_spans() == ()
