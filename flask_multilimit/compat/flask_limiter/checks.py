"""All limits of one check as a question to the storage, its answer, and ``RequestLimit``, which shows that to apps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from flask import Response

from flask_multilimit import ConfigurationError, Decision
from flask_multilimit.engine import Hit, Hits, RuleStatus

from .declared import KeyFunction, MetaLimit, RuntimeLimit
from .items import RateLimitItem
from .places import LimitsIn, Place
from .storage import Strategy, Terms, WindowStats, hit_for


class AppliedLimit(NamedTuple):
    """A limit, or a meta limit, that applies to a request."""

    limit: RuntimeLimit
    identifiers: tuple[str, ...]
    """The prefix if there is one, the key, the scope."""
    cost: int
    watched: tuple[RuntimeLimit, ...] | None = None
    """For a meta limit: the limits whose refusals it counts; ``None``: all."""
    key: str = ""
    """The key of its hit, if it is part of a question."""
    stem: str = ""
    """What that begins with: so do the keys of rules that an override puts in its place."""


AppliedLimits = tuple[AppliedLimit, ...]


class Question(NamedTuple):
    """All limits of one check as one question to storage."""

    limits: AppliedLimits
    metas: AppliedLimits
    hits: Hits | None
    """``None`` if there is no limit."""
    subjects: tuple[str, ...]
    """Who is counted, for signals."""

    @classmethod
    def of(cls, endpoint: str, limits: AppliedLimits, metas: AppliedLimits, spared: bool, terms: Terms) -> Question:
        """The question about these limits. Limits with one quota are one hit. If meta limits refuse nobody here, and so
        the client is ``spared``, its refusals still count for them. ``endpoint``: for its overrides."""
        hits: dict[str, Hit] = {}

        def ask(applied: AppliedLimit, *, shadow: bool) -> AppliedLimit:
            hit = hit_for(applied.limit.limit, applied.identifiers, applied.cost, terms)
            key = _add(hits, replace(hit, shadow=True) if shadow else hit)
            return applied._replace(key=key, stem=key.removesuffix(hit.rule.key_part))

        limits = tuple(ask(each, shadow=False) for each in limits)
        metas = tuple(ask(each, shadow=spared) for each in metas)
        watched: dict[str, dict[str, None]] = {}
        for meta in metas:
            watches = [each.key for each in limits if meta.watched is None or each.limit in meta.watched]
            watched.setdefault(meta.key, {}).update(dict.fromkeys(watches))
        for key, keys in watched.items():
            if hits[key].cost == 0:
                hits[key] = replace(hits[key], watches=tuple(keys))
        keys_by_type = {each.limit.limit.type_name: each.identifiers[-2] for each in (*limits, *metas)}
        return cls(
            limits=limits,
            metas=metas,
            hits=Hits(hits.values(), scope=endpoint) if hits else None,
            subjects=tuple(f"{type_name}:{key}" for type_name, key in keys_by_type.items()),
        )


def _add(hits: dict[str, Hit], hit: Hit) -> str:
    """Add ``hit`` to ``hits``, and return its key."""
    known = hits.get(hit.key)
    if known is not None:
        hits[hit.key] = replace(known, cost=max(known.cost, hit.cost))
        return hit.key
    taken, name, number = {other.name for other in hits.values()}, hit.name, 2
    while name in taken:
        name, number = f"{hit.name}-{number}", number + 1
    hits[hit.key] = hit if name == hit.name else replace(hit, name=name)
    return hit.key


def applied_limits(
    place: Place,
    limits: Iterable[RuntimeLimit],
    key_of: Callable[[KeyFunction], str],
    prefix: str,
    limits_in: LimitsIn,
) -> tuple[AppliedLimits, AppliedLimits]:
    """Those of ``limits`` that apply to a request, and the meta limits. ``key_of`` returns keys of the client, and
    ``limits_in`` the limits of a declaration."""
    endpoint, _, method = place.destination

    def apply(limit: RuntimeLimit, *prefixes: str) -> AppliedLimit:
        identifiers = (*prefixes, key_of(limit.key_func), limit.scope_for(endpoint, method))
        return AppliedLimit(limit, identifiers, limit.deduction_amount)

    def metas_of(declared: Iterable[MetaLimit], watched: tuple[RuntimeLimit, ...] | None) -> list[AppliedLimit]:
        applying = chain(*map(limits_in, declared))
        return [apply(each)._replace(watched=watched) for each in applying if not each.is_exempt]

    found, metas = list[AppliedLimit](), metas_of(place.meta_limits, None)
    for limit in limits:
        if limit.serves(method) and not limit.is_exempt:
            found.append(apply(limit, *([prefix] if prefix else [])))
        metas += metas_of(limit.meta_limits, (limit,))
    return tuple(found), tuple(metas)


def key_of_client(given: object) -> str:
    """What a ``key_func`` returned, as text. Raises :class:`ConfigurationError` for an object whose text is its address
    in memory: each request would be another client."""
    if given is None:
        return ""
    text = given.decode(errors="surrogateescape") if isinstance(given, bytes) else str(given)
    if " at 0x" in text and not isinstance(given, (str, bytes)):
        raise ConfigurationError(f"key_func returned {text:.80}: return text or a number, such as the id of the user")
    return text


@dataclass(slots=True)
class Answer:
    """A question, and the decision of the storage."""

    question: Question
    decision: Decision
    at: float
    """Seconds since the epoch."""
    limits: AppliedLimits
    """The limits that apps and clients see."""
    refund: Callable[..., Decision] | None = None
    """Refunds it if the fallback in memory has answered."""
    _known: tuple[Decision, tuple[RuleStatus, ...]] | None = field(init=False, default=None)

    @property
    def statuses(self) -> tuple[RuleStatus, ...]:
        """Those of the decision, which makes them anew each time: all limits of a refusal are looked up in them."""
        known = self._known
        if known is None or known[0] is not self.decision:  # a refund changes that
            known = self._known = self.decision, self.decision.statuses
        return known[1]

    def status_of(self, applied: AppliedLimit) -> RuleStatus | None:
        """The status of the limit, or of the strictest rule that an override has put in its place; ``None`` if that has
        switched it off."""
        statuses, question = self.statuses, self.question
        status = next((each for each in statuses if each.hit.key == applied.key), None)
        if status is not None:
            return status
        others = {each.key for each in (*question.limits, *question.metas)}
        found = [each for each in statuses if each.hit.key.startswith(applied.stem) and each.hit.key not in others]
        return min(found, key=lambda each: each.remaining, default=None)

    def refusing(self) -> AppliedLimits:
        if self.decision.allowed:
            return ()
        statuses = [(each, self.status_of(each)) for each in self.limits]
        found = [each for each, status in statuses if status and not status.allowed and status.remaining < each.cost]
        return tuple(found) or self.limits[:1]  # it may be none of them: an override has changed the rule

    def of_meta(self) -> Answer | None:
        """The answer about a meta limit that refuses a refused request, and did so before it, if there is one."""
        begun = {ban.hit.key for ban in self.decision.bans if ban.begun}
        for each in self.question.metas:
            status = self.status_of(each)
            if status is not None and not status.hit.shadow and each.key not in begun:  # a ban has one while it holds
                return replace(self, limits=(each,))
        return None

    def unwanted(self, response: Response) -> list[Hit]:
        """The hits to refund: those that no limit charges for ``response``. Overrides may count others in their
        place, which a refund includes."""
        charged = {each.key: False for each in self.question.limits}
        for each in self.question.limits:
            accepts = each.limit.declared.deduct_when
            charged[each.key] |= accepts is None or bool(accepts(response))
        return [hit for hit in self.question.hits or () if not charged.get(hit.key, True)]


class RequestLimit:
    """Where a limit stands for the current request, as of the check."""

    def __init__(self, extension: Any, answer: Answer, applied: AppliedLimit) -> None:
        self.extension = extension
        self._answer, self._applied, self._status = answer, applied, answer.status_of(applied)
        self.limit: RateLimitItem = applied.limit.limit
        """``amount`` per ``multiples`` of a unit of time."""
        if self._status is not None and answer.decision.hits is not answer.question.hits:  # an override has changed it
            self.limit = replace(self.limit, amount=self._status.rule.count, declared=self.limit)
        self.breached: bool = applied in answer.refusing()
        """Whether this limit refuses the request."""
        self.shared: bool = applied.limit.shared

    @property
    def request_args(self) -> list[str]:
        """The identifiers of the client and the place, for checking the limit by hand."""
        return list(self._applied.identifiers)

    @property
    def key(self) -> str:
        """Its key in Flask-Limiter, which :meth:`StorageOfApp.clear` understands. Keys in storage differ."""
        return self._applied.limit.limit.key_for(*self._applied.identifiers)

    @property
    def limiter(self) -> Strategy:
        strategy: Strategy = self.extension.limiter
        return strategy

    @property
    def window(self) -> WindowStats:
        """When the quota is reset, and what is left after this request."""
        limit, status, decision = self.limit, self._status, self._answer.decision
        seconds: float
        if limit.amount and status is not None:
            left = status.remaining
            seconds = status.retry_after or status.reset_after
        else:
            seconds, left = (0, limit.amount) if decision.allowed else (decision.retry_after, 0)
        expiry = limit.get_expiry()
        return WindowStats(self._answer.at + (seconds if math.isfinite(seconds) else expiry), left)

    @property
    def reset_at(self) -> int:
        """Seconds since the epoch."""
        return int(self.window.reset_time + 1)

    @property
    def remaining(self) -> int:
        return self.window.remaining


@dataclass(slots=True)
class Progress:
    """What one Limiter has done for one request so far. Apps see it as ``limiter.context``."""

    _limiter: Any
    counted: frozenset[RuntimeLimit] = frozenset()
    """Limits of the app and of blueprints that have counted the request already."""
    answer: Answer | None = None
    """The latest answer."""
    before: Answer | None = None
    """The answer before the view: its charges are refunded if the view's own limits refuse."""
    conditional: list[Answer] = field(default_factory=list)
    """The answers with limits whose charge depends on the response."""

    @property
    def view_rate_limits(self) -> list[RequestLimit]:
        """The limits of the latest answer; with ``fail_on_first_breach``, none after the first that refuses."""
        answer = self.answer
        return [] if answer is None else [RequestLimit(self._limiter, answer, each) for each in answer.limits]

    @property
    def view_rate_limit(self) -> RequestLimit | None:
        """The most relevant limit: the last that refuses, otherwise the first that is not shared."""
        answer = self.answer
        if answer is None:
            return None
        refusing = answer.refusing()
        own = [each for each in answer.limits if not each.limit.shared]
        relevant = refusing[-1] if refusing else (own or answer.limits)[0]
        return RequestLimit(self._limiter, answer, relevant)
