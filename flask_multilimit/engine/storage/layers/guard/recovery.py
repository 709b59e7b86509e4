"""The way back: the storage is probed, charged for what was admitted without it, and decides again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable

from ....errors import StorageError
from ....hits import Hit
from ....keys import beside
from ....rules import Rule
from ....threads import NEVER, Beat
from ...base import Storage
from .fallback import UNLIMITED
from .outage import Outage, State

PROBE_SECONDS = 0.9
"""The least between two probes. With the time of an answer, it is less than a second."""
FIRST_PROBE = (0.05, 0.15)
"""Seconds after a failure, chosen at random so that not all workers ask at once. A hiccup is over by then."""


class Recovery:
    """Ends an outage of ``storage`` in a thread of its own, which runs only while there is something to do."""

    def __init__(self, storage: Storage, outage: Outage, logger: logging.Logger | None) -> None:
        self._storage = storage
        self._outage = outage
        self._last = 0.0
        self._stopped = False
        self._beat = Beat(self._probe, name="multilimit-probe", logger=logger)

    @property
    def running(self) -> bool:
        """Whether there is a thread."""
        return self._beat.running

    def ensure(self) -> None:
        """Start the thread unless it runs."""
        if self._beat.wakes_at == NEVER and not self._stopped:
            now = time.monotonic()
            self._beat.wake(max(now + random.uniform(*FIRST_PROBE), self._last + PROBE_SECONDS))

    def stop(self) -> None:
        self._stopped = True
        self._beat.close(wait=PROBE_SECONDS)

    def _probe(self) -> float | None:
        """The task of the beat."""
        self._last = time.monotonic()
        outage = self._outage
        try:
            self._attempt()
        except StorageError as error:
            with outage.breaker.lock:
                outage.breaker.fail_again(error)
        is_done = outage.breaker.state is not State.OPEN and not outage.pending
        return None if is_done else max(self._last + PROBE_SECONDS - time.monotonic(), 0.0)

    def _attempt(self) -> None:
        """Ask the storage. If it answers, charge it for what is pending. Raises :class:`StorageError`."""
        breaker, pending = self._outage.breaker, self._outage.pending
        if breaker.state is State.OPEN:
            self._storage.check(probes_like(breaker.failing_hits))
            with breaker.lock:
                breaker.answer()
        while not self._outage.end_if_settled():
            pending.settle()
            batch = self._outage.take_batch()
            failures, start = breaker.failures, time.monotonic()
            try:
                pending.charge(batch)
            except StorageError as error:
                breaker.once_more(error, failures, start, pending.charge, batch)
            self._outage.charged(batch)


def probes_like(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits that write wherever ``hits`` would (same prefixes, same slots), and expire in a second."""
    keys = dict.fromkeys(beside(hit.key, "probe::fixed_window:1000") for hit in hits)
    return tuple(Hit(key, Rule(1, UNLIMITED, algorithm="fixed_window")) for key in keys)
