"""How a process learns what the control document says: in the background, about twice a second."""

from __future__ import annotations

import gc
import logging
import random
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import NamedTuple

from ..engine import ConfigurationError, StorageError
from ..engine.errors import with_remedy
from ..engine.forks import tell_child
from ..engine.threads import threads_run
from .document import Document
from .store import NEVER_WRITTEN, Store

SECONDS = (0.4, 0.6)
"""Between two looks, at random, so that not all workers ask at once: with the answer, less than a second."""

LONG = 1 << 20
"""Characters of a document."""
PAUSE = 20
"""Pause before ended entries are pruned again, as a multiple of the last pruning's duration."""

_dice = random.Random()
"""Of its own: an app may have seeded the one that all share."""

NOTHING = Document()
"""What is changed when nobody has changed anything."""


class InForce(NamedTuple):
    """What a process knows of the document."""

    stamp: str = NEVER_WRITTEN
    document: Document = NOTHING
    now: float = 0.0
    """Store's clock when read."""
    read: float = 0.0
    """This process's clock when read."""

    def time(self) -> float:
        """The clock of the store now: POSIX time."""
        return self.now + time.monotonic() - self.read if self.read else time.time()


class Watcher:
    """Keeps up with a store: calls ``take`` with what holds, whenever that changes, and ``report`` when a document, or
    something in it, cannot be taken. What held before stays in force then, and while the store does not answer.

    Fork-safe: a child starts without a thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        take: Callable[[Document], None],
        report: Callable[[Exception], None],
        logger: logging.Logger,
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
        self._logger = logger
        self._running = False
        self._closed = False
        self._lock = Lock()
        tell_child(self)

    def start(self) -> None:
        """Take what holds now, and keep up with it from now on."""
        self.look()
        if self.store.shared or self.in_force.document.next_end is not None:
            self._run()

    def look(self) -> None:
        """Ask the store once, unless no process uses it: then nothing is there, and asking would make it."""
        if self.store.in_use:
            self.ask()

    def ask(self) -> None:
        """Ask the store once, and use it from now on: what a command writes there must not end with the command."""
        with self._lock:
            try:
                self._look()
            except StorageError as error:
                if not error.no_reply:  # else the guard of the storage tells of it
                    self._fail(error)

    @property
    def age(self) -> float:
        """Seconds since the store has last answered."""
        return time.monotonic() - self._seen

    @property
    def version(self) -> int:
        """How often the document that is known was changed; 0 for never."""
        return int(self.in_force.stamp.partition("-")[0] or 0)

    def close(self) -> None:
        self._closed = True

    def _look(self) -> None:
        known = self.in_force
        found, read = self.store.read(known.stamp), time.monotonic()
        self._seen = read
        if found.stamp != known.stamp:
            # Remembered before it is read: what is wrong in it is told once.
            self.in_force = InForce(found.stamp, known.document, found.now, read)
            text = found.text or ""
            with _no_collections(len(text)):
                self._take_newest(found.stamp, text, found.now, read)
        elif self._next_end is not None and found.now >= self._next_end and read >= self._not_before:
            self._hold(self.in_force.document, found.now)

    def _take_newest(self, stamp: str, text: str, now: float, read: float) -> None:
        try:
            document = _read(text) if text else NOTHING
        except ConfigurationError as error:
            self._fail(error)
            return
        self.in_force = InForce(stamp, document, now, read)
        self.problem = None
        self._hold(document, now)

    def _hold(self, document: Document, now: float) -> None:
        """Put in force what of ``document`` holds ``now``."""
        started, holding = time.monotonic(), document.at(now)
        self._next_end = holding.next_end
        if holding is not self._taken:
            self._taken = holding
            try:
                self._take(holding)
            except ConfigurationError as error:
                self._fail(error)
        # Of thousands of entries, one may end at every look.
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

    def _run(self) -> None:
        if self._running:
            return
        self._running = True
        if not threads_run():
            self._logger.warning(
                "Rate limits: uWSGI runs no threads, so changes are not noticed: set enable-threads = true"
            )
        try:
            Thread(target=_watch, args=(weakref.ref(self),), name="multilimit-control", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._running = False
            self._logger.error("Rate limits: could not start the thread that follows changes: %s", error)

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()
        self._running = False


def _read(text: str) -> Document:
    from .reading import document_from  # noqa: PLC0415 - where nobody changes anything, nothing is read

    return document_from(text)


@contextmanager
def _no_collections(size: int) -> Iterator[None]:
    """Put garbage collection off while a long text becomes many objects of which none is garbage: it would take as
    long again."""
    if size < LONG or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _watch(watching: weakref.ref[Watcher]) -> None:
    """The thread keeps no app alive."""
    while True:
        time.sleep(_dice.uniform(*SECONDS))
        watcher = watching()
        if watcher is None or watcher._closed:
            return
        try:
            watcher.ask()
        except Exception:
            watcher._logger.exception("Rate limits: the control document could not be looked at; will try again")
        del watcher
