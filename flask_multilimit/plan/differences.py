"""Describes what a change of limits would change, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from ..control.document import Difference
from ..engine import Rule
from .endpoint import Plan, PlannedLimiter
from .overrides import NamedRule, rules_of_subject
from .plans import Plans
from .sources import UNMATCHED_SCOPE


def differences(before: Plans, after: Plans) -> list[Difference]:
    """Each endpoint whose limits differ in ``after``; also requests that match no route."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for endpoint, method, old_plan, plan in _pairs(before, after):
        old, new = _told(old_plan), _told(plan)
        if old != new:
            found.setdefault((endpoint, old, new), set()).add(method or "others")
    return [Difference(endpoint, tuple(sorted(methods)), old, new) for (endpoint, old, new), methods in found.items()]


def fingerprint(plans: Plans) -> str:
    """A digest that is the same wherever the limits are."""
    plans.ensure()
    told = sorted((*place, _told(plan)) for place, plan in plans.planned.items())
    unmatched = [(method, _told(plans.of_unmatched(method))) for method in sorted(plans.unmatched_methods)]
    return blake2b(repr((told, unmatched)).encode("utf-8", "replace"), digest_size=8).hexdigest()


def shares(before: Plans, after: Plans) -> list[float]:
    """The share that remains of each limit, for any subject; ``[1]`` if there is none."""
    return [share for _, _, old, plan in _pairs(before, after) for share in _shares(old, plan)] or [1.0]


def frees_all(before: Plans, after: Plans) -> bool:
    """Whether no endpoint whose limits differ in ``after`` is left with one that refuses."""
    changed = [plan for _, _, old, plan in _pairs(before, after) if _told(old) != _told(plan)]
    return bool(changed) and all(limiter.declaration.shadow for plan in changed for limiter in plan.limiters)


def _pairs(before: Plans, after: Plans) -> Iterator[tuple[str, str, Plan, Plan]]:
    for (endpoint, method), plan in sorted(after.planned.items()):
        yield endpoint, method, before.of_endpoint(endpoint, method), plan
    for method in sorted(before.unmatched_methods | after.unmatched_methods):
        yield UNMATCHED_SCOPE, method, before.of_unmatched(method), after.of_unmatched(method)


def _shares(before: Plan, after: Plan) -> Iterator[float]:
    """The share that remains of each limiter. A new limiter is compared with all others."""
    old = {limiter.declared: limiter for limiter in before.limiters}
    all_rules = [rule for limiter in before.limiters for rule in limiter.rules]
    for limiter in after.limiters:
        same = old.get(limiter.declared)
        if same is None:
            yield from _shares_of(all_rules, limiter.rules, by_name=False)
            continue
        yield from _shares_of(same.rules, limiter.rules, by_name=True)
        known = same.special.entries if same.special is not None else ()
        for override in limiter.special.entries if limiter.special is not None else ():
            if override not in known:
                special = rules_of_subject(override, limiter.declaration, limiter.rules)
                yield from _shares_of(same.rules, special, by_name=False)


def _shares_of(before: Sequence[NamedRule], after: Sequence[NamedRule], *, by_name: bool) -> Iterator[float]:
    for at_once in (False, True):  # rules for requests at once are not comparable with rates
        old = {name: _rate(rule) for name, rule in before if rule.holds_slots == at_once}
        new = {name: _rate(rule) for name, rule in after if rule.holds_slots == at_once}
        if old and new:
            yield min(new.values()) / min(old.values())
        if by_name:
            yield from (rate / old[name] for name, rate in new.items() if name in old)


def _rate(rule: Rule) -> float:
    return rule.count if rule.holds_slots else rule.count / rule.time


def _told(plan: Plan) -> tuple[str, ...]:
    return tuple(text for limiter in plan.limiters for text in _told_of(limiter))


def _told_of(limiter: PlannedLimiter) -> list[str]:
    shadow = " (shadow)" if limiter.declaration.shadow else ""
    changed = "".join(f" ({each})" for each in limiter.by_name)
    texts = [f"{name}: {rule}{shadow}" for name, rule in limiter.rules]
    if limiter.declaration.ban is not None:
        texts.append(f"{limiter.ban_name}: {limiter.declaration.ban}{shadow}")
    if limiter.dynamic is not None:
        texts.append(f"{limiter.declaration.name or limiter.declaration.type_name}: rules by request{changed}{shadow}")
    if limiter.special is not None:
        texts += [f"{limiter.declaration.type_name}: {each}" for each in limiter.special.entries]
    return texts
