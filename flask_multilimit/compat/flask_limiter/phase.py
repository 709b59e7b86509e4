"""One check of a request: asks about its limits, and handles a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flask import Response

from flask_multilimit.engine import StorageError
from flask_multilimit.engine.text import SafeLogger

from .declared import Binding, RuntimeLimit
from .errors import RateLimitExceeded
from .in_force import InForce
from .registry import Resolved
from .requests import Answer, Progress, Question, RequestLimit
from .stops import KeyFunction, Stop


class Phase:
    """One check of a request. There are two kinds: before the view, and where decorated functions are called."""

    __slots__ = ("_limiter", "_progress", "_state", "_stop")

    def __init__(self, limiter: Binding, state: InForce, stop: Stop, progress: Progress) -> None:
        self._limiter = limiter
        self._state = state
        self._stop = stop
        self._progress = progress

    def check(self) -> None:
        """Raises :exc:`RateLimitExceeded`."""
        stop, progress = self._stop, self._progress
        resolved = stop.applicable.resolve()
        question = self._question(resolved)
        if resolved.once:
            progress.once |= resolved.once
        if question.hits is None:
            progress.tell(None)
            return
        answer = self._answer(question)
        if answer is None:
            return
        allowed = answer.allowed
        progress.tell(answer if question.asked or not allowed else None)
        if stop.is_before:
            progress.before = answer
        if not allowed:
            self._refuse(answer)
        elif question.waits_for_response:
            progress.conditional.append(answer)

    def _question(self, resolved: Resolved) -> Question:
        keyed_by, once = self._stop.keyed_by, self._progress.once
        if keyed_by is not None and (not once or once.isdisjoint(resolved.limits)):
            return self._state.question_at(self._stop, tuple([self._key(each) for each in keyed_by]))
        return self._question_now(resolved, [each for each in resolved.limits if each not in once])

    def _question_now(self, resolved: Resolved, limits: Iterable[RuntimeLimit]) -> Question:
        """The question if more than the keys depends on the request."""
        asked, metas = self._stop.asked(resolved, limits, _Keys(self._key))
        return self._state.question(tuple(asked), tuple(metas), self._stop.spared)

    def _key(self, key_func: KeyFunction) -> str:
        given: object = key_func()
        if type(given) is str and given:
            return given
        if given is None or given == "":
            # Clients without a key share one quota, so that the limit is not off for them.
            SafeLogger(self._limiter.logger).warning(
                "limits at %s: their key is empty", self._stop.destination.endpoint
            )
            return ""
        return given.decode() if isinstance(given, bytes) else str(given)

    def _answer(self, question: Question) -> Answer | None:
        try:
            return self._state.ask(question, self._stop.destination.endpoint)
        except StorageError:
            if not self._state.settings.in_memory_fallback:
                raise
        return self._answer_of_fallback()

    def _answer_of_fallback(self) -> Answer | None:
        """The answer of the fallback limits, once per request."""
        declared, progress = self._state.settings.in_memory_fallback, self._progress
        limits = [single for each in declared for single in each.limits() if single not in progress.once]
        progress.once |= frozenset(limits)
        question = self._question_now(Resolved((), frozenset()), limits)
        return None if question.hits is None else self._state.ask_memory(question)

    # Refusals

    def _refuse(self, answer: Answer) -> None:
        before = self._progress.before
        if before is not None and before is not answer and not self._stop.owner:
            before.decision = self._state.give_back(before.decision)
        of_meta = answer.of_meta()
        if of_meta is None:
            raise self._exceeded(answer)
        raise self._exceeded_by_meta(of_meta)

    def _exceeded(self, answer: Answer) -> RateLimitExceeded:
        refusing, asked, settings = answer.breached(), answer.question.asked, self._state.settings
        if settings.fail_on_first_breach:
            refusing = refusing[:1]
            answer.told = refusing[0] + 1
        for number in refusing:
            limit, identifiers, *_ = asked[number]
            SafeLogger(self._limiter.logger).info(
                "ratelimit %s (%s) exceeded at endpoint: %s", limit.limit, identifiers[-2], identifiers[-1]
            )
        told = self._progress.told(self._limiter)
        response = None
        for number in refusing:
            own = asked[number].limit.on_breach
            response = self._react((settings.on_breach, own), told[number], "on_breach") or response
        return RateLimitExceeded(asked[refusing[0]].limit, response=response, decision=answer.decision)

    def _exceeded_by_meta(self, answer: Answer) -> RateLimitExceeded:
        """The refusal by a meta limit. The client does not learn about other limits."""
        (asked,) = answer.question.asked
        self._progress.tell(answer)
        (told,) = self._progress.told(self._limiter)
        react = asked.limit.on_breach or self._state.settings.on_meta_breach
        response = self._react((react,), told, "on_meta_breach")
        return RateLimitExceeded(asked.limit, response=response, decision=answer.decision)

    def _react(
        self, reactions: Iterable[Callable[[RequestLimit], Response | None] | None], told: RequestLimit, name: str
    ) -> Response | None:
        """Call each once, and return the last response that any of them returns."""
        response = None
        for react in dict.fromkeys(reactions):
            if react is None:
                continue
            try:
                given = react(told)
            except Exception as error:
                if not self._state.settings.swallow_errors:
                    raise
                SafeLogger(self._limiter.logger).exception("%s callback failed with error %s", name, error)
                continue
            if isinstance(given, Response):
                response = given
        return response


class _Keys(dict[KeyFunction, str]):
    """The key that each ``key_func`` returns for this request. Each is called once."""

    def __init__(self, key: Callable[[KeyFunction], str]) -> None:
        self._key = key

    def __missing__(self, key_func: KeyFunction) -> str:
        found = self[key_func] = self._key(key_func)
        return found


def settle(state: InForce, answer: Answer, response: Response) -> None:
    """Refund the charges that do not apply to ``response``."""
    question = answer.question
    unwanted = {
        key
        for key, (limit, *_) in zip(question.keys, question.asked, strict=True)
        if limit.deduct_when is not None and not limit.deduct_when(response)
    }
    if unwanted:
        answer.decision = state.give_back(answer.decision, [hit for hit in answer.decision.hits if hit.key in unwanted])
