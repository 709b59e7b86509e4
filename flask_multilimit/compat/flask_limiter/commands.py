"""``flask limiter``: ``config``, ``limits`` and ``clear``, as Flask-Limiter has them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
from flask import Flask, current_app
from flask.cli import with_appcontext
from werkzeug.exceptions import MethodNotAllowed, NotFound

from flask_multilimit import MultiLimitError
from flask_multilimit.engine.text import visible

from .constants import ConfigVars, HeaderNames
from .in_force import InForce
from .limiter import Limiter
from .listing import Listed, ListedRoute, clear, limiter_of, routes_of, stand
from .storage import ALGORITHMS

C = TypeVar("C", bound=Callable[..., Any])
PAUSE = 2.0
"""Seconds between two looks of ``--watch``."""

_endpoint = click.option("--endpoint", help="Only this endpoint.")
_path = click.option("--path", help="Only the endpoint that serves this path.")
_method = click.option("--method", help="The request method of --path.")


@click.group(help="Show and reset the limits of this app's Limiter.")
def cli() -> None:
    """The group of ``flask limiter``."""


def _with_limiter(command: C) -> C:
    """Give ``command`` the app, its Limiter, and the Limiter's state in this app."""

    @with_appcontext
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        found = limiter_of(app)
        if found is None:
            click.echo(visible(f"No Flask-Limiter extension installed on {app}"))
            return
        try:
            command(app, *found, *args, **kwargs)
        except MultiLimitError as error:
            raise click.ClickException(visible(str(error))) from error

    return run  # type: ignore[return-value]


@cli.command(help="Show the settings of the Limiter.")
@_with_limiter
def config(_: Flask, limiter: Limiter, state: InForce) -> None:
    settings = state.settings
    strategy = next(name for name, algorithm in ALGORITHMS.items() if algorithm == settings.algorithm)
    rows: list[tuple[str, object]] = [
        (ConfigVars.ENABLED, limiter.enabled),
        (ConfigVars.KEY_FUNC, limiter.key_func),
        (ConfigVars.KEY_PREFIX, settings.key_prefix),
        (ConfigVars.STRATEGY, strategy),
        (ConfigVars.STORAGE_URI, type(limiter.storage.storage).__name__),
        ("Status", "OK" if limiter.storage.check() else "Error"),
        (ConfigVars.APPLICATION_LIMITS, _texts(settings.application_limits)),
        (ConfigVars.DEFAULT_LIMITS, _texts(settings.default_limits)),
        (ConfigVars.META_LIMITS, _texts(settings.meta_limits)),
        (ConfigVars.IN_MEMORY_FALLBACK, _texts(settings.in_memory_fallback)),
        (ConfigVars.IN_MEMORY_FALLBACK_ENABLED, settings.in_memory_fallback_enabled),
        (ConfigVars.SWALLOW_ERRORS, settings.swallow_errors),
        (ConfigVars.FAIL_ON_FIRST_BREACH, settings.fail_on_first_breach),
        (ConfigVars.ON_BREACH, settings.on_breach),
        (ConfigVars.ON_META_BREACH, settings.on_meta_breach),
        (ConfigVars.HEADERS_ENABLED, settings.headers_enabled),
        (ConfigVars.HEADER_LIMIT, settings.header_names[HeaderNames.LIMIT]),
        (ConfigVars.HEADER_REMAINING, settings.header_names[HeaderNames.REMAINING]),
        (ConfigVars.HEADER_RESET, settings.header_names[HeaderNames.RESET]),
        (ConfigVars.HEADER_RETRY_AFTER, settings.header_names[HeaderNames.RETRY_AFTER]),
    ]
    longest = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(visible(f"{name:<{longest}}  {_shown(value)}"))


@cli.command(help="List all routes with their limits, and what a key has left.")
@_endpoint
@_path
@_method
@click.option("--key", help="Show what is left for this key.")
@click.option("--watch/--no-watch", default=False, help="Refresh until Ctrl-C.")
@_with_limiter
def limits(
    app: Flask,
    limiter: Limiter,
    state: InForce,
    endpoint: str | None,
    path: str | None,
    method: str | None,
    key: str | None,
    watch: bool,
) -> None:
    only = _chosen(app, endpoint, path, method)
    while True:
        lines = _lines(list(routes_of(app, limiter, state, only)), state, key)
        if not watch:
            click.echo("\n".join(map(visible, lines)))
            return
        click.clear()
        click.echo("\n".join(map(visible, lines)))
        time.sleep(PAUSE)


@cli.command("clear", help="Reset the quotas of a key.")
@_endpoint
@_path
@_method
@click.option("--key", required=True, help="Whose quotas.")
@click.option("-y", "yes", is_flag=True, help="Do not ask.")
@_with_limiter
def clear_command(
    app: Flask,
    limiter: Limiter,
    state: InForce,
    endpoint: str | None,
    path: str | None,
    method: str | None,
    key: str,
    yes: bool,
) -> None:
    only = _chosen(app, endpoint, path, method)
    routes = list(routes_of(app, limiter, state, only))
    if not yes:
        click.echo("\n".join(map(visible, _lines(routes, state, key))))
        click.confirm(visible(f"Proceed with resetting limits for key: {key}?"), abort=True)
    for route in routes:
        chosen = tuple(each for each in route.limits if only is None or each.source != "application")
        clear(state, chosen, key)
        click.echo("\n".join(map(visible, [_title(route), *(f"    {each}: Cleared" for each in chosen)])))


def _lines(routes: list[ListedRoute], state: InForce, key: str | None) -> list[str]:
    lines = []
    for route in routes:
        lines.append(_title(route))
        if route.is_exempt:
            lines.append("    Exempt")
        marks = _standing(route.limits, state, key) if key is not None else [""] * len(route.limits)
        lines += [f"    {each}{mark}  [{each.source}]" for each, mark in zip(route.limits, marks, strict=True)]
    return lines


def _standing(limits: tuple[Listed, ...], state: InForce, key: str) -> list[str]:
    return [
        f": {'Pass' if passes else 'Fail'} ({left} out of {each.limit.limit.amount} remaining)"
        for each, (passes, left) in zip(limits, stand(state, limits, key), strict=True)
    ]


def _title(route: ListedRoute) -> str:
    return f"{route.endpoint}: {route.path}"


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


def _texts(declared: Any) -> str:
    return ", ".join(_shown(each.limit_provider) for each in declared)


def _shown(value: object) -> str:
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return str(value)
