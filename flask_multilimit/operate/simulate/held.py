"""The slots of requests in progress. A request holds them for the time that it took according to the log."""

from __future__ import annotations

import heapq

from ...engine import Decision, MemoryStorage
from ...engine.slots import RENEWALS, slots_of
from ...engine.storage import Slot
from .timeline import Timeline


class HeldSlots:
    """Renews slots as often as an app does, and releases them."""

    def __init__(self, storage: MemoryStorage, time: Timeline) -> None:
        self._storage = storage
        self._time = time
        self._ends: list[int] = []
        self.commands: int = 0
        """The number of renewals and releases."""

    def hold(self, decision: Decision, took: int) -> None:
        """Hold the slots that ``decision`` has taken for ``took`` microseconds."""
        slots = slots_of(decision)
        if slots:
            end = self._time.now + took
            heapq.heappush(self._ends, end)
            self._go_on(slots, end, min(slot.hit.rule.quota.window for slot in slots) // RENEWALS)

    def next_release(self) -> int | None:
        """The instant at which the next request in progress ends."""
        while self._ends and self._ends[0] <= self._time.now:
            heapq.heappop(self._ends)
        return self._ends[0] if self._ends else None

    def _go_on(self, slots: tuple[Slot, ...], end: int, pause: int) -> None:
        renewal = self._time.now + pause
        if renewal < end:
            self._time.at(renewal, lambda: self._renew(slots, end, pause))
        else:
            self._time.at(end, lambda: self._release(slots))

    def _renew(self, slots: tuple[Slot, ...], end: int, pause: int) -> None:
        self.commands += 1
        self._storage.renew(slots)
        self._go_on(slots, end, pause)

    def _release(self, slots: tuple[Slot, ...]) -> None:
        self.commands += 1
        self._storage.release(slots)
