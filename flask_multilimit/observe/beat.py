"""Runs tasks once a second, off the request path."""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from threading import Lock, Thread
from typing import Protocol

from ..engine.forks import tell_child
from ..engine.text import SafeLogger

SECONDS = 1.0
"""The time between two beats."""
IDLE_BEATS = 5
"""The thread ends after so many beats with nothing to do; the next event starts another."""


class Task(Protocol):
    """Something to do at each beat."""

    def __call__(self, *, ending: bool = False) -> bool:
        """Do what is due, or everything if the process is ``ending``. Return whether there is more to do."""


class Beat:
    """Runs tasks once a second in a daemon thread. The thread starts with :meth:`start` and ends when no task has had
    anything to do for a while. Each task runs once more when the process ends. A forked child starts without a thread.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = SafeLogger(logger)
        self._tasks: list[Task] = []
        self._lock = Lock()
        self.turn: object = None
        """The mark of the thread that runs; any other thread ends."""
        self.idle: bool = False
        """Whether there are tasks but no thread. Check it before :meth:`start`, which takes a lock."""
        tell_child(self)
        _beats.add(self)

    @property
    def running(self) -> bool:
        """Whether there is a thread."""
        return bool(self._tasks) and not self.idle

    def add(self, task: Task) -> None:
        with self._lock:
            self.idle = self.idle or not self._tasks
            self._tasks.append(task)

    def start(self) -> None:
        """Start the thread unless it runs."""
        with self._lock:
            if not self.idle:
                return
            self.idle = False
            turn = self.turn = object()
        try:
            Thread(target=_run, args=(weakref.ref(self), turn), name="multilimit-beat", daemon=True).start()
        except RuntimeError as error:  # no thread left, or the interpreter is ending: the next event tries again
            self.idle = True
            self._logger.warning(
                "Rate limits: could not start the background thread, so traffic is not flushed: %s", error
            )

    def once(self, *, ending: bool = False) -> bool:
        """Run every task now; return whether any has more to come."""
        more = False
        for task in self._tasks:
            try:
                more = task(ending=ending) or more
            except Exception:  # noqa: PERF203 - the other tasks must run
                self._logger.exception("Rate limits: %r raised in the background", task)
        return more

    def rest(self) -> None:
        """Let the thread end. An event that comes now starts another."""
        with self._lock:
            self.idle = bool(self._tasks)

    def close(self) -> None:
        """Run every task a last time, and let the thread end. An event that comes later starts another."""
        self.once(ending=True)
        with self._lock:
            self.turn, self.idle = None, bool(self._tasks)

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()
        self.idle = bool(self._tasks)


_beats: weakref.WeakSet[Beat] = weakref.WeakSet()


def _run(beating: weakref.ref[Beat], turn: object) -> None:
    """The thread. It keeps no app alive."""
    idle = 0
    while idle < IDLE_BEATS:
        time.sleep(SECONDS)
        beat = beating()
        if beat is None or beat.turn is not turn:
            return
        idle = 0 if beat.once() else idle + 1
        del beat
    beat = beating()
    if beat is not None and beat.turn is turn:
        beat.rest()
        if beat.once():  # events that came before rest(), while the thread still counted as running
            beat.start()


@atexit.register
def _last_beats() -> None:
    for beat in list(_beats):
        if beat.running:
            beat.once(ending=True)
