"""Which limits are on which decorated functions (by name) and blueprints, and which of these are exempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakSet

from flask import Blueprint, Flask

from .constants import ExemptionScope
from .declared import KeyFunction, Limit, MetaLimit, RuntimeLimit
from .settings import Settings
from .util import get_qualified_name

KEEPING_OWN = ExemptionScope.APPLICATION | ExemptionScope.DEFAULT
"""A blueprint that is exempt only from these keeps its own limits."""


class Resolved(NamedTuple):
    """The limits of one check of a request."""

    limits: tuple[RuntimeLimit, ...]
    """The limits, the shortest unit of time first."""
    counted_once: frozenset[RuntimeLimit]
    """The limits of the app and of blueprints. They count a request once, although functions below may also come with
    them."""


NO_LIMITS = Resolved((), frozenset())


class Destination(NamedTuple):
    """Where a request goes."""

    endpoint: str
    """The name that ``request_identifier`` returns."""
    blueprint: str | None
    method: str

    @property
    def may_be_limited(self) -> bool:
        return bool(self.endpoint) and self.endpoint.rpartition(".")[2] != "static"


@dataclass(eq=False, slots=True)
class Place:
    """Where requests are checked: before a view, or at a decorated function or ``with`` statement. Knows the limits
    that apply there, as far as they are known before the request."""

    destination: Destination
    version: int
    """The version of the registry when this was made."""
    always: tuple[Limit, ...] = ()
    own: tuple[Limit, ...] = ()
    around: tuple[Limit, ...] = ()
    """The limits of the blueprint, and of those around it."""
    default: tuple[Limit, ...] = ()
    hinted: tuple[Limit, ...] = ()
    """The limits of functions that were called there before."""
    wants_default: bool = True
    meta_limits: tuple[MetaLimit, ...] = ()
    """The meta limits of the Limiter."""
    spared: bool = False
    """Whether meta limits refuse nobody here."""
    is_before: bool = False
    """Whether it is before the view."""
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
        return self.fixed is not None and not self.fixed.limits and not self.meta_limits

    def resolve(self) -> Resolved:
        return self.fixed or self._resolve()

    def _resolve(self) -> Resolved:
        """The limits that apply now: a callable may return none."""
        if not self.destination.may_be_limited:
            return NO_LIMITS
        own = _singles(self.own)
        around = [] if _override(own) else _singles(self.around)
        stricter = [*own, *around]
        wanted = self.wants_default and (
            not _override(stricter) or not any(each.serves(self.destination.method) for each in stricter)
        )
        default = _singles(self.default) if wanted or (self.hinted and not _override(self.hinted)) else []
        counted_once = [*_singles(self.always), *default]
        limits = dict.fromkeys((*counted_once, *stricter))
        return Resolved(tuple(sorted(limits, key=lambda each: each.limit)), frozenset((*counted_once, *around)))

    def _keyed_by(self, fixed: Resolved) -> tuple[KeyFunction, ...] | None:
        declared = (*self.meta_limits, *chain.from_iterable(each.meta_limits for each in fixed.limits))
        if any(each.is_dynamic for each in declared):
            return None
        limits = (*_singles(declared), *fixed.limits)
        if any(each.depends_on_request for each in limits):
            return None
        return tuple(dict.fromkeys(each.key_func for each in limits))


def _singles(declared: Iterable[Limit]) -> list[RuntimeLimit]:
    return [single for each in declared for single in each.limits()]


def _override(limits: Iterable[RuntimeLimit] | Iterable[Limit]) -> bool:
    """Whether any of them replaces the default limits."""
    return any(each.override_defaults for each in limits)


class Registry:
    """The declarations of one Limiter, for all apps that it serves."""

    def __init__(self, is_decorated: Callable[[Any], bool]) -> None:
        self._is_decorated = is_decorated
        """Whether a function checks limits when it is called."""
        self.version: int = 0
        """Increases with every declaration: places made before may be outdated."""
        self.decorated: dict[str, dict[Limit, None]] = {}
        """The limits by the name of the decorated function."""
        self.blueprints: dict[str, dict[Limit, None]] = {}
        self.exempt_names: dict[str, ExemptionScope] = {}
        self.exempt_blueprints: dict[str, ExemptionScope] = {}
        self._targets: WeakSet[Any] = WeakSet()
        """The functions that limits were put on."""
        self._hints: dict[str, dict[str, None]] = {}

    # Declarations

    def decorate(self, name: str, limit: Limit, target: Any) -> None:
        with suppress(TypeError):  # it cannot be weakly referenced
            self._targets.add(target)
        if limit not in self.decorated.get(name, ()):
            self.decorated.setdefault(name, {})[limit] = None
            self.version += 1

    def enter(self, endpoint: str, location: str, limit: Limit) -> None:
        """Set the limit of a ``with`` statement, which may differ each time."""
        self.decorated[location] = {limit: None}
        self.learn(endpoint, location)

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
        if name not in self._hints.get(endpoint, ()):
            self._hints.setdefault(endpoint, {})[name] = None
            self.version += 1

    # The limits that apply

    def before_view(self, app: Flask, at: Destination, settings: Settings) -> Place:
        """The limits to check before the view is called: those of the application, and if no decorated function will be
        called, those of the blueprint and the default ones, unless the blueprint overrides these.

        If limits were put on the view, but the app calls the function below them (``limit(...)(view)`` after the view
        was registered), they are checked here, too.
        """
        exempt, view = self.exemption(app, at), app.view_functions.get(at.endpoint)
        view_checks = self._is_decorated(view)
        bypassed = not view_checks and self._is_target(view)
        deferred = view_checks or at.endpoint in self._hints
        return self._place(
            app,
            at,
            settings,
            always=() if exempt & ExemptionScope.APPLICATION else settings.application_limits,
            own=self.limits_of(view_name(app, at.endpoint)) if bypassed else (),
            around=() if deferred else self._of_blueprint(app, at.blueprint),
            wants_default=not deferred and not exempt & ExemptionScope.DEFAULT,
            is_before=True,
        )

    def at_function(
        self, app: Flask, at: Destination, settings: Settings, name: str, own: tuple[Limit, ...] = ()
    ) -> Place:
        """The limits to check where the decorated function or ``with`` statement ``name`` is called: its own, those of
        the blueprint unless its own override them, and the default ones unless either overrides them for this
        method."""
        return self._place(
            app,
            at,
            settings,
            own=own or self.limits_of(name),
            around=self._of_blueprint(app, at.blueprint),
            wants_default=not self.exemption(app, at) & ExemptionScope.DEFAULT,
            is_inside=bool(own) or view_name(app, at.endpoint) not in {name, ""},
        )

    def _place(self, app: Flask, at: Destination, settings: Settings, **more: Any) -> Place:
        hinted = tuple(each for name in self._hints.get(at.endpoint, ()) for each in self.limits_of(name))
        spared = bool(self.exemption(app, at) & ExemptionScope.META)
        default, metas = settings.default_limits, settings.meta_limits
        return Place(at, self.version, default=default, hinted=hinted, meta_limits=metas, spared=spared, **more)

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """The limits of a decorated function: none if it is exempt from anything."""
        return () if self.exempt_names.get(name) else tuple(self.decorated.get(name, ()))

    def exemption(self, app: Flask, at: Destination) -> ExemptionScope:
        """The exemptions of the view, of its blueprint, and of the blueprints above that exempt their descendants."""
        scope = self.exempt_names.get(view_name(app, at.endpoint), ExemptionScope.NONE)
        if at.blueprint is None or at.blueprint not in app.blueprints:
            return scope
        own = self.exempt_blueprints.get(app.blueprints[at.blueprint].name, ExemptionScope.NONE)
        scope |= own & ~ExemptionScope.ANCESTORS
        for flags in self._exempting_ancestors(at.blueprint).values():
            scope |= flags
        return scope

    def _of_blueprint(self, app: Flask, blueprint: str | None) -> tuple[Limit, ...]:
        """The limits of a blueprint, and of those around it unless it overrides them."""
        if blueprint is None or blueprint not in app.blueprints:
            return ()
        name = app.blueprints[blueprint].name
        flags = self.exempt_blueprints.get(name, ExemptionScope.NONE)
        if flags & ~KEEPING_OWN & ~ExemptionScope.ANCESTORS:
            return ()
        own = tuple(self.blueprints.get(name, ()))
        if (own and all(each.override_defaults for each in own)) or flags & ExemptionScope.ANCESTORS:
            return own
        exempting = self._exempting_ancestors(blueprint)
        around = dict.fromkeys(part for part in blueprint.split(".") if part not in exempting)
        return tuple(each for part in around for each in self.blueprints.get(part, ()))

    def _exempting_ancestors(self, blueprint: str) -> dict[str, ExemptionScope]:
        return {
            part: flags
            for part in blueprint.split(".")
            if (flags := self.exempt_blueprints.get(part, ExemptionScope.NONE)) & ExemptionScope.DESCENDENTS
        }

    def _is_target(self, function: Any) -> bool:
        with suppress(TypeError):  # it cannot be hashed, so it is not one
            return function in self._targets
        return False

    def declared(self) -> Iterator[Limit]:
        """Every limit of a function or a blueprint."""
        for limits in (*self.decorated.values(), *self.blueprints.values()):
            yield from limits


def view_name(app: Flask, endpoint: str) -> str:
    view: Any = app.view_functions.get(endpoint)
    return get_qualified_name(view) if view is not None else ""
