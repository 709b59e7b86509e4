"""The deliberate differences from Flask-Limiter that an app may see, as far as that is known when it starts.

The page "Migrate from Flask-Limiter" of the documentation says what each of them is, and lists those that no app can be
told about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from flask import Flask

from flask_multilimit.engine.text import SafeLogger

from .declared import Limit
from .registry import Registry, view_name
from .settings import Settings, unknown_settings

_logger = SafeLogger(logging.getLogger("flask_multilimit.compat"))
"""Our own, not that of Flask-Limiter, whose lines apps may process."""


class Known(NamedTuple):
    """What is known about an app when it starts."""

    app: Flask
    settings: Settings
    registry: Registry

    @property
    def limits(self) -> list[Limit]:
        return [*self.settings.application_limits, *self.settings.default_limits, *self.registry.declared()]

    @property
    def has_several_limits(self) -> bool:
        declared = (*self.registry.decorated.values(), *self.registry.blueprints.values(), self.settings.default_limits)
        if self.settings.application_limits or any(len(each) > 1 for each in declared):
            return True
        texts = (each.limit_provider for each in self.limits)
        return any(isinstance(text, str) and any(mark in text for mark in ",;|") for text in texts)

    @property
    def has_decorated_functions(self) -> bool:
        """Whether functions other than views are decorated."""
        views = {view_name(self.app, endpoint) for endpoint in self.app.view_functions}
        return not self.registry.decorated.keys() <= views

    @property
    def kinds_of_meta_limits(self) -> int:
        return len(self.settings.meta_limits) + any(each.meta_limits for each in self.limits)


DIFFERENCES: dict[str, Callable[[Known], bool]] = {
    "all or nothing": lambda known: known.has_several_limits or any(each.cost != 1 for each in known.limits),
    "callables that fail": lambda known: (
        known.has_decorated_functions and any(each.is_dynamic for each in known.limits)
    ),
    "charge first": lambda known: any(each.deduct_when is not None for each in known.limits),
    "outages": lambda known: not known.settings.is_in_memory and not known.settings.swallow_errors,
    "headers of the check": lambda known: known.settings.headers_enabled,
    "edge of a moving window": lambda known: known.settings.algorithm == "sliding_window",
    "reset of a moving window": lambda known: (
        known.settings.headers_enabled and known.settings.algorithm != "fixed_window"
    ),
    "windows of the counter": lambda known: known.settings.algorithm == "sliding_window_counter",
    "end of a meta limit": lambda known: known.kinds_of_meta_limits > 0,
    "several meta limits": lambda known: known.kinds_of_meta_limits > 1,
    "meta limits of a blueprint": lambda known: any(
        each.meta_limits for limits in known.registry.blueprints.values() for each in limits
    ),
    "Retry-After": lambda known: not known.settings.headers_enabled,
    "memory": lambda known: known.settings.storage_uri is None,
}
"""By name, whether an app may see it."""


def warn(app: Flask, settings: Settings, registry: Registry) -> None:
    """Log the differences that ``app`` may see, and the settings that it misspells."""
    for text in unknown_settings(app.config):
        _logger.warning("%s", text)
    known = Known(app, settings, registry)
    if found := [name for name, touches in DIFFERENCES.items() if touches(known)]:
        _logger.warning(
            "flask_multilimit checks the limits of %r in place of Flask-Limiter. The app may see differences in: %s; "
            'see "Migrate from Flask-Limiter" in the documentation',
            app.name,
            ", ".join(found),
        )
