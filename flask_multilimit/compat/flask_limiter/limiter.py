"""``Limiter``, as apps written for Flask-Limiter use it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from flask import Blueprint, Flask, Request, Response, current_app, has_app_context, has_request_context, request
from typing_extensions import Unpack
from werkzeug.local import LocalProxy

from flask_multilimit import ConfigurationError
from flask_multilimit.engine.text import SafeLogger

from .checks import Progress, RequestLimit
from .commands import add_commands
from .constants import ConfigVars, ExemptionScope
from .declared import KeyFunction, LimitOptions, LimitText, RouteLimit, Scope, check
from .differences import warn
from .in_force import InForce, current_app_itself
from .places import MARK, Registry, view_name
from .settings import Options, check_options
from .storage import StorageOfApp, Strategy
from .util import get_qualified_name

T = TypeVar("T", bound=Callable[..., Any] | Blueprint)
F = TypeVar("F", bound=Callable[..., Any])

EVERYTHING = ExemptionScope.APPLICATION | ExemptionScope.DEFAULT | ExemptionScope.META

_current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]


class Limiter:
    """Limits of an app, declared as for Flask-Limiter 4.1 and checked by flask_multilimit.

    The parameters are those of ``flask_limiter.Limiter``. ``auto_check=False``, of its version 3, leaves the limits of
    views, blueprints and the default ones to :meth:`check`; as there, those of other functions and of the application
    are off. Raises :class:`ConfigurationError` for limits, strategies and storages that do not exist.
    """

    def __init__(
        self,
        key_func: KeyFunction | Literal[True] | None,
        *,
        app: Flask | None = None,
        enabled: bool = True,
        auto_check: bool = True,
        **options: Unpack[Options],
    ) -> None:
        check_options(options)
        self.key_func: KeyFunction | None = None if key_func is True else key_func  # each limit may have its own
        check("key_func", self.key_func, callable, "a callable that returns the key of the client")
        check("key_func", self.key_func, lambda given: not isinstance(given, Flask), "a callable, and app=app")
        self.app = app
        self.enabled: bool = enabled
        """``False`` lets everything pass; may be changed at any time."""
        self.initialized: bool = False
        """Whether it is in force in an app."""
        self.logger: logging.Logger = logging.getLogger("flask-limiter")
        self.registry: Registry = Registry()
        self.filters: list[Callable[[], bool]] = []
        self._auto_check = auto_check
        self._latest: InForce | None = None
        self._options = options
        if app:  # false for a proxy that has no app yet, as in `Limiter(app=current_app)` in a module
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Put the limits into force in ``app``, unless ``RATELIMIT_ENABLED`` is false."""
        if isinstance(app, LocalProxy):  # frameworks pass current_app
            app = app._get_current_object()
        self.enabled = bool(app.config.setdefault(ConfigVars.ENABLED, self.enabled))
        if not self.enabled or self in app.extensions.setdefault("limiter", set()):
            return
        state = self._latest = InForce(app, self, self._options)
        app.before_request(functools.partial(self._before_request, state))
        app.after_request(functools.partial(self._after_request, state))
        add_commands(app)
        app.extensions["limiter"].add(self)
        self.initialized = True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = f"the bridge has no {name}; for `flask limiter`, uninstall Flask-Limiter, or use `flask multilimit`"
            raise AttributeError(text, name=name, obj=self)

    # Declarations

    def limit(
        self, limit_value: LimitText, *, scope: Scope | None = None, **options: Unpack[LimitOptions]
    ) -> RouteLimit:
        """A limit for a view, any function, a blueprint, or the body of a ``with`` statement: text, or a callable that
        returns it for this request. The parameters are those of ``flask_limiter.Limiter.limit``."""
        return self._limit(limit_value, scope=scope, shared=False, **options)

    def shared_limit(self, limit_value: LimitText, scope: Scope, **options: Unpack[LimitOptions]) -> RouteLimit:
        """A limit with one quota, named ``scope``, for everything that it is put on."""
        return self._limit(limit_value, scope=scope, shared=True, **options)

    def _limit(self, limit_value: LimitText, **options: Any) -> RouteLimit:
        given: dict[str, Any] = {"override_defaults": True, **options}
        key_function = given.pop("key_func", None) or self.key_func
        return RouteLimit(limit_value, limiter=self, key_function=key_function, **given)

    @overload
    def exempt(self, obj: T, *, flags: ExemptionScope = ...) -> T: ...
    @overload
    def exempt(self, *, flags: ExemptionScope = ...) -> Callable[[T], T]: ...
    def exempt(self, obj: Any = None, *, flags: ExemptionScope = EVERYTHING) -> Any:
        """Exempt a view or a blueprint from limits that are declared elsewhere.

        A view that is exempt from anything is exempt from its own limits, too.
        """
        if obj is None:
            return functools.partial(self.exempt, flags=flags)
        self.registry.exempt(obj, flags)
        return obj

    def request_filter(self, fn: F) -> F:
        """Let requests pass for which ``fn()`` returns true."""
        self.filters.append(fn)
        return fn

    def decorate(self, limit: RouteLimit, target: Any) -> Any:
        if isinstance(target, Blueprint):
            self.registry.limit_blueprint(target.name, limit)
            return None
        name = get_qualified_name(target)
        self.registry.decorate(name, limit, target)
        if self.registry in getattr(target, MARK, ()):
            return target  # its wrapper already checks all limits of this name

        is_async = inspect.iscoroutinefunction(target)

        @functools.wraps(target)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if self._auto_check:
                self.check_at(name)
            return current_app.ensure_sync(target)(*args, **kwargs) if is_async else target(*args, **kwargs)

        setattr(limited, MARK, (*getattr(target, MARK, ()), self.registry))
        return limited

    # For the app to ask

    @property
    def current_limit(self) -> RequestLimit | None:
        """The most relevant limit of the latest check of this request: the one that refuses, otherwise the one with the
        shortest unit of time."""
        return self.context.view_rate_limit

    @property
    def current_limits(self) -> list[RequestLimit]:
        """All limits of the latest check of this request, the shortest unit of time first."""
        return self.context.view_rate_limits

    @property
    def context(self) -> Progress:
        """What this Limiter knows about the current request: ``view_rate_limit``, ``view_rate_limits``."""
        state = InForce.of(self)
        return Progress(self) if state is None else state.progress(_current_request())

    @property
    def limiter(self) -> Strategy:
        """Checks limits by hand: in a request, after the overrides of its endpoint."""
        return self._current_or_latest_state().strategy_at(self._endpoint())

    @property
    def storage(self) -> StorageOfApp:
        return self._current_or_latest_state().storage_at(self._endpoint())

    def identify_request(self) -> str:
        """The scope of the limits of this request: by default the endpoint."""
        return (self._endpoint() or "") if self.enabled else ""

    def check(self) -> None:
        """Check the limits of the view, those of its blueprint and the default ones here and now. Raises
        :exc:`RateLimitExceeded`."""
        self.check_at(view_name(current_app_itself(), _current_request().endpoint or ""))

    def reset(self) -> None:
        """Reset all quotas of the app."""
        self._current_or_latest_state().reset()
        SafeLogger(self.logger).info("Storage has been reset and all limits cleared")

    # The path of a request

    def _before_request(self, state: InForce) -> None:
        if self.enabled:
            if not state.started:
                state.started = True
                warn(state)
            if not self._auto_check:
                return
            request = _current_request()
            place = state.places.of(request)
            if not place.is_free:
                state.check(request, place)

    def check_at(self, name: str, limit: RouteLimit | None = None) -> None:
        """Check the limits that apply where the decorated function ``name`` is called, or ``limit`` for the ``with``
        statement at this place."""
        state = InForce.of(self)
        if state is not None and self.enabled:
            request, places = _current_request(), state.places
            state.check(request, places.of(request, name) if limit is None else places.of_with(request, name, limit))

    def _after_request(self, state: InForce, response: Response) -> Response:
        state.finish(_current_request(), response)
        return response

    def _endpoint(self) -> str | None:
        """The scope of the limits of this request; ``None`` if there is none."""
        state = InForce.of(self) if has_request_context() else None
        return None if state is None else state.places.endpoint(_current_request())

    def _current_or_latest_state(self) -> InForce:
        """The state in the current app; outside of an app context, in the app that was initialised last."""
        state = InForce.of(self) if has_app_context() else None
        state = state or self._latest
        if state is None:
            raise ConfigurationError("this Limiter is in force in no app: call init_app(app)")
        return state
