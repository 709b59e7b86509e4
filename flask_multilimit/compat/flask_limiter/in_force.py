"""One Limiter in force in one app: its settings, its storage, and the checks of requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any

from flask import Flask, Request, Response, current_app, has_app_context
from werkzeug.http import http_date, parse_date

from flask_multilimit import ConfigurationError, MultiLimit
from flask_multilimit.engine import Hit, StorageError
from flask_multilimit.engine import Limiter as Engine
from flask_multilimit.engine.text import SafeLogger

from .checks import Answer, AppliedLimit, Progress, Question, RequestLimit, applied_limits, key_of_client
from .constants import HeaderNames
from .declared import KeyFunction, Limit, Reaction, RuntimeLimit
from .errors import RateLimitExceeded
from .places import Place, Places, Registry, Resolved
from .settings import Options, Settings
from .storage import StorageOfApp, Strategy, Terms, storage_from

EXTENSION = "multilimit.flask_limiter"
MULTILIMIT = "multilimit"
LONGEST_PREFIX = 29
"""Characters, so that there is room for the number of a Limiter."""
QUESTIONS_REMEMBERED = 1024
LONGEST_REMEMBERED = 256
"""The most characters of a key that is remembered: clients can invent keys, and must not fill the memory."""


current_app_itself: Callable[[], Flask] = current_app._get_current_object  # type: ignore[attr-defined]
"""Each access to an attribute of the proxy would look it up again."""


class InForce:
    """What a Limiter knows about one app."""

    def __init__(self, app: Flask, limiter: Any, options: Options) -> None:
        """Put ``limiter`` into force in ``app``. Raises :class:`ConfigurationError` for settings that make no sense."""
        settings = Settings(app.config, options)
        self.settings: Settings = settings
        for each in settings.limits:
            each.bind(limiter)
        self.app = app
        self.limiter = limiter
        self.registry: Registry = limiter.registry
        self._logger = SafeLogger(limiter.logger)
        self._multilimit = _multilimit_of(app, settings)
        prefix = app.config.get("MULTILIMIT_KEY_PREFIX") or "rate_limit:"
        known = app.extensions.setdefault(EXTENSION, {})
        own = f"{prefix[:LONGEST_PREFIX]}{len(known)}:" if known and settings.is_in_memory else None
        self.own_prefix: str | None = own
        """The prefix of its keys, if it is not that of the app: in Flask-Limiter, each has its own memory."""
        self.terms: Terms = Terms(settings.algorithm, own or prefix, settings.on_storage_error)
        self._memory = Engine() if settings.in_memory_fallback else None
        self._name_of_progress = f"multilimit_flask_limiter_{id(self)}"
        self.places: Places = Places(app, self.registry, settings)
        self._cached_question = lru_cache(maxsize=QUESTIONS_REMEMBERED)(self._question_of)
        self._remembered_question = lru_cache(maxsize=QUESTIONS_REMEMBERED, typed=True)(Question.of)
        self._warn_of_empty_key = lru_cache(QUESTIONS_REMEMBERED)(self._log_empty_key)  # once: clients leave keys out
        self.started: bool = False
        """Whether it has checked a request."""
        known[limiter] = self

    @classmethod
    def of(cls, limiter: Any) -> InForce | None:
        """What ``limiter`` has in force in the current app."""
        known: dict[Any, InForce] = current_app_itself().extensions.get(EXTENSION, {})
        return known.get(limiter)

    @classmethod
    def all_of(cls, app: Flask) -> list[InForce]:
        """What each Limiter of ``app`` has in force, in the order in which the app got them."""
        return list(app.extensions.get(EXTENSION, {}).values())

    # By hand

    @property
    def engine(self) -> Engine:
        if has_app_context():
            return self._multilimit.limiter
        with self.app.app_context():
            return self._multilimit.limiter

    def storage_at(self, endpoint: str | None) -> StorageOfApp:
        """The storage for limits as they are checked at ``endpoint``, which may have overrides."""
        return StorageOfApp(self.engine, self.terms, self.reset, endpoint)

    def strategy_at(self, endpoint: str | None) -> Strategy:
        return Strategy(self.storage_at(endpoint))

    def identifiers(self, key: str, scope: str) -> tuple[str, ...]:
        """The identifiers of a client with ``key``, for checking a limit by hand."""
        return (self.settings.key_prefix, key, scope) if self.settings.key_prefix else (key, scope)

    def reset(self) -> None:
        with self.app.app_context():
            self._multilimit.reset(reach="everything")

    # Checks

    def progress(self, request: Request) -> Progress:
        """The progress of a request. It is kept in the request object, because an environment may run twice."""
        known: Progress | None = request.__dict__.get(self._name_of_progress)
        if known is None:
            known = request.__dict__[self._name_of_progress] = Progress(self.limiter)
        return known

    def check(self, request: Request, place: Place) -> None:
        """Check the limits at ``place``. Raises :exc:`RateLimitExceeded`."""
        filters, progress = self.limiter.filters, self.progress(request)
        try:
            if not filters or not any(fn() for fn in filters):
                self._check(place, progress)
        except RateLimitExceeded:
            raise
        except Exception:
            if not self.settings.swallow_errors:
                raise
            self._logger.exception("Failed to rate limit. Swallowing error")

    def _check(self, place: Place, progress: Progress) -> None:
        resolved = place.resolve(self._limits_in)
        question = self._question(place, resolved, progress)
        progress.counted |= resolved.counted_once
        if question.hits is None:
            progress.answer = None
            return
        answer = self._answer(question, place, progress)
        if answer is None:
            return
        question = answer.question  # that of the fallback may be another
        is_shown = question.limits and answer.decision.decided_by != "allow"  # which knows of no count
        progress.answer = answer if is_shown or not answer.decision.allowed else None
        if place.is_before:
            progress.before = answer
        if not answer.decision.allowed:
            raise self._refusal(answer, place, progress)
        if any(each.limit.declared.deduct_when is not None for each in question.limits):
            progress.conditional.append(answer)

    def _limits_in(self, declared: Limit) -> Iterable[RuntimeLimit]:
        """The limits that apply now. With ``swallow_errors``, a callable that returns none that can be read is logged,
        and all others apply."""
        try:
            return tuple(declared)
        except ConfigurationError:
            if not self.settings.swallow_errors:
                raise
            self._logger.exception("Failed to read a rate limit. Leaving it out")
            return ()

    def _question(self, place: Place, resolved: Resolved, progress: Progress) -> Question:
        counted, keyed_by = progress.counted, place.keyed_by
        if keyed_by is None or (counted and not counted.isdisjoint(resolved.limits)):
            return self._question_with(place, [each for each in resolved.limits if each not in counted])
        keys = tuple([self._key(each, place) for each in keyed_by])
        is_short = max(map(len, keys), default=0) <= LONGEST_REMEMBERED
        return self._cached_question(place, keys) if is_short else self._question_of(place, keys)

    def _question_of(self, place: Place, keys: tuple[str, ...]) -> Question:
        """The question about a place where only the ``keys`` depend on the request."""
        found = dict(zip(place.keyed_by or (), keys, strict=True))
        return self._question_with(place, place.resolve().limits, found.__getitem__)

    def _question_with(
        self, place: Place, limits: Iterable[RuntimeLimit], keys: Callable[[KeyFunction], str] | None = None
    ) -> Question:
        """The question about ``limits``. Without ``keys``, each of their key functions is called once."""
        key_of = keys or cache(partial(self._key, place=place))
        applied, metas = applied_limits(place, limits, key_of, self.settings.key_prefix, self._limits_in)
        endpoint = place.destination.endpoint
        if any(len(part) > LONGEST_REMEMBERED for each in applied for part in each.identifiers):
            return Question.of(endpoint, applied, metas, place.spared, self.terms)
        return self._remembered_question(endpoint, applied, metas, place.spared, self.terms)

    def _key(self, key_func: KeyFunction, place: Place) -> str:
        given: object = key_func()
        key = given if type(given) is str else key_of_client(given)
        if not key:  # an empty key is one shared quota, so that the limit is not off for such clients
            self._warn_of_empty_key(place.destination.endpoint, repr(given))
        return key

    def _log_empty_key(self, endpoint: str, given: str) -> None:
        self._logger.warning(
            "limits at %s: key_func returned %s, so all such requests share one quota; to let them pass, use "
            "exempt_when",
            endpoint,
            given,
        )

    def _answer(self, question: Question, place: Place, progress: Progress) -> Answer | None:
        assert question.hits is not None
        endpoint = place.destination.endpoint
        try:
            decision = self._multilimit.check_hits(question.hits, scope=endpoint, subject=question.subjects)
        except StorageError:
            if self._memory is None:
                raise
            return self._fallback_answer(self._memory, place, progress)
        return Answer(question, decision, time.time(), question.limits)

    def _fallback_answer(self, memory: Engine, place: Place, progress: Progress) -> Answer | None:
        """The answer of the fallback limits, in the memory of this process, once per request."""
        declared = chain(*map(self._limits_in, self.settings.in_memory_fallback))
        limits = [each for each in declared if each not in progress.counted]
        progress.counted |= frozenset(limits)
        question = self._question_with(Place(place.destination), limits)
        if question.hits is None:
            return None
        return Answer(question, memory.check(question.hits), time.time(), question.limits, memory.refund)

    # Refusals

    def _refusal(self, answer: Answer, place: Place, progress: Progress) -> RateLimitExceeded:
        before = progress.before
        if before is not None and before is not answer and not place.is_inside:
            self._give_back(before)
        of_meta = answer.of_meta()
        if of_meta is None:
            return self._exceeded(answer)
        progress.answer = of_meta  # the client does not learn about other limits
        (applied,) = of_meta.limits
        reactions = [applied.limit.on_breach or self.settings.on_meta_breach]
        response = self._react("on_meta_breach", reactions, of_meta, applied)
        return RateLimitExceeded(applied.limit, response, decision=answer.decision)

    def _exceeded(self, answer: Answer) -> RateLimitExceeded:
        refusing = answer.refusing()
        if self.settings.fail_on_first_breach:
            refusing = refusing[:1]
            answer.limits = answer.limits[: answer.limits.index(refusing[0]) + 1]
        for each in refusing:
            *_, key, scope = each.identifiers
            self._logger.info("ratelimit %s (%s) exceeded at endpoint: %s", each.limit.limit, key, scope)
        response = None
        for each in refusing:
            reactions = [self.settings.on_breach, each.limit.on_breach]
            response = self._react("on_breach", reactions, answer, each) or response
        return RateLimitExceeded(refusing[0].limit, response, decision=answer.decision)

    def _react(
        self, name: str, reactions: list[Reaction | None], answer: Answer, refusing: AppliedLimit
    ) -> Response | None:
        """Call each of ``reactions`` once. Return the last response that one of them returns."""
        shown, response = RequestLimit(self.limiter, answer, refusing), None
        for react in filter(None, dict.fromkeys(reactions)):
            try:
                given = react(shown)
            except Exception as error:  # noqa: PERF203 - of the app's own code
                if not self.settings.swallow_errors:
                    raise
                self._logger.exception("%s callback failed with error %s", name, error)
            else:
                response = given if isinstance(given, Response) else response
        return response

    # Responses

    def finish(self, request: Request, response: Response) -> None:
        """Refund the charges that do not apply to ``response``, and add header fields if they are enabled, in place of
        those about another request: a view may return the same object again."""
        added, replaced = getattr(response, self._name_of_progress, ((), ()))
        if added:
            response.headers[:] = [field for field in response.headers if field not in added]
            if "Retry-After" not in response.headers:
                response.headers.extend(replaced)
        progress: Progress | None = request.__dict__.get(self._name_of_progress)
        if progress is None:
            return
        for answer in progress.conditional:
            if unwanted := answer.unwanted(response):
                self._give_back(answer, unwanted)
        if self.limiter.enabled and self.settings.headers_enabled and (shown := progress.view_rate_limit) is not None:
            self._add_headers(response, shown)

    def _give_back(self, answer: Answer, hits: Iterable[Hit] | None = None) -> None:
        """Refund ``hits``, or all, where they were charged."""
        refund = answer.refund or self._multilimit.refund
        try:
            answer.decision = refund(answer.decision, hits)
        except StorageError as error:
            # The verdict does not change, and the charge counts until it leaves its window.
            SafeLogger(self.app.logger).error(
                "Rate limits: could not refund what the check %s charged: %s", answer.decision.id, error
            )

    def _add_headers(self, response: Response, shown: RequestLimit) -> None:
        """Add header fields about ``shown``. A ``Retry-After`` that the view has set is never made earlier."""
        names, headers = self.settings.header_names, response.headers
        window = shown.window
        reset_at = int(window.reset_time + 1)
        added = [
            (names[HeaderNames.LIMIT], str(shown.limit.amount)),
            (names[HeaderNames.REMAINING], str(window.remaining)),
            (names[HeaderNames.RESET], str(reset_at)),
        ]
        now, replaced = time.time(), [("Retry-After", given) for given in headers.getlist("Retry-After")]
        retry_at = max((reset_at, now, *(_retry_at(given, now) for _, given in replaced)))
        value = http_date(retry_at) if self.settings.retry_after == "http-date" else str(int(retry_at - now))
        retry_after = (names[HeaderNames.RETRY_AFTER], value)
        # First, because another thread may copy the response meanwhile.
        setattr(response, self._name_of_progress, ([*added, retry_after], replaced))
        for name, text in added:  # extend() takes twice the time
            headers.add(name, text)
        headers.set(*retry_after)


def _retry_at(given: str, now: float) -> int:
    """The end of an existing ``Retry-After``; 0 if it makes no sense."""
    date = parse_date(given)
    if date is not None:
        return int(date.timestamp())
    return int(now + int(given)) if given.isdecimal() and len(given) < 12 else 0


def _multilimit_of(app: Flask, settings: Settings) -> MultiLimit:
    """The app's MultiLimit, or a new one for the storage that the settings name."""
    wanted = None if settings.storage_uri is None else storage_from(settings.storage_uri, settings.storage_options)
    known: MultiLimit | None = app.extensions.get(MULTILIMIT)
    named = app.extensions.get(f"{EXTENSION}.uri", app.config.get("MULTILIMIT_STORAGE_URI"))
    if (known or named) and settings.storage_uri not in {None, named} and wanted != named:
        with app.app_context():
            in_memory = known is not None and not known.limiter.storage.shared
        if not (in_memory and settings.is_in_memory):
            raise ConfigurationError(
                f"the app {app.name!r} already has another storage: all Limiters and the MultiLimit of an app share "
                "one; set MULTILIMIT_STORAGE_URI, and leave out RATELIMIT_STORAGE_URI and storage_uri"
            )
    if known is not None:
        return known
    app.config.setdefault("MULTILIMIT_HEADERS", "off")
    app.config.setdefault("MULTILIMIT_RETRY_AFTER", "date" if settings.retry_after == "http-date" else "seconds")
    made = MultiLimit(app, storage=wanted)
    app.extensions[f"{EXTENSION}.uri"] = settings.storage_uri or named
    return made
