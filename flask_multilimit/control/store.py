"""Stores of the control document: in the storage beside the quotas, or in the memory of this process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from secrets import token_hex
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

from ..engine import StorageError
from ..engine.forks import LateLock
from ..engine.storage import Scripted, Storage

ListingKind = Literal["ban", "deny", "allow"]
LISTING_KINDS: tuple[ListingKind, ...] = get_args(ListingKind)
Kind = Literal["override", ListingKind]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""All kinds, in the order in which they are shown."""
FORMAT = 1
"""The version of the document's format. A process neither applies nor replaces a document with a newer one."""
MOST_ENTRIES = 100_000
"""The most entries of a document."""
MOST_OVERRIDES = 1000
"""The most overrides among them: each one may change every endpoint."""
MOST_CHANGES = 1000
"""The number of changes that the history keeps."""
LONGEST_ANNOUNCED = 400
"""The characters that are read of a worker's announcement."""
LONGEST_NUMBER = 18
"""A number in a stamp has fewer digits."""
NEVER_WRITTEN = ""
"""The stamp while nobody has written a document."""


class Change(TypedDict):
    """One entry of the history."""

    at: float
    """POSIX time."""
    author: str
    reason: str
    what: str
    """``set`` or ``undo``; or what :meth:`.Control.note` was given."""
    entry: str
    """The entry as text for people."""
    id: str
    replaces: str
    """The entry that it replaced, and its author; empty if there was none."""


class StoredDocument(NamedTuple):
    """The answer of a store about the document."""

    stamp: str
    """Identifies this version of the document."""
    text: str
    """The document; empty if the caller knows it already, or there is none."""
    now: float
    """POSIX time, by the clock of the store."""
    run: str = ""
    """Changes with each start of the server, each eviction of a key, and when the server takes the data of another;
    empty if the user has no right to ask, or while there is nothing to lose: no document, neither known nor found."""


class Worker(NamedTuple):
    """A process that follows changes."""

    name: str
    """Its host and process id."""
    version: int
    """The version of the document that is in force there."""
    limits: str
    """A digest of the limits that are declared there."""
    seen: float = 0.0
    """POSIX time of its last announcement, by the clock of the server."""


class Announced(NamedTuple):
    """The workers that have announced themselves lately."""

    version: int
    """The version of the document in the store."""
    workers: list[Worker]
    unreadable: list[str]
    """The beginning of each announcement that has another shape."""


class StoreInMemory:
    """Keeps a document in this process, and replaces it only if it is still the one that the writer has read."""

    shared: Literal[False] = False
    """Whether other processes see the document."""
    runs: bool = True
    """Whether there may be a document: ``False`` only for ``local://`` while its server does not run."""
    in_use: bool = True
    """Whether a document would be kept: ``False`` only for ``local://`` while no process uses its server."""

    def __init__(self) -> None:
        self._stamp, self._text = NEVER_WRITTEN, ""
        self._history: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._lock = LateLock()

    def read(self, known: str) -> StoredDocument:
        """The document, unless its stamp is ``known``."""
        with self._lock():
            return StoredDocument(self._stamp, "" if known == self._stamp else self._text, time.time())

    def write(self, seen: str, text: str, change: Change, *, lost: str = "") -> str | None:
        """Replace the document with the stamp ``seen``, and return the new stamp. If there is another document now,
        write nothing, and return ``None``. ``lost`` is the stamp of a lost document that is put back."""
        del lost  # nothing is lost before the process ends
        with self._lock():
            if self._stamp != seen:
                return None
            self._stamp, self._text = f"{version_of(seen) + 1}-{token_hex(4)}", text
            self._history.appendleft({**change, "at": time.time()})
            return self._stamp

    def history(self, most: int) -> list[Change]:
        """The latest changes, the newest first."""
        with self._lock():
            return list(self._history)[:most]


class StoreInStorage:
    """Does the same in a shared storage: a hash for the document and a stream for the history, in one hash slot. Raises
    :class:`StorageError`."""

    shared: Literal[True] = True

    def __init__(self, storage: Scripted, *, prefix: str) -> None:
        self._storage = storage
        self._scripts = {name: _script(name) for name in ("read", "write", "history", "workers")}
        self.key: str = prefix + DOCUMENT
        self.history_key: str = prefix + HISTORY
        self.workers_key: str = prefix + WORKERS

    @property
    def runs(self) -> bool:
        return bool(getattr(self._storage, "runs", True))

    @property
    def in_use(self) -> bool:
        return bool(getattr(self._storage, "in_use", True))

    def read(self, known: str) -> StoredDocument:
        reply = self._run("read", [self.key], [known])
        try:
            stamp, text, seconds, microseconds, run = reply
            now = int(seconds) + int(microseconds) / 1_000_000
        except (TypeError, ValueError, OverflowError):
            raise StorageError(f"the reply about the control document has the wrong shape: {reply!r:.80}") from None
        return StoredDocument(_text(stamp), _text(text), now, _text(run))

    def write(self, seen: str, text: str, change: Change, *, lost: str = "") -> str | None:
        version = max(version_of(seen), version_of(lost)) + 1
        written = str(max(written_at(seen), written_at(lost))) if lost else ""
        fields = [str(each) for name, value in change.items() if name != "at" for each in (name, value)]
        arguments = [seen, str(version), written, token_hex(4), text, str(MOST_CHANGES), *fields]
        try:
            return _text(self._run("write", [self.key, self.history_key], arguments)) or None
        except StorageError as error:
            if not error.no_reply:
                raise
            doubt = f"the change may have been made, or may still be: look at the history ({error})"
            raise StorageError(doubt, remedy=error.remedy, no_reply=True) from error

    def history(self, most: int) -> list[Change]:
        reply = self._run("history", [self.history_key], [str(most)])
        try:
            return [_change(id_, fields) for id_, fields in reply]
        except (TypeError, ValueError, OverflowError):
            raise StorageError(f"the reply about the history has the wrong shape: {reply!r:.80}") from None

    def announce(self, worker: Worker, before: Worker | None) -> None:
        """Announce what ``worker`` has in force, in place of its announcement ``before``."""
        self._workers("" if before is None else _announcement(before), _announcement(worker))

    def workers(self) -> Announced:
        """The workers that have announced themselves lately."""
        reply = self._workers("", "")
        try:
            now, stamp, *members = reply
            texts = [
                (_text(each), float(at))
                for each, at in zip(members[::2], members[1::2], strict=True)
                if abs(float(now) - float(at)) < ANNOUNCED_SECONDS  # later if the clock has stepped back
            ]
        except (TypeError, ValueError, OverflowError):
            raise StorageError(f"the reply about workers has the wrong shape: {reply!r:.80}") from None
        read = [(text, _worker(text, seen)) for text, seen in texts]
        # A server that has lost the latest changes may have an older announcement of a worker, too: the latest counts.
        workers = {(worker.name, worker.limits): worker for _, worker in read if worker is not None}
        return Announced(
            version_of(_text(stamp)),
            [*workers.values()],
            [text[:LONGEST_ANNOUNCED] for text, found in read if found is None],
        )

    def _workers(self, before: str, announced: str) -> Any:
        keys = [self.workers_key, self.key]
        return self._run("workers", keys, [str(ANNOUNCED_SECONDS), before, announced])

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[str]) -> Any:
        return self._storage.run_script(self._scripts[name], keys, [each.encode() for each in arguments])


Store = StoreInMemory | StoreInStorage

DOCUMENT = "{control}:document"
HISTORY = "{control}:history"
WORKERS = "{control}:workers"
"""The keys of control, without the prefix."""
ANNOUNCE_SECONDS = 5
"""The time between two announcements of a worker."""
ANNOUNCED_SECONDS = 20
"""If a worker has not announced itself for this time, it has ended."""


def is_control(key: str) -> bool:
    return key.endswith((DOCUMENT, HISTORY, WORKERS))


def store_for(storage: Storage, *, prefix: str) -> Store:
    """The store of an app whose quotas are in ``storage``."""
    return StoreInStorage(storage, prefix=prefix) if isinstance(storage, Scripted) else StoreInMemory()


@cache
def _script(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def version_of(stamp: str) -> int:
    """The number of changes that led to the document. A stamp has this number, the time of the latest change, and a
    random part, because after a fail-over that lost a change, another writer may count to the same number."""
    return _number(stamp.partition("-")[0])


def written_at(stamp: str) -> int:
    """The time of the latest change: POSIX milliseconds, by the clock of the server."""
    return _number(stamp.partition("-")[2].partition("-")[0])


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else 0


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        return value
    raise StorageError(f"the control document has the wrong shape: {value!r:.80}")


def _announcement(worker: Worker) -> str:
    return f"{worker.name} {worker.version} {worker.limits}"


def _worker(text: str, seen: float) -> Worker | None:
    """The worker that has announced ``text``; ``None`` if the text has another shape."""
    parts = text[:LONGEST_ANNOUNCED].rsplit(" ", 2)
    if len(parts) < 3 or not (parts[1].isascii() and parts[1].isdigit()):
        return None
    name, version, limits = parts
    return Worker(name, version_of(version), limits, seen)


def _change(id_: Any, fields: Any) -> Change:
    """The change in an entry of the stream, whose id begins with the milliseconds of the server's clock."""
    flat = [_text(each) for each in fields]
    values = dict(zip(flat[::2], flat[1::2], strict=True))
    texts = {name: values.get(name, "") for name in Change.__annotations__}
    return cast("Change", {**texts, "at": int(_text(id_).partition("-")[0]) / 1000})
