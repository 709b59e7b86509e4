"""``flask multilimit migrate``: for each limit of a Limiter, the declaration of flask_multilimit to write."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .constants import ExemptionScope
from .contrib.util import get_remote_address_cloudflare
from .declared import ApplicationLimit, Limit, RouteLimit, name_of
from .in_force import InForce
from .items import DAY, MOST_STRIKES, RateLimitItem, parse_many
from .places import Destination, view_name
from .util import get_remote_address

NOTES_BY_ALGORITHM = {
    "fixed_window": "The strategy fixed-window admits up to twice the count across the edge of a window. Rules as text "
    'count exactly; to keep the old behaviour, write Rule(time, count, algorithm="fixed_window").',
    "sliding_window_counter": "To keep the strategy sliding-window-counter, write "
    'Rule(time, count, algorithm="sliding_window_counter").',
}
ON_REJECTED = "on_rejected is called with a Decision instead of a RequestLimit; error handlers are not called"
TAKEN = frozenset(("default", "global", "ip", "user", "anonymous", "client"))
"""Names of types of flask_multilimit, and that of the address behind Cloudflare."""
LONGEST_NAME = 20


@dataclass(slots=True)
class Move:
    """One limit, and what to write in its place."""

    where: str
    """A function, a blueprint, or a list of limits."""
    before: str
    after: list[str]
    notes: list[str]


def report(states: Sequence[InForce]) -> Iterator[str]:
    """The lines of ``flask multilimit migrate``."""
    yield "import functools"
    yield "from flask import request"
    yield "from flask_multilimit import DEFAULT, IP, Ban, MultiLimit, Rule, exempt, rate_limiter"
    yield ""
    for number, state in enumerate(states, 1):
        yield from _report(state, number, len(states))
    yield from filter(None, dict.fromkeys(NOTES_BY_ALGORITHM.get(each.settings.algorithm) for each in states))
    static = [each for each in states[0].app.view_functions if not Destination(each, "", "GET").may_be_limited]
    if static:
        yield f"Flask-Limiter never limits static files: MULTILIMIT_EXEMPT = {json.dumps(static)} keeps that."
    yield "IP takes all addresses of an IPv6 /64 as one client: MULTILIMIT_IPV6_PREFIX = 128 keeps them apart."
    yield 'Limits of "with" statements are not printed: look for them in your code.'


def _report(state: InForce, number: int, count: int) -> Iterator[str]:
    if count > 1:
        yield f"# Limiter {number} of {count}, with key_func {name_of(state.limiter.key_func)}"
    writer = Writer(state)
    for each in writer.moves():
        yield from (each.where, f"    - {each.before}", *(f"    + {line}" for line in each.after))
        yield from (*(f"      # {note}" for note in each.notes), "")
    for name, function in writer.names.items():
        plain, code = _plain(function), getattr(function, "__code__", None)
        if name != plain:
            yield f"{name} is {plain} at {f'{code.co_filename}:{code.co_firstlineno}' if code else name_of(function)}"


class Writer:
    """Writes the declarations for one Limiter."""

    def __init__(self, state: InForce) -> None:
        self._state = state
        self.names: dict[str, Any] = {}
        """What the names in the declarations stand for; those of lambdas are made up."""
        self._endpoints = defaultdict[str, list[str]](list)
        for endpoint in sorted(state.app.view_functions):
            self._endpoints[view_name(state.app, endpoint)].append(endpoint)

    def moves(self) -> Iterator[Move]:
        """Functions and blueprints first; default limits and those of the app go last."""
        registry, settings = self._state.registry, self._state.settings
        for name, limits in registry.decorated.items():
            if name.count(":") == 1:  # otherwise a with statement, by its place in the code
                yield from self._moves_of_function(name, list(limits))
        for name, limits in registry.blueprints.items():
            registered = [f"{path}." for path, each in self._state.app.blueprints.items() if each.name == name]
            below = [each for each in self._state.app.view_functions if each.startswith(tuple(registered))]
            yield from (_on_blueprint(self._move(f'blueprint "{name}"', each, below)) for each in limits)
        for name, flags in registry.exempt_names.items():
            yield _exemption(name.replace(":", "."), flags)
        for name, flags in registry.exempt_blueprints.items():
            yield _on_blueprint(_exemption(f'blueprint "{name}"', flags))
        for place in ("default_limits", "application_limits"):
            for limit in getattr(settings, place):
                move = self._move(f"MultiLimit(app, {place}=[...])", limit, self._state.app.view_functions)
                move.after = [line.removeprefix("@") for line in move.after]
                yield move
        for meta in settings.meta_limits:
            notes = ["for each limiter whose refusals count"]
            yield Move("meta_limits", self._text(meta), list(_ban((meta,), notes)), notes)
        if settings.on_breach is not None:
            after = [f"on_rejected={self._name_for(settings.on_breach, 'ON_REJECTED')}"]
            yield Move("MultiLimit(app, on_rejected=...)", "on_breach", after, [ON_REJECTED])
        if filters := self._state.limiter.filters:
            after = [f"limit = functools.partial(rate_limiter, exempt_when={self._exempt_when()})"]
            notes = ["write limit in place of rate_limiter everywhere"]
            yield Move("request_filter", ", ".join(map(name_of, filters)), after, notes)

    def _moves_of_function(self, name: str, limits: list[Limit]) -> Iterator[Move]:
        flags, endpoints = self._state.registry.exempt_names.get(name), self._endpoints[name]
        where = name.replace(":", ".")
        counted: set[tuple[object, ...]] = set()
        of_defaults = {window for each in self._state.settings.default_limits for window in _windows(each)}
        for limit in limits:
            if flags:
                yield Move(where, self._before(limit), [], ["exempt() has switched it off: leave it out"])
                continue
            move = self._move(where, limit, endpoints)
            windows = _windows(limit)
            taken = counted | of_defaults if "with_defaults" in move.after[0] else counted
            if taken & windows and not limit.scope and endpoints:
                own = f', scope="{endpoints[0]}.{len(counted)}")'
                move.after = [f"{line.removesuffix(')')}{own}" for line in move.after]
                move.notes.append("with a scope of its own, because another limit here has the same window")
            counted |= windows
            yield move

    def _move(self, where: str, limit: Limit, endpoints: Iterable[str] = ()) -> Move:
        notes: list[str] = []
        options = ", ".join(self._options(limit, list(endpoints), notes))
        after = [f"@rate_limiter({options})"]
        if limit.per_method:
            after = [f'@rate_limiter({options}, methods=["{each}"])' for each in self._methods(limit, endpoints)]
            notes.append("one limiter for each method that its routes take")
        return Move(where, self._before(limit), after, notes)

    def _methods(self, limit: Limit, endpoints: Iterable[str]) -> list[str]:
        routes = [route for each in endpoints for route in self._state.app.url_map.iter_rules(each)]
        taken = {method for route in routes for method in route.methods or ()} - {"HEAD", "OPTIONS"}
        wanted = {method.upper() for method in limit.methods or ()}
        return sorted((taken & wanted if wanted else taken) or wanted or {"GET", "POST"})

    def _options(self, limit: Limit, endpoints: list[str], notes: list[str]) -> Iterator[str]:
        yield from self._type(limit, notes)
        yield f"rules={self._rules(limit, notes)}"
        if isinstance(limit.scope, str) and limit.scope and not isinstance(limit, ApplicationLimit):
            if limit.shared or len(endpoints) == 1:
                yield f"scope={json.dumps(limit.scope if limit.shared else f'{endpoints[0]}:{limit.scope}')}"
            else:
                notes.append(f'without scope="{limit.scope}": scope= would make one quota of all these endpoints')
        elif callable(limit.scope) and limit.shared:
            yield f'scope="{self._name_for(limit.scope, "SCOPE")}"'
        if limit.methods and not limit.per_method:
            yield f"methods={json.dumps([method.upper() for method in limit.methods])}"
        if callable(limit.cost) or limit.cost != 1:
            yield f"cost={self._name_for(limit.cost, 'COST') if callable(limit.cost) else limit.cost}"
        if limit.exempt_when is not None:
            yield f"exempt_when={self._exempt_when(self._name_for(limit.exempt_when, 'EXEMPT_WHEN'))}"
        if limit.deduct_when is not None:
            yield f"charge_when={self._name_for(limit.deduct_when, 'CHARGE_WHEN')}"
        if callable(limit.error_message):
            yield f"message=lambda decision: {self._name_for(limit.error_message, 'MESSAGE')}()"
        elif limit.error_message:
            yield f"message={json.dumps(limit.error_message)}"
        if limit.on_breach is not None:
            yield f"on_rejected={self._name_for(limit.on_breach, 'ON_REJECTED')}"
            notes.append(f"{ON_REJECTED}, and replaces that of MultiLimit here")
        if isinstance(limit, RouteLimit) and not limit.override_defaults and self._have_defaults(endpoints):
            yield "with_defaults=True"
        yield from _ban(tuple(limit.meta_limits or ()), notes)

    def _have_defaults(self, endpoints: list[str]) -> bool:
        """Whether no limit of the view or of a blueprint overrides the default limits, at one of the endpoints."""
        at = [Destination(each, each.rpartition(".")[0], "") for each in endpoints]
        places = [self._state.places.at_function(each, view_name(self._state.app, each.endpoint)) for each in at]
        overridden = [any(limit.override_defaults for limit in (*each.own, *each.around)) for each in places]
        return not overridden or not all(overridden)

    def _exempt_when(self, *own: str) -> str:
        """One callable of ``own`` and all request filters: a limiter has only one ``exempt_when``."""
        names = (*own, *(self._name_for(function, "FILTER") for function in self._state.limiter.filters))
        return names[0] if len(names) == 1 else f"lambda: {' or '.join(f'{name}()' for name in names)}"

    def _type(self, limit: Limit, notes: list[str]) -> Iterator[str]:
        key_func = limit.limit_by
        called = "IP" if key_func is get_remote_address else self._name_for(key_func, "KEY")
        if called != "IP":
            notes.append(
                f"a {called} that returns None means that the limit does not apply; empty text is one shared subject; "
                "if it returns the same for everybody, write type=DEFAULT"
            )
        if callable(limit.scope):
            scope = self._name_for(limit.scope, "SCOPE")
            yield f'type=({called}, lambda: {scope}(request.endpoint or "")), name="{_type_name(f"{called}_{scope}")}"'
        elif key_func is get_remote_address_cloudflare:
            yield f'type={called}, name="client"'
        else:
            yield f"type={called}" + ("" if called == "IP" else f', name="{_type_name(called)}"')

    def _rules(self, limit: Limit, notes: list[str]) -> str:
        text = limit.limit_provider
        if callable(text):
            notes.append("when the callable returns None or empty text, no limit applies, as before")
            return self._name_for(text, "RULES")
        items = _items(limit)
        if any(not item.amount for item in items):
            notes.append("a limit of 0 refuses everything")
            return "lambda: 0"
        if all(item.GRANULARITY.name != "year" for item in items):
            return json.dumps("; ".join(_as_text(item) for item in items))
        notes.append("a year was 360 days; in the text of a rule it is 365")
        return f"[{', '.join(f'Rule({item.get_expiry()}, {item.amount})' for item in items)}]"

    def _name_for(self, function: Any, kind: str) -> str:
        """The name of ``function``; for a lambda, or if another has the same name, one that is made up."""
        name, number = _plain(function), 1
        if not name.isidentifier():
            name = kind
        unique = name
        while self.names.setdefault(unique, function) is not function:
            number += 1
            unique = f"{name}_{number}"
        return unique

    def _text(self, limit: Limit) -> str:
        given = limit.limit_provider
        return self._name_for(given, "RULES") if callable(given) else json.dumps(given)

    def _before(self, limit: Limit) -> str:
        text = self._text(limit)
        if not isinstance(limit, RouteLimit):
            return f"{type(limit).__name__}({text})"
        scope = f'scope="{limit.scope}"' if isinstance(limit.scope, str) else "scope=..."
        return f"@limiter.shared_limit({text}, {scope})" if limit.shared else f"@limiter.limit({text})"


def _on_blueprint(move: Move) -> Move:
    """Call the decorators of ``move``: Python has no ``@`` for an object that is not defined there."""
    move.after = [f"{line.removeprefix('@')}(blueprint)" for line in move.after]
    return move


def _exemption(where: str, flags: ExemptionScope) -> Move:
    levels = [json.dumps(each) for each in ("application", "default") if flags & ExemptionScope[each.upper()]]
    note = "exempt the blueprints below, or leave the limits around it to each of them, one by one"
    notes = [note] if flags & (ExemptionScope.DESCENDENTS | ExemptionScope.ANCESTORS) else []
    flagged = "|".join(name for name in ExemptionScope.__members__ if name != "NONE" and flags & ExemptionScope[name])
    return Move(where, f"@limiter.exempt(flags={flagged})", [f"@exempt({', '.join(levels)})"] if levels else [], notes)


def _ban(metas: tuple[Any, ...], notes: list[str]) -> Iterator[str]:
    """The ban for a meta limit: after so many refusals within a time, the client is refused for that time."""
    items = [(item, meta.cost) for meta in metas for item in _items(meta)]
    fitting = [
        (item.amount - cost + 1, item.get_expiry())
        for item, cost in items
        if not callable(cost) and 0 < item.amount - cost + 1 <= MOST_STRIKES
    ]
    if metas and not len(fitting) == len(items) == len(metas) == 1:
        notes.append("meta limits become a ban: one for each limiter, not from a callable, after 1 to 1000 refusals")
    for after, seconds in fitting[:1]:
        most = f", most={seconds}" if seconds > DAY else ""
        yield f"ban=Ban(after={after}, within={seconds}, time={seconds}, factor=1{most})"
        notes.append("limiters with one type, scope and ban share it")


def _items(limit: Limit) -> tuple[RateLimitItem, ...]:
    text = limit.limit_provider
    return parse_many(text) if isinstance(text, str) and text else ()


def _windows(limit: Limit) -> set[tuple[object, ...]]:
    """What two limits of an endpoint would count together."""
    return {(limit.limit_by, limit.methods, limit.scope, item.get_expiry()) for item in _items(limit)}


def _as_text(item: RateLimitItem) -> str:
    unit = item.GRANULARITY.name
    return f"{item.amount}/{unit}" if item.multiples == 1 else f"{item.amount} per {item.multiples} {unit}s"


def _type_name(called: str) -> str:
    """A name for a type of one's own, which no other type has."""
    name = called[:LONGEST_NAME].strip("_") or "key"
    return f"by_{name}"[:LONGEST_NAME] if name.lower() in TAKEN or not name[0].isalpha() else name


def _plain(function: object) -> str:
    return name_of(function).rpartition(".")[2]
