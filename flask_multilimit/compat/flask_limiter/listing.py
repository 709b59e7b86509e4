"""Lists which limits apply where, and what a key has left: for people on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flask import Flask
from werkzeug.routing import Rule as Route

from .declared import RuntimeLimit
from .in_force import InForce
from .limiter import Limiter
from .registry import Applicable, Destination, view_name
from .requests import Asked

UNLISTED = frozenset(("HEAD", "OPTIONS"))


@dataclass(frozen=True, slots=True)
class Listed:
    """A limit at one endpoint."""

    limit: RuntimeLimit
    source: str
    """``application``, ``blueprint``, ``default``, ``route``."""
    method: str
    scope: str

    def __str__(self) -> str:
        options = [
            f"{name}: {_called(function)}"
            for name, function in (("deduct_when", self.limit.deduct_when), ("exempt_when", self.limit.exempt_when))
            if function is not None
        ]
        method = f" ({self.method})" if self.limit.per_method else ""
        return f"{self.limit.limit}{method}" + (f" {{{', '.join(options)}}}" if options else "")


@dataclass(frozen=True, slots=True)
class ListedRoute:
    """An endpoint at one of its paths."""

    endpoint: str
    path: str
    limits: tuple[Listed, ...]
    is_exempt: bool
    """Whether it is exempt from limits that would apply otherwise."""


def limiter_of(app: Flask) -> tuple[Limiter, InForce] | None:
    """The first Limiter of ``app``."""
    for limiter in app.extensions.get("limiter", ()):
        state = InForce.of(app, limiter)
        if state is not None:
            return limiter, state
    return None


def routes_of(app: Flask, limiter: Limiter, state: InForce, endpoint: str | None = None) -> Iterator[ListedRoute]:
    """All routes but those of static files, which are never limited."""
    routes = [route for route in app.url_map.iter_rules() if route.endpoint.rpartition(".")[2] != "static"]
    for route in sorted(routes, key=str):
        if endpoint in {None, route.endpoint}:
            listed = {(each.limit, each.scope): each for each in _limits_at(app, state, route)}
            destination = _destination(route, "GET")
            exempt = bool(limiter.registry.exemption(app, destination)) and not listed
            yield ListedRoute(route.endpoint, str(route), tuple(listed.values()), exempt)


def stand(state: InForce, limits: tuple[Listed, ...], key: str) -> list[tuple[bool, int]]:
    """For each limit, whether ``key`` would pass, and what it has left."""
    answers = [state.peek(_asked(state, each, key)) for each in limits]
    return [(not answer.breached(), answer.standing(0)[1]) for answer in answers]


def clear(state: InForce, limits: tuple[Listed, ...], key: str) -> None:
    """Reset the quotas of ``key``."""
    for each in limits:
        hits = state.question((_asked(state, each, key),)).hits
        if hits is not None:
            state.engine.reset(hits)


def _asked(state: InForce, listed: Listed, key: str) -> Asked:
    prefix = state.settings.key_prefix
    return Asked(listed.limit, (prefix, key, listed.scope) if prefix else (key, listed.scope), 1)


def _limits_at(app: Flask, state: InForce, route: Route) -> Iterator[Listed]:
    for method in sorted((route.methods or {"GET"}) - UNLISTED):
        destination = _destination(route, method)
        with app.test_request_context(method=method):
            view = view_name(app, route.endpoint)
            for applicable in (state.applicable_before(destination), state.applicable_at(destination, view)):
                yield from _listed(applicable, destination)


def _listed(applicable: Applicable, destination: Destination) -> Iterator[Listed]:
    sources = {
        single: source
        for source, declared in (
            ("default", applicable.default),
            ("blueprint", applicable.around),
            ("application", applicable.always),
            ("route", applicable.own),
        )
        for each in declared
        for single in each.limits()
    }
    for limit in applicable.resolve().limits:
        if limit.methods is None or destination.method.lower() in limit.methods:
            scope = limit.scope_for(destination.endpoint, destination.method)
            yield Listed(limit, sources[limit], destination.method, scope)


def _destination(route: Route, method: str) -> Destination:
    return Destination(route.endpoint, route.endpoint.rpartition(".")[0] or None, method)


def _called(function: object) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', type(function).__name__)}"
