"""Tries a change of limits or lists before it is made, to show what it would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from ..control.document import Difference, Document
from ..control.entries import Listing, Override, is_wide, too_many_listed
from ..declare.addresses import Who, network_from
from ..declare.written import InvalidData, Mistake
from ..engine import ConfigurationError
from ..plan.differences import differences, frees_all, shares
from ..plan.plans import Plans

SMALLEST_SHARE = 0.01
"""The smallest part of a declared rate to which an override may reduce it without ``force``."""
LARGEST_SHARE = 1000
"""The multiple of a declared rate to which an override may not raise it without ``force``."""


class ChangeValidator:
    """Tries changes on the plans of an app, which stay as they are."""

    def __init__(self, declared: Plans, plans_with: Callable[[Sequence[Override]], Plans], *, ipv6_prefix: int) -> None:
        """``declared`` are the plans without overrides, and ``plans_with`` makes those with some."""
        self._declared = declared
        self._plans_with = plans_with
        self._ipv6_prefix = ipv6_prefix

    def differences(self, before: Document, after: Document) -> list[Difference]:
        """Each endpoint whose limits differ in ``after``. Raises :class:`ConfigurationError`."""
        if before.overrides == after.overrides:
            return []
        return differences(self._plans_with(before.overrides), self._plans_with(after.overrides))

    def idle(self, document: Document) -> set[str]:
        """The ids of overrides that apply to nothing in the app."""
        found = set()
        for each in document.overrides:
            alone = self._plans_with([each])
            if each.id not in alone.overrides.met and not differences(self._declared, alone):
                found.add(each.id)
        return found

    def validate(self, document: Document, entry: Override | Listing) -> None:
        """Raise :class:`ConfigurationError` if limits like those of ``document``, with the new ``entry``, could not be
        declared."""
        if isinstance(entry, Override):
            self._plans_with(document.overrides)
            if entry.who is not None:
                self._check_who(entry.who)
        else:
            self._check_type(entry.who)

    def warning(self, document: Document, entry: Override | Listing) -> str:
        """Why ``entry`` needs ``force``: it would do nothing, or refuse or free (nearly) everyone; empty if it does
        not."""
        if isinstance(entry, Listing):
            return too_many_listed(document.listings, entry)
        before = self._plans_with([each for each in document.overrides if each.id != entry.id])
        plans = self._plans_with(document.overrides)
        if entry.id not in plans.overrides.met and not differences(before, plans):
            hint = _hint(entry, before)
            return f"{entry}: no endpoint has that{hint}. A function, or a check inside a view, may have it"
        if min(entry.times or 1, *shares(before, plans)) < SMALLEST_SHARE:
            return f"{entry}: would leave less than a hundredth of a limit"
        return self._too_generous(entry, before, plans) if entry.who is None or is_wide(entry.who) else ""

    def _too_generous(self, entry: Override, before: Plans, plans: Plans) -> str:
        growth = max(entry.times or 1, *shares(self._declared, plans))
        if growth >= LARGEST_SHARE and growth > max(shares(self._declared, before)):
            return f"{entry}: would let pass {LARGEST_SHARE} times as much as a limit declares, or more"
        part = entry.rule or entry.limiter or (entry.endpoint or "*").strip("*")
        if (entry.off or entry.shadow) and not part and frees_all(before, plans):
            return f"{entry}: no limit would be left that refuses anybody"
        return ""

    def _check_who(self, who: Who) -> None:
        network, prefix = who.network, self._ipv6_prefix
        if network is not None and network.version == 6 and network.prefixlen > prefix:
            whole = network_from(f"{network.address}/{prefix}")
            remedy = f"limits count IPv6 addresses of one /{prefix} as one: give {whole}"
            raise InvalidData("", [Mistake("who", str(who), remedy)])
        self._check_type(who)

    def _check_type(self, who: Who) -> None:
        if not who.type_name:
            return
        try:
            self._declared.require_type(who.type_name)
        except ConfigurationError as error:
            raise InvalidData("", [Mistake("who", str(who), str(error))]) from None


def _hint(entry: Override, plans: Plans) -> str:
    """What ``entry`` may have meant instead."""
    known = {endpoint for endpoint, _ in plans.planned}
    if entry.endpoint in known:
        of_endpoint = [plan for (endpoint, _), plan in plans.planned.items() if endpoint == entry.endpoint]
        names = dict.fromkeys(name for plan in of_endpoint for limiter in plan.limiters for name, _ in limiter.rules)
        return (
            f"; the rules of {entry.endpoint} are {', '.join(names)}" if names else f"; {entry.endpoint} has no limits"
        )
    nearest = get_close_matches(entry.endpoint or "", known, n=1)
    return f"; the nearest name is {nearest[0]}" if nearest else "; `flask multilimit limits` lists the limits"
