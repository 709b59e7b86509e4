"""``flask limiter``: the commands ``config``, ``limits`` and ``clear`` of Flask-Limiter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import click
from flask import Flask
from flask.cli import AppGroup, with_appcontext
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Rule

from flask_multilimit import MultiLimit, MultiLimitError, RateLimiter, rate_limiter
from flask_multilimit.engine import Hits
from flask_multilimit.engine.text import visible

from .constants import ConfigVars
from .declared import Limit, RuntimeLimit, name_of
from .in_force import MULTILIMIT, InForce, current_app_itself
from .migrate import report
from .places import Destination, Place, view_name
from .settings import Options, setting_of
from .storage import hit_for
from .util import get_qualified_name

UNLISTED = frozenset(("HEAD", "OPTIONS"))
META = "meta"


class _Commands(AppGroup):
    """Reports errors of this package as click does."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MultiLimitError as error:
            raise click.ClickException(visible(str(error))) from error


cli: AppGroup = _Commands("limiter", help="Show and reset the limits of this app's Limiters.")


def add_commands(app: Flask) -> None:
    """Add the commands to ``app``, once, and list its limits in ``flask multilimit``, too."""
    multilimit: MultiLimit = app.extensions[MULTILIMIT]
    multilimit.add_listing(limiters_at)
    app.cli.commands.setdefault("limiter", cli)
    group = app.cli.commands.get("multilimit")
    if isinstance(group, click.Group):
        group.add_command(migrate)


def _states() -> list[InForce]:
    """What the Limiters of the app have in force."""
    states = InForce.all_of(current_app_itself())
    if not states:
        raise click.ClickException(visible(f"No Flask-Limiter extension installed on {current_app_itself()}"))
    return states


@click.command()
@with_appcontext
def migrate() -> None:
    """Print, for each limit of the app's Limiters, a declaration that replaces it."""
    _print(report(_states()))


@cli.command()
def config() -> None:
    """Show the settings of each Limiter."""
    for state in _states():
        rows = {
            ConfigVars.ENABLED: state.limiter.enabled,
            ConfigVars.KEY_FUNC: state.limiter.key_func,
            ConfigVars.STORAGE_URI: type(state.storage_at(None).storage).__name__,
            "Status": "OK" if state.storage_at(None).check() else "Error",
        }
        rows |= {setting_of(name): value for name, value in vars(state.settings).items() if name in _SHOWN}
        rows |= {f"RATELIMIT_HEADER_{each.name}": name for each, name in state.settings.header_names.items()}
        longest = max(map(len, rows))
        _print(f"{name:<{longest}}  {_shown(value)}" for name, value in rows.items())


_SHOWN = Options.__annotations__.keys() - {"storage_uri", "storage_options"}  # which may have a password
_of_endpoint = click.option("--endpoint", help="Only this endpoint.")
_of_path = click.option("--path", help="Only the endpoint that serves this path.")
_of_method = click.option("--method", help="The request method of --path.")


@cli.command()
@_of_endpoint
@_of_path
@_of_method
@click.option("--key", help="Show what is left for this key.")
def limits(endpoint: str | None, path: str | None, method: str | None, key: str | None) -> None:
    """List all routes with their limits, and what a key has left."""
    only, states = _chosen(current_app_itself(), endpoint, path, method), _states()
    if key is not None:
        _require_shared_storage(states)
    _print(line for state in states for line in _lines(state, only, key))


@cli.command()
@_of_endpoint
@_of_path
@_of_method
@click.option("--key", required=True, help="The key whose quotas to reset.")
@click.option("-y", "yes", is_flag=True, help="Do not ask for confirmation.")
def clear(endpoint: str | None, path: str | None, method: str | None, key: str, yes: bool) -> None:
    """Reset the quotas of a key."""
    only, states = _chosen(current_app_itself(), endpoint, path, method), _states()
    _require_shared_storage(states)
    if not yes:
        _print(line for state in states for line in _lines(state, only, key))
        click.confirm(visible(f"Proceed with resetting limits for key: {key}?"), abort=True)
    for state in states:
        spared = {META} if only is None else {META, "application"}
        for title, listed, notes in _routes(state, only):
            kept = [*notes, *(f"{each} (meta limit)" for each in listed if each.source == META)]
            chosen = [each for each in listed if each.source not in spared]
            for each in chosen:
                strategy = state.strategy_at(each.endpoint)
                strategy.clear(each.limit.limit, *state.identifiers(key, each.scope))
            _print(
                [title, *(f"    {each}: Cleared" for each in chosen), *(f"    {each}; not cleared" for each in kept)]
            )


def _require_shared_storage(states: list[InForce]) -> None:
    """Raise an error if quotas are in the memory of other processes."""
    if not states[0].engine.storage.shared and not any(each.started for each in states):
        raise click.ClickException(
            "the storage keeps quotas in the memory of each worker process: this command can neither see nor change "
            "them; to share them, use local:// or a Redis or Valkey server"
        )


class Listed(NamedTuple):
    """A limit at one endpoint."""

    limit: RuntimeLimit
    endpoint: str
    source: str
    """``application``, ``blueprint``, ``default``, ``route``, ``meta``."""
    scope: str
    methods: tuple[str, ...] | None
    """Those that it applies to, in upper case; ``None``: all."""

    def __str__(self) -> str:
        conditions = {name: getattr(self.limit, name) for name in ("deduct_when", "exempt_when")}
        options = [f"{name}: {_shown(function)}" for name, function in conditions.items() if function is not None]
        method = f" ({', '.join(self.methods or ())})" if self.limit.per_method else ""
        return f"{self.limit.limit}{method}" + (f" {{{', '.join(options)}}}" if options else "")


def _lines(state: InForce, only: str | None, key: str | None) -> Iterator[str]:
    for title, listed, notes in _routes(state, only):
        yield title
        for each in listed:
            yield f"    {each}{'' if key is None else _standing(state, each, key)}  [{each.source}]"
        yield from (f"    {note}" for note in notes)


def _standing(state: InForce, listed: Listed, key: str) -> str:
    """Whether ``key`` would pass, and what it has left, by the rules in force."""
    item, terms = listed.limit.limit, state.terms
    identifiers = (key, listed.scope) if listed.source == META else state.identifiers(key, listed.scope)
    decision = state.engine.peek(Hits([hit_for(item, identifiers, 1, terms)], scope=listed.endpoint))
    if decision.bans:
        (ban,) = decision.bans
        passes = "Pass" if decision.allowed else "Fail"
        return f": {passes} ({ban.strikes_left} out of {ban.hit.rule.quota.count} remaining)"
    statuses = decision.statuses
    passes = "Pass" if all(each.allowed or each.hit.shadow for each in statuses) else "Fail"
    least, rules = min(statuses, key=lambda each: each.remaining), [each.rule for each in statuses]
    changed = "" if rules == [item.rule(terms.algorithm)] else f"; changed to {'; '.join(map(str, rules))}"
    return f": {passes} ({least.remaining} out of {least.rule.count} remaining{changed})"


def _routes(state: InForce, only: str | None) -> Iterator[tuple[str, list[Listed], list[str]]]:
    """The title, the limits and notes of each route but those of static files, which are never limited."""
    app = state.app
    for route in sorted(app.url_map.iter_rules(), key=str):
        destination = _destination(route)
        if only not in {None, destination.endpoint} or not destination.may_be_limited:
            continue
        unknown: dict[str, Limit] = {}
        limits = _limits_of(state, route, unknown)
        notes = [*unknown]
        if state.places.exemption(destination) and not limits and not unknown:
            notes.append("Exempt")
        yield f"{destination.endpoint}: {route}", list(limits.values()), notes


def limiters_at(app: Flask, endpoint: str) -> dict[str, list[RateLimiter]]:
    """The limits of the Limiters of ``app`` at ``endpoint``, as :meth:`MultiLimit.add_listing` wants them."""
    found: dict[str, list[RateLimiter]] = {}
    for state in InForce.all_of(app):
        unknown: dict[str, Limit] = {}
        limits: dict[tuple[RuntimeLimit, str], Listed] = {}
        for route in app.url_map.iter_rules(endpoint):
            limits |= _limits_of(state, route, unknown)
        for each in limits.values():
            if each.source == META:
                continue  # it is a ban, no limiter
            where = f"Flask-Limiter: {each.source} limit, by {name_of(each.limit.key_func)}"
            found.setdefault(where, []).append(_limiter_for(state, endpoint, each))
        for declared in unknown.values():
            if declared.is_meta:
                continue
            where = f"Flask-Limiter: {name_of(declared.limit_provider)}, by {name_of(declared.limit_by)}"
            found[where] = [rate_limiter(rules=declared.limit_provider, type=declared.limit_by, name="limit")]
    return found


def _limiter_for(state: InForce, endpoint: str, listed: Listed) -> RateLimiter:
    limit, item = listed.limit, listed.limit.limit
    too_much = not callable(limit.cost) and limit.cost > item.amount  # a limiter rejects such a cost
    return rate_limiter(
        item.rule(state.terms.algorithm),
        type=limit.key_func,
        name=item.type_name,
        key=state.own_prefix,
        scope=listed.scope if listed.scope != endpoint or listed.methods else None,
        methods=listed.methods,
        cost=(lambda: limit.deduction_amount) if too_much else limit.cost,
        exempt_when=limit.exempt_when,
        charge_when=limit.deduct_when,
    )


def _destination(route: Rule) -> Destination:
    return Destination(route.endpoint, route.endpoint.rpartition(".")[0], "GET")


def _limits_of(state: InForce, route: Rule, unknown: dict[str, Limit]) -> dict[tuple[RuntimeLimit, str], Listed]:
    """The limits of ``route``, each once. Those that are not known without a request become ``unknown``, by a note."""
    app, destination = state.app, _destination(route)
    limits: dict[tuple[RuntimeLimit, str], Listed] = {}
    for method in sorted((route.methods or {"GET"}) - UNLISTED):
        at = destination._replace(method=method)
        with app.test_request_context(method=method):
            for place in _places(state, at):
                for each in _limits_at(place, unknown):
                    known = limits.get((each.limit, each.scope), each)
                    methods = each.methods and tuple(dict.fromkeys((*(known.methods or ()), *each.methods)))
                    limits[each.limit, each.scope] = each._replace(methods=methods)
    return limits


def _places(state: InForce, at: Destination) -> tuple[Place, ...]:
    """Where a request is checked: before the view, and in the view, or in the method of its class that is limited."""
    before = state.places.before_view(at)
    view_class = getattr(state.app.view_functions.get(at.endpoint), "view_class", None)
    method = getattr(view_class, at.method.lower(), None)
    name = "" if method is None else get_qualified_name(method)
    if not state.registry.limits_of(name):
        return before, state.places.at_function(at, view_name(state.app, at.endpoint))
    before = replace(before, around=(), wants_default=False)  # as after the first request, which calls the method
    return before, state.places.at_function(at, name)


def _limits_at(place: Place, unknown: dict[str, Limit]) -> Iterator[Listed]:
    """The limits at ``place``. Those that are not known without a request become ``unknown``, by a note."""
    declared = {"default": place.default, "blueprint": place.around, "application": place.always, "route": place.own}
    sources: dict[RuntimeLimit, str] = {}
    for source, limits in declared.items():
        sources |= dict.fromkeys(_known(limits, unknown), source)
    endpoint, _, method = place.destination
    are_known = all(each.is_meta for each in unknown.values())  # a meta limit changes nothing about others
    found = [limit for limit in (place.resolve().limits if are_known else sources) if limit.serves(method)]
    if not place.spared:
        metas = _known(chain(place.meta_limits, *(limit.meta_limits for limit in found)), unknown)
        sources |= dict.fromkeys(metas, META)
        found += metas
    for limit in found:
        alone = limit.per_method or (place.is_inside and sources[limit] == "route")
        methods = (method,) if alone else limit.methods and tuple(each.upper() for each in limit.methods)
        yield Listed(limit, endpoint, sources[limit], limit.scope_for(endpoint, method), methods)


def _known(declared: Iterable[Limit], unknown: dict[str, Limit]) -> list[RuntimeLimit]:
    """The limits of declarations. Those that are not known without a request become ``unknown``, by a note."""
    found: list[RuntimeLimit] = []
    for each in declared:
        try:
            found += each
        except HTTPException:  # noqa: PERF203 - from werkzeug: the request lacks what was asked for
            unknown[f"{name_of(each.limit_provider)}: depends on the request"] = each
        except Exception as error:
            failed = f"failed, perhaps for lack of a request: {type(error).__name__}: {error}"
            unknown[f"{name_of(each.limit_provider)}: {failed}"] = each
    return found


def _chosen(app: Flask, endpoint: str | None, path: str | None, method: str | None) -> str | None:
    """The endpoint that the options name; ``None`` for all."""
    if endpoint is not None and endpoint not in app.view_functions:
        raise click.ClickException(visible(f"{endpoint} not found"))
    if endpoint is not None or path is None:
        return endpoint
    try:
        found, _ = app.url_map.bind("localhost").match(path, method=method or "GET")
    except HTTPException:
        asked = f"{method.upper()}: {path}" if method else path
        raise click.ClickException(visible(f"{asked} could not be matched to an endpoint")) from None
    return str(found)


def _print(lines: Iterable[str]) -> None:
    click.echo("\n".join(map(visible, lines)))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_shown(each.limit_provider if isinstance(each, Limit) else each) for each in value)
    return name_of(value) if callable(value) else str(value)
