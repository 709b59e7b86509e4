"""Applies overrides to hits that no plan has made: those of tasks, scripts and extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

from ..declare.limiter import Declaration
from ..declare.subjects import Subject
from ..engine import ConfigurationError
from ..engine.hits import BanHit, Hit, Hits, Origin, ban_hit
from ..engine.keys import key_of, stem_of_key
from ..engine.text import SafeLogger
from .endpoint import strictest
from .overrides import NamedRule, Overrides, SpecialRules

if TYPE_CHECKING:
    from ..engine.bans import BanRule

_logger = SafeLogger()


def revised(hits: Hits, overrides: Overrides) -> Hits | None:
    """``hits`` after the ``overrides`` of the scopes that :func:`hits_for` was given; ``None`` if all are off.

    Overrides that add a limit are only for endpoints: who else would be counted is not known here. If overrides cannot
    be applied, the hits stay as they are, and the error is logged once.
    """
    known = hits.cache.get(revised)
    if known is not None and known[0] is overrides:
        answer: Hits | None = known[1]
        return answer
    found: list[Hit] = []
    became: dict[str, tuple[str, ...]] = {}
    for origin, group in groupby(hits, key=lambda hit: hit.origin):
        same = list(group)
        changed = same if origin is None else _as_changed(same, origin, overrides)
        keys = tuple(hit.key for hit in changed if hit.rule.count)
        became |= {hit.key: keys for hit in same}
        found += changed
    found = [_watching(hit, became) if isinstance(hit, BanHit) else hit for hit in found]
    answer = hits if tuple(found) == hits else Hits(found) if found else None
    hits.cache[revised] = (overrides, answer)
    return answer


def _as_changed(hits: list[Hit], origin: Origin, overrides: Overrides) -> list[Hit]:
    asked = [hit for hit in hits if not isinstance(hit, BanHit)]
    if not asked:
        return hits
    try:
        changed = _changed(asked, origin, overrides)
        if changed is None:
            return []
        made = _hits(asked[0], *changed)
        return list(strictest([*made, *_bans(hits, made)]))
    except ConfigurationError as error:
        if origin.scope not in overrides.unfit:
            overrides.unfit.add(origin.scope)
            _logger.error(
                'Rate limits: overrides of "%s" do not fit its checks and are ignored there: %s', origin.scope, error
            )
        return hits


def _changed(hits: Sequence[Hit], origin: Origin, overrides: Overrides) -> tuple[Sequence[NamedRule], bool] | None:
    """The rules, and whether they only count; ``None`` if they are off."""
    before = tuple((hit.name, hit.rule) for hit in hits)
    declared = Declaration(
        where=origin.scope,
        type=lambda: origin.subject,
        name=origin.type,
        rules=tuple(rule for _, rule in before),
        shadow=hits[0].shadow,
    )
    changed = overrides.change(origin.scope, declared, before)
    if changed is None:
        return None
    rules: Sequence[NamedRule] = changed.rules
    if changed.special is not None:
        found = changed.special.find(Subject(origin.type, origin.subject))
        rules = rules if found is None else SpecialRules(changed.special, declared).of(found, rules)
    return rules, changed.declaration.shadow


def _hits(first: Hit, rules: Sequence[NamedRule], shadow: bool) -> list[Hit]:
    return [
        Hit(
            key_of(stem_of_key(first.key), rule.algorithm, rule.window_ms),
            rule,
            first.cost,
            name,
            shadow,
            first.on_storage_error,
        )
        for name, rule in rules
    ]


def _bans(hits: Sequence[Hit], watched: Sequence[Hit]) -> list[Hit]:
    bans = [(hit.name, cast("BanRule", hit.rule).ban) for hit in hits if isinstance(hit, BanHit)]
    return [ban_hit(ban, stem_of_key(watched[0].key), watched, name) for name, ban in bans]


def _watching(ban: BanHit, became: Mapping[str, Sequence[str]]) -> BanHit:
    """``ban``, watching the present keys of the hits that it watches, which may be of other scopes."""
    watches = dict.fromkeys(now for key in ban.watches for now in _now(key, became))
    return replace(ban, watches=tuple(watches))


def _now(key: str, became: Mapping[str, Sequence[str]]) -> Sequence[str]:
    keys = became.get(key)
    return (key,) if keys is None or key in keys else keys
