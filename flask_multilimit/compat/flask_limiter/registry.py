"""Which limits are on which decorated functions (by name) and blueprints, and which of these are exempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from flask import Blueprint, Flask

from .constants import ExemptionScope
from .declared import Limit
from .util import get_qualified_name


class Registry:
    """The declarations of one Limiter, for all apps that it serves."""

    def __init__(self, is_decorated: Callable[[Any], bool]) -> None:
        self.is_decorated = is_decorated
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
        self.hints: dict[str, dict[str, None]] = {}
        """By endpoint, the decorated functions that requests called besides the view."""

    def decorate(self, name: str, limit: Limit, target: Any) -> None:
        with suppress(TypeError):  # it cannot be weakly referenced
            self._targets.add(target)
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
        if name not in self.hints.get(endpoint, ()):
            self.hints.setdefault(endpoint, {})[name] = None
            self.version += 1

    def limits_of(self, name: str) -> tuple[Limit, ...]:
        """The limits of a decorated function: none if it is exempt from anything."""
        return () if self.exempt_names.get(name) else tuple(self.decorated.get(name, ()))

    def is_target(self, function: Any) -> bool:
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
