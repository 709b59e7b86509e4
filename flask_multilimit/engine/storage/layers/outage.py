"""An outage, from the failure of the storage to its way back: this process decides in its place, probes it, charges it
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

from ...decision import FALLBACKS, Charge, Decision
from ...errors import StorageError
from ...forks import lock_for_forks
from ...hits import Hit
from ...keys import auxiliary_key
from ...rules import Rule
from ...threads import NEVER, Beat
from ..base import Slot, Storage
from .fallback import UNLIMITED, Fallback, without_bans
from .health import Health, Report, Workers, count_workers
from .pending import Admitted, PendingCharges, repeatable

PROBE_SECONDS = 0.9
"""The least between two probes. With the time of an answer, it is less than a second."""
FIRST_PROBE = (0.05, 0.15)
"""Seconds after a failure, chosen at random so that not all workers ask at once. A hiccup is over by then."""
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

    A failure leads from any state to ``OPEN``. A process that is alone skips ``RETURNING``. An outage changes it, and
    decides what depends on the state, under its lock; reading ``state`` needs no lock.
    """

    def __init__(self) -> None:
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
        """Whether there is an outage: the storage is down, or not yet charged for what was admitted meanwhile."""
        return self.state in (State.OPEN, State.HALF_OPEN)

    @property
    def shown(self) -> Literal["closed", "open", "half-open"]:
        """The state in the words of :class:`.Health`: ``RETURNING`` is no outage any more."""
        if not self.has_failed:
            return "closed"
        return "open" if self.state is State.OPEN else "half-open"

    def at_most_twice(self, failures: int, ask: Callable[..., T], *arguments: Any) -> T:
        """What ``ask`` returns, at the first attempt or :meth:`once_more`. ``failures`` have been noted so far."""
        start = time.monotonic()
        try:
            return ask(*arguments)
        except StorageError as error:
            return self.once_more(error, failures, start, ask, *arguments)

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

    def close_in_time(self) -> bool:
        """Close if the other processes have had time to charge, too; return whether they have."""
        is_time = time.monotonic() >= self._returns_at
        if is_time and self.state is State.RETURNING:  # and no later outage has begun
            self.state = State.CLOSED
        return is_time

    def latest_error(self) -> StorageError:
        """A copy: an object that is raised repeatedly would collect tracebacks."""
        error = cast("StorageError", self.error)  # set before the breaker opens
        latest = StorageError(str(error))
        latest.remedy, latest.__cause__ = error.remedy, error.__cause__
        return latest


class Outage:
    """Begins when the storage fails. A thread, which runs only while there is something to do, ends it: when it has
    charged the storage for what was admitted meanwhile.

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
        self.pending: PendingCharges = PendingCharges(storage, clock, self.note_single, most_hits=memory_keys)
        self._storage = storage
        self._report = report
        self._given_workers = workers
        self._workers: Workers | None = None
        """``None`` until they are counted."""
        self._in_both: dict[bytes, Decision] = {}
        """By check, the decision on the shares whose slots were taken here and count in the storage, too."""
        self._lock = Lock()
        self._probed_at = 0.0
        self.beat: Beat = Beat(self._probe, name="multilimit-probe", logger=logger, last=self._charge_at_end)
        lock_for_forks(self)

    # Begin and end

    def note_failure(self, hits: tuple[Hit, ...], error: StorageError, failures: int) -> None:
        """An outage begins, unless only these keys fail, or another failure was noted after the check began."""
        if error.key_specific:
            self.note_single(hits, error)
        elif failures == self.breaker.failures:
            self._begin(hits, error, failures)

    def _begin(self, hits: tuple[Hit, ...], error: StorageError, failures: int) -> None:
        workers = count_workers(self._given_workers)  # takes milliseconds
        with self._lock:
            if failures != self.breaker.failures or not self.breaker.fail(hits, error):
                return
            self.pending.begin()
            self._leave_slots_to_storage()  # its last answer counts them
            self.fallback.begin()
            self._share_between(workers)
            health = self._health()
        self._report.failed(hits, error, health)
        self.recover()

    def note_single(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        """Something failed because of its own keys, which is no outage."""
        with self._lock:
            if not self._report.is_due():
                return
            self._share_between(count_workers(self._given_workers))
        self._report.single(hits, error)

    def _end_if_settled(self) -> bool:
        """End the outage, if there is one, unless something is pending. Return whether nothing is."""
        with self._lock:  # so that no decision is made in between
            if self.pending:
                return False
            if self.breaker.state is not State.HALF_OPEN:  # no outage, or another check has failed meanwhile
                return True
            self.fallback.end()
            seconds = self.breaker.settle(alone=self._counted().count == 1)
            health = self._health()
        self._report.is_back(seconds, self.pending.charged, health)
        return True

    def is_over(self) -> bool:
        """Whether this process is settled, and the others have had time to charge, too. Closes the breaker."""
        if self.breaker.state is State.HALF_OPEN:
            self.recover()
            return False
        with self._lock:
            return self.breaker.close_in_time()

    def health(self) -> Health:
        """How the storage stands."""
        with self._lock:
            return self._health()

    # The way back

    def recover(self) -> None:
        """Start the thread unless it runs."""
        if self.beat.wakes_at == NEVER:
            now = time.monotonic()
            self.beat.wake(max(now + random.uniform(*FIRST_PROBE), self._probed_at + PROBE_SECONDS))

    def stop(self) -> None:
        """End the thread. A later check starts another while the storage is down."""
        self.beat.finish(wait=PROBE_SECONDS)

    def _charge_at_end(self) -> None:
        """Probe at once: what is pending when the process ends is lost."""
        if self.pending:
            self._probe()

    def _probe(self) -> float | None:
        """The task of the beat."""
        self._probed_at = time.monotonic()
        try:
            self._ask_and_charge()
        except StorageError as error:
            with self._lock:
                self.breaker.fail_again(error)
        is_done = self.breaker.state is not State.OPEN and not self.pending
        return None if is_done else max(self._probed_at + PROBE_SECONDS - time.monotonic(), 0.0)

    def _ask_and_charge(self) -> None:
        """Ask the storage. If it answers, charge it for what is pending. Raises :class:`StorageError`."""
        breaker, pending = self.breaker, self.pending
        if breaker.state is State.OPEN:
            self._storage.check(probes_like(breaker.failing_hits))
            with self._lock:
                breaker.answer()
        while not self._end_if_settled():
            pending.settle()
            with self._lock:
                batch = pending.take_batch()
            breaker.at_most_twice(breaker.failures, pending.charge, batch)
            with self._lock:
                for check_id, admitted in batch:
                    pending.drop(check_id)
                    self._count_in_both(check_id, admitted.local)

    # Meanwhile

    def decide(
        self,
        check_id: bytes,
        hits: tuple[Hit, ...],
        local: tuple[Hit, ...],
        *,
        charging: bool,
        pending: bool,
        asked: bool = False,
    ) -> tuple[Decision, Decision | None]:
        """The decision on ``hits``, of which only the ``local`` ones are limited here; and the decision on their shares
        alone. ``pending``: the storage must be charged for it. ``asked``: the storage has failed, but may have charged
        it."""
        with self._lock:
            decision, on_shares = self.fallback.decide(check_id, hits, local, charging=charging)
            if pending and on_shares is not None and on_shares.charges:
                self.pending.keep(check_id, Admitted(without_bans(local), on_shares, asked=asked))
            if asked and not decision.allowed:
                self._refund_later_if_charged(check_id, hits)
        self._catch_up()
        return decision, on_shares

    def not_admitted(self, check_id: bytes, hits: tuple[Hit, ...]) -> None:
        """A check that the storage has been asked about, and may have charged, is not admitted here."""
        with self._lock:
            self._refund_later_if_charged(check_id, hits)
        self._catch_up()

    def _catch_up(self) -> None:
        """Tell the storage what is pending, if it came back meanwhile: the recovery may have ended before."""
        if self.breaker.state is not State.OPEN and self.pending:
            self.recover()

    def confirm(self, on_shares: Decision | None, answer: Decision | None) -> None:
        """Refund what :meth:`decide` has charged here, unless the ``answer`` of the storage has admitted it, too."""
        if on_shares is None:
            return
        with self._lock:
            if answer is not None and answer.allowed and answer.decided_by not in FALLBACKS:
                self._count_in_both(answer.check_id, on_shares)
            else:
                self.fallback.settle(on_shares, {hit.key: 0 for hit in on_shares.hits})

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> bool:
        """Settle what was charged here, or keep the settlement for later; ``False`` if it is for the storage to
        make."""
        units = {charge.hit.key: charge.units for charge in charges}
        with self._lock:
            admitted = self.pending.admitted.get(check_id.bytes)
            self._refund_here(check_id.bytes, [key for key, left in units.items() if not left])
            if admitted is not None:
                admitted.local = self.fallback.settle(admitted.local, units)
                admitted.note_excess(charges, self.fallback.now())
                if not admitted.carried:
                    charges = repeatable(charges) if admitted.asked else ()
                    for charge in charges:  # the charge may have been made as it was, so it is settled after that
                        del units[charge.hit.key]
                    admitted.hits = tuple([_at_cost(hit, units.get(hit.key)) for hit in admitted.hits])
            elif self.breaker.state is not State.OPEN:
                return False
            if charges:
                self.pending.keep_settlement(check_id.bytes, charges)
            return True

    def release(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Release the slots that were taken here, and keep others for later while the storage is down. Return those
        that are for the storage to release."""
        if self.breaker.state is State.CLOSED and not self.pending:
            return slots
        with self._lock:
            return [slot for slot in slots if not self._release_here(slot)]

    def _release_here(self, slot: Slot) -> bool:
        admitted = self.pending.admitted.get(slot.check_id)
        if admitted is not None:
            admitted.local = self.fallback.settle(admitted.local, {slot.hit.key: 0})
            if not admitted.carried and not admitted.asked:
                return True
        else:
            self._refund_here(slot.check_id, (slot.hit.key,))
            if self.breaker.state is not State.OPEN:
                return False
            self.fallback.slot_is_free(slot)
        self.pending.keep_settlement(slot.check_id, (Charge(slot.hit, 0),))
        return True

    def renew(self, slots: Sequence[Slot]) -> list[Slot]:
        """While the storage is down, slots count here, and it is charged for them when it is back, because they may
        have expired there meanwhile. Return those that are for the storage to renew."""
        of_checks: dict[bytes, list[Slot]] = {}
        for slot in slots:
            of_checks.setdefault(slot.check_id, []).append(slot)
        elsewhere = list[Slot]()
        with self._lock:
            for check_id, taken in of_checks.items():
                admitted = self.pending.admitted.get(check_id)
                if admitted is not None:
                    admitted.local = self.fallback.renew(admitted.local)
                elif self.breaker.state is State.OPEN:
                    self._refund_here(check_id, [slot.hit.key for slot in taken])
                    local, hits = self.fallback.take_over(taken), tuple([slot.hit for slot in taken])
                    self.pending.keep(check_id, Admitted(hits, local, carried=True, before=True))
                else:
                    elsewhere += taken
        return elsewhere

    def reset(self, keys: Sequence[str]) -> None:
        """Forget what was counted and known about ``keys``."""
        with self._lock:
            self.fallback.reset(keys)

    # Under the lock

    def _leave_slots_to_storage(self) -> None:
        """What counts in both counts in the storage alone from now on."""
        for check_id, on_shares in list(self._in_both.items()):
            self._refund_here(check_id, [hit.key for hit in on_shares.hits if hit.rule.holds_slots])

    def _refund_here(self, check_id: bytes, keys: Sequence[str]) -> None:
        """Refund what counts in both, here."""
        on_shares = self._in_both.pop(check_id, None)
        if on_shares is not None:
            self._count_in_both(check_id, self.fallback.settle(on_shares, dict.fromkeys(keys, 0)))

    def _count_in_both(self, check_id: bytes, on_shares: Decision) -> None:
        if any(charge.hit.rule.holds_slots for charge in on_shares.charges):
            self._in_both[check_id] = on_shares

    def _refund_later_if_charged(self, check_id: bytes, hits: tuple[Hit, ...]) -> None:
        charges = repeatable([Charge(hit, 0) for hit in hits if hit.cost])
        if charges:
            self.pending.keep_settlement(check_id, charges)

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
        """The processes that share a limit. Counting them takes milliseconds, so it waits until somebody asks."""
        workers = self._workers
        if workers is None:
            workers = count_workers(self._given_workers)
            self._share_between(workers)
        return workers

    def _share_between(self, workers: Workers) -> None:
        self._workers = workers
        self.fallback.workers = workers.count

    def _after_fork_in_child(self) -> None:
        """Leave it to the parent to charge what it has admitted. The child finds an outage by itself, and counts the
        workers: the parent may have counted before they existed."""
        self._lock = Lock()
        self.breaker.state = State.CLOSED
        self._workers = None
        self.pending.forget()


def _at_cost(hit: Hit, units: int | None) -> Hit:
    """``hit`` with what its charge was settled at, if it was; at 0 it is not charged any more."""
    return replace(hit, cost=units) if units else hit


def probes_like(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits that write wherever ``hits`` would (same prefixes, same slots), and expire in a second."""
    keys = dict.fromkeys(auxiliary_key(hit.key, "probe::fixed_window:1000") for hit in hits)
    return tuple(Hit(key, Rule(1, UNLIMITED, algorithm="fixed_window")) for key in keys)
