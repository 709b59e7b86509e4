"""Keeps a process up to date with the control document, in the background, about twice a second. Workers that start
while the storage is down use a copy on disk."""

from __future__ import annotations

import gc
import logging
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from tempfile import mkstemp
from typing import NamedTuple

from ..engine import ConfigurationError, StorageError
from ..engine.errors import with_remedy
from ..engine.forks import LateLock, notify_child
from ..engine.periods import instant
from ..engine.text import SafeLogger
from ..engine.threads import ENDING_SECONDS, Beat, threads_run
from .document import Document, document_from
from .store import (
    ANNOUNCE_SECONDS,
    MOST_CHANGES,
    NEVER_WRITTEN,
    Change,
    Store,
    StoredDocument,
    Worker,
    version_of,
    written_at,
)

LOOK_SECONDS = (0.4, 0.6)
"""The bounds of the time between two questions: random, so that not all workers ask at once, and below a second."""

LONG_TEXT = 1 << 20
"""A document with this many characters is long."""
LONGEST_NAME = 100
"""The characters that are announced of a host's name."""
LONGEST_COPY = 1 << 27
"""The most bytes of a copy. The largest document that workers can follow is shorter."""
LONGEST_STAMP = 200
PRUNING_PAUSE = 20
"""The pause before ended entries are pruned again, as a multiple of the time that the last pruning took."""
LONGEST_PAUSE = 5.0
"""The longest such pause, in seconds: entries must not end much later than they say."""

_generator = random.SystemRandom()
"""Without a state, which forked workers would share, and an app may have seeded."""

EMPTY = Document()
"""The document while nobody has changed anything."""

REASON_OF_LOSS = "the server restarted without the latest changes, evicted them, or another server took over"


class Known(NamedTuple):
    """What a process knows about the document."""

    stamp: str = NEVER_WRITTEN
    document: Document = EMPTY
    now: float = 0.0
    """The store's clock when it last answered: POSIX time."""
    read: float = 0.0
    """When that was, by ``time.monotonic``; 0 before the first answer."""
    run: str = ""
    """The :attr:`.StoredDocument.run` of the store when it last had this document."""

    def time(self) -> float:
        """The POSIX time now, by the clock of the store."""
        return self.now + time.monotonic() - self.read if self.read else time.time()


class ControlFollower:
    """Follows a store: calls ``take`` with the entries that apply whenever these change, and ``report`` if a document
    cannot be read, or if ``take`` leaves out a part of it. If a document cannot be read, or the store does not answer,
    the previous document stays in force.

    Fork-safe: a child starts without a thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        take: Callable[[Document], None],
        report: Callable[[Exception], None],
        logger: logging.Logger | None,
        copy: DiskCopy | None = None,
    ) -> None:
        self.store = store
        self._limits: Callable[[], str] | None = None
        self._announced: Worker | None = None
        self._announce_at = 0.0
        self._copy = copy
        self.known: Known = Known()
        self.problem: Exception | None = None
        """Why the newest document is not, or not completely, in force."""
        self._answered_at = time.monotonic()
        self._applied = EMPTY
        self.document: Document = EMPTY
        """What is in force, with the entries of it that have ended; after a loss, also what was changed since."""
        self._partial_failure: Exception | None = None
        """Why ``take`` has left out a part of the document."""
        self._unreadable = NEVER_WRITTEN
        """The stamp of the newest document if it cannot be read, so that it is parsed once."""
        self._why_unreadable: Exception | None = None
        self._reported_missing = False
        self._next_end: float | None = None
        self._applied_at = 0.0
        """When entries were last put in or out of force, by the clock of the store."""
        self._next_pruning = 0.0  # by time.monotonic
        self._take = take
        self._report = report
        self._logger = SafeLogger(logger)
        self._beat = Beat(self._look_again, name="multilimit-control", logger=logger)
        self.lock: LateLock = LateLock(again=True)
        """Held while it asks the store, and calls ``take`` and ``report``."""
        self._asks = self._postpones = False
        notify_child(self)

    def start(self, *, limits: Callable[[], str] | None = None) -> None:
        """Apply the current document, or the copy of the last one, and follow the store from now on.

        :param limits: returns a digest of the declared limits. For a worker, which announces itself.
        """
        self._limits = limits or self._limits
        copied = None if self.known.stamp or self._copy is None else self._copy.read()
        if copied is not None and self._apply(copied.document, time.time()):  # by the clock of this machine
            self.known = copied
        self.look()
        if self.store.runs and not (self.known.read or self.problem or self._reported_missing):
            self._warn_of_missing_answer()
        self.keep_following()

    def keep_following(self) -> bool:
        """Start the thread that follows the store, unless it runs. Return whether it runs, or has nothing to follow."""
        if not self._beat.running and (self.store.shared or self.known.document.next_end is not None):
            self._follow()
            return self._beat.running
        return True

    def look(self) -> None:
        """Ask the store once, unless it does not run: then it is empty, and the question would start it."""
        if self.store.runs:
            self.ask()

    def ask(self) -> None:
        """Ask the store once, even if it does not run: a change by a command must outlive the command. From within
        ``take`` or ``report``, such as a receiver of a signal, this does nothing."""
        with self.lock():
            if not self._asks:
                self._asks = True
                try:
                    self._ask()
                finally:
                    self._asks = False

    def _ask(self) -> None:
        try:
            self._read_store()
        except StorageError as error:
            # A server that is away, or loads its data after a restart, is reported by the guard of the storage.
            if not error.no_reply and error.server_code != "LOADING":
                self._fail(error)
            self._prune(self.known.time())

    @property
    def age(self) -> float:
        """Seconds since the store last answered."""
        return time.monotonic() - self._answered_at

    @property
    def version(self) -> int:
        """The number of changes that led to the known document."""
        return version_of(self.known.stamp)

    def close(self) -> None:
        """Follow no more. Wait for a question that is under way, which would open another connection later."""
        self._beat.close(wait=ENDING_SECONDS)

    def _warn_of_missing_answer(self) -> None:
        self._reported_missing = True
        if self.known.stamp:
            changed_at = instant(written_at(self.known.stamp) / 1000).isoformat(timespec="seconds")
            applied = f"the copy on disk, last changed {changed_at} (entries: {len(self._applied.entries)})"
        else:
            applied = "no bans, denials or other changes made at run time. " + (
                "Set MULTILIMIT_CONTROL_COPY to a file that keeps them for such a start"
                if self._copy is None
                else f"No worker has written a usable copy of them to {self._copy.path}"
            )
        self._logger.warning(
            "Rate limits: worker %d: started while the storage is down: until it answers, this worker applies %s",
            os.getpid(),
            applied,
        )

    def _read_store(self) -> None:
        seen = self._unreadable or self.known.stamp
        found, read = self.store.read(seen), time.monotonic()
        self._answered_at = read
        self.known = known = self.known._replace(now=found.now, read=read)
        if found.stamp != seen:
            with self._without_collections(len(found.text)):
                self._use_newest(found, read)
        else:
            self.known = known._replace(run=found.run)
            if self._copy is not None and _server_of(found.run) != _server_of(known.run):
                self._copy.write(known.stamp, found.run, known.document.dump())  # it has restarted with its data
            self._forget_solved()
            self._prune(found.now)

    def _forget_solved(self) -> None:
        """Forget why the store could not be asked, or a document be put back."""
        self.problem = self._why_unreadable or self._partial_failure

    def _prune(self, now: float) -> None:
        """Put entries out of force that have ended by ``now``, and in force again if the clock has stepped back."""
        has_ended = self._next_end is not None and now >= self._next_end
        if (has_ended or now < self._applied_at) and time.monotonic() >= self._next_pruning:
            self._apply(self.document, now)

    def _use_newest(self, found: StoredDocument, read: float) -> None:
        known = self.known
        try:
            document = document_from(found.text) if found.text else EMPTY
        except ConfigurationError as error:
            self._unreadable, self._why_unreadable = found.stamp, error
            self.known = known._replace(run=found.run)
            self._fail(error)
            return
        self._unreadable, self._why_unreadable = NEVER_WRITTEN, None
        ours = known.document.at(found.now)
        # Also if nothing is in force any more: somebody who missed that may have a copy of what was undone.
        if known.stamp and _has_lost(known, found):
            self._restore(ours, document, found)
            return
        if ours.entries and not found.stamp:
            self._logger.warning(
                "Rate limits: worker %d: the control document was deleted: no change is in force any more (there "
                "were: %d)",
                os.getpid(),
                len(ours.entries),
            )
        self._forget_solved()
        if not self._apply(document, found.now):
            return
        self.known = Known(found.stamp, document, found.now, read, found.run)
        if self._copy is not None:
            self._copy.write(found.stamp, found.run, found.text)

    def _restore(self, ours: Document, document: Document, found: StoredDocument) -> None:
        """Put ``ours`` back on a server that now has ``document``, with what was changed there since."""
        if written_at(found.stamp) <= written_at(self.known.stamp):
            self._put_back(ours, found)
            return
        with suppress(ConfigurationError):  # both together may be too many
            document = self._with_changes_since(ours, document)
        try:
            self._put_back(document, found)
        except StorageError:  # who may not write it back still applies what was changed since
            if document.at(found.now) != self._applied:
                self._apply(document, found.now)
            raise

    def _with_changes_since(self, ours: Document, found: Document) -> Document:
        """``ours`` with the changes that were made since on a server that had lost later ones, and now has ``found``.
        What else it has was undone or replaced before ``ours``, or was put back by a worker that had missed that."""
        ours_at = written_at(self.known.stamp) / 1000  # what was undone before may have been imported again
        try:
            since = [each for each in self.store.history(MOST_CHANGES) if each["at"] > ours_at]
        except StorageError as error:
            if error.no_reply:
                raise
            return ours.updated_by(found)  # it may not read the history
        ids = {each["id"] for each in since}
        # One that was lost may have been made again, and then undone.
        changed = {*ids, *(text for each in since for text in (each["entry"], each["replaces"]))}
        kept = Document(tuple(each for each in ours.entries if changed.isdisjoint((each.id, str(each), each.signed))))
        if len(since) == MOST_CHANGES or any(each["what"] == "import" for each in since):
            return kept.updated_by(found)  # the history does not have the ids of all changes
        later = tuple(each for each in found.entries if each.id in ids or each.since > ours_at)
        return kept.updated_by(Document(later))

    def _put_back(self, document: Document, found: StoredDocument) -> None:
        """Write ``document``, which the server has lost, unless another process has done so. The next question reads
        what is there then."""
        ours = {each.id for each in self.known.document.entries}
        count = sum(each.id in ours for each in document.entries)  # the others were made since
        what = f"changes that the server had lost: {count}" if count else "the end of all earlier changes"
        change = Change(at=0, author="", reason=REASON_OF_LOSS, what="put back", entry=what, id="", replaces="")
        if self.store.write(found.stamp, document.dump(), change, lost=self.known.stamp) is not None:
            self._logger.warning("Rate limits: worker %d put back %s: %s", os.getpid(), what, REASON_OF_LOSS)

    def _apply(self, document: Document, now: float) -> bool:
        """Put the entries of ``document`` in force that have not ended by ``now``. Return ``False`` if code of the app
        raised: the next question tries again."""
        started, current = time.monotonic(), document.at(now)
        if current is not self._applied:
            try:
                self._take(current)
            except Exception as error:
                self._partial_failure = error
                self._fail(error, "not all of the newest control document is in force")
                if not isinstance(error, ConfigurationError):
                    return False
            else:
                if self.problem is self._partial_failure:
                    self.problem = None
                self._partial_failure = None
            self._applied = current
        self.document, self._next_end, self._applied_at = document, current.next_end, now
        # With thousands of entries, one may end between any two questions.
        pause = min(PRUNING_PAUSE * (time.monotonic() - started), LONGEST_PAUSE)
        self._next_pruning = time.monotonic() + pause
        return True

    def _fail(
        self, error: Exception, what: str = "cannot apply the newest control document; what is in force stays"
    ) -> None:
        before, self.problem = self.problem, error
        if str(error) == str(before):
            return
        own = None if isinstance(error, (StorageError, ConfigurationError)) else error
        self._logger.error("Rate limits: worker %d: %s: %s", os.getpid(), what, with_remedy(error), error=own)
        self._report(error)

    def _follow(self) -> None:
        if not threads_run():
            self._logger.warning(
                "Rate limits: uWSGI runs no threads, so changes are noticed late, and only while requests are served: "
                "set enable-threads = true"
            )
        self._beat.wake(time.monotonic() + _generator.uniform(*LOOK_SECONDS))

    def _look_again(self) -> float:
        """The task of the beat."""
        self.ask()
        with suppress(StorageError, ConfigurationError):  # the guard reports one, and requests the other
            self._announce()
        return _generator.uniform(*LOOK_SECONDS)

    def _announce(self) -> None:
        """Announce which version is in force here, every few seconds, and when it changes."""
        last, now = self._announced, time.monotonic()
        if self._limits is None or not self.store.shared or not self.known.read:
            return
        if last is None or now >= self._announce_at or last.version != self.version:
            name = f"{gethostname()[:LONGEST_NAME]}:{os.getpid()}"
            worker = Worker(name, self.version, self._limits() if last is None else last.limits)
            self.store.announce(worker, last)
            self._announced, self._announce_at = worker, now + ANNOUNCE_SECONDS

    @contextmanager
    def _without_collections(self, size: int) -> Iterator[None]:
        """Postpone garbage collection while a long text is parsed: it would double the time, and find no garbage."""
        self._postpones = size >= LONG_TEXT and gc.isenabled()
        if self._postpones:
            gc.disable()
        try:
            yield
        finally:
            self._collect_again()

    def _collect_again(self) -> None:
        if self._postpones:
            self._postpones = False
            gc.enable()

    def _after_fork_in_child(self) -> None:
        self._announced, self._asks = None, False
        self._collect_again()


def _has_lost(known: Known, found: StoredDocument) -> bool:
    """Whether a server that has ``found`` has lost a change that is ``known``. A document with a higher version is
    newer: a server that has lost its data counts from 1 again. If the server is on the same run, and has evicted
    nothing and become no replica since the last answer, nothing was lost: somebody has deleted the document."""
    if found.stamp == known.stamp or version_of(found.stamp) > version_of(known.stamp):
        return False
    return not known.run or known.run != found.run


def _server_of(run: str) -> str:
    """``run`` without the evictions: a full server may evict a key at any time, and a copy is not written each time."""
    return run.partition("evicted_keys")[0]


# The copy on disk


class DiskCopy:
    """A file with the newest document that the workers of one machine have read. Only its owner may read or write it. A
    copy that cannot be used is logged, and otherwise ignored."""

    def __init__(self, path: Path, *, key: str, logger: logging.Logger | None) -> None:
        self.path = path
        self._key = key
        self._logger = SafeLogger(logger)
        self._cannot_write = False

    def read(self) -> Known | None:
        """The document in the copy; ``None`` if there is no copy, or if it must not be trusted."""
        try:
            return _parse_copy(_read_file(self.path), self._key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # a ConfigurationError is one
            self._logger.error(
                "Rate limits: worker %d: cannot use the copy of the changes in %s: %s", os.getpid(), self.path, error
            )
            return None

    def write(self, stamp: str, run: str, text: str) -> None:
        """Replace the copy in one step."""
        content = f"{self._key} {stamp} {run}\n{text}".encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = mkstemp(prefix=f"{self.path.name}.", dir=self.path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(self.path)
            finally:
                Path(temporary).unlink(missing_ok=True)
        except (OSError, ValueError) as error:  # no file can have this path
            self._warn_once(error)
        else:
            self._cannot_write = False

    def _warn_once(self, error: Exception) -> None:
        if not self._cannot_write:
            self._cannot_write = True
            self._logger.warning(
                "Rate limits: worker %d cannot write the copy of the changes, so workers that start while the storage "
                "is down will not know them: %s",
                os.getpid(),
                error,
            )


def _read_file(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if reason := _why_unusable(os.fstat(file.fileno())):
            raise ValueError(reason)
        return file.read(LONGEST_COPY)


def _why_unusable(file: os.stat_result) -> str:
    """Why others could have written ``file``, or why it is no copy; empty if neither."""
    if not stat.S_ISREG(file.st_mode):
        return "it is not a regular file"
    if hasattr(os, "geteuid") and file.st_uid != os.geteuid():
        return f"it belongs to user {file.st_uid}"
    if os.name == "posix" and file.st_mode & 0o022:
        return f"its mode is {file.st_mode & 0o777:o}, so other users may write it"
    return f"it is longer than {LONGEST_COPY} bytes" if file.st_size > LONGEST_COPY else ""


def _parse_copy(content: bytes, key: str) -> Known:
    head, _, text = content.decode().partition("\n")
    own_key, _, versions = head.partition(" ")
    if own_key != key:
        raise ConfigurationError(f"it is of {own_key[:LONGEST_STAMP]!r}, not of {key!r}: give each app its own file")
    stamp, _, run = versions.partition(" ")
    if len(versions) > LONGEST_STAMP:
        raise ConfigurationError("its first line is too long")
    return Known(stamp, document_from(text) if text else EMPTY, run=run)
