"""Keeps a process up to date with the control document: in the background, about twice a second. A copy on disk is for
workers that start while the storage is down."""

from __future__ import annotations

import gc
import logging
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from typing import NamedTuple

from ..engine import ConfigurationError, StorageError
from ..engine.errors import with_remedy
from ..engine.forks import LateLock, notify_child
from ..engine.text import SafeLogger
from ..engine.threads import Beat, threads_run
from .document import Document, document_from
from .store import (
    ANNOUNCE_SECONDS,
    NEVER_WRITTEN,
    Change,
    Found,
    Store,
    StoreInStorage,
    Worker,
    version_of,
    written_at,
)

SECONDS = (0.4, 0.6)
"""The time between two looks, chosen at random, so that not all workers ask at once. With the answer it is less than a
second."""

LONG = 1 << 20
"""A document of so many characters is long."""
LONGEST_NAME = 100
"""Characters of a host's name."""
LONGEST_COPY = 1 << 27
"""Bytes of a copy. The largest document that workers can follow is shorter."""
LONGEST_STAMP = 100
PAUSE = 20
"""Pause before ended entries are pruned again, as a multiple of the last pruning's duration."""

_dice = random.Random()
"""A generator of our own: an app may have seeded the shared one."""

NOTHING = Document()
"""The document while nobody has changed anything."""


LOST = "the server restarted without the latest changes, evicted them, or another server took over"


class InForce(NamedTuple):
    """What a process knows about the document."""

    stamp: str = NEVER_WRITTEN
    document: Document = NOTHING
    now: float = 0.0
    """Store's clock when it last answered."""
    read: float = 0.0
    """This process's clock then; 0 before."""
    run: str = ""
    """The run of the server that has had it lately."""

    def time(self) -> float:
        """The clock of the store now: POSIX time."""
        return self.now + time.monotonic() - self.read if self.read else time.time()


class ControlFollower:
    """Follows a store: calls ``take`` with the entries that apply, whenever these change, and ``report`` if a document
    cannot be read, or ``take`` leaves out something in it. A document that cannot be read changes nothing: the earlier
    one stays in force, as it does while the store does not answer.

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
        self.in_force: InForce = InForce()
        self.problem: Exception | None = None
        """Why the newest document is not in force."""
        self._seen = time.monotonic()
        self._taken = NOTHING
        self._left_out: Exception | None = None
        """Why something in it does not apply."""
        self._reported_missing = False
        self._next_end: float | None = None
        self._held_at = 0.0
        """When entries were last put in or out of force, by the clock of the store."""
        self._not_before = 0.0
        self._take = take
        self._report = report
        self._logger = SafeLogger(logger)
        self._beat = Beat(self._look_again, name="multilimit-control", logger=logger)
        self._lock = LateLock()
        notify_child(self)

    def start(self, *, limits: Callable[[], str] | None = None) -> None:
        """Apply the current document, or the copy of the last one, and follow it from now on.

        :param limits: for a worker, which announces itself: returns a digest of its declared limits.
        """
        self._limits = limits or self._limits
        if not self.in_force.stamp and self._copy is not None:
            self._hold_copy(self._copy)
        self.look()
        if self._answer_missing and not self._reported_missing:
            self._tell_missing()
        if not self._beat.running and (self.store.shared or self.in_force.document.next_end is not None):
            self._follow()

    def look(self) -> None:
        """Ask the store once, unless no process uses it: then it is empty, and asking would start it."""
        if self.store.in_use:
            self.ask()

    def ask(self) -> None:
        """Ask the store once, even if no process uses it yet: a change by a command must outlive the command."""
        with self._lock:
            try:
                self._look()
            except StorageError as error:
                if not error.no_reply:  # otherwise the guard of the storage reports it
                    self._fail(error)
                self._end_entries(self.in_force.time())

    @property
    def age(self) -> float:
        """Seconds since the store last answered."""
        return time.monotonic() - self._seen

    @property
    def version(self) -> int:
        """How many changes led to the known document; 0 if there were none."""
        return version_of(self.in_force.stamp)

    def close(self) -> None:
        self._beat.close()

    def _hold_copy(self, copy: DiskCopy) -> None:
        """Until the store answers, by the clock of this machine."""
        found = copy.read()
        if found is not None:
            self.in_force = found
            self._hold(found.document, time.time())

    @property
    def _answer_missing(self) -> bool:
        return self.store.in_use and not self.in_force.read and self.problem is None

    def _tell_missing(self) -> None:
        self._reported_missing = True
        if self.in_force.stamp:
            made = datetime.fromtimestamp(written_at(self.in_force.stamp) / 1000, timezone.utc)
            self._logger.warning(
                "Rate limits: started while the storage is down: until it answers, this worker applies the copy on "
                "disk, last changed %s (entries: %d)",
                made.isoformat(timespec="seconds"),
                len(self._taken.entries),
            )
        else:
            self._logger.warning(
                "Rate limits: started while the storage is down: until it answers, this worker applies no bans, "
                "denials or other changes made at run time. Set MULTILIMIT_CONTROL_COPY to a file that keeps them for "
                "such a start"
            )

    def _look(self) -> None:
        found, read = self.store.read(self.in_force.stamp), time.monotonic()
        self._seen = read
        self.in_force = known = self.in_force._replace(now=found.now, read=read)
        if found.stamp != known.stamp:
            with _no_collections(len(found.text or "")):
                self._take_newest(found, read)
        else:
            self.in_force = known._replace(run=found.run)
            self._end_entries(found.now)

    def _end_entries(self, now: float) -> None:
        """Put out of force what has ended ``now``, and in force again what has not, if the clock has stepped back."""
        has_ended = self._next_end is not None and now >= self._next_end
        if (has_ended or now < self._held_at) and time.monotonic() >= self._not_before:
            self._hold(self.in_force.document, now)

    def _take_newest(self, found: Found, read: float) -> None:
        known = self.in_force
        try:
            document = document_from(found.text) if found.text else NOTHING
        except ConfigurationError as error:
            # Remembered, so that a mistake in it is reported once.
            self.in_force = InForce(found.stamp, known.document, found.now, read, found.run)
            self._fail(error)
            return
        held, is_older = known.document.at(found.now), written_at(found.stamp) <= written_at(known.stamp)
        back = is_older and known.stamp and document.at(found.now).entries
        if (held.entries or back) and _has_lost(known, found):
            self._put_back(held if is_older else held.below(document), found)
            return
        if held.entries and not found.stamp:
            self._logger.warning(
                "Rate limits: the control document was deleted: no change is in force any more (there were: %d)",
                len(held.entries),
            )
        self.in_force = InForce(found.stamp, document, found.now, read, found.run)
        if self._copy is not None:
            self._copy.write(found.stamp, found.run, found.text or "")
        if self.problem is not self._left_out:
            self.problem = None
        self._hold(document, found.now)

    def _put_back(self, document: Document, found: Found) -> None:
        """Write what the server has lost, if no other process has; the next look takes what is there then."""
        many = len(document.entries)
        what = f"changes that the server had lost: {many}" if many else "the undoing of all changes"
        change = Change(at=0, author="", reason=LOST, what="put back", entry=what, id="", replaces="")
        if self.store.write(found.stamp, document.dump(), change, lost=self.in_force.stamp) is not None:
            self._logger.warning("Rate limits: worker %d put back %s: %s", os.getpid(), what, LOST)

    def _hold(self, document: Document, now: float) -> None:
        """Put the entries of ``document`` that have not ended ``now`` in force."""
        started, holding = time.monotonic(), document.at(now)
        self._next_end, self._held_at = holding.next_end, now
        if holding is not self._taken:
            self._taken = holding
            try:
                self._take(holding)
            except ConfigurationError as error:
                self._left_out = error
                self._fail(error, "not all of the newest control document is in force")
            else:
                if self.problem is self._left_out:
                    self.problem = None
        # With thousands of entries, one may end at every look.
        self._not_before = time.monotonic() + PAUSE * (time.monotonic() - started)

    def _fail(
        self, error: Exception, what: str = "cannot apply the newest control document; the previous one stays in force"
    ) -> None:
        if str(error) == str(self.problem):
            return
        self.problem = error
        self._logger.error("Rate limits: %s: %s", what, with_remedy(error))
        self._report(error)

    def _follow(self) -> None:
        if not threads_run():
            self._logger.warning(
                "Rate limits: uWSGI runs no threads, so changes are not noticed: set enable-threads = true"
            )
        self._beat.wake(time.monotonic() + _dice.uniform(*SECONDS))

    def _look_again(self) -> float:
        """The task of the beat."""
        self.ask()
        with suppress(StorageError, ConfigurationError):  # the guard reports one, and requests the other
            self._announce()
        return _dice.uniform(*SECONDS)

    def _announce(self) -> None:
        """Tell people which version is in force here: now and then, and when it changes."""
        last, now = self._announced, time.monotonic()
        if self._limits is None or not isinstance(self.store, StoreInStorage) or not self.in_force.read:
            return
        if last is None or now >= self._announce_at or last.version != self.version:
            name = f"{gethostname()[:LONGEST_NAME]}:{os.getpid()}"
            worker = Worker(name, self.version, self._limits() if last is None else last.limits)
            self.store.announce(worker, last)
            self._announced, self._announce_at = worker, now + ANNOUNCE_SECONDS

    def _after_fork_in_child(self) -> None:
        self._lock = LateLock()
        self._announced = None


def _has_lost(known: InForce, found: Found) -> bool:
    """Whether a server that has ``found`` has lost a change that is known. Only versions that count on are newer: a
    server that lost its data counts from 1 again. On the same run of a server, if it has evicted nothing since the last
    look, somebody has deleted it."""
    if version_of(found.stamp) > version_of(known.stamp):
        return False
    return not known.run or known.run != found.run


@contextmanager
def _no_collections(size: int) -> Iterator[None]:
    """Postpone garbage collection while a long text becomes many objects, none of them garbage: it would double the
    time."""
    if size < LONG or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# The copy on disk


class DiskCopy:
    """The newest document that the workers of one machine have seen. Only its owner may read or write it, and whatever
    is wrong with it is logged, and otherwise ignored."""

    def __init__(self, path: Path, *, key: str, logger: logging.Logger | None) -> None:
        self.path = path
        self._key = key
        self._logger = SafeLogger(logger)
        self._cannot_write = False

    def read(self) -> InForce | None:
        """What it holds; ``None`` if there is none, or none that may be believed."""
        try:
            return _copied(_content(self.path), self._key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # a ConfigurationError is one
            self._logger.error("Rate limits: cannot use the copy of the changes in %s: %s", self.path, error)
            return None

    def write(self, stamp: str, run: str, text: str) -> None:
        """Replace it in one step."""
        content = f"{self._key} {stamp} {run}\n{text}".encode()
        beside = self.path.with_name(f"{self.path.name}.{token_hex(4)}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                _write_new(beside, content)
                beside.replace(self.path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            self._say_once(error)
        else:
            self._cannot_write = False

    def _say_once(self, error: OSError) -> None:
        if not self._cannot_write:
            self._cannot_write = True
            self._logger.warning(
                "Rate limits: cannot write the copy of the changes, so a worker that starts while the storage is down "
                "will not know them: %s",
                error,
            )


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _content(path: Path) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if wrong := _what_is_wrong(os.fstat(file.fileno())):
            raise ValueError(wrong)
        return file.read(LONGEST_COPY)


def _what_is_wrong(found: os.stat_result) -> str:
    """Why others could have written it, or why it is no copy; empty if neither."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}"
    if os.name == "posix" and found.st_mode & 0o022:
        return f"its mode is {found.st_mode & 0o777:o}, so other users may write it"
    return f"it is longer than {LONGEST_COPY} bytes" if found.st_size > LONGEST_COPY else ""


def _copied(content: bytes, key: str) -> InForce:
    head, _, text = content.decode().partition("\n")
    of, _, versions = head.partition(" ")
    if of != key:
        raise ConfigurationError(f"it is of {of[:LONGEST_STAMP]!r}, not of {key!r}: give each app its own file")
    stamp, _, run = versions.partition(" ")
    if len(versions) > LONGEST_STAMP:
        raise ConfigurationError("its first line is too long")
    return InForce(stamp, document_from(text) if text else NOTHING, run=run)
