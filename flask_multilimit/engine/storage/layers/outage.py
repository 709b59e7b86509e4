"""An outage, from the failure of a storage to its recovery: this process decides in its place, probes it, charges it
for what was admitted meanwhile, and lets it decide again."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from threading import Lock
from typing import Any, Literal, TypeVar, cast
from uuid import UUID

from ...decision import Charge, Decision
from ...errors import StorageError
from ...forks import lock_for_forks
from ...hits import Hit
from ...keys import probe_key
from ...rules import Rule
from ...threads import NEVER, Beat
from ..base import Slot, Storage
from .fallback import UNLIMITED, Fallback, without_bans
from .health import Health, Report, Workers, count_workers
from .pending import Admitted, PendingCharges, repeatable

PROBE_SECONDS = 0.9
"""The least time between two probes. With the time of an answer, it is less than a second."""
FIRST_PROBE = (0.05, 0.15)
"""Seconds from a failure to the first probe, random so that not all workers ask at once. A hiccup is over by then."""
RETURN_SECONDS = 1.5
"""How long a process stays in ``RETURNING``: the last process to probe is one probe behind, and may still have charges
to make."""
PATIENCE = 1.0
"""If an attempt took this many seconds, there is no second one: a request must not wait that long twice."""

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

    A failure leads from any state to ``OPEN``. A process that is alone skips ``RETURNING``. An :class:`Outage` changes
    the state, and decides what depends on it, under its lock. Reading ``state`` needs no lock.
    """

    def __init__(self) -> None:
        self.state: State = State.CLOSED
        self.failures: int = 0
        """Failures recorded so far. If a check that began before the latest one fails, that is not recorded."""
        self.since: float = time.time()
        """The POSIX time of the latest change of the health."""
        self.error: StorageError | None = None
        self.failing_hits: tuple[Hit, ...] = ()
        """The hits of the check that failed last."""
        self._failed_at = 0.0
        self._returns_at = math.inf

    @property
    def has_failed(self) -> bool:
        """Whether there is an outage: the storage is down, or not yet charged for what this process admitted."""
        return self.state in (State.OPEN, State.HALF_OPEN)

    @property
    def shown(self) -> Literal["closed", "open", "half-open"]:
        """The state as :class:`.Health` shows it: ``RETURNING`` is no outage any more."""
        if not self.has_failed:
            return "closed"
        return "open" if self.state is State.OPEN else "half-open"

    def ask_at_most_twice(self, failures: int, ask: Callable[..., T], *arguments: Any) -> T:
        """Return what ``ask`` returns, at the first attempt or at the second (:meth:`ask_again`). ``failures`` have
        been recorded so far."""
        start = time.monotonic()
        try:
            return ask(*arguments)
        except StorageError as error:
            return self.ask_again(error, failures, start, ask, *arguments)

    def ask_again(self, error: StorageError, failures: int, start: float, ask: Callable[..., T], *arguments: Any) -> T:
        """Make a second attempt, so that one lost reply does not open the breaker. The first one began at ``start``, by
        :func:`time.monotonic`, when ``failures`` had been recorded, and raised ``error``, which is raised again if a
        second attempt makes no sense. Raises :class:`StorageError`."""
        if not error.no_reply or failures != self.failures or time.monotonic() - start > PATIENCE:
            raise error
        return ask(*arguments)

    def fail(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        """Open. A failure in ``HALF_OPEN`` belongs to the same outage."""
        if not self.has_failed:
            self.since, self._failed_at = time.time(), time.monotonic()
        self.error, self.failing_hits = error, hits
        self.failures += 1
        self.state = State.OPEN

    def fail_again(self, error: StorageError) -> None:
        """Open again in an outage, because a probe failed, or a charge after it."""
        self.error = error
        if self.has_failed:
            self.state = State.OPEN

    def half_open(self) -> None:
        """Let the storage decide again, because it has answered a probe."""
        if self.state is State.OPEN:
            self.state = State.HALF_OPEN

    def finish(self, *, alone: bool) -> float:
        """End the outage, because the storage is charged for everything. Return how many seconds the outage took."""
        now = time.monotonic()
        self.state = State.CLOSED if alone else State.RETURNING
        self._returns_at = now + RETURN_SECONDS
        self.since = time.time()
        return now - self._failed_at

    def close_in_time(self) -> bool:
        """Close if the other processes have had time to charge the storage, too. Return whether they have."""
        is_time = time.monotonic() >= self._returns_at
        if is_time and self.state is State.RETURNING:  # and no later outage has begun
            self.state = State.CLOSED
        return is_time

    def latest_error(self) -> StorageError:
        """A copy of the latest error: an object that is raised repeatedly would collect tracebacks."""
        error = cast("StorageError", self.error)  # set before the breaker opens
        latest = StorageError(str(error), remedy=error.remedy)
        latest.__cause__ = error.__cause__
        return latest


class Outage:
    """Begins when ``storage`` fails, and ends when it is charged for what was admitted meanwhile. The thread that
    probes and charges it runs only while there is something to do.

    ``memory_keys`` bounds both the keys that are counted here and the hits that are kept to be charged later.
    Thread-safe, fork-safe.
    """

    def __init__(
        self,
        storage: Storage,
        report: Report,
        *,
        workers: int | None,
        memory_keys: int,
        clock: Callable[[], int],
        logger: logging.Logger | None,
    ) -> None:
        self.breaker: Breaker = Breaker()
        self.fallback: Fallback = Fallback(clock, most_keys=memory_keys)
        self.pending: PendingCharges = PendingCharges(
            storage, clock, self.fallback.remember, self.log_single, most_hits=memory_keys
        )
        self._storage = storage
        self._report = report
        self._given_workers = workers
        self._workers: Workers | None = None
        """``None`` until they are counted."""
        self._counted_twice: dict[bytes, Decision] = {}
        """By check, the decision of this process about slots that count both here and in the storage."""
        self._lock = Lock()
        self._probed_at = 0.0
        self.beat: Beat = Beat(self._probe, name="multilimit-probe", logger=logger, last=self._charge_at_end)
        lock_for_forks(self)

    # Begin and end

    def record_failure(self, hits: tuple[Hit, ...], error: StorageError, failures: int) -> None:
        """Begin an outage, unless only these keys fail, or another failure was recorded since the check began."""
        if error.key_specific:
            self.log_single(hits, error)
            return
        with self._lock:
            if failures != self.breaker.failures:
                return
            begins = not self.breaker.has_failed
            if begins:
                self._count_workers()
                self.pending.begin()
                for check_id, on_shares in list(self._counted_twice.items()):  # the last answer counts these slots
                    self._refund_counted_twice(check_id, [hit.key for hit in on_shares.hits if hit.rule.holds_slots])
                self.fallback.begin()
            self.fallback.gather_again()  # also what came while it began
            self.breaker.fail(hits, error)  # last: if this is interrupted, the next failure begins the outage
            health = self._health()
        if begins:
            self._report.failed(hits, error, health)
            self.recover()

    def log_single(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        """Log a failure that concerns only the keys of ``hits``, which is no outage."""
        with self._lock:
            if not self._report.take_turn():
                return
            self._count_workers()
        self._report.single(hits, error)

    def _end_if_nothing_pending(self) -> bool:
        """End the outage, if there is one, unless anything is pending. Return whether nothing is pending."""
        with self._lock:  # so that no decision is made in between
            if self.pending:
                return False
            if self.breaker.state is not State.HALF_OPEN:  # no outage, or another check has just failed
                return True
            self.fallback.end()
            seconds = self.breaker.finish(alone=self._counted().count == 1)
            health = self._health()
        self._report.is_back(seconds, self.pending.charged, self.pending.unsettled, health)
        return True

    def close_if_over(self) -> bool:
        """Close the breaker if this process and, as far as it can know, the others have charged the storage. Return
        whether they have."""
        if self.breaker.state is State.HALF_OPEN:
            self.recover()
            return False
        with self._lock:
            return self.breaker.close_in_time()

    def health(self) -> Health:
        """The state of the storage."""
        with self._lock:
            return self._health()

    # Recovery

    def recover(self) -> None:
        """Start the thread unless it runs."""
        if self.beat.wakes_at == NEVER:
            self.beat.wake(max(time.monotonic() + random.uniform(*FIRST_PROBE), self._probed_at + PROBE_SECONDS))

    def stop(self) -> None:
        """End the thread. A later check starts another while the storage is down."""
        self.beat.finish(wait=PROBE_SECONDS)

    def _charge_at_end(self) -> None:
        """Probe at once if anything is pending, because that is lost when the process ends."""
        if self.pending:
            self._probe()

    def _probe(self) -> float | None:
        """The task of the beat."""
        self._probed_at, failures = time.monotonic(), self.breaker.failures
        try:
            self._ask_and_charge()
        except StorageError as error:
            with self._lock:
                if self.breaker.state is not State.OPEN or failures != self.breaker.failures:
                    self.fallback.gather_again()  # it may have been charged since
                self.breaker.fail_again(error)
        is_done = self.breaker.state is not State.OPEN and not self.pending
        return None if is_done else max(self._probed_at + PROBE_SECONDS - time.monotonic(), 0.0)

    def _ask_and_charge(self) -> None:
        """Ask the storage. If it answers, charge it for what is pending. Raises :class:`StorageError`."""
        breaker, pending = self.breaker, self.pending
        if breaker.state is State.OPEN:
            self._storage.check(probes_like(breaker.failing_hits))
            with self._lock:
                breaker.half_open()
        while not self._end_if_nothing_pending():
            pending.settle()
            with self._lock:
                batch = pending.take_batch()
            breaker.ask_at_most_twice(breaker.failures, pending.charge, batch)
            with self._lock:
                for check_id, admitted in batch:
                    pending.drop(check_id)
                    self._keep_counted_twice(check_id, admitted.on_shares)

    # During the outage

    def decide(
        self, check_id: UUID | None, hits: tuple[Hit, ...], local: tuple[Hit, ...], *, charging: bool, pending: bool
    ) -> tuple[Decision, Decision | None]:
        """The decision on ``hits``, of which only the ``local`` ones are limited here; and the decision on the shares
        of those alone. The storage may have charged a check with this ``check_id``, if there is one. ``pending``:
        whether it must be charged later."""
        with self._lock:
            decision, on_shares = self.fallback.decide(check_id, hits, local, charging=charging)
            if pending and on_shares is not None and on_shares.charges:
                admitted = Admitted(without_bans(local), on_shares, may_be_charged=check_id is not None)
                self.pending.keep(decision.check_id, admitted)
        if self.pending:  # perhaps after the recovery had ended
            self.recover()
        return decision, on_shares

    def refund_later(self, check_id: UUID, hits: tuple[Hit, ...]) -> None:
        """Refund later what the storage may have charged for a check that is not admitted here."""
        if charges := repeatable([Charge(hit, 0) for hit in hits if hit.cost]):
            with self._lock:
                self.pending.keep_settlement(check_id.bytes, charges)
            self.recover()

    def confirm(self, on_shares: Decision | None, answer: Decision | None) -> None:
        """Refund what :meth:`decide` has charged here, unless the ``answer`` of the storage has admitted it, too."""
        if on_shares is None:
            return
        with self._lock:
            if answer is not None and answer.allowed:
                self._keep_counted_twice(answer.check_id, on_shares)
            elif on_shares.check_id not in self.pending.admitted:  # not one that was admitted here before
                self.fallback.settle(on_shares, {hit.key: 0 for hit in on_shares.hits})

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> bool:
        """Settle what was charged here, or keep the settlement for later. Return ``False`` if the caller must settle it
        in the storage."""
        units = {charge.hit.key: charge.units for charge in charges}
        with self._lock:
            admitted = self.pending.admitted.get(check_id.bytes)
            self._refund_counted_twice(check_id.bytes, [key for key, left in units.items() if not left])
            if admitted is not None:
                admitted.on_shares = self.fallback.settle(admitted.on_shares, units)
                admitted.add_excess(charges, self.fallback.now())
                if admitted.slots_from_before:
                    self.fallback.record_excess(charges)
                if not admitted.settled_later:
                    charges = ()
                    # A hit that was settled at 0 no longer counts, so its cost stays.
                    admitted.hits = tuple([replace(hit, cost=units.get(hit.key) or hit.cost) for hit in admitted.hits])
            elif self.breaker.state is not State.OPEN:
                return False
            else:
                self.fallback.record_excess(charges)
                for hit, _, left in charges:
                    if hit.rule.holds_slots and not left:
                        self.fallback.free_slot(Slot(check_id.bytes, hit))
            if charges:
                self.pending.keep_settlement(check_id.bytes, charges)
            return True

    def record_excess(self, charges: Sequence[Charge]) -> None:
        """Record what the storage has just charged beyond the cost of a check."""
        with self._lock:
            self.fallback.record_excess(charges)

    def record_overtaken(self, answer: Decision) -> None:
        """Keep an ``answer`` that came after an outage had begun, and count what the storage has charged by it."""
        with self._lock:  # so that no decision is made in between
            self.fallback.record_overtaken(answer)

    def release(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Release slots that were taken here, and keep the release of others for later while the storage is down.
        Return the slots that the caller must release in the storage."""
        with self._lock:
            if self.breaker.state is not State.CLOSED or self.pending:
                slots = [slot for slot in slots if not self._release_here(slot)]
            self.fallback.record_release(slots)
        return slots

    def _release_here(self, slot: Slot) -> bool:
        admitted = self.pending.admitted.get(slot.check_id)
        if admitted is not None:
            admitted.on_shares = self.fallback.settle(admitted.on_shares, {slot.hit.key: 0})
            if not admitted.sent and not admitted.may_be_charged:
                return True
        else:
            self._refund_counted_twice(slot.check_id, (slot.hit.key,))
            if self.breaker.state is not State.OPEN:
                return False
            self.fallback.free_slot(slot)
        self.pending.keep_settlement(slot.check_id, (Charge(slot.hit, 0),))
        return True

    def renew(self, slots: Sequence[Slot]) -> list[Slot]:
        """Count slots here while the storage is down. It is charged for them when it is back, because they may have
        expired there. Return the slots that the caller must renew in the storage."""
        by_check: dict[bytes, list[Slot]] = {}
        for slot in slots:
            by_check.setdefault(slot.check_id, []).append(slot)
        in_storage = list[Slot]()
        with self._lock:
            for check_id, taken in by_check.items():
                admitted = self.pending.admitted.get(check_id)
                if admitted is not None:
                    admitted.on_shares = self.fallback.renew(admitted.on_shares)
                elif self.breaker.state is State.OPEN:
                    self._refund_counted_twice(check_id, [slot.hit.key for slot in taken])
                    local, hits = self.fallback.take_over(taken), tuple([slot.hit for slot in taken])
                    self.pending.keep(check_id, Admitted(hits, local, sent=True, charged=True, slots_from_before=True))
                else:
                    in_storage += taken
        return in_storage

    def reset(self, keys: Sequence[str]) -> None:
        """Forget what was counted here for ``keys``, what is still to be charged to them, and what the storage said
        about them."""
        with self._lock:
            self.fallback.reset(keys)
            self.pending.reset(set(keys))

    # The callers of these hold the lock

    def _refund_counted_twice(self, check_id: bytes, keys: Sequence[str]) -> None:
        """Refund here what is counted twice."""
        on_shares = self._counted_twice.pop(check_id, None)
        if on_shares is not None:
            self._keep_counted_twice(check_id, self.fallback.settle(on_shares, dict.fromkeys(keys, 0)))

    def _keep_counted_twice(self, check_id: bytes, on_shares: Decision) -> None:
        if any(charge.hit.rule.holds_slots for charge in on_shares.charges):
            self._counted_twice[check_id] = on_shares

    def _health(self) -> Health:
        breaker, pending = self.breaker, self.pending
        return Health(
            state="failed" if breaker.has_failed else "working",
            since=breaker.since,
            error=breaker.error,
            breaker=breaker.shown,
            fallback_keys=len(self.fallback),
            pending=len(pending.admitted),
            given_up=pending.given_up,
            workers=self._counted(),
        )

    def _counted(self) -> Workers:
        """The processes that share a limit, counted at the first call, because that takes milliseconds."""
        return self._workers or self._count_workers()

    def _count_workers(self) -> Workers:
        self._workers = workers = count_workers(self._given_workers)
        self.fallback.workers = workers.count
        return workers

    def _after_fork_in_child(self) -> None:
        """Leave pending charges to the parent. The child notices an outage by itself, and counts the workers, because
        the parent may have counted before they existed."""
        self._lock = Lock()
        self._workers = None
        self.breaker.state = State.CLOSED
        self.fallback.end()
        self.pending.forget()


def probes_like(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits that write where ``hits`` would (same prefixes, same hash slots) and what they would, because a server may
    refuse to write logs and take numbers. They expire in two seconds."""
    algorithms = ((hit, "sliding_window" if hit.rule.implementation.recognise else "fixed_window") for hit in hits)
    keys = {probe_key(hit.key, name): name for hit, name in algorithms}
    return tuple(Hit(key, Rule(1, UNLIMITED, algorithm=name)) for key, name in keys.items())
