"""The state of a guard, and the only place that changes it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import Enum
from threading import Lock
from typing import Any, Literal, TypeVar, cast

from ....errors import StorageError
from ....hits import Hit

RETURN_SECONDS = 1.5
"""How long a process stays in ``RETURNING``: the last process to probe is one probe behind, and may still have charges
to make."""
PATIENCE = 1.0
"""Seconds after which there is no second attempt, so that a request never waits that long again."""

T = TypeVar("T")


class State(Enum):
    """Where checks are decided."""

    CLOSED = "closed"
    """By the storage."""
    OPEN = "open"
    """In this process. Only the prober asks the storage."""
    HALF_OPEN = "half-open"
    """By the storage, which answers again, but within this process's share: the storage is still being charged for what
    this process admitted during the outage."""
    RETURNING = "returning"
    """As in ``HALF_OPEN``. This process has charged everything, but others may not have."""


class Breaker:
    """Opens when the storage fails, and closes step by step.

        CLOSED -> OPEN -> HALF_OPEN -> RETURNING -> CLOSED

    A failure leads from any state to ``OPEN``. A process that is alone skips ``RETURNING``. Hold ``lock`` for every
    change and for every decision that depends on the state; reading ``state`` needs no lock.
    """

    def __init__(self) -> None:
        self.lock: Lock = Lock()
        self.state: State = State.CLOSED
        self.failures: int = 0
        """Failures noted so far. The failure of a check that began before the latest one says nothing new."""
        self.since: float = time.time()
        """When the health last changed; POSIX time."""
        self.error: StorageError | None = None
        self.failing_hits: tuple[Hit, ...] = ()
        """The hits of the check that failed last."""
        self._failed_at = 0.0
        self._returns_at = math.inf

    @property
    def has_failed(self) -> bool:
        """Whether there is an outage: the storage is away, or not yet charged for what was admitted meanwhile."""
        return self.state in (State.OPEN, State.HALF_OPEN)

    @property
    def shown(self) -> Literal["closed", "open", "half-open"]:
        """The state in the words of :class:`.Health`: ``RETURNING`` is no outage any more."""
        if not self.has_failed:
            return "closed"
        return "open" if self.state is State.OPEN else "half-open"

    def once_more(self, error: StorageError, failures: int, start: float, ask: Callable[..., T], *arguments: Any) -> T:
        """A second attempt, so that one lost reply does not open the breaker. The first one began at ``start``, by
        :func:`time.monotonic`, when ``failures`` had been noted. Raises :class:`StorageError`, also if a second attempt
        makes no sense."""
        if not error.no_reply or failures != self.failures or time.monotonic() - start > PATIENCE:
            raise error
        return ask(*arguments)

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
        """A probe, or a charge after it, failed."""
        self.error = error
        if self.has_failed:
            self.state = State.OPEN

    def answer(self) -> None:
        """A probe was answered."""
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN

    def settle(self, *, alone: bool) -> float:
        """Everything is charged: return how many seconds the outage took."""
        now = time.monotonic()
        self.state = State.CLOSED if alone else State.RETURNING
        self._returns_at = now + RETURN_SECONDS
        self.since = time.time()
        return now - self._failed_at

    @property
    def time_is_up(self) -> bool:
        """Whether the other processes have had time to charge, too."""
        return time.monotonic() >= self._returns_at

    def close_when_returned(self) -> None:
        if self.state is State.RETURNING and self.time_is_up:  # and no later outage has begun
            self.state = State.CLOSED

    def latest_error(self) -> StorageError:
        """A copy: an object that is raised repeatedly would collect tracebacks."""
        error = cast("StorageError", self.error)  # set before the breaker opens
        latest = StorageError(str(error))
        latest.remedy, latest.__cause__ = error.remedy, error.__cause__
        return latest
