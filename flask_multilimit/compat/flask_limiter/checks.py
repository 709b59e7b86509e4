"""All limits of one check as a question to the storage, its answer, and ``RequestLimit``, which shows that to apps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flask_multilimit import ConfigurationError, Decision
from flask_multilimit.engine import Hit, Hits, RuleStatus

from .declared import KeyFunction, MetaLimit, RuntimeLimit
from .items import RateLimitItem
from .places import Place
from .storage import Strategy, Terms, WindowStats, ban_for, hit_for


class AppliedLimit(NamedTuple):
    """A limit, or a meta limit, that applies to a request."""

    limit: RuntimeLimit
    identifiers: tuple[str, ...]
    """The prefix if there is one, the key, the scope."""
    cost: int
    watched: tuple[int, ...] | None = None
    """For a meta limit: the limits whose refusals it counts, by their places in the question; ``None``: all."""


AppliedLimits = tuple[AppliedLimit, ...]


class Question(NamedTuple):
    """All limits of one check as one question to storage."""

    limits: AppliedLimits
    metas: AppliedLimits
    hits: Hits | None
    """``None`` if there is no limit."""
    subjects: Mapping[str, str]
    """Who is counted, by type, for signals."""
    keys: tuple[str, ...]
    """The keys of the limits in storage."""
    bans: tuple[str, ...]
    """The keys of the meta limits."""

    @classmethod
    def of(cls, limits: AppliedLimits, metas: AppliedLimits, spared: bool, terms: Terms) -> Question:
        """The question about these limits. Limits with one quota are one hit. If meta limits refuse nobody here, and so
        the client is ``spared``, its refusals still count for them."""
        hits: dict[str, Hit] = {}
        keys = tuple(_add(hits, hit_for(each.limit.limit, each.identifiers, each.cost, terms)) for each in limits)
        bans = [ban_for(each.limit.limit, each.identifiers, each.cost, terms) for each in metas]
        watched: dict[str, dict[str, None]] = {}
        for ban, (*_, places) in zip(bans, metas, strict=True):
            watching = watched.setdefault(_add(hits, replace(ban, shadow=spared)), {})
            watching.update(dict.fromkeys(keys if places is None else [keys[place] for place in places]))
        for key, watches in watched.items():
            if hits[key].cost == 0:
                hits[key] = replace(hits[key], watches=tuple(watches))
        return cls(
            limits=limits,
            metas=metas,
            hits=Hits(hits.values()) if hits else None,
            subjects={each.limit.limit.type_name: each.identifiers[-2] for each in (*limits, *metas)},
            keys=keys,
            bans=tuple(ban.key for ban in bans),
        )

    @property
    def waits_for_response(self) -> bool:
        """Whether the charge depends on the response."""
        return any(each.limit.declared.deduct_when is not None for each in self.limits)


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
    place: Place, limits: Iterable[RuntimeLimit], keys: Mapping[KeyFunction, str], prefix: str
) -> tuple[AppliedLimits, AppliedLimits]:
    """Those of ``limits`` that apply to a request, and the meta limits. ``keys`` are those of the client."""
    endpoint, _, method = place.destination

    def apply(limit: RuntimeLimit, prefixes: tuple[str, ...], watched: tuple[int, ...] | None) -> AppliedLimit:
        identifiers = (*prefixes, keys[limit.key_func], limit.scope_for(endpoint, method))
        return AppliedLimit(limit, identifiers, limit.deduction_amount, watched)

    def metas_of(declared: Iterable[MetaLimit], watched: tuple[int, ...] | None) -> list[AppliedLimit]:
        found = (single for each in declared for single in each.limits())
        return [apply(each, (), watched) for each in found if not each.is_exempt]

    found, metas = list[AppliedLimit](), metas_of(place.meta_limits, None)
    for limit in limits:
        applies = limit.serves(method) and not limit.is_exempt
        if applies:
            found.append(apply(limit, (prefix,) if prefix else (), None))
        metas += metas_of(limit.meta_limits, (len(found) - 1,) if applies else ())
    return tuple(found), tuple(metas)


def key_of_client(given: object) -> str:
    """What a ``key_func`` returned, as text. Raises :class:`ConfigurationError` for an object whose text is its address
    in memory: each request would be another client."""
    if given is None:
        return ""
    text = given.decode() if isinstance(given, bytes) else str(given)
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
    reported: int | None = None
    """How many of the limits apps and clients see; ``None``: all."""
    refund: Callable[..., Decision] | None = None
    """Refunds it if the fallback in memory has answered."""

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    def breached(self) -> list[int]:
        """The limits that refuse, by their places in the question."""
        if self.allowed:
            return []
        statuses = [self._statuses.get(key) for key in self.question.keys]
        found = [
            number
            for number, (status, applied) in enumerate(zip(statuses, self.question.limits, strict=True))
            if status is not None and not status.allowed and status.remaining < applied.cost
        ]
        return found or [*range(len(statuses))][:1]  # it may be none of them: an override has changed the rule

    def of_meta(self) -> Answer | None:
        """The answer about a meta limit that refuses, and did so before this request; ``None`` if there is none."""
        if not self.question.bans or self.allowed:
            return None
        begun = {ban.hit.key for ban in self.decision.bans if ban.begun}
        for number, key in enumerate(self.question.bans):
            status = self._statuses.get(key)
            if status is not None and not status.allowed and not status.hit.shadow and key not in begun:
                question = self.question._replace(limits=(self.question.metas[number],), keys=(key,))
                return Answer(question, self.decision, self.at)
        return None

    def item(self, number: int) -> RateLimitItem:
        """The limit, with the count in force: an override may have changed it."""
        limit = self.question.limits[number].limit.limit
        status = None if self.decision.hits is self.question.hits else self._statuses.get(self.question.keys[number])
        return limit if status is None else replace(limit, amount=status.rule.count)

    def standing(self, number: int) -> tuple[float, int]:
        """Seconds until the limit admits again or its quota is full, and the units left."""
        limit = self.question.limits[number].limit.limit
        status = self._statuses.get(self.question.keys[number])
        if not limit.amount:
            return limit.get_expiry(), 0
        if status is None:  # an override has changed it, or switched it off
            seconds, left = (0.0, limit.amount) if self.allowed else (self.decision.retry_after, 0)
        else:
            left = status.remaining
            seconds = 0 if left >= self.item(number).amount else status.retry_after or status.reset_after
        return seconds if math.isfinite(seconds) else limit.get_expiry(), left

    def unwanted(self, accepts: Iterable[bool]) -> list[Hit]:
        """The hits to refund: those that no limit charges, given whether each limit ``accepts`` the response."""
        wanted = {key for key, accepted in zip(self.question.keys, accepts, strict=True) if accepted}
        return [hit for hit in self.decision.hits if hit.key in set(self.question.keys) - wanted]

    @property
    def _statuses(self) -> Mapping[str, RuleStatus]:
        return {status.hit.key: status for status in self.decision.statuses}


class RequestLimit:
    """Where a limit stands for the current request, as of the check."""

    def __init__(self, extension: Any, answer: Answer, number: int, breached: bool) -> None:
        self.extension = extension
        self._answer, self._number, self._applied = answer, number, answer.question.limits[number]
        self.limit: RateLimitItem = answer.item(number)
        """``amount`` per ``multiples`` of a unit of time."""
        self.breached = breached
        """Whether this limit refuses the request."""
        self.shared: bool = self._applied.limit.shared

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
        seconds, remaining = self._answer.standing(self._number)
        return WindowStats(self._answer.at + seconds, remaining)

    @property
    def reset_at(self) -> int:
        """Seconds since the epoch."""
        return int(self.window.reset_time + 1)

    @property
    def remaining(self) -> int:
        return self.window.remaining


class Progress:
    """What one Limiter has done for one request so far. Apps see it as ``limiter.context``."""

    __slots__ = ("_limiter", "answer", "before", "conditional", "counted")

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter
        self.counted: frozenset[RuntimeLimit] = frozenset()
        """Limits of the app and of blueprints that have counted the request already."""
        self.answer: Answer | None = None
        """The latest answer."""
        self.before: Answer | None = None
        """The answer before the view: its charges are refunded if the view's own limits refuse."""
        self.conditional: list[Answer] = []
        """The answers with limits whose charge depends on the response."""

    @property
    def view_rate_limits(self) -> list[RequestLimit]:
        """The limits of the latest answer; with ``fail_on_first_breach``, none after the first that refuses."""
        answer = self.answer
        if answer is None:
            return []
        refusing, count = set(answer.breached()), answer.reported or len(answer.question.limits)
        return [RequestLimit(self._limiter, answer, number, number in refusing) for number in range(count)]

    @property
    def view_rate_limit(self) -> RequestLimit | None:
        """The most relevant limit: the last that refuses, otherwise the first that is not shared."""
        answer = self.answer
        if answer is None:
            return None
        if not answer.allowed:
            return next(each for each in reversed(self.view_rate_limits) if each.breached)
        limits = [each.limit for each in answer.question.limits]
        number = next((number for number, each in enumerate(limits) if not each.shared), 0)
        return RequestLimit(self._limiter, answer, number, False)
