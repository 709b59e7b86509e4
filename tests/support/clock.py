"""The clock of the tests: it stands still until a test advances it."""

SECOND = 1_000_000
"""One second in microseconds, the unit of a storage's clock."""


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


class Clock:
    """Microseconds that pass only in ``advance``; they do not start at a whole second."""

    def __init__(self, now: int = 1_750_000_003_141_592) -> None:
        self._reads = 0
        self.now = now

    @property
    def now(self) -> int:
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = now
        self.set(now)

    def set(self, now: int) -> None:
        """Called with each new time."""

    @property
    def reads(self) -> int:
        """How often it was read."""
        return self._reads

    def __call__(self) -> int:
        self._reads += 1
        return self._now

    def advance(self, seconds: float) -> None:
        self.now += microseconds(seconds)
