"""MultiLimit: puts the limits of an app into force."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

from flask import Flask, Response, g, has_request_context, request
from werkzeug.local import LocalProxy

from . import responses
from .config import Settings
from .declaration import EXTENSION, Message, Stack
from .engine import ConfigurationError, Decision, Limiter, StorageError
from .engine.storage import storage_from
from .plan import Plan, reject_misplaced, view_stack
from .responses import RateLimitExceeded, StorageUnavailable
from .signals import limits_checked, notify, request_rejected
from .subjects import Subjects, UserLoader

U = TypeVar("U", bound=UserLoader)

_DECISIONS = "flask_multilimit.decisions"
"""Where the decisions of a request lie in its WSGI environment, in order."""


def _decisions() -> list[Decision]:
    """The decisions of the current request; outside of one, of the app context."""
    if has_request_context():
        return cast("list[Decision]", request.environ.setdefault(_DECISIONS, []))
    return cast("list[Decision]", g.setdefault(_DECISIONS, []))


def _latest_decision() -> Decision:
    if not (decisions := _decisions()):
        raise RuntimeError("no limit has been checked for this request yet")
    return decisions[-1]


current_decision: Decision = LocalProxy(_latest_decision)  # type: ignore[assignment]
"""The latest :class:`Decision` of the current request, for view code; ``RuntimeError`` when nothing was checked."""


class MultiLimit:
    """The extension. ``MultiLimit(app)``, or ``MultiLimit()`` and :meth:`init_app` for application factories.

    :param storage: a client object of ``redis``, a :class:`Storage` or a URI, in place of
        ``MULTILIMIT_STORAGE_URI``.
    :param user_loader: returns the id (``str``, ``int`` or ``UUID``) of the user who makes the current request,
        ``None`` for nobody. Without one, flask-login is asked when the app has a login manager.

    One object serves any number of apps, each with its own settings, storage and limits.
    """

    def __init__(self, app: Flask | None = None, *, storage: Any = None, user_loader: UserLoader | None = None) -> None:
        self._storage = storage
        self._user_loader = user_loader
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Read the settings of ``app`` and put its limits into force.

        Raises :class:`ConfigurationError` for a wrong setting, and when ``app`` has a MultiLimit already.
        """
        if EXTENSION in app.extensions:
            raise ConfigurationError(f"the app {app.name!r} has a MultiLimit already; use that one")
        gate = AppGate(app, Settings.from_config(app.config), self._storage, self._load_user)
        app.extensions[EXTENSION] = gate
        app.before_request(gate.before_request)
        app.after_request(gate.after_request)

    def user_loader(self, function: U) -> U:
        """Take the decorated function as the ``user_loader``."""
        self._user_loader = function
        return function

    def _load_user(self) -> UserLoader | None:
        return self._user_loader


class AppGate:
    """The limits of one app: its settings, its limiter, and the plans of its endpoints."""

    def __init__(
        self, app: Flask, settings: Settings, storage: Any, find_user_loader: Callable[[], UserLoader | None]
    ) -> None:
        self.app = app
        self.settings = settings
        self.limiter = Limiter(
            storage_from(settings.storage_uri if storage is None else storage, timeout=settings.storage_timeout)
        )
        self._subjects = Subjects(
            app,
            ipv6_prefix=settings.ipv6_prefix,
            anonymous_user=settings.anonymous_user,
            find_user_loader=find_user_loader,
        )
        self._lock = Lock()
        self._started = False
        self._plans: dict[tuple[str | None, str], Plan | None] = {}
        self._service_plans: dict[Stack, Plan] = {}

    def admit(self, stack: Stack) -> None:
        """Check what ``stack`` declares, with all else that applies; raise unless the call may pass."""
        if self.settings.enabled:
            self._check(self._plan_of(stack))

    def before_request(self) -> None:
        if not self._started:
            self._start()

    def after_request(self, response: Response) -> Response:
        decisions: list[Decision] | None = request.environ.get(_DECISIONS)
        if decisions:
            responses.add_header_fields(response.headers, decisions, self.settings.headers)
            if response.status_code == 429 and not decisions[-1].allowed:
                responses.add_retry_after(response.headers, decisions[-1])
        return response

    def _start(self) -> None:
        """Plan every endpoint there is, so that what is wrong shows at the first request and not at the hundredth."""
        with self._lock:
            if self._started:
                return
            self._warn_of_several_processes()
            for rule in self.app.url_map.iter_rules():
                reject_misplaced(
                    rule.endpoint, self.app.view_functions.get(rule.endpoint), self.app.view_functions.values()
                )
                for method in rule.methods or ():
                    self._plan_endpoint(rule.endpoint, method)
            self._started = True

    def _warn_of_several_processes(self) -> None:
        if request.environ.get("wsgi.multiprocess") and not self.limiter.storage.shared:
            self.app.logger.warning(
                "Several worker processes serve this app, and with MULTILIMIT_STORAGE_URI=%s each of them admits the "
                "whole of every limit. Name a server they share, such as redis://localhost:6379/0.",
                self.settings.storage_uri,
            )

    def _plan_of(self, stack: Stack) -> Plan:
        if has_request_context():
            plan = self._plan_endpoint(request.endpoint, request.method)
            if plan is not None and plan.stack is stack:
                return plan
        return self._plan_service(stack)

    def _plan_endpoint(self, endpoint: str | None, method: str) -> Plan | None:
        place = (endpoint, method)
        if place not in self._plans:
            stack = view_stack(self.app.view_functions.get(endpoint or ""), method)
            self._plans[place] = self._compiled(str(endpoint), stack) if stack else None
        return self._plans[place]

    def _plan_service(self, stack: Stack) -> Plan:
        if stack not in self._service_plans:
            self._service_plans[stack] = self._compiled(stack.where, stack)
        return self._service_plans[stack]

    def _compiled(self, scope: str, stack: Stack) -> Plan:
        plan = Plan.of(scope, stack, prefix=self.settings.key_prefix)
        if plan.needs_users:
            self._subjects.require_users(scope)
        return plan

    def _check(self, plan: Plan) -> None:
        hits, subjects = plan.hits(self._subjects)
        if not hits:
            return
        try:
            decision = self.limiter.check(hits)
        except StorageError as error:
            self.app.logger.error("Rate limits of %s could not be checked: %s", plan.scope, error)
            raise StorageUnavailable from error
        _decisions().append(decision)
        arguments = {"decision": decision, "endpoint": plan.scope, "subjects": subjects}
        notify(limits_checked, self.app, **arguments)
        if not decision.allowed:
            notify(request_rejected, self.app, **arguments)
            raise RateLimitExceeded(decision, self._message(plan, decision))
        if 0 < decision.delay <= plan.wait:
            time.sleep(decision.delay)

    def _message(self, plan: Plan, decision: Decision) -> str:
        longest = max(decision.violated, key=lambda status: status.retry_after)
        message: Message = plan.message_for(longest.name) or self.settings.message
        return str(message(decision)) if callable(message) else message
