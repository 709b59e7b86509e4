"""When each subject made its requests, and the most requests in any window."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

Instants = Sequence[int]
"""Microseconds, in order."""


class Arrivals(Mapping[str, Instants]):
    """The instants of each subject's requests, 8 bytes each."""

    def __init__(self) -> None:
        self._instants: dict[str, array[int]] = {}
        self.requests: int = 0

    def add(self, subject: str, at: int) -> None:
        """Add an instant. They must come in order."""
        known = self._instants.get(subject)
        if known is None:
            known = self._instants[subject] = array("q")
        known.append(at)
        self.requests += 1

    def __getitem__(self, subject: str) -> Instants:
        return self._instants[subject]

    def __iter__(self) -> Iterator[str]:
        return iter(self._instants)

    def __len__(self) -> int:
        return len(self._instants)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last instant. Raises ValueError if there is none."""
        each = self._instants.values()
        return min(instants[0] for instants in each), max(instants[-1] for instants in each)

    def halves(self) -> tuple[Arrivals, Arrivals]:
        """The first and the second half of the requests. Those of one instant stay together."""
        low, high = self.span
        while low < high:
            middle = (low + high) // 2
            before = sum(bisect_left(instants, middle + 1) for instants in self._instants.values())
            low, high = (low, middle) if 2 * before >= self.requests else (middle + 1, high)
        first, second = Arrivals(), Arrivals()
        for subject, instants in self._instants.items():
            at = bisect_left(instants, low + 1)
            first._put(subject, instants[:at])
            second._put(subject, instants[at:])
        return first, second

    def _put(self, subject: str, instants: array[int]) -> None:
        if instants:
            self._instants[subject] = instants
            self.requests += len(instants)


def peak(instants: Instants, window: int) -> int:
    """The most requests within any ``window`` (microseconds): a sliding window with this count refuses none."""
    most = first = 0
    for last, at in enumerate(instants):
        while instants[first] <= at - window:
            first += 1
        if last - first >= most:
            most = last - first + 1
    return most


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least ``share`` of ``ordered`` do not exceed (nearest rank)."""
    return ordered[max(-int(-share * len(ordered) // 1) - 1, 0)]
