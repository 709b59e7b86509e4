"""What a guard reports: its health, and one line in the log and one call for each change, not one for each request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from ....errors import ConfigurationError, StorageError, brief, with_remedy
from ....hits import Hit, OnStorageError
from ....keys import without_subject
from ....text import SafeLogger
from .workers import Workers

LOG_SECONDS = 60.0
"""Between two lines about single checks that fail."""

_STARTED = time.time()


class Health(NamedTuple):
    """How a storage stands, as far as this process knows."""

    state: Literal["working", "failed"]
    """``failed`` until the storage is back and has been charged for what was admitted during the outage."""
    since: float
    """POSIX time; for display only."""
    error: StorageError | None
    """The latest error; it stays when the storage works again."""
    breaker: Literal["closed", "open", "half-open"]
    """``open``: no check asks the storage. ``half-open``: checks ask it again, while it is charged for what
    was admitted during the outage."""
    fallback_keys: int
    """Keys that this process is counting by itself."""
    pending: int
    """Admitted checks that are still to be charged to the storage."""
    given_up: int
    """Admitted checks of this or the last outage that could not be charged."""
    workers: Workers
    """Processes that share a limit while the storage is away."""

    @classmethod
    def of_this_process(cls) -> Health:
        """The health of a storage in this process, which cannot fail."""
        return cls("working", _STARTED, None, "closed", 0, 0, 0, Workers(1, "memory of this process"))


def check_on_change(on_change: object) -> None:
    """Raise :class:`ConfigurationError` unless ``on_change`` can be called with a :class:`Health`, or is ``None``."""
    if on_change is not None and not callable(on_change):
        raise ConfigurationError(f"on_change={brief(on_change)}: give a callable with the Health")


class Report:
    """Writes to ``logger``, by default the one called ``flask_multilimit``, and calls ``on_change``.

    ``on_error`` is the policy of hits without one.
    """

    def __init__(
        self,
        logger: logging.Logger | None,
        on_change: Callable[[Health], object] | None,
        on_error: OnStorageError,
    ) -> None:
        self._logger = SafeLogger(logger)
        self._on_change = on_change
        self._on_error: OnStorageError = on_error
        self._next_single = 0.0

    def failed(self, hits: tuple[Hit, ...], error: StorageError, health: Health) -> None:
        self._logger.error(
            "Rate limits: storage failed (key %s): %s; meanwhile: %s",
            without_subject(hits[0].key),
            with_remedy(error),
            _meanwhile(self._on_error, health.workers),
        )
        self._notify(health)

    def is_back(self, seconds: float, charged: int, health: Health) -> None:
        self._logger.warning(
            "Rate limits: the storage is back after %.1f s. Checks admitted meanwhile: %d charged to it, %d not.",
            seconds,
            charged,
            health.given_up,
        )
        self._notify(health)

    def _notify(self, health: Health) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(health)
        except Exception as error:
            self._logger.error("Rate limits: the on_change callback raised", error=error)

    def is_due(self) -> bool:
        """Whether a line about a single check may be written now; not thread-safe."""
        now = time.monotonic()
        if now < self._next_single:
            return False
        self._next_single = now + LOG_SECONDS
        return True

    def single(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        """About a check that fails although the storage answers others."""
        self._logger.error("Rate limits: a check of %s failed: %s", hits[0].key, with_remedy(error))


def _meanwhile(policy: OnStorageError, workers: Workers) -> str:
    share = "the whole of each limit"
    if workers.count > 1:
        share = f"1/{workers.count} of each limit, and nothing by a count below {workers.count},"
    return {
        "local": f"this process admits {share} by itself ({workers.source}).",
        "allow": "every request is admitted.",
        "deny": "every limited request is refused.",
        "raise": "every check raises an error.",
    }[policy]
