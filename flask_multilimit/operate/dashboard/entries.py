"""The entries of the control document and its history, as lists show them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...control.document import Document
from ...control.entries import Listing, Override
from ...control.store import KINDS
from ...engine import ConfigurationError, StorageError
from ...engine.errors import with_remedy
from ...serve.applier import ControlApplier, applier_of
from ...serve.gate import AppGate
from .paging import part_of

MOST_HISTORY = 1000


def entry_facts(entry: Override | Listing) -> dict[str, Any]:
    """One entry, as JSON."""
    return {
        **entry.model_dump(mode="json", exclude_unset=True),
        "kind": entry.kind,
        "text": str(entry),
        "author": entry.author,
        "reason": entry.reason,
        "since": entry.since,
        "until": entry.until,
    }


def entries_of(gate: AppGate) -> tuple[Document, str]:
    """The changes in force, read from the storage. If it does not answer, those that this process knows, and the
    reason."""
    applier = applier_of(gate.app)
    try:
        return Document(entries=applier.control.entries()), ""
    except (StorageError, ConfigurationError) as error:
        shown = with_remedy(error) if isinstance(error, StorageError) else str(error)
        return in_force_of(applier), shown


def in_force_of(applier: ControlApplier) -> Document:
    """The changes in force as far as this process knows, without asking the storage."""
    in_force = applier.follower.in_force
    return in_force.document.at(in_force.time())


def all_facts(gate: AppGate) -> list[dict[str, Any]]:
    """All changes in force."""
    return [entry_facts(each) for each in entries_of(gate)[0].entries]


def facts(gate: AppGate, *, kind: str = "", q: str = "", page: int = 1) -> dict[str, Any]:
    """What the page of lists shows, as JSON."""
    document, problem = entries_of(gate)
    kind = kind if kind in KINDS else ""
    kinds = Counter(str(each.kind) for each in document.entries)
    wanted = [
        each
        for each in document.entries
        if kind in {"", each.kind} and q.lower() in f"{each} {each.author} {each.reason} {each.id}".lower()
    ]
    wanted.sort(key=lambda each: -each.since)
    part = part_of(wanted, page)
    idle = _idle(gate, [each for each in part.rows if isinstance(each, Override)])
    return {
        "kind": kind,
        "q": q,
        "problem": problem,
        "counts": {each: kinds[each] for each in KINDS},
        "entries": [{**entry_facts(each), "idle": each.id in idle} for each in part.rows],
        "paging": part.as_json(),
        "declared": declared_lists(gate),
    }


def _idle(gate: AppGate, overrides: list[Override]) -> set[str]:
    """The entries that match nothing in the app."""
    met = gate.plans.overrides.met
    return {each.id for each in overrides if each.id not in met and each in gate.plans.entries}


def declared_lists(gate: AppGate) -> list[dict[str, str]]:
    """The entries of lists in the settings, which stay as long as the app runs."""
    listed = () if gate.access is None else gate.access.declared
    return [{"kind": each.action, "text": f"{each.action} {each.who}", "from": each.where} for each in listed]


def history_facts(gate: AppGate, *, q: str = "", page: int = 1) -> dict[str, Any]:
    """What the page of the history shows, as JSON."""
    applier = applier_of(gate.app)
    try:
        changes, problem = applier.control.history(MOST_HISTORY), ""
    except StorageError as error:
        changes, problem = [], with_remedy(error)
    in_force = {each.id for each in in_force_of(applier).entries}
    wanted = [each for each in changes if q.lower() in " ".join(map(str, each.values())).lower()]
    part = part_of(wanted, page, size=50)
    rows = [{**each, "in_force": each["what"] == "set" and each["id"] in in_force} for each in part.rows]
    return {"q": q, "problem": problem, "changes": rows, "paging": part.as_json(), "all": len(changes)}
