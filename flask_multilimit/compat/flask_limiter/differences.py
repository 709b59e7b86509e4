"""The deliberate differences between the bridge and Flask-Limiter, and which apps see each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from flask import Flask

from .declared import Limit
from .registry import Registry, view_name
from .settings import Settings

PAGE = "Migrate from Flask-Limiter"
"""The page of the documentation that lists the differences."""


class Known(NamedTuple):
    """What is known about an app when it starts."""

    app: Flask
    settings: Settings
    registry: Registry


class Difference(NamedTuple):
    """One deliberate difference."""

    name: str
    seen: str
    """What the bridge does; then, after "there", what Flask-Limiter does."""
    touches: Callable[[Known], bool] = lambda known: False  # noqa: ARG005 - not known when the app starts
    """Whether it affects an app, as far as that is known when the app starts."""


def touching(known: Known) -> list[Difference]:
    return [each for each in DIFFERENCES if each.touches(known)]


def _every_limit(known: Known) -> Iterator[Limit]:
    yield from known.settings.application_limits
    yield from known.settings.default_limits
    yield from (limit for _, limit in known.registry.declared())


def _has_several_limits(known: Known) -> bool:
    registry, settings = known.registry, known.settings
    several = [*registry.decorated.values(), *registry.blueprints.values(), settings.default_limits]
    if settings.application_limits or any(len(each) > 1 for each in several):
        return True
    texts = (each.limit_provider for each in _every_limit(known))
    return any(isinstance(text, str) and any(mark in text for mark in ",;|") for text in texts)


def _has_dynamic_limits(known: Known) -> bool:
    return any(each.is_dynamic for each in _every_limit(known))


def _has_deductions(known: Known) -> bool:
    return any(each.deduct_when is not None for each in _every_limit(known))


def _has_meta_limits(known: Known) -> bool:
    return bool(known.settings.meta_limits) or any(each.meta_limits for each in _every_limit(known))


def _has_meta_limits_of_both_kinds(known: Known) -> bool:
    return len(known.settings.meta_limits) + any(each.meta_limits for each in _every_limit(known)) > 1


def _has_meta_limits_of_blueprints(known: Known) -> bool:
    return any(each.meta_limits for limits in known.registry.blueprints.values() for each in limits)


def _has_decorated_functions(known: Known) -> bool:
    """Whether functions other than views are decorated."""
    views = {view_name(known.app, endpoint) for endpoint in known.app.view_functions}
    return not known.registry.marked <= views


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "all or nothing",
        "A refused request counts in no limit; there, it counts in the limits checked before the one that refuses, and "
        "in those whose `deduct_when` accepts a 429.",
        _has_several_limits,
    ),
    Difference(
        "one quota whatever the count",
        "When a callable returns another count, the units used before still count; there, each count has its own "
        "quota.",
        _has_dynamic_limits,
    ),
    Difference(
        "callables that fail",
        "When a callable for limits raises or returns nonsense, the limits that it returned last stay in force (at "
        "first 100/minute beside the default limits), with one line in the log; there, its limit is off, or the "
        "request is a 500.",
        _has_dynamic_limits,
    ),
    Difference(
        "charge first",
        "With `deduct_when`, units are charged before the view runs, and given back if it does not accept the "
        "response; there, they are charged after the view, and more requests than the limit may run at once.",
        _has_deductions,
    ),
    Difference(
        "outages",
        "While storage is away, each process admits its share of the limits (`MULTILIMIT_ON_STORAGE_ERROR`); there, "
        "requests are a 500, or with `in_memory_fallback_enabled` each process admits the whole limit.",
        lambda known: not known.settings.is_in_memory and not known.settings.swallow_errors,
    ),
    Difference(
        "headers of the check",
        "Header fields and `current_limit` show what was left at the check; there, they ask storage again.",
        lambda known: known.settings.headers_enabled,
    ),
    Difference(
        "edge of a moving window",
        "With `moving-window`, a request is admitted at the instant when the oldest leaves the window; there, a moment "
        "later.",
        lambda known: known.settings.algorithm == "sliding_window",
    ),
    Difference(
        "reset of a moving window",
        "With `moving-window` and `sliding-window-counter`, the reset of an admitted request is when its quota is full "
        "again; there, when the oldest request leaves the window, or when the window of the clock ends.",
        lambda known: known.settings.headers_enabled and known.settings.algorithm != "fixed_window",
    ),
    Difference(
        "windows of the counter",
        "With `sliding-window-counter`, the windows of a key begin with its first request; there, they follow the "
        "clock.",
        lambda known: known.settings.algorithm == "sliding_window_counter",
    ),
    Difference(
        "quotas of their own",
        "Default limits, limits of some methods and decorated functions that a view calls each have a quota; there, "
        "those with the same text share one at each endpoint.",
        _has_decorated_functions,
    ),
    Difference(
        "end of a meta limit",
        "A meta limit holds for its whole window from the refusal that completes it, whose `Retry-After` says so; "
        "there, it ends with the window that its first refusal began.",
        _has_meta_limits,
    ),
    Difference(
        "several meta limits",
        "While one meta limit holds, a request that a limit also refuses still counts for the other meta limits; "
        "there, for none.",
        _has_meta_limits_of_both_kinds,
    ),
    Difference(
        "meta limits of a blueprint",
        "Meta limits of a limit on a blueprint are in force, and so are those with `per_method`; there, the former are "
        "not, and the latter are a 500.",
        _has_meta_limits_of_blueprints,
    ),
    Difference(
        "exemptions from meta limits",
        "A request passes if a `request_filter` says so, or while `enabled` is false; there, meta limits still "
        "refuse it.",
    ),
    Difference(
        "large meta limits",
        "A meta limit of more than 1000 refusals is an error.",
    ),
    Difference(
        "empty keys",
        "Requests for which `key_func` returns nothing share one quota, with a warning; there, they are not limited.",
    ),
    Difference(
        "mistakes in text",
        "A limit that cannot be read is an error where it is declared; there, it is off, with a line in the log.",
    ),
    Difference(
        "limits that nobody calls",
        "A limit put on a view after it was registered, or above `@app.route`, is in force; there, the view is not "
        "limited at all.",
    ),
    Difference(
        "Retry-After",
        "Each 429 of a limit has a `Retry-After`, rounded up; there, only with `headers_enabled`, and it may end a "
        "second too early.",
        lambda known: not known.settings.headers_enabled,
    ),
    Difference(
        "one storage",
        "All Limiters of an app keep their limits in one storage; another `storage_uri` is an error.",
    ),
    Difference(
        "storages",
        "Memcached, MongoDB and etcd are an error that says what to use; they cannot check several limits in one step.",
    ),
    Difference(
        "windows above 400 days",
        "A window of more than 400 days is an error.",
    ),
    Difference(
        "memory",
        "No warning for `memory://`, unless several processes serve the app.",
        lambda known: known.settings.storage_uri is None,
    ),
    Difference(
        "flask limiter",
        "`flask limiter limits` and `clear` list limits of the application at each route; there, only once, before "
        "all routes.",
    ),
    Difference(
        "names of errors",
        "A mistake in a declaration or a setting raises `flask_multilimit.ConfigurationError`; there, "
        "`limits.errors.ConfigurationError`.",
    ),
)
