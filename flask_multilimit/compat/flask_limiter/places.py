"""What a Limiter limits, and where requests are checked: before a view, at decorated functions, in ``with``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from flask import Blueprint, Flask, Request

from .constants import ExemptionScope
from .declared import KeyFunction, Limit, MetaLimit, RuntimeLimit
from .settings import Settings
from .util import get_qualified_name

KEEPING_OWN = ExemptionScope.APPLICATION | ExemptionScope.DEFAULT
"""A blueprint that is exempt only from these keeps its own limits."""
MOST_REMEMBERED = 4096
MARK = "__multilimit_flask_limiter__"
"""The attribute of our wrapper around a function that has the registries whose limits it checks."""


class Registry:
    """The declarations of one Limiter, for all apps that it serves."""

    def __init__(self) -> None:
        self.version: int = 0
        """Increases with every declaration: places made before may be outdated."""
        self.decorated: dict[str, dict[Limit, None]] = {}
        """The limits by the name of the decorated function."""
        self.blueprints: dict[str, dict[Limit, None]] = {}
        self.exempt_names: dict[str, ExemptionScope] = {}
        self.exempt_blueprints: dict[str, ExemptionScope] = {}
        self.targets: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()
        """The functions that limits were put on, or the owners of bound methods, by :func:`identity_of`."""
        self.hints: dict[str, dict[str, None]] = {}
        """By endpoint, the decorated functions that requests called besides the view."""

    def decorate(self, name: str, limit: Limit, target: Any) -> None:
        with suppress(TypeError):  # it cannot be weakly referenced
            self.targets[identity_of(target)] = target.__self__ if inspect.ismethod(target) else target
        if limit not in self.decorated.get(name, ()):
            self.decorated.setdefault(name, {})[limit] = None
            self.version += 1

    def limit_blueprint(self, name: str, limit: Limit) -> None:
        self.blueprints.setdefault(name, {})[limit] = None
        self.version += 1

    def exempt(self, target: Any, flags: ExemptionScope) -> None:
        if isinstance(target, Blueprint):
            self.exempt_blueprints[target.name] = flags
        else:
            self.exempt_names[get_qualified_name(target)] = flags
        self.version += 1

    def learn(self, endpoint: str, name: str) -> None:
        """Remember that a request to ``endpoint`` called the decorated function ``name``, which is not its view."""
        known = self.hints.get(endpoint)
        if known is None and len(self.hints) >= MOST_REMEMBERED:  # clients may invent request_identifier names
            return
        if known is None or name not in known:
            self.hints.setdefault(endpoint, {})[name] = None
            self.version += 1

    def is_checked_in(self, function: Any) -> bool:
        """Whether a call of ``function`` reaches our checks, also below decorators that keep ``__wrapped__``."""

        def is_marked(each: Any) -> bool:
            return self in getattr(each, MARK, ())

        return is_marked(inspect.unwrap(function, stop=is_marked))

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """The limits of a decorated function: none if it is exempt from anything."""
        return () if self.exempt_names.get(name) else tuple(self.decorated.get(name, ()))


def identity_of(function: Any) -> tuple[int, int]:
    """Python makes a bound method anew each time: it is known by its owner and its function."""
    return (id(function.__self__), id(function.__func__)) if inspect.ismethod(function) else (id(function), 0)


def view_name(app: Flask, endpoint: str) -> str:
    view: Any = app.view_functions.get(endpoint)
    return get_qualified_name(view) if view is not None else ""


class Resolved(NamedTuple):
    """The limits of one check of a request."""

    limits: tuple[RuntimeLimit, ...]
    """The limits, the shortest unit of time first."""
    counted_once: frozenset[RuntimeLimit]
    """The limits of the app and of blueprints. They count a request once, even if functions below come with them."""


NO_LIMITS = Resolved((), frozenset())
LimitsIn: TypeAlias = Callable[[Limit], Iterable[RuntimeLimit]]
"""Returns the limits of a declaration that apply now."""


class Destination(NamedTuple):
    """Where a request goes."""

    endpoint: str
    """The name that ``request_identifier`` returns."""
    blueprint: str
    method: str

    @property
    def may_be_limited(self) -> bool:
        return bool(self.endpoint) and self.endpoint.rpartition(".")[2] != "static"


@dataclass(eq=False, slots=True)
class Place:
    """Where requests are checked: before a view, or at a decorated function or ``with`` statement. Knows the limits
    that apply there, as far as they are known before the request."""

    destination: Destination
    always: tuple[Limit, ...] = ()
    own: tuple[Limit, ...] = ()
    around: tuple[Limit, ...] = ()
    """The limits of the blueprint, and of those around it."""
    default: tuple[Limit, ...] = ()
    hinted: tuple[Limit, ...] = ()
    """The limits of functions that were called there before."""
    wants_default: bool = True
    meta_limits: tuple[MetaLimit, ...] = ()
    spared: bool = False
    """Whether meta limits refuse nobody here."""
    is_before: bool = False
    is_inside: bool = False
    """Whether it is a function or ``with`` statement inside the view."""
    fixed: Resolved | None = field(init=False, default=None)
    """The limits, if they do not depend on the request."""
    keyed_by: tuple[KeyFunction, ...] | None = field(init=False, default=None)
    """The key functions, if nothing but their keys depends on the request; otherwise ``None``."""

    def __post_init__(self) -> None:
        if not any(each.is_dynamic for each in (*self.always, *self.own, *self.around, *self.default)):
            self.fixed = self._resolve()
            self.keyed_by = self._keyed_by(self.fixed)

    @property
    def is_free(self) -> bool:
        """Whether nothing is limited here."""
        return self.fixed is not None and not self.fixed.limits and (self.spared or not self.meta_limits)

    def resolve(self, limits_in: LimitsIn = iter) -> Resolved:
        """The limits that apply now: ``limits_in`` asks callables, which may return none."""
        return self.fixed or self._resolve(limits_in)

    def _resolve(self, limits_in: LimitsIn = iter) -> Resolved:
        if not self.destination.may_be_limited:
            return NO_LIMITS
        own = [*chain(*map(limits_in, self.own))]
        around = [] if _override(own) else [*chain(*map(limits_in, self.around))]
        stricter = [*own, *around]
        wanted = self.wants_default and (
            not _override(stricter) or not any(each.serves(self.destination.method) for each in stricter)
        )
        default = self.default if wanted or (self.hinted and not _override(self.hinted)) else ()
        counted_once = [*chain(*map(limits_in, (*self.always, *default)))]
        limits = dict.fromkeys((*counted_once, *stricter))
        return Resolved(tuple(sorted(limits, key=lambda each: each.limit)), frozenset((*counted_once, *around)))

    def _keyed_by(self, fixed: Resolved) -> tuple[KeyFunction, ...] | None:
        declared = (*self.meta_limits, *chain(*(each.meta_limits for each in fixed.limits)))
        if any(each.is_dynamic for each in declared):
            return None
        limits = (*chain(*declared), *fixed.limits)
        if any(each.exempt_when is not None or callable(each.cost) or callable(each.scope) for each in limits):
            return None
        return tuple(dict.fromkeys(each.key_func for each in limits))


def _override(limits: Iterable[RuntimeLimit] | Iterable[Limit]) -> bool:
    """Whether any of them replaces the default limits."""
    return any(each.override_defaults for each in limits)


class Places:
    """The places of one app, with the limits of one Limiter."""

    def __init__(self, app: Flask, registry: Registry, settings: Settings) -> None:
        self._app = app
        self._registry = registry
        self._settings = settings
        self._known: dict[tuple[str, str | None, str, str | None], tuple[int, Place]] = {}

    def endpoint(self, request: Request) -> str:
        """The name of the endpoint of the current request."""
        identify = self._settings.request_identifier
        return (request.endpoint or "") if identify is None else identify()

    def of(self, request: Request, name: str | None = None) -> Place:
        """The place where the decorated function ``name`` is called; without a name, that before the view."""
        where = (self.endpoint(request), request.endpoint, request.method, name)
        version, place = self._known.get(where, (0, None))
        if place is None or version != self._registry.version:
            at = Destination(where[0], request.blueprint or "", request.method)
            if name is not None and self._is_inside(at, name):  # before the limits are looked up: they depend on it
                self._registry.learn(at.endpoint, name)
            version = self._registry.version  # first: another thread may add limits meanwhile
            place = self.before_view(at) if name is None else self.at_function(at, name)
            if len(self._known) >= MOST_REMEMBERED:  # clients may invent methods, and request_identifier names
                self._known.clear()
            self._known[where] = version, place
        return place

    def of_with(self, request: Request, location: str, limit: Limit) -> Place:
        """The place of a ``with`` statement, whose limit may differ each time."""
        at = Destination(self.endpoint(request), request.blueprint or "", request.method)
        self._registry.decorated[location] = {limit: None}
        self._registry.learn(at.endpoint, location)
        return self.at_function(at, location, own=(limit,))

    def before_view(self, at: Destination) -> Place:
        """The limits to check before the view is called: those of the application, and if no decorated function will be
        called, those of the blueprint and the default ones, unless the blueprint overrides these.

        If limits were put on the view, but the app calls the function below them (``limit(...)(view)`` after the view
        was registered), they are checked here, too.
        """
        exempt, view = self.exemption(at), self._app.view_functions.get(at.endpoint)
        view_checks = self._registry.is_checked_in(view)
        bypassed = not view_checks and identity_of(view) in self._registry.targets
        deferred = view_checks or at.endpoint in self._registry.hints
        return self._place(
            at,
            always=() if exempt & ExemptionScope.APPLICATION else self._settings.application_limits,
            own=self._registry.limits_of(view_name(self._app, at.endpoint)) if bypassed else (),
            around=() if deferred else self._of_blueprint(at.blueprint),
            wants_default=not deferred and not exempt & ExemptionScope.DEFAULT,
            is_before=True,
        )

    def at_function(self, at: Destination, name: str, own: tuple[Limit, ...] = ()) -> Place:
        """The limits to check where the decorated function or ``with`` statement ``name`` is called: its own, those of
        the blueprint unless its own override them, and the default ones unless either overrides them for this
        method."""
        return self._place(
            at,
            own=own or self._registry.limits_of(name),
            around=self._of_blueprint(at.blueprint),
            wants_default=not self.exemption(at) & ExemptionScope.DEFAULT,
            is_inside=bool(own) or self._is_inside(at, name),
        )

    def _is_inside(self, at: Destination, name: str) -> bool:
        """Whether the decorated function ``name`` is not the view itself."""
        return view_name(self._app, at.endpoint) not in {name, ""}

    def _place(self, at: Destination, **more: Any) -> Place:
        registry, settings = self._registry, self._settings
        called = tuple(registry.hints.get(at.endpoint, ()))  # a copy: another thread may add one
        hinted = tuple(each for name in called for each in registry.limits_of(name))
        spared = bool(self.exemption(at) & ExemptionScope.META)
        default, metas = settings.default_limits, settings.meta_limits
        return Place(at, default=default, hinted=hinted, meta_limits=metas, spared=spared, **more)

    def exemption(self, at: Destination) -> ExemptionScope:
        """The exemptions of the view, of its blueprint, and of the blueprints above that exempt their descendants."""
        scope = self._registry.exempt_names.get(view_name(self._app, at.endpoint), ExemptionScope.NONE)
        blueprint = self._app.blueprints.get(at.blueprint)
        if blueprint is None:
            return scope
        own = self._registry.exempt_blueprints.get(blueprint.name, ExemptionScope.NONE)
        scope |= own & ~ExemptionScope.ANCESTORS
        if any(each.__module__.startswith("flask_multilimit.") for each in type(blueprint).__mro__):
            scope |= KEEPING_OWN | ExemptionScope.META  # dashboard and page for customers: slow to import here
        for flags in self._exempting_ancestors(at.blueprint).values():
            scope |= flags
        return scope

    def _of_blueprint(self, blueprint: str) -> tuple[Limit, ...]:
        """The limits of a blueprint, and of those around it unless it overrides them."""
        if blueprint not in self._app.blueprints:
            return ()
        name = self._app.blueprints[blueprint].name
        flags = self._registry.exempt_blueprints.get(name, ExemptionScope.NONE)
        if flags & ~KEEPING_OWN & ~ExemptionScope.ANCESTORS:
            return ()
        own = tuple(self._registry.blueprints.get(name, ()))
        if (own and all(each.override_defaults for each in own)) or flags & ExemptionScope.ANCESTORS:
            return own
        exempting = self._exempting_ancestors(blueprint)
        around = dict.fromkeys(part for part in blueprint.split(".") if part not in exempting)
        return tuple(each for part in around for each in self._registry.blueprints.get(part, ()))

    def _exempting_ancestors(self, blueprint: str) -> dict[str, ExemptionScope]:
        return {
            part: flags
            for part in blueprint.split(".")
            if (flags := self._registry.exempt_blueprints.get(part, ExemptionScope.NONE)) & ExemptionScope.DESCENDENTS
        }
