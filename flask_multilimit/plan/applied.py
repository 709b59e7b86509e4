"""The limiters that apply to a request, and their hits: one per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import CoroutineType, FunctionType, MethodType
from typing import Any, NamedTuple

from ..declare.dynamic import DynamicRules
from ..declare.limiter import Declaration
from ..declare.subjects import FromText, Named, Subject, ask_callable, subjects_from
from ..declare.unwrap import name_of
from ..engine import ConfigurationError, Decision, Hit, Limiter, Rule
from ..engine.errors import brief
from ..engine.hits import BanHit, Hits
from ..engine.keys import own_form

RulesOf = Callable[[DynamicRules, Subject], tuple[Rule, ...] | None]


_NO_ANSWERS = (CoroutineType, FunctionType, MethodType)
"""What a callable returns if it does not call, or await, what it should: for an ``exempt_when`` it would be true."""


def _ask(condition: Callable[[], Any], otherwise: Any = None) -> Any:  # noqa: ARG001 - one signature for all
    answer = ask_callable(condition)
    if isinstance(answer, _NO_ANSWERS):
        raise ConfigurationError(
            f"{name_of(condition)} returned {brief(answer)}: return what a call of this returns, and nothing async"
        )
    return answer


def _ask_if_possible(condition: Callable[[], Any], otherwise: Any) -> Any:
    try:
        answer = _ask(condition)
        bool(answer)  # an answer may be neither true nor false
    except Exception:
        return otherwise
    return answer


def _assume(condition: Callable[[], Any], otherwise: Any) -> Any:  # noqa: ARG001 - one signature for all
    return otherwise


def _ask_without_app(condition: Callable[[], Any], otherwise: Any) -> Any:
    return _ask(condition) if isinstance(condition, FromText) else otherwise


class About(NamedTuple):
    """For whom a plan is applied, and so which callables of its limiters are called."""

    ask: Callable[[Callable[[], Any], Any], Any]
    """Calls an ``exempt_when``, a cost or a priority; the second argument is the answer if that is not called, or
    fails."""
    rules_of: RulesOf
    """The rules of a limiter whose rules depend on the request."""
    has_ended: bool = False
    """Whether failures of callables wait: a limiter whose callables return nonsense is charged one unit, or left out,
    so that all other limits are checked before the error ends the request."""

    @property
    def is_request(self) -> bool:
        """Whether a request is decided, not a question answered."""
        return self.ask is not _assume


REQUEST = About(_ask, DynamicRules.for_request)
"""The current request."""
ENDED_REQUEST = About(_ask_if_possible, DynamicRules.for_request, has_ended=True)
"""A request that ends early, perhaps before a callable has what it needs: a condition that raises exempts nobody."""
INTERRUPTED = About(_ask_without_app, DynamicRules.without_call, has_ended=True)
"""As :data:`ENDED_REQUEST`, without a call of any function of the app."""
ASKER = About(_assume, DynamicRules.peek)
"""The client of the current request, which asks about any endpoint: limiters that are exempt now apply, too, and a cost
that depends on the request is 1."""
SOMEBODY = About(_assume, DynamicRules.without_request)
"""As :data:`ASKER`, for a subject that need not make a request."""


class Applied(NamedTuple):
    """A limiter that applies to this request, and its hits."""

    declaration: Declaration
    subject: Subject
    hits: tuple[Hit, ...]
    known: bool = True
    """Whether its rules are known: not if they depend on a request that this subject does not make now."""


_ELSEWHERE = Declaration.of("check_hits", {})
"""Stands for the limiter of hits that were made elsewhere."""


@dataclass(slots=True, init=False, eq=False, repr=False)
class AppliedLimits:
    """All limiters that apply to a request, and their hits: one per key. If rules that depend on the request share a
    key with another, the strictest one applies."""

    limiters: tuple[Applied, ...]
    hits: tuple[Hit, ...]
    settling: tuple[Applied, ...]
    """Limiters whose charge depends on the response."""
    may_wait: bool
    """Whether any of them may let a request sleep."""
    holds_slots: bool
    """Whether it takes slots, which must be released."""
    has_answers: bool
    """Whether any of them has a message or a reaction of its own, or a reserve."""
    has_bans: bool
    """Whether any of them may ban a subject."""
    failure: BaseException | None
    """Why the hits of a limiter are not known, if nothing applies in their place: to be raised after the check."""

    def __init__(
        self,
        limiters: Iterable[Applied],
        scope: str = "",
        failure: BaseException | None = None,
        made: Hits | None = None,
    ) -> None:
        """``made``: the hits, if no limiter has made them."""
        self.limiters = limiters = tuple(limiters)
        self.failure = failure
        hits = made or hits_of(limiters)
        self.hits = made or (Hits(hits, scope=scope) if hits else ())
        self.has_bans = any(isinstance(hit, BanHit) for hit in hits)
        self.holds_slots = any(hit.rule.holds_slots for hit in hits)
        self.may_wait = any(each.declaration.wait for each in limiters)
        settles = any(each.declaration.settles_charges for each in limiters)
        self.settling = tuple(_settleable(limiters)) if settles else ()
        answers = [(each.message, each.on_rejected, each.reserve) for each, *_ in limiters]
        self.has_answers = any(answer is not None for of_one in answers for answer in of_one)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the limiters whose rules are not known."""
        return tuple(each.declaration.shown_name for each in self.limiters if not each.known)

    @property
    def owners(self) -> dict[str, Applied]:
        """The limiter of each hit, by its key. Of several that share a key, the first whose hit counts."""
        owned = ((hit, each) for each in reversed(self.limiters) for hit in each.hits)
        return {hit.key: each for hit, each in owned if hit in self.hits}

    @classmethod
    def of_hits(cls, hits: Hits, subject: Named) -> AppliedLimits:
        """The limits for hits that no limiter of the app has made; ``subject`` says who is counted. ``hits`` keeps the
        result for its next check."""
        known: tuple[object, AppliedLimits] | None = hits.cache.get(cls)
        if known is not None and known[0] == subject:
            return known[1]
        named = subjects_from(subject).items()
        made = cls([Applied(_ELSEWHERE, Subject(name, own_form(name, id_)), hits) for name, id_ in named], made=hits)
        if isinstance(subject, (str, tuple)):  # it stays the same
            hits.cache[cls] = (subject, made)
        return made

    def longest_wait(self, decision: Decision) -> float:
        """Seconds that this request may sleep: as long as every limiter that refuses, or has a queue, permits."""
        if decision.allowed and not decision.delay:
            return 0
        refusing = {status.hit for status in decision.violated}
        waits = (each.declaration.wait for each in self.limiters if not refusing or not refusing.isdisjoint(each.hits))
        return min(waits) if refusing else max(waits, default=0)

    def wait(self, limiter: Limiter, decision: Decision) -> tuple[Decision, float]:
        """Sleep after ``decision`` until the request can pass, if all limiters permit that. Return the last decision,
        and the seconds that this took."""
        timeout = self.longest_wait(decision)
        if not timeout:
            return decision, 0.0
        started = perf_counter()
        return limiter.wait(decision, timeout=timeout), perf_counter() - started

    def refusing_longest(self, decision: Decision) -> Declaration:
        """The limiter that refuses for the longest time."""
        longest = max(decision.violated, key=lambda status: status.retry_after)
        return next(each.declaration for each in self.limiters if longest.hit in each.hits)

    def sheds_load(self, decision: Decision) -> bool:
        """Whether only limits refuse that keep a reserve of what all clients share."""
        shedding = [hit for each in self.limiters if each.declaration.sheds_load for hit in each.hits]
        return bool(shedding) and all(status.hit in shedding for status in decision.violated)


def _settleable(applied: Sequence[Applied]) -> Iterator[Applied]:
    """The limiters that are settled, each with the hits that it may settle: not those whose key also counts for a
    limiter that is settled in another way, or not at all, as rules by request may cause."""
    ways: dict[str, list[tuple[object, object]]] = {}
    for each in applied:
        for hit in each.hits:
            ways.setdefault(hit.key, []).append((each.declaration.charge_when, each.declaration.settle))
    for each in applied:
        own = (each.declaration.charge_when, each.declaration.settle)
        if each.declaration.settles_charges:
            yield each._replace(hits=tuple(hit for hit in each.hits if all(way == own for way in ways[hit.key])))


def hits_of(applied: Iterable[Applied]) -> tuple[Hit, ...]:
    """All hits. If several have one key, only the strictest."""
    return strictest(hit for each in applied for hit in each.hits)


def strictest(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """``hits``, one per key: the strictest, and a shadow only if all are; bans are joined, to watch all their hits."""
    found: dict[str, Hit] = {}
    for hit in hits:
        other = found.get(hit.key)
        if isinstance(hit, BanHit) and isinstance(other, BanHit):
            found[hit.key] = other.merged_with(hit)
        elif other is None or _strictness(hit) < _strictness(other):
            found[hit.key] = hit
    return tuple(found.values())


def _strictness(hit: Hit) -> tuple[bool, int, int]:
    return hit.shadow, hit.rule.count, hit.rule.quota.burst
