"""What a change would do, and what the last hour says about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..control.control import Difference, Preview
from ..control.entries import Listing, Override
from ..engine.text import Phrase
from ..observe.events import NEAR_LIMIT
from ..plan.overrides import rules_of_subject
from ..serve.gate import AppGate
from .changes import Entry, document_in_force, entry_of
from .clients import client_from, listed_of
from .health import forgets_changes, known_worker_count
from .limits import places_of
from .traffic import TrafficMemory, looking, rule_traffic
from .values import Described

_RULE = re.compile(r"(?P<count>\d+) (?:per (?P<time>.+?)(?=, lease| \(shadow\)|$)|at once)")
"""Of a rule in text: its count; and its time with the algorithm, if that is not the default."""
_SHADOW = " (shadow)"
FORGETFUL = (
    "The server keeps nothing on disk. After it restarts, the workers put changes back, if one of them still runs."
)
NO_SHARE = (
    "While the storage is down, each worker admits its share of the count. That is 0 if there are more workers than "
    "units: all are refused then."
)
PART_OF_CLIENT = (
    "This is a part of an IPv6 network that limits count as one client. The client may use any other address of it."
)
REPLACES_ALL = (
    "These rules replace all rules for this client at these endpoints, also those by the hour or the month. To raise "
    "its counts and keep the rest, multiply them."
)
OWN_COUNT = "Another window, calendar or algorithm counts apart: units used by now do not count until the change ends."
MULTIPLIES_ALL = "This multiplies all counts of this client at these endpoints, also those by the hour or the month."
NOT_NAMED_YET = "Rules there depend on the request. Nothing changes unless one of them is called {name}."
ALLOWED = "The client stays allowed: {where} comes first."
MOST_SENTENCES = 50
"""The most sentences about one change."""


@dataclass(frozen=True, slots=True)
class Evidence(Described):
    """What the last hour says about one rule that changes."""

    endpoint: str
    rule: str
    text: str
    template: str
    """The text in English, with places for the numbers; the pages translate it."""
    numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Impact(Described):
    """What a change would do."""

    entry: Entry
    endpoints: tuple[Difference, ...]
    """The endpoints whose limits would differ, each with the rules that do."""
    replaces: Entry | None
    """The entry about the same limit or client that it replaces. Undoing the change does not restore it."""
    warning: str
    """Why it must be confirmed; empty if it need not."""
    notes: tuple[str, ...]
    """What else to know about it; the pages translate it."""
    evidence: tuple[Evidence, ...]
    seen: str
    """Identifies what the preview showed; who confirms it sends it back."""


def impact(gate: AppGate, preview: Preview, *, warning: str = "") -> Impact:
    """What the change of a ``preview`` would do; ``warning`` adds to its own."""
    with looking(gate) as memory:
        known = memory if preview.entry.who is None else None  # traffic is that of all clients
        found = () if known is None else (one for each in preview.endpoints for one in _of_endpoint(known, each))
        evidence = {(each.endpoint, each.rule): each for each in found}
    return Impact(
        entry=entry_of(preview.entry),
        endpoints=tuple(map(_differing, preview.endpoints)),
        replaces=None if preview.replaces is None else entry_of(preview.replaces),
        warning=preview.warning or warning,
        notes=tuple(_notes(gate, preview)),
        evidence=tuple(evidence.values())[:MOST_SENTENCES],
        seen=preview.seen,
    )


def _notes(gate: AppGate, preview: Preview) -> Iterable[str]:
    entry = preview.entry
    if entry in document_in_force(gate).entries:  # to undo it needs no advice
        return
    if isinstance(entry, Override) and entry.who is not None:
        yield REPLACES_ALL if entry.rules else MULTIPLIES_ALL
    network = entry.who.network if isinstance(entry, Listing) and entry.kind != "allow" else None
    if network is not None and network.version == 6 and network.prefixlen > gate.settings.ipv6_prefix:
        yield PART_OF_CLIENT
    if entry.kind != "allow" and entry.who is not None:
        others = [each for each in document_in_force(gate).listings if each != preview.replaces]
        listed = listed_of(gate, client_from(gate, str(entry.who)), gate.applier.access(others))
        if listed is not None and listed.action == "allow":
            yield Phrase(ALLOWED, where=listed.where)
    if preview.entry.until is None and forgets_changes(gate):
        yield FORGETFUL
    if any(map(_counts_apart, preview.endpoints)) or _counts_apart_for_client(gate, preview):
        yield OWN_COUNT
    changed = [new for each in preview.endpoints for _, _, new in _changed_rules(each)]
    if isinstance(entry, Override) and entry.rule and any(text.startswith("rules by request") for text in changed):
        yield Phrase(NOT_NAMED_YET, name=entry.rule)
    counts = [int(rule["count"]) for text in changed if (rule := _RULE.match(text)) and not text.endswith(_SHADOW)]
    if counts and gate.settings.on_storage_error == "local" and min(counts) < (known_worker_count(gate) or 1):
        yield NO_SHARE


def _counts_apart(difference: Difference) -> bool:
    """Whether a rule has another window, calendar or algorithm than the one in its place, whose name may differ."""
    rules = list(_changed_rules(difference))
    if any(_times(old) and _times(new) and _times(old) != _times(new) for _, old, new in rules):
        return True
    before = _times(*(old for _, old, new in rules if not new))
    after = _times(*(new for _, old, new in rules if not old))
    return bool(before and after - before)


def _counts_apart_for_client(gate: AppGate, preview: Preview) -> bool:
    """Whether rules for one client are so, in place of those that it has by an earlier change, or as all clients."""
    entry = preview.entry
    if not isinstance(entry, Override) or entry.who is None:
        return False
    changed = {(each.endpoint, text) for each in preview.endpoints for text in each.after}
    for endpoint, planned in [(place.name, listed.planned) for place in places_of(gate) for listed in place.limiters]:
        declared, rules = planned.declaration, planned.rules
        if (endpoint, f"{declared.shown_name} of {entry}") in changed:
            special = () if planned.special is None else planned.special.entries
            earlier = [each for each in special if each.who == entry.who]
            old = rules_of_subject(earlier[-1], declared, rules) if earlier else rules
            new = rules_of_subject(entry, declared, rules)
            before, after = ({rule.key_part for _, rule in each} for each in (old, new))
            if before and after - before:
                return True
    return False


def _times(*rules: str) -> set[str | None]:
    return {rule["time"] for text in rules if (rule := _RULE.match(text))}


def _differing(each: Difference) -> Difference:
    before = tuple(text for text in each.before if text not in each.after)
    after = tuple(text for text in each.after if text not in each.before)
    return replace(each, before=before, after=after)


def _of_endpoint(memory: TrafficMemory, difference: Difference) -> Iterable[Evidence]:
    for name, old, new in _changed_rules(difference):
        traffic = rule_traffic(memory, difference.endpoint, name)
        numbers = {"refuses": traffic.refuses, "near": traffic.near, "shadows": traffic.shadows}
        text = _sentence(old, new, numbers)
        yield Evidence(difference.endpoint, name, text.format(**numbers), text, numbers)


def _changed_rules(difference: Difference) -> Iterable[tuple[str, str, str]]:
    """The name of each rule that differs, and its texts before and after; empty for none."""
    before, after = (dict(text.partition(": ")[::2] for text in each) for each in (difference.before, difference.after))
    pairs = [(name, before.get(name, ""), after.get(name, "")) for name in {**before, **after}]
    return [(name, old, new) for name, old, new in pairs if old != new]


WOULD_HAVE_PASSED = "Checks that it refused: {refuses:,}. They would have passed, unless another rule refuses them."
SHADOW_REFUSES = "Checks that it would have refused, as a shadow: {shadows:,}."
MORE_PASS = "Checks that it refused: {refuses:,}. At most that many more would have passed."
FEW_REFUSED = "Checks that it refused: {refuses:,}. At most {near:,} more would have been refused."
NOBODY_NEAR = "Nobody came near it, and it refused nothing. How near clients came to the new one is not known."
NOT_KNOWN = (
    "Checks that it refused: {refuses:,}. Checks that passed with more than 80 percent of it used: {near:,}. How many "
    "more the new one would have refused is not known: make it a shadow first, and look here again."
)
NEW = "It did not exist, so nothing is known about it: make it a shadow first, and look here again."
BY_REQUEST = "Its rules depend on the request, so nothing is known about it."


def _sentence(old: str, new: str, numbers: Mapping[str, int]) -> str:
    if not old:
        return NEW
    if not new or (new.endswith(_SHADOW) and not old.endswith(_SHADOW)):
        return SHADOW_REFUSES if old.endswith(_SHADOW) else WOULD_HAVE_PASSED
    if old == f"{new}{_SHADOW}":
        return SHADOW_REFUSES
    before, after = _RULE.match(old), _RULE.match(new)
    if before is None or after is None:
        return BY_REQUEST
    share = int(after["count"]) / int(before["count"])
    if before["time"] == after["time"] and share >= NEAR_LIMIT:
        return MORE_PASS if share >= 1 else FEW_REFUSED
    return NOT_KNOWN if numbers["near"] or numbers["refuses"] else NOBODY_NEAR
