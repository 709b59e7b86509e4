"""What the plan of one endpoint asks for one client of a log, and what of it the log cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flask import Response

from ...declare.limiter import Declaration
from ...declare.subjects import ANONYMOUS, Subjects, parts_of
from ...engine.rules import Rules, rules_from
from ...plan.endpoint import Applied, AppliedLimits, Plan, PlannedLimiter
from .logs.logged import LoggedRequest
from .routes import Place
from .who import USER, Who, client_of

T = TypeVar("T")

RuleKey = tuple[str, str, str]
"""A rule of a limiter, wherever it applies: where it was declared, its name, its text."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the log cannot tell, said by whoever asks. By endpoint, or by the name of a limiter."""

    costs: Mapping[str, int] = field(default_factory=dict)
    """Units, in place of a callable."""
    rules: Mapping[str, Rules] = field(default_factory=dict)
    """Rules, in place of a callable."""


@dataclass(slots=True)
class Client:
    """What becomes of one client."""

    name: str
    requests: int = 0
    refused: int = 0
    first_refused: int = 0
    longest_lockout: float = 0.0
    locked: dict[str, int] | None = None
    """Since when, by endpoint."""


@dataclass(slots=True)
class Tally:
    """What becomes of the requests to one place."""

    requests: int = 0
    unlimited: int = 0
    admitted: int = 0
    shadowed: int = 0
    delayed: int = 0
    refused: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    least: list[int] = field(default_factory=list)
    """The fewest units left, by the place of the hit."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What one client is asked at one place."""

    place: Place
    client: Client
    applied: AppliedLimits
    rules: tuple[RuleKey, ...]
    """Those of the hits, in their order."""
    shadows: tuple[bool, ...]
    tally: Tally
    untold: tuple[str, ...]
    """What the log does not tell of this client."""
    is_plain: bool
    """Whether an admission needs no second look: no shadow, nobody waits, no charge depends on the response."""


class Asking:
    """The limiters of one place, with what stands for their callables."""

    def __init__(self, place: Place, plan: Plan | None, subjects: Subjects, who: Who, given: Given) -> None:
        self.place = place
        self.name: str = place.endpoint or place.kind
        self.notes: list[str] = []
        """What is replayed differently, for every request here."""
        self._subjects = subjects
        self._who = who
        self._given = given
        limiters = plan.limiters if plan else ()
        self._limiters = [known for each in limiters if (known := self._known(each)) is not None]
        self._tallies: dict[tuple[RuleKey, ...], Tally] = {}
        self._rules = {
            (limiter.declaration.where, name, str(rule)): (limiter.declaration.type_name, limiter.declaration.shadow)
            for limiter, _ in self._limiters
            for name, rule in limiter.rules
        }

    def of(self, request: LoggedRequest, client_named: Callable[[str], Client]) -> Asked:
        """For the client of ``request``."""
        subjects = self._who.subjects_of(request)
        resolve = self._subjects.given(subjects)
        applied, untold = [], []
        for limiter, cost in self._limiters:
            declared = limiter.declaration
            subject = resolve(declared.type, declared.name)
            if request.recorded is None:
                untold += self._untold(declared, subjects)
            if subject is not None:
                hits = limiter.hits(subject, cost, asking=False)
                applied.append(Applied(declared, subject, tuple(hit for hit in hits if not hit.rule.holds_slots)))
        limits = AppliedLimits(applied)
        rules = tuple((_where(limits, hit.key), hit.name, str(hit.rule)) for hit in limits.hits)
        for each in applied:  # also the rules that a subject has of its own
            for hit in each.hits:
                known = (each.declaration.where, hit.name, str(hit.rule))
                self._rules.setdefault(known, (each.declaration.type_name, hit.shadow))
        shadows = tuple(hit.shadow for hit in limits.hits)
        tally = self._tallies.setdefault(rules, Tally(least=[1 << 62] * len(rules)))
        is_plain = not (any(shadows) or limits.may_wait or limits.reserved) and not any(
            hit.rule.max_delay for hit in limits.hits
        )
        client = client_named(client_of(subjects))
        return Asked(self.place, client, limits, rules, shadows, tally, tuple(untold), is_plain)

    @property
    def tallies(self) -> Mapping[tuple[RuleKey, ...], Tally]:
        return self._tallies

    @property
    def rules(self) -> Mapping[RuleKey, tuple[str, bool]]:
        """Every rule, with its type and whether it is a shadow."""
        return self._rules

    def _known(self, limiter: PlannedLimiter) -> tuple[PlannedLimiter, int] | None:
        declared = limiter.declaration
        if declared.exempt_when is not None:
            self.notes.append(f"exempt_when of {declared.where}: taken as never exempt")
        if limiter.dynamic is not None:
            rules = _said(self._given.rules, self.place, declared)
            if rules is None:
                self.notes.append(f"rules by request of {declared.where}: not replayed; give them (--rules)")
                return None
            kind = declared.name or declared.type_name
            named = tuple((rule.name or f"{kind}-{rule.window}", rule) for rule in rules_from(rules))
            limiter = replace(limiter, rules=named, dynamic=None)
        if declared.reserve is not None:
            self.notes.append(f"priorities of {declared.where}: every request is taken as one without")
        limiter = self._without_slots(limiter)
        if not callable(declared.cost):
            return limiter, declared.cost
        cost = _said(self._given.costs, self.place, declared)
        if cost is None:
            self.notes.append(f"cost by request of {declared.where}: taken as 1; give it (--cost)")
        return limiter, 1 if cost is None else cost

    def _without_slots(self, limiter: PlannedLimiter) -> PlannedLimiter:
        """A log does not tell when a request was over: that is when it gives its slot back."""
        rules = tuple((name, rule) for name, rule in limiter.rules if not rule.holds_slots)
        if len(rules) == len(limiter.rules):
            return limiter
        self.notes.append(f"what runs at once, of {limiter.declaration.where}: not replayed; no log tells how long")
        return replace(limiter, rules=rules)

    def _untold(self, declared: Declaration, subjects: Mapping[str, str]) -> list[str]:
        parts = parts_of(declared.type, declared.name)
        notes = [
            f"type {part!r} of {declared.where}: the log does not tell it; name a field (--subject {part}=FIELD)"
            for part in parts
            if not self._who.tells(part)
        ]
        notes += [
            f"header {self._who.fields[part]}: where the log does not have it, it is taken as not sent"
            for part in parts
            if part in self._who.headers and not subjects[part]
        ]
        if USER in parts and ANONYMOUS in subjects:
            notes.append("users: where the log names none, nobody is taken to be logged in")
        return notes


def _where(limits: AppliedLimits, key: str) -> str:
    """Where the limiter was declared whose hit has this key."""
    return next(each.declaration.where for each in limits for hit in each.hits if hit.key == key)


def _said(given: Mapping[str, T], place: Place, declared: Declaration) -> T | None:
    names = (place.endpoint, declared.name or "")
    return next((given[name] for name in names if name in given), None)


class Charging:
    """Whether a charge that depends on the response stands, by its status: that is all a log tells of it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Declaration, int], bool | None] = {}

    def stands(self, declared: Declaration, status: int) -> bool | None:
        """``None``: the status is not enough to tell."""
        place = (declared, status)
        if place not in self._known:
            self._known[place] = self._ask(declared, status)
        return self._known[place]

    @staticmethod
    def _ask(declared: Declaration, status: int) -> bool | None:
        if declared.charge_when is None or not 100 <= status <= 599:
            return None
        try:
            return bool(declared.charge_when(Response(status=status)))
        except Exception:
            return None
