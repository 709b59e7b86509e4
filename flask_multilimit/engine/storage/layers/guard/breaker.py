"""The state of a guard, and the only place that changes it."""

from __future__ import annotations

import math
import time
from enum import Enum
from threading import Lock
from typing import cast

from ....errors import StorageError
from ....hits import Hit

RETURN_SECONDS = 1.5
"""How long a process stays in ``RETURNING``: the last process to probe is one probe behind, and may have more to
charge."""


class State(Enum):
    """Where checks go."""

    CLOSED = "closed"
    """To the storage."""
    OPEN = "open"
    """Nowhere: each is decided in this process. Only the prober asks the storage."""
    HALF_OPEN = "half-open"
    """To the storage, which answers again, but within this process's share: the storage is still being charged for what
    this process has admitted meanwhile."""
    RETURNING = "returning"
    """As in ``HALF_OPEN``. This process has charged everything; others may be about to."""


class Breaker:
    """Opens when the storage fails, and closes step by step.

        CLOSED -> OPEN -> HALF_OPEN -> RETURNING -> CLOSED

    A failure leads from anywhere to ``OPEN``. Alone, a process skips ``RETURNING``. ``lock`` must be held for every
    change, and for every decision that depends on the state; to look at ``state`` needs none.
    """

    def __init__(self) -> None:
        self.lock: Lock = Lock()
        self.state: State = State.CLOSED
        self.failures: int = 0
        """Failures noted so far. A check that began before the latest one says nothing new."""
        self.since: float = time.time()
        """When the health changed; POSIX time."""
        self.error: StorageError | None = None
        self.failing_hits: tuple[Hit, ...] = ()
        """The hits of the check that failed last."""
        self._failed_at = 0.0
        self._returns_at = math.inf

    @property
    def has_failed(self) -> bool:
        """Whether there is an outage: the storage is away, or not charged yet for what was admitted meanwhile."""
        return self.state in (State.OPEN, State.HALF_OPEN)

    def fail(self, hits: tuple[Hit, ...], error: StorageError) -> bool:
        """Open; return whether an outage begins. A failure in ``HALF_OPEN`` belongs to the same outage."""
        begins = not self.has_failed
        self.error, self.failing_hits = error, hits
        self.failures += 1
        self.state = State.OPEN
        if begins:
            self.since, self._failed_at = time.time(), time.monotonic()
        return begins

    def fail_again(self, error: StorageError) -> None:
        """A probe, or a charge after it, has failed."""
        self.error = error
        if self.has_failed:
            self.state = State.OPEN

    def answer(self) -> None:
        """A probe was answered."""
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN

    def settle(self, *, alone: bool) -> float:
        """Everything is charged; return how many seconds the outage took."""
        now = time.monotonic()
        self.state = State.CLOSED if alone else State.RETURNING
        self._returns_at = now + RETURN_SECONDS
        self.since = time.time()
        return now - self._failed_at

    @property
    def time_is_up(self) -> bool:
        """Whether the others have had their time to charge, too."""
        return time.monotonic() >= self._returns_at

    def close_when_returned(self) -> None:
        if self.state is State.RETURNING and self.time_is_up:  # and not of a later outage
            self.state = State.CLOSED

    def latest_error(self) -> StorageError:
        """A copy: one object that is raised again and again would collect tracebacks."""
        error = cast("StorageError", self.error)  # known before the breaker opens
        latest = StorageError(str(error))
        latest.remedy, latest.__cause__ = error.remedy, error.__cause__
        return latest
