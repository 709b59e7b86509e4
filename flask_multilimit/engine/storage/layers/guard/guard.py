"""A layer around a storage that may fail.

A check that gets no reply is sent once more. If that fails, too, the breaker opens. From then on, no request waits for
the server, and each check is decided here, as the ``on_storage_error`` of its hits says. A thread probes the server
about once a second. When it answers, it decides checks again, but only within this process's share while it is charged
for what was admitted during the outage. Then the breaker closes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

from ....clock import monotonic_microseconds
from ....decision import FALLBACKS, Charge, Decision
from ....errors import StorageDenied, StorageError, check_logger
from ....forks import mind_forks
from ....hits import PEEKED, Hit, OnStorageError
from ...base import KeepsSlots, Lost, Slot, Storage, check_clock, check_storage
from .breaker import Breaker, State
from .fallback import MOST_KEYS, Fallback, check_outage_keys, without_bans
from .health import Health, check_on_change
from .log import OutageLog
from .pending import Admitted, PendingCharges
from .policy import Policy
from .probe import Prober, probes_like
from .workers import Workers, check_workers, count_workers

PATIENCE = 1.0
"""Seconds after which there is no second attempt, so that a request never waits that long again."""

T = TypeVar("T")

_CLOSED, _OPEN, _HALF_OPEN = State.CLOSED, State.OPEN, State.HALF_OPEN


class GuardedStorage:
    """Asks ``storage``, and decides by itself if that fails.

    ``on_error`` applies to hits without an ``on_storage_error``. If the hits of a check differ, ``raise`` comes before
    ``deny``, ``local`` and ``allow``; shadow hits never raise or deny. ``workers`` is the number of processes that
    share the storage, on all machines; by default :func:`.count_workers` finds it. ``on_change`` is called once when
    the storage begins to fail, and once when it is back. ``outage_keys`` bounds the memory of an outage: the keys that
    are counted here, and the hits that are kept to be charged later. ``clock``, for tests, returns the microseconds by
    which this process limits by itself. Thread-safe, fork-safe. Raises :class:`ConfigurationError`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        on_error: OnStorageError = "local",
        workers: int | None = None,
        logger: logging.Logger | None = None,
        on_change: Callable[[Health], object] | None = None,
        outage_keys: int = MOST_KEYS,
        clock: Callable[[], int] = monotonic_microseconds,
    ) -> None:
        check_storage(storage, "GuardedStorage")
        check_workers(workers)
        check_outage_keys(outage_keys)
        check_logger(logger)
        check_on_change(on_change)
        check_clock(clock)
        self.wrapped = storage
        self.shared: bool = storage.shared
        self._policy = Policy(on_error)
        self._given_workers = workers
        self._log = OutageLog(logger)
        self._on_change = on_change
        self._fallback = Fallback(clock, most_keys=outage_keys)
        self._workers: Workers | None = None
        """``None`` until they are counted."""
        self._pending = PendingCharges(storage, clock, self._log_single, most_hits=outage_keys)
        self._breaker = Breaker()
        self._lock = self._breaker.lock
        self._prober = Prober(
            self._recover,
            is_done=self._is_recovered,
            failed=self._breaker.fail_again,
            cannot_start=self._log.no_thread,
        )
        mind_forks(self)

    # What a storage does

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        state = self._breaker.state
        if state is _CLOSED:  # as nearly always: one call less than by _ask
            failures, start = self._breaker.failures, time.monotonic()
            try:
                decision = self.wrapped.check(hits, check_id)
            except StorageError as error:
                return self._ask_again(hits, check_id, error, failures, start)
            self._fallback.remember(decision)
            return decision
        if state is _OPEN:
            return self._while_open(hits, check_id)
        return self._while_returning(hits, check_id)

    def _ask(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        failures, start = self._breaker.failures, time.monotonic()
        try:
            decision = self.wrapped.check(hits, check_id)
        except StorageError as error:
            return self._ask_again(hits, check_id, error, failures, start)
        self._fallback.remember(decision)
        return decision

    def _ask_again(
        self, hits: tuple[Hit, ...], check_id: UUID | None, error: StorageError, failures: int, start: float
    ) -> Decision:
        check_id = check_id or error.check_id
        try:
            decision = self._once_more(error, failures, start, self.wrapped.check, hits, check_id)
        except StorageError as last:
            return self._after_failure(hits, check_id, last, failures)
        self._fallback.remember(decision)
        return decision

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        if self._breaker.state is _OPEN:
            return self._decide(hits, PEEKED, self._breaker.latest_error(), charging=False)
        failures, start = self._breaker.failures, time.monotonic()
        try:
            decision = self.wrapped.peek(hits)
        except StorageError as error:
            try:
                decision = self._once_more(error, failures, start, self.wrapped.peek, hits)
            except StorageError as last:
                self._fail(hits, last, failures)
                return self._decide(hits, PEEKED, last, charging=False)
        self._fallback.remember(decision)
        return decision

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        each_id: Sequence[UUID | None] = ids or [None] * len(many)
        if self._breaker.state is not _CLOSED:
            return [self.check(hits, id_) for hits, id_ in zip(many, each_id, strict=True)]
        failures, start = self._breaker.failures, time.monotonic()
        try:
            decisions = self.wrapped.check_many(many, ids)
        except StorageError as error:
            try:
                decisions = self._once_more(error, failures, start, self.wrapped.check_many, many, ids)
            except StorageError as last:
                return [self._after_failure(hits, id_, last, failures) for hits, id_ in zip(many, each_id, strict=True)]
        for decision in decisions:
            self._fallback.remember(decision)
        return decisions

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """While the storage is away, the refund of a charge that it made is kept for later."""
        with self._lock:
            admitted = self._pending.find(check_id)
            if admitted is not None:
                refunded = frozenset(charge.hit.key for charge in charges)
                admitted.local = self._fallback.refund(admitted.local, refunded)
                later = admitted.carried
            else:
                later = self._breaker.state is _OPEN
            if later:
                self._pending.keep_refund(check_id, charges)
            if later or admitted is not None:
                return
        self.wrapped.refund(check_id, charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        """While the storage is away, slots that it holds are released later."""
        pending = self._pending
        if self._breaker.state is not _CLOSED or pending.admitted or pending.refunds:  # its __bool__ would be a call
            with self._lock:
                slots = [slot for slot in slots if not self._release_here(slot)]
        if slots:
            self.wrapped.release(slots, lost)  # type: ignore[attr-defined]  # that_keeps_slots has looked

    def _release_here(self, slot: Slot) -> bool:
        check_id, charges = UUID(bytes=slot.check_id), (Charge(slot.hit, 0),)
        admitted = self._pending.find(check_id)
        if admitted is not None:
            admitted.local = self._fallback.refund(admitted.local, frozenset((slot.hit.key,)))
            if not admitted.carried:
                return True
        elif self._breaker.state is not _OPEN:
            return False
        else:
            self._fallback.slot_is_free(slot)
        self._pending.keep_refund(check_id, charges)
        return True

    def renew(self, slots: Sequence[Slot]) -> None:
        """While the storage is away, slots count here. It is charged for them when it is back, because they may have
        expired there meanwhile."""
        of_checks: dict[bytes, list[Slot]] = {}
        for slot in slots:
            of_checks.setdefault(slot.check_id, []).append(slot)
        failures, elsewhere = self._breaker.failures, list[Slot]()
        with self._lock:
            for check_id, taken in of_checks.items():
                admitted = self._pending.find(UUID(bytes=check_id))
                if admitted is not None:
                    admitted.local = self._fallback.renew(admitted.local)
                elif self._breaker.state is _OPEN:
                    local, hits = self._fallback.take_over(taken), tuple([slot.hit for slot in taken])
                    self._pending.keep(check_id, Admitted(hits, local, carried=True, before=True))
                else:
                    elsewhere += taken
        if not elsewhere:
            return
        try:
            cast("KeepsSlots", self.wrapped).renew(elsewhere)
        except StorageError as error:
            self._fail(tuple([slot.hit for slot in elsewhere]), error, failures)
            raise

    def reset(self, keys: Sequence[str]) -> None:
        """Raises :class:`StorageError` while the storage is away: the caller must know."""
        self.wrapped.reset(keys)
        with self._lock:
            self._fallback.reset(keys)

    def rebuild(self, storage: Storage, clock: Callable[[], int]) -> GuardedStorage:
        return GuardedStorage(
            storage,
            on_error=self._policy.default,
            workers=self._given_workers,
            logger=self._log.given,
            on_change=self._on_change,
            outage_keys=self._fallback.most_keys,
            clock=clock,
        )

    def stop(self) -> None:
        """Stop probing the storage."""
        self._prober.stop()

    def close(self) -> None:
        self.stop()
        self.wrapped.close()

    def health(self) -> Health:
        """How the storage stands."""
        with self._lock:
            return self._health()

    # When the storage does not answer

    def _once_more(self, error: StorageError, failures: int, start: float, ask: Callable[..., T], *arguments: Any) -> T:
        """A second attempt, so that one lost reply does not open the breaker. A check is not charged twice under one
        id. Raises :class:`StorageError`, also if a second attempt makes no sense."""
        if not error.no_reply or failures != self._breaker.failures or time.monotonic() - start > PATIENCE:
            raise error
        return ask(*arguments)

    def _after_failure(
        self, hits: tuple[Hit, ...], check_id: UUID | None, error: StorageError, failures: int
    ) -> Decision:
        self._fail(hits, error, failures)
        return self._decide(hits, (check_id or uuid4()).bytes, error, charging=True)

    def _while_open(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        self._prober.ensure(self._lock)
        return self._decide(hits, (check_id or uuid4()).bytes, self._breaker.latest_error(), charging=True)

    def _while_returning(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        """The storage answers, but is not yet charged for all that this and other processes have admitted, so no
        process takes more than its share of what is left."""
        if self._has_returned():
            return self._ask(hits, check_id)
        local = self._policy.limited_here(hits)
        with self._lock:
            decision, on_shares = self._fallback.decide((check_id or uuid4()).bytes, hits, local, charging=True)
        if not decision.allowed:
            return decision
        try:
            answer = self._ask(hits, check_id)
        except StorageError:
            self._take_back(on_shares)
            raise
        if answer.decided_by in FALLBACKS or not answer.allowed:
            self._take_back(on_shares)
        return answer

    def _has_returned(self) -> bool:
        if self._breaker.state is _HALF_OPEN:
            self._prober.ensure(self._lock)
            return False
        if not self._breaker.time_is_up:
            return False
        with self._lock:
            self._breaker.close_when_returned()
        return True

    def _take_back(self, on_shares: Decision | None) -> None:
        if on_shares is not None:
            with self._lock:
                self._fallback.refund(on_shares, frozenset(hit.key for hit in on_shares.hits))

    def _decide(self, hits: tuple[Hit, ...], check_id: bytes, error: StorageError, *, charging: bool) -> Decision:
        strictest = self._policy.strictest(hits)
        if strictest == "raise":
            raise error
        if strictest == "deny":
            raise StorageDenied(f"refused while {error}", retry_after=1.0) from error
        local = self._policy.limited_here(hits)
        with self._lock:
            decision, on_shares = self._fallback.decide(check_id, hits, local, charging=charging)
            if on_shares is not None and on_shares.charges and charging and not error.key_specific:
                self._pending.keep(check_id, Admitted(without_bans(local), on_shares))
        if self._breaker.state is not _OPEN and self._pending:  # the storage came back meanwhile
            self._prober.ensure(self._lock)
        return decision

    def _fail(self, hits: tuple[Hit, ...], error: StorageError, failures: int) -> None:
        """Open the breaker, unless another failure was noted after the check began."""
        if error.key_specific:
            self._log_single(hits, error)
            return
        if failures != self._breaker.failures:
            return
        workers = count_workers(self._given_workers)
        with self._lock:
            if failures != self._breaker.failures or not self._breaker.fail(hits, error):
                return
            self._pending.begin()
            self._fallback.begin()
            self._share_between(workers)
            health = self._health()
        self._log.failed(hits, error, self._policy.default, workers)
        self._tell(health)
        self._prober.ensure(self._lock)

    def _counted(self) -> Workers:
        """The processes that share a limit. Counting them takes milliseconds, so it waits until somebody asks."""
        workers = self._workers
        if workers is None:
            workers = count_workers(self._given_workers)
            self._share_between(workers)
        return workers

    def _share_between(self, workers: Workers) -> None:
        self._workers = workers
        self._fallback.workers = workers.count

    def _log_single(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        with self._lock:
            if not self._log.is_due():
                return
            self._share_between(count_workers(self._given_workers))
        self._log.single(hits, error)

    def _tell(self, health: Health) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(health)
        except Exception as error:
            self._log.callback_raised(error)

    def _health(self) -> Health:
        return Health(
            state="failed" if self._breaker.has_failed else "working",
            since=self._breaker.since,
            error=self._breaker.error,
            breaker=self._breaker.shown,
            fallback_keys=len(self._fallback),
            pending=len(self._pending),
            given_up=self._pending.given_up,
            workers=self._counted(),
        )

    # The way back, in the prober's thread

    def _recover(self) -> None:
        """Ask the storage. If it answers, charge it for what is pending, and close the breaker. Raises
        :class:`StorageError`."""
        if self._breaker.state is _OPEN:
            self.wrapped.check(probes_like(self._breaker.failing_hits))
            with self._lock:
                self._breaker.answer()
        while not self._close_if_settled():
            self._pending.give_back()
            with self._lock:
                batch = self._pending.take_batch()
            failures, start = self._breaker.failures, time.monotonic()
            try:
                self._pending.charge(batch)
            except StorageError as error:
                self._once_more(error, failures, start, self._pending.charge, batch)
            with self._lock:
                self._pending.remove(batch)

    def _close_if_settled(self) -> bool:
        """Under the lock of the decisions, so that none is made in between."""
        with self._lock:
            if self._pending:
                return False
            if self._breaker.state is not _HALF_OPEN:  # no outage, or another check has failed meanwhile
                return True
            self._fallback.end()
            seconds = self._breaker.settle(alone=self._counted().count == 1)
            health = self._health()
        self._log.is_back(seconds, charged=self._pending.charged, given_up=self._pending.given_up)
        self._tell(health)
        return True

    def _is_recovered(self) -> bool:
        return self._breaker.state is not _OPEN and not self._pending

    def _after_fork_in_child(self) -> None:
        """Leave it to the parent to probe the server and to charge what the parent has admitted."""
        self._lock = self._breaker.lock = Lock()
        self._prober.forget()
        self._pending.forget()
