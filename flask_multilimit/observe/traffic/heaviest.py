"""The most frequent of many keys, in bounded memory.

Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, ICDT
2005): there are ``capacity`` counters. A key without a counter takes over the smallest one together with its count,
which is the largest possible error of the new key. A key that is more frequent than the total divided by ``capacity``
always has a counter.
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
        """The count that each key took over from another; a key that is missing took over none."""
        self._heap: list[tuple[int, int, K]] = []
        """Filled from the first replacement on: a lower bound of the count of each key, a number that decides between
        equal counts so that keys are never compared, and the key."""

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
        """The most frequent keys, each with the least number of times that it was added."""
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
