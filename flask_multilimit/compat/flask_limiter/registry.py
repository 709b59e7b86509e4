"""Knows which limits are on which decorated functions (by name) and blueprints, and who is exempt from limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

from flask import Flask

from .constants import ExemptionScope
from .declared import Limit, RuntimeLimit
from .util import get_qualified_name

SPARING_OWN = ExemptionScope.APPLICATION | ExemptionScope.DEFAULT
"""A blueprint that is exempt only from these keeps its own limits."""


class Resolved(NamedTuple):
    """The limits of one phase of a request."""

    limits: tuple[RuntimeLimit, ...]
    """The limits, the shortest unit of time first."""
    once: frozenset[RuntimeLimit]
    """The limits of the app and of blueprints, which count a request once although functions below may ask for them
    again."""


@dataclass(slots=True)
class Applicable:
    """The limits that may apply in one phase of a request. :meth:`resolve` returns those that do."""

    method: str
    always: tuple[Limit, ...] = ()
    own: tuple[Limit, ...] = ()
    around: tuple[Limit, ...] = ()
    """The limits of the blueprint, and of those around it."""
    default: tuple[Limit, ...] = ()
    hinted: tuple[Limit, ...] = ()
    """The limits of functions that were called there before."""
    wants_default: bool = True
    fixed: Resolved | None = None

    def __post_init__(self) -> None:
        every = (*self.always, *self.own, *self.around, *self.default, *self.hinted)
        if not any(each.is_dynamic for each in every):
            self.fixed = self._resolve()

    def resolve(self) -> Resolved:
        return self.fixed or self._resolve()

    def _resolve(self) -> Resolved:
        """The limits that exist now: a callable may have returned none."""
        own, around = _singles(self.own), []
        if not _override(own):
            around = _singles(self.around)
        stricter = [*own, *around]
        wanted = self.wants_default and (
            not _override(stricter) or not any(_serves(each, self.method) for each in stricter)
        )
        hinted = _singles(self.hinted)
        default = _singles(self.default) if wanted or (hinted and not _override(hinted)) else []
        once = [*_singles(self.always), *default, *around]
        limits = dict.fromkeys((*once[: len(once) - len(around)], *stricter))
        return Resolved(tuple(sorted(limits, key=lambda each: each.limit)), frozenset(once))


def _singles(declared: Iterable[Limit]) -> list[RuntimeLimit]:
    return [single for each in declared for single in each.limits()]


def _override(limits: Iterable[RuntimeLimit]) -> bool:
    """Whether any of them replaces the default limits."""
    return any(each.override_defaults for each in limits)


def _serves(limit: RuntimeLimit, method: str) -> bool:
    return limit.methods is None or method.lower() in limit.methods


class Destination(NamedTuple):
    """Where a request goes."""

    endpoint: str
    """The name that ``request_identifier`` returns."""
    blueprint: str | None
    method: str


class Registry:
    """The declarations of one Limiter, for all apps that it serves."""

    def __init__(self, is_decorated: Callable[[Any], bool]) -> None:
        self.is_decorated = is_decorated
        """Whether a function checks limits when it is called."""
        self.version: int = 0
        """Increases with every declaration: plans made before may be outdated."""
        self.decorated: dict[str, dict[Limit, None]] = {}
        self.blueprints: dict[str, dict[Limit, None]] = {}
        self.marked: set[str] = set()
        """Names of decorated functions."""
        self._exempt_names: dict[str, ExemptionScope] = {}
        self._exempt_blueprints: dict[str, ExemptionScope] = {}
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
        self.marked.add(name)

    def enter(self, location: str, limit: Limit) -> None:
        """Set the limit of a ``with`` statement, which may differ each time."""
        self.decorated[location] = {limit: None}

    def limit_blueprint(self, name: str, limit: Limit) -> None:
        self.blueprints.setdefault(name, {})[limit] = None
        self.version += 1

    def exempt_function(self, name: str, flags: ExemptionScope) -> None:
        self._exempt_names[name] = flags
        self.version += 1

    def exempt_blueprint(self, name: str, flags: ExemptionScope) -> None:
        self._exempt_blueprints[name] = flags
        self.version += 1

    def learn(self, endpoint: str, name: str) -> None:
        """Note that serving ``endpoint`` called the decorated function ``name``, which is not its view."""
        if name not in self._hints.get(endpoint, ()):
            self._hints.setdefault(endpoint, {})[name] = None
            self.version += 1

    # The limits that apply

    def before_request(
        self, app: Flask, destination: Destination, *, application: tuple[Limit, ...], default: tuple[Limit, ...]
    ) -> Applicable:
        """The limits to check before the view is called: those of the application, and if no decorated function will be
        called, those of the blueprint and the default ones, unless the blueprint overrides these.

        If limits were put on the view, but the app calls the function below them (``limit(...)(view)`` after the view
        was registered), they are checked here, too.
        """
        exempt, view = self.exemption(app, destination), app.view_functions.get(destination.endpoint)
        limits_come = self.is_decorated(view)
        lost = not limits_come and self._is_target(view)
        deferred = limits_come or destination.endpoint in self._hints
        return Applicable(
            method=destination.method,
            always=() if exempt & ExemptionScope.APPLICATION else application,
            own=self.limits_of(view_name(app, destination.endpoint)) if lost else (),
            around=() if deferred else self._of_blueprint(app, destination.blueprint),
            default=default,
            hinted=self._hinted(destination.endpoint),
            wants_default=not deferred and not exempt & ExemptionScope.DEFAULT,
        )

    def at_function(self, app: Flask, destination: Destination, name: str, *, default: tuple[Limit, ...]) -> Applicable:
        """The limits to check where the decorated function ``name`` is called: its own, those of the blueprint unless
        its own override them, and the default ones unless either overrides them for this method."""
        return Applicable(
            method=destination.method,
            own=self.limits_of(name),
            around=self._of_blueprint(app, destination.blueprint),
            default=default,
            hinted=self._hinted(destination.endpoint),
            wants_default=not self.exemption(app, destination) & ExemptionScope.DEFAULT,
        )

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """The limits of a decorated function: none if it is exempt from anything."""
        return () if self._exempt_names.get(name) else tuple(self.decorated.get(name, ()))

    def exemption(self, app: Flask, destination: Destination) -> ExemptionScope:
        """The exemptions of the view, of its blueprint, and of the blueprints above that exempt their descendants."""
        scope, blueprint = (
            self._exempt_names.get(view_name(app, destination.endpoint), ExemptionScope.NONE),
            destination.blueprint,
        )
        if blueprint is None or blueprint not in app.blueprints:
            return scope
        own = self._exempt_blueprints.get(app.blueprints[blueprint].name, ExemptionScope.NONE)
        scope |= own & ~ExemptionScope.ANCESTORS
        for flags in self._exempting_ancestors(blueprint).values():
            scope |= flags
        return scope

    def _of_blueprint(self, app: Flask, blueprint: str | None) -> tuple[Limit, ...]:
        """The limits of a blueprint, and of those around it unless it overrides them."""
        if blueprint is None or blueprint not in app.blueprints:
            return ()
        name = app.blueprints[blueprint].name
        flags = self._exempt_blueprints.get(name, ExemptionScope.NONE)
        if flags & ~SPARING_OWN & ~ExemptionScope.ANCESTORS:
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
            if (flags := self._exempt_blueprints.get(part, ExemptionScope.NONE)) & ExemptionScope.DESCENDENTS
        }

    def _is_target(self, function: Any) -> bool:
        with suppress(TypeError):  # it cannot be hashed, so it is not one
            return function in self._targets
        return False

    def _hinted(self, endpoint: str) -> tuple[Limit, ...]:
        return tuple(each for name in self._hints.get(endpoint, ()) for each in self.limits_of(name))

    def exempted(self) -> list[str]:
        """Names of views, and blueprints, that are exempt from anything."""
        return [*self._exempt_names, *(f'blueprint "{name}"' for name in self._exempt_blueprints)]

    def declared(self) -> Iterator[tuple[str, Limit]]:
        """Every limit of a function or a blueprint, and where it was declared."""
        for name, limits in self.decorated.items():
            yield from ((name, each) for each in limits)
        for name, limits in self.blueprints.items():
            yield from ((f'blueprint "{name}"', each) for each in limits)


def view_name(app: Flask, endpoint: str) -> str:
    view: Any = app.view_functions.get(endpoint)
    return get_qualified_name(view) if view is not None else ""
