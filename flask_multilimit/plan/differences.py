"""What a change of limits changes: for people, before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from .endpoint import Plan, PlannedLimiter
from .plans import Plans


@dataclass(frozen=True, slots=True)
class Difference:
    """An endpoint whose limits change, for some or all of its methods."""

    endpoint: str
    methods: tuple[str, ...]
    before: tuple[str, ...]
    """Each rule in words."""
    after: tuple[str, ...]


def differences(before: Plans, after: Plans) -> list[Difference]:
    """Each endpoint that has other limits in ``after``."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for (endpoint, method), plan in sorted(after.planned.items()):
        old, new = _told(before.of_endpoint(endpoint, method)), _told(plan)
        if old != new:
            found.setdefault((endpoint, old, new), set()).add(method)
    return [Difference(endpoint, tuple(sorted(methods)), old, new) for (endpoint, old, new), methods in found.items()]


def smallest_share(before: Plans, after: Plans) -> float:
    """The smallest part of a rule's rate that is left of it anywhere; 1 when none becomes stricter."""
    shares = [1.0]
    for (endpoint, method), plan in after.planned.items():
        old = _rates(before.of_endpoint(endpoint, method))
        shares += [rate / old[name] for name, rate in _rates(plan).items() if name in old]
    return min(shares)


def _rates(plan: Plan) -> dict[str, float]:
    return {name: rule.count / rule.time for limiter in plan.limiters for name, rule in limiter.rules}


def _told(plan: Plan) -> tuple[str, ...]:
    return tuple(text for limiter in plan.limiters for text in _told_of(limiter))


def _told_of(limiter: PlannedLimiter) -> list[str]:
    shadow = " (shadow)" if limiter.declaration.shadow else ""
    changed = "".join(f" ({each})" for each in limiter.by_name)
    texts = [f"{name}: {rule}{shadow}" for name, rule in limiter.rules]
    if limiter.dynamic is not None:
        texts.append(f"{limiter.declaration.name or limiter.declaration.type_name}: rules by request{changed}{shadow}")
    if limiter.special is not None:
        texts += [f"{limiter.declaration.type_name}: {each}" for each in limiter.special.entries]
    return texts
