"""Lists the limits of an app by endpoint, and the rule of each key in storage. For people, never for a check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..control.store import is_control
from ..declare.subjects import ANONYMOUS, LimitType
from ..engine import ConfigurationError, Hit, Limiter, Rule, StorageError
from ..engine.bans import BanRule
from ..engine.hits import BanHit
from ..engine.keys import hash_tag_of, parts_of_key
from ..engine.rules import CONCURRENCY, MAX_COUNT
from ..engine.storage import Inspectable, StoredKey
from ..observe.traffic.counts import is_traffic
from ..plan.endpoint import Plan, PlannedLimiter
from ..plan.standings import is_exempt
from ..serve.gate import AppGate

SEEN_TOGETHER = 50
"""The most keys to peek at in one round trip."""

MOST_OTHER_KEYS = 1000
"""The most keys that are not quotas: for traffic, two for each ten seconds of an hour and one per process; for
control, two."""

Counter = tuple[str, str, str, str]
"""What the keys of a rule have in common: the stem, the type, the algorithm and the window."""

_LOGS = ("sliding_window", "fixed_window", "sliding_window_counter", CONCURRENCY)
"""Algorithms whose state shows the units used, whatever the count of the rule."""


@dataclass(frozen=True, slots=True)
class Route:
    """One URL rule."""

    path: str
    methods: tuple[str, ...]
    """Its methods, without those that Flask answers by itself."""


@dataclass(frozen=True, slots=True)
class ListedLimiter:
    """One limiter at one endpoint."""

    planned: PlannedLimiter
    scope: str
    methods: tuple[str, ...] | None
    """The methods that it applies to; ``None``: all of the endpoint."""


@dataclass(frozen=True, slots=True)
class ListedEndpoint:
    """An endpoint with its limiters."""

    name: str
    routes: tuple[Route, ...]
    limiters: tuple[ListedLimiter, ...]
    exempt: bool
    """Whether it, or a method of it, is exempt from the default limits."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for route in self.routes for method in route.methods))


def endpoints_of(gate: AppGate) -> list[ListedEndpoint]:
    """Every endpoint with a route, by name. Raises :class:`ConfigurationError` for a mistake in a declaration."""
    gate.plans.build()
    routes: dict[str, list[Route]] = {}
    for rule in gate.app.url_map.iter_rules():
        methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}) or sorted(rule.methods or ())
        routes.setdefault(rule.endpoint, []).append(Route(rule.rule, tuple(methods)))
    return [_endpoint(gate, name, tuple(routes[name])) for name in sorted(routes)]


def unmatched_of(gate: AppGate) -> tuple[ListedLimiter, ...]:
    """The limiters of requests that match no route."""
    return _limiters({method: gate.plans.of_unmatched(method) for method in sorted(gate.plans.unmatched_methods)})


def limiters_of(gate: AppGate) -> list[ListedLimiter]:
    """All limiters of endpoints, and those of requests that match no route. Raises :class:`ConfigurationError`."""
    return [*(limiter for endpoint in endpoints_of(gate) for limiter in endpoint.limiters), *unmatched_of(gate)]


def _endpoint(gate: AppGate, name: str, routes: tuple[Route, ...]) -> ListedEndpoint:
    plans = {method: gate.plans.of_endpoint(name, method) for method in gate.plans.methods_of(name)}
    return ListedEndpoint(name, routes, _limiters(plans), is_exempt(gate.plans, name))


def _limiters(plans: Mapping[str, Plan]) -> tuple[ListedLimiter, ...]:
    """The limiters of ``plans``, by method; each limiter once."""
    found: dict[object, tuple[PlannedLimiter, str]] = {}
    served: dict[object, list[str]] = {}
    for method, plan in plans.items():
        for planned in plan.limiters:
            found.setdefault(_identity(planned), (planned, planned.declaration.scope or plan.scope))
            served.setdefault(_identity(planned), []).append(method)
    return tuple(
        ListedLimiter(planned, scope, _shown(served[identity], plans)) for identity, (planned, scope) in found.items()
    )


def _shown(served: Sequence[str], methods: Iterable[str]) -> tuple[str, ...] | None:
    """The methods to show for a limiter that serves ``served`` of ``methods``; ``None``: all, as without
    ``methods=``."""
    if set(methods) - set(served) <= {"OPTIONS"}:
        return None
    return tuple(each for each in served if each != "HEAD" or "GET" not in served)


def _identity(planned: PlannedLimiter) -> object:
    """What a limiter has in common for all methods: its declaration, or the override that adds it."""
    declared = planned.declared
    return declared.where if declared.where.startswith("override ") else id(declared)


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key in storage, and what can be known about it."""

    key: str
    ttl: float | None
    used: int | None
    """Units used now; ``None``: not known without the rule."""
    rule: Rule | None
    """The rule that an endpoint declares for it; ``None`` if no endpoint does, or no longer."""


def prefixes_of(gate: AppGate) -> tuple[str, ...]:
    """The prefixes of the app's keys. One that begins with another is left out."""
    prefixes = {gate.settings.key_prefix}
    for listed in limiters_of(gate):
        prefixes.add(listed.planned.declaration.key or gate.settings.key_prefix)
    return tuple(sorted(each for each in prefixes if not any(each.startswith(other) for other in prefixes - {each})))


def stored_keys(
    gate: AppGate, prefixes: Iterable[str], limit: int | None = None, *, containing: str = ""
) -> list[StoredKey]:
    """The quotas in storage under ``prefixes`` whose keys contain ``containing``, at most ``limit``. Raises
    :class:`StorageError`."""
    storage = gate.limiter.storage
    if not isinstance(storage, Inspectable):
        raise StorageError(f"a {type(storage).__name__} cannot list its keys: it has no keys(prefix, limit)")
    found: list[StoredKey] = []
    for prefix in prefixes:
        keys = storage.keys(prefix, None if limit is None else limit + MOST_OTHER_KEYS, containing=containing)
        found += [stored for stored in keys if not (is_traffic(stored.key) or is_control(stored.key))]
    return found[:limit]


def describe_keys(gate: AppGate, keys: list[StoredKey]) -> list[ListedKey]:
    """Look up the rule of each key, and ask the storage how much of it is used."""
    rules = _rules_by_counter(gate)
    hits: dict[str, Hit] = {stored.key: hit for stored in keys if (hit := _hit_of(stored.key, rules)) is not None}
    used = dict(_used(gate, list(hits.values())))
    return [
        ListedKey(
            stored.key,
            stored.ttl,
            used.get(stored.key),
            hits[stored.key].rule if stored.key in hits and hits[stored.key].name else None,
        )
        for stored in keys
    ]


def _rules_by_counter(gate: AppGate) -> dict[Counter, Rule]:
    return {
        (listed.planned.stem, type_name, rule.algorithm, str(rule.window_ms)): rule
        for listed in limiters_of(gate)
        for type_name in _types_in_keys(listed.planned.declaration.type_name)
        for rule in listed.planned.counted
    }


def _types_in_keys(type_name: str) -> tuple[str, ...]:
    return (type_name, ANONYMOUS) if type_name == LimitType.USER.value else (type_name,)


def subject_of(key: str) -> tuple[str, str] | None:
    """The type and the subject, escaped, that ``key`` counts; ``None`` if it is not the key of a limit."""
    parts = parts_of_key(key)
    return None if parts is None else (parts.type, parts.subject)


def _hit_of(key: str, rules: dict[Counter, Rule]) -> Hit | None:
    """A hit that peeks at ``key``; named if its rule is one of ``rules``."""
    parts = parts_of_key(key)
    if parts is None:
        return None
    rule = rules.get((parts.stem, parts.type, parts.algorithm, parts.window))
    if isinstance(rule, BanRule):
        return BanHit(key, rule, cost=0, name="declared")
    if rule is not None:
        return Hit(key, rule, cost=0, name="declared")
    if parts.algorithm not in _LOGS:
        return None
    try:
        return Hit(key, Rule(int(parts.window) / 1000, MAX_COUNT, algorithm=parts.algorithm), cost=0)
    except ConfigurationError:
        return None  # somebody else's key, after all


def _used(gate: AppGate, hits: list[Hit]) -> Iterator[tuple[str, int]]:
    limiter = Limiter(gate.limiter.storage)
    by_slot: dict[str, list[Hit]] = {}
    for hit in hits:
        by_slot.setdefault(hash_tag_of(hit.key), []).append(hit)
    for together in by_slot.values():
        for start in range(0, len(together), SEEN_TOGETHER):
            decision = limiter.peek(together[start : start + SEEN_TOGETHER])
            for status in decision.statuses:
                yield status.hit.key, max(status.rule.quota.burst - status.remaining, 0)
            for ban in decision.bans:
                yield ban.hit.key, ban.hit.rule.quota.count - ban.strikes_left
