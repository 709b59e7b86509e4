"""One Limiter in force in one app: its settings, its storage, and the checks worked out for each place."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from flask import Flask, Request, has_app_context, request

from flask_multilimit import ConfigurationError, Decision, MultiLimit
from flask_multilimit.engine import Hit, StorageError
from flask_multilimit.engine import Limiter as Engine
from flask_multilimit.engine.text import SafeLogger

from .constants import ExemptionScope
from .declared import Binding
from .differences import PAGE, Known, touching
from .registry import Applicable, Destination, Registry
from .requests import LONGEST_REMEMBERED, Answer, Asked, Meta, Progress, Question, Terms, question_for
from .settings import Options, Settings, unknown_settings
from .stops import Stop
from .storage import storage_from
from .util import get_qualified_name

_logger = SafeLogger(logging.getLogger("flask_multilimit.compat"))
"""Our own, not that of Flask-Limiter, whose lines apps may process."""
EXTENSION = "multilimit.flask_limiter"
MULTILIMIT = "multilimit"
DEFAULT_PREFIX = "rate_limit:"
LONGEST_PREFIX = 29
"""Characters, so that there is room for the number of a Limiter."""
MOST_REMEMBERED = 4096
QUESTIONS_REMEMBERED = 1024


class InForce:
    """What a Limiter knows about one app."""

    def __init__(self, app: Flask, registry: Registry, settings: Settings, multilimit: MultiLimit) -> None:
        self.app = app
        self.settings = settings
        self.prefix: str = _prefix_of(app, settings)
        self._registry = registry
        self._multilimit = multilimit
        self._terms = Terms(settings.algorithm, self.prefix, settings.on_storage_error)
        self._memory = Engine() if settings.in_memory_fallback else None
        self._name_of_progress = f"multilimit_flask_limiter_{id(self)}"
        self._stops: dict[tuple[str, str | None, str, str | None], Stop] = {}
        self._views: dict[tuple[str, str], tuple[int, bool]] = {}
        self._question_at = lru_cache(maxsize=QUESTIONS_REMEMBERED)(self._question_of)
        self.started: bool = False
        """Whether a request has come."""

    @classmethod
    def make(cls, app: Flask, limiter: Binding, registry: Registry, options: Options) -> InForce:
        """Put ``limiter`` into force in ``app``. Raises :class:`ConfigurationError` for settings that make no sense."""
        settings = Settings.of(app.config, options, limiter.key_func)
        for each in (
            *settings.default_limits,
            *settings.application_limits,
            *settings.meta_limits,
            *settings.in_memory_fallback,
        ):
            each.bind(limiter)
        made = cls(app, registry, settings, _multilimit_of(app, settings))
        app.extensions.setdefault(EXTENSION, {})[limiter] = made
        return made

    @classmethod
    def of(cls, app: Flask, limiter: Binding) -> InForce | None:
        known: dict[Binding, InForce] = app.extensions.get(EXTENSION, {})
        return known.get(limiter)

    def start(self) -> None:
        """Log at the first request what differs from Flask-Limiter in this app."""
        self.started = True
        for text in unknown_settings(self.app.config):
            _logger.warning("%s", text)
        if found := touching(Known(self.app, self.settings, self._registry)):
            _logger.warning(
                "flask_multilimit checks the limits of %r in place of Flask-Limiter. It may see differences in: %s; "
                'see "%s" in the documentation',
                self.app.name,
                ", ".join(each.name for each in found),
                PAGE,
            )

    # Storage

    @property
    def engine(self) -> Engine:
        if has_app_context():
            return self._multilimit.limiter
        with self.app.app_context():
            return self._multilimit.limiter

    def question(self, asked: tuple[Asked, ...], metas: tuple[Meta, ...] = (), spared: bool = False) -> Question:
        return question_for(asked, metas, spared, self._terms)

    def question_at(self, stop: Stop, keys: tuple[str, ...]) -> Question:
        """The question if nothing but ``keys`` depends on the request: one key for each ``key_func`` of ``stop``."""
        if max(map(len, keys), default=0) > LONGEST_REMEMBERED:
            return self._question_of(stop, keys)
        return self._question_at(stop, keys)

    def _question_of(self, stop: Stop, keys: tuple[str, ...]) -> Question:
        resolved = stop.applicable.resolve()
        asked, metas = stop.asked(resolved, resolved.limits, dict(zip(stop.keyed_by or (), keys, strict=True)))
        return Question.of(tuple(asked), tuple(metas), stop.spared, self._terms)

    def ask(self, question: Question, endpoint: str) -> Answer:
        """Raises :class:`StorageError`."""
        assert question.hits is not None
        decision = self._multilimit.check_hits(question.hits, scope=endpoint, subjects=question.subjects)
        return Answer(question, decision, time.time())

    def ask_memory(self, question: Question) -> Answer:
        """As :meth:`ask`, but in the memory of this process."""
        assert self._memory is not None
        return Answer(question, self._memory.check(question.hits or ()), time.time())

    def peek(self, asked: Asked) -> Answer:
        """The state of one limit. Raises :class:`StorageError`."""
        question = self.question((asked,))
        return Answer(question, self.engine.peek(question.hits or ()), time.time())

    def give_back(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """Refund ``hits``, and return the decision after that."""
        try:
            return self._multilimit.refund(decision, hits)
        except StorageError as error:
            # The verdict does not change. The charge counts until it leaves its window.
            SafeLogger(self.app.logger).error(
                "Rate limits: could not refund what the check %s charged: %s", decision.id, error
            )
            return decision

    def reset(self) -> None:
        """Reset all quotas of the app."""
        from flask_multilimit.testing import reset  # noqa: PLC0415 - the test kit: others need not load it

        reset(self.app)

    # Stops

    def endpoint(self) -> str:
        identify = self.settings.request_identifier
        return (request.endpoint or "") if identify is None else identify()

    def progress(self, asked: Request) -> Progress:
        """The progress of a request. It is kept in the request object, because an environment may run twice."""
        known = self.progress_if_any(asked)
        if known is None:
            known = asked.__dict__[self._name_of_progress] = Progress()
        return known

    def progress_if_any(self, asked: Request) -> Progress | None:
        return asked.__dict__.get(self._name_of_progress)

    def before(self, asked: Request) -> Stop:
        """The check before the view is called."""
        return self._stop(asked, None)

    def at(self, asked: Request, name: str) -> Stop:
        """The check where the decorated function ``name`` is called."""
        return self._stop(asked, name)

    def entered(self, asked: Request, location: str, owner: str) -> Stop:
        """The check at a ``with`` statement, whose limit may differ each time."""
        destination = Destination(self.endpoint(), asked.blueprint, asked.method)
        self._registry.learn(destination.endpoint, location)
        return self._made(destination, self.applicable_at(destination, location), owner=f"with in {owner}")

    def _stop(self, asked: Request, name: str | None) -> Stop:
        route, identify = asked.url_rule, self.settings.request_identifier
        endpoint = None if route is None else route.endpoint
        where = (endpoint or "" if identify is None else identify(), endpoint, asked.method, name)
        known = self._stops.get(where)
        if known is None or known.version != self._registry.version:
            destination = Destination(where[0], asked.blueprint, asked.method)
            known = self._made_before(destination) if name is None else self._made_at(destination, name)
            _keep(self._stops, where, known)
        return known

    def _made_before(self, destination: Destination) -> Stop:
        return self._made(destination, self.applicable_before(destination), is_before=True)

    def _made_at(self, destination: Destination, name: str) -> Stop:
        owner = "" if self.is_view(destination.endpoint, name) else name
        if owner:
            self._registry.learn(destination.endpoint, name)
        return self._made(destination, self.applicable_at(destination, name), owner=owner)

    def _made(self, destination: Destination, applicable: Applicable, **more: Any) -> Stop:
        return Stop(
            destination,
            applicable if _may_be_limited(destination.endpoint) else Applicable(destination.method),
            version=self._registry.version,
            key_prefix=self.settings.key_prefix,
            meta_limits=self.settings.meta_limits,
            spared=self.is_free_of_meta_limits(destination),
            **more,
        )

    def applicable_before(self, destination: Destination) -> Applicable:
        """The limits to check before the view is called."""
        application, default = self.settings.application_limits, self.settings.default_limits
        return self._registry.before_request(self.app, destination, application=application, default=default)

    def applicable_at(self, destination: Destination, name: str) -> Applicable:
        """The limits to check where the decorated function ``name`` is called."""
        return self._registry.at_function(self.app, destination, name, default=self.settings.default_limits)

    def is_view(self, endpoint: str, name: str) -> bool:
        """Whether ``name`` is the name of the view of ``endpoint``."""
        known = self._views.get((endpoint, name))
        if known is None or known[0] != self._registry.version:
            view = self.app.view_functions.get(endpoint)
            known = (self._registry.version, view is None or get_qualified_name(view) == name)
            _keep(self._views, (endpoint, name), known)
        return known[1]

    def is_free_of_meta_limits(self, destination: Destination) -> bool:
        return bool(self._registry.exemption(self.app, destination) & ExemptionScope.META)


def _may_be_limited(endpoint: str) -> bool:
    return bool(endpoint) and endpoint != "static" and not endpoint.endswith(".static")


def _prefix_of(app: Flask, settings: Settings) -> str:
    """The prefix of keys, which differs for each Limiter in memory: in Flask-Limiter, each has its own memory."""
    prefix: str = app.config.get("MULTILIMIT_KEY_PREFIX") or DEFAULT_PREFIX
    others = len(app.extensions.get(EXTENSION, ()))
    return f"{prefix[:LONGEST_PREFIX]}{others}:" if others and settings.is_in_memory else prefix


def _keep(known: dict[Any, Any], where: Any, value: Any) -> None:
    """Remember ``value``, in bounded memory: clients may invent methods, and a ``request_identifier`` any number of
    names."""
    if len(known) >= MOST_REMEMBERED:
        known.clear()
    known[where] = value


def _multilimit_of(app: Flask, settings: Settings) -> MultiLimit:
    """The app's MultiLimit, or a new one for the storage that the settings name."""
    wanted = None if settings.storage_uri is None else storage_from(settings.storage_uri, settings.storage_options)
    if MULTILIMIT not in app.extensions:
        app.config.setdefault("MULTILIMIT_HEADERS", "off")
        app.config.setdefault("MULTILIMIT_RETRY_AFTER", "date" if settings.retry_after == "http-date" else "seconds")
        app.extensions[f"{EXTENSION}.uri"] = settings.storage_uri
        return MultiLimit(app, storage=wanted)
    named = app.extensions.get(f"{EXTENSION}.uri", app.config.get("MULTILIMIT_STORAGE_URI"))
    if settings.storage_uri not in {None, named} and wanted != named:
        raise ConfigurationError(
            f"the app {app.name!r} already keeps its limits elsewhere ({named or 'memory://'}): all Limiters and the "
            "MultiLimit of an app share one storage; set MULTILIMIT_STORAGE_URI, and leave RATELIMIT_STORAGE_URI out"
        )
    multilimit: MultiLimit = app.extensions[MULTILIMIT]
    return multilimit
