"""Metrics for Prometheus (extra ``prometheus``), following its conventions and those of OpenMetrics.

A request only records what happened. The metrics are updated when they are scraped, and once a second. So if several
processes share them (``PROMETHEUS_MULTIPROC_DIR``), a scrape shows the others as they were at most a second ago.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import isnan
from typing import Any, Final

from ..engine import ConfigurationError
from ..engine.errors import brief, check_iterable, is_number
from .metrics import CHECK_TIME, COUNTS, NAMESPACE, READINGS, Measured, MetricsObserver, Values, check_namespace

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


class PrometheusMetrics(MetricsObserver, Collector):
    """An observer that counts events in ``registry``: ``MultiLimit(app, observers=[PrometheusMetrics()])``.

    One object may observe several apps. The names of all metrics begin with ``namespace``. ``buckets`` are those of the
    histogram, in seconds. Raises :class:`~flask_multilimit.ConfigurationError` if the registry already has these names.
    """

    def __init__(
        self, *, registry: CollectorRegistry = REGISTRY, namespace: str = NAMESPACE, buckets: Iterable[float] = SECONDS
    ) -> None:
        check_namespace(namespace)
        buckets = _checked_buckets(buckets)
        if not isinstance(registry, CollectorRegistry):
            raise ConfigurationError(f"registry={brief(registry)}: give a CollectorRegistry of prometheus_client")
        super().__init__()
        self.namespace = namespace
        self._shown: dict[tuple[str, str], set[Values]] = {}
        """By app and gauge, the labels that have had a value: if the app does not report one any more, it is 0."""
        options: dict[str, Any] = {"namespace": namespace, "registry": None}
        self._counts = {
            name: Counter(_name_of(each), each.text, each.labels, **options) for name, each in COUNTS.items()
        }
        self._seconds = Histogram("check_seconds", CHECK_TIME, ["decided_by"], buckets=buckets, **options)
        self._gauges = {
            name: Gauge(  # the label "app" also because a gauge without labels is 0 before its value is known
                _name_of(each),
                each.text,
                ("app", *each.labels),
                multiprocess_mode=f"live{each.over_processes}",  # type: ignore[arg-type]  # one of its modes
                **options,
            )
            for name, each in READINGS.items()
        }
        try:
            registry.register(self)
        except ValueError as error:
            raise ConfigurationError(
                f"PrometheusMetrics(namespace={namespace!r}): {error}. Give one object to all apps, or each a namespace"
            ) from error

    def collect(self) -> Iterable[Metric]:
        """All metrics, as they are now: for the registry."""
        self.flush()
        apps = {app.name for app in self._apps}
        with self._lock:  # no fork happens meanwhile, which would leave locks of the metrics locked in the child
            for app, name in [each for each in self._shown if each[0] not in apps]:
                for values in self._shown.pop((app, name)):
                    self._gauges[name].remove(app, *values)
            return [each for metric in self._metrics() for each in metric.collect()]

    def describe(self) -> Iterable[Metric]:
        """The names of all metrics: a registry refuses those that it has already."""
        return [each for metric in self._metrics() for each in metric.describe()]

    def _metrics(self) -> Iterable[Counter | Gauge | Histogram]:
        return (*self._counts.values(), self._seconds, *self._gauges.values())

    def _add(self, count: str, values: Values, amount: int) -> None:
        self._counts[count].labels(*values).inc(amount)

    def _record(self, decided_by: str, seconds: float) -> None:
        self._seconds.labels(decided_by).observe(seconds)

    def _set_readings(self) -> bool:
        readings = self._readings()
        with self._lock:
            for (app, name), amounts in readings.items():
                shown = self._shown.setdefault((app, name), set())
                for values, amount in {**dict.fromkeys(shown, 0), **amounts}.items():
                    self._gauges[name].labels(app, *values).set(amount)
                shown.update(amounts)
        apps = {app for app, _ in readings}
        return any(not readings[app, "storage.up"][()] or readings[app, "fallback_keys"][()] > 0 for app in apps)


def _name_of(metric: Measured) -> str:
    """The name of ``metric`` by the conventions of Prometheus, in which the unit of seconds comes last."""
    return metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")


def _checked_buckets(given: Iterable[float]) -> tuple[float, ...]:
    """The ``given`` buckets. Raises :class:`ConfigurationError` unless these are increasing numbers, at least one."""
    check_iterable("buckets", given, "a list of seconds")
    buckets = tuple(given)
    if not buckets or not all(is_number(each) and not isnan(each) for each in buckets):
        raise ConfigurationError(f"buckets={brief(buckets)}: give at least one number of seconds, and only numbers")
    if any(after <= before for before, after in pairwise(buckets)):
        raise ConfigurationError(f"buckets={brief(buckets)}: each must be more than the one before")
    return buckets
