"""Keeps a process up to date with the control document: in the background, about twice a second."""

from __future__ import annotations

import gc
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from ..engine import ConfigurationError, StorageError
from ..engine.errors import with_remedy
from ..engine.forks import notify_child
from ..engine.text import SafeLogger
from ..engine.threads import Beat, threads_run
from .document import Document, document_from
from .store import NEVER_WRITTEN, Store

SECONDS = (0.4, 0.6)
"""The time between two looks, chosen at random, so that not all workers ask at once. With the answer it is less than a
second."""

LONG = 1 << 20
"""A document of so many characters is long."""
PAUSE = 20
"""Pause before ended entries are pruned again, as a multiple of the last pruning's duration."""

_dice = random.Random()
"""A generator of our own: an app may have seeded the shared one."""

NOTHING = Document()
"""The document while nobody has changed anything."""


class InForce(NamedTuple):
    """What a process knows about the document."""

    stamp: str = NEVER_WRITTEN
    document: Document = NOTHING
    now: float = 0.0
    """Store's clock when read."""
    read: float = 0.0
    """This process's clock when read."""

    def time(self) -> float:
        """The clock of the store now: POSIX time."""
        return self.now + time.monotonic() - self.read if self.read else time.time()


class ControlFollower:
    """Follows a store: calls ``take`` with the entries that apply, whenever these change, and ``report`` if a document,
    or something in it, cannot be applied. Then the earlier entries stay in force, as they do while the store does not
    answer.

    Fork-safe: a child starts without a thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        take: Callable[[Document], None],
        report: Callable[[Exception], None],
        logger: logging.Logger | None,
    ) -> None:
        self.store = store
        self.in_force: InForce = InForce()
        self.problem: Exception | None = None
        """Why the newest document is not in force."""
        self._seen = time.monotonic()
        self._taken = NOTHING
        self._next_end: float | None = None
        self._not_before = 0.0
        self._take = take
        self._report = report
        self._logger = SafeLogger(logger)
        self._beat = Beat(self._look_again, name="multilimit-control", logger=logger)
        self._lock = Lock()
        notify_child(self)

    def start(self) -> None:
        """Apply the current document, and follow it from now on."""
        self.look()
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

    @property
    def age(self) -> float:
        """Seconds since the store last answered."""
        return time.monotonic() - self._seen

    @property
    def version(self) -> int:
        """How many changes led to the known document; 0 if there were none."""
        return int(self.in_force.stamp.partition("-")[0] or 0)

    def close(self) -> None:
        self._beat.close()

    def _look(self) -> None:
        known = self.in_force
        found, read = self.store.read(known.stamp), time.monotonic()
        self._seen = read
        if found.stamp != known.stamp:
            # Remembered before it is read, so that a mistake in it is reported once.
            self.in_force = InForce(found.stamp, known.document, found.now, read)
            text = found.text or ""
            with _no_collections(len(text)):
                self._take_newest(found.stamp, text, found.now, read)
        elif self._next_end is not None and found.now >= self._next_end and read >= self._not_before:
            self._hold(self.in_force.document, found.now)

    def _take_newest(self, stamp: str, text: str, now: float, read: float) -> None:
        try:
            document = document_from(text) if text else NOTHING
        except ConfigurationError as error:
            self._fail(error)
            return
        self.in_force = InForce(stamp, document, now, read)
        self.problem = None
        self._hold(document, now)

    def _hold(self, document: Document, now: float) -> None:
        """Put the entries of ``document`` that have not ended ``now`` in force."""
        started, holding = time.monotonic(), document.at(now)
        self._next_end = holding.next_end
        if holding is not self._taken:
            self._taken = holding
            try:
                self._take(holding)
            except ConfigurationError as error:
                self._fail(error)
        # With thousands of entries, one may end at every look.
        self._not_before = time.monotonic() + PAUSE * (time.monotonic() - started)

    def _fail(self, error: Exception) -> None:
        if str(error) == str(self.problem):
            return
        self.problem = error
        shown = with_remedy(error) if isinstance(error, StorageError) else error
        self._logger.error(
            "Rate limits: cannot apply the newest control document; the previous one stays in force: %s", shown
        )
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
        return _dice.uniform(*SECONDS)

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()


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
