"""The deliberate differences from Flask-Limiter that an app may see, as far as that is known when it starts.

The page "Migrate from Flask-Limiter" of the documentation says what each of them is, and lists those that no app can be
told about.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain

from flask_multilimit.engine.text import SafeLogger

from .declared import Limit
from .in_force import InForce
from .places import view_name
from .settings import unknown_settings

_logger = SafeLogger(logging.getLogger("flask_multilimit.compat"))
"""Our own logger, because apps may process the lines of Flask-Limiter's."""


def _limits_of(state: InForce) -> list[Limit]:
    registry, settings = state.registry, state.settings
    declared = (*registry.decorated.values(), *registry.blueprints.values())
    return [*chain(settings.application_limits, settings.default_limits, *declared)]


def _has_several_limits(state: InForce) -> bool:
    registry, settings = state.registry, state.settings
    declared = (*registry.decorated.values(), *registry.blueprints.values(), settings.default_limits)
    if settings.application_limits or any(len(each) > 1 for each in declared):
        return True
    texts = (each.limit_provider for each in _limits_of(state))
    return any(isinstance(text, str) and any(mark in text for mark in ",;|") for text in texts)


def _has_decorated_functions(state: InForce) -> bool:
    """Whether functions other than views are decorated."""
    views = {view_name(state.app, endpoint) for endpoint in state.app.view_functions}
    return not state.registry.decorated.keys() <= views


def _kinds_of_meta_limits(state: InForce) -> int:
    return len(state.settings.meta_limits) + any(each.meta_limits for each in _limits_of(state))


DIFFERENCES: dict[str, Callable[[InForce], bool]] = {
    "all or nothing": lambda state: _has_several_limits(state) or any(each.cost != 1 for each in _limits_of(state)),
    "callables that fail": lambda state: (
        _has_decorated_functions(state) and any(each.is_dynamic for each in _limits_of(state))
    ),
    "charge first": lambda state: any(each.deduct_when is not None for each in _limits_of(state)),
    "outages": lambda state: not state.settings.is_in_memory and not state.settings.swallow_errors,
    "fallback limits": lambda state: bool(state.settings.in_memory_fallback),
    "headers of the check": lambda state: state.settings.headers_enabled,
    "edge of a moving window": lambda state: state.settings.algorithm == "sliding_window",
    "reset of a moving window": lambda state: (
        state.settings.headers_enabled and state.settings.algorithm != "fixed_window"
    ),
    "windows of the counter": lambda state: state.settings.algorithm == "sliding_window_counter",
    "end of a meta limit": lambda state: _kinds_of_meta_limits(state) > 0,
    "several meta limits": lambda state: _kinds_of_meta_limits(state) > 1,
    "meta limits of a blueprint": lambda state: any(
        each.meta_limits for limits in state.registry.blueprints.values() for each in limits
    ),
    "Retry-After": lambda state: not state.settings.headers_enabled,
    "memory": lambda state: state.settings.storage_uri is None,
}
"""By name, whether an app may see it."""


def _idle_limits(state: InForce) -> Iterator[str]:
    """A message for each limit of a view or a blueprint whose routes take none of its methods."""
    taken = defaultdict[str, set[str]](set)
    for route in state.app.url_map.iter_rules():
        for name in (view_name(state.app, route.endpoint), *route.endpoint.split(".")[:-1]):
            taken[name] |= route.methods or {"*"}
    for name, limits in {**state.registry.decorated, **state.registry.blueprints}.items():
        for methods in {tuple(map(str.upper, each.methods)) for each in limits if each.methods}:
            if taken[name] and taken[name].isdisjoint({*methods, "*"}):
                only = ", ".join(sorted(taken[name]))
                yield f"a limit of {name} for {', '.join(methods)} never applies: its routes take only {only}"


def warn(state: InForce) -> None:
    """Log the differences that an app may see, the settings that it misspells, and limits that never apply."""
    for text in (*unknown_settings(state.app.config), *_idle_limits(state)):
        _logger.warning("%s", text)
    if found := [name for name, touches in DIFFERENCES.items() if touches(state)]:
        _logger.warning(
            "flask_multilimit checks the limits of %r in place of Flask-Limiter. It may see differences in: %s; "
            'see "Migrate from Flask-Limiter" in the documentation',
            state.app.name,
            ", ".join(found),
        )
