"""What is left for the client of the current request, as it may see it: nothing about others, no keys, no changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeVar, cast

from werkzeug.exceptions import HTTPException

from ..declare.dynamic import DynamicRules, NoRules
from ..declare.subjects import Subject, ask_callable, numbered
from ..engine import Calendar, ConfigurationError, Decision, Hit, Rule, RuleStatus
from ..engine.decision import FALLBACKS
from ..engine.hits import BanHit, Hits
from ..engine.periods import Period
from ..plan.applied import Applied, strictest
from ..serve.gate import AppGate
from ..serve.headers import unit_of
from ..signals import log_once_a_minute
from .limits import ListedLimiter, Place, places_of
from .standing import rule_standing
from .values import Described

T = TypeVar("T")
State = Literal["limited", "allowed", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Described):
    """What is left of one limit."""

    label: str
    """For people."""
    policy: str
    """The name of the limit in the header field ``RateLimit``."""
    scope: str
    """The endpoint, or the name that several endpoints share."""
    methods: tuple[str, ...] | None
    """The methods that it counts; ``null``: all."""
    limit: int
    remaining: int
    used: int | None
    """``null`` where ``estimated``: one process does not know what others let pass."""
    reset: int
    """The instant when all of it is free again if nothing else is used until then."""
    reset_after: float
    retry_after: float | None
    """When a request passes again; 0: now; ``null``: never, or nobody knows when one in progress ends."""
    window: float | None
    """Seconds in which the limit counts, or in which it comes back if units do so little by little; ``null`` for a
    calendar, and for requests in progress."""
    period: Period | None
    """The period of a calendar, which begins anew at ``reset``; ``null`` for any other limit."""
    timezone: str | None
    """Where the periods of a calendar begin."""
    unit: str
    """What it counts: ``requests``, ``concurrent-requests``, or what the limiter says, such as ``tokens``."""
    text: str
    """The limit for people."""


@dataclass(frozen=True, slots=True)
class BannedFrom(Described):
    """A ban that followed from refusals."""

    policy: str
    scope: str
    until: int
    """The instant of its end."""
    retry_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas(Described):
    """What is left for a client."""

    at: float
    state: State
    """``allowed``: the client is on a list of clients without limits; ``disabled``: nobody is limited."""
    resources: Mapping[str, Quota]
    """By scope and name; the order is that of the endpoints."""
    bans: tuple[BannedFrom, ...]
    unknown: tuple[str, ...]
    """Limits of which nothing is known for this request, such as those by an API key that it does not have, and those
    that let everything pass in an outage."""
    estimated: bool
    """Whether the storage of the limits is down: ``remaining`` is what one process lets pass meanwhile."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which limits are asked for: all, or those of some endpoints, or with some names."""

    endpoints: tuple[str, ...] = ()
    """Names or patterns."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Names of rules or of limiters, with labels for people."""

    def has(self, place: Place) -> bool:
        """Whether an endpoint is wanted; one of static files only by its name."""
        if not self.endpoints:
            return not place.has_files
        return any(fnmatchcase(place.name, pattern) for pattern in self.endpoints)

    def label(self, limiter: str, policy: str) -> str | None:
        """The label of a limit; ``None`` if it is not wanted."""
        if not self.limits:
            return ""
        label = self.limits.get(policy, self.limits.get(limiter))
        return None if label is None else str(label)  # a lazy text is translated for each request

    def require_known(self, gate: AppGate) -> None:
        """Raise :class:`ConfigurationError` for an endpoint or a limit that the app does not declare. One that an
        operator has switched off is no mistake."""
        if not self.endpoints and not self.limits:
            return
        places = places_of(gate)
        for pattern in self.endpoints:
            if not any(fnmatchcase(place.name, pattern) for place in places):
                raise ConfigurationError(f'Usage: endpoints: no endpoint is called "{pattern}"')
        declared = (limiter for plan in gate.plans.declared.made for limiter in plan.limiters)  # each request asks
        listed = [*declared, *(each.planned for place in places for each in place.limiters)]
        known = {name for each in listed for name in (each.declaration.shown_name, *dict(each.rules))}
        unknown = [name for name in self.limits if name not in known]
        if unknown and not any(each.dynamic for each in listed):
            raise ConfigurationError(f'Usage: limits: no limit is called "{unknown[0]}"; there are {", ".join(known)}')


class _Counting(NamedTuple):
    """A limiter that counts the client, and its hits."""

    listed: ListedLimiter
    applied: Applied


def quotas_of_client(gate: AppGate, wanted: Wanted) -> Quotas:
    """What is left for the client of the current request. Charges nothing, in one command. Raises
    :class:`StorageError` where limits say so."""
    at = time.time()
    if not gate.settings.enabled or gate.allows():
        state: State = "allowed" if gate.settings.enabled else "disabled"
        return Quotas(at=at, state=state, resources={}, bans=(), unknown=(), estimated=False)
    client_limits = _ClientLimits(gate)
    counting = [each for listed in _listed(gate, wanted) for each in client_limits.applied(listed)]
    owned = [(hit, each) for each in counting for hit in _wanted_hits(each, wanted)]
    hits = strictest(hit for hit, _ in owned)
    counted = set(hits)
    owners = {hit.key: each for hit, each in reversed(owned) if hit in counted}
    decision = gate.limiter.peek(Hits(hits)) if hits else None
    estimated = decision is not None and decision.decided_by in FALLBACKS
    if estimated:
        policy = gate.settings.on_storage_error
        for passing in [owners.pop(hit.key) for hit in hits if (hit.on_storage_error or policy) == "allow"]:
            client_limits.unknown[f"{passing.listed.scope}:{passing.applied.declaration.shown_name}"] = None
    return Quotas(
        at=at,
        state="limited",
        resources={} if decision is None else dict(_resources(decision, owners, wanted, at, estimated=estimated)),
        bans=() if decision is None else tuple(_bans(decision, owners, at)),
        unknown=tuple(client_limits.unknown),
        estimated=estimated,
    )


def _listed(gate: AppGate, wanted: Wanted) -> Iterator[ListedLimiter]:
    """The limiters that are wanted; each quota once, not once for each endpoint that shares it."""
    found: dict[object, ListedLimiter] = {}
    for place in places_of(gate):
        if wanted.has(place):
            for each in place.limiters:
                if not each.planned.declaration.shadow or gate.settings.shadow_headers:
                    found.setdefault((each.planned.stem, each.planned.declaration), each)
    return iter(found.values())


class _ClientLimits:
    """The limiters that count the client. Each subject and each callable for rules is asked once, for all endpoints."""

    def __init__(self, gate: AppGate) -> None:
        self._gate = gate
        self._known: dict[object, Any] = {}
        self._reported: list[Exception] = []
        self.unknown: dict[str, None] = {}

    def applied(self, listed: ListedLimiter) -> Iterator[_Counting]:
        """The limiter with its hits, if it counts the client."""
        declared = listed.planned.declaration
        try:
            subject = self._ask_once(
                (id(declared.type), declared.name),
                lambda: self._gate.subjects.resolve(declared.type, declared.name),
            )
            if subject is None:
                return
            cost = 1 if callable(declared.cost) else declared.cost
            hits = listed.planned.hits(subject, cost, rules_of=self._rules_of)
        except Exception as error:
            self._report(listed, error)
        else:
            yield _Counting(listed, Applied(declared, subject, hits or ()))

    def _rules_of(self, dynamic: DynamicRules, subject: Subject) -> tuple[Rule, ...]:
        return dynamic.peek(subject, self._ask_for_rules)  # which knows the last good ones of this limiter

    def _ask_for_rules(self, function: Callable[..., object], *arguments: object) -> object:
        def ask() -> object:
            given = ask_callable(function, *arguments)
            return tuple(given) or given if isinstance(given, Iterator) else given

        return self._ask_once((id(function), arguments), ask)

    def _ask_once(self, question: object, ask: Callable[[], T]) -> T:
        """What ``ask`` returned or raised when this ``question`` was asked first."""
        if question not in self._known:
            try:
                self._known[question] = ask()
            except Exception as error:
                self._known[question] = error
        known = self._known[question]
        if isinstance(known, Exception):
            raise known
        return cast("T", known)

    def _report(self, listed: ListedLimiter, error: Exception) -> None:
        """Log ``error``, unless rules by request have logged it, or it is an answer to the client (an HTTP error)."""
        name = f"{listed.scope}:{listed.planned.declaration.shown_name}"
        if not isinstance(error, (NoRules, HTTPException)) and error not in self._reported:
            log_once_a_minute(self._gate.app, error, "Usage: what is left of %s is not known", name)
            self._reported.append(error)
        self.unknown[name] = None


def _wanted_hits(counting: _Counting, wanted: Wanted) -> list[Hit]:
    limiter, hits = counting.applied.declaration.shown_name, counting.applied.hits
    found = [hit for hit in hits if isinstance(hit, BanHit) or wanted.label(limiter, hit.name) is not None]
    return found if any(not isinstance(hit, BanHit) for hit in found) else []


def _resources(
    decision: Decision, owners: Mapping[str, _Counting], wanted: Wanted, at: float, *, estimated: bool
) -> Iterator[tuple[str, Quota]]:
    taken: set[str] = set()
    banned = {id(owners.get(ban.hit.key)): ban.retry_after for ban in decision.bans if not ban.hit.shadow}
    for status in decision.statuses:
        if not isinstance(status.hit, BanHit) and status.hit.key in owners:
            owner = owners[status.hit.key]
            quota = _quota(status, owner, wanted, _reset(decision, status, at), estimated=estimated)
            if quota.retry_after is not None:  # a limiter that has banned the client refuses until the ban ends
                quota = replace(quota, retry_after=max(quota.retry_after, banned.get(id(owner), 0.0)))
            methods = "" if quota.methods is None else f"{','.join(quota.methods)} "
            name = numbered(f"{methods}{quota.scope}:{quota.policy}", taken)  # two keys may differ in prefixes alone
            taken.add(name)
            yield name, quota


def _quota(status: RuleStatus, owner: _Counting, wanted: Wanted, reset: int, *, estimated: bool) -> Quota:
    rule = rule_standing(status, owner.applied)
    return Quota(
        label=wanted.label(owner.applied.declaration.shown_name, rule.name) or rule.name,
        policy=rule.name,
        scope=owner.listed.scope,
        methods=owner.listed.methods,
        limit=rule.quota,
        remaining=rule.remaining,
        used=None if estimated else rule.used,
        reset=reset,
        reset_after=rule.reset_after,
        retry_after=rule.retry_after,
        window=_window(status.rule),
        period=rule.per,
        timezone=rule.timezone,
        unit=unit_of(status.hit),
        text=rule.text,
    )


def _window(rule: Rule) -> float | None:
    quota = rule.quota
    if rule.holds_slots or isinstance(rule, Calendar):
        return None
    return rule.time if quota.full == quota.count else rule.time * quota.full / quota.count


def _reset(decision: Decision, status: RuleStatus, at: float) -> int:
    """The instant of the reset; of a calendar, a whole second by the server's clock, which may differ from ours."""
    if isinstance(status.rule, Calendar):
        return round(decision.at / 1_000_000 + status.reset_after)
    return math.ceil(at + status.reset_after)


def _bans(decision: Decision, owners: Mapping[str, _Counting], at: float) -> Iterator[BannedFrom]:
    for ban in decision.bans:
        if ban.holds and not ban.hit.shadow:
            scope = owners[ban.hit.key].listed.scope
            yield BannedFrom(ban.name, scope, math.ceil(at + ban.retry_after), ban.retry_after)
