"""What is changed while the app runs: the entries in force, and the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..control.document import Document
from ..control.entries import Listing, Override
from ..control.store import KINDS, Kind
from ..engine import ConfigurationError, StorageError
from ..engine.errors import with_remedy
from ..serve.gate import AppGate
from .values import ROWS, Described, From, Paging, paged


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Described):
    """A change while the app runs: a limit that differs, or a subject that is allowed, denied or banned."""

    id: str
    kind: Kind
    text: str
    """For people."""
    author: str
    reason: str
    since: float
    until: float | None
    """``null``: until somebody undoes it."""
    who: str = ""
    status: int | None = None
    """The status of a denied request; ``null``: as MULTILIMIT_DENY_STATUS says."""
    endpoint: str = ""
    rule: str = ""
    limiter: str = ""
    rules: Any = ""
    """Text, or a list of rules."""
    times: float = 1
    off: bool = False
    shadow: bool | None = None
    limit: Any = None
    """An additional limit, as it would be declared."""
    idle: bool = False
    """Whether it matches nothing in the app."""
    left_out: bool = False
    """Whether it does not fit the limits of the app, and so does not apply."""


@dataclass(frozen=True, slots=True)
class ChangesInForce(Described):
    """The number of entries, as far as the process that answers knows."""

    enabled: bool
    shared: bool
    problem: str
    """Why the newest changes cannot be applied."""
    counts: Mapping[Kind, int]


@dataclass(frozen=True, slots=True)
class DeclaredEntry(Described):
    """An entry of a list in the settings, which stays as long as the app runs."""

    kind: str
    text: str
    from_: From


@dataclass(frozen=True, slots=True)
class Entries(Described):
    """The changes in force."""

    kind: str
    """The kind that was asked for; empty: all."""
    q: str
    entries: tuple[Entry, ...]
    """The latest first."""
    counts: Mapping[Kind, int]
    """The number of entries of each kind."""
    declared: tuple[DeclaredEntry, ...]
    problem: str
    """Why the entries are not the newest."""
    at: float
    """When the storage was last asked with success: POSIX time."""
    paging: Paging


@dataclass(frozen=True, slots=True)
class PastChange(Described):
    """One change that was made."""

    at: float
    author: str
    what: str
    entry: str
    id: str
    replaces: str
    """The entry that it replaced, and whose that was; empty for none."""
    reason: str
    in_force: bool


@dataclass(frozen=True, slots=True)
class History(Described):
    """What was changed, the newest first."""

    q: str
    changes: tuple[PastChange, ...]
    all: int
    problem: str
    paging: Paging


def entry_of(entry: Override | Listing, *, idle: bool = False, left_out: bool = False) -> Entry:
    given = entry.model_dump(mode="json", exclude_unset=True)
    known = {name: value for name, value in given.items() if name in Entry.__dataclass_fields__ and value is not None}
    known |= {"kind": entry.kind, "until": entry.until, "author": entry.author, "reason": entry.reason}
    return Entry(**known, text=str(entry), idle=idle, left_out=left_out)


def document_in_force(gate: AppGate) -> Document:
    """The changes in force as far as this process knows, without asking the storage."""
    return gate.applier.follower.document.at(gate.applier.time())


def are_changes_known(gate: AppGate) -> bool:
    """Whether this process knows the changes in force: the storage has answered, or there can be none."""
    follower = gate.applier.follower
    return not gate.applier.enabled or not follower.store.runs or bool(follower.known.read)


def changes_in_force(gate: AppGate) -> ChangesInForce:
    applier = gate.applier
    kinds = Counter(each.kind for each in document_in_force(gate).entries)
    problem = str(applier.control.problem or "")
    return ChangesInForce(applier.enabled, applier.control.shared, problem, {each: kinds[each] for each in KINDS})


def idle_of(gate: AppGate, entries: Iterable[Override | Listing]) -> set[str]:
    """The ids of ``entries`` that match nothing in the app; none if a declaration has a mistake."""
    fitting = Document(tuple(each for each in entries if each.id not in gate.applier.unfit))  # to find out takes longer
    with suppress(ConfigurationError):
        return gate.applier.validator.idle(fitting)
    return set()


def entries(gate: AppGate, *, kind: str = "", q: str = "", page: int = 1, rows: int = ROWS) -> Entries:
    """The changes in force, as the storage has them; if it does not answer, those that this process knows."""
    try:
        document, problem = Document(entries=gate.applier.control.entries()), ""
    except (StorageError, ConfigurationError) as error:
        document, problem = document_in_force(gate), with_remedy(error)
    kind = kind if kind in KINDS else ""
    wanted = [
        each
        for each in document.entries
        if kind in {"", each.kind} and q.lower() in f"{each} {each.author} {each.reason} {each.id}".lower()
    ]
    wanted.sort(key=lambda each: -each.since)
    shown, paging = paged(wanted, page, rows)
    idle, left_out = idle_of(gate, document.entries), gate.applier.unfit
    kinds = Counter(each.kind for each in document.entries)
    listed = () if gate.access is None else gate.access.declared
    return Entries(
        kind=kind,
        q=q,
        entries=tuple(entry_of(each, idle=each.id in idle, left_out=each.id in left_out) for each in shown),
        counts={each: kinds[each] for each in KINDS},
        declared=tuple(DeclaredEntry(each.action, f"{each.action} {each.who}", each.where) for each in listed),
        problem=problem,
        at=gate.applier.time() - gate.applier.follower.age,
        paging=paging,
    )


def history(gate: AppGate, *, q: str = "", page: int = 1, rows: int = 50, most: int = 1000) -> History:
    """What was changed. If the storage does not answer, nothing, and the reason."""
    try:
        changes, problem = gate.applier.control.history(most), ""
    except StorageError as error:
        changes, problem = [], with_remedy(error)
    in_force = {each.id for each in document_in_force(gate).entries}
    wanted = [each for each in changes if q.lower() in " ".join(map(str, each.values())).lower()]
    shown, paging = paged(wanted, page, rows)
    past = tuple(PastChange(**each, in_force=each["what"] == "set" and each["id"] in in_force) for each in shown)
    return History(q, past, len(changes), problem, paging)
