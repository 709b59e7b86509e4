"""What a guard reports: one line in the log, and one call, for each change, not one for each request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ....errors import StorageError, with_remedy
from ....hits import Hit, OnStorageError
from ....keys import without_subject
from ....text import SafeLogger
from .health import Health
from .workers import Workers

LOG_SECONDS = 60.0
"""Between two lines about single checks that fail."""


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
            "Rate limits: %s, asked about %s. Until the storage is back: %s",
            with_remedy(error),
            without_subject(hits[0].key),
            _meanwhile(self._on_error, health.workers),
        )
        self._tell(health)

    def is_back(self, seconds: float, charged: int, health: Health) -> None:
        self._logger.warning(
            "Rate limits: the storage is back after %.1f s. Checks admitted meanwhile: %d charged to it, %d not.",
            seconds,
            charged,
            health.given_up,
        )
        self._tell(health)

    def _tell(self, health: Health) -> None:
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

    def no_thread(self, error: RuntimeError) -> None:
        self._logger.warning("Rate limits: could not start the recovery thread: %s", error)


def _meanwhile(policy: OnStorageError, workers: Workers) -> str:
    share = "the whole" if workers.count == 1 else f"1/{workers.count}"
    return {
        "local": f"this process admits {share} of each limit by itself ({workers.source}).",
        "allow": "every request is admitted.",
        "deny": "every limited request is refused.",
        "raise": "every check raises an error.",
    }[policy]
