"""Which limits apply where, where each was declared, and what changed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from ..control.entries import Override
from ..declare.subjects import parts_of
from ..engine import Calendar, Rule
from ..engine.periods import Period
from ..engine.storage.layers.fallback import share_of
from ..plan.endpoint import Plan, PlannedLimiter
from ..plan.lookups import is_exempt
from ..plan.sources import UNMATCHED_SCOPE
from ..serve.gate import AppGate
from .changes import Entry, entry_of
from .text import options_of, parameters_of, rule_text
from .traffic import RuleTraffic, TrafficMemory, rule_traffic
from .values import Described, From, Paging, paged

Show = Literal["all", "changed", "shadow", "unlimited"]
SHOWS: tuple[Show, ...] = get_args(Show)
"""The filters of the list."""
MOST_ENTRIES = 3
"""The most entries about subjects with their own rules that are shown beside a limit."""
_CACHE = "multilimit_listing"


@dataclass(frozen=True, slots=True)
class Route(Described):
    """One URL rule."""

    path: str
    methods: tuple[str, ...]
    """Its methods, without those that Flask answers by itself."""


@dataclass(frozen=True, slots=True)
class RuleFields(Described):
    """A rule, as it would be declared."""

    count: int
    time: float | None
    """``null`` for a calendar."""
    algorithm: str
    burst: int | None
    max_delay: float | None
    lease: int | None
    per: Period | None
    """The period of a calendar; ``null`` for any other rule."""
    timezone: str | None
    anchor: int | str | None


@dataclass(frozen=True, slots=True)
class BanFields(Described):
    """A ban, as it would be declared."""

    after: int
    within: float
    time: float
    factor: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Described):
    """One rule of one limiter at one endpoint."""

    name: str
    """Its name in header fields."""
    limiter: str
    """The name of its limiter, or its type."""
    type: str
    parts: tuple[str, ...]
    """The names by which its subjects are given: several if the type combines others."""
    text: str
    """For people, like ``options``."""
    options: tuple[str, ...]
    from_: From
    """Where it was declared."""
    changed: bool
    """Whether it differs from what was declared."""
    declared: str | None
    """What was declared, if it differs; ``null`` also for a limit that an entry added."""
    by_request: bool
    """Whether its rules depend on the request; then the next nine fields are ``null``."""
    count: int | None
    time: float | None
    algorithm: str | None
    burst: int | None
    max_delay: float | None
    lease: int | None
    per: Period | None
    """The period of a calendar, which has no ``time``."""
    timezone: str | None
    anchor: int | str | None
    scope: str
    key: str | None
    """The prefix of its keys; ``null``: that of the settings."""
    methods: tuple[str, ...] | None
    """The methods that it applies to; ``null``: all of the endpoint."""
    shadow: bool
    cost: int | None
    """``null``: it depends on the request."""
    unit: Annotated[str | None, Field(exclude=True)]
    wait: float | None
    ban: BanFields | None
    charge_when: bool
    exempt_when: bool
    reserve: bool
    """Whether a part of its count is kept for requests of a priority."""
    hash_tag: str
    traffic: RuleTraffic | None
    """What it did in the last hour; ``null`` if that was not looked up."""
    entries: tuple[Entry, ...]
    """Entries about subjects with their own rules: the first of ``entries_in_all``."""
    entries_in_all: int


@dataclass(frozen=True, slots=True)
class EndpointLimits(Described):
    """One endpoint, and what limits it. That of requests without a route is called ``unmatched``."""

    endpoint: str
    routes: tuple[Route, ...]
    exempt: bool
    """Whether it, or a method of it, is exempt from the default limits."""
    limits: tuple[Limit, ...]
    changes: tuple[Entry, ...]
    """Entries for this endpoint, or for a pattern that matches it."""


@dataclass(frozen=True, slots=True)
class Limits(Described):
    """Which limits apply where."""

    q: str
    show: Show
    endpoints: tuple[EndpointLimits, ...]
    paging: Paging
    all: int


def limits(
    gate: AppGate, memory: TrafficMemory | None, *, q: str = "", show: str = "", page: int = 1, without: str = ""
) -> Limits:
    """The endpoints whose names, routes or limits contain ``q``; those of the blueprint ``without`` are left out."""
    chosen: Show = show if show in SHOWS else SHOWS[0]
    listed = [each for each in places_of(gate) if not without or not each.name.startswith(f"{without}.")]
    wanted = [each for each in listed if _is_wanted(gate, each, q.strip().lower(), chosen)]
    shown, paging = paged(wanted, page)
    return Limits(q, chosen, tuple(endpoint_limits(gate, each, memory) for each in shown), paging, len(listed))


def endpoint_limits(gate: AppGate, place: Place, memory: TrafficMemory | None = None) -> EndpointLimits:
    """One endpoint with its limits, and with what they did in the last hour if ``memory`` is given."""
    return EndpointLimits(
        place.name,
        place.routes,
        place.exempt,
        tuple(limit for each in place.limiters for limit in _limits_of(place.name, each, memory)),
        tuple(map(entry_of, _changes_at(gate, place))),
    )


def _limits_of(endpoint: str, listed: ListedLimiter, memory: TrafficMemory | None) -> Iterator[Limit]:
    planned, declared = listed.planned, listed.planned.declaration
    special = () if planned.special is None else planned.special.entries
    named: Sequence[tuple[str, Rule | None]] = planned.rules
    if planned.dynamic is not None:
        named = [(declared.shown_name, None)]
    for name, rule in named:
        changed, before = _change_of(planned, rule)
        parameters = "" if rule is None else parameters_of(rule)
        yield Limit(
            name=name,
            limiter=declared.shown_name,
            type=declared.type_name,
            parts=parts_of(declared.type, declared.name),
            text="by request" if rule is None else rule_text(rule),
            options=(*filter(None, [parameters]), *options_of(declared, listed.methods)),
            from_=declared.where,
            changed=changed,
            declared=before,
            by_request=rule is None,
            **rule_fields(rule),
            scope=listed.scope,
            key=declared.key,
            methods=listed.methods,
            shadow=declared.shadow,
            cost=None if callable(declared.cost) else declared.cost,
            unit=declared.unit,
            wait=declared.wait,
            ban=None if declared.ban is None else BanFields(*attrgetter(*BanFields.__slots__)(declared.ban)),
            charge_when=declared.charge_when is not None,
            exempt_when=declared.exempt_when is not None,
            reserve=declared.reserve is not None,
            hash_tag=declared.hash_tag,
            traffic=None if memory is None else rule_traffic(memory, endpoint, name),
            entries=tuple(map(entry_of, special[:MOST_ENTRIES])),
            entries_in_all=len(special),
        )


def rule_fields(rule: Rule | None) -> dict[str, Any]:
    """The fields of :class:`RuleFields`, ``None`` for a rule that is not known."""
    found = {name: getattr(rule, name, None) for name in RuleFields.__slots__}
    return found | {"time": None, "per": rule.period} if isinstance(rule, Calendar) else found


def _change_of(planned: PlannedLimiter, rule: Rule | None) -> tuple[bool, str | None]:
    """Whether the limit differs from what was declared, and what that was."""
    before, now = planned.original, planned.declaration
    if planned.is_added:
        return True, None
    same_rule = rule in before.fixed_rules if rule is not None else not planned.late_overrides
    if same_rule and before.shadow == now.shadow:
        return False, None
    return True, f"{before}{' (shadow)' if before.shadow else ''}"


def _changes_at(gate: AppGate, place: Place) -> list[Override]:
    """Overrides for this endpoint, or for a pattern that matches it."""
    scopes = dict.fromkeys([place.name, *(each.scope for each in place.limiters)])
    found = {each.id: each for scope in scopes for each in gate.plans.overrides.at(scope).changes}
    return list(found.values())


def _is_wanted(gate: AppGate, place: Place, q: str, show: Show) -> bool:
    if show == "unlimited" and place.limiters:
        return False
    if show == "shadow" and not any(each.planned.declaration.shadow for each in place.limiters):
        return False
    if show == "changed" and not _changes_at(gate, place):
        return False
    return not q or any(q in text.lower() for text in _texts(place))


def _texts(place: Place) -> Iterator[str]:
    """The texts by which an endpoint can be found."""
    yield place.name
    yield from (route.path for route in place.routes)
    for each in place.limiters:
        yield each.planned.declaration.type_name
        yield from (name for name, _ in each.planned.rules)


# The limiters of all endpoints, for other rooms


@dataclass(frozen=True, slots=True)
class ListedLimiter:
    """One limiter at one endpoint."""

    planned: PlannedLimiter
    scope: str
    methods: tuple[str, ...] | None = None
    """The methods that it applies to; ``None``: all of the endpoint."""


@dataclass(frozen=True, slots=True)
class Place:
    """An endpoint, or the requests without a route, with its limiters."""

    name: str
    routes: tuple[Route, ...]
    """None for the requests without a route."""
    limiters: tuple[ListedLimiter, ...]
    exempt: bool
    of_extensions: bool = False
    """Whether other extensions check some of the limiters."""

    @property
    def has_files(self) -> bool:
        """Whether it serves the static files of the app or of a blueprint."""
        return self.name.rpartition(".")[2] == "static"


def places_of(gate: AppGate) -> Sequence[Place]:
    """Every endpoint with a route, by name, and last the requests that match none, if these are limited. The list is
    kept until the limits change. Raises :class:`ConfigurationError` for a mistake in a declaration."""
    places: Sequence[Place]
    limits = gate.plans, sum(1 for _ in gate.app.url_map.iter_rules())
    limits_then, places = gate.app.extensions.get(_CACHE, (None, ()))
    if limits_then != limits:
        places = list(_places(gate))
        gate.app.extensions[_CACHE] = limits, places
    return places


def limiters_of(gate: AppGate, endpoint: str | None = None) -> list[ListedLimiter]:
    """All limiters, or those at ``endpoint``. Raises :class:`ConfigurationError`."""
    return [limiter for place in places_of(gate) if endpoint in {None, place.name} for limiter in place.limiters]


def without_share(gate: AppGate, number: int) -> list[str]:
    """The rules, as text, that admit nothing in any of ``number`` workers while the storage is down. Raises
    :class:`ConfigurationError` for a mistake in a declaration."""
    return [
        f"{name} at {place.name} ({rule})"
        for place in places_of(gate)
        for listed in place.limiters
        if (listed.planned.declaration.on_storage_error or gate.settings.on_storage_error) == "local"
        for name, rule in listed.planned.rules
        if not listed.planned.declaration.shadow and share_of(rule, number) is None
    ]


def _places(gate: AppGate) -> Iterator[Place]:
    gate.plans.build()
    routes: dict[str, list[Route]] = {}
    for rule in gate.app.url_map.iter_rules():
        methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}) or sorted(rule.methods or ())
        routes.setdefault(rule.endpoint, []).append(Route(rule.rule, tuple(methods)))
    for name in sorted(routes):
        plans = {method: gate.plans.of_endpoint(name, method) for method in gate.plans.methods_of(name)}
        others = [_of_extension(name, each) for each in gate.limiters_elsewhere(name, gate.plans)]
        limiters = (*_limiters(plans), *others)
        yield Place(name, tuple(routes[name]), limiters, is_exempt(gate.plans, name), of_extensions=bool(others))
    unmatched = {method: gate.plans.of_unmatched(method) for method in sorted(gate.plans.unmatched_methods)}
    if limiters := _limiters(unmatched):
        yield Place(UNMATCHED_SCOPE, (), limiters, exempt=False)


def _of_extension(endpoint: str, planned: PlannedLimiter) -> ListedLimiter:
    declared = planned.declaration
    methods = None if declared.methods is None else tuple(sorted(declared.methods))
    return ListedLimiter(planned, declared.scope or endpoint, methods)


def checked_by_extensions(gate: AppGate, endpoint: str | None) -> list[str]:
    """The endpoints, or this ``endpoint``, where other extensions check limits that plans do not know."""
    if not gate.listings:  # as in most apps; the places are the plans of all endpoints
        return []
    return [each.name for each in places_of(gate) if each.of_extensions and endpoint in {None, each.name}]


def _limiters(plans: Mapping[str, Plan]) -> tuple[ListedLimiter, ...]:
    """The limiters of ``plans``, by method; each limiter once."""
    found, served = dict[object, ListedLimiter](), defaultdict[object, list[str]](list)
    for method, plan in plans.items():
        for planned in plan.limiters:
            identity = planned.identity
            found.setdefault(identity, ListedLimiter(planned, planned.declaration.scope or plan.scope))
            served[identity].append(method)
    return tuple(replace(each, methods=_shown_methods(served[identity], plans)) for identity, each in found.items())


def _shown_methods(served: Sequence[str], methods: Iterable[str]) -> tuple[str, ...] | None:
    """The methods to show for a limiter that serves ``served`` of ``methods``; ``None``: all."""
    if set(methods) - set(served) <= {"OPTIONS"}:
        return None
    return tuple(each for each in served if each != "HEAD" or "GET" not in served)
