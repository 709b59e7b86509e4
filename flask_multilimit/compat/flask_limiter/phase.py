"""One check of a request: what is asked, and what a refusal sets off."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flask import Response

from flask_multilimit import StorageError

from .declared import Binding, MetaLimit, RuntimeLimit
from .errors import RateLimitExceeded
from .in_force import InForce
from .registry import Applicable, Place
from .requests import Answer, Asked, Progress, RequestLimit


class Phase:
    """A request comes through two: before the view, and where decorated functions are called."""

    def __init__(self, limiter: Binding, state: InForce, place: Place, progress: Progress) -> None:
        self._limiter = limiter
        self._state = state
        self._settings = state.settings
        self._place = place
        self._progress = progress

    def check(self, applicable: Applicable, *, is_before: bool = False, owner: str = "") -> None:
        """Raises :exc:`RateLimitExceeded`. ``owner`` is the function or ``with`` statement inside of the view that is
        reached."""
        resolved, progress = applicable.resolve(), self._progress
        limits = [each for each in resolved.limits if each not in progress.once] if progress.once else resolved.limits
        progress.once |= resolved.once
        meta_limits = self._meta_limits(limits)
        if meta_limits:
            self._refuse_the_persistent(meta_limits)
        asked = self._asked(limits)
        if owner:
            asked = tuple(_owned(each, owner) if each.limit not in resolved.once else each for each in asked)
        if not asked:
            progress.tell(None)
            return
        answer = self._answer(asked)
        progress.tell(answer)
        if is_before:
            progress.before = answer
        if not answer.allowed:
            self._refuse(answer, is_view=not is_before and not owner)
        elif answer.question.waits_for_response:
            progress.conditional.append(answer)

    def _asked(self, limits: Iterable[RuntimeLimit]) -> tuple[Asked, ...]:
        method = self._place.method
        asked = []
        for each in limits:  # at every request: the properties of a RuntimeLimit, written out
            if each.methods is not None and method.lower() not in each.methods:
                continue
            if each.exempt_when is not None and each.exempt_when():
                continue
            cost = each.cost() if callable(each.cost) else each.cost
            asked.append(Asked(each, self._identifiers(each, method), cost))
        return tuple(asked)

    def _identifiers(self, limit: RuntimeLimit, method: str | None) -> tuple[str, ...]:
        given: object = limit.key_func()
        if given is None or given == "":
            # One quota for all of whom nothing is known, and no limit that is off for them.
            self._limiter.logger.warning("limit %s at %s: its key is empty", limit.limit, self._place.endpoint)
            given = ""
        key = given if isinstance(given, str) else given.decode() if isinstance(given, bytes) else str(given)
        scope = limit.scope_for(self._place.endpoint, method)
        prefix = self._settings.key_prefix
        return (prefix, key, scope) if prefix else (key, scope)

    def _answer(self, asked: tuple[Asked, ...]) -> Answer:
        try:
            return self._state.ask(asked, self._place.endpoint)
        except StorageError:
            if not self._settings.in_memory_fallback:
                raise
        fallback = [single for each in self._settings.in_memory_fallback for single in each.limits()]
        return self._state.ask_memory(self._asked(fallback))

    # Refusals

    def _refuse(self, answer: Answer, *, is_view: bool) -> None:
        refusing = answer.breached()
        if self._settings.fail_on_first_breach:
            refusing = refusing[:1]
            answer.told = refusing[0] + 1
        for number in refusing:
            limit, identifiers, *_ = answer.asked[number]
            self._limiter.logger.info(
                "ratelimit %s (%s) exceeded at endpoint: %s", limit.limit, identifiers[-2], identifiers[-1]
            )
        told = self._progress.told(self._limiter)
        response = None
        for number in refusing:
            own = answer.asked[number].limit.on_breach
            response = self._react((self._settings.on_breach, own), told[number], "on_breach") or response
        refused = [answer.asked[number].limit for number in refusing]
        self._strike(refused)
        before = self._progress.before
        if is_view and before is not None and before.decision is not None:
            before.decision = self._state.give_back(before.decision)
        raise RateLimitExceeded(refused[0], response=response, decision=answer.decision)

    def _react(
        self, reactions: Iterable[Callable[[RequestLimit], Response | None] | None], told: RequestLimit, name: str
    ) -> Response | None:
        """Call each once; the last response that one of them gives."""
        response = None
        for react in dict.fromkeys(reactions):
            if react is None:
                continue
            try:
                given = react(told)
            except Exception as error:
                if not self._settings.swallow_errors:
                    raise
                self._limiter.logger.exception("%s callback failed with error %s", name, error)
                continue
            if isinstance(given, Response):
                response = given
        return response

    # Meta limits

    def _meta_limits(self, limits: Iterable[RuntimeLimit]) -> tuple[RuntimeLimit, ...]:
        """Those in force for a request with these limits."""
        declared = (*self._settings.meta_limits, *_declared_with(limits))
        if not declared or self._state.is_free_of_meta_limits(self._place):
            return ()
        return _in_force(declared)

    def _refuse_the_persistent(self, meta_limits: tuple[RuntimeLimit, ...]) -> None:
        """Refuse who has been refused too often."""
        asked = tuple(Asked(each, self._identifiers(each, None), each.deduction_amount) for each in meta_limits)
        answer = self._state.peek(asked)
        refusing = answer.breached()
        if not refusing:
            return
        number = refusing[0]
        limit = asked[number].limit
        only = Answer((asked[number],), answer.question.only(number), answer.decision, answer.at)
        self._progress.tell(only)
        (told,) = self._progress.told(self._limiter)
        response = self._react((limit.on_breach or self._settings.on_meta_breach,), told, "on_meta_breach")
        raise RateLimitExceeded(limit, response=response, decision=answer.decision)

    def _strike(self, refused: Iterable[RuntimeLimit]) -> None:
        declared = (*self._settings.meta_limits, *_declared_with(refused))
        if declared:
            method = self._place.method
            self._state.strike([Asked(each, self._identifiers(each, method), 1) for each in _in_force(declared)])


def settle(state: InForce, answer: Answer, response: Response) -> None:
    """Give back what was reserved for responses of another kind."""
    unwanted = [
        number
        for number, (limit, *_) in enumerate(answer.asked)
        if limit.deduct_when is not None and not limit.deduct_when(response)
    ]
    if unwanted and answer.decision is not None:
        hits = [
            answer.decision.hits[place] for number in unwanted if (place := answer.question.places[number]) is not None
        ]
        answer.decision = state.give_back(answer.decision, hits)


def _owned(asked: Asked, owner: str) -> Asked:
    """Of several ``with`` statements in one function, nothing that lasts tells them apart but their counts."""
    if asked.limit.shared:
        return asked
    return asked._replace(owner=f"{owner}: {asked.limit.limit.amount}" if " " in owner else owner)


def _declared_with(limits: Iterable[RuntimeLimit]) -> list[MetaLimit]:
    return [meta for each in limits for meta in each.meta_limits]


def _in_force(declared: Iterable[MetaLimit]) -> tuple[RuntimeLimit, ...]:
    return tuple(single for each in declared for single in each.limits() if not single.is_exempt)
