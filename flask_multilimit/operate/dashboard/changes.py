"""Changes from a form: reads them, shows what they would do, and makes them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from flask import request
from werkzeug.datastructures import MultiDict

from ...control.control import ControlConflict, Preview
from ...control.entries import Listing
from ...control.store import KINDS
from ...declare.addresses import number_of
from ...declare.subjects import LimitType
from ...declare.written import InvalidData, Mistake
from ...engine import ConfigurationError, StorageError
from ...engine.errors import message_of, with_remedy
from ...engine.text import Phrase, joined, unquoted
from ...insight.impact import Impact, impact
from ...insight.limits import limiters_of
from ...insight.values import Described
from ...plan.plans import Plans
from ...serve.gate import AppGate
from .visit import visit

WHAT = ("rules", "times", "shadow", "unshadow", "off")
FIELDS = (
    "kind",
    "endpoint",
    "part",
    "what",
    "rules",
    "times",
    "more",
    "type",
    "as_shadow",
    "who",
    "status",
    "for",
    "lasting",
    "reason",
)
"""The fields of the form, in its order."""
MOST_DIFFERENCES = 50
ADDED = "more"
"""Stands for an additional limit among the parts."""
OWN = "who"
"""Stands for the rules of one client among the parts."""
ALL = "all"
"""Stands for all limits there among the parts."""
SELF = "This is your own address: you would be refused here too."
OWN_NAME = "This is you: you would be refused here too."
NO_REASON = "say why: others will read it"


@dataclass(frozen=True)
class Proposal:
    """The change that a form proposes."""

    given: Mapping[str, str]
    mistakes: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field; ``""`` has what is wrong with the whole."""
    preview: Preview | None = None
    warning: str = ""
    """Why it must be confirmed."""
    status: int = 200


def read(arguments: MultiDict[str, str]) -> dict[str, str]:
    """The fields of a form that are filled in. Who fills in a field beside a choice means this choice."""
    every = {name: unquoted(arguments.get(name, "").strip()) for name in FIELDS}
    given = {"kind": KINDS[0]} | {name: value for name, value in every.items() if value}
    filled = [name for name in ("rules", "times") if name in given]
    return given | {"what": filled[0]} if given.get("what") in {"rules", "times"} and len(filled) == 1 else given


def propose(gate: AppGate, given: Mapping[str, str]) -> Proposal:
    """What the change would do, or what is wrong with it. Reads the changes in force, and changes nothing."""
    opened = Proposal(given)
    if given["kind"] not in KINDS:
        unknown = _unknown("kind", given["kind"], f"{', '.join(KINDS[:-1])} or {KINDS[-1]}")
        return _failed(Proposal({**given, "kind": KINDS[0]}), unknown)
    if "for" not in given and "lasting" not in given:  # the form was not filled in
        return opened
    if not given.get("reason"):
        return Proposal(given, {"reason": NO_REASON}, status=400)
    try:
        preview = gate.applier.control.preview(
            as_data(gate, given),
            for_=None if given.get("lasting") else given.get("for", ""),
            lasting=bool(given.get("lasting")),
            reason=given["reason"],
            author=visit().author,
        )
    except (ConfigurationError, StorageError) as error:
        return _failed(opened, error)
    return Proposal(given, {}, preview, preview.warning or _warning_of_self(gate, preview))


def make(gate: AppGate, given: Mapping[str, str], *, force: bool, seen: str | None) -> Proposal:
    """Make the change if it does what was ``seen``. The returned proposal has mistakes unless the entry is in force."""
    found = propose(gate, given)
    if found.preview is None:
        return found if found.mistakes else Proposal(given, {"for": Phrase("say how long it lasts")}, status=400)
    if found.warning and not force:
        return Proposal(given, {"force": Phrase("confirm that you are sure")}, found.preview, found.warning, status=409)
    try:
        gate.applier.control.put(found.preview, seen=seen, force=force)
    except (ConfigurationError, StorageError) as error:
        return _failed(found, error)
    return found


def _failed(found: Proposal, error: ConfigurationError | StorageError) -> Proposal:
    if isinstance(error, StorageError):
        return replace(found, mistakes={"": with_remedy(error)}, status=503)
    if isinstance(error, ControlConflict):
        return replace(found, mistakes={"": message_of(error)}, status=409)
    return Proposal(found.given, mistakes_of(error), status=400)


def as_data(gate: AppGate, given: Mapping[str, str]) -> dict[str, Any]:
    """The argument of ``Control.preview``. Raises :class:`ConfigurationError`."""
    if given["kind"] != "override":
        status = given.get("status", "")
        return {"kind": given["kind"], "who": given.get("who", ""), "status": _status(status)}
    found: dict[str, Any] = {"kind": "override", "endpoint": given.get("endpoint")}
    part, what = given.get("part", ALL), given.get("what", WHAT[0])
    if given.get("who") or part == OWN:
        found["who"] = given.get("who", "")
    if part == ADDED:
        type_ = given.get("type", LimitType.DEFAULT.value)
        if not _shows_no_secrets(type_):
            raise _unknown("type", type_, "one of the choices")
        limit: dict[str, Any] = {"type": type_, "rules": given.get("more", "")}
        return {**found, "limit": {**limit, "shadow": True} if given.get("as_shadow") else limit}
    changed, _, name = part.partition(":")
    if changed == "rule" and what in {"shadow", "unshadow"}:  # a rule is in shadow with its limiter
        changed, name = "limiter", _limiter_of(gate, given.get("endpoint", ""), name)
    if changed in {"rule", "limiter"} and name:
        found[changed] = name
    elif part not in {ALL, OWN}:
        raise _unknown("part", part, f"{ALL}, {ADDED}, {OWN}, rule:NAME or limiter:NAME")
    return {**found, **_change(what, given)}


def types_of(plans: Plans) -> list[str]:
    """The types of a limit that the form can add."""
    return sorted({LimitType.DEFAULT.value, *filter(_shows_no_secrets, plans.types)})


def _shows_no_secrets(type_: str) -> bool:
    """Whether the subjects of a type are only addresses and users. Pages show subjects, and those of
    ``header:Authorization`` would be credentials."""
    return {*type_.split("+")} <= {each.value for each in LimitType}


def _change(what: str, given: Mapping[str, str]) -> dict[str, Any]:
    if what == "rules":
        return {"rules": given.get("rules", "")}
    if what == "times":
        return {"times": _number("times", given.get("times", ""))}
    if what == "off":
        return {"off": True}
    if what in {"shadow", "unshadow"}:
        return {"shadow": what == "shadow"}
    raise _unknown("what", what, " or ".join([", ".join(WHAT[:-1]), WHAT[-1]]))


def _unknown(name: str, value: str, choices: str) -> InvalidData:
    """The error about a choice that the form does not have: links may be old, or written by hand."""
    return InvalidData("", [Mistake(name, value[:80], Phrase("give {choices}", choices=choices))])


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidData("", [Mistake(name, text[:40], Phrase("give a number such as 2 or 0.5"))]) from None


def _status(text: str) -> int | None:
    if text not in {"", "403", "429"}:
        raise _unknown("status", text, "403 or 429")
    return int(text) if text else None


def _limiter_of(gate: AppGate, endpoint: str, rule: str) -> str:
    """The limiter that a rule belongs to."""
    for each in limiters_of(gate, endpoint):
        if any(name == rule for name, _ in each.planned.rules):
            return each.planned.declaration.shown_name
    unknown = Phrase('no rule at "{endpoint}" has this name', endpoint=endpoint)
    raise InvalidData("", [Mistake("part", rule[:80], unknown)])


def mistakes_of(error: ConfigurationError) -> dict[str, str]:
    """What is wrong, by the field of the form."""
    if not isinstance(error, InvalidData):
        return {"": message_of(error)}
    found: dict[str, str] = {}
    for each in error.mistakes:
        place = _FIELD_OF.get(each.place.partition("[")[0].partition(".")[0], "")
        what = "" if place else each.place
        if each.value:
            what = f"{each.place}={each.value}"
        text = Phrase("{what}: {remedy}", what=what, remedy=each.remedy) if what else each.remedy
        found[place] = joined([found[place], text]) if place in found else text
    return found


_FIELD_OF = {"rule": "part", "limiter": "part", "limit": "more", "until": "for"} | {
    name: name for name in ("endpoint", "rules", "times", "who", "status", "for", "reason", "part")
}


def _warning_of_self(gate: AppGate, preview: Preview) -> str:
    """A warning if people deny themselves, because they could not undo that here."""
    entry, address = preview.entry, number_of(request.remote_addr or "")
    if not isinstance(entry, Listing) or entry.kind == "allow":
        return ""
    network, type_name, value = entry.who
    if network is not None:
        return SELF if address is not None and network.has(address) else ""
    with suppress(Exception):  # a callable of the app, which may fail here: it means nobody
        own = gate.plans.subjects_called(type_name, gate.subjects.resolve)
        return OWN_NAME if (type_name, value) in own else ""
    return ""


@dataclass(frozen=True, slots=True)
class Change(Described):
    """What a change would do. The form on the page makes it."""

    given: Mapping[str, str]
    mistakes: Mapping[str, str]
    """By field; ``""`` has what is wrong with the whole."""
    impact: Impact | None


def change_of(gate: AppGate, found: Proposal) -> Change:
    given = {name: found.given.get(name, "") for name in FIELDS}
    found_impact = None if found.preview is None else impact(gate, found.preview, warning=found.warning)
    return Change(given, found.mistakes, found_impact)


def parts_at(gate: AppGate, endpoint: str) -> list[tuple[str, str]]:
    """What can be changed at an endpoint: the values and the texts of a choice."""
    rules: dict[str, str] = {}
    owners: dict[str, str] = {}
    for each in limiters_of(gate, endpoint):
        name = each.planned.original.shown_name
        owners.setdefault(f"limiter:{name}", name)
        for rule_name, rule in each.planned.rules:
            rules.setdefault(f"rule:{rule_name}", f"{rule_name}: {rule}")
    return [*rules.items(), *owners.items()]
