"""Which limits one endpoint checks for one client of a log, and what the log lacks for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

from flask import Response

from ...declare.limiter import Declaration
from ...declare.subjects import ANONYMOUS, EVERYONE, Subject, parts_of
from ...engine.algorithms.base import COUNTED
from ...engine.hits import BanHit
from ...engine.rules import Rules, rules_from
from ...plan.endpoint import PlannedLimiter
from ...plan.hits import Applied, AppliedLimits
from ...plan.plans import Plans
from ...serve.access import Action
from .logged import LoggedRequest
from .resolving import USER, ClientLists, Destination, SubjectFinder, client_of

T = TypeVar("T")


class ReplayedRule(NamedTuple):
    """A rule of a limiter, for all subjects."""

    name: str
    limiter: str
    """Where it was declared."""
    type: str
    text: str
    shadow: bool
    is_ban: bool


@dataclass(frozen=True, slots=True)
class Replacements:
    """What the log does not contain, and the user gives: by endpoint, or by the name of a limiter."""

    costs: Mapping[str, int] = field(default_factory=dict)
    """Units that replace a callable."""
    rules: Mapping[str, Rules] = field(default_factory=dict)
    """Rules that replace a callable."""
    priorities: Mapping[str, str] = field(default_factory=dict)
    """The priority of all requests, which replaces a callable."""
    cost_field: str = ""
    """The field of the log with the real cost of a request; in a recording, the name of a limiter."""


def real_cost_in(request: LoggedRequest, field: str) -> int | None:
    """What ``request`` really cost, by a field of the log, or by the limiter of that name in a recording; ``None`` if
    there is no whole number."""
    if request.recorded is not None:
        return request.recorded.costs.get(field)
    text = request.fields.get(field, "")
    return min(int(text), COUNTED) if len(text) < 20 and text.isascii() and text.isdecimal() else None


NO_SLOTS = "concurrency limits: not replayed where the log does not say how long a request took"
NO_LEAST = 1 << 62
"""Stands for the fewest units left if no request was admitted."""


@dataclass(slots=True)
class Tally:
    """The outcomes of the requests to one destination."""

    requests: int = 0
    unlimited: int = 0
    allowed: int = 0
    denied: int = 0
    admitted: int = 0
    shadowed: int = 0
    delayed: int = 0
    refused: int = 0
    really_refused: int = 0
    now_admitted: int = 0
    differing: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    least: list[int] = field(default_factory=list)
    """The fewest units left, by the index of the hit; a negative number is 0, and says when one is free again."""
    refusals: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """The refusals, by the indexes of the rules that refused together."""
    banned: list[tuple[int, str]] = field(default_factory=list)
    """The index and the client of each ban that began."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What is the same for all clients that are checked against the same rules at one destination."""

    destination: Destination
    rules: tuple[ReplayedRule, ...]
    """The rules of the hits, in the same order."""
    bans: tuple[int, ...]
    """The indexes of bans among the rules."""
    tally: Tally


@dataclass(slots=True, eq=False)
class ClientPlan:
    """The limits that are checked for one client at one destination."""

    client: str
    shape: Shape
    limits: AppliedLimits
    """Without hits if no limit applies."""
    missing: tuple[str, ...] = ()
    """What the log does not say about this client."""
    listed: Action | None = None
    """The list that the client is on, if any: then no limit is checked."""
    requests: int = 0
    """The requests that :class:`.Clients` has not counted yet."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayPlans:
    """The plans of one set of limits, and what they need to know about the log."""

    limits: Plans
    finder: SubjectFinder
    replacements: Replacements
    lists: ClientLists | None
    known: dict[Destination, ReplayPlan] = field(init=False, default_factory=dict)
    """The plans of the destinations so far."""

    def of(self, destination: Destination) -> ReplayPlan:
        plan = self.known.get(destination)
        if plan is None:
            plan = self.known[destination] = ReplayPlan(destination, self)
        return plan


class ReplayPlan:
    """The limiters of one destination, with values in place of their callables."""

    def __init__(self, destination: Destination, plans: ReplayPlans) -> None:
        self.destination = destination
        self.notes: list[str] = []
        """What the replay does differently for every request to this destination."""
        self._plans = plans
        limiters = self._limiters_of(plans.limits)
        self._limiters = [_Limiter(*known) for each in limiters if (known := self._replayable(each)) is not None]
        self._types = {limiter.type: limiter for limiter in self._limiters}
        self.shapes: dict[tuple[ReplayedRule, ...], Shape] = {}
        """By the rules that are checked."""
        self.rules: list[ReplayedRule] = [
            rule
            for limiter in self._limiters
            for rule in _rules_of(AppliedLimits([limiter.applied_to(EVERYONE)]))  # the rules are those of any subject
        ]

    def _limiters_of(self, limits: Plans) -> tuple[PlannedLimiter, ...]:
        endpoint, method = self.destination.endpoint, self.destination.method
        if self.destination.reach == "unmatched":
            return limits.of_unmatched(method).limiters
        if endpoint in limits.app.view_functions:
            return limits.of_endpoint(endpoint, method).limiters
        if endpoint:
            self.notes.append(f'no endpoint is called "{endpoint}" any more: not limited')
        return ()

    def of(self, request: LoggedRequest) -> ClientPlan:
        """The plan for the client of ``request``: one for requests whose duration is known, another for the rest."""
        subjects, lists = self._plans.finder.subjects_of(request), self._plans.lists
        resolve = self._plans.limits.subjects.given(subjects)
        client = client_of(subjects, resolve)
        listed = lists.of(request, subjects) if lists is not None else None
        if listed is not None:
            return replace(self._plan(client, (), ()), listed=listed)
        found = {type_: resolve(limiter.declared_type, limiter.name) for type_, limiter in self._types.items()}
        missing = lists.missing(request) if lists is not None else ()
        if request.recorded is None:
            missing += tuple(note for each in self._limiters for note in self._missing(each, subjects))
        counting = [(each, subject) for each in self._limiters if (subject := found[each.type]) is not None]
        if request.took is None and any(each.has_slots for each, _ in counting):
            missing += (NO_SLOTS,)
            counting = [(each.without_slots, subject) for each, subject in counting]
        return self._plan(client, counting, missing)

    def _plan(self, client: str, counting: Sequence[tuple[_Limiter, Subject]], missing: tuple[str, ...]) -> ClientPlan:
        limits = AppliedLimits(limiter.applied_to(subject) for limiter, subject in counting)
        rules = _rules_of(limits)
        if rules not in self.shapes:
            bans = tuple(place for place, rule in enumerate(rules) if rule.is_ban)
            self.shapes[rules] = Shape(self.destination, rules, bans, Tally(least=[NO_LEAST] * len(rules)))
            self.rules += rules
        return ClientPlan(client, self.shapes[rules], limits, missing)

    def _replayable(self, limiter: PlannedLimiter) -> tuple[PlannedLimiter, int, str | None] | None:
        """The limiter with values in place of its callables, its cost, and the priority of its requests; ``None`` if
        its rules are not given."""
        declared, given = limiter.declaration, self._plans.replacements
        if declared.exempt_when is not None:
            self.notes.append(f"exempt_when of {declared.where}: taken as never exempt")
        if limiter.dynamic is not None:
            rules = _replacement(given.rules, self.destination, declared)
            if rules is None:
                self.notes.append(f"rules by request of {declared.where}: not replayed; give them (--rules)")
                return None
            named = tuple((rule.name or f"{declared.shown_name}-{rule.window}", rule) for rule in rules_from(rules))
            limiter = replace(limiter, rules=named, dynamic=None)
        priority = _replacement(given.priorities, self.destination, declared)
        if declared.reserve is not None and priority is None:
            self.notes.append(f"priorities of {declared.where}: taken as requests without one; give it (--priority)")
        if not callable(declared.cost):
            return limiter, declared.cost, priority
        cost = _replacement(given.costs, self.destination, declared)
        if cost is None:
            self.notes.append(f"cost by request of {declared.where}: taken as 1; give it (--cost)")
        return limiter, 1 if cost is None else cost, priority

    def _missing(self, limiter: _Limiter, subjects: Mapping[str, str]) -> list[str]:
        declared, parts, finder = limiter.declaration, limiter.parts, self._plans.finder
        notes = [
            f"type {part!r} of {declared.where}: the log does not say it; name a field (--subject {part}=FIELD)"
            for part in parts
            if not finder.finds(part)
        ]
        notes += [
            f"header {finder.fields[part]}: where the log does not have it, it is taken as not sent"
            for part in parts
            if part in finder.headers and not subjects[part]
        ]
        if USER in parts and ANONYMOUS in subjects:
            notes.append("users: where the log names none, nobody is taken to be logged in")
        return notes


class _Limiter:
    """A limiter, with what is the same for all its subjects."""

    def __init__(self, planned: PlannedLimiter, cost: int, priority: str | None) -> None:
        self.planned = planned
        self.declaration: Declaration = planned.declaration
        self.declared_type = self.declaration.type
        self.name = self.declaration.name
        self.parts = parts_of(self.declared_type, self.name)
        self.type = (self.declaration.type_name, *self.parts)
        """Equal for limiters whose subjects are the same."""
        self.has_slots = any(rule.holds_slots for _, rule in planned.rules)
        self._cost = cost
        self._priority = priority

    @cached_property
    def without_slots(self) -> _Limiter:
        rules = tuple((name, rule) for name, rule in self.planned.rules if not rule.holds_slots)
        return _Limiter(replace(self.planned, rules=rules), self._cost, self._priority)

    def applied_to(self, subject: Subject) -> Applied:
        hits = self.planned.hits(subject, self._cost, priority=self._priority) or ()
        return Applied(self.declaration, subject, hits)


def _rules_of(limits: AppliedLimits) -> tuple[ReplayedRule, ...]:
    owners = limits.owners
    owned = ((hit, owners[hit.key].declaration) for hit in limits.hits)
    return tuple(
        ReplayedRule(hit.name, by.where, by.type_name, str(hit.rule), hit.shadow, isinstance(hit, BanHit))
        for hit, by in owned
    )


def _replacement(given: Mapping[str, T], destination: Destination, declared: Declaration) -> T | None:
    names = (destination.endpoint, declared.name or "")
    return next((given[name] for name in names if name in given), None)


def charge_stands(declared: Declaration, status: int) -> bool | None:
    """Whether a charge that depends on the response stays. A log contains only the status; ``None`` if that is not
    enough to tell."""
    if declared.charge_when is None or not 100 <= status <= 599:
        return None
    try:
        return bool(declared.charge_when(Response(status=status)))
    except Exception:
        return None
