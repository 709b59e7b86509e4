"""A layer around a storage that may fail.

A check that gets no reply is sent once more. If that fails, too, the breaker opens. From then on, no request waits for
the server, and each check is decided here, as the ``on_storage_error`` of its hits says. A thread probes the server
about once a second. When the server answers, it decides checks again, but only within this process's share until it is
charged for what was admitted during the outage. Then the breaker closes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import cast
from uuid import UUID, uuid4

from ...decision import Charge, Decision
from ...errors import StorageDenied, StorageError, check_logger
from ...hits import Hit, OnStorageError, check_policy
from ..base import KeepsSlots, Lost, Slot, Storage, check_clock, check_storage, monotonic_microseconds
from ..forgetting import MOST_KEYS, check_memory_keys
from .health import Health, Report, check_on_change, check_workers
from .outage import Outage, State
from .pending import repeatable


class GuardedStorage:
    """Asks ``storage``, and decides in its place if it fails.

    ``on_error`` applies to hits without an ``on_storage_error``. If the hits of a check differ, ``raise`` comes before
    ``deny``, ``local`` and ``allow``; shadow hits never raise or deny. ``workers`` is the number of processes that
    share the storage, on all machines; by default :func:`.count_workers` counts them. ``on_change`` is called once when
    the storage begins to fail, and once when it is back. ``memory_keys`` bounds the memory of an outage: the keys that
    are counted here, and the hits that are kept to be charged later. ``clock``, for tests, returns microseconds for the
    decisions of this process. Thread-safe, fork-safe. Raises :class:`ConfigurationError`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        on_error: OnStorageError = "local",
        workers: int | None = None,
        logger: logging.Logger | None = None,
        on_change: Callable[[Health], object] | None = None,
        memory_keys: int = MOST_KEYS,
        clock: Callable[[], int] = monotonic_microseconds,
    ) -> None:
        check_storage(storage, "GuardedStorage")
        check_policy(on_error, "on_error")
        check_workers(workers)
        check_memory_keys(memory_keys)
        check_logger(logger)
        check_on_change(on_change)
        check_clock(clock)
        self.wrapped = storage
        self.shared: bool = storage.shared
        self._on_error: OnStorageError = on_error
        report = Report(logger, on_change, on_error)
        self._outage = Outage(storage, report, workers=workers, memory_keys=memory_keys, clock=clock, logger=logger)
        self._breaker = self._outage.breaker
        self._keep_answer = self._outage.fallback.remember

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        state = self._breaker.state
        if state is State.CLOSED:  # nearly always
            return self._ask(hits, check_id)
        if state is State.OPEN:
            self._outage.recover()
            return self._decide(hits, check_id, self._breaker.latest_error(), charging=True)
        return self._while_returning(hits, check_id)

    def _ask(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        failures, start = self._breaker.failures, time.monotonic()
        try:
            decision = self.wrapped.check(hits, check_id)
        except StorageError as error:
            is_given = check_id is not None
            return self._ask_again(hits, check_id or error.check_id, error, failures, start, is_given=is_given)
        return self._remember(decision, failures)

    def _ask_again(
        self,
        hits: tuple[Hit, ...],
        check_id: UUID | None,  # so that the check is not charged twice
        error: StorageError,
        failures: int,
        start: float,
        *,
        is_given: bool,
    ) -> Decision:
        decision: Decision | None = error.decisions.get(check_id)
        try:
            if decision is None:
                decision = self._breaker.ask_again(error, failures, start, self.wrapped.check, hits, check_id)
        except StorageError as last:
            return self._after_failure(hits, check_id or last.check_id, last, failures, is_given=is_given)
        return self._remember(decision, failures)

    def _remember(self, answer: Decision, failures: int) -> Decision:
        """Keep an ``answer``, so that an outage that begins from now on finds it; one that has begun since there were
        ``failures`` may not have."""
        if failures == self._breaker.failures:
            self._keep_answer(answer)
        if failures != self._breaker.failures:
            self._outage.record_overtaken(answer)
        return answer

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        state = self._breaker.state
        if state is State.OPEN:
            return self._decide(hits, None, self._breaker.latest_error(), charging=False)
        if state is not State.CLOSED and not self._outage.close_if_over():  # a check takes no more than the share here
            decision, _ = self._outage.decide(None, hits, self._limited_here(hits), charging=False, pending=False)
            if not decision.allowed:
                return decision
        failures = self._breaker.failures
        try:
            decision = self._breaker.ask_at_most_twice(failures, self.wrapped.peek, hits)
        except StorageError as error:
            self._outage.record_failure(hits, error, failures)
            return self._decide(hits, None, error, charging=False)
        return self._remember(decision, failures)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        if self._breaker.state is not State.CLOSED:
            return self._each(self.check, many, ids or [None] * len(many))
        failures, start = self._breaker.failures, time.monotonic()
        try:
            decisions = self.wrapped.check_many(many, ids)
        except StorageError as error:
            decide = partial(self._ask_again, error=error, failures=failures, start=start, is_given=ids is not None)
            return self._each(decide, many, ids or error.check_ids or [uuid4() for _ in many])
        return [self._remember(decision, failures) for decision in decisions]

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """While the storage is down, settlements of charges that it has made are kept for later; so is the first that
        fails, unless it may have been made and would then be made twice."""
        if self._outage.settle(check_id, charges):
            return
        try:
            self.wrapped.settle(check_id, charges)
        except StorageError as error:
            with suppress(StorageError):
                self.peek(tuple([charge.hit for charge in charges]))  # an outage begins if this fails, too
            kept = repeatable(charges) if error.no_reply else charges
            if not self._outage.settle(check_id, kept) or len(kept) < len(charges):
                raise
        else:
            self._outage.record_excess(charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        """While the storage is down, slots that it holds are released later."""
        if slots := self._outage.release(slots):
            self.wrapped.release(slots, lost)  # type: ignore[attr-defined]  # require_slots() has checked that

    def renew(self, slots: Sequence[Slot]) -> None:
        """While the storage is down, slots count here."""
        failures, slots = self._breaker.failures, self._outage.renew(slots)
        if not slots:
            return
        try:
            cast("KeepsSlots", self.wrapped).renew(slots)
        except StorageError as error:
            self._outage.record_failure(tuple([slot.hit for slot in slots]), error, failures)
            raise

    def reset(self, keys: Sequence[str]) -> None:
        """Raises :class:`StorageError` while the storage is down, so that the caller knows."""
        self.wrapped.reset(keys)
        self._outage.reset(keys)

    def stop(self) -> None:
        """Stop probing the storage."""
        self._outage.stop()

    def close(self) -> None:
        self.stop()
        self.wrapped.close()

    def health(self) -> Health:
        """The state of the storage."""
        return self._outage.health()

    def _after_failure(
        self, hits: tuple[Hit, ...], check_id: UUID | None, error: StorageError, failures: int, *, is_given: bool
    ) -> Decision:
        """``is_given``: the caller has given the id, so the storage may have charged it for an admitted check before.
        Then a refusal gives nothing back."""
        self._outage.record_failure(hits, error, failures)
        admitted = False
        try:
            decision = self._decide(hits, check_id, error, charging=True)
            admitted = decision.allowed
            return decision
        finally:
            if check_id is not None and not admitted and not is_given:
                self._outage.refund_later(check_id, hits)

    def _each(
        self,
        decide: Callable[[tuple[Hit, ...], UUID | None], Decision],
        many: Sequence[tuple[Hit, ...]],
        ids: Sequence[UUID | None],
    ) -> list[Decision]:
        """``decide`` each check of a batch, even if one raises. Then refund what the others have charged, and raise."""
        decisions, errors = list[Decision](), list[StorageError]()
        for hits, check_id in zip(many, ids, strict=True):
            try:
                decisions.append(decide(hits, check_id))
            except StorageError as raised:  # noqa: PERF203 - one failure must not stop the others
                errors.append(raised)
        if not errors:
            return decisions
        for decision in decisions:
            if charges := decision.charges:
                with suppress(StorageError):
                    self.settle(decision.id, charges)
        raise errors[0]

    def _while_returning(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        """Decide while the storage answers, but is not yet charged for all that this and other processes have admitted:
        no process takes more than its share of what is left."""
        if self._outage.close_if_over():
            return self._ask(hits, check_id)
        is_given, failures, answer = check_id is not None, self._breaker.failures, None
        check_id = check_id or uuid4()
        local = self._limited_here(hits)
        decision, on_shares = self._outage.decide(check_id, hits, local, charging=True, pending=False)
        if not decision.allowed:
            return decision
        try:
            answer = self._breaker.ask_at_most_twice(failures, self.wrapped.check, hits, check_id)
        except StorageError as error:
            failure = error
        finally:
            self._outage.confirm(on_shares, answer)
        if answer is None:  # decided here only now, because the share would count it twice
            return self._after_failure(hits, check_id, failure, failures, is_given=is_given)
        self._keep_answer(answer)
        return answer

    def _decide(self, hits: tuple[Hit, ...], check_id: UUID | None, error: StorageError, *, charging: bool) -> Decision:
        """Decide in place of the storage, which may have charged a check with this ``check_id``, or may do so when it
        continues."""
        policies = {self._policy_for(hit) for hit in hits}
        if "raise" in policies:
            raise error
        if "deny" in policies:
            raise StorageDenied(f"refused while {error}", retry_after=1.0) from error
        pending = charging and not error.key_specific
        decision, _ = self._outage.decide(check_id, hits, self._limited_here(hits), charging=charging, pending=pending)
        return decision

    def _policy_for(self, hit: Hit) -> OnStorageError:
        """A hit's own policy comes first. A shadow never refuses, so it neither raises nor denies."""
        policy = hit.on_storage_error or self._on_error
        return "local" if hit.shadow and policy in {"raise", "deny"} else policy

    def _limited_here(self, hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """The hits that this process limits by itself while the storage fails."""
        return tuple(hit for hit in hits if self._policy_for(hit) == "local")
