"""The question about the limits of one request, the answer, and ``RequestLimit``, which shows it to apps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from flask_multilimit import ConfigurationError, Decision
from flask_multilimit.engine import Hit, Hits, RuleStatus

from .declared import Binding, KeyFunction, MetaLimit, RuntimeLimit
from .items import RateLimitItem
from .registry import Place
from .storage import Strategy, Terms, WindowStats, ban_for, hit_for


class Asked(NamedTuple):
    """A limit that applies to a request."""

    limit: RuntimeLimit
    identifiers: tuple[str, ...]
    """The prefix if there is one, the key, the scope."""
    cost: int


class Meta(NamedTuple):
    """A meta limit that applies to a request."""

    asked: Asked
    watched: tuple[int, ...] | None
    """The limits whose refusals it counts, by their places in the question; ``None``: all."""


class Question(NamedTuple):
    """All limits of one check as one question to storage."""

    asked: tuple[Asked, ...]
    metas: tuple[Asked, ...]
    hits: Hits | None
    """``None`` if there is no limit."""
    subjects: Mapping[str, str]
    """Who is counted, by type: for signals."""
    keys: tuple[str, ...]
    """The keys of the limits in storage."""
    bans: tuple[str, ...]
    """The keys of the meta limits."""
    telling: int
    """The place of the most relevant limit if none refuses."""
    waits_for_response: bool
    """Whether the charge depends on the response."""

    @classmethod
    def of(cls, asked: tuple[Asked, ...], metas: tuple[Meta, ...], spared: bool, terms: Terms) -> Question:
        """The question about these limits. Limits with one quota are one hit. Refusals of a client that is ``spared``
        by meta limits still count for them."""
        hits: dict[str, Hit] = {}
        keys = tuple(_add(hits, hit_for(each.limit.limit, each.identifiers, each.cost, terms)) for each in asked)
        bans = tuple(
            _add(hits, replace(ban_for(each.limit.limit, each.identifiers, each.cost, terms), shadow=spared))
            for each, _ in metas
        )
        watched: dict[str, dict[str, None]] = {key: {} for key in bans}
        for key, (_, places) in zip(bans, metas, strict=True):
            watched[key].update(dict.fromkeys(keys if places is None else [keys[place] for place in places]))
        for key, watches in watched.items():
            if hits[key].cost == 0:
                hits[key] = replace(hits[key], watches=tuple(watches))  # type: ignore[call-arg]  # of a ban
        return cls(
            asked=asked,
            metas=tuple(each for each, _ in metas),
            hits=Hits(hits.values()) if hits else None,
            subjects={
                each.limit.limit.type_name: each.identifiers[-2] for each in (*asked, *(each for each, _ in metas))
            },
            keys=keys,
            bans=bans,
            telling=next((number for number, each in enumerate(asked) if not each.limit.shared), 0),
            waits_for_response=any(each.limit.deduct_when is not None for each in asked),
        )

    def of_meta(self, number: int) -> Question:
        """The question about one of the meta limits alone."""
        return self._replace(asked=(self.metas[number],), keys=(self.bans[number],), telling=0)


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


def limits_asked(
    place: Place, limits: Iterable[RuntimeLimit], keys: Mapping[KeyFunction, str], prefix: str
) -> tuple[tuple[Asked, ...], tuple[Meta, ...]]:
    """Those of ``limits`` that apply to a request, and their meta limits; ``keys`` are those of the client."""
    asked: list[Asked] = []
    metas = [Meta(each, None) for each in _metas_asked(place, place.meta_limits, keys)]
    endpoint, _, method = place.destination
    for limit in limits:
        watched: tuple[int, ...] = ()
        if limit.serves(method) and not limit.is_exempt:
            watched = (len(asked),)
            identifiers = (keys[limit.key_func], limit.scope_for(endpoint, method))
            asked.append(Asked(limit, (prefix, *identifiers) if prefix else identifiers, limit.deduction_amount))
        metas += [Meta(each, watched) for each in _metas_asked(place, limit.meta_limits, keys)]
    return tuple(asked), tuple(metas)


def _metas_asked(place: Place, declared: Iterable[MetaLimit], keys: Mapping[KeyFunction, str]) -> Iterator[Asked]:
    endpoint, _, method = place.destination
    for limit in (single for each in declared for single in each.limits()):
        if not limit.is_exempt:
            yield Asked(limit, (keys[limit.key_func], limit.scope_for(endpoint, method)), limit.deduction_amount)


def key_of_client(given: object) -> str:
    """What a ``key_func`` has returned, as text. Raises :class:`ConfigurationError` for an object without a value of
    its own: each request would be another client."""
    if given is None:
        return ""
    text = given.decode() if isinstance(given, bytes) else str(given)
    if " at 0x" in text and type(given) is not str:
        raise ConfigurationError(f"key_func returned {text:.80}: return text or a number, such as the id of the user")
    return text


@dataclass(slots=True)
class Answer:
    """A question, and the decision of the storage."""

    question: Question
    decision: Decision
    at: float
    """Seconds since the epoch."""
    told: int | None = None
    """How many of the limits are reported; ``None``: all."""
    _read: tuple[Decision, Mapping[str, RuleStatus]] | None = None
    """The statuses of the decision as it stands, by key."""
    _breached: list[int] | None = None

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    def breached(self) -> list[int]:
        """The limits that refuse, by their places in the question."""
        if self._breached is None:
            asked = range(0 if self.allowed else len(self.question.asked))
            found = [number for number in asked if self._refuses(number)]
            self._breached = found or [*asked][:1]  # none of them: an override has changed the rule
        return self._breached

    def of_meta(self) -> Answer | None:
        """The answer about a meta limit that refuses, and did so before this request; ``None`` if there is none."""
        if not self.question.bans or self.allowed:
            return None
        begun = {ban.hit.key for ban in self.decision.bans if ban.begun}
        for number, key in enumerate(self.question.bans):
            status = self._statuses.get(key)
            if status is not None and not status.allowed and not status.hit.shadow and key not in begun:
                return Answer(self.question.of_meta(number), self.decision, self.at)
        return None

    def item(self, number: int) -> RateLimitItem:
        """The limit with the count that is in force, which an override may have changed."""
        limit = self.question.asked[number].limit.limit
        status = None if self.decision.hits is self.question.hits else self._statuses.get(self.question.keys[number])
        return limit if status is None else replace(limit, amount=status.rule.count)

    def standing(self, number: int) -> tuple[float, int]:
        """Seconds until the limit admits again or its quota is full, and the units left."""
        limit = self.question.asked[number].limit.limit
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

    def _refuses(self, number: int) -> bool:
        status = self._statuses.get(self.question.keys[number])
        if status is None or status.allowed:
            return False
        return status.remaining < self.question.asked[number].cost

    @property
    def _statuses(self) -> Mapping[str, RuleStatus]:
        read = self._read
        if read is None or read[0] is not self.decision:
            read = self._read = (self.decision, {status.hit.key: status for status in self.decision.statuses})
        return read[1]


class RequestLimit:
    """Where a limit stands for the current request, as of the check."""

    def __init__(self, extension: Binding, answer: Answer, number: int, breached: bool) -> None:
        self.extension = extension
        self._answer = answer
        self._number = number
        asked = answer.question.asked[number]
        self.limit: RateLimitItem = answer.item(number)
        """``amount`` per ``multiples`` of a unit of time."""
        self._asked = asked
        self.breached = breached
        """Whether this limit refuses the request."""
        self.shared: bool = asked.limit.shared

    @property
    def request_args(self) -> list[str]:
        """The identifiers of the client and the place, for checking the limit by hand."""
        return list(self._asked.identifiers)

    @property
    def key(self) -> str:
        """Its key in Flask-Limiter, which :meth:`StorageOfApp.clear` understands. Keys in storage differ."""
        return self._asked.limit.limit.key_for(*self._asked.identifiers)

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

    __slots__ = ("_limiter", "_limits", "_shown", "answer", "before", "conditional", "once")

    def __init__(self, limiter: Binding) -> None:
        self._limiter = limiter
        self.once: frozenset[RuntimeLimit] = frozenset()
        """Limits of the app and of blueprints that were checked already."""
        self.answer: Answer | None = None
        """The latest answer."""
        self.before: Answer | None = None
        """The answer before the view: its charges are refunded if the view's own limits refuse."""
        self.conditional: list[Answer] = []
        """The answers with limits whose charge depends on the response."""
        self._shown: RequestLimit | None = None
        self._limits: list[RequestLimit] | None = None

    def tell(self, answer: Answer | None) -> None:
        """Make ``answer`` the latest one."""
        self.answer, self._shown, self._limits = answer, None, None

    @property
    def view_rate_limits(self) -> list[RequestLimit]:
        """The limits of the latest answer, made on first use; with ``fail_on_first_breach``, none after the first that
        refuses."""
        if self._limits is None:
            answer = self.answer
            self._limits = [] if answer is None else self._limits_of(answer)
        return self._limits

    def _limits_of(self, answer: Answer) -> list[RequestLimit]:
        refusing, count = set(answer.breached()), answer.told or len(answer.question.asked)
        return [RequestLimit(self._limiter, answer, number, number in refusing) for number in range(count)]

    @property
    def view_rate_limit(self) -> RequestLimit | None:
        """The most relevant limit: the last that refuses, otherwise the first that is not shared."""
        answer = self.answer
        if self._shown is None and answer is not None:
            if answer.allowed:
                self._shown = RequestLimit(self._limiter, answer, answer.question.telling, False)
            else:
                self._shown = next(each for each in reversed(self.view_rate_limits) if each.breached)
        return self._shown
