"""Metrics and span attributes for OpenTelemetry (extra ``opentelemetry``), following its semantic conventions.

A request only notes what happened and adds attributes to its own span. The instruments are updated once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import Lock
from typing import Final

from ..engine import ConfigurationError
from ..engine.errors import brief, check_bool
from ..engine.forks import mind_forks
from .events import BREAKER_STATES, ControlState, Event, Watched
from .tallying import Labels, Tallying
from .traffic import RuleOutcome

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
"""The buckets that this observer advises for the histogram."""
OF_RULES: Final[tuple[tuple[RuleOutcome, str, str, str], ...]] = (
    ("refuses", "refusals", "{check}", "Refusals, by each rule that refuses."),
    ("shadows", "shadow_refusals", "{check}", "Checks that a rule would have refused if its limiter were no shadow."),
    ("near", "near_limit", "{check}", "Checks that a rule has let pass with more than 80 percent of its quota used."),
    ("bans", "bans", "{ban}", "Bans that began, by each limiter that bans."),
)
"""Counters by endpoint and rule: what a rule did, then name, unit and description."""


class OpenTelemetryObserver:
    """An observer that counts events in instruments of a meter, and sets attributes of the current span:
    ``MultiLimit(app, observers=[OpenTelemetryObserver()])``.

    ``meter_provider`` and ``tracer_provider`` default to the global ones. With ``spans``, each round trip to the
    storage has its own span. One object may observe several apps.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        spans: bool = False,
    ) -> None:
        for name, given, asked in (
            ("meter_provider", meter_provider, "get_meter"),
            ("tracer_provider", tracer_provider, "get_tracer"),
        ):
            if given is not None and not hasattr(given, asked):
                raise ConfigurationError(f"{name}={brief(given)}: give one of OpenTelemetry, or leave it out")
        check_bool("spans", spans)
        meter = metrics.get_meter(NAME, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider) if spans else None
        self._tallying = Tallying()
        self._apps: list[Watched] = []
        self._labels = Labels()
        self._lock = Lock()
        mind_forks(self)
        self._make_counters(meter)
        self._make_observables(meter)

    def attach(self, watched: Watched, /) -> None:
        """Show the state of this app's storage as well."""
        self._apps.append(watched)
        watched.every_second(self.flush)

    def __call__(self, event: Event, /) -> None:
        self._tallying.note(event)
        span = trace.get_current_span()
        if span.is_recording() and event.outcome != "refunded":
            span.set_attribute("multilimit.endpoint", event.endpoint)
            span.set_attribute("multilimit.outcome", event.outcome)
            span.set_attribute("multilimit.decided_by", event.decided_by)
            rules = event.rules
            if rules or "multilimit.rules" in (getattr(span, "attributes", None) or ()):  # of an earlier check
                span.set_attribute("multilimit.rules", rules)
        if self._tracer is not None and event.decided_by == "storage" and event.decision is not None:
            self._trace(event)

    def flush(self) -> bool:
        """Update the instruments. Return ``False``: nothing is left to do."""
        with self._lock:
            counts = self._tallying.take()
            for check, amount in counts.checks.items():
                (endpoint,) = self._labels(check.endpoint)
                where = {"multilimit.endpoint": endpoint}
                if check.outcome == "refunded":
                    self._refunds.add(amount, where)
                else:
                    how = {"multilimit.outcome": check.outcome, "multilimit.decided_by": check.decided_by}
                    self._checks.add(amount, {**where, **how})
            for each, amount in counts.rules.items():
                endpoint, rule = self._labels(each.endpoint, each.rule)
                self._of_rules[each.did].add(amount, {"multilimit.endpoint": endpoint, "multilimit.rule": rule})
            self._tallying.hand_on_times(
                lambda decided_by, seconds: self._seconds.record(seconds, {"multilimit.decided_by": decided_by})
            )
        return False

    def _trace(self, event: Event) -> None:
        """Record a span for a round trip that is over, with its times."""
        assert self._tracer is not None
        end = time.time_ns() - int(event.waited * 1e9)
        attributes = {"multilimit.endpoint": event.endpoint, "multilimit.outcome": event.outcome}
        span = self._tracer.start_span(
            "multilimit.check",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=end - int(event.seconds * 1e9),
        )
        span.end(end)

    # The instruments

    def _make_counters(self, meter: Meter) -> None:
        self._checks = meter.create_counter("multilimit.checks", unit="{check}", description="Checks of rate limits.")
        self._refunds = meter.create_counter(
            "multilimit.refunds", unit="{check}", description="Checks of which charges were given back."
        )
        self._of_rules = {
            did: meter.create_counter(f"multilimit.{name}", unit=unit, description=text)
            for did, name, unit, text in OF_RULES
        }
        self._seconds = meter.create_histogram(
            "multilimit.check.duration",
            unit="s",
            description="Time that a check takes, without time spent waiting for a turn.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )

    def _make_observables(self, meter: Meter) -> None:
        """Make instruments that ask the app when metrics are collected. Those whose values add up over processes are
        not gauges."""
        for name, unit, text, callback in (
            ("storage.up", "1", "Whether the storage of an app answers.", self._storage_up),
            ("control.version", "{change}", "How often limits were changed at run time.", self._control_version),
            (
                *("control.age", "s", "Time since this process has last looked for changes, and got an answer."),
                self._control_age,
            ),
            (
                *("control.entries", "{entry}", "Overrides, allow and deny entries and bans by hand in force."),
                self._control_entries,
            ),
            (
                *("bans_in_force", "{ban}", "Bans in force that limiters began, in any process."),
                self._bans_in_force,
            ),
        ):
            meter.create_observable_gauge(f"multilimit.{name}", [callback], unit=unit, description=text)
        for name, unit, text, callback in (
            ("pending_charges", "{check}", "Checks that are to be charged to the storage.", self._pending),
            ("fallback_keys", "{key}", "Keys that this process counts in place of the storage.", self._fallback_keys),
            ("leases", "{lease}", "Quotas of which this process has taken units in advance.", self._leases),
            ("storage.breaker", "{process}", "Processes whose breaker is in a state.", self._breaker),
        ):
            meter.create_observable_up_down_counter(f"multilimit.{name}", [callback], unit=unit, description=text)

    def _storage_up(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(int(app.health().state == "working"), _of(app)) for app in self._apps]

    def _breaker(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(int(app.health().breaker == state), {**_of(app), "multilimit.state": state})
            for app in self._apps
            for state in BREAKER_STATES
        ]

    def _pending(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(app.health().pending, _of(app)) for app in self._apps]

    def _fallback_keys(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(app.health().fallback_keys, _of(app)) for app in self._apps]

    def _leases(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(app.leases(), _of(app)) for app in self._apps]

    def _control_version(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(control.version, _of(app)) for app, control in self._controlled()]

    def _control_age(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(control.age, _of(app)) for app, control in self._controlled()]

    def _control_entries(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(amount, {**_of(app), "multilimit.kind": kind})
            for app, control in self._controlled()
            for kind, amount in control.entries.items()
        ]

    def _controlled(self) -> list[tuple[Watched, ControlState]]:
        found = [(app, app.control()) for app in self._apps]
        return [(app, control) for app, control in found if control is not None]

    def _bans_in_force(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(amount, {**_of(app), "multilimit.endpoint": endpoint, "multilimit.rule": rule})
            for app in self._apps
            for (endpoint, rule), amount in self._bounded_bans(app).items()
        ]

    def _bounded_bans(self, app: Watched) -> dict[tuple[str, ...], int]:
        amounts: dict[tuple[str, ...], int] = {}
        with self._lock:
            for name, amount in (app.bans() or {}).items():
                bounded = self._labels(*name)
                amounts[bounded] = amounts.get(bounded, 0) + amount
        return amounts

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()


def _of(app: Watched) -> dict[str, str]:
    return {"multilimit.app": app.name}
