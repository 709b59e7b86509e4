"""The table of metrics, the same for Prometheus and OpenTelemetry, and the observer that feeds it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

from ..engine import ConfigurationError, Health
from ..engine.forks import lock_for_forks
from .events import AFTERWARDS, BREAKER_STATES, NOT_CHECKED, OTHERS, ControlState, Event, ObservedApp
from .traffic.counting import Counter
from .traffic.counts import Counts, RuleOutcome

NAMESPACE: Final = "multilimit"
_PATTERN = re.compile("[a-zA-Z][a-zA-Z0-9_]*")


def check_namespace(namespace: object) -> None:
    """Raise :class:`ConfigurationError` unless names with this prefix need no quotes in queries."""
    if not isinstance(namespace, str) or not _PATTERN.fullmatch(namespace):
        raise ConfigurationError(f"namespace={namespace!r}: give a letter, then letters, digits or underscores")


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


class Snapshot(NamedTuple):
    """The state of an app at one moment."""

    health: Health
    leases: int
    control: ControlState | None
    bans: Mapping[Any, int]
    """By endpoint and name."""
    top_shares: Mapping[str, float]

    @classmethod
    def of(cls, app: ObservedApp) -> Snapshot:
        return cls(app.health(), app.leases(), app.control(), app.bans() or {}, app.top_shares())


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


AmountsOf = Callable[[Counts], Iterable[tuple[Values, int]]]
"""Returns the amounts to add to a metric, by the values of its labels."""


class Reading(NamedTuple):
    """How a metric of an app is read."""

    over_processes: Literal["max", "min", "sum"]
    """How the values of several processes of an app are combined."""
    of: Callable[[Snapshot], Mapping[Values, float]]
    """Returns its value now, by the values of its labels; empty if the app does not know it."""


def _checks(counts: Counts) -> Iterable[tuple[Values, int]]:
    return ((each, amount) for each, amount in counts.checks.items() if each.outcome not in AFTERWARDS)


def _refunds(counts: Counts) -> Iterable[tuple[Values, int]]:
    return (((each.endpoint,), amount) for each, amount in counts.checks.items() if each.outcome == "refunded")


def _of_rules(did: RuleOutcome) -> AmountsOf:
    return lambda counts: (
        ((each.endpoint, each.rule), amount) for each, amount in counts.rules.items() if each.did == did
    )


def _settled_units(counts: Counts) -> Iterable[tuple[Values, int]]:
    return (
        ((each.endpoint, each.rule, each.did), amount)
        for each, amount in counts.rules.items()
        if each.did in {"returned", "added"}
    )


def _of_app(value: Callable[[Snapshot], float]) -> Callable[[Snapshot], Mapping[Values, float]]:
    return lambda app: {(): value(app)}


def _breaker(app: Snapshot) -> Mapping[Values, float]:
    return {(state,): int(app.health.breaker == state) for state in BREAKER_STATES}


def _of_control(value: Callable[[ControlState], float]) -> Callable[[Snapshot], Mapping[Values, float]]:
    return lambda app: {} if app.control is None else {(): value(app.control)}


def _entries(app: Snapshot) -> Mapping[Values, float]:
    return {} if app.control is None else {(kind,): amount for kind, amount in app.control.entries.items()}


def _top_shares(app: Snapshot) -> Mapping[Values, float]:
    return {(endpoint,): share for endpoint, share in app.top_shares.items()}


COUNTS: Final[Mapping[Measured, AmountsOf]] = {
    Measured("checks", "{check}", "Checks of rate limits, by outcome and by who decided.", OF_CHECK): _checks,
    Measured("refunds", "{check}", "Checks whose charges were given back.", ("endpoint",)): _refunds,
    Measured("refusals", "{check}", "Refusals, by each rule that refuses.", OF_RULE): _of_rules("refuses"),
    Measured(
        "shadow_refusals", "{check}", "Checks that a rule would have refused if its limiter were no shadow.", OF_RULE
    ): _of_rules("shadows"),
    Measured(
        "near_limit", "{check}", "Checks that a rule let pass with more than 80 percent of its quota used.", OF_RULE
    ): _of_rules("near"),
    Measured(
        "settled_units", "{unit}", "Units that settling returned, or added to the estimate.", (*OF_RULE, "direction")
    ): _settled_units,
    Measured("bans", "{ban}", "Bans that limiters started.", OF_RULE): _of_rules("bans"),
}
"""The metrics that only grow, and the amounts to add."""
READINGS: Final[Mapping[Measured, Reading]] = {
    Measured("storage.up", "1", "Whether the storage of an app answers."): Reading(
        "min", _of_app(lambda app: int(app.health.state == "working"))
    ),
    Measured(
        "storage.breaker", "{process}", "Processes of an app, by the state of their breaker.", ("state",)
    ): Reading("sum", _breaker),
    Measured(
        "pending_charges", "{check}", "Checks admitted in an outage that are to be charged to the storage."
    ): Reading("sum", _of_app(lambda app: app.health.pending)),
    Measured("fallback_keys", "{key}", "Keys that processes count by themselves in place of the storage."): Reading(
        "sum", _of_app(lambda app: app.health.fallback_keys)
    ),
    Measured("leases", "{lease}", "Quotas from which processes have taken units in advance."): Reading(
        "sum", _of_app(lambda app: app.leases)
    ),
    Measured(
        "control.version", "{change}", "How often limits were changed at run time, as far as processes know."
    ): Reading("min", _of_control(lambda control: control.version)),
    Measured("control.age", "s", "Time since a process last looked for changes and got an answer."): Reading(
        "max", _of_control(lambda control: control.age)
    ),
    Measured(
        "control.entries", "{entry}", "Overrides, allow and deny entries, and bans by hand, in force.", ("kind",)
    ): Reading("max", _entries),
    Measured("bans_in_force", "{ban}", "Bans in force that limiters started, in any process.", OF_RULE): Reading(
        "max", lambda app: app.bans
    ),
    Measured(
        "top_subject_share",
        "1",
        "Share of the most refused subject in all refusals of the last five minutes.",
        ("endpoint",),
    ): Reading("max", _top_shares),
}
"""The metrics that go up and down. Each app has its own."""


class MetricsObserver(ABC):
    """Counts the events of any number of apps, records the time that each check took, and updates the metrics once a
    second. Thread-safe; a forked child starts with nothing."""

    def __init__(self) -> None:
        self._counter = Counter(subjects=False)
        self._times: dict[str, deque[float]] = {}
        self._apps: list[ObservedApp] = []
        self._known: set[Values] = set()
        self._lock = Lock()
        lock_for_forks(self)

    def attach(self, watched: ObservedApp, /) -> None:
        """Read the state of this app, too."""
        self._apps.append(watched)
        watched.every_second(self.flush)

    def __call__(self, event: Event, /) -> None:
        self._counter.count(*event[:4], event[6])
        if event[1] not in NOT_CHECKED:
            times = self._times.get(event[2])
            if times is None:
                times = self._times.setdefault(event[2], deque(maxlen=MOST_TIMES))
            times.append(event[4])

    def flush(self) -> bool:
        """Update the metrics. Return whether they may change again without an event."""
        with self._lock:
            counts = self._counter.take()
            for count, amounts_of in COUNTS.items():
                for values, amount in amounts_of(counts):
                    self._add(count, self._bound(count, values), amount)
            for decided_by, times in tuple(self._times.items()):
                for _ in range(len(times)):
                    self._record(decided_by, times.popleft())
            changing = [self._set_readings(app) for app in self._apps]
            return any(changing)

    @abstractmethod
    def _add(self, count: Measured, values: Values, amount: int) -> None:
        """Add ``amount`` to the series of ``count`` with these labels."""

    @abstractmethod
    def _record(self, decided_by: str, seconds: float) -> None:
        """Add the time of one check to the histogram."""

    def _set_readings(self, watched: ObservedApp) -> bool:  # noqa: ARG002 - for observers that set readings
        """Set the readings of an app. Return whether they may change again without an event."""
        return False

    def _amounts(self, reading: Measured, state: Snapshot) -> dict[Values, float]:
        """The value of ``reading`` now, with bounded labels."""
        amounts: dict[Values, float] = {}
        for values, amount in READINGS[reading].of(state).items():
            bounded = self._bound(reading, values)
            amounts[bounded] = amounts.get(bounded, 0) + amount
        return amounts

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
