"""Measures the most that a storage holds while a log is replayed."""

from __future__ import annotations

from ...engine import MemoryStorage

LOOKED_EACH = 64
"""The most checks between two counts of the keys."""
WEIGHED_EACH = 8
"""Checks per key between two weighings of all keys. If the keys grow by a quarter, they are weighed sooner."""
GROWN = 1.25


class Usage:
    """The most that the storage has held. It is measured repeatedly."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._weighed = 0
        self._next_weighing = 0
        self.next_look: int = 1
        """The number of checks after which to look again."""
        self.keys: int = 0
        self.bytes: int = 0

    def look(self, checks: int) -> None:
        keys = len(self._storage)
        self.keys = max(self.keys, keys)
        self.next_look = checks + 1 + min(checks // 8, LOOKED_EACH)
        if keys > self._weighed * GROWN or checks >= self._next_weighing:
            self.weigh(checks)

    def weigh(self, checks: int) -> None:
        usage = self._storage.usage()
        keys = usage.total()
        self.bytes = max(self.bytes, sum(many * bytes_in_redis(*like) for like, many in usage.items()))
        self._weighed = max(self._weighed, keys)
        self._next_weighing = checks + WEIGHED_EACH * keys


def bytes_in_redis(algorithm: str, units: int) -> int:
    """An estimate of the bytes that Redis 7 needs for one key, as ``benchmarks/memory_per_subject.py`` measures it."""
    if algorithm != "sliding_window":
        return 112
    return 130 + 28 * units if units <= 128 else 130 + 78 * units
