"""``flask multilimit limits``: who is limited by what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import click

from ...declare.subjects import LimitType, parts_of
from ...engine import ConfigurationError
from ...serve.gate import AppGate
from .. import console
from ..listing import ListedEndpoint, ListedLimiter, endpoints_of, unmatched_of
from ..words import endpoint_as_json, limits_as_json, options_of, parameters_of, rule_text
from .base import as_json, command, current_gate, for_people, write, write_json


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
@as_json
def limits_command(
    endpoint: str | None,
    path: str | None,
    blueprint: str | None,
    type_name: str | None,
    unlimited: bool,
    as_json: bool,
) -> None:
    """List endpoints with their limits, and where each limit was declared.

    Limits of functions that are not views are not listed: they are known only when the function is called.
    """
    if unlimited and type_name is not None:
        raise click.UsageError("--unlimited lists endpoints without limits, --type those with a limiter: give one.")
    wanted = _Wanted(endpoint, path, blueprint, _spelled(type_name), unlimited)
    with for_people():
        gate = current_gate()
        listed, of_no_route = endpoints_of(gate), unmatched_of(gate)
        wanted.require_blueprint(gate)
        wanted.require_type([*(limiter for each in listed for limiter in each.limiters), *of_no_route])
        endpoints = [each for each in map(wanted.part_of, listed) if each is not None]
        unmatched = tuple(filter(wanted.takes_limiter, of_no_route)) if wanted.takes_unmatched else ()
    if as_json:
        write_json(
            endpoints=[endpoint_as_json(endpoint) for endpoint in endpoints],
            unmatched=[row for listed in unmatched for row in limits_as_json(listed)],
        )
        return
    write(_lines(endpoints, unmatched) or ["No endpoint matches."])


def _spelled(type_name: str | None) -> str | None:
    """The name of a type as limiters have it, because people also write ``IP`` and ``global``, as in settings."""
    if type_name is None:
        return None
    return "+".join(_TYPES.get(part.upper(), part) for part in type_name.split("+"))


_TYPES = {name: type_.value for name, type_ in LimitType.__members__.items()}


def _types_of(listed: ListedLimiter) -> set[str]:
    """All names of its type, and of each of its parts."""
    declared = listed.planned.declaration
    return {declared.type_name, *parts_of(declared.type, declared.name)}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which limits to list; ``None``: all."""

    endpoint: str | None
    path: str | None
    blueprint: str | None
    type_name: str | None
    unlimited: bool

    @property
    def takes_unmatched(self) -> bool:
        """Whether the limits of requests without a route are listed."""
        return not (self.endpoint or self.path or self.blueprint or self.unlimited)

    def require_blueprint(self, gate: AppGate) -> None:
        """Raise :class:`ConfigurationError` if the app has no blueprint of this name."""
        if self.blueprint is not None and self.blueprint not in gate.app.blueprints:
            known = ", ".join(sorted(gate.app.blueprints)) or "none"
            raise ConfigurationError(f'no blueprint is called "{self.blueprint}"; the app has {known}')

    def require_type(self, limiters: Iterable[ListedLimiter]) -> None:
        """Raise :class:`ConfigurationError` if ``type_name`` is neither a type that all apps have nor that of a
        limiter."""
        known = set(_TYPES.values()).union(*map(_types_of, limiters))
        if self.type_name is not None and set(self.type_name.split("+")).isdisjoint(known):
            raise ConfigurationError(
                f'no limiter has the type "{self.type_name}"; known are {", ".join(sorted(known))}'
            )

    def part_of(self, listed: ListedEndpoint) -> ListedEndpoint | None:
        """The endpoint with only the wanted limiters; ``None`` if it is not wanted."""
        if self.endpoint is not None and not fnmatchcase(listed.name, self.endpoint):
            return None
        if self.path is not None and not any(fnmatchcase(route.path, self.path) for route in listed.routes):
            return None
        if self.blueprint is not None and not listed.name.startswith(f"{self.blueprint}."):
            return None
        if self.unlimited:
            return None if listed.limiters else listed
        limiters = tuple(filter(self.takes_limiter, listed.limiters))
        return None if self.type_name is not None and not limiters else replace(listed, limiters=limiters)

    def takes_limiter(self, listed: ListedLimiter) -> bool:
        """Whether it counts the wanted type, or types, alone or with others."""
        return self.type_name is None or set(self.type_name.split("+")) <= _types_of(listed)


def _lines(endpoints: list[ListedEndpoint], unmatched: tuple[ListedLimiter, ...]) -> list[str]:
    limited = [endpoint for endpoint in endpoints if endpoint.limiters]
    bare = [endpoint for endpoint in endpoints if not endpoint.limiters]
    listed = [each for endpoint in limited for each in endpoint.limiters] + list(unmatched)
    titles = ("NAME", "TYPE", "RULE", "ALGORITHM", "OPTIONS")
    rows = [row for each in listed for row in _rows(each)]
    sizes = console.sizes_of([titles, *rows], indent=4)
    lines = [console.style(line, dim=True) for line in console.aligned([titles], sizes, 4)] if rows else []
    for endpoint in limited:
        lines += ["", *_routes(endpoint), *_by_origin(endpoint.limiters, sizes)]
    if unmatched:
        title = console.style("no route", bold=True)
        lines += ["", f"{title}  requests that match no route (404) or no method of it (405)"]
        lines += _by_origin(unmatched, sizes)
    if bare:
        lines += ["", *_bare_lines(bare)]
    return lines[1:] if lines and not lines[0] else lines


def _bare_lines(bare: list[ListedEndpoint]) -> list[str]:
    title = f"WITHOUT LIMITS: {console.plural(len(bare), 'endpoint')}"
    routes = [
        (endpoint.name, ", ".join(route.methods), route.path, "exempt" if endpoint.exempt else "")
        for endpoint in bare
        for route in endpoint.routes
    ]
    return [console.style(title, fg="yellow", bold=True), *console.columns(routes, indent=2)]


def _routes(endpoint: ListedEndpoint) -> list[str]:
    name = console.style(endpoint.name, bold=True)
    routes = [f"{', '.join(route.methods)} {route.path}" for route in endpoint.routes]
    return [f"{name}  {routes[0]}", *(f"{' ' * len(endpoint.name)}  {route}" for route in routes[1:])]


def _by_origin(listed: Iterable[ListedLimiter], sizes: list[int]) -> list[str]:
    lines, origin = [], None
    for each in listed:
        if each.planned.declaration.where != origin:
            origin = each.planned.declaration.where
            lines.append(console.style(f"  from {origin}", fg="cyan"))
        lines += console.aligned(_rows(each), sizes, 4)
    return lines


def _rows(listed: ListedLimiter) -> list[tuple[str, str, str, str, str]]:
    declared = listed.planned.declaration
    options = "; ".join(options_of(listed))
    if listed.planned.dynamic is not None:
        return [(declared.name or declared.type_name, declared.type_name, "by request", "", options)]
    return [
        (
            name,
            declared.type_name,
            rule_text(rule),
            rule.algorithm,
            "; ".join(filter(None, (parameters_of(rule), options))),
        )
        for name, rule in listed.planned.rules
    ]
