"""What is asked for one request, and where its limits stand: ``RequestLimit``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from flask_multilimit import Decision, Hit, Hits, RuleStatus, hits_for

from .declared import Binding, RouteLimit, RuntimeLimit, kind_of
from .items import RateLimitItem
from .storage import Strategy, WindowStats

LONGEST_REMEMBERED = 256
"""Characters of a key that is kept: clients, who make some of them up, must not fill the memory."""


class Asked(NamedTuple):
    """A limit that applies to a request."""

    limit: RuntimeLimit
    identifiers: tuple[str, ...]
    """The prefix if there is one, the key, the scope."""
    cost: int
    owner: str = ""
    """The function or ``with`` statement inside of the view that has the limit for itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """All limits of a phase as one question to storage."""

    hits: Hits | None
    """``None`` when all limits are 0."""
    subjects: Mapping[str, str]
    """Who is counted, by type: for signals."""
    telling: int
    """Which limit tells most when none refuses."""
    waits_for_response: bool
    """Whether it depends on the response what is charged."""
    places: tuple[int | None, ...]
    """Of each limit among the hits; ``None`` for a limit of 0, which nobody passes."""

    def only(self, number: int) -> Question:
        """For one of the limits."""
        return replace(self, places=(self.places[number],), telling=0)

    @classmethod
    def of(cls, asked: Iterable[Asked], algorithm: str, prefix: str, on_storage_error: str | None) -> Question:
        """Limits with one quota are one hit, the strictest."""
        asked = tuple(asked)
        hits: dict[str, Hit] = {}
        keys: list[str | None] = []
        for each in asked:
            hit = _hit(each, algorithm, prefix, on_storage_error)
            keys.append(None if hit is None else hit.key)
            if hit is not None:
                hits[hit.key] = _strictest(hits[hit.key], hit) if hit.key in hits else _named(hit, hits.values())
        order = list(hits)
        return cls(
            hits=Hits(hits.values()) if hits else None,
            telling=next((number for number, each in enumerate(asked) if not each.limit.shared), 0),
            waits_for_response=any(each.limit.deduct_when is not None for each in asked),
            subjects={each.limit.kind: each.identifiers[-2] for each in asked},
            places=tuple(None if key is None else order.index(key) for key in keys),
        )


def question_for(asked: tuple[Asked, ...], algorithm: str, prefix: str, on_storage_error: str | None) -> Question:
    if any(len(part) > LONGEST_REMEMBERED for each in asked for part in each.identifiers):
        return Question.of(asked, algorithm, prefix, on_storage_error)
    return _remembered_question(asked, algorithm, prefix, on_storage_error)


@lru_cache(maxsize=1024, typed=True)
def _remembered_question(
    asked: tuple[Asked, ...], algorithm: str, prefix: str, on_storage_error: str | None
) -> Question:
    return Question.of(asked, algorithm, prefix, on_storage_error)


def _hit(asked: Asked, algorithm: str, prefix: str, on_storage_error: str | None) -> Hit | None:
    limit = asked.limit
    rule = limit.limit.rule(algorithm)
    if rule is None:
        return None
    *subject, scope = asked.identifiers
    (hit,) = hits_for(
        rule,
        scope=scope,
        subject="/".join(subject),
        type=kind_of(RouteLimit.role, 0, limit.kind, asked.owner) if asked.owner else limit.kind,
        cost=asked.cost,
        prefix=prefix,
        on_storage_error=on_storage_error,  # type: ignore[arg-type]  # one of our own texts
    )
    return hit


def _strictest(one: Hit, other: Hit) -> Hit:
    rule = min(one.rule, other.rule, key=lambda each: each.count)
    return replace(one, rule=rule, cost=max(one.cost, other.cost))


def _named(hit: Hit, others: Iterable[Hit]) -> Hit:
    """With a name that none of the others has."""
    taken, name, number = {other.name for other in others}, hit.name, 2
    while name in taken:
        name, number = f"{hit.name}-{number}", number + 1
    return hit if name == hit.name else replace(hit, name=name)


@dataclass(slots=True)
class Answer:
    """What was asked in one phase of a request, and what storage said."""

    asked: tuple[Asked, ...]
    question: Question
    decision: Decision | None
    """``None`` when storage was not asked, for a limit of 0 refuses everyone."""
    at: float
    """Seconds since the epoch."""
    told: int | None = None
    """How many of the asked anybody hears of; ``None``: all."""
    _read: tuple[Decision, tuple[RuleStatus, ...]] | None = None
    """The statuses of the decision as it stands."""

    @property
    def allowed(self) -> bool:
        return self.decision is not None and self.decision.allowed

    def breached(self) -> list[int]:
        """The limits that refuse, by their places among the asked."""
        if self.allowed:
            return []
        found = [number for number in range(len(self.asked)) if self._refuses(number)]
        return found or [number for number in range(len(self.asked)) if self.question.places[number] is not None][:1]

    def standing(self, number: int) -> tuple[float, int]:
        """Seconds until the limit admits again or is whole, and units left."""
        limit = self.asked[number].limit.limit
        status = self._status(number)
        if status is None:
            return limit.get_expiry(), limit.amount
        more = limit.amount - status.rule.count  # of two limits with one quota, the laxer one
        left = status.remaining + more
        seconds = status.retry_after or status.reset_after
        if not math.isfinite(seconds):
            seconds = limit.get_expiry()
        return 0 if left >= limit.amount else seconds, max(left, 0)

    def _refuses(self, number: int) -> bool:
        limit, _, cost, _ = self.asked[number]
        if self.question.places[number] is None:
            return True
        status = self._status(number)
        if status is None or status.allowed:
            return False
        return status.remaining + limit.limit.amount - status.rule.count < cost

    def _status(self, number: int) -> RuleStatus | None:
        place, decision = self.question.places[number], self.decision
        if place is None or decision is None:
            return None
        if self._read is None or self._read[0] is not decision:
            self._read = (decision, decision.statuses)
        return self._read[1][place]


class RequestLimit:
    """Where a limit stands for the current request, as of the check."""

    def __init__(self, extension: Binding, answer: Answer, number: int, breached: bool) -> None:
        self.extension = extension
        self._answer = answer
        self._number = number
        asked = answer.asked[number]
        self.limit: RateLimitItem = asked.limit.limit
        """``amount`` per ``multiples`` of a unit of time."""
        self._identifiers = asked.identifiers
        self.breached = breached
        """Whether this limit refuses the request."""
        self.shared: bool = asked.limit.shared

    @property
    def request_args(self) -> list[str]:
        """What identifies the client and the place: to check the limit by hand."""
        return list(self._identifiers)

    @property
    def key(self) -> str:
        """What Flask-Limiter calls its key. Keys in storage differ."""
        return self.limit.key_for(*self._identifiers)

    @property
    def limiter(self) -> Strategy:
        strategy: Strategy = self.extension.limiter
        return strategy

    @property
    def window(self) -> WindowStats:
        """When the quota is reset, and what is left of it after this request."""
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
    """What has become of one request so far, for one Limiter."""

    __slots__ = ("_limits", "_shown", "answer", "before", "conditional", "once")

    def __init__(self) -> None:
        self.once: set[RuntimeLimit] = set()
        """Limits of the app and of blueprints that are done."""
        self.answer: Answer | None = None
        """The latest."""
        self.before: Answer | None = None
        """That before the view: given back when the view's own limits refuse."""
        self.conditional: list[Answer] = []
        """Those with limits whose charge depends on the response."""
        self._shown: RequestLimit | None = None
        self._limits: list[RequestLimit] | None = None

    def tell(self, answer: Answer | None) -> None:
        """The latest answer is ``answer``."""
        self.answer, self._shown, self._limits = answer, None, None

    def told(self, limiter: Binding) -> list[RequestLimit]:
        """The limits of the latest answer, made when somebody asks for them."""
        if self._limits is None:
            answer = self.answer
            self._limits = [] if answer is None else limits_of(limiter, answer)
        return self._limits

    def shown(self, limiter: Binding) -> RequestLimit | None:
        """The limit that tells most: the last that refuses, else the first that is not shared."""
        answer = self.answer
        if self._shown is None and answer is not None:
            if answer.allowed:
                self._shown = RequestLimit(limiter, answer, answer.question.telling, False)
            else:
                self._shown = next(each for each in reversed(self.told(limiter)) if each.breached)
        return self._shown


def limits_of(limiter: Binding, answer: Answer) -> list[RequestLimit]:
    """With ``fail_on_first_breach``, none after the first that refuses."""
    refusing = set(answer.breached())
    limits = [RequestLimit(limiter, answer, number, number in refusing) for number in range(len(answer.asked))]
    return limits[: answer.told] if answer.told else limits
