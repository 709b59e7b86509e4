"""``flask multilimit limits``: who is limited by what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import click

from ...declare.subjects import LimitType
from ...engine import ConfigurationError
from ...insight.limits import EndpointLimits, Limit, endpoint_limits, places_of
from ...insight.text import plural
from .. import console
from . import command, current_gate, show


@command("limits", short_help="List endpoints with their limits.")
@click.option("--endpoint", metavar="PATTERN", help="Only endpoints with a name such as api.*")
@click.option("--path", metavar="PATTERN", help="Only endpoints with a route such as /api/*")
@click.option("--blueprint", metavar="NAME", help="Only endpoints of this blueprint and of those nested in it.")
@click.option(
    "--type",
    "type_name",
    metavar="TYPE",
    help="Only limiters of this type: ip, user, default, your own, or several: user+ip.",
)
@click.option("--unlimited", is_flag=True, help="Only endpoints without limits.")
def limits_command(
    endpoint: str | None, path: str | None, blueprint: str | None, type_name: str | None, unlimited: bool
) -> None:
    """List endpoints with their limits, and where each limit was declared.

    Limits of functions that are not views are not listed: they are known only when the function is called.
    """
    if unlimited and type_name is not None:
        raise click.UsageError("--unlimited lists endpoints without limits, --type those with a limiter: give one.")
    types = set[str]() if type_name is None else {_TYPES.get(each.upper(), each) for each in type_name.split("+")}
    gate = current_gate(warn=True)
    listed = [endpoint_limits(gate, place) for place in places_of(gate)]
    if blueprint is not None and blueprint not in gate.app.blueprints:
        known = ", ".join(sorted(gate.app.blueprints)) or "none"
        raise ConfigurationError(f'no blueprint is called "{blueprint}"; the app has {known}')
    _require_known(types, (limit for each in listed for limit in each.limits))
    endpoints = [
        each
        for each in listed
        if (endpoint is None or fnmatchcase(each.endpoint, endpoint))
        and (path is None or any(fnmatchcase(route.path, path) for route in each.routes))
        and (blueprint is None or each.endpoint.startswith(f"{blueprint}."))
        and not (unlimited and each.limits)
    ]
    if types:
        parts = [
            replace(each, limits=tuple(limit for limit in each.limits if types <= _types_of(limit)))
            for each in endpoints
        ]
        endpoints = [each for each in parts if each.limits]
    show(
        lambda: _lines(endpoints) or ["No endpoint matches."],
        endpoints=[each for each in endpoints if each.routes],
        unmatched=[limit for each in endpoints if not each.routes for limit in each.limits],
    )


_TYPES = {name: type_.value for name, type_ in LimitType.__members__.items()}
"""The names of types as limiters have them: people also write ``IP`` and ``global``, as in settings."""


def _types_of(limit: Limit) -> set[str]:
    """All names of its type, and of each of its parts."""
    return {limit.type, *limit.parts}


def _require_known(types: set[str], limits: Iterable[Limit]) -> None:
    """Raise :class:`ConfigurationError` unless one of ``types`` is that of a limiter, or one that all apps have."""
    known = set(_TYPES.values()).union(*map(_types_of, limits))
    if types and types.isdisjoint(known):
        raise ConfigurationError(
            f'no limiter has the type "{"+".join(sorted(types))}"; known are {", ".join(sorted(known))}'
        )


def _lines(endpoints: Sequence[EndpointLimits]) -> list[str]:
    limited = [endpoint for endpoint in endpoints if endpoint.limits]
    bare = [endpoint for endpoint in endpoints if not endpoint.limits]
    titles = ("NAME", "TYPE", "RULE", "ALGORITHM", "OPTIONS")
    rows = [_row(each) for endpoint in limited for each in endpoint.limits]
    sizes = console.sizes_of([titles, *rows], indent=4)
    lines = [console.style(line, dim=True) for line in console.aligned(titles, sizes, 4)] if rows else []
    for group in _grouped(limited):
        routes = [line for endpoint in group for line in _routes(endpoint)]
        lines += ["", *routes, *_by_origin(group[0].limits, sizes)]
    if bare:
        lines += ["", *_bare_lines(bare)]
    return lines[1:] if lines and not lines[0] else lines


def _grouped(limited: Iterable[EndpointLimits]) -> Iterable[list[EndpointLimits]]:
    """Endpoints with the same limits from the same places together: many inherit theirs."""
    found: dict[tuple[tuple[str, ...], ...], list[EndpointLimits]] = {}
    for endpoint in limited:
        limits = tuple((each.from_, *_row(each)) for each in endpoint.limits)
        found.setdefault(limits, []).append(endpoint)
    return found.values()


def _bare_lines(bare: list[EndpointLimits]) -> list[str]:
    title = f"WITHOUT LIMITS: {plural(len(bare), 'endpoint')}"
    routes = [
        (endpoint.endpoint, ", ".join(route.methods), route.path, "exempt" if endpoint.exempt else "")
        for endpoint in bare
        for route in endpoint.routes
    ]
    return [console.style(title, fg="yellow", bold=True), *console.columns(routes, indent=2)]


def _routes(endpoint: EndpointLimits) -> list[str]:
    name = console.style(endpoint.endpoint, bold=True)
    if not endpoint.routes:
        return [f"{name}  requests that match no route (404) or no method of it (405)"]
    routes = [f"{', '.join(route.methods)} {route.path}" for route in endpoint.routes]
    return [f"{name}  {routes[0]}", *(f"{' ' * len(endpoint.endpoint)}  {route}" for route in routes[1:])]


def _by_origin(limits: Iterable[Limit], sizes: Sequence[int]) -> list[str]:
    lines, origin = [], None
    for each in limits:
        if each.from_ != origin:
            origin = each.from_
            lines.append(console.style(f"  from {origin}", fg="cyan"))
        lines += console.aligned(_row(each), sizes, 4)
    return lines


def _row(limit: Limit) -> tuple[str, str, str, str, str]:
    marks = (
        "SHADOW: never refuses" if limit.shadow else "",
        "CHANGED" if limit.changed else "",
        f"declared: {limit.declared}" if limit.declared else "",
    )
    options = "; ".join(filter(None, (*marks, *limit.options)))
    return (limit.name, limit.type, limit.text, limit.algorithm or "", options)
