"""The question about the limits of one request, the answer, and ``RequestLimit``, which shows it to apps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from flask_multilimit import Decision
from flask_multilimit.engine import Hit, Hits, RuleStatus, hits_for

from .declared import Binding, RouteLimit, RuntimeLimit, type_name_of
from .items import RateLimitItem
from .storage import Strategy, WindowStats

NOT_ASKED = "1/minute"
"""A rule for making the hits of a ban; its own hit is not used."""
LONGEST_REMEMBERED = 256
"""The most characters of a key that is remembered: clients can invent keys, and must not fill the memory."""


class Asked(NamedTuple):
    """A limit that applies to a request."""

    limit: RuntimeLimit
    identifiers: tuple[str, ...]
    """The prefix if there is one, the key, the scope."""
    cost: int
    owner: str = ""
    """The function or ``with`` statement inside of the view that has the limit for itself."""


class Meta(NamedTuple):
    """A meta limit that applies to a request."""

    asked: Asked
    watched: tuple[int, ...] | None
    """The limits whose refusals it counts, by their places in the question; ``None``: all."""


class Terms(NamedTuple):
    """How a Limiter asks."""

    algorithm: str
    prefix: str
    on_storage_error: str | None


class Question(NamedTuple):
    """All limits of a phase as one question to storage."""

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
    more: tuple[int, ...]
    """For each limit, by how much its count is larger than that of its hit, which it may share with a stricter one."""
    telling: int
    """The place of the most relevant limit if none refuses."""
    waits_for_response: bool
    """Whether the charge depends on the response."""

    @classmethod
    def of(cls, asked: tuple[Asked, ...], metas: tuple[Meta, ...], spared: bool, terms: Terms) -> Question:
        """The question about these limits. Limits with one quota are one hit, the strictest. Refusals of a client that
        is ``spared`` by meta limits still count for them."""
        hits: dict[str, Hit] = {}
        keys = tuple(_add(hits, _hit(each, terms)) for each in asked)
        bans = tuple(_add(hits, _ban(each, spared, terms)) for each, _ in metas)
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
            subjects={each.limit.type_name: each.identifiers[-2] for each in (*asked, *(meta for meta, _ in metas))},
            keys=keys,
            bans=bans,
            more=tuple(each.limit.limit.amount - hits[key].rule.count for each, key in zip(asked, keys, strict=True)),
            telling=next((number for number, each in enumerate(asked) if not each.limit.shared), 0),
            waits_for_response=any(each.limit.deduct_when is not None for each in asked),
        )

    def of_meta(self, number: int) -> Question:
        """The question about one of the meta limits alone."""
        return self._replace(asked=(self.metas[number],), keys=(self.bans[number],), more=(0,), telling=0)


def question_for(asked: tuple[Asked, ...], metas: tuple[Meta, ...], spared: bool, terms: Terms) -> Question:
    if any(len(part) > LONGEST_REMEMBERED for each in asked for part in each.identifiers):
        return Question.of(asked, metas, spared, terms)
    return _remembered_question(asked, metas, spared, terms)


_remembered_question = lru_cache(maxsize=1024, typed=True)(Question.of)


def _hit(asked: Asked, terms: Terms) -> Hit:
    limit = asked.limit
    *subject, scope = asked.identifiers
    (hit,) = hits_for(
        limit.limit.rule(terms.algorithm),
        scope=scope,
        subject="/".join(subject),
        type=type_name_of(RouteLimit.role, 0, limit.type_name, asked.owner) if asked.owner else limit.type_name,
        cost=asked.cost,
        prefix=terms.prefix,
        on_storage_error=terms.on_storage_error,  # type: ignore[arg-type]  # one of our own texts
    )
    return hit


def _ban(asked: Asked, spared: bool, terms: Terms) -> Hit:
    """The hit of a meta limit: a ban, or if it lets nothing pass at all, a rule."""
    ban = asked.limit.limit.ban(asked.cost)
    if ban is None:
        return replace(_hit(asked, terms), shadow=spared)
    key, scope = asked.identifiers
    *_, hit = hits_for(
        NOT_ASKED,
        scope=scope,
        subject=key,
        type=asked.limit.type_name,
        prefix=terms.prefix,
        on_storage_error=terms.on_storage_error,  # type: ignore[arg-type]  # one of our own texts
        ban=ban,
    )
    return replace(hit, shadow=spared)


def _add(hits: dict[str, Hit], hit: Hit) -> str:
    """Add ``hit`` to ``hits``, and return its key."""
    known = hits.get(hit.key)
    hits[hit.key] = _named(hit, hits.values()) if known is None else _strictest(known, hit)
    return hit.key


def _strictest(one: Hit, other: Hit) -> Hit:
    rule = min(one.rule, other.rule, key=lambda each: each.count)
    return replace(one, rule=rule, cost=max(one.cost, other.cost))


def _named(hit: Hit, others: Iterable[Hit]) -> Hit:
    """``hit`` with a name that none of the others has."""
    taken, name, number = {other.name for other in others}, hit.name, 2
    while name in taken:
        name, number = f"{hit.name}-{number}", number + 1
    return hit if name == hit.name else replace(hit, name=name)


@dataclass(slots=True)
class Answer:
    """The question in one phase of a request, and the decision of the storage."""

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
            self._breached = [] if self.allowed else self._found_breached()
        return self._breached

    def _found_breached(self) -> list[int]:
        asked = range(len(self.question.asked))
        found = [number for number in asked if self._refuses(number)]
        return found or [*asked][:1]  # none of them: an override has changed the rule

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
        if self.decision.hits is self.question.hits:
            return limit
        status = self._statuses.get(self.question.keys[number])
        count = None if status is None else status.rule.count + self.question.more[number]
        return limit if count is None else replace(limit, amount=count)

    def standing(self, number: int) -> tuple[float, int]:
        """Seconds until the limit admits again or its quota is full, and the units left."""
        limit = self.question.asked[number].limit.limit
        status = self._statuses.get(self.question.keys[number])
        if status is None:  # an override has changed it, or switched it off
            seconds, left = (0.0, limit.amount) if self.allowed else (self.decision.retry_after, 0)
        else:
            left = status.remaining + self.question.more[number]
            seconds = 0 if left >= self.item(number).amount else status.retry_after or status.reset_after
        return seconds if math.isfinite(seconds) else limit.get_expiry(), max(left, 0)

    def _refuses(self, number: int) -> bool:
        status = self._statuses.get(self.question.keys[number])
        if status is None or status.allowed:
            return False
        return status.remaining + self.question.more[number] < self.question.asked[number].cost

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
        self._identifiers = asked.identifiers
        self.breached = breached
        """Whether this limit refuses the request."""
        self.shared: bool = asked.limit.shared

    @property
    def request_args(self) -> list[str]:
        """The identifiers of the client and the place, for checking the limit by hand."""
        return list(self._identifiers)

    @property
    def key(self) -> str:
        """Its key in Flask-Limiter. Keys in storage differ."""
        return self.limit.key_for(*self._identifiers)

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
    """What one Limiter has done for one request so far."""

    __slots__ = ("_limits", "_shown", "answer", "before", "conditional", "once")

    def __init__(self) -> None:
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

    def told(self, limiter: Binding) -> list[RequestLimit]:
        """The limits of the latest answer, made on first use."""
        if self._limits is None:
            answer = self.answer
            self._limits = [] if answer is None else limits_of(limiter, answer)
        return self._limits

    def shown(self, limiter: Binding) -> RequestLimit | None:
        """The most relevant limit: the last that refuses, otherwise the first that is not shared."""
        answer = self.answer
        if self._shown is None and answer is not None:
            if answer.allowed:
                self._shown = RequestLimit(limiter, answer, answer.question.telling, False)
            else:
                self._shown = next(each for each in reversed(self.told(limiter)) if each.breached)
        return self._shown


def limits_of(limiter: Binding, answer: Answer) -> list[RequestLimit]:
    """The limits of ``answer``; with ``fail_on_first_breach``, none after the first that refuses."""
    refusing = set(answer.breached())
    limits = [RequestLimit(limiter, answer, number, number in refusing) for number in range(len(answer.question.asked))]
    return limits[: answer.told] if answer.told else limits
