"""Finds mistakes in plans whose limiters are each valid by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..declare.limiter import Declaration
from ..engine import ConfigurationError, Rule
from .endpoint import Plan


def reject_unserved(plans: Mapping[tuple[str, str], Plan]) -> None:
    """Raise :class:`ConfigurationError` for a decorator that would limit nothing, because no route of its view takes
    any of its ``methods``. ``plans`` are those of all endpoints, by endpoint and method."""
    serving = frozenset[Declaration]().union(*(plan.declarations for plan in plans.values()))
    for (endpoint, _), plan in plans.items():
        for declared in plan.stack.declarations if plan.stack else ():
            if declared not in serving:
                taken = ", ".join(sorted(method for other, method in plans if other == endpoint))
                raise ConfigurationError(
                    f'limiter on "{endpoint}": methods={sorted(declared.methods or ())}: its routes take only {taken}, '
                    "so nothing would be limited; give it a method that they take"
                )


def reject_mixed_leases(plans: Iterable[Plan]) -> None:
    """Raise :class:`ConfigurationError` if two rules share a key, but only one of them has a lease and so counts
    longer: the other would not see all that the first one has just admitted."""
    found: dict[tuple[object, ...], tuple[str, Rule]] = {}
    for plan in plans:
        for planned, rule in ((limiter, rule) for limiter in plan.limiters for _, rule in limiter.rules):
            counted = (planned.stem, planned.declaration.type_name, rule.algorithm, rule.window_ms)
            where, other = found.setdefault(counted, (plan.scope, rule))
            if other.quota.window != rule.quota.window:
                raise ConfigurationError(
                    f'limiter on "{plan.scope}": Rule({rule}) shares a key with Rule({other}) on "{where}", but only '
                    "one of them has a lease, and counts longer for it; give both a lease, or none"
                )


def reject_accidental_sharing(plans: Mapping[tuple[str, str], Plan]) -> None:
    """Raise :class:`ConfigurationError` if two limiters of an endpoint that apply to different methods would share a
    counter by accident. ``plans`` are those of all endpoints, by endpoint and method."""
    found: dict[tuple[object, ...], dict[Declaration, tuple[Rule, list[str]]]] = {}
    for (endpoint, method), plan in plans.items():
        for planned in plan.limiters:
            for _, rule in planned.rules:
                counted = (endpoint, planned.stem, planned.declaration.type_name, rule.algorithm, rule.window_ms)
                sharing = found.setdefault(counted, {})
                sharing.setdefault(planned.declaration, (rule, []))[1].append(method)
    for (at, *_), sharing in found.items():
        (first, (rule, methods)), *others = sharing.items()
        for other, (other_rule, other_methods) in others:
            if set(methods) != set(other_methods) and not (first.scope_is_given and other.scope_is_given):
                raise ConfigurationError(
                    f'limiter on "{at}": Rule({other_rule}) of the {other} (on {other.where}) applies to '
                    f"{', '.join(other_methods)}, and Rule({rule}) of the {first} (on {first.where}) to "
                    f"{', '.join(methods)}; both would count in one key; give one of them methods= or a scope"
                )
