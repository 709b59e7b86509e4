"""Counts events in this process: a few dictionary steps a request."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Any

from ...engine import Hit
from ...engine.forks import mind_forks
from ..events import OTHERS, Event, Outcome, hits_near_limit, retry_afters
from .counts import Check, Counts, Refused, RuleCount, RuleOutcome, short
from .heaviest import Heaviest

MOST_NAMES = 4096
"""Names of checks, and of rules, that are counted apart between two flushes."""
MOST_SUBJECTS = 1024
"""Counters for subjects."""
MOST_SENT = 100
"""Subjects that are handed on at each flush, those that were refused most."""

_Who = tuple[str, str, str, str]
"""The fields of a :class:`Refused`, in a quarter of the time that it takes to make one."""
_Mark = tuple[tuple[str, str, RuleOutcome], _Who | None]
"""The rule's count, and whom it refuses; nobody, where it is a shadow."""


class Counter:
    """Counts events until somebody takes what was counted. Thread-safe; a forked child starts with nothing.

    Memory is bounded: beyond :data:`MOST_NAMES` what is new counts as ``(others)``, and beyond :data:`MOST_SUBJECTS`
    the subjects that are refused rarely make room.
    """

    def __init__(self, *, subjects: bool) -> None:
        self._counts_subjects = subjects
        self._lock = Lock()
        self._start()
        mind_forks(self, inner=True)

    def count(self, event: Event) -> None:
        labels, decision = event[:3], event[3]
        near = hits_near_limit(decision) if decision is not None else ()
        with self._lock:
            amount = self._checks.get(labels)
            if amount is not None:  # as nearly always
                amount[0] += 1
            else:
                self._count_new(labels)
            if near or labels[1] != "allowed":
                self._count_rules(event, near)

    def take(self) -> Counts:
        """What was counted since the last time."""
        with self._lock:
            checks, rules, refused = self._checks, self._rules, self._refused
            if not checks:
                return Counts()
            self._start()
        return Counts(
            {Check(*labels): amount for labels, (amount,) in checks.items()},
            {RuleCount(*labels): amount for labels, (amount,) in rules.items()},
            {Refused(*who): amount for who, amount in refused.top(MOST_SENT).items()},
        )

    def _start(self) -> None:
        # The amounts lie in lists of one: to add to one takes one look-up instead of two.
        self._checks: dict[tuple[str, Outcome, str], list[int]] = {}
        self._rules: dict[tuple[str, str, RuleOutcome], list[int]] = {}
        self._refused: Heaviest[_Who] = Heaviest(MOST_SUBJECTS)

    # Under the lock

    def _count_new(self, labels: tuple[str, Outcome, str]) -> None:
        if len(self._checks) >= MOST_NAMES:
            labels = (OTHERS, *labels[1:])
        self._checks.setdefault(labels, [0])[0] += 1

    def _count_rules(self, event: Event, near: Iterable[Hit]) -> None:
        """What each rule did. Few events get here."""
        endpoint, outcome, _, decision, *_ = event
        if decision is None or outcome == "refunded":
            return
        for hit in near:
            self._count_rule((endpoint, hit.name, "near"))
        for wait, (labels, who) in zip(retry_afters(decision), _marks_of(event), strict=True):
            if wait:
                self._count_rule(labels)
                if who is not None and self._counts_subjects:
                    self._refused.add(who)

    def _count_rule(self, labels: tuple[str, str, RuleOutcome]) -> None:
        amount = self._rules.get(labels)
        if amount is None:
            if len(self._rules) >= MOST_NAMES:
                labels = (OTHERS, OTHERS, labels[2])
            amount = self._rules.setdefault(labels, [0])
        amount[0] += 1

    def _after_fork_in_child(self) -> None:
        """What was counted is the parent's to hand on."""
        self._lock = Lock()
        self._start()


def _marks_of(event: Event) -> tuple[_Mark, ...]:
    """What each hit of the decision counts for when it refuses: kept with the hits, for who is refused once is refused
    again."""
    hits: Any = event.decision.hits if event.decision is not None else ()
    memory: dict[Any, Any] = getattr(hits, "memory", {})
    if _marks_of not in memory:
        subjects = {hit.key: each.subject for each in event.applied for hit in each.hits}
        memory[_marks_of] = tuple(_mark(event.endpoint, hit, subjects.get(hit.key)) for hit in hits)
    marks: tuple[_Mark, ...] = memory[_marks_of]
    return marks


def _mark(endpoint: str, hit: Hit, subject: tuple[str, str] | None) -> _Mark:
    if hit.shadow or subject is None:
        return (endpoint, hit.name, "shadows" if hit.shadow else "refuses"), None
    return (endpoint, hit.name, "refuses"), (endpoint, hit.name, subject[0], short(subject[1]))
