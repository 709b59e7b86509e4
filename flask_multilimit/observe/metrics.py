"""The table of metrics, the same for Prometheus and OpenTelemetry, and the observer that feeds it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Literal
from weakref import ref

from ..engine import ConfigurationError
from ..engine.errors import brief
from ..engine.forks import lock_for_forks
from .events import AFTERWARDS, BREAKER_STATES, NOT_CHECKED, OTHERS, Event, ObservedApp
from .traffic.counting import Counter
from .traffic.counts import Counts, RuleOutcome

NAMESPACE: Final = "multilimit"
_PATTERN = re.compile("[a-zA-Z][a-zA-Z0-9_]*")


def check_namespace(namespace: object) -> None:
    """Raise :class:`ConfigurationError` unless names with this prefix need no quotes in queries."""
    if not isinstance(namespace, str) or not _PATTERN.fullmatch(namespace):
        raise ConfigurationError(f"namespace={brief(namespace)}: give a letter, then letters, digits or underscores")


MOST_NAMES = 5000
"""The most endpoints, or pairs of endpoint and rule, that are counted separately."""
MOST_TIMES = 20_000
"""The most times of checks that wait for a flush. Beyond that, the oldest are dropped. A process makes fewer checks in
a second."""

Values = tuple[str, ...]
"""The values of labels, in the order of their names."""
OF_CHECK: Final = ("endpoint", "outcome", "decided_by")
OF_RULE: Final = ("endpoint", "rule")
CHECK_TIME: Final = "Time that a check of rate limits takes, without time spent waiting for a turn."
"""The description of the histogram, whose name differs between Prometheus and OpenTelemetry."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric."""

    name: str
    """Its name in OpenTelemetry, without ``multilimit``."""
    unit: str
    """Its unit in OpenTelemetry, such as ``{check}`` or ``s``."""
    text: str
    """Its description."""
    labels: Values = ()
    """The names of its labels: first endpoint and rule, if it has these. Never subjects."""
    over_processes: Literal["max", "min", "sum"] = "sum"
    """How the values of several processes of an app are combined."""


def _by_name(*metrics: Measured) -> Mapping[str, Measured]:
    return {each.name: each for each in metrics}


COUNTS: Final[Mapping[str, Measured]] = _by_name(
    Measured("checks", "{check}", "Checks of rate limits, by outcome and by who decided.", OF_CHECK),
    Measured("refunds", "{check}", "Checks whose charges were given back.", ("endpoint",)),
    Measured("refusals", "{check}", "Refusals, by each rule that refuses.", OF_RULE),
    Measured(
        "shadow_refusals", "{check}", "Checks that a rule would have refused if its limiter were no shadow.", OF_RULE
    ),
    Measured(
        "near_limit", "{check}", "Checks that a rule let pass with more than 80 percent of its quota used.", OF_RULE
    ),
    Measured(
        "settled_units", "{unit}", "Units that settling returned, or added to the estimate.", (*OF_RULE, "direction")
    ),
    Measured("bans", "{ban}", "Bans that limiters started.", OF_RULE),
)
"""The metrics that only grow, by name; :func:`increments` has the amounts to add."""
READINGS: Final[Mapping[str, Measured]] = _by_name(
    Measured("storage.up", "1", "Whether the storage of an app answers.", over_processes="min"),
    Measured("storage.breaker", "{process}", "Processes of an app, by the state of their breaker.", ("state",)),
    Measured("pending_charges", "{check}", "Checks admitted in an outage that are to be charged to the storage."),
    Measured("fallback_keys", "{key}", "Keys that processes count by themselves in place of the storage."),
    Measured("leases", "{lease}", "Quotas from which processes have taken units in advance."),
    Measured(
        "control.version",
        "{change}",
        "How often limits were changed at run time, as far as processes know.",
        over_processes="min",
    ),
    Measured(
        "control.age", "s", "Time since a process last looked for changes and got an answer.", over_processes="max"
    ),
    Measured(
        "control.entries", "{entry}", "Overrides, allow and deny entries, and bans by hand, in force.", ("kind",), "max"
    ),
    Measured("bans_in_force", "{ban}", "Bans in force that limiters started, in any process.", OF_RULE, "max"),
    Measured(
        "top_subject_share",
        "1",
        "Share of the most refused subject in all refusals of the last five minutes.",
        ("endpoint",),
        "max",
    ),
)
"""The metrics that go up and down, by name; :func:`readings_of` has their values. Each app has its own."""
_COMBINE: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"max": max, "min": min, "sum": sum}
_BY_RULE_OUTCOME: Final[Mapping[RuleOutcome, str]] = {
    "refuses": "refusals",
    "shadows": "shadow_refusals",
    "near": "near_limit",
    "bans": "bans",
    "returned": "settled_units",
    "added": "settled_units",
}


def increments(counts: Counts) -> Iterator[tuple[str, Values, int]]:
    """The amounts to add for ``counts``, each with the name of its metric and the values of the labels."""
    for check, amount in counts.checks.items():
        if check.outcome == "refunded":
            yield "refunds", (check.endpoint,), amount
        elif check.outcome not in AFTERWARDS:
            yield "checks", check, amount
    for rule, amount in counts.rules.items():
        name = _BY_RULE_OUTCOME[rule.did]
        yield name, rule if name == "settled_units" else rule[:2], amount


def readings_of(app: ObservedApp) -> dict[str, Mapping[Any, float]]:
    """What ``app`` shows now: by metric, by the values of the labels. A metric that the app does not know is empty."""
    health, control = app.health(), app.control()
    return {
        "storage.up": {(): int(health.state == "working")},
        "storage.breaker": {(state,): int(health.breaker == state) for state in BREAKER_STATES},
        "pending_charges": {(): health.pending},
        "fallback_keys": {(): health.fallback_keys},
        "leases": {(): app.leases()},
        "control.version": {(): control.version} if control else {},
        "control.age": {(): control.age} if control else {},
        "control.entries": {(kind,): amount for kind, amount in control.entries.items()} if control else {},
        "bans_in_force": app.bans() or {},
        "top_subject_share": {(endpoint,): share for endpoint, share in app.top_shares().items()},
    }


class MetricsObserver(ABC):
    """Counts the events of any number of apps, records the time that each check took, and updates the metrics once a
    second. Thread-safe; a forked child starts with nothing."""

    def __init__(self) -> None:
        self._counter = Counter(subjects=False)
        self._times: dict[str, deque[float]] = {}
        self._refs: list[ref[ObservedApp]] = []  # weak: tests make app after app for one observer
        self._known: set[Values] = set()
        self._lock = Lock()
        lock_for_forks(self)

    def attach(self, watched: ObservedApp, /) -> None:
        """Read the state of this app, too, as long as it exists."""
        self._refs.append(ref(watched, self._refs.remove))
        watched.every_second(self.flush)

    @property
    def _apps(self) -> list[ObservedApp]:
        return [app for each in tuple(self._refs) if (app := each()) is not None]

    def __call__(self, event: Event, /) -> None:
        self._counter.count(event.endpoint, event.outcome, event.decided_by, event.decision, event.applied)
        if event.outcome not in NOT_CHECKED:
            times = self._times.get(event.decided_by)
            if times is None:
                times = self._times.setdefault(event.decided_by, deque(maxlen=MOST_TIMES))
            times.append(event.seconds)

    def flush(self) -> bool:
        """Update the metrics. Return whether they may change again without an event."""
        with self._lock:
            counts = self._counter.take()
            for name, values, amount in increments(counts):
                self._add(name, self._bound(COUNTS[name], values), amount)
            for decided_by, times in tuple(self._times.items()):
                for _ in range(len(times)):
                    self._record(decided_by, times.popleft())
        return self._set_readings()

    @abstractmethod
    def _add(self, count: str, values: Values, amount: int) -> None:
        """Add ``amount`` to the series of the metric ``count`` with these labels."""

    @abstractmethod
    def _record(self, decided_by: str, seconds: float) -> None:
        """Add the time of one check to the histogram."""

    def _set_readings(self) -> bool:
        """Set the readings of the apps. Return whether they may change again without an event."""
        return False

    def _readings(self, names: Iterable[str] = READINGS) -> Mapping[tuple[str, str], Mapping[Values, float]]:
        """The readings by app and metric, with bounded labels, of metrics of these ``names``. Apps of one name are
        combined as processes of one are.

        An app takes locks of its own to answer. So ask it without holding the lock, or a fork, which takes all of them
        in any order, would wait for ever.
        """
        readings = [(app.name, readings_of(app)) for app in self._apps]
        found = defaultdict[tuple[str, str], dict[Values, float]](dict)
        with self._lock:
            for app, of_app in readings:
                for name in names:
                    before, combine = found[app, name], _COMBINE[READINGS[name].over_processes]
                    for values, amount in self._bounded(name, of_app[name]).items():
                        before[values] = combine((before[values], amount)) if values in before else amount
        return found

    def _bounded(self, reading: str, amounts: Mapping[Values, float]) -> dict[Values, float]:
        """``amounts`` of the metric ``reading``, with bounded labels."""
        bounded: dict[Values, float] = {}
        for values, amount in amounts.items():
            shown = self._bound(READINGS[reading], values)
            bounded[shown] = bounded.get(shown, 0) + amount
        return bounded

    def _bound(self, metric: Measured, values: Values) -> Values:
        """``values``, with ``(others)`` for endpoints and rules that are new after :data:`MOST_NAMES`."""
        names = values[: sum(label in OF_RULE for label in metric.labels)]
        if not names or names in self._known:
            return values
        if len(self._known) < MOST_NAMES:
            self._known.add(names)
            return values
        return (OTHERS,) * len(names) + values[len(names) :]

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()
        self._times = {}
