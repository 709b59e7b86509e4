"""One Limiter in force in one app: its settings, its storage, and what was worked out for each place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from flask import Flask, Request, has_app_context, request

from flask_multilimit import ConfigurationError, Decision, Hit, MultiLimit, StorageError
from flask_multilimit import Limiter as Engine
from flask_multilimit.testing import reset

from .constants import ExemptionScope
from .declared import Binding
from .differences import PAGE, Known, touching
from .registry import Applicable, Place, Registry
from .requests import Answer, Asked, Progress, Question, question_for
from .settings import Options, Settings, unknown_settings
from .storage import storage_from
from .util import get_qualified_name

LOGGER = logging.getLogger("flask_multilimit.compat")
"""Not that of Flask-Limiter: what apps make of its lines stays as it is."""
EXTENSION = "multilimit.flask_limiter"
MULTILIMIT = "multilimit"
DEFAULT_PREFIX = "rate_limit:"
LONGEST_PREFIX = 29
"""Characters, so that there is room for the number of a Limiter."""
PLACES_REMEMBERED = 4096


class InForce:
    """What a Limiter knows of one app."""

    def __init__(self, app: Flask, registry: Registry, settings: Settings, multilimit: MultiLimit) -> None:
        self.app = app
        self.settings = settings
        self.prefix: str = _prefix_of(app, settings)
        self._registry = registry
        self._multilimit = multilimit
        self._memory = Engine() if settings.in_memory_fallback else None
        self._name_of_progress = f"multilimit_flask_limiter_{id(self)}"
        self._known: dict[tuple[Place, str | None], tuple[int, Applicable]] = {}
        self._views: dict[tuple[str, str], tuple[int, bool]] = {}
        self._started = False

    @classmethod
    def make(cls, app: Flask, limiter: Binding, registry: Registry, options: Options) -> InForce:
        """Raises :class:`ConfigurationError` for settings that make no sense."""
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
        """Say once, at the first request, what is different here."""
        if self._started:
            return
        self._started = True
        for text in unknown_settings(self.app.config):
            LOGGER.warning("%s", text)
        if found := touching(Known(self.app, self.settings, self._registry)):
            LOGGER.warning(
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

    def question(self, asked: tuple[Asked, ...]) -> Question:
        return question_for(asked, self.settings.algorithm, self.prefix, self.settings.on_storage_error)

    def ask(self, asked: tuple[Asked, ...], endpoint: str) -> Answer:
        """One question for all of them. Raises :class:`StorageError`."""
        question = self.question(asked)
        decision = None
        if question.hits is not None and None not in question.places:
            decision = self._multilimit.check_hits(question.hits, scope=endpoint, subjects=question.subjects)
        return Answer(asked, question, decision, time.time())

    def ask_memory(self, asked: tuple[Asked, ...]) -> Answer:
        """What :meth:`ask` would, of this process."""
        assert self._memory is not None
        question = question_for(asked, self.settings.algorithm, self.prefix, None)
        decision = self._memory.check(question.hits) if question.hits and None not in question.places else None
        return Answer(asked, question, decision, time.time())

    def peek(self, asked: tuple[Asked, ...]) -> Answer:
        question = self.question(asked)
        decision = self.engine.peek(question.hits) if question.hits and None not in question.places else None
        return Answer(asked, question, decision, time.time())

    def strike(self, asked: Iterable[Asked]) -> None:
        """Charge each of them by itself."""
        questions = [self.question((each,)) for each in asked]
        self.engine.check_many(each.hits for each in questions if each.hits is not None)

    def give_back(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """The decision as it stands then."""
        try:
            return self._multilimit.refund(decision, hits)
        except StorageError as error:
            # The verdict stands; so does the charge, until it leaves its window.
            self.app.logger.error("What %s charged could not be given back: %s", decision.id, error)
            return decision

    def reset(self) -> None:
        reset(self.app)

    # Places

    def endpoint(self) -> str:
        identify = self.settings.request_identifier
        return (request.endpoint or "") if identify is None else identify()

    def place(self, asked: Request) -> Place:
        endpoint = self.endpoint() if self.settings.request_identifier is not None else asked.endpoint or ""
        return Place(endpoint, asked.blueprint, asked.method)

    def progress(self, asked: Request) -> Progress:
        """It lies in the request object: an environment may run twice."""
        known = self.progress_if_any(asked)
        if known is None:
            known = asked.__dict__[self._name_of_progress] = Progress()
        return known

    def progress_if_any(self, asked: Request) -> Progress | None:
        return asked.__dict__.get(self._name_of_progress)

    def before(self, place: Place) -> Applicable:
        """What is checked before the view is called."""
        return self._remembered(
            (place, None),
            lambda: self._registry.before_request(
                self.app, place, application=self.settings.application_limits, default=self.settings.default_limits
            ),
        )

    def at(self, place: Place, name: str) -> Applicable:
        """What is checked where the decorated function ``name`` is called."""
        return self._remembered(
            (place, name),
            lambda: self._registry.at_function(self.app, place, name, default=self.settings.default_limits),
        )

    def entered(self, place: Place, name: str) -> Applicable:
        """What is checked at a ``with`` statement, whose limit may be another one each time."""
        return self._registry.at_function(self.app, place, name, default=self.settings.default_limits)

    def is_view(self, endpoint: str, name: str) -> bool:
        """Whether the view of ``endpoint`` is called so."""
        known = self._views.get((endpoint, name))
        if known is None or known[0] != self._registry.version:
            view = self.app.view_functions.get(endpoint)
            known = (self._registry.version, view is None or get_qualified_name(view) == name)
            _keep(self._views, (endpoint, name), known)
        return known[1]

    def is_free_of_meta_limits(self, place: Place) -> bool:
        return bool(self._registry.exemption(self.app, place) & ExemptionScope.META)

    def _remembered(self, where: tuple[Place, str | None], work_out: Callable[[], Applicable]) -> Applicable:
        known = self._known.get(where)
        if known is None or known[0] != self._registry.version:
            known = (self._registry.version, work_out())
            _keep(self._known, where, known)
        return known[1]


def _prefix_of(app: Flask, settings: Settings) -> str:
    """What keys begin with. In Flask-Limiter each Limiter has a memory of its own."""
    prefix: str = app.config.get("MULTILIMIT_KEY_PREFIX") or DEFAULT_PREFIX
    others = len(app.extensions.get(EXTENSION, ()))
    return f"{prefix[:LONGEST_PREFIX]}{others}:" if others and settings.is_in_memory else prefix


def _keep(known: dict[Any, Any], where: Any, value: Any) -> None:
    """Clients may make up methods, and a ``request_identifier`` any number of names."""
    if len(known) >= PLACES_REMEMBERED:
        known.clear()
    known[where] = value


def _multilimit_of(app: Flask, settings: Settings) -> MultiLimit:
    """The one that the app has, or one made for the storage that the settings name."""
    wanted = None if settings.storage_uri is None else storage_from(settings.storage_uri, settings.storage_options)
    if MULTILIMIT not in app.extensions:
        app.config.setdefault("MULTILIMIT_HEADERS", "off")
        app.config.setdefault("MULTILIMIT_RETRY_AFTER", "date" if settings.retry_after == "http-date" else "seconds")
        app.extensions[f"{EXTENSION}.uri"] = settings.storage_uri
        return MultiLimit(app, storage=wanted)
    named = app.extensions.get(f"{EXTENSION}.uri", app.config.get("MULTILIMIT_STORAGE_URI"))
    if settings.storage_uri not in {None, named} and wanted != named:
        raise ConfigurationError(
            f"the app {app.name!r} keeps its limits elsewhere already ({named or 'memory://'}): all Limiters and the "
            "MultiLimit of an app have one storage; set MULTILIMIT_STORAGE_URI, and leave RATELIMIT_STORAGE_URI out"
        )
    multilimit: MultiLimit = app.extensions[MULTILIMIT]
    return multilimit
