"""The clock of the tests: it stands still until a test advances it."""

from __future__ import annotations

SECOND = 1_000_000
"""One second in microseconds, the unit of a storage's clock."""


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


class Clock:
    """Microseconds that pass only in ``advance``; they do not start at a whole second. Counts how often it is read."""

    def __init__(self, now: int = 1_750_000_003_141_592) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += microseconds(seconds)
