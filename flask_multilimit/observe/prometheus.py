"""Metrics for Prometheus (extra ``prometheus``), following its conventions and those of OpenMetrics.

A request only notes what happened. The metrics are updated when they are scraped and once a second. So if several
processes share them (``PROMETHEUS_MULTIPROC_DIR``), a scrape shows the others as they were at most a second ago.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import isnan
from threading import Lock
from typing import Any, Final

from ..engine import ConfigurationError
from ..engine.errors import brief, check_several, is_number
from ..engine.forks import mind_forks
from .events import BREAKER_STATES, Event, Watched
from .namespace import NAMESPACE, check_namespace
from .tallying import Labels, Tallying

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as _missing:
    raise ConfigurationError(
        "PrometheusMetrics needs prometheus_client: pip install 'flask-multilimit[prometheus]'"
    ) from _missing

SECONDS: Final[tuple[float, ...]] = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
"""Buckets of the histogram, from a refusal by the deny cache to a check that had to wait for a connection."""


class PrometheusMetrics:
    """An observer that counts events in ``registry``: ``MultiLimit(app, observers=[PrometheusMetrics()])``.

    One object may observe several apps. The names of all metrics begin with ``namespace``. ``buckets`` are those of the
    histogram, in seconds. Raises :class:`~flask_multilimit.ConfigurationError` if the registry already has these names.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry = REGISTRY,
        namespace: str = NAMESPACE,
        buckets: Sequence[float] = SECONDS,
    ) -> None:
        check_namespace(namespace)
        _check_buckets(buckets)
        if not isinstance(registry, CollectorRegistry):
            raise ConfigurationError(f"registry={brief(registry)}: give a CollectorRegistry of prometheus_client")
        self.namespace = namespace
        self._registry = registry
        self._tallying = Tallying()
        self._note = self._tallying.note
        self._apps: list[Watched] = []
        self._labels = Labels()
        self._banning: dict[str, set[tuple[str, ...]]] = {}
        """By app, the endpoints and names of bans that were shown in force."""
        self._lock = Lock()
        mind_forks(self)
        self._made: list[Any] = []
        try:
            self._make(buckets)
        except ValueError as error:
            for metric in self._made:
                registry.unregister(metric)
            raise ConfigurationError(
                f"PrometheusMetrics(namespace={namespace!r}): {error}. Give one object to all apps, or each a namespace"
            ) from error

    def attach(self, watched: Watched, /) -> None:
        """Show the state of this app's storage as well."""
        self._apps.append(watched)
        watched.every_second(self.flush)

    def __call__(self, event: Event, /) -> None:
        self._note(event)

    def flush(self) -> bool:
        """Update the metrics. Return whether they may change again without an event."""
        with self._lock:
            counts = self._tallying.take()
            for check, amount in counts.checks.items():
                endpoint = self._labels(check.endpoint)
                if check.outcome == "refunded":
                    self._refunds.labels(*endpoint).inc(amount)
                else:
                    self._checks.labels(*endpoint, check.outcome, check.decided_by).inc(amount)
            for each, amount in counts.rules.items():
                self._of_rules[each.did].labels(*self._labels(each.endpoint, each.rule)).inc(amount)
            self._tallying.hand_on_times(lambda decided_by, seconds: self._seconds.labels(decided_by).observe(seconds))
            changing = [self._show(app) for app in self._apps]
            return any(changing)

    def _show(self, watched: Watched) -> bool:
        """Set the gauges of an app. Return whether they may change again without an event."""
        app, health, control = watched.name, watched.health(), watched.control()
        if control is not None:
            self._control_version.labels(app).set(control.version)
            self._control_age.labels(app).set(control.age)
            for kind, amount in control.entries.items():
                self._control_entries.labels(app, kind).set(amount)
        self._show_bans(watched)
        self._storage_up.labels(app).set(health.state == "working")
        for state in BREAKER_STATES:
            self._breaker.labels(app, state).set(health.breaker == state)
        self._pending.labels(app).set(health.pending)
        self._fallback_keys.labels(app).set(health.fallback_keys)
        self._leases.labels(app).set(watched.leases())
        return health.state != "working" or bool(health.fallback_keys)

    def _show_bans(self, watched: Watched) -> None:
        app, found = watched.name, watched.bans()
        amounts = dict.fromkeys(self._banning.setdefault(app, set()), 0)
        for name, amount in (found or {}).items():
            bounded = self._labels(*name)
            amounts[bounded] = amounts.get(bounded, 0) + amount
        for (endpoint, rule), amount in amounts.items():
            self._bans_in_force.labels(app, endpoint, rule).set(amount)
        self._banning[app].update(amounts)

    # The metrics

    def _make(self, buckets: Sequence[float]) -> None:
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            self._register(_Flushing(self.flush))  # before the metrics: they are collected in this order
        self._make_counters()
        self._make_histogram(buckets)
        self._make_gauges()

    def _make_counters(self) -> None:
        self._checks = self._counter(
            "checks", "Checks of rate limits, by outcome and by who decided.", "endpoint", "outcome", "decided_by"
        )
        self._refunds = self._counter("refunds", "Checks of which charges were given back.", "endpoint")
        self._of_rules = {
            "refuses": self._counter("refusals", "Refusals, by each rule that refuses.", "endpoint", "rule"),
            "shadows": self._counter(
                "shadow_refusals",
                "Checks that a rule would have refused if its limiter were no shadow.",
                "endpoint",
                "rule",
            ),
            "near": self._counter(
                "near_limit",
                "Checks that a rule has let pass with more than 80 percent of its quota used.",
                "endpoint",
                "rule",
            ),
            "bans": self._counter("bans", "Bans that began, by each limiter that bans.", "endpoint", "rule"),
        }

    def _make_histogram(self, buckets: Sequence[float]) -> None:
        self._seconds = Histogram(
            "check_seconds",
            "Time that a check of rate limits takes, without time spent waiting for a turn.",
            ["decided_by"],
            namespace=self.namespace,
            registry=None,
            buckets=buckets,
        )
        self._register(self._seconds)

    def _make_gauges(self) -> None:
        self._storage_up = self._gauge("storage_up", "Whether the storage of an app answers.", "livemin")
        self._breaker = self._gauge(
            "storage_breaker", "Processes of an app whose breaker is in a state.", "livesum", "state"
        )
        self._pending = self._gauge(
            "pending_charges", "Checks admitted in an outage that are to be charged to the storage.", "livesum"
        )
        self._fallback_keys = self._gauge(
            "fallback_keys", "Keys that processes count by themselves in place of the storage.", "livesum"
        )
        self._leases = self._gauge("leases", "Quotas of which processes have taken units in advance.", "livesum")
        self._control_version = self._gauge(
            "control_version", "How often limits were changed at run time, as far as every process knows.", "livemin"
        )
        self._control_age = self._gauge(
            "control_age_seconds", "Time since a process has last looked for changes, and got an answer.", "livemax"
        )
        self._control_entries = self._gauge(
            "control_entries",
            "Overrides, allow and deny entries and bans by hand in force.",
            "livemax",
            "kind",
        )
        self._bans_in_force = self._gauge(
            "bans_in_force", "Bans in force that limiters began, in any process.", "livemax", "endpoint", "rule"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        counter = Counter(name, text, labels, namespace=self.namespace, registry=None)
        self._register(counter)
        return counter

    def _gauge(self, name: str, text: str, mode: Any, *labels: str) -> Gauge:
        """A gauge with the label ``app``. Without labels it would show 0 before the process knows the value."""
        gauge = Gauge(name, text, ("app", *labels), namespace=self.namespace, registry=None, multiprocess_mode=mode)
        self._register(gauge)
        return gauge

    def _register(self, metric: Collector) -> None:
        self._registry.register(metric)
        self._made.append(metric)

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()


def _check_buckets(buckets: Sequence[float]) -> None:
    """Raise :class:`ConfigurationError` unless a histogram can have them."""
    check_several("buckets", buckets, "a list of seconds")
    if not buckets or not all(is_number(each) and not isnan(each) for each in buckets):
        raise ConfigurationError(f"buckets={buckets!r}: give at least one number of seconds, and only numbers")
    if any(after <= before for before, after in pairwise(buckets)):
        raise ConfigurationError(f"buckets={buckets!r}: each must be more than the one before")


class _Flushing(Collector):
    """Has no metric of its own, but updates the others when they are about to be collected."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush

    def collect(self) -> Iterable[Metric]:
        self._flush()
        return ()

    def describe(self) -> Iterable[Metric]:
        return ()
