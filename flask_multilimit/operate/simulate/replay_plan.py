"""Which limits one endpoint checks for one client of a log, and what the log lacks for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flask import Response

from ...declare.limiter import Declaration
from ...declare.subjects import ANONYMOUS, EVERYONE, Subject, parts_of
from ...engine.algorithms.base import COUNTED
from ...engine.forks import cached_property
from ...engine.hits import BanHit
from ...engine.rules import Rules, rules_from
from ...plan.applied import Applied, AppliedLimits
from ...plan.endpoint import PlannedLimiter
from ...plan.plans import Plans
from ...serve.access import Action
from .logged import LoggedRequest
from .report import Counts, EndpointReport, RuleReport
from .resolving import USER, ClientLists, Destination, SubjectFinder, client_of

T = TypeVar("T")


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


@dataclass(slots=True, eq=False)
class ClientPlan:
    """The limits that are checked for one client at one destination, and where its requests are counted."""

    client: str
    destination: ReplayPlan
    limits: AppliedLimits
    """Without hits if no limit applies."""
    rules: tuple[RuleReport, ...]
    """Those of the hits, in the same order."""
    banned: tuple[list[str], ...]
    """Those of the bans among the hits, in the same order."""
    missing: tuple[str, ...] = ()
    """What the log does not say about this client."""
    listed: Action | None = None
    """The list that the client is on, if any: then no limit is checked."""
    requests: int = 0
    """The requests that are counted nowhere else yet."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayPlans:
    """The plans of one set of limits, and what they need to know about the log."""

    limits: Plans
    finder: SubjectFinder
    replacements: Replacements
    lists: ClientLists
    endpoint: str | None = None
    """The only endpoint to report on; ``None``: all."""
    reported: Counts = field(init=False, default_factory=Counts)
    known: dict[Destination, ReplayPlan] = field(init=False, default_factory=dict)
    """The plans of the destinations so far."""

    def at(self, destination: Destination) -> ReplayPlan:
        plan = self.known.get(destination)
        if plan is None:
            plan = self.known[destination] = ReplayPlan(destination, self)
        return plan

    def counts_at(self, name: str) -> Counts:
        """Where requests to the destination of this name are counted."""
        return self.reported if self.endpoint in {None, name} else Counts()


class ReplayPlan:
    """The limiters of one destination, with values in place of their callables."""

    def __init__(self, destination: Destination, plans: ReplayPlans) -> None:
        self.destination = destination
        self.notes: list[str] = []
        """What the replay does differently for every request to this destination."""
        self.requests: int = 0
        """The requests of clients that are counted."""
        self._plans = plans
        self._counts = plans.counts_at(destination.name)
        self.endpoint: EndpointReport = self._counts.endpoint(destination.name)
        limiters = self._limiters_of(plans.limits)
        self._limiters = [known for each in limiters if (known := self._replayable(each)) is not None]
        self.notes += self._unused(limiters)
        self._types = {limiter.type: limiter for limiter in self._limiters}
        for limiter in self._limiters:  # those of any subject, so that a rule that is never asked is reported, too
            for rule in _rules_of(AppliedLimits([limiter.applied_to(EVERYONE)])):
                self._counts.rule(rule)

    def _limiters_of(self, limits: Plans) -> tuple[PlannedLimiter, ...]:
        endpoint, method = self.destination.endpoint, self.destination.method
        if self.destination.reach == "unmatched":
            return limits.of_unmatched(method).limiters
        if endpoint in limits.app.view_functions:
            return limits.of_endpoint(endpoint, method).limiters
        self.notes.append(f'no endpoint is called "{endpoint}" any more: not limited')
        return ()

    def _unused(self, limiters: Sequence[PlannedLimiter]) -> Iterator[str]:
        """What is given for this endpoint or its ``limiters``, but takes the place of nothing."""
        given, endpoint = self._plans.replacements, self.destination.endpoint
        for option, names, what, replaces in (
            ("--cost", given.costs, "a cost by request", lambda each: callable(each.declaration.cost)),
            ("--rules", given.rules, "rules by request", lambda each: each.dynamic is not None),
            ("--priority", given.priorities, "a reserve", lambda each: each.declaration.reserve is not None),
        ):
            for name in names:
                named = [each for each in limiters if name in {endpoint, each.declaration.name}]
                if (named or name == endpoint) and not any(map(replaces, named)):
                    yield f"{option} {name}: not used, because no limit there has {what}"

    def for_client_of(self, request: LoggedRequest) -> ClientPlan:
        """The plan for the client of ``request``: one for requests whose duration is known, another for the rest."""
        subjects, lists = self._plans.finder.subjects_of(request), self._plans.lists
        resolve = self._plans.limits.subjects.given(subjects)
        client = client_of(subjects, resolve)
        listed = lists.of(request, subjects)
        if listed is not None:
            return replace(self._plan(client, (), ()), listed=listed)
        found = {name: resolve(each.declaration.type, each.declaration.name) for name, each in self._types.items()}
        missing = lists.missing(request)
        if request.recorded is None:
            missing += tuple(note for each in self._limiters for note in self._missing(each, subjects))
        counting = [(each, subject) for each in self._limiters if (subject := found[each.type]) is not None]
        if request.took is None and any(each.has_slots for each, _ in counting):
            missing += (NO_SLOTS,)
            counting = [(each.without_slots, subject) for each, subject in counting]
        return self._plan(client, counting, missing)

    def _plan(self, client: str, counting: Sequence[tuple[_Limiter, Subject]], missing: tuple[str, ...]) -> ClientPlan:
        limits = AppliedLimits(limiter.applied_to(subject) for limiter, subject in counting)
        replayed = _rules_of(limits)
        rules = tuple(map(self._counts.rule, replayed))
        for rule in rules:
            rule.endpoints.setdefault(self.endpoint.name, 0)
        banned = tuple(self._counts.banned[each] for each in replayed if each.is_ban)
        return ClientPlan(client, self, limits, rules, banned, missing)

    def _replayable(self, limiter: PlannedLimiter) -> _Limiter | None:
        """The limiter with values in place of its callables; ``None`` if its rules are not given."""
        declared, given = limiter.declaration, self._plans.replacements
        if declared.exempt_when is not None:
            self.notes.append(f"exempt_when of {declared.where}: taken as never exempt")
        if limiter.dynamic is not None:
            rules = _replacement(given.rules, self.destination, declared)
            if rules is None:
                name = declared.name or self.destination.name
                self.notes.append(
                    f"rules by request of {declared.where}: not replayed; give them (--rules {name}=RULES)"
                )
                return None
            named = tuple((declared.name_of(rule), rule) for rule in rules_from(rules))
            limiter = replace(limiter, rules=named, dynamic=None)
        priority = _replacement(given.priorities, self.destination, declared)
        if declared.reserve is not None and priority is None:
            self.notes.append(f"priorities of {declared.where}: taken as requests without one; give it (--priority)")
        cost = _replacement(given.costs, self.destination, declared) if callable(declared.cost) else declared.cost
        if cost is None:
            self.notes.append(f"cost by request of {declared.where}: taken as 1; give it (--cost)")
        return _Limiter(limiter, 1 if cost is None else cost, priority)

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
        self.parts = parts_of(self.declaration.type, self.declaration.name)
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


def _rules_of(limits: AppliedLimits) -> tuple[RuleReport, ...]:
    owners = limits.owners
    owned = ((hit, owners[hit.key].declaration) for hit in limits.hits)
    return tuple(
        RuleReport(hit.name, by.where, by.type_name, str(hit.rule), hit.shadow, isinstance(hit, BanHit))
        for hit, by in owned
    )


def _replacement(given: Mapping[str, T], destination: Destination, declared: Declaration) -> T | None:
    names = (destination.endpoint, declared.name or "")
    return next((given[name] for name in names if name in given), None)


def charge_stands(declared: Declaration, status: int) -> bool | None:
    """Whether a charge that depends on the response stays. ``None``: the status, all that a log has, does not tell."""
    if declared.charge_when is None or not 100 <= status <= 599:
        return None
    responses = (Response(status=status, headers=headers) for headers in ({}, {"ETag": '"x"'}))  # see ChargeWhenStatus
    try:
        stays, may_stay = map(bool, map(declared.charge_when, responses))
    except Exception:
        return None
    return stays if stays == may_stay else None
