"""Shows the progress of reading a long log. The user may stop it and keeps the result so far."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .logs.logged import LoggedRequest
from .logs.reading import Logs

COLLECTED_EACH = 200_000
"""New objects between two runs of Python's garbage collector. A replay makes few cycles, and keeps many objects."""
EACH = 1024
"""Requests between two looks at the clock."""
PAUSE = 0.25
"""Seconds between two lines of progress."""
LONGEST = 70


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the garbage collector of this process run less often for a while: it takes a third of a replay's time."""
    before = gc.get_threshold()
    if before[0]:  # otherwise the collector is off
        gc.set_threshold(max(before[0], COLLECTED_EACH), 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Watched:
    """The requests of ``logs``, with a progress line on a terminal. Ctrl-C stops reading; a second one, the program."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._stream = sys.stderr
        self._stopped = False
        self.complete: bool = True
        """``False`` if the user stopped it."""

    def __iter__(self) -> Iterator[LoggedRequest]:
        shown = self._stream.isatty()
        start = last = time.monotonic()
        before = self._catch()
        try:
            for number, request in enumerate(self._logs):
                if not number % EACH:
                    if self._stopped:
                        self.complete = False
                        return
                    now = time.monotonic()
                    if shown and now - last > PAUSE:
                        last = now
                        self._write(self._line(number, now - start))
                yield request
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)
            if shown:
                self._write("")

    def _catch(self) -> Any:
        """Install the handler, and return the one before. Only the main thread may have one."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGINT, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line:<{LONGEST}}" if line else f"\r{'':<{LONGEST}}\r")
        self._stream.flush()

    def _line(self, number: int, seconds: float) -> str:
        rate = f"{number:,} requests, {number / seconds:,.0f} a second"
        position = self._logs.position()
        if not (position.size and position.done):
            return rate
        share = min(position.done / position.size, 1)
        return f"{rate}, {share:.0%}, {seconds / share - seconds:,.0f} s left"
