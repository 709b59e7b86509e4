"""Finds mistakes in combinations of limiters that are each valid by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from ..engine import ConfigurationError, ConfigurationWarning, Rule
from ..engine.algorithms import BAN
from .limiter import Declaration
from .subjects import LimitType

_MUST_AGREE = ("type", "cost", "exempt_when", "charge_when", "settle", "reserve", "ban", "on_storage_error")
"""Options that limiters must have in common to share a key: they decide what is charged, and what a refusal does."""


def reject_shared_keys(where: str, limiters: Iterable[tuple[Declaration, object]]) -> None:
    """Raise :class:`ConfigurationError` if two rules would share a key, but not count the same requests by the same
    amount. If they differ in the count alone, the stricter one decides. A shadow that would share a key gets one of
    its own.

    Each limiter comes with what its keys begin with.
    """
    owners: dict[tuple[object, ...], tuple[Declaration, Rule]] = {}
    for declaration, stem in limiters:
        for rule in () if declaration.shadow else declaration.counted_rules:
            place = (stem, declaration.type_name, rule.key_part)
            counted = declaration, rule
            owner, other = first = owners.setdefault(place, counted)
            differing = _differing_options(declaration, rule, owner, other) if first is not counted else []
            if differing:
                what, another = ("Ban", "the ban") if rule.algorithm == BAN else ("Rule", "a rule")
                raise ConfigurationError(
                    f'limiter on "{where}": {what}({rule}) of the {declaration} and {another} of the {owner} '
                    f"would share one key, because type and window are the same, but differ in {', '.join(differing)}; "
                    f"make these the same, or give one of them a scope{_declared_elsewhere(declaration, owner, where)}"
                )


def would_conflict(declaration: Declaration, other: Declaration) -> bool:
    """Whether rules of both may share a key, but would not count the same requests by the same amount. Both must have
    keys that begin alike."""
    return any(
        _differing_options(declaration, rule, other, other_rule)
        for rule in declaration.counted_rules
        for other_rule in other.counted_rules
        if rule.key_part == other_rule.key_part
    )


def _differing_options(declaration: Declaration, rule: Rule, other: Declaration, other_rule: Rule) -> list[str]:
    """The options, besides the count, in which two rules of one key differ."""
    if rule.algorithm == BAN:
        return [] if declaration.ban == other.ban else ["ban"]
    differing = [name for name in _MUST_AGREE if getattr(declaration, name) != getattr(other, name)]
    return differing + [
        name for name in ("burst", "max_delay", "lease") if getattr(rule, name) != getattr(other_rule, name)
    ]


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
            f"everywhere, or give one of them a scope{_declared_elsewhere(declaration, by_subject, where)}"
        )


def _declared_elsewhere(declaration: Declaration, other: Declaration, where: str) -> str:
    places = sorted({declaration.where, other.where} - {where})
    return f" (declared on {' and '.join(places)})" if places else ""


def warn_of_idle_rules(
    where: str, new: Sequence[Declaration], others: Sequence[Declaration], *, stacklevel: int
) -> None:
    """Warn about each rule that can never refuse, because it charges nothing, or another one always refuses first.
    ``others`` have been checked among themselves before."""
    for declaration in new:
        if declaration.cost == 0 and declaration.settle is None:
            warnings.warn(
                f'limiter on "{where}": the {declaration} has cost=0: it charges nothing, so it never refuses; give a '
                "cost of 1 or more",
                ConfigurationWarning,
                stacklevel=stacklevel + 1,
            )
    rules = [(declaration, rule) for declaration in (*new, *others) for rule in declaration.fixed_rules]
    for place, (declaration, rule) in enumerate(rules):
        for other_place, (other, tighter) in enumerate(rules):
            if place == other_place or (declaration not in new and other not in new):
                continue
            if _decides_in_key(other, tighter, declaration, rule, first=other_place < place) or _always_tighter(
                other, tighter, declaration, rule
            ):
                warnings.warn(
                    f'limiter on "{where}": Rule({rule}) of the {declaration} can never refuse, because '
                    f"Rule({tighter}) of the {other} always refuses first; leave it out or make it stricter",
                    ConfigurationWarning,
                    stacklevel=stacklevel + 1,
                )
                break


def _decides_in_key(
    strict: Declaration, strict_rule: Rule, loose: Declaration, loose_rule: Rule, *, first: bool
) -> bool:
    """Whether both rules share a key, and the strict one decides: it has the smaller count, or comes ``first``."""
    if strict.shadow or loose.shadow or (strict.stem, strict.type_name) != (loose.stem, loose.type_name):
        return False
    if strict_rule.key_part != loose_rule.key_part:
        return False
    return strict_rule.count < loose_rule.count or (strict_rule.count == loose_rule.count and first)


def _always_tighter(tight: Declaration, tight_rule: Rule, loose: Declaration, loose_rule: Rule) -> bool:
    if not (tight.always_applies and loose.always_applies) or tight.cost != loose.cost:
        return False
    if tight.scope is not None or loose.scope is not None:
        return False  # other places may charge only one of the two
    if tight.type is not loose.type and tight.type is not LimitType.DEFAULT:
        return False
    if tight.type is loose.type and tight_rule.window_ms == loose_rule.window_ms:
        return False  # one key
    if tight_rule.algorithm != "sliding_window" or loose_rule.algorithm != "sliding_window":
        return False
    windows = -(-loose_rule.quota.window // tight_rule.quota.window)
    return windows * tight_rule.count <= loose_rule.count
