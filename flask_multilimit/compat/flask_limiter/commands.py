"""``flask limiter``: ``config``, ``limits`` and ``clear``, as Flask-Limiter has them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from flask import Flask, current_app
from flask.cli import with_appcontext
from werkzeug.exceptions import MethodNotAllowed, NotFound

from flask_multilimit import MultiLimitError
from flask_multilimit.engine.text import visible

from .constants import ConfigVars, HeaderNames
from .declared import Limit, RuntimeLimit, name_of
from .in_force import InForce
from .migrate import migrate
from .registry import Destination, Place, view_name
from .storage import ALGORITHMS

C = TypeVar("C", bound=Callable[..., Any])
PAUSE = 2.0
"""Seconds between two looks of ``--watch``."""
UNLISTED = frozenset(("HEAD", "OPTIONS"))

_endpoint = click.option("--endpoint", help="Only this endpoint.")
_path = click.option("--path", help="Only the endpoint that serves this path.")
_method = click.option("--method", help="The request method of --path.")


@click.group(name="limiter", help="Show and reset the limits of this app's Limiters.")
def cli() -> None:
    """The group of ``flask limiter``."""


def add_commands(app: Flask) -> None:
    """Add the commands to ``app``, once."""
    app.cli.commands.setdefault("limiter", cli)
    ours = app.cli.commands.get("multilimit")
    if isinstance(ours, click.Group):
        ours.add_command(migrate)


def _with_limiters(command: C) -> C:
    """Give ``command`` the app, and the state of each of its Limiters."""

    @with_appcontext
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        states = InForce.all_of(app)
        if not states:
            _say([f"No Flask-Limiter extension installed on {app}"])
            return
        try:
            command(app, states, *args, **kwargs)
        except MultiLimitError as error:
            raise click.ClickException(visible(str(error))) from error

    return run  # type: ignore[return-value]


@cli.command(help="Show the settings of each Limiter.")
@_with_limiters
def config(_: Flask, states: list[InForce]) -> None:
    for state in states:
        settings = state.settings
        strategy = next(name for name, algorithm in ALGORITHMS.items() if algorithm == settings.algorithm)
        rows: dict[str, object] = {
            ConfigVars.ENABLED: state.limiter.enabled,
            ConfigVars.KEY_FUNC: state.limiter.key_func,
            ConfigVars.KEY_PREFIX: settings.key_prefix,
            ConfigVars.STRATEGY: strategy,
            ConfigVars.STORAGE_URI: type(state.storage.storage).__name__,
            "Status": "OK" if state.storage.check() else "Error",
            ConfigVars.APPLICATION_LIMITS: _texts(settings.application_limits),
            ConfigVars.DEFAULT_LIMITS: _texts(settings.default_limits),
            ConfigVars.META_LIMITS: _texts(settings.meta_limits),
            ConfigVars.IN_MEMORY_FALLBACK: _texts(settings.in_memory_fallback),
            ConfigVars.IN_MEMORY_FALLBACK_ENABLED: settings.in_memory_fallback_enabled,
            ConfigVars.SWALLOW_ERRORS: settings.swallow_errors,
            ConfigVars.FAIL_ON_FIRST_BREACH: settings.fail_on_first_breach,
            ConfigVars.ON_BREACH: settings.on_breach,
            ConfigVars.ON_META_BREACH: settings.on_meta_breach,
            ConfigVars.HEADERS_ENABLED: settings.headers_enabled,
            ConfigVars.HEADER_LIMIT: settings.header_names[HeaderNames.LIMIT],
            ConfigVars.HEADER_REMAINING: settings.header_names[HeaderNames.REMAINING],
            ConfigVars.HEADER_RESET: settings.header_names[HeaderNames.RESET],
            ConfigVars.HEADER_RETRY_AFTER: settings.header_names[HeaderNames.RETRY_AFTER],
        }
        longest = max(map(len, rows))
        _say(f"{name:<{longest}}  {_shown(value)}" for name, value in rows.items())


@cli.command(help="List all routes with their limits, and what a key has left.")
@_endpoint
@_path
@_method
@click.option("--key", help="Show what is left for this key.")
@click.option("--watch/--no-watch", default=False, help="Refresh until Ctrl-C.")
@_with_limiters
def limits(
    app: Flask,
    states: list[InForce],
    endpoint: str | None,
    path: str | None,
    method: str | None,
    key: str | None,
    watch: bool,
) -> None:
    only = _chosen(app, endpoint, path, method)
    while True:
        lines = [line for state in states for line in _lines(state, only, key)]
        if watch:
            click.clear()
        _say(lines)
        if not watch:
            return
        time.sleep(PAUSE)


@cli.command(help="Reset the quotas of a key.")
@_endpoint
@_path
@_method
@click.option("--key", required=True, help="Whose quotas.")
@click.option("-y", "yes", is_flag=True, help="Do not ask.")
@_with_limiters
def clear(
    app: Flask,
    states: list[InForce],
    endpoint: str | None,
    path: str | None,
    method: str | None,
    key: str,
    yes: bool,
) -> None:
    only = _chosen(app, endpoint, path, method)
    if not yes:
        _say(line for state in states for line in _lines(state, only, key))
        click.confirm(visible(f"Proceed with resetting limits for key: {key}?"), abort=True)
    for state in states:
        for route in _routes(state, only):
            chosen = [each for each in route.limits if only is None or each.source != "application"]
            for each in chosen:
                state.strategy.clear(each.limit.limit, *each.identifiers(state, key))
            _say([route.title, *(f"    {each}: Cleared" for each in chosen)])


@dataclass(frozen=True, slots=True)
class Listed:
    """A limit at one endpoint."""

    limit: RuntimeLimit
    source: str
    """``application``, ``blueprint``, ``default``, ``route``."""
    method: str
    scope: str

    def identifiers(self, state: InForce, key: str) -> tuple[str, ...]:
        return (state.settings.key_prefix, key, self.scope) if state.settings.key_prefix else (key, self.scope)

    def standing(self, state: InForce, key: str) -> str:
        """Whether ``key`` would pass, and what it has left."""
        item, identifiers = self.limit.limit, self.identifiers(state, key)
        passes = "Pass" if state.strategy.test(item, *identifiers) else "Fail"
        left = state.strategy.get_window_stats(item, *identifiers).remaining
        return f": {passes} ({left} out of {item.amount} remaining)"

    def __str__(self) -> str:
        conditions = (("deduct_when", self.limit.deduct_when), ("exempt_when", self.limit.exempt_when))
        options = [f"{name}: {_shown(function)}" for name, function in conditions if function is not None]
        method = f" ({self.method})" if self.limit.per_method else ""
        return f"{self.limit.limit}{method}" + (f" {{{', '.join(options)}}}" if options else "")


@dataclass(frozen=True, slots=True)
class ListedRoute:
    """An endpoint at one of its paths."""

    title: str
    limits: tuple[Listed, ...]
    unknown: tuple[str, ...]
    """The callables for limits that need a request."""
    is_exempt: bool
    """Whether it is exempt from limits that would apply otherwise."""


def _lines(state: InForce, only: str | None, key: str | None) -> Iterator[str]:
    for route in _routes(state, only):
        yield route.title
        if route.is_exempt:
            yield "    Exempt"
        for each in route.limits:
            yield f"    {each}{'' if key is None else each.standing(state, key)}  [{each.source}]"
        yield from (f"    {each}: depends on the request" for each in route.unknown)


def _routes(state: InForce, endpoint: str | None) -> Iterator[ListedRoute]:
    """All routes but those of static files, which are never limited."""
    app = state.app
    for route in sorted(app.url_map.iter_rules(), key=str):
        if endpoint not in {None, route.endpoint} or not _destination(route.endpoint, "GET").may_be_limited:
            continue
        limits: dict[tuple[RuntimeLimit, str], Listed] = {}
        unknown: dict[str, None] = {}
        for method in sorted((route.methods or {"GET"}) - UNLISTED):
            at = _destination(route.endpoint, method)
            with app.test_request_context(method=method):
                for place in (state.place_before(at), state.place_at(at, view_name(app, route.endpoint))):
                    limits |= {(each.limit, each.scope): each for each in _limits_at(place, unknown)}
        exemption = state.registry.exemption(app, _destination(route.endpoint, "GET"))
        is_exempt = bool(exemption) and not limits and not unknown
        yield ListedRoute(f"{route.endpoint}: {route}", tuple(limits.values()), tuple(unknown), is_exempt)


def _limits_at(place: Place, unknown: dict[str, None]) -> Iterator[Listed]:
    """The limits at ``place``. Callables that raise, because there is no request, become ``unknown``."""
    declared = {"default": place.default, "blueprint": place.around, "application": place.always, "route": place.own}
    sources: dict[RuntimeLimit, str] = {}
    for source, each in ((source, each) for source, limits in declared.items() for each in limits):
        try:
            sources |= dict.fromkeys(each.limits(), source)
        except Exception:  # noqa: PERF203 - it depends on the request
            unknown[name_of(each.limit_provider)] = None
    endpoint, _, method = place.destination
    for limit in place.resolve().limits if not unknown else sources:
        if limit.serves(method):
            yield Listed(limit, sources[limit], method, limit.scope_for(endpoint, method))


def _destination(endpoint: str, method: str) -> Destination:
    return Destination(endpoint, endpoint.rpartition(".")[0] or None, method)


def _chosen(app: Flask, endpoint: str | None, path: str | None, method: str | None) -> str | None:
    """The endpoint that the options name; ``None`` for all."""
    if endpoint is not None:
        if endpoint not in app.view_functions:
            raise click.ClickException(visible(f"{endpoint} not found"))
        return endpoint
    if path is None:
        return None
    try:
        found, _ = app.url_map.bind("localhost").match(path, method=method or "GET")
    except (NotFound, MethodNotAllowed):
        asked = f"{method.upper()}: {path}" if method else path
        raise click.ClickException(visible(f"{asked} could not be matched to an endpoint")) from None
    return str(found)


def _say(lines: Iterable[str]) -> None:
    click.echo("\n".join(map(visible, lines)))


def _texts(declared: tuple[Limit, ...]) -> str:
    return ", ".join(_shown(each.limit_provider) for each in declared)


def _shown(value: object) -> str:
    return name_of(value) if callable(value) else str(value)
