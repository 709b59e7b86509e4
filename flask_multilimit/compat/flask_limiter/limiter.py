"""``Limiter``, as apps written for Flask-Limiter use it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from flask import Blueprint, Flask, Request, Response, current_app, has_app_context, request
from werkzeug.local import LocalProxy

from flask_multilimit import ConfigurationError
from flask_multilimit.engine.text import SafeLogger

from .command_line import add_commands
from .constants import ConfigVars, ExemptionScope, HeaderNames
from .declared import ApplicationLimit, Cost, Limit, LimitText, MetaLimit, Reaction, RouteLimit, Scope
from .errors import RateLimitExceeded
from .given import check_callable, check_dicts, check_several, check_texts
from .headers import add_headers
from .in_force import InForce
from .phase import Phase, settle
from .registry import Registry
from .requests import Progress, RequestLimit
from .settings import Common, Options
from .stops import Stop
from .storage import StorageOfApp, Strategy
from .util import get_qualified_name

T = TypeVar("T", bound=Callable[..., Any] | Blueprint)
F = TypeVar("F", bound=Callable[..., Any])

LOGGER = "flask-limiter"
EVERYTHING = ExemptionScope.APPLICATION | ExemptionScope.DEFAULT | ExemptionScope.META
EXTENSION = "limiter"
"""The key of the Limiters of an app in ``app.extensions``."""
_MARK = "__multilimit_flask_limiter__"
"""An attribute of our wrapper around a function: the Limiters that check their limits there."""

_current_app: Callable[[], Flask] = current_app._get_current_object  # type: ignore[attr-defined]
_current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""The objects themselves: each access to an attribute of the proxies would look them up again."""


class Limiter:
    """Limits of an app, declared as for Flask-Limiter 4.1 and checked by flask_multilimit.

    The parameters are those of ``flask_limiter.Limiter``. ``auto_check=False``, of its version 3, leaves all limits to
    :meth:`check`. Raises :class:`ConfigurationError` for limits, strategies and storages that do not exist.
    """

    def __init__(
        self,
        key_func: Callable[[], str],
        *,
        app: Flask | None = None,
        default_limits: Iterable[LimitText | Limit] | None = None,
        default_limits_per_method: bool | None = None,
        default_limits_exempt_when: Callable[[], bool] | None = None,
        default_limits_deduct_when: Callable[[Response], bool] | None = None,
        default_limits_cost: Cost | None = None,
        application_limits: Iterable[LimitText | ApplicationLimit] | None = None,
        application_limits_per_method: bool | None = None,
        application_limits_exempt_when: Callable[[], bool] | None = None,
        application_limits_deduct_when: Callable[[Response], bool] | None = None,
        application_limits_cost: Cost | None = None,
        headers_enabled: bool | None = None,
        header_name_mapping: dict[HeaderNames, str] | None = None,
        strategy: str | None = None,
        storage_uri: str | None = None,
        storage_options: dict[str, Any] | None = None,
        swallow_errors: bool | None = None,
        fail_on_first_breach: bool | None = None,
        on_breach: Reaction | None = None,
        meta_limits: Iterable[LimitText | MetaLimit] | None = None,
        on_meta_breach: Reaction | None = None,
        in_memory_fallback: Iterable[LimitText | Limit] | None = None,
        in_memory_fallback_enabled: bool | None = None,
        retry_after: str | None = None,
        key_prefix: str = "",
        request_identifier: Callable[..., str] | None = None,
        enabled: bool = True,
        auto_check: bool = True,
    ) -> None:
        check_callable("request_identifier", request_identifier)
        check_texts(storage_uri=storage_uri, strategy=strategy)
        check_dicts(header_name_mapping=header_name_mapping, storage_options=storage_options)
        if not callable(key_func):
            raise ConfigurationError(f"key_func={key_func!r}: give a callable that returns the key of the client")
        self.key_func = key_func
        self.app = app
        self.enabled: bool = enabled
        """``False`` lets everything pass; may be changed at any time."""
        self.initialized: bool = False
        """Whether it is in force in an app."""
        self.logger: logging.Logger = logging.getLogger(LOGGER)
        self._auto_check = auto_check
        self.registry: Registry = Registry(self._is_decorated)
        self._latest: InForce | None = None
        self.filters: list[Callable[[], bool]] = []
        self._options = Options(
            default_limits=_bound(self, default_limits),
            default=Common(
                default_limits_per_method, default_limits_exempt_when, default_limits_deduct_when, default_limits_cost
            ),
            application_limits=_bound(self, application_limits),
            application=Common(
                application_limits_per_method,
                application_limits_exempt_when,
                application_limits_deduct_when,
                application_limits_cost,
            ),
            headers_enabled=headers_enabled,
            header_names=header_name_mapping or {},
            strategy=strategy,
            storage_uri=storage_uri,
            storage_options=storage_options or {},
            swallow_errors=swallow_errors,
            fail_on_first_breach=fail_on_first_breach,
            on_breach=on_breach,
            meta_limits=_bound(self, meta_limits),
            on_meta_breach=on_meta_breach,
            in_memory_fallback=_bound(self, in_memory_fallback),
            in_memory_fallback_enabled=in_memory_fallback_enabled,
            retry_after=retry_after,
            key_prefix=key_prefix,
            request_identifier=request_identifier,
        )
        if app:  # false for a proxy without an app yet: `Limiter(app=current_app)` in a module
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Put the limits into force in ``app``, unless ``RATELIMIT_ENABLED`` is false."""
        if isinstance(app, LocalProxy):  # frameworks pass current_app
            app = app._get_current_object()
        self.enabled = bool(app.config.setdefault(ConfigVars.ENABLED, self.enabled))
        limiters: set[Limiter] = app.extensions.setdefault(EXTENSION, set())
        if not self.enabled or self in limiters:
            return
        state = self._latest = InForce.make(app, self, self.registry, self._options)
        if self._auto_check:
            app.before_request(functools.partial(self._before_request, state))
        app.after_request(functools.partial(self._after_request, state))
        add_commands(app)
        limiters.add(self)
        self.initialized = True

    # Declarations

    def limit(
        self,
        limit_value: LimitText,
        *,
        key_func: Callable[[], str] | None = None,
        per_method: bool = False,
        methods: Iterable[str] | None = None,
        error_message: str | Callable[[], str] | None = None,
        exempt_when: Callable[[], bool] | None = None,
        override_defaults: bool | None = True,
        deduct_when: Callable[[Response], bool] | None = None,
        on_breach: Reaction | None = None,
        cost: Cost | None = 1,
        scope: Scope | None = None,
        meta_limits: Iterable[LimitText | MetaLimit] | None = None,
    ) -> RouteLimit:
        """A limit for a view, any function, a blueprint, or the body of a ``with`` statement.

        :param limit_value: text such as ``"10/minute; 100/day"``, or a callable that returns it for this request.
        :param key_func: returns who is limited; default: that of the Limiter.
        :param per_method: count each request method by itself.
        :param methods: the request methods it applies to; default all.
        :param error_message: the message to a refused client.
        :param exempt_when: if it returns true, the limit does not apply.
        :param override_defaults: whether it replaces the default limits and those of the blueprint.
        :param deduct_when: called with the response; returns whether the request counts.
        :param on_breach: called with the :class:`RequestLimit` that refuses; a response that it returns is sent.
        :param cost: units that a request takes.
        :param scope: a name that is added to the endpoint, or a callable that returns one.
        :param meta_limits: how often it may refuse before it refuses every request of the client for a time.
        """
        return self._limit(
            limit_value,
            shared=False,
            key_func=key_func,
            per_method=per_method,
            methods=methods,
            error_message=error_message,
            exempt_when=exempt_when,
            override_defaults=override_defaults,
            deduct_when=deduct_when,
            on_breach=on_breach,
            cost=cost,
            scope=scope,
            meta_limits=meta_limits,
        )

    def shared_limit(
        self,
        limit_value: LimitText,
        scope: Scope,
        *,
        key_func: Callable[[], str] | None = None,
        per_method: bool = False,
        methods: Iterable[str] | None = None,
        error_message: str | Callable[[], str] | None = None,
        exempt_when: Callable[[], bool] | None = None,
        override_defaults: bool | None = True,
        deduct_when: Callable[[Response], bool] | None = None,
        on_breach: Reaction | None = None,
        cost: Cost | None = 1,
        meta_limits: Iterable[LimitText | MetaLimit] | None = None,
    ) -> RouteLimit:
        """A limit with one quota, named ``scope``, for everything that it is put on. Parameters as for
        :meth:`limit`."""
        return self._limit(
            limit_value,
            shared=True,
            key_func=key_func,
            per_method=per_method,
            methods=methods,
            error_message=error_message,
            exempt_when=exempt_when,
            override_defaults=override_defaults,
            deduct_when=deduct_when,
            on_breach=on_breach,
            cost=cost,
            scope=scope,
            meta_limits=meta_limits,
        )

    def _limit(
        self,
        limit_value: LimitText,
        *,
        key_func: Callable[[], str] | None,
        methods: Iterable[str] | None,
        **options: Any,
    ) -> RouteLimit:
        return RouteLimit(
            limit_value,
            limiter=self,
            key_function=key_func or self.key_func,
            methods=methods,
            **options,
        )

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
        if isinstance(obj, Blueprint):
            self.registry.exempt_blueprint(obj.name, flags)
        else:
            self.registry.exempt_function(get_qualified_name(obj), flags)
        return obj

    def request_filter(self, fn: F) -> F:
        """Let requests pass for which ``fn()`` returns true."""
        self.filters.append(fn)
        return fn

    def decorate(self, limit: RouteLimit, target: Any) -> Any:
        """Put ``limit`` on ``target``."""
        if isinstance(target, Blueprint):
            self.registry.limit_blueprint(target.name, limit)
            return None
        name = get_qualified_name(target)
        self.registry.decorate(name, limit, target)
        if self in getattr(target, _MARK, ()):
            return target  # its wrapper already checks all limits of this name

        is_async = inspect.iscoroutinefunction(target)

        @functools.wraps(target)
        def limited(*args: Any, **kwargs: Any) -> Any:
            self._check_at(name)
            return current_app.ensure_sync(target)(*args, **kwargs) if is_async else target(*args, **kwargs)

        setattr(limited, _MARK, (*getattr(target, _MARK, ()), self))
        return limited

    def enter(self, limit: RouteLimit, location: str, owner: str) -> None:
        """Check ``limit`` for the ``with`` statement at ``location`` in the function ``owner``."""
        state = InForce.of(_current_app(), self)
        if state is None or not self.enabled:
            return
        self.registry.enter(location, limit)
        request = _current_request()
        self._check(state, request, state.entered(request, location, owner))

    # For the app to ask

    @property
    def current_limit(self) -> RequestLimit | None:
        """The most relevant limit of the latest check of this request: the one that refuses, otherwise the one with the
        shortest unit of time."""
        progress = self._progress()
        return None if progress is None else progress.shown(self)

    @property
    def current_limits(self) -> list[RequestLimit]:
        """All limits of the latest check of this request, the shortest unit of time first."""
        progress = self._progress()
        return [] if progress is None else progress.told(self)

    @property
    def limiter(self) -> Strategy:
        """Checks limits by hand."""
        state = self._state_anywhere()
        return Strategy(state.engine, state.settings.algorithm, state.prefix)

    @property
    def storage(self) -> StorageOfApp:
        """The storage that keeps the quotas."""
        state = self._state_anywhere()
        return StorageOfApp(state.engine, self.reset)

    def identify_request(self) -> str:
        """The scope of the limits of this request: by default the endpoint."""
        state = InForce.of(_current_app(), self)
        return state.endpoint() if state is not None and self.enabled else ""

    def check(self) -> None:
        """Check all limits of this request here and now. Raises :exc:`RateLimitExceeded`."""
        endpoint = _current_request().endpoint or ""
        self._check_at(get_qualified_name(view) if (view := _current_app().view_functions.get(endpoint)) else "")

    def reset(self) -> None:
        """Reset all quotas of the app."""
        self._state_anywhere().reset()
        SafeLogger(self.logger).info("Storage has been reset and all limits cleared")

    # The path of a request

    def _before_request(self, state: InForce) -> None:
        if not self.enabled:
            return
        if not state.started:
            state.start()
        request = _current_request()
        stop = state.before(request)
        if not stop.is_free:
            self._check(state, request, stop)

    def _check_at(self, name: str) -> None:
        """Check the limits that apply where the decorated function ``name`` is called."""
        state = InForce.of(_current_app(), self)
        if state is not None and self.enabled:
            request = _current_request()
            self._check(state, request, state.at(request, name))

    def _check(self, state: InForce, request: Request, stop: Stop) -> None:
        try:
            if not self.filters or not any(fn() for fn in self.filters):
                Phase(self, state, stop, state.progress(request)).check()
        except RateLimitExceeded:
            raise
        except Exception:
            if not state.settings.swallow_errors:
                raise
            SafeLogger(self.logger).exception("Failed to rate limit. Swallowing error")

    def _after_request(self, state: InForce, response: Response) -> Response:
        progress = state.progress_if_any(_current_request())
        if progress is not None:
            for answer in progress.conditional:
                settle(state, answer, response)
            if self.enabled and state.settings.headers_enabled and (shown := progress.shown(self)) is not None:
                add_headers(response, shown, state.settings)
        return response

    def _is_decorated(self, function: Any) -> bool:
        """Whether a call of ``function`` reaches our checks, also below decorators that keep ``__wrapped__``."""
        while function is not None:
            if self in getattr(function, _MARK, ()):
                return True
            function = getattr(function, "__wrapped__", None)
        return False

    def _progress(self) -> Progress | None:
        state = InForce.of(_current_app(), self)
        return None if state is None else state.progress_if_any(_current_request())

    def _state_anywhere(self) -> InForce:
        """The state in the current app; outside of an app context, in the app that was initialised last."""
        state = InForce.of(_current_app(), self) if has_app_context() else None
        state = state or self._latest
        if state is None:
            raise ConfigurationError("this Limiter is in force in no app: call init_app(app)")
        return state


def _bound(limiter: Limiter, limits: Iterable[Any] | None) -> list[Any] | None:
    """``limits``; those that are objects get their Limiter now, before any app has it."""
    if limits is not None:
        check_several("limits", limits)
    return None if limits is None else [each.bind(limiter) if isinstance(each, Limit) else each for each in limits]
