"""The most frequent of many, in a bounded memory.

Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT
2005): of ``capacity`` counters, the smallest is handed over to whoever has none, and with it what it has counted so
far, as the new owner's possible error. What is more frequent than the total divided by ``capacity`` always has one.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Heaviest(Generic[K]):
    """Counts how often each key was added. Not thread-safe."""

    __slots__ = ("_capacity", "_counts", "_errors", "_heap")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[K, int] = {}
        self._errors: dict[K, int] = {}
        """What each key took over from another; none, if it is not here."""
        self._heap: list[tuple[int, int, K]] = []
        """From the first replacement on: each key with a count that is its own or smaller, and a number that keeps
        keys from being compared."""

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: K, amount: int = 1) -> None:
        counts = self._counts
        if key in counts:
            counts[key] += amount
        elif len(counts) < self._capacity:
            counts[key] = amount
        else:
            self._replace(key, amount)

    def top(self, most: int) -> dict[K, int]:
        """The heaviest, with the number of times that each was added at least."""
        sure = {key: count - self._errors.get(key, 0) for key, count in self._counts.items()}
        if len(sure) <= most:
            return sure
        return dict(heapq.nlargest(most, sure.items(), key=lambda counted: counted[1]))

    def _replace(self, key: K, amount: int) -> None:
        """Give the smallest counter to ``key``."""
        counts, heap = self._counts, self._heap
        if not heap:
            heap += [(count, number, owner) for number, (owner, count) in enumerate(counts.items())]
            heapq.heapify(heap)
        count, number, owner = heap[0]
        while counts[owner] != count:
            heapq.heapreplace(heap, (counts[owner], number, owner))
            count, number, owner = heap[0]
        del counts[owner]
        self._errors.pop(owner, None)
        counts[key], self._errors[key] = count + amount, count
        heapq.heapreplace(heap, (count + amount, number, key))
