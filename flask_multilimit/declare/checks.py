"""Finds mistakes in combinations of limiters that are each valid by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from ..engine import ConfigurationError, ConfigurationWarning, Rule
from ..engine.algorithms import BAN
from .limiter import Declaration
from .subjects import LimitType


def reject_shared_keys(
    where: str,
    declarations: Iterable[Declaration],
    *,
    prefix: str | None = None,
    scope: str | None = None,
    methods: Mapping[Declaration, str] | None = None,
) -> None:
    """Raise :class:`ConfigurationError` if two rules would count in one key, and so charge it twice.

    ``prefix``, ``scope`` and ``methods`` are for declarations that set none themselves.
    """
    methods = methods or {}
    owners: dict[tuple[object, ...], Declaration] = {}
    for declaration in declarations:
        for rule in (*declaration.fixed_rules, *([declaration.ban.rule] if declaration.ban is not None else ())):
            key, counted_as = declaration.key or prefix, declaration.scope or scope
            served = methods.get(declaration, declaration.methods_in_key)
            who = (declaration.hash_tag, served, declaration.type_name)
            place = (key, counted_as, *who, rule.algorithm, rule.window_ms)
            if place in owners and rule.algorithm == BAN and owners[place].ban == declaration.ban:
                continue  # one ban, for which both count
            if place in owners:
                what, other = ("Ban", "the ban") if rule.algorithm == BAN else ("Rule", "a rule")
                raise ConfigurationError(
                    f'limiter on "{where}": {what}({rule}) of the {declaration} and {other} of the {owners[place]} '
                    "would share one key, as type and window are the same; keep the stricter, or give one of them "
                    f"a scope{_declared(declaration, owners[place], where)}"
                )
            owners[place] = declaration


def reject_scattered_keys(where: str, declarations: Iterable[Declaration]) -> None:
    """Raise :class:`ConfigurationError` if one limiter of ``where`` spreads its keys over a cluster by subject, and the
    others do not, so that their keys would not be in one slot.

    Limiters with a scope are shared with other places, so their keys are in the slot of the scope.
    """
    own = [declaration for declaration in declarations if declaration.scope is None]
    by_subject = next((declaration for declaration in own if declaration.hash_tag == "subject"), None)
    if by_subject is None:
        return
    for declaration in own:
        if (declaration.hash_tag, declaration.type) == ("subject", by_subject.type):
            continue
        differs = 'has hash_tag="scope"' if declaration.hash_tag == "scope" else "counts another type"
        raise ConfigurationError(
            f'limiter on "{where}": the {by_subject} has hash_tag="subject", and the {declaration} {differs}, so one '
            'request would have keys in several slots; give all of them one type and hash_tag="subject", leave it out '
            f"everywhere, or give one of them a scope{_declared(declaration, by_subject, where)}"
        )


def _declared(declaration: Declaration, other: Declaration, where: str) -> str:
    places = sorted({declaration.where, other.where} - {where})
    return f" (declared on {' and '.join(places)})" if places else ""


def warn_of_idle_rules(where: str, declarations: tuple[Declaration, ...], *, stacklevel: int) -> None:
    """Warn about each rule that can never refuse, because another one always refuses first.

    Only pairs that include the first of ``declarations`` are looked at: the others were checked when they were
    declared.
    """
    rules = [(declaration, rule) for declaration in declarations for rule in declaration.fixed_rules]
    for declaration, rule in rules:
        for other, tighter in rules:
            concerned = declarations[0] in {declaration, other}
            if concerned and _always_tighter(other, tighter, declaration, rule):
                warnings.warn(
                    f'limiter on "{where}": Rule({rule}) of the {declaration} can never refuse, because '
                    f"Rule({tighter}) of the {other} always refuses first; leave it out or make it stricter",
                    ConfigurationWarning,
                    stacklevel=stacklevel + 1,
                )
                break


def _always_tighter(tight: Declaration, tight_rule: Rule, loose: Declaration, loose_rule: Rule) -> bool:
    if tight is loose and tight_rule is loose_rule:
        return False
    if not (tight.always_applies and loose.always_applies) or tight.cost != loose.cost:
        return False
    if tight.scope is not None or loose.scope is not None:
        return False  # charged elsewhere as well, perhaps only one of the two
    if tight.type is not loose.type and tight.type is not LimitType.DEFAULT:
        return False
    if tight_rule.algorithm != "sliding_window" or loose_rule.algorithm != "sliding_window":
        return False
    windows = -(-loose_rule.quota.window // tight_rule.quota.window)
    return windows * tight_rule.count <= loose_rule.count
