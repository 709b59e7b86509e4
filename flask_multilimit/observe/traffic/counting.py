"""Counts events in this process: a list to append to at each request, summed up when it is long, or once a second."""

from __future__ import annotations

from collections import Counter as Amounts
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import truth
from threading import Lock
from typing import TypeVar

from ...engine import Decision, Hit
from ...engine.forks import mind_forks
from ...engine.hits import memoized
from ..events import (
    OTHERS,
    Counted,
    Outcome,
    hits_near_limit,
    is_near_limit,
    refusals_of,
    refusing_hits,
    retry_afters,
)
from .counts import Check, Counts, Refused, RuleCount, RuleOutcome, short
from .heaviest import Heaviest

MOST_NAMES = 4096
"""Names of checks, and of rules, that are counted apart between two flushes."""
MOST_SUBJECTS = 1024
"""Counters for subjects."""
MOST_SENT = 100
"""Subjects that are handed on at each flush, those that were refused most."""
AT_ONCE = 200
"""Events that are summed up together."""

DENY_LIST, BAN_LIST = "(deny list)", "(banned by hand)"
"""In place of a rule, where a list refuses."""
_LIST_OF: dict[Outcome, str] = {"denied": DENY_LIST, "banned": BAN_LIST}

L = TypeVar("L")
_Labels = tuple[str, Outcome, str]
_RuleLabels = tuple[str, str, RuleOutcome]
_Who = tuple[str, str, str, str]
"""The fields of a :class:`Refused`, in a quarter of the time that it takes to make one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """What the rules of a check did. One is made for each way in which the same hits end, and counted by its
    identity."""

    rules: tuple[_RuleLabels, ...]
    subjects: tuple[_Who, ...]
    """Whom they refuse."""


class Counter:
    """Counts events until somebody takes what was counted. Thread-safe; a forked child starts with nothing.

    Memory is bounded: beyond :data:`MOST_NAMES` what is new counts as ``(others)``, and beyond :data:`MOST_SUBJECTS`
    the subjects that are refused rarely make room.
    """

    def __init__(self, *, subjects: bool) -> None:
        self._counts_subjects = subjects
        self._lock = Lock()
        self._seen: list[_Labels] = []
        """What is not summed up yet. Requests append without a lock, and only the end that was there is cut off."""
        self._marked: list[_Marks] = []
        self._start()
        mind_forks(self, inner=True)

    def count(
        self, endpoint: str, outcome: Outcome, decided_by: str, decision: Decision | None, applied: Sequence[Counted]
    ) -> None:
        """Count one event of these fields."""
        seen = self._seen
        seen.append((endpoint, outcome, decided_by))
        if decision is None:
            if applied and outcome != "unanswered":  # by a list
                self._marked.append(_marks_of_listed(endpoint, outcome, applied[0].subject))
        elif (outcome != "allowed" or is_near_limit(decision)) and outcome != "refunded":
            self._marked.append(_marks_of(endpoint, outcome, decision, applied))
        if len(seen) >= AT_ONCE:
            with self._lock:
                self._sum_up()

    def take(self) -> Counts:
        """What was counted since the last time."""
        with self._lock:
            self._sum_up()
            checks, rules, refused = self._checks, self._rules, self._refused
            if not checks:
                return Counts()
            self._start()
        return Counts(
            {Check(*labels): amount for labels, amount in checks.items()},
            {RuleCount(*labels): amount for labels, amount in rules.items()},
            {Refused(*who): amount for who, amount in refused.top(MOST_SENT).items()},
        )

    def _start(self) -> None:
        self._checks: dict[_Labels, int] = {}
        self._rules: dict[_RuleLabels, int] = {}
        self._refused: Heaviest[_Who] = Heaviest(MOST_SUBJECTS)

    # Under the lock

    def _sum_up(self) -> None:
        for check, amount in _taken_from(self._seen).items():
            _add(self._checks, check, (OTHERS, *check[1:]), amount)
        for marks, amount in _taken_from(self._marked).items():
            for rule in marks.rules:
                _add(self._rules, rule, (OTHERS, OTHERS, rule[2]), amount)
            if self._counts_subjects:
                for who in marks.subjects:
                    self._refused.add(who, amount)

    def _after_fork_in_child(self) -> None:
        """What was counted is the parent's to hand on."""
        self._lock = Lock()
        self._seen, self._marked = [], []
        self._start()


def _taken_from(seen: list[L]) -> Mapping[L, int]:
    """How often each stands in the list, and no more; what is appended meanwhile stays."""
    amount = len(seen)
    taken = seen[:amount]
    del seen[:amount]
    return Amounts(taken)


def _add(amounts: dict[L, int], name: L, others: L, amount: int) -> None:
    if name not in amounts and len(amounts) >= MOST_NAMES:
        name = others
    amounts[name] = amounts.get(name, 0) + amount


@lru_cache(maxsize=MOST_SUBJECTS)
def _marks_of_listed(endpoint: str, outcome: Outcome, subject: tuple[str, str]) -> _Marks:
    return _Marks((), ((endpoint, _LIST_OF.get(outcome, outcome), subject[0], short(subject[1])),))


def _marks_of(endpoint: str, outcome: Outcome, decision: Decision, applied: Sequence[Counted]) -> _Marks:
    """Kept with the hits, for who is refused once is refused again."""
    near, end = hits_near_limit(decision), (endpoint, *map(truth, retry_afters(decision)))
    if near:
        end += tuple([hit.key for hit in near])
    if outcome == "banned" and (begun := [ban.name for ban in decision.bans if ban.begun and not ban.hit.shadow]):
        return _new_marks(endpoint, decision, near, applied, begun)
    known = memoized(decision.hits, _marks_by_end)
    marks = known.get(end)
    if marks is None:
        marks = known[end] = _new_marks(endpoint, decision, near, applied)
    return marks


def _marks_by_end(hits: tuple[Hit, ...]) -> dict[tuple[object, ...], _Marks]:  # noqa: ARG001 - filled later
    return {}


def _new_marks(
    endpoint: str, decision: Decision, near: Sequence[Hit], applied: Sequence[Counted], begun: Sequence[str] = ()
) -> _Marks:
    rules: list[_RuleLabels] = [
        (endpoint, hit.name, "shadows" if hit.shadow else "refuses") for hit in refusing_hits(decision)
    ]
    rules += [(endpoint, hit.name, "near") for hit in near]
    rules += [(endpoint, name, "bans") for name in begun]
    who = [(endpoint, rule, type_, short(subject)) for rule, type_, subject in refusals_of(decision, applied)]
    return _Marks(tuple(rules), tuple(who))
