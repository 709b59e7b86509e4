"""The clock of a replay, and what happens between two of its requests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Event = Callable[[], None]


class Timeline:
    """Instants in microseconds since 1970."""

    def __init__(self) -> None:
        self.now: int = 0
        self._serial = itertools.count()
        self.waiting: list[tuple[int, int, Event]] = []
        """A heap."""

    def at(self, when: int, event: Event) -> None:
        """Of several at one instant, the one that was given first happens first."""
        heapq.heappush(self.waiting, (when, next(self._serial), event))

    def pass_to(self, until: int) -> None:
        """Let everything happen until then; what happens then, too."""
        while self.waiting and self.waiting[0][0] <= until:
            self.now, _, event = heapq.heappop(self.waiting)
            event()
