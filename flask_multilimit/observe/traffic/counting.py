"""Counts events in this process. Requests append to lists, which are summed up once a second or when they are long."""

from __future__ import annotations

import time
from collections import Counter as Amounts
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import truth
from threading import Lock
from typing import TypeVar

from ...engine import Decision, Hit
from ...engine.forks import lock_for_forks
from ...engine.hits import memoized
from ...engine.reply import RETRY_AFTERS
from ..events import (
    AFTERWARDS,
    OTHERS,
    Counted,
    Outcome,
    hits_near_limit,
    is_near_limit,
    outcome_of,
    refusals_of,
    refusing_hits,
    settled_by,
)
from .counts import MOST_BANS, Check, CountedBan, Counts, Refused, RuleCount, RuleOutcome, short

K = TypeVar("K")


class Heaviest(Amounts[K]):
    """The most frequent of many keys, in bounded memory. Not thread-safe.

    Misra-Gries (Misra, Gries: Finding Repeated Elements, Science of Computer Programming, 1982): when there are more
    than twice ``capacity`` counters, all are lowered by the same amount, so that at most ``capacity`` stay above zero.
    So a count is never too large, and a key that is more frequent than the total divided by ``capacity`` is always
    counted.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def add(self, key: K, amount: int = 1) -> None:
        self[key] += amount
        if len(self) > 2 * self._capacity:
            lowered = sorted(self.values(), reverse=True)[self._capacity]
            kept = {key: count - lowered for key, count in self.items() if count > lowered}
            self.clear()
            self.update(kept)


MOST_NAMES = 4096
"""The most names of checks, and of rules, that are counted separately between two flushes."""
MOST_SUBJECTS = 1024
"""The capacity of :class:`Heaviest` for subjects, which counts up to twice as many."""
MOST_SENT = 100
"""The most subjects that are passed on at each flush, those that were refused most."""
AT_ONCE = 200
"""The number of events that are summed up together."""

DENY_LIST, BAN_LIST = "(deny list)", "(banned by hand)"
"""Names in place of a rule, when a list refuses."""
_LIST_OF: dict[Outcome, str] = {"denied": DENY_LIST, "banned": BAN_LIST}

_Labels = tuple[str, Outcome, str]
_RuleLabels = tuple[str, str, RuleOutcome]
_Who = tuple[str, str, str, str]
"""The fields of a :class:`Refused`. Making a plain tuple takes a quarter of the time."""


@dataclass(slots=True, eq=False, repr=False)
class _Details:
    """What to count for an event, if that is more than its labels. There is one object for each result of the same
    hits, and it is counted by identity."""

    labels: _Labels
    rules: Sequence[tuple[_RuleLabels, int]] = ()
    """What each rule did, once or for so many units."""
    subjects: Sequence[_Who] = ()
    """The subjects that were refused, each with the rule or list that refused it."""
    begun: Sequence[CountedBan] = ()


class Counter:
    """Counts events until :meth:`take` is called. Thread-safe; a forked child starts with nothing.

    Memory is bounded: after :data:`MOST_NAMES` names, new ones count as ``(others)``; after twice
    :data:`MOST_SUBJECTS` subjects, those that are refused least are forgotten.
    """

    def __init__(self, *, subjects: bool) -> None:
        self._counts_subjects = subjects
        self._after_fork_in_child()
        lock_for_forks(self, inner=True)

    def count(
        self, endpoint: str, outcome: Outcome, decided_by: str, decision: Decision | None, applied: Sequence[Counted]
    ) -> None:
        """Count one event with these fields."""
        self._collect(endpoint, outcome, decided_by, decision, applied)
        if len(self._labels) >= AT_ONCE or len(self._detailed) >= AT_ONCE:
            with self._lock:
                self._sum_up()

    def count_admitted(self, endpoint: str, decision: Decision, applied: Sequence[Counted]) -> None:
        """Count a check that was allowed without waiting. The details are worked out later, for many checks in a row:
        during a request, this would take three times as long."""
        admitted = self._admitted
        admitted.append((endpoint, decision, applied))
        if len(admitted) >= AT_ONCE:
            with self._lock:
                self._sum_up()

    def take(self) -> Counts:
        """Return what was counted since the last call."""
        with self._lock:
            self._sum_up()
            checks, rules, refused, begun = self._checks, self._rules, self._refused, self._begun
            self._start()
        return Counts(
            {Check(*labels): amount for labels, amount in checks.items()},
            {RuleCount(*labels): amount for labels, amount in rules.items()},
            {Refused(*who): amount for who, amount in refused.most_common(MOST_SENT)},
            begun,
        )

    def _start(self) -> None:
        self._checks: dict[_Labels, int] = {}
        self._rules: dict[_RuleLabels, int] = {}
        self._refused: Heaviest[_Who] = Heaviest(MOST_SUBJECTS)
        self._begun: list[CountedBan] = []

    def _collect(
        self, endpoint: str, outcome: Outcome, decided_by: str, decision: Decision | None, applied: Sequence[Counted]
    ) -> None:
        if outcome in AFTERWARDS:
            self._detailed.append(_Details((endpoint, outcome, decided_by), _settled_units(endpoint, decision)))
        elif decision is not None and (outcome != "allowed" or is_near_limit(decision)):
            self._detailed.append(_details_of(endpoint, outcome, decided_by, decision, applied))
        elif decision is None and applied and outcome != "unanswered":  # a list decided
            self._detailed.append(_details_of_listed(endpoint, outcome, decided_by, applied[0].subject))
        else:
            self._labels.append((endpoint, outcome, decided_by))

    def _sum_up(self) -> None:
        """Sum up what requests have appended. The caller holds the lock."""
        for endpoint, decision, applied in _drain(self._admitted):
            self._collect(endpoint, outcome_of(decision, 0.0), decision.decided_by, decision, applied)
        for check, amount in Amounts(_drain(self._labels)).items():
            _add(self._checks, check, (OTHERS, *check[1:]), amount)
        for details, amount in Amounts(_drain(self._detailed)).items():
            _add(self._checks, details.labels, (OTHERS, *details.labels[1:]), amount)
            for rule, units in details.rules:
                _add(self._rules, rule, (OTHERS, OTHERS, rule[2]), units * amount)
            if self._counts_subjects:
                for who in details.subjects:
                    self._refused.add(who, amount)
            if details.begun and len(self._begun) < MOST_BANS:
                self._begun += details.begun

    def _after_fork_in_child(self) -> None:
        """Start with nothing: the parent passes on what was counted before the fork."""
        self._lock = Lock()
        self._admitted: list[tuple[str, Decision, Sequence[Counted]]] = []
        self._labels: list[_Labels] = []
        """Events that are not summed up yet. Requests append without a lock, so summing up removes only items that it
        has read. The same holds for the other lists."""
        self._detailed: list[_Details] = []
        self._start()


def _drain(seen: list[K]) -> list[K]:
    """Take all items out of the list, and return them. Items that other threads append at the same time stay."""
    amount = len(seen)
    taken = seen[:amount]
    del seen[:amount]
    return taken


def _add(amounts: dict[K, int], name: K, others: K, amount: int) -> None:
    if name not in amounts and len(amounts) >= MOST_NAMES:
        name = others
    amounts[name] = amounts.get(name, 0) + amount


def _settled_units(endpoint: str, decision: Decision | None) -> list[tuple[_RuleLabels, int]]:
    return [
        ((endpoint, rule, "added" if units > estimate else "returned"), abs(units - estimate))
        for rule, estimate, units in settled_by(decision)
        if units != estimate
    ]


@lru_cache(maxsize=MOST_SUBJECTS)
def _details_of_listed(endpoint: str, outcome: Outcome, decided_by: str, subject: tuple[str, str]) -> _Details:
    who = endpoint, _LIST_OF.get(outcome, outcome), subject[0], short(subject[1])
    return _Details((endpoint, outcome, decided_by), subjects=[who])


def _details_of(
    endpoint: str, outcome: Outcome, decided_by: str, decision: Decision, applied: Sequence[Counted]
) -> _Details:
    """The details of a decision, cached with its hits, because a subject refused once is often refused again."""
    near = hits_near_limit(decision)
    waits = map(truth, decision.reply[RETRY_AFTERS])
    result: tuple[object, ...] = (endpoint, outcome, decided_by, *waits, *(hit.key for hit in near))
    if outcome == "banned" and (begun := [ban for ban in decision.bans if ban.begun and not ban.hit.shadow]):
        now, first = time.time(), _new_details((endpoint, outcome, decided_by), decision, near, applied)
        first.rules = [*first.rules, *(((endpoint, ban.name, "bans"), 1) for ban in begun)]
        first.begun = [CountedBan(endpoint, ban.name, ban.hit.key, now, now + ban.retry_after) for ban in begun]
        return first
    known = memoized(decision.hits, _details_by_result)
    details = known.get(result)
    if details is None:
        details = known[result] = _new_details((endpoint, outcome, decided_by), decision, near, applied)
    return details


def _details_by_result(hits: tuple[Hit, ...]) -> dict[tuple[object, ...], _Details]:  # noqa: ARG001 - filled later
    return {}


def _new_details(labels: _Labels, decision: Decision, near: Sequence[Hit], applied: Sequence[Counted]) -> _Details:
    endpoint, *_ = labels
    rules: list[tuple[_RuleLabels, int]] = [
        ((endpoint, hit.name, "shadows" if hit.shadow else "refuses"), 1) for hit in refusing_hits(decision)
    ]
    rules += [((endpoint, hit.name, "near"), 1) for hit in near]
    return _Details(labels, rules, _refused_by(endpoint, decision, applied))


def _refused_by(endpoint: str, decision: Decision, applied: Sequence[Counted]) -> list[_Who]:
    """Each refused subject once: with its ban, otherwise the rule that refuses it with the longest window."""
    windows = {hit.name: hit.rule.time for hit in decision.hits}
    bans = {ban.name for ban in decision.bans}
    rules: dict[tuple[str, str], str] = {}
    for rule, *subject in sorted(refusals_of(decision, applied), key=lambda each: (each[0] in bans, windows[each[0]])):
        rules[subject[0], subject[1]] = rule
    return [(endpoint, rule, type_, short(subject)) for (type_, subject), rule in rules.items()]
