"""The clock of the tests: it stands still until it is told to go on."""

from __future__ import annotations

SECOND = 1_000_000
"""In microseconds, the unit of a storage's clock."""


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


class Clock:
    """Microseconds that pass only when told to, from no round number on; counts how often it is read."""

    def __init__(self, now: int = 1_750_000_003_141_592) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += microseconds(seconds)
