"""Overrides: which of them apply to a scope and a subject, and how they change rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from math import floor
from typing import TYPE_CHECKING, Any, TypeVar

from ..declare.addresses import Networks, Who
from ..declare.decorators import rate_limiter
from ..declare.limiter import Declaration
from ..declare.subjects import ANONYMOUS, Subject, parts_with_names, spellings, type_name_of, types_in
from ..engine import ConfigurationError, Rule
from ..engine.rules import Calendar, calendar_in, fields_of, rule_of
from ..engine.text import SafeLogger
from .sources import ByName, names_of

if TYPE_CHECKING:
    from ..control.entries import Override
    from ..declare.data import WrittenRule

NamedRule = tuple[str, Rule]
T = TypeVar("T")
MOST_UNFIT = 100
"""The most functions and checks for which it is logged that overrides do not fit."""
_logger = SafeLogger()


class Overrides:
    """All overrides in force. Those that apply to a plan are found when it is made."""

    def __init__(self, entries: Iterable[Override] = (), *, anonymous_by_address: bool = True) -> None:
        """``anonymous_by_address``: whether user limits count clients that are not logged in by address."""
        self.entries: tuple[Override, ...] = tuple(entries)
        self._with_address = frozenset(("ip", "user") if anonymous_by_address else ("ip",))
        self.effective: set[str] = set()
        """Ids of the overrides that apply to anything in the plans made so far."""
        self._unfit_at = set[str]()
        self._groups: dict[tuple[int, ...], Group] = {}
        named = [(each.endpoint or "*", index) for index, each in enumerate(self.entries)]
        self.methods: frozenset[str] = frozenset(
            method.upper() for each in self.entries if each.limit is not None for method in each.limit.methods or ()
        )
        """The methods that added limiters name, anywhere."""
        self._everywhere = [index for name, index in named if name == "*"]
        self._named = ByName(each for each in named if each[0] != "*")

    def __bool__(self) -> bool:
        return bool(self.entries)

    def at(self, *scopes: str) -> Group:
        """The overrides that apply to one of ``scopes``. Scopes with the same overrides share one object."""
        found = set[int]()
        for scope in scopes:
            names = {*names_of(scope)}  # which may look like patterns
            found.update(i for name, i in self._named.near(scope) if name in names or fnmatchcase(scope, name))
        by_name = tuple(sorted(found))
        if by_name not in self._groups:
            in_order = sorted([*by_name, *self._everywhere])
            entries = tuple(self.entries[index] for index in in_order)
            self._groups[by_name] = Group(entries, with_address=self._with_address)
        return self._groups[by_name]

    def only(self, entries: Iterable[Override]) -> Overrides:
        """Those of ``entries`` alone, for a plan that is one of those with all."""
        some = Overrides(entries, anonymous_by_address="user" in self._with_address)
        some.effective = self.effective
        return some

    def report_unfit(self, scope: str, error: ConfigurationError) -> None:
        """Log, once, that some overrides do not fit the function or the checks of ``scope``. An app that makes up
        scopes would log this for ever, so only the first ones are logged."""
        if scope not in self._unfit_at and len(self._unfit_at) < MOST_UNFIT:
            self._unfit_at.add(scope)
            _logger.error(
                'Rate limits: some overrides of "%s" do not fit its checks and are ignored there: %s', scope, error
            )

    def limits_at(self, scope: str, *, exempt: bool = False) -> dict[Declaration, str]:
        """The limiters that only an override declares, with its id. If ``scope`` is ``exempt`` from limits that are
        declared elsewhere, only those of overrides that name it."""
        return {
            rate_limiter(**each.limit.options).at(_where_added(each)): each.id
            for each in self.at(scope).changes
            if each.limit is not None and (not exempt or each.endpoint == scope)
        }


def fitting(
    overrides: Sequence[Override], make: Callable[[Sequence[Override]], object]
) -> tuple[tuple[Override, ...], dict[str, ConfigurationError]]:
    """The ``overrides`` that ``make`` accepts together, and by id why it does not accept the others: they were made for
    another release of the app. If these are few, this takes few tries, and even fewer with those for single clients,
    which may be many, and which are as fit as they are alone: so they come last."""
    make(())
    with suppress(ConfigurationError):
        make(tuple(overrides))
        return tuple(overrides), {}
    unfit: dict[str, ConfigurationError] = {}

    def keep(kept: tuple[Override, ...], candidates: Sequence[Override]) -> tuple[Override, ...]:
        try:
            make((*kept, *candidates))
        except ConfigurationError as error:
            if len(candidates) == 1:
                unfit[candidates[0].id] = error
                return kept
        else:
            return (*kept, *candidates)
        middle = len(candidates) // 2
        return keep(keep(kept, candidates[:middle]), candidates[middle:])

    general, special = ([each for each in overrides if (each.who is None) == for_all] for for_all in (True, False))
    return keep(keep((), general), special), unfit


def as_far_as_they_fit(overrides: Overrides, scopes: Sequence[str], make: Callable[[Overrides], T]) -> T:
    """What ``make`` returns with ``overrides``, or, if it does not accept all of those of ``scopes``, with those that
    it accepts. The last scope is that of the function or check, which is known only when it is called."""
    try:
        return make(overrides)
    except ConfigurationError as error:
        group = overrides.at(*scopes)
        for known, with_others in group.fitted:  # to find them anew may take a hundred times as long
            if _accepts(make, known) and not any(_accepts(make, each) for each in with_others):
                break
        else:
            kept, unfit = fitting(group.entries, lambda some: make(overrides.only(some)))
            known, for_all = overrides.only(kept), [each for each in kept if each.who is None]
            with_others = [overrides.only((*for_all, each)) for each in group.entries if each.id in unfit]
            group.fitted = ((known, with_others), *group.fitted[:3])
        overrides.report_unfit(scopes[-1], error)
        return make(known)


def _accepts(make: Callable[[Overrides], object], overrides: Overrides) -> bool:
    with suppress(ConfigurationError):
        make(overrides)
        return True
    return False


def _where_added(override: Override) -> str:
    """Where the limiter that ``override`` adds was declared."""
    return f"override {override.id}"


class Group:
    """The overrides that apply to a scope."""

    def __init__(self, entries: tuple[Override, ...], *, with_address: frozenset[str]) -> None:
        """``with_address``: the types of limiters that count clients by address."""
        self._with_address = with_address
        self.entries: tuple[Override, ...] = entries
        self.changes: tuple[Override, ...] = tuple(each for each in entries if each.who is None)
        """The overrides that change limiters for everybody, in their order."""
        self._for_subjects = [(each.who, each) for each in entries if each.who is not None]
        self._special: dict[tuple[frozenset[str], bool], SpecialSubjects | None] = {}
        self.fitted: tuple[tuple[Overrides, list[Overrides]], ...] = ()
        """For the last four kinds of functions and checks that not all of these fitted: those that did, and each of the
        others, with those for everybody that did."""

    def __bool__(self) -> bool:
        return bool(self.entries)

    def changes_of(self, declaration: Declaration) -> tuple[Override, ...]:
        """Those of :attr:`changes` that may concern a limiter: if an override has added it, only the later ones."""
        places = [_where_added(each) for each in self.changes]
        return self.changes[places.index(declaration.where) + 1 :] if declaration.where in places else self.changes

    def special_for(self, declaration: Declaration) -> SpecialSubjects | None:
        """The overrides for some of the subjects that a limiter counts; ``None`` if there are none."""
        type_, joined = declaration.type, declaration.type_name.split("+")
        has_parts = isinstance(type_, tuple) or len(joined) > 1
        counted = frozenset((*joined, *(type_name_of(part, declaration.name) for part in types_in(type_))))
        if (counted, has_parts) not in self._special:
            has_address = not self._with_address.isdisjoint(counted)
            found = [
                (who, each)
                for who, each in self._for_subjects
                if (who.type_name in counted if who.network is None else has_address)
            ]
            self._special[counted, has_parts] = SpecialSubjects(found, has_parts=has_parts) if found else None
        return self._special[counted, has_parts]


def change_rules(rules: Iterable[NamedRule], override: Override) -> tuple[NamedRule, ...]:
    """The rules after an ``override`` of those that it names, or of all; without those that are off."""
    found = []
    for name, rule in rules:
        if override.rule not in {name, None}:
            found.append((name, rule))
        elif not override.off:
            found.append((name, _change_rule(rule, override)))
    return tuple(found)


def _change_rule(rule: Rule, override: Override) -> Rule:
    if override.times is not None:
        return _times(rule, override.times)
    written = override.rules[0] if isinstance(override.rules, tuple) else override.rules
    return merged(rule, written) if written is not None else rule


def merged(rule: Rule, written: str | WrittenRule) -> Rule:
    """``written`` in place of ``rule``. Options that it does not set are kept if the algorithm accepts them, and the
    count is no less than the lease.

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
            raise ConfigurationError(f"timeout is for concurrency limits, and {rule} is a rate; give a count, too")
    return _replaced(rule, given)


def _replaced(rule: Rule, given: dict[str, Any]) -> Rule:
    kept = fields_of(rule)
    was_calendar = isinstance(rule, Calendar)
    if ("period" in given or (was_calendar and given.keys() <= kept.keys())) != was_calendar:
        kept = {name: kept[name] for name in ("count", "name")}
    elif isinstance(rule, Calendar):
        if given.get("period", rule.period) != rule.period:
            kept["anchor"] = None
    elif given.get("algorithm", rule.algorithm) != rule.algorithm:
        kept = {name: kept.get(name) for name in ("count", "time", "name")}
    if (kept.get("lease") or 0) > given.get("count", rule.count):
        kept["lease"] = None
    return rule_of({**kept, **given})


def _times(rule: Rule, times: float) -> Rule:
    count = max(floor(rule.count * times), 1)
    if isinstance(rule, Calendar):
        return _replaced(rule, {"count": count})
    burst = None if rule.burst is None else max(floor(rule.burst * times), 1)
    return _replaced(rule, {"count": count, "burst": burst})


class SpecialSubjects:
    """Subjects with rules of their own."""

    def __init__(self, entries: Iterable[tuple[Who, Override]], *, has_parts: bool) -> None:
        """``has_parts``: whether their limiters count several types together."""
        self._has_parts = has_parts
        known = list(entries)
        self.entries: tuple[Override, ...] = tuple(each for _, each in known)
        self.rules: tuple[Rule, ...] = tuple(rule for each in self.entries for rule in each.written_rules)
        """All that the overrides write: many limiters share this object."""
        self._subjects = {(who.type_name, who.value): each for who, each in known if who.network is None}
        self._networks: Networks[Override] = Networks(
            (who.network, each) for who, each in known if who.network is not None
        )

    def find(self, subject: Subject) -> Override | None:
        """The override for ``subject``, or for one part of it if it has several."""
        parts = parts_with_names(subject.value) if self._has_parts else ()
        return next((found for each in (subject, *parts) if (found := self._find(each)) is not None), None)

    def _find(self, subject: Subject) -> Override | None:
        if subject.type in {"ip", ANONYMOUS}:
            return self._networks.find(subject.value.partition("/")[0])
        return next((self._subjects[each] for each in spellings(subject) if each in self._subjects), None)


def rules_of_subject(override: Override, declaration: Declaration, rules: Iterable[NamedRule]) -> tuple[NamedRule, ...]:
    """The rules of a limiter for a subject that has rules of its own, in place of ``rules``."""
    if override.times is not None:
        return change_rules(rules, override)
    return tuple((declaration.name_of(rule), rule) for rule in override.written_rules)
