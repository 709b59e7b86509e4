"""The clients of a replay and their requests: details of those that were refused, a number for all others."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

FIRST_SIZE = 1 << 10
FULLEST = 0.7
"""The part of a table that may be in use before it grows."""
_MASK = (1 << 64) - 1


class Counts:
    """A number for each name, in little more than 16 bytes: 64 bits of a hash identify the name."""

    def __init__(self) -> None:
        self._allocate(FIRST_SIZE)

    def _allocate(self, size: int) -> None:
        self._hashes = array("Q", bytes(8 * size))  # 0: free
        self._numbers = array("Q", bytes(8 * size))
        self._mask = size - 1
        self._most = int(size * FULLEST)
        self._used = 0

    def add(self, name: str, number: int) -> None:
        self._add(hash(name) & _MASK or 1, number)

    def of(self, name: str) -> int:
        return self._numbers[self._place_of(hash(name) & _MASK or 1)]

    def __len__(self) -> int:
        """The number of names."""
        return self._used

    def _add(self, hashed: int, number: int) -> None:
        place = self._place_of(hashed)
        if not self._hashes[place]:
            if self._used >= self._most:
                self._grow()
                place = self._place_of(hashed)
            self._hashes[place] = hashed
            self._used += 1
        self._numbers[place] += number

    def _place_of(self, hashed: int) -> int:
        """The place where it is, or would be."""
        hashes, mask = self._hashes, self._mask
        place = hashed & mask
        while hashes[place] and hashes[place] != hashed:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        hashes, numbers = self._hashes, self._numbers
        self._allocate(2 * len(hashes))
        for hashed, number in zip(hashes, numbers, strict=True):
            if hashed:
                self._add(hashed, number)


@dataclass(slots=True)
class Refused:
    """What happened to one client that was refused."""

    name: str
    first: int
    """Microseconds since 1970."""
    times: int = 0
    longest_lockout: float = 0.0
    locked: dict[str, int] = field(default_factory=dict)
    """The instant since when it is locked out, by endpoint."""


class Clients:
    """All clients of a replay."""

    def __init__(self) -> None:
        self.refused: dict[str, Refused] = {}
        """The clients that were refused, by name."""
        self._counts = Counts()

    def came(self, name: str, times: int) -> None:
        self._counts.add(name, times)

    def requests_of(self, name: str) -> int:
        return self._counts.of(name)

    def __len__(self) -> int:
        return len(self._counts)

    def refuse(self, name: str, now: int) -> Refused:
        client = self.refused.get(name)
        if client is None:
            client = self.refused[name] = Refused(name, now)
        client.times += 1
        return client

    def admit(self, name: str, endpoint: str) -> None:
        """End the lock-out of a client."""
        client = self.refused.get(name)
        if client is not None:
            client.locked.pop(endpoint, None)

    def worst(self) -> list[Refused]:
        """The clients that were refused, most often first."""
        return sorted(self.refused.values(), key=lambda client: (-client.times, client.name))

    def __iter__(self) -> Iterator[Refused]:
        return iter(self.refused.values())
