"""Metrics and span attributes for OpenTelemetry (extra ``opentelemetry``), following its semantic conventions.

A request only records what happened, and sets attributes of its span. The instruments are updated once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from ..engine import ConfigurationError
from ..engine.errors import brief, check_bool
from .events import AFTERWARDS, Event
from .metrics import CHECK_TIME, COUNTS, READINGS, Measured, MetricsObserver, Values

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import SpanKind, TracerProvider
except ModuleNotFoundError as _missing:
    raise ConfigurationError(
        "OpenTelemetryObserver needs opentelemetry-api: pip install 'flask-multilimit[opentelemetry]'"
    ) from _missing

NAME = "flask_multilimit"
"""The name of the instrumentation scope."""
SECONDS = [0.00001, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0]
"""The bounds that are advised for the histogram, in seconds."""


class OpenTelemetryObserver(MetricsObserver):
    """An observer that counts events in instruments of a meter, and sets attributes of the current span:
    ``MultiLimit(app, observers=[OpenTelemetryObserver()])``.

    ``meter_provider`` and ``tracer_provider`` default to the global ones. With ``spans``, each round trip to the
    storage has a span of its own. One object may observe several apps.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        spans: bool = False,
    ) -> None:
        for name, given, method in (
            ("meter_provider", meter_provider, "get_meter"),
            ("tracer_provider", tracer_provider, "get_tracer"),
        ):
            if given is not None and not hasattr(given, method):
                raise ConfigurationError(f"{name}={brief(given)}: give one of OpenTelemetry, or leave it out")
        check_bool("spans", spans)
        super().__init__()
        meter = metrics.get_meter(NAME, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider) if spans else None
        self._make_counters(meter)
        self._make_observables(meter)

    def __call__(self, event: Event, /) -> None:
        super().__call__(event)
        span = trace.get_current_span()
        if span.is_recording() and event.outcome not in AFTERWARDS:
            span.set_attribute("multilimit.endpoint", event.endpoint)
            span.set_attribute("multilimit.outcome", event.outcome)
            span.set_attribute("multilimit.decided_by", event.decided_by)
            rules = event.rules
            if rules or "multilimit.rules" in (getattr(span, "attributes", None) or ()):  # of an earlier check
                span.set_attribute("multilimit.rules", rules)
        if self._tracer is not None and event.decided_by == "storage" and event.decision is not None:
            self._trace(event)

    def _add(self, count: str, values: Values, amount: int) -> None:
        self._counts[count].add(amount, _attributes(COUNTS[count], values))

    def _record(self, decided_by: str, seconds: float) -> None:
        self._seconds.record(seconds, {"multilimit.decided_by": decided_by})

    def _trace(self, event: Event) -> None:
        """Record a span for a round trip that has ended, with its times."""
        assert self._tracer is not None
        end = time.time_ns() - int(event.waited * 1e9)
        attributes = {"multilimit.endpoint": event.endpoint, "multilimit.outcome": event.outcome}
        span = self._tracer.start_span(
            "multilimit.check", kind=SpanKind.CLIENT, attributes=attributes, start_time=end - int(event.seconds * 1e9)
        )
        span.end(end)

    # The instruments

    def _make_counters(self, meter: Meter) -> None:
        self._counts = {
            name: meter.create_counter(f"multilimit.{name}", unit=each.unit, description=each.text)
            for name, each in COUNTS.items()
        }
        self._seconds = meter.create_histogram(
            "multilimit.check.duration", unit="s", description=CHECK_TIME, explicit_bucket_boundaries_advisory=SECONDS
        )

    def _make_observables(self, meter: Meter) -> None:
        """Make instruments that ask the app when metrics are collected. If values of several processes must be added
        up, the instrument is no gauge."""
        for name, each in READINGS.items():
            add_up = each.over_processes == "sum"
            make = meter.create_observable_up_down_counter if add_up else meter.create_observable_gauge
            make(f"multilimit.{name}", [partial(self._observe, name)], unit=each.unit, description=each.text)

    def _observe(self, reading: str, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(amount, {"multilimit.app": app, **_attributes(READINGS[reading], values)})
            for (app, _), amounts in self._readings([reading]).items()
            for values, amount in amounts.items()
        ]


def _attributes(metric: Measured, values: Values) -> dict[str, str]:
    return {f"multilimit.{label}": value for label, value in zip(metric.labels, values, strict=True)}
