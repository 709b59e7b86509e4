"""The way back: the storage is probed, charged for what was admitted without it, and decides again."""

from __future__ import annotations

import time

from ....errors import StorageError
from ...base import Storage
from .breaker import State
from .outage import Outage
from .probe import Prober, probes_like
from .report import Report


class Recovery:
    """Ends an outage of ``storage`` in a thread of its own, which runs only while there is something to do."""

    def __init__(self, storage: Storage, outage: Outage, report: Report) -> None:
        self._storage = storage
        self._outage = outage
        self._prober = Prober(
            self._attempt,
            is_done=self._is_done,
            failed=outage.breaker.fail_again,
            cannot_start=report.no_thread,
        )

    def ensure(self) -> None:
        """Start the thread unless it runs."""
        self._prober.ensure(self._outage.breaker.lock)

    def stop(self) -> None:
        self._prober.stop()

    def _attempt(self) -> None:
        """Ask the storage. If it answers, charge it for what is pending. Raises :class:`StorageError`."""
        breaker, pending = self._outage.breaker, self._outage.pending
        if breaker.state is State.OPEN:
            self._storage.check(probes_like(breaker.failing_hits))
            with breaker.lock:
                breaker.answer()
        while not self._outage.end_if_settled():
            pending.give_back()
            batch = self._outage.take_batch()
            failures, start = breaker.failures, time.monotonic()
            try:
                pending.charge(batch)
            except StorageError as error:
                breaker.once_more(error, failures, start, pending.charge, batch)
            self._outage.charged(batch)

    def _is_done(self) -> bool:
        return self._outage.breaker.state is not State.OPEN and not self._outage.pending
