"""Tries a change of limits or lists before it is made, to say what it would change, and whether it needs force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches

from ..control.control import Difference
from ..control.document import Document
from ..control.entries import Listing, Override, is_wide, too_many_listed
from ..declare.addresses import Who, network_from
from ..declare.written import InvalidData, Mistake
from ..engine import ConfigurationError, Rule
from ..engine.errors import message_of
from ..engine.text import Phrase
from .endpoint import Plan, PlannedLimiter
from .overrides import NamedRule, fitting, rules_of_subject
from .plans import Plans
from .sources import UNMATCHED_SCOPE

SMALLEST_SHARE = 0.01
"""The smallest part of a declared rate to which an override may reduce it without ``force``."""
LARGEST_SHARE = 1000
"""The multiple of a declared rate to which an override may not raise it without ``force``."""


class ChangeValidator:
    """Tries changes on copies of an app's plans, as the :class:`.ChangedApp` of control."""

    def __init__(
        self,
        declared: Plans,
        plans_with: Callable[[Sequence[Override]], Plans],
        look_elsewhere: Callable[[Plans], None],
        *,
        ipv6_prefix: int,
    ) -> None:
        """``declared`` are the plans without overrides, ``plans_with`` makes those with some, and ``look_elsewhere``
        finds those of them that apply to limits of other extensions."""
        self._declared = declared
        self._plans_with = plans_with
        self._look_elsewhere = look_elsewhere
        self._ipv6_prefix = ipv6_prefix

    def differences(self, before: Document, after: Document) -> list[Difference]:
        """Each endpoint whose limits differ in ``after``. Raises :class:`ConfigurationError`."""
        if before.overrides == after.overrides:
            return []
        return differences(*(self._plans_with(self._fitting(each.overrides)) for each in (before, after)))

    def idle(self, document: Document) -> set[str]:
        left = self._fitting(document.overrides)
        while True:  # until no override is left that another one may hide
            plans = self._plans_with(left)
            effective = plans.overrides.effective
            if any(each.id not in effective for each in left):
                self._look_elsewhere(plans)
            idle = [each for each in left if each.id not in effective]
            if len(idle) == len(left):
                return {each.id for each in idle}
            left = self._fitting(idle)  # without those that change what another one has made

    def unfit(self, document: Document) -> dict[str, ConfigurationError]:
        return fitting(document.overrides, self._plans_with)[1]

    def validate(self, document: Document, entry: Override | Listing) -> None:
        if isinstance(entry, Override):
            self._plans_with(self._fitting(document.overrides, but=entry))
            if entry.who is not None:
                self._check_who(entry.who)
        else:
            self._check_type(entry.who)

    def warning(self, document: Document, entry: Override | Listing) -> str:
        """Why ``entry`` needs ``force``: it would do nothing, or refuse or free (nearly) everyone; empty if it does
        not."""
        if isinstance(entry, Listing):
            return too_many_listed(document.listings, entry)
        before = self._plans_with(self._fitting([each for each in document.overrides if each.id != entry.id]))
        plans = self._plans_with(self._fitting(document.overrides, but=entry))
        if entry.id not in plans.overrides.effective:
            self._look_elsewhere(plans)
            idle = "{entry}: no endpoint has such a limit; {hint}. A function, a view or an extension may check it"
            if entry.id in plans.overrides.effective:
                idle = "{entry}: would change only limits of another extension, which no preview shows"
            elif entry.limit and not any(entry in plans.overrides.at(at).changes for at, _ in plans.planned):
                idle = "{entry}: no endpoint has this name; {hint}. A function may; checks in views get no new limits"
            elif entry.limit is not None and entry.limit.methods:
                idle = "{entry}: no route takes its methods, so it would limit nothing"
            return Phrase(idle, entry=entry, hint=_hint(entry, before))
        if (entry.times or 1) < SMALLEST_SHARE or self._leaves_too_little(before, plans):
            return Phrase("{entry}: would leave less than a hundredth of a limit", entry=entry)
        return self._too_generous(entry, before, plans) if entry.who is None or is_wide(entry.who) else ""

    def _fitting(self, overrides: Sequence[Override], *, but: Override | None = None) -> Sequence[Override]:
        """``overrides`` without those that do not fit, which are not in force; but with this one in any case."""
        _, unfit = fitting([each for each in overrides if each is not but], self._plans_with)
        return [each for each in overrides if each.id not in unfit]

    def _leaves_too_little(self, before: Plans, plans: Plans) -> bool:
        """Whether this change lowers a limit too far. If another limit is as low, that was confirmed."""
        low = {limit: share for limit, share in shares(self._declared, plans) if share < SMALLEST_SHARE}
        had = dict(shares(self._declared, before)) if low else {}
        return any(share < had.get(limit, 1) for limit, share in low.items())

    def _too_generous(self, entry: Override, before: Plans, plans: Plans) -> str:
        high = {limit: share for limit, share in shares(self._declared, plans) if share >= LARGEST_SHARE}
        had = dict(shares(self._declared, before)) if high else {}
        if (entry.times or 1) >= LARGEST_SHARE or any(share > had.get(limit, 1) for limit, share in high.items()):
            generous = "{entry}: would admit {n} times as much as a limit declares, or more"
            return Phrase(generous, entry=entry, n=LARGEST_SHARE)
        names_part = entry.rule or entry.limiter or (entry.endpoint or "*").strip("*")
        if (entry.off or entry.shadow) and not names_part and frees_all(before, plans):
            return Phrase("{entry}: would leave no limit that refuses anybody", entry=entry)
        return ""

    def _check_who(self, who: Who) -> None:
        network, prefix = who.network, self._ipv6_prefix
        if network is not None and network.version == 6 and network.prefixlen > prefix:
            whole = network_from(f"{network.address}/{prefix}")
            counted = "limits count IPv6 addresses of one /{prefix} as one: give {whole}"
            remedy = Phrase(counted, prefix=prefix, whole=whole)
            raise InvalidData("", [Mistake("who", str(who), remedy)])
        self._check_type(who)

    def _check_type(self, who: Who) -> None:
        if not who.type_name:
            return
        try:
            self._declared.require_type(who)
        except ConfigurationError as error:
            raise InvalidData("", [Mistake("who", str(who), message_of(error))]) from None


def _hint(entry: Override, plans: Plans) -> Phrase:
    """What ``entry`` may have meant instead."""
    known = {endpoint for endpoint, _ in plans.planned}
    if entry.endpoint in known:
        of_endpoint = [plan for (endpoint, _), plan in plans.planned.items() if endpoint == entry.endpoint]
        names = dict.fromkeys(name for plan in of_endpoint for limiter in plan.limiters for name, _ in limiter.rules)
        if not names:
            return Phrase("{endpoint} has no limits", endpoint=entry.endpoint)
        return Phrase("the rules of {endpoint} are {names}", endpoint=entry.endpoint, names=", ".join(names))
    nearest = get_close_matches(entry.endpoint or "", known, n=1)
    if not nearest:
        return Phrase("`flask multilimit limits` lists the limits")
    return Phrase("the nearest name is {name}", name=nearest[0])


# What differs between two sets of plans


def differences(before: Plans, after: Plans) -> list[Difference]:
    """Each endpoint whose limits differ in ``after``; also requests that match no route."""
    found: dict[tuple[str, tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for endpoint, method, old_plan, plan in _pairs(before, after):
        old, new = old_plan.described, plan.described
        if old != new:
            found.setdefault((endpoint, old, new), set()).add(method)
    return [Difference(endpoint, tuple(sorted(methods)), old, new) for (endpoint, old, new), methods in found.items()]


def shares(before: Plans, after: Plans) -> Iterator[tuple[tuple[object, ...], float]]:
    """The share that ``after`` leaves of each limit, for any subject."""
    for endpoint, method, old, plan in _pairs(before, after):
        for limiter in plan.limiters:
            for part, share in _shares_of_limiter(old, limiter):
                yield (endpoint, method, limiter.identity, part), share


def frees_all(before: Plans, after: Plans) -> bool:
    """Whether no endpoint whose limits differ in ``after`` is left with one that refuses."""
    changed = [plan for _, _, old, plan in _pairs(before, after) if old.described != plan.described]
    return bool(changed) and all(limiter.declaration.shadow for plan in changed for limiter in plan.limiters)


def _pairs(before: Plans, after: Plans) -> Iterator[tuple[str, str, Plan, Plan]]:
    for (endpoint, method), plan in sorted(after.planned.items()):
        yield endpoint, method, before.of_endpoint(endpoint, method), plan
    for method in sorted(before.unmatched_methods | after.unmatched_methods):
        yield UNMATCHED_SCOPE, method, before.of_unmatched(method), after.of_unmatched(method)


def _shares_of_limiter(before: Plan, limiter: PlannedLimiter) -> Iterator[tuple[object, float]]:
    """The shares that are left of a limiter of a plan ``before``, each with what it is of. One that refuses from now on
    is compared with all rules that refuse before, of which it never leaves more. A shadow refuses nobody."""
    same = next((each for each in before.limiters if each.original is limiter.original), None)
    if _refuses_all(limiter) and (same is None or not _refuses_all(same)):
        yield "cost", 0
    if same is None or (same.declaration.shadow and not limiter.declaration.shadow):
        if not limiter.declaration.shadow:
            refusing = [rule for each in before.limiters if not each.declaration.shadow for rule in each.rules]
            yield from ((part, min(share, 1)) for part, share in _shares_of(refusing, limiter.rules, by_name=False))
        return
    yield from _shares_of(same.rules, limiter.rules, by_name=True)
    known = set[str]() if same.special is None else {each.id for each in same.special.entries}
    for override in limiter.special.entries if limiter.special is not None else ():
        if override.id not in known:
            special = rules_of_subject(override, limiter.declaration, limiter.rules)
            for part, share in _shares_of(same.rules, special, by_name=False):
                yield (override.id, part), share


def _refuses_all(limiter: PlannedLimiter) -> bool:
    """Whether each request costs more than a rule ever admits."""
    declared, rates = limiter.declaration, [rule for _, rule in limiter.rules if not rule.holds_slots]
    return not (declared.shadow or callable(declared.cost)) and any(declared.cost > rule.quota.burst for rule in rates)


def _shares_of(
    before: Sequence[NamedRule], after: Sequence[NamedRule], *, by_name: bool
) -> Iterator[tuple[object, float]]:
    """The share that is left of the strictest rules; ``by_name``, also of each rule that has kept its name."""
    for at_once in (False, True):  # rules for requests at once are not comparable with rates
        old = {name: _rate(rule) for name, rule in before if rule.holds_slots == at_once}
        new = {name: _rate(rule) for name, rule in after if rule.holds_slots == at_once}
        if old and new:
            yield at_once, min(new.values()) / min(old.values())
        if by_name:
            yield from ((name, rate / old[name]) for name, rate in new.items() if name in old)


def _rate(rule: Rule) -> float:
    return rule.count if rule.holds_slots else rule.count / rule.time
