"""Runs tasks once a second, off the request path."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Protocol

from ..engine.text import SafeLogger
from ..engine.threads import ENDING_SECONDS, Beat

SECONDS = 1.0
"""The time between two turns."""
IDLE_TURNS = 5
"""The thread ends after this many turns with nothing to do. The next event starts another."""


class Task(Protocol):
    """Something to do once a second."""

    def __call__(self, *, ending: bool = False) -> bool:
        """Do what is due, or if the process is ``ending``, everything. Return whether there is more to do."""


class EverySecond:
    """Runs tasks once a second, from :meth:`start` on until none has had anything to do for a while; and a last time
    when the process ends."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = SafeLogger(logger)
        self._tasks: list[Task] = []
        self._idle = 0
        self.beat: Beat = Beat(self._turn, name="multilimit-beat", logger=logger, last=partial(self.once, ending=True))

    def add(self, task: Task) -> None:
        self._tasks.append(task)

    def start(self) -> None:
        """Run the tasks from now on. A caller may skip this while the beat has a time at which it wakes."""
        if self._tasks:
            self.beat.wake(time.monotonic() + SECONDS)

    def once(self, *, ending: bool = False) -> bool:
        """Run every task now. Return whether any has more to do."""
        more = False
        for task in self._tasks:
            try:
                more = task(ending=ending) or more
            except Exception:  # noqa: PERF203 - the other tasks must run
                self._logger.exception("Rate limits: %r raised in the background", task)
        return more

    def close(self) -> None:
        """Let the thread end, and run every task a last time. A later event starts another thread."""
        self.beat.finish(wait=ENDING_SECONDS)

    def _turn(self) -> float | None:
        self._idle = 0 if self.once() else self._idle + 1
        if self._idle < IDLE_TURNS:
            return SECONDS
        self._idle = 0
        return None
