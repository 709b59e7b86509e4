"""``flask multilimit migrate``: for each limit of a Limiter, the declaration of flask_multilimit to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from flask import Flask

from flask_multilimit import MultiLimitError
from flask_multilimit.engine.text import visible

from .contrib.util import get_remote_address_cloudflare
from .declared import Limit, name_of
from .in_force import InForce
from .items import MOST_STRIKES, parse_many
from .limiter import Limiter
from .listing import limiter_of
from .registry import view_name
from .util import get_remote_address

FIXED_WINDOW = (
    "The strategy fixed-window admits up to twice the count across the edge of a window. Rules as text count exactly; "
    'to keep it as it is, write Rule(time, count, algorithm="fixed_window").'
)
COUNTER = 'To keep the strategy sliding-window-counter, write Rule(time, count, algorithm="sliding_window_counter").'
STRATEGIES = {"fixed_window": FIXED_WINDOW, "sliding_window_counter": COUNTER}
ADDRESSES = (
    "LimitType.IP takes all addresses of an IPv6 /64 as one client: MULTILIMIT_IPV6_PREFIX = 128 keeps them apart."
)
DAY = 86_400
"""The default maximum length of a ban, in seconds."""
SAME_UNITS = frozenset(("second", "minute", "hour", "day", "month"))


@dataclass(slots=True)
class Move:
    """One limit, and what to write in its place."""

    where: str
    """A function, a blueprint, or a list of limits."""
    before: str
    after: list[str]
    notes: list[str] = field(default_factory=list)


def migrate(app: Flask) -> None:
    """Print the declarations."""
    found = limiter_of(app)
    if found is None:
        raise click.ClickException("this app has no Limiter of flask_multilimit.compat.flask_limiter")
    try:
        lines = report(app, *found)
    except MultiLimitError as error:
        raise click.ClickException(visible(str(error))) from error
    click.echo("\n".join(map(visible, lines)))


def report(app: Flask, limiter: Limiter, state: InForce) -> list[str]:
    lines = ["from flask_multilimit import DEFAULT, IP, Ban, MultiLimit, Rule, exempt, rate_limiter", ""]
    for each in moves(app, limiter, state):
        lines += [f"{each.where}", f"    - {each.before}", *(f"    + {line}" for line in each.after)]
        lines += [f"      # {note}" for note in each.notes] + [""]
    notes = [note for algorithm, note in STRATEGIES.items() if state.settings.algorithm == algorithm]
    return [*lines, *notes, ADDRESSES]


def moves(app: Flask, limiter: Limiter, state: InForce) -> Iterator[Move]:
    """Functions and blueprints first; default limits and those of the app go last."""
    endpoints = _endpoints_by_name(app)
    for name, limit in limiter.registry.declared():
        yield _move(limiter, _short(name), limit, endpoints.get(name, []))
    for name in limiter.registry.exempted():
        yield Move(_short(name), "@limiter.exempt", ["@exempt"], ["it leaves the limits of the view itself in force"])
    for place, limits in (
        ("default_limits", state.settings.default_limits),
        ("application_limits", state.settings.application_limits),
    ):
        for limit in limits:
            move = _move(limiter, f"MultiLimit(app, {place}=[...])", limit, [])
            move.after = [line.removeprefix("@") for line in move.after]
            yield move
    for meta in state.settings.meta_limits:
        notes: list[str] = []
        bans = list(_ban((meta,), notes))
        yield Move("meta_limits", _shown(meta.limit_provider), bans, ["for each limiter whose refusals count", *notes])
    for function in limiter.filters:
        note = (
            f"exempt_when={_called(function)} of each limiter: limit = functools.partial(rate_limiter, exempt_when=...)"
        )
        yield Move("request_filter", _called(function), [], [note])


def _move(limiter: Limiter, where: str, limit: Limit, endpoints: list[str]) -> Move:
    notes: list[str] = []
    options = list(_options(limiter, limit, endpoints, notes))
    methods: Iterable[str | None] = [None]
    if limit.per_method:
        methods = [method.upper() for method in limit.methods or ("GET", "POST")]
        notes.append("one limiter for each method: write one for each method that the view takes")
    after = []
    for method in methods:
        own = [f"methods={[method]}", f'scope="{_scope(limit, endpoints)}:{method}"'] if method else []
        after.append(f"@rate_limiter({', '.join([*options, *own])})".replace("'", '"'))
    return Move(where, _before(limit), after, notes)


def _options(limiter: Limiter, limit: Limit, endpoints: list[str], notes: list[str]) -> Iterator[str]:
    yield from _type(limit.key_function or limiter.key_func, notes)
    yield f"rules={_rules(limit, notes)}"
    if limit.shared and limit.scope == "global":
        pass  # limits of the app share their quota anyway
    elif limit.scope and not limit.per_method:
        yield from _scope_option(limit, endpoints, notes)
    if limit.methods and not limit.per_method:
        yield f"methods={[method.upper() for method in limit.methods]}"
    if callable(limit.cost) or limit.cost not in {None, 1}:
        yield f"cost={_shown(limit.cost)}"
    if limit.exempt_when is not None:
        yield f"exempt_when={_called(limit.exempt_when)}"
    if limit.deduct_when is not None:
        yield f"charge_when={_called(limit.deduct_when)}"
    if callable(limit.error_message):
        yield f"message=lambda decision: {_called(limit.error_message)}()"
    elif limit.error_message:
        yield f"message={json.dumps(limit.error_message)}"
    if limit.on_breach is not None:
        yield f"on_rejected={_called(limit.on_breach)}"
        notes.append(
            "on_rejected is called with the Decision instead of a RequestLimit, and replaces that of MultiLimit here"
        )
    if limit.role == "limit" and not limit.override_defaults:
        yield "with_defaults=True"
    meta = tuple(limit.meta_limits or ())
    if meta:
        yield from _ban(meta, notes)


def _type(key_func: Any, notes: list[str]) -> Iterator[str]:
    if key_func is get_remote_address:
        yield "type=IP"
        return
    called = _called(key_func)
    name = "client" if key_func is get_remote_address_cloudflare else re.sub(r"\W", "", called)[:20].strip("_") or "key"
    if "<lambda>" in name_of(key_func):
        called, name = "KEY", "key"
        notes.append(
            "KEY is the lambda that was key_func; for one that returns the same for everybody, write type=DEFAULT"
        )
    notes.append(
        f"a {called} that returns None says that the limit does not apply; the empty text is one shared subject"
    )
    yield f'type={called}, name="{name}"'


def _rules(limit: Limit, notes: list[str]) -> str:
    text = limit.limit_provider
    if callable(text):
        notes.append("when the callable returns None or empty text, no limit applies, as before")
        return _called(text)
    items = parse_many(text) if text else ()
    if all(item.granularity.name in SAME_UNITS for item in items):
        return json.dumps("; ".join(part.strip() for part in re.split("[,;|]", text)))
    rules = [f"Rule({item.get_expiry()}, {item.amount})" for item in items]
    notes.append("a year was 360 days; in the text of a rule it is 365")
    return f"[{', '.join(rules)}]"


def _scope_option(limit: Limit, endpoints: list[str], notes: list[str]) -> Iterator[str]:
    if callable(limit.scope):
        notes.append(
            f"a scope that depends on the request is part of the type: type=(IP, {_called(limit.scope)}), with a name="
        )
    else:
        yield f'scope="{_scope(limit, endpoints)}"'


def _scope(limit: Limit, endpoints: list[str]) -> str:
    endpoint = endpoints[0] if endpoints else "ENDPOINT"
    if callable(limit.scope) or not limit.scope:
        return endpoint
    return str(limit.scope) if limit.shared else f"{endpoint}:{limit.scope}"


def _before(limit: Limit) -> str:
    text = _shown(limit.limit_provider)
    if limit.role != "limit":
        return f"{type(limit).__name__}({text})"
    return f'@limiter.shared_limit({text}, scope="{limit.scope}")' if limit.shared else f"@limiter.limit({text})"


def _ban(meta: Sequence[object], notes: list[str]) -> Iterator[str]:
    """The ban for a meta limit: after so many refusals within a time, the client is refused for that time."""
    texts = [getattr(each, "limit_provider", each) for each in meta]
    items = [item for text in texts if isinstance(text, str) for item in parse_many(text)]
    fitting = [item for item in items if item.amount <= MOST_STRIKES]
    if len(fitting) != 1 or any(callable(text) for text in texts):
        notes.append("meta limits become a ban: one for each limiter, not from a callable, after at most 1000 refusals")
    for item in fitting[:1]:
        seconds = item.get_expiry()
        most = f", most={seconds}" if seconds > DAY else ""
        yield f"ban=Ban(after={item.amount}, within={seconds}, time={seconds}, factor=1{most})"
        notes.append("limiters with one type, scope and ban share it")


def _endpoints_by_name(app: Flask) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for endpoint in sorted(app.view_functions):
        found.setdefault(view_name(app, endpoint), []).append(endpoint)
    return found


def _short(name: str) -> str:
    """The module and the qualified name of a function, without the name in between."""
    if name.startswith("blueprint ") or ":" in name:
        return name
    parts = name.split(".")
    for number in range(1, len(parts)):
        module, plain, rest = parts[:number], parts[number], parts[number + 1 :]
        if rest and rest[-1] == plain:
            return ".".join([*module, *rest])
    return name


def _called(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__)).rpartition(".")[2]


def _shown(value: object) -> str:
    return _called(value) if callable(value) else json.dumps(value)
