"""The limiters of an endpoint, and the hits that they make for a request."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import groupby
from math import floor
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from flask import Flask

from ..declare.advice import Stack
from ..declare.checks import reject_scattered_keys, reject_shared_keys, would_conflict
from ..declare.dynamic import DynamicRules, NoRules
from ..declare.limiter import Declaration
from ..declare.subjects import ANONYMOUS, EVERYONE, LimitType, Resolve, Subject, SubjectType, numbered, parts_of
from ..engine import ConfigurationError, Hit, Rule
from ..engine.bans import MOST_STRIKES
from ..engine.forks import cached_property
from ..engine.hits import LARGEST_COST, BanHit, Hits, Origin, ban_hit, part_in_key, settled_hit
from ..engine.keys import HashTag, KeysOfRule, escape_subject, stem_of, stem_of_key, stem_of_subject
from ..engine.rules import NAME
from .applied import REQUEST, About, Applied, AppliedLimits, RulesOf, strictest
from .overrides import NamedRule, Overrides, SpecialSubjects, as_far_as_they_fit, change_rules, rules_of_subject

if TYPE_CHECKING:
    from ..control.entries import Override

HITS_REMEMBERED = 1024
"""The most subjects whose hits are remembered, over all limiters."""
LONGEST_REMEMBERED = 256
"""Characters of the longest subject that is remembered, because clients can invent subjects and must not fill the
memory."""


StemParts = tuple[str, str, HashTag, str]
"""Prefix, scope, hash tag, and methods of keys, of which a stem is made."""
LimitsOf = Callable[["Plan", tuple[Subject | None, ...]], AppliedLimits]
"""The limits of a plan for subjects: one per type, in the order of the types."""
SHADOW, ADDED = "+SHADOW", "+ADDED"
"""Suffixes of the methods in keys, which keep a limiter apart from another one: no method has such a name."""


@dataclass(eq=False, repr=False)
class PlannedLimiter:
    """A declaration at its endpoint: its scope and prefix are known, and its rules have names."""

    declaration: Declaration
    stem_parts: StemParts
    stem: str
    """What its keys begin with."""
    rules: tuple[tuple[str, Rule], ...]
    """The rules with their names; empty if they depend on the request."""
    dynamic: DynamicRules | None
    special: SpecialSubjects | None = None
    """The rules for subjects that have their own."""
    changed_from: Declaration | None = None
    """The declaration before overrides, if one has changed it."""
    late_overrides: tuple[Override, ...] = ()
    """The overrides of rules that depend on the request, for when these are known."""
    ban_name: str = ""
    """The name of its ban in header fields."""

    @property
    def original(self) -> Declaration:
        """The declaration before any override."""
        return self.changed_from or self.declaration

    @property
    def is_added(self) -> bool:
        """Whether an override has added it."""
        return self.original.where.startswith("override ")

    @property
    def identity(self) -> object:
        """What identifies it in the plans of all methods: its declaration, or the override that adds it."""
        return self.original.where if self.is_added else id(self.original)

    @property
    def rules_of_overrides(self) -> Iterator[Rule]:
        """The rules that overrides write for some subjects, or in place of rules that depend on the request."""
        yield from () if self.special is None else self.special.rules
        for each in self.late_overrides:
            yield from each.written_rules

    @property
    def described(self) -> list[str]:
        """Its rules, its ban and what overrides make of it, as text for people."""
        declaration, shadow = self.declaration, " (shadow)" if self.declaration.shadow else ""
        texts = [f"{name}: {rule}{shadow}" for name, rule in self.rules]
        if declaration.ban is not None:
            texts.append(f"{self.ban_name}: {declaration.ban}{shadow}")
        if self.dynamic is not None:
            changed = "".join(f" ({each})" for each in self.late_overrides)
            texts.append(f"{declaration.shown_name}: rules by request{changed}{shadow}")
        if self.special is not None:
            texts += [f"{declaration.shown_name} of {each}" for each in self.special.entries]
        return texts

    @property
    def rules_by_keys(self) -> dict[KeysOfRule, Rule]:
        """Its declared rules, by what the keys of each have in common."""
        type_name = self.declaration.type_name
        types = (type_name, ANONYMOUS) if type_name == LimitType.USER.value else (type_name,)
        parts = {part_in_key(rule, shadow=self.declaration.shadow): rule for rule in self.declaration.counted_rules}
        return {(self.stem, type_, part): rule for type_ in types for part, rule in parts.items()}

    def may_share_key(self, other: PlannedLimiter) -> bool:
        """Whether a rule of both may count in one key."""
        if (self.stem, self.declaration.type_name) != (other.stem, other.declaration.type_name):
            return False
        if any(each.dynamic is not None or each.special is not None for each in (self, other)):
            return True
        own, others = ({rule.key_part for rule in each.declaration.counted_rules} for each in (self, other))
        return not own.isdisjoint(others)

    def hits(
        self, subject: Subject, cost: int, *, priority: str | None = None, rules_of: RulesOf = DynamicRules.for_request
    ) -> tuple[Hit, ...] | None:
        """The hits of ``subject``; ``None`` if they are not known. Raises :class:`.NoRules`."""
        escaped = escape_subject(subject.value)
        special = None if self.special is None else self.special.find(subject)
        if self.dynamic is None and special is None:
            return _remembered_hits(ref(self), subject.type, escaped, cost, priority)
        rules = self.rules_for(subject, special, rules_of)
        return None if rules is None else self.make_hits(rules, subject.type, escaped, cost, priority)

    def rules_for(
        self, subject: Subject, special: Override | None, rules_of: RulesOf = DynamicRules.for_request
    ) -> Sequence[NamedRule] | None:
        """The rules of ``subject``, which ``special`` may replace; ``None`` if they are not known."""
        rules: Sequence[NamedRule] | None = self.rules
        if self.dynamic is not None and (special is None or special.times is not None):
            rules = self._with_overrides(self.dynamic, rules_of(self.dynamic, subject))
        return rules if rules is None or special is None else rules_of_subject(special, self.declaration, rules)

    def _with_overrides(self, dynamic: DynamicRules, rules: Iterable[Rule] | None) -> Sequence[NamedRule] | None:
        """``rules`` after the overrides that fit them: whether they do is known only now."""
        if rules is None:
            return None
        named = tuple((self.declaration.name_of(rule), rule) for rule in rules)
        for override in self.late_overrides:
            try:
                named = change_rules(named, override)
            except ConfigurationError as error:  # noqa: PERF203 - one that does not fit leaves the others
                dynamic.log_ignored(override, error)
        return named

    def make_hits(
        self, rules: Iterable[NamedRule], type_name: str, subject: str, cost: int, priority: str | None
    ) -> tuple[Hit, ...]:
        reserve = self.declaration.reserve
        if reserve is not None:
            rules = [(name, reserve.rule_for(priority, rule)) for name, rule in rules]
        stem = stem_of_subject(self.stem, type_name, subject, self.declaration.hash_tag)
        hits = self.hits_below(stem, rules, cost)
        ban = self.declaration.ban
        return hits if ban is None or not hits else (*hits, ban_hit(ban, stem, hits, self.ban_name))

    def hits_below(self, stem: str, rules: Iterable[NamedRule], cost: int) -> tuple[Hit, ...]:
        """The hits of ``rules``, whose keys begin with ``stem``."""
        make = Hit if self.declaration.settle is None else settled_hit
        hits = tuple(
            make(
                stem + rule.key_part,
                rule,
                cost,
                name,
                self.declaration.shadow,
                self.declaration.on_storage_error,
                unit=self.declaration.unit or "",
            )
            for name, rule in rules
        )
        return strictest(hits) if len({hit.key for hit in hits}) < len(hits) else hits


@lru_cache(maxsize=HITS_REMEMBERED, typed=True)  # True and 1.0 are equal to 1, but are not valid costs
def _remembered_hits(
    limiter: ref[PlannedLimiter], type_name: str, subject: str, cost: int, priority: str | None
) -> tuple[Hit, ...]:
    planned = cast("PlannedLimiter", limiter())  # weak, because its callables may hold the app
    return planned.make_hits(planned.rules, type_name, subject, cost, priority)


@dataclass(eq=False, repr=False)
class Plan:
    """All limiters of an endpoint or a service function."""

    scope: str
    stack: Stack | None
    """The decorators of the view; the outermost one checks this plan. ``None``: it is checked before the view."""
    limiters: tuple[PlannedLimiter, ...]
    early: bool = False
    """Whether it is checked before the view even if that has decorators: a websocket is refused before its handshake,
    because no client reads an HTTP response after it."""
    cached_apply: LimitsOf = field(default_factory=lambda: Plan.apply_to)
    """:meth:`apply_to`, perhaps with a cache: see :attr:`Planner.cached_apply`."""

    @property
    def described(self) -> tuple[str, ...]:
        """Its limits as text for people."""
        return tuple(text for limiter in self.limiters for text in limiter.described)

    @property
    def types(self) -> dict[str, tuple[str, ...]]:
        """The names of the types that limit here, with the names of their parts."""
        declared = (limiter.declaration for limiter in self.limiters)
        return {each.type_name: parts_of(each.type, each.name) for each in declared}

    def type_called(self, name: str) -> SubjectType | None:
        """The type of this ``name`` that limits here."""
        types = (limiter.declaration.type for limiter in self.limiters if limiter.declaration.type_name == name)
        return next(types, None)

    @cached_property
    def without_view(self) -> Plan:
        """The plan without the decorators of the view."""
        if self.stack is None:
            return self
        own = self.stack.covered
        limiters = tuple(each for each in self.limiters if each.original not in own)
        return Plan(self.scope, None, limiters, cached_apply=self.cached_apply)

    @cached_property
    def without_trials(self) -> Plan:
        """The plan without the limiters that never refuse; the plan itself if it has none."""
        limiters = tuple(each for each in self.limiters if not each.declaration.shadow)
        return self if limiters == self.limiters else replace(self, limiters=limiters)

    @cached_property
    def is_steady(self) -> bool:
        """Whether it depends on nothing but the subjects of a request."""
        return not any(
            limiter.dynamic
            or limiter.declaration.exempt_when is not None  # which may be false
            or limiter.declaration.reserve
            or callable(limiter.declaration.cost)
            for limiter in self.limiters
        )

    @cached_property
    def _to_resolve(self) -> tuple[tuple[SubjectType, str | None], ...]:
        """The types to resolve, each one once, with the name of its limiter."""
        declarations = [limiter.declaration for limiter in self.limiters]
        return tuple({(id(each.type), each.name): (each.type, each.name) for each in declarations}.values())

    def apply(self, resolve: Resolve, about: About = REQUEST) -> AppliedLimits:
        """The limiters that apply to the current request, or as ``about`` says. Each type is resolved once."""
        if not self.is_steady:
            return self._apply(resolve, about)
        subjects = tuple([resolve(*each) for each in self._to_resolve])
        for subject in subjects:
            if subject is not None and len(subject.value) > LONGEST_REMEMBERED:
                return self.apply_to(subjects)
        return self.cached_apply(self, subjects)

    @cached_property
    def same_for_all(self) -> AppliedLimits | None:
        """The limiters that apply to every request, if nothing depends on the request; otherwise ``None``."""
        if not self.is_steady or any(type_ is not LimitType.DEFAULT for type_, _ in self._to_resolve):
            return None
        return self.apply_to((EVERYONE,) * len(self._to_resolve))

    def apply_to(self, subjects: tuple[Subject | None, ...]) -> AppliedLimits:
        """The limiters of a steady plan for ``subjects``: one per type, in the order of the types."""
        in_order = iter(subjects)
        return self._apply(lambda type_, name: next(in_order), REQUEST)  # noqa: ARG005

    def _apply(self, resolve: Resolve, about: About) -> AppliedLimits:
        resolved: dict[Any, Subject | None] = {}
        applied, failure = [], None
        ask = about.ask
        for limiter in self.limiters:
            declared = limiter.declaration
            if declared.exempt_when is not None and ask(declared.exempt_when, False):
                continue
            who = (id(declared.type), declared.name)
            if who not in resolved:
                resolved[who] = resolve(declared.type, declared.name)
            subject = resolved[who]
            if subject is None:
                continue
            try:
                hits = _hits_now(limiter, subject, about)
            except Exception as error:
                has_no_rules = isinstance(error, NoRules)
                if not (has_no_rules or about.has_ended):
                    raise
                if not (declared.shadow and about.is_request):  # a trial ends no request
                    failure = failure or (error.__cause__ if has_no_rules else error)
            else:
                applied.append(Applied(declared, subject, hits or (), hits is not None))
        return AppliedLimits(applied, self.scope, failure)


def _hits_now(limiter: PlannedLimiter, subject: Subject, about: About) -> tuple[Hit, ...] | None:
    """The hits of ``subject``, after calling what ``limiter`` calls for each request. Raises as
    :meth:`PlannedLimiter.hits`, and what the callables raise."""
    declared = limiter.declaration
    cost = declared.cost if not callable(declared.cost) else about.ask(declared.cost, 1)
    if type(cost) is int and cost > LARGEST_COST:
        cost = LARGEST_COST
    priority = about.ask(declared.reserve.priority, None) if declared.reserve is not None else None
    try:
        return limiter.hits(subject, cost, priority=priority, rules_of=about.rules_of)
    except Exception as error:
        if isinstance(error, NoRules) or not about.has_ended:
            raise  # otherwise, the cost or the priority is invalid
        cost = 1 if callable(declared.cost) else declared.cost
        return limiter.hits(subject, cost, rules_of=about.rules_of)


@dataclass(eq=False, repr=False)
class Planner:
    """Plans the limiters of all scopes of one app."""

    app: Flask
    prefix: str
    """The prefix of keys, for declarations without one."""
    overrides: Overrides
    """The overrides in the plans, and which of them had an effect when the plans were made."""
    dynamic: MutableMapping[Hashable, DynamicRules]
    """The rules by request of each limiter at its endpoint, which remember the last good ones; as long as a plan has
    them, because functions with limits may be made for each request."""

    cached_apply: LimitsOf = field(default_factory=lambda: lru_cache(maxsize=HITS_REMEMBERED)(Plan.apply_to))
    """:meth:`Plan.apply_to` with a cache for these plans. A cache for all apps would keep dropped apps alive, because
    limiters may hold them."""

    def plan(
        self,
        scope: str,
        declarations: Iterable[Declaration],
        method: str | None,
        *,
        by_flask: bool = False,
        stack: Stack | None = None,
        early: bool = False,
        counted_as: str | None = None,
        methods: Mapping[Declaration, str] | None = None,
        added: Mapping[Declaration, str] | None = None,
    ) -> Plan:
        """The plan of ``scope`` for ``method``, or for all methods. Raises :class:`ConfigurationError` if two limiters
        would share a key, but not what they count, or the keys of ``scope`` would be in several slots.

        All ``declarations`` and all that overrides have ``added``, by whose ids, get names, also if they do not serve
        the method, because a rule has one name for all methods: first those for all methods, then those for some, and
        last those of overrides. ``counted_as`` is the scope in the keys of declarations without one, if it is not
        ``scope``. ``methods`` has the part of keys for the methods of declarations that are on one method of a class.
        """
        methods, added, overrides = methods or {}, added or {}, self.overrides
        declared = (*declarations, *added)
        serving = [each for each in declared if method is None or each.serves(method, by_flask=by_flask)]
        overrides.effective.update(added[each] for each in serving if each in added)
        reject_scattered_keys(scope, serving)
        names = _Names((*(each for each in declared if each not in added), *methods))
        named = {
            each: self._limiter(each, counted_as or scope, methods.get(each, each.methods_in_key), names)
            for each in sorted(declared, key=lambda each: (each in added, each.methods is not None))
        }
        planned = tuple(named[each] for each in serving)
        if overrides:
            planned = _overridden((scope,), planned, overrides)
        planned = tuple(_separated(planned, added))
        reject_shared_keys(scope, ((each.declaration, each.stem) for each in planned))
        return Plan(scope, stack, planned, early, self.cached_apply)

    def limiters_elsewhere(self, scope: str, declarations: Iterable[Declaration]) -> Iterator[PlannedLimiter]:
        """Limiters of ``scope`` that no plan has, because another extension checks them by itself. Each has the names
        of its rules for itself."""
        planner = replace(self, dynamic={})  # nobody asks these for rules
        for each in declarations:
            planned = planner._limiter(each, scope, each.methods_in_key, _Names(()))
            scopes = (scope, each.scope or scope)
            yield from as_far_as_they_fit(self.overrides, scopes, partial(_overridden, scopes, [planned]))

    def stem_parts_of(self, declaration: Declaration, scope: str, methods: str) -> StemParts:
        return declaration.key or self.prefix, declaration.scope or scope, declaration.hash_tag, methods

    def _limiter(self, declaration: Declaration, scope: str, methods: str, names: _Names) -> PlannedLimiter:
        parts = self.stem_parts_of(declaration, scope, methods)
        stem = stem_of(*parts)
        ban_name = "" if declaration.ban is None else names.of(declaration, declaration.ban.rule)
        if callable(declaration.rules):
            identity = (id(declaration.rules), declaration.where, declaration.type_name, declaration.methods, stem)
            rules_by_request = self.dynamic.setdefault(identity, DynamicRules(self.app, declaration))
            return PlannedLimiter(declaration, parts, stem, (), rules_by_request, ban_name=ban_name)
        rules = tuple((names.of(declaration, rule), rule) for rule in declaration.rules)
        return PlannedLimiter(declaration, parts, stem, rules, None, ban_name=ban_name)


def _overridden(
    scopes: Sequence[str], planned: Iterable[PlannedLimiter], overrides: Overrides
) -> tuple[PlannedLimiter, ...]:
    found = []
    for limiter in planned:
        changed = _changed(scopes, limiter, overrides)
        if changed is None:
            continue
        try:
            limiter.declaration.check_rules((*(rule for _, rule in changed.rules), *changed.rules_of_overrides))
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{limiter.declaration.where}": {error}') from error
        found.append(changed)
    return tuple(found)


def _changed(scopes: Sequence[str], limiter: PlannedLimiter, overrides: Overrides) -> PlannedLimiter | None:
    """A limiter of ``scopes`` after all overrides; ``None`` if it is off."""
    group, declared = overrides.at(*scopes), limiter.declaration
    changed = replace(limiter, special=group.special_for(declared), changed_from=declared)
    if changed.special is not None:
        overrides.effective.update(each.id for each in changed.special.entries)
    for each in group.changes_of(declared):
        if each.limiter is not None and each.limiter not in {declared.name, declared.type_name}:
            continue
        if each.rule is not None:
            changed = _after_override_of_rule(changed, each, overrides)
        elif each.limit is None:
            overrides.effective.add(each.id)
            if each.off:
                return None
            changed = _after_override_of_limiter(changed, each)
    if callable(changed.declaration.rules):
        return changed
    fixed = replace(changed.declaration, rules=tuple(rule for _, rule in changed.rules))
    return None if limiter.rules and not changed.rules else replace(changed, declaration=fixed, dynamic=None)


def _after_override_of_rule(limiter: PlannedLimiter, override: Override, overrides: Overrides) -> PlannedLimiter:
    if callable(limiter.declaration.rules):
        overrides.effective.add(override.id)  # it may return a rule of this name
        return replace(limiter, late_overrides=(*limiter.late_overrides, override))
    if any(name == override.rule for name, _ in limiter.rules):
        overrides.effective.add(override.id)
    return replace(limiter, rules=change_rules(limiter.rules, override))


def _after_override_of_limiter(limiter: PlannedLimiter, override: Override) -> PlannedLimiter:
    declared = limiter.declaration
    if override.shadow is not None:
        return replace(limiter, declaration=replace(declared, shadow=override.shadow))
    if override.times is not None:
        rules = change_rules(limiter.rules, override)
        return replace(limiter, rules=rules, late_overrides=(*limiter.late_overrides, override))
    fixed = override.written_rules
    named = tuple((declared.name_of(rule), rule) for rule in fixed)
    return replace(limiter, declaration=replace(declared, rules=fixed), rules=named, late_overrides=())


class _Names:
    """Names of rules, each one once. If rules differ in their scope alone, the name of a scope that is given comes
    first: ``feed:ip-60s``; otherwise a number follows: ``ip-60s-2``."""

    def __init__(self, declarations: Iterable[Declaration]) -> None:
        self._taken: set[str] = set()
        self._scopes: dict[str, set[str | None]] = {}
        for declared in declarations:
            for rule in declared.counted_rules:
                self._scopes.setdefault(declared.name_of(rule), set()).add(declared.scope)

    def of(self, declared: Declaration, rule: Rule) -> str:
        wanted = declared.name_of(rule)
        scoped = f"{declared.scope}:{wanted}"
        if declared.scope_is_given and len(self._scopes.get(wanted, ())) > 1 and re.fullmatch(NAME, scoped):
            wanted = scoped
        name = numbered(wanted, self._taken)
        self._taken.add(name)
        return name


def _separated(planned: Sequence[PlannedLimiter], added: Collection[Declaration]) -> Iterator[PlannedLimiter]:
    """``planned``, in which some limiters that would share a key get one of their own: a shadow, because a shared
    history would lack the requests that the other limiter refuses; and one that was ``added`` and counts otherwise,
    because an override cannot give it a scope."""
    used: defaultdict[tuple[str, str], int] = defaultdict(int)
    for limiter in planned:
        others = [other for other in planned if other is not limiter and other.may_share_key(limiter)]
        suffix = _suffix(limiter, others, added)
        if suffix:
            used[limiter.stem, suffix] += 1
            prefix, scope, hash_tag, methods = limiter.stem_parts
            times = used[limiter.stem, suffix]
            yield replace(limiter, stem=stem_of(prefix, scope, hash_tag, methods + suffix * times))
        else:
            yield limiter


def _suffix(limiter: PlannedLimiter, others: Sequence[PlannedLimiter], added: Collection[Declaration]) -> str:
    if limiter.declaration.shadow:
        return SHADOW if others else ""
    counting = [other.declaration for other in others if not other.declaration.shadow]
    if limiter.original in added and any(would_conflict(limiter.declaration, other) for other in counting):
        return ADDED
    return ""


# Hits that no plan has made: those of tasks and scripts


def revised(hits: Hits, overrides: Overrides) -> Hits | None:
    """``hits`` after the ``overrides`` of what they limit, and of the scopes that :func:`hits_for` was given; ``None``
    if all are off.

    Overrides that add a limit are only for endpoints: here, the other subjects that it would count are not known. Those
    that do not fit are ignored, and the error is logged once.
    """
    known: tuple[Overrides, Hits | None] | None = hits.cache.get(revised)
    if known is not None and known[0] is overrides:
        return known[1]
    found: list[Hit] = []
    new_keys: dict[str, tuple[str, ...]] = {}
    for origin, same in _by_limiter(hits):
        changed = same
        if origin is not None:
            scopes = (origin.scope,) if hits.scope is None else (hits.scope, origin.scope)
            changed = as_far_as_they_fit(overrides, scopes, partial(_revised, same, origin, scopes))
        keys = tuple(hit.key for hit in changed if hit.rule.count)
        new_keys |= {hit.key: keys for hit in same if hit.key not in keys}
        found += changed
    found = [_with_new_watches(hit, new_keys) if isinstance(hit, BanHit) else hit for hit in strictest(found)]
    answer = None
    if tuple(found) == hits:
        answer = hits
    elif found:
        answer = Hits(found, scope=hits.scope)
        answer.apply_overrides = partial(revised, overrides=overrides)
        answer.revisable = False
    hits.cache[revised] = (overrides, answer)
    return answer


def _by_limiter(hits: Iterable[Hit]) -> Iterator[tuple[Origin | None, tuple[Hit, ...]]]:
    """``hits`` by what made them: neighbours of one origin, whose rates have one cost."""
    for origin, group in groupby(hits, key=lambda hit: hit.origin):
        same: list[Hit] = []
        cost = None
        for hit in group:
            if not (isinstance(hit, BanHit) or hit.rule.holds_slots):
                if cost not in {None, hit.cost}:
                    yield origin, tuple(same)
                    same.clear()
                cost = hit.cost
            same.append(hit)
        yield origin, tuple(same)


def _revised(hits: tuple[Hit, ...], origin: Origin, scopes: Sequence[str], overrides: Overrides) -> tuple[Hit, ...]:
    """The hits of one limiter after ``overrides``. Raises :class:`ConfigurationError`."""
    limits = [hit for hit in hits if not isinstance(hit, BanHit)]
    bans = [hit for hit in hits if isinstance(hit, BanHit)]
    if not limits:
        return tuple(filter(None, (_revised_ban(ban, origin, scopes, overrides) for ban in bans)))
    first = next((hit for hit in limits if not hit.rule.holds_slots), limits[0])
    stem, who = stem_of_key(first.key), Subject(origin.type, origin.subject)
    changed = _changed(scopes, _limiter_of(limits, first, origin), overrides)
    if changed is None:
        return ()
    special = None if changed.special is None else changed.special.find(who)
    names = {_name_in(hit): hit.name for hit in limits}
    rules = [(names.get(name, name), rule) for name, rule in changed.rules_for(who, special) or ()]
    made = changed.hits_below(stem, rules, first.cost)
    if list(made) == limits:
        return hits
    made_bans = (ban_hit(hit.rule.ban, stem, made, hit.name) for hit in bans)
    return strictest([*made, *(replace(ban, origin=origin) for ban in made_bans)])


def _revised_ban(ban: BanHit, origin: Origin, scopes: Sequence[str], overrides: Overrides) -> BanHit | None:
    """A ban that counts refusals of other limiters, after ``overrides``; ``None`` if it is off. Like the ban of a
    limiter, it keeps its strikes if an override changes the rules of all limiters."""
    declared, shadow = ban.rule.ban, ban.shadow
    strikes = declared.after
    for each in overrides.at(*scopes).changes:
        if each.rule is not None or each.limit is not None or each.limiter not in {None, origin.type}:
            continue
        if each.off:
            return None
        if each.shadow is not None:
            shadow = ban.shadow or each.shadow  # one that is declared spares a client for another reason than a trial
        elif each.limiter is not None:
            if each.times is None:
                raise ConfigurationError(f"{origin.type} is a ban without rules; give times, shadow or off")
            strikes = min(max(floor(strikes * each.times), 1), MOST_STRIKES)
    if (strikes, shadow) == (declared.after, ban.shadow):
        return ban
    rule = replace(declared, after=strikes).rule
    return replace(ban, key=stem_of_key(ban.key) + part_in_key(rule, shadow=shadow), rule=rule, shadow=shadow)


def _limiter_of(hits: Sequence[Hit], first: Hit, origin: Origin) -> PlannedLimiter:
    """A limiter that would make such ``hits``."""
    declared = Declaration(
        where=origin.scope,
        type=lambda: origin.subject,
        name=origin.type,
        rules=tuple(hit.rule for hit in hits),
        settle=True if origin.settle else None,
        shadow=hits[0].shadow,
        on_storage_error=first.on_storage_error,
        unit=first.unit,
    )
    return PlannedLimiter(declared, ("", "", "scope", ""), "", tuple((_name_in(hit), hit.rule) for hit in hits), None)


def _name_in(hit: Hit) -> str:
    """The name of its rule in its limiter: a check of several limiters may give it a number."""
    return hit.rule.name or hit.name


def _with_new_watches(ban: BanHit, new_keys: Mapping[str, Sequence[str]]) -> BanHit:
    """``ban``, watching the new keys of the hits that it watches, which may be of other scopes."""
    watches = dict.fromkeys(new for key in ban.watches for new in new_keys.get(key, (key,)))
    return replace(ban, watches=tuple(watches))
