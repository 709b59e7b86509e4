"""Watches the clock that the server reads, which is that of the machine, while a run is recorded."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

EACH = 0.001
SLEW = 0.001
"""How much slower than it should a clock may run for a while to be put right gently, twice what Linux lets it."""


class Watch:
    """Finds the steps back of the wall clock, by its distance from the monotonic one. (One forward harms no order.)"""

    def __init__(self) -> None:
        self.set_back = 0
        """By how many nanoseconds in all."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        at, least, _ = self._distance()
        over = False
        while not over:
            over = self._over.wait(EACH)
            now, lower, upper = self._distance()
            least -= int((now - at) * SLEW)
            if upper < least:
                self.set_back += least - upper
                least = lower
            at, least = now, max(least, lower)

    @staticmethod
    def _distance() -> tuple[int, int, int]:
        """When, and between what it lies: the thread may have been held up between two readings."""
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return after, wall - after, wall - before
