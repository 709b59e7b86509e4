"""The clock of a replay, and the events that happen between its requests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Event = Callable[[], None]


class Timeline:
    """A clock with events. Instants are microseconds since 1970."""

    def __init__(self) -> None:
        self.now: int = 0
        self._serial = itertools.count()
        self.waiting: list[tuple[int, int, Event]] = []
        """A heap."""

    def at(self, when: int, event: Event) -> None:
        """Let ``event`` happen at ``when``. Events of the same instant happen in the order in which they were added."""
        heapq.heappush(self.waiting, (when, next(self._serial), event))

    def pass_to(self, until: int) -> None:
        """Move the clock to ``until``, and let all events until and at this instant happen."""
        while self.waiting and self.waiting[0][0] <= until:
            self.now, _, event = heapq.heappop(self.waiting)
            event()
