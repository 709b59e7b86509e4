"""Sends traffic, which is counted by default, to the storage once a second, off the request path."""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections import Counter as Amounts
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Literal, Protocol

from ...engine import StorageError
from ...engine.errors import with_remedy
from ...engine.forks import LateLock, lock_for_forks
from ...engine.storage import KeepsTallies
from ...engine.text import SafeLogger
from ...engine.threads import ENDING_SECONDS, Beat
from ..events import QUIET_SECONDS
from .counting import MOST_SENT, Counter
from .counts import (
    ANYBODY,
    BUCKET_SECONDS,
    MOST_BANS,
    MOST_STARTS_KEPT,
    PAUSE_BUCKETS,
    Counts,
    Refused,
    TrafficKeys,
    bucket_at,
    encodable,
    tallies_of,
)
from .log import RefusalLog

SECONDS = 1.0
"""The time between two turns."""
IDLE_TURNS = 5
"""The thread ends after this many turns with nothing to do. The next event starts another."""
MOST_WAITING = 90
"""The most batches that wait for a storage that is down. Beyond that, two of one minute are joined, the oldest first,
so that an hour without a pause stays one. Amounts stay exact, but all count for the later ten seconds."""

ShownSubjects = Literal["plain", "hashed", "none"]
"""How subjects are stored."""


class Task(Protocol):
    """Something to do once a second."""

    def __call__(self, *, ending: bool = False) -> bool:
        """Do what is due, or if the process is ``ending``, everything. Return whether there is more to do."""


class EverySecond:
    """Runs tasks once a second, from :meth:`start` on until none has had anything to do for a while; and a last time
    when the process ends."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = SafeLogger(logger)
        self._tasks: list[Task] = []
        self._idle = 0
        self._lock = LateLock(again=True)
        self.beat: Beat = Beat(self._turn, name="multilimit-beat", logger=logger, last=partial(self.once, ending=True))

    def add(self, task: Task) -> None:
        self._tasks.append(task)

    def start(self) -> None:
        """Run the tasks from now on. A caller may skip this while the beat has a time at which it wakes."""
        if self._tasks:
            self.beat.wake(time.monotonic() + SECONDS)

    def once(self, *, ending: bool = False) -> bool:
        """Run every task now, and not in two threads at once. Return whether any has more to do."""
        more = False
        with self._lock():
            for task in self._tasks:
                try:
                    more = task(ending=ending) or more
                except Exception:  # noqa: PERF203 - the other tasks must run
                    self._logger.exception("Rate limits: %r raised in the background", task)
        return more

    def close(self) -> None:
        """Let the thread end, and run every task a last time. A later event starts another thread."""
        self.beat.finish(wait=ENDING_SECONDS)

    def _turn(self) -> float | None:
        self._idle = 0 if self.once() else self._idle + 1
        if self._idle < IDLE_TURNS:
            return SECONDS
        self._idle = 0
        return None


class Batch:
    """Counts for one bucket, sent in one command."""

    def __init__(self, bucket: int, counts: Counts) -> None:
        self.bucket = bucket
        self.counts = counts
        self.number: int | None = None
        """Set at the first attempt to send it. That may have arrived, so from then on the batch must not change."""


class Outbox:
    """Sends counts to ``storage``, each once. Thread-safe; a forked child sends under a name of its own."""

    def __init__(
        self,
        storage: KeepsTallies,
        prefix: str,
        *,
        logger: logging.Logger,
        is_down: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._keys = TrafficKeys(prefix)
        self._logger = SafeLogger(logger)
        self._is_down = is_down
        self._clock = clock
        self._ahead: float | None = None
        """Seconds by which the storage's clock is ahead of this process's; ``None`` until it has answered."""
        self._quiet_until = -float("inf")
        self._lock = LateLock()
        self._refused: dict[Refused, float] = {}
        """When each subject was last refused, within the last minute."""
        self._after_fork_in_child()
        lock_for_forks(self)

    def put(self, counts: Counts) -> None:
        """Take ``counts`` of the last second."""
        if self._ahead is None:
            with suppress(StorageError):  # sending reports it
                self._ahead = self._storage.tallies([self._source]).at - self._clock()
        with self._lock():
            ahead = self._ahead or 0.0
            counts.begun = [ban._replace(began=ban.began + ahead, until=ban.until + ahead) for ban in counts.begun]
            now = self._clock() + ahead
            counts.starts = self._new_series([ANYBODY, *counts.refused], now)
            bucket = bucket_at(now)
            last = self._waiting[-1] if self._waiting else None
            if last is not None and last.bucket == bucket and last.number is None:
                _merge(last.counts, counts)
            else:
                self._waiting.append(Batch(bucket, counts))
            if len(self._waiting) > MOST_WAITING:
                self._join_two()

    def send(self) -> bool:
        """Send the waiting batches, each in one command. Return whether any is left."""
        while True:
            with self._lock():
                if not self._waiting:
                    return False
                batch = self._waiting[0]
                if batch.number is None:
                    self._sent += 1
                    batch.number = self._sent
                source = self._source
            try:
                at = self._storage.tally(
                    tallies_of(self._keys, batch.bucket, batch.counts), source=source, number=batch.number
                )
            except StorageError as error:
                self._log(error)
                return True
            with self._lock():
                self._ahead = at - self._clock()
                if self._waiting and self._waiting[0] is batch:
                    self._waiting.pop(0)

    def _join_two(self) -> None:
        """Join two batches, but not the first one, which may have been sent already."""
        minutes = [batch.bucket // PAUSE_BUCKETS for batch in self._waiting]
        places = range(1, len(minutes) - 1)
        place = next((place for place in places if minutes[place] == minutes[place + 1]), 1)
        joined = self._waiting.pop(place)
        _merge(self._waiting[place].counts, joined.counts)

    def _new_series(self, refused: Iterable[Refused], now: float) -> list[tuple[Refused, float]]:
        """The subjects in ``refused`` that this process had not refused (of :data:`ANYBODY`: not checked) in the last
        minute, each with its first refusal: rates divide by the time since then. The first check started the thread, a
        second ago; others were refused within that second, half of it ago on average."""
        recent = {who: at for who, at in self._refused.items() if now - at <= PAUSE_BUCKETS * BUCKET_SECONDS}
        self._refused = {**recent, **dict.fromkeys(refused, now)}
        return [(who, now - (SECONDS if who == ANYBODY else SECONDS / 2)) for who in refused if who not in recent]

    def _after_fork_in_child(self) -> None:
        """Start with nothing: the parent sends what waits."""
        self._source = self._keys.source(os.urandom(8).hex())
        self._sent = 0
        self._waiting: list[Batch] = []

    def _log(self, error: StorageError) -> None:
        """Log ``error``, at most once a minute, unless the storage is down: then the guard reports it."""
        now = time.monotonic()
        if now >= self._quiet_until and not self._is_down():
            self._quiet_until = now + QUIET_SECONDS
            self._logger.warning("Rate limits: could not store traffic; will retry: %s", with_remedy(error))


def as_stored(counts: Counts, how: ShownSubjects, key: bytes) -> Counts:
    """``counts`` with the subjects in the form in which they may be stored."""
    if how == "plain":
        show = encodable
    else:

        def show(subject: str) -> str:
            return blake2b(subject.encode("utf-8", "surrogatepass"), key=key, digest_size=8).hexdigest()

    refused = {who._replace(subject=show(who.subject)): amount for who, amount in counts.refused.items()}
    return Counts(counts.checks, counts.rules, refused, counts.begun)


def _merge(counts: Counts, others: Counts) -> None:
    counts.add(others)
    if len(counts.refused) > MOST_SENT:
        counts.refused = dict(Amounts(counts.refused).most_common(MOST_SENT))
    del counts.starts[MOST_STARTS_KEPT:]
    if len(counts.begun) > MOST_BANS:
        counts.begun = heapq.nlargest(MOST_BANS, counts.begun, key=lambda ban: ban.until)


class Traffic(Counter):
    """Counts by endpoint, rule and outcome, and keeps the subjects that are refused most.

    ``outbox`` sends the counts to the storage; it is ``None`` if the storage keeps none. ``log`` writes summaries.
    """

    def __init__(
        self,
        background: EverySecond,
        *,
        outbox: Outbox | None,
        log: RefusalLog | None,
        subjects: ShownSubjects = "plain",
        key: bytes = b"",
    ) -> None:
        super().__init__(subjects=subjects != "none")
        self._outbox = outbox
        self._log = log
        self._subjects = subjects
        self._key = key
        background.add(self.flush)

    def flush(self, *, ending: bool = False) -> bool:
        """Pass on what was counted since the last call. Return whether there is more to do."""
        counts = self.take()
        if counts:
            self._pass_on(as_stored(counts, self._subjects, self._key))
        more = self._outbox is not None and self._outbox.send()
        return (self._log is not None and self._log.log_if_due(at_once=ending)) or more or bool(counts)

    def _pass_on(self, counts: Counts) -> None:
        if self._log is not None:
            self._log.add(counts)
        if self._outbox is not None:
            self._outbox.put(counts)
