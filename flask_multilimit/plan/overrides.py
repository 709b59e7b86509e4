"""Applies overrides to the limiters of an endpoint, and to hits that no plan has made: those of tasks and scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import groupby
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..declare.addresses import Networks, Who
from ..declare.decorators import rate_limiter
from ..declare.limiter import Declaration
from ..declare.subjects import LimitType, Subject, parts_in
from ..engine import ConfigurationError, Rule
from ..engine.hits import BanHit, Hit, Hits, Origin, ban_hit, settled_hit
from ..engine.keys import stem_of_key
from ..engine.rules import Calendar, calendar_in, fields_of, rule_of
from ..engine.text import SafeLogger
from .hits import strictest

if TYPE_CHECKING:
    from ..control.entries import Override
    from ..declare.data import WrittenRule
    from ..engine.bans import BanRule

NamedRule = tuple[str, Rule]


class Overrides:
    """All overrides in force. Those that apply to a plan are found when it is made."""

    def __init__(self, entries: Iterable[Override] = ()) -> None:
        self.entries: tuple[Override, ...] = tuple(entries)
        self.met: set[str] = set()
        """Ids of the overrides that apply to anything in the plans made so far."""
        self.unfit: set[str] = set()
        """Scopes to whose hits the overrides could not be applied."""
        self._everywhere: list[int] = []
        self._named: dict[str, list[int]] = {}
        self._patterns: list[tuple[str, int]] = []
        self._groups: dict[tuple[int, ...], Group] = {}
        for index, each in enumerate(self.entries):
            if each.endpoint is None or each.endpoint == "*":
                self._everywhere.append(index)
            else:  # what looks like a pattern may also be the name of a scope
                self._named.setdefault(each.endpoint, []).append(index)
                if not _WILD.isdisjoint(each.endpoint):
                    self._patterns.append((each.endpoint, index))

    def __bool__(self) -> bool:
        return bool(self.entries)

    def at(self, scope: str) -> Group:
        """The overrides that apply to ``scope``. Scopes with the same overrides share one object."""
        found = {index for pattern, index in self._patterns if fnmatchcase(scope, pattern)}
        if self._named:
            found.update(index for name in _names_of(scope) for index in self._named.get(name, ()))
        special = tuple(sorted(found))
        if special not in self._groups:
            met = sorted([*special, *self._everywhere])
            self._groups[special] = Group(tuple(self.entries[index] for index in met))
        return self._groups[special]

    def limits_at(self, scope: str, *, exempt: bool = False) -> tuple[Declaration, ...]:
        """The limiters that only an override declares. If ``scope`` is ``exempt`` from limits that are declared
        elsewhere, only those of overrides that name it."""
        found = []
        for each in self.at(scope).changes:
            if each.limit is not None and (not exempt or each.endpoint == scope):
                self.met.add(each.id)
                found.append(rate_limiter(**each.limit.options).at(f"override {each.id}"))
        return tuple(found)

    def change(self, scope: str, declaration: Declaration, rules: Sequence[NamedRule]) -> Changed | None:
        """A limiter of ``scope`` after all overrides; ``None`` if it is off."""
        group = self.at(scope)
        special = group.about(declaration)
        if special is not None:
            self.met.update(each.id for each in special.entries)
        changed = Changed(declaration, tuple(rules), special)
        for each in group.changes:
            if each.limiter is not None and each.limiter not in {declaration.name, declaration.type_name}:
                continue
            if each.rule is not None:
                changed = self._change_rule(changed, each)
            elif each.limit is None:
                self.met.add(each.id)
                if each.off:
                    return None
                changed = _change_limiter(changed, each)
        return None if rules and not changed.rules else changed

    def _change_rule(self, changed: Changed, override: Override) -> Changed:
        by_request = callable(changed.declaration.rules)
        if by_request:
            return changed._replace(by_name=(*changed.by_name, override))
        if any(name == override.rule for name, _ in changed.rules):
            self.met.add(override.id)
        return changed._replace(rules=change_rules(changed.rules, (override,)))


class Changed(NamedTuple):
    """A limiter after all overrides."""

    declaration: Declaration
    rules: tuple[NamedRule, ...]
    special: SpecialSubjects | None
    """The overrides for certain subjects."""
    by_name: tuple[Override, ...] = ()
    """Overrides of rules that depend on the request, to be applied when these are known."""

    @property
    def all_rules(self) -> Iterator[Rule]:
        """The rules for everybody, and those of overrides for certain subjects and of rules that depend on the
        request."""
        yield from (rule for _, rule in self.rules)
        for each in (*self.by_name, *(self.special.entries if self.special is not None else ())):
            yield from each.written_rules


_WILD = frozenset("*?[")


def _names_of(scope: str) -> Iterator[str]:
    """The names by which an override can name ``scope``: its own, and those of the blueprints around it."""
    yield scope
    at = scope.find(".")
    while at >= 0:
        yield scope[:at]
        at = scope.find(".", at + 1)


class Group:
    """The overrides that apply to a scope."""

    def __init__(self, entries: tuple[Override, ...]) -> None:
        self.changes: tuple[Override, ...] = tuple(each for each in entries if each.who is None)
        """The overrides that change limiters for everybody, in their order."""
        self._about = [(each.who, each) for each in entries if each.who is not None]
        self._special: dict[str, SpecialSubjects | None] = {}

    def about(self, declaration: Declaration) -> SpecialSubjects | None:
        """The overrides for subjects that a limiter counts; ``None`` if there are none."""
        type_name = declaration.type_name
        if type_name not in self._special:
            counted = {type_name, *type_name.split("+")}
            found = [
                (who, each)
                for who, each in self._about
                if (LimitType.IP.value if who.network is not None else who.type_name) in counted
            ]
            self._special[type_name] = SpecialSubjects(found) if found else None
        return self._special[type_name]


def _change_limiter(changed: Changed, override: Override) -> Changed:
    declared = changed.declaration
    if override.shadow is not None:
        return changed._replace(declaration=replace(declared, shadow=override.shadow))
    if override.times is not None:
        rules = tuple((name, _times(rule, override.times)) for name, rule in changed.rules)
        return changed._replace(rules=rules, by_name=(*changed.by_name, override))
    fixed = override.written_rules
    named = tuple((declared.name_of(rule), rule) for rule in fixed)
    return changed._replace(declaration=replace(declared, rules=fixed), rules=named, by_name=())


def change_rules(rules: Iterable[NamedRule], overrides: Sequence[Override]) -> tuple[NamedRule, ...]:
    """The rules after the overrides that name them, without those that are off."""
    found = []
    for name, rule in rules:
        changed: Rule | None = rule
        for override in overrides:
            if override.rule in {name, None} and changed is not None:
                changed = _change_rule(changed, override)
        if changed is not None:
            found.append((name, changed))
    return tuple(found)


def _change_rule(rule: Rule, override: Override) -> Rule | None:
    if override.off:
        return None
    if override.times is not None:
        return _times(rule, override.times)
    written = override.rules[0] if isinstance(override.rules, tuple) else override.rules
    return merged(rule, written) if written is not None else rule


def merged(rule: Rule, written: str | WrittenRule) -> Rule:
    """``written`` in place of ``rule``. Options that it does not set are kept if the algorithm accepts them.

    Text sets only count and time. Raises :class:`ConfigurationError`.
    """
    if isinstance(written, str):
        parsed = Rule.parse(written)
        given = calendar_in(written)
        if given is None:
            given = {"count": parsed.count}
            if parsed.holds_slots != rule.holds_slots:
                given |= {"time": parsed.time, "algorithm": parsed.algorithm}
            elif not parsed.holds_slots:  # "5 at once" does not set a timeout
                given["time"] = parsed.time
    else:
        given = written.given
        if written.timeout is not None and "count" not in given and not rule.holds_slots:
            raise ConfigurationError(f"timeout is for what runs at once, and {rule} is a rate; give a count, too")
    return _replaced(rule, given)


def _replaced(rule: Rule, given: dict[str, Any]) -> Rule:
    kept = {name: value for name, value in fields_of(rule).items() if name not in given}
    if isinstance(rule, Calendar):
        if given.get("period", rule.period) != rule.period:
            kept["anchor"] = given.get("anchor")
        if not given.keys() <= kept.keys() | {"count", "period", "timezone", "anchor", "name"}:
            kept = {name: kept[name] for name in ("count", "name") if name in kept}
    elif "period" in given:
        kept = {name: kept[name] for name in ("count", "name") if name in kept}
    elif given.get("algorithm", rule.algorithm) != rule.algorithm:
        kept = {name: kept.get(name) for name in ("count", "time", "name") if name not in given}
    return rule_of({**kept, **given})


def _times(rule: Rule, times: float) -> Rule:
    count = max(floor(rule.count * times), 1)
    if isinstance(rule, Calendar):
        return _replaced(rule, {"count": count})
    burst = None if rule.burst is None else max(floor(rule.burst * times), 1)
    lease = rule.lease if rule.lease is not None and rule.lease <= count else None
    return _replaced(rule, {"count": count, "burst": burst, "lease": lease})


class SpecialSubjects:
    """Subjects with rules of their own."""

    def __init__(self, entries: Iterable[tuple[Who, Override]]) -> None:
        known = list(entries)
        self.entries: tuple[Override, ...] = tuple(each for _, each in known)
        self._subjects = {(who.type_name, who.value): each for who, each in known if who.network is None}
        self._networks: Networks[Override] = Networks(
            (who.network, each) for who, each in known if who.network is not None
        )

    def find(self, subject: Subject) -> Override | None:
        """The override for ``subject``, or for one part of it if it has several."""
        found = self._subjects.get((subject.type, subject.value))
        if found is None and subject.type == "ip":
            return self._networks.find(subject.value.partition("/")[0])
        if found is None and "+" in subject.type:
            parts = map(self.find, parts_in(subject.value))
            return next((part for part in parts if part is not None), None)
        return found


class SpecialRules:
    """The rules of a limiter for subjects that have rules of their own."""

    def __init__(self, subjects: SpecialSubjects, declaration: Declaration) -> None:
        self.entries: tuple[Override, ...] = subjects.entries
        self.find: Callable[[Subject], Override | None] = subjects.find
        self._declaration = declaration

    def of(self, override: Override, rules: Iterable[NamedRule]) -> tuple[NamedRule, ...]:
        if override.times is not None:
            return tuple((name, _times(rule, override.times)) for name, rule in rules)
        return tuple((self._declaration.name_of(rule), rule) for rule in override.written_rules)


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
        first = next((hit for hit in asked if not hit.rule.holds_slots), asked[0])
        made = _hits(first, *changed)
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
    make = settled_hit if first.origin is not None and first.origin.settle else Hit
    return [
        make(
            stem_of_key(first.key) + rule.key_part,
            rule,
            first.cost,
            name,
            shadow,
            first.on_storage_error,
            unit=first.unit,
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
