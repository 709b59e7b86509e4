"""A storage around a storage: the one place that decides what becomes of a check when the storage does not answer.

A check that gets no answer is asked once more; when there is none again, the breaker opens: from then on nobody waits
for the server, and each check is decided here, by the ``on_storage_error`` of its hits. Off the way of the requests one
thread asks the server, about once a second; when it answers, the breaker is half open: the checks go there again, each
within what is left of this process's share as well, while what was admitted meanwhile is charged. Then it closes.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any, Literal, TypeVar, cast
from uuid import UUID, uuid4

from ....clock import monotonic_microseconds
from ....decision import FALLBACKS, Charge, Decision
from ....errors import StorageDenied, StorageError, with_remedy
from ....forks import mind_forks
from ....hits import PEEKED, Hit, OnStorageError
from ....keys import beside, place_of
from ....rules import Rule
from ...base import Storage
from .fallback import UNLIMITED, Fallback
from .pending import Admitted, Arrears
from .workers import Workers, count_workers

PROBE_SECONDS = 0.9
"""Between two questions whether the server is back: never less. With the answer to it, less than a second."""
FIRST_PROBE = (0.05, 0.15)
"""Seconds after a failure, at random, so that not all workers ask at once; a hiccup is over soon."""
RETURN_SECONDS = 1.5
"""After a worker has charged what it owed, by which the others have done so: those that ask last are behind by one
probe, and may have more to charge."""
PATIENCE = 1.0
"""Seconds after which no second try is made: who has waited so long shall not wait as long again."""
LOG_SECONDS = 60.0
"""Between two log lines about checks that fail by themselves."""

T = TypeVar("T")

_STARTED = time.time()
_STRICTEST_FIRST: tuple[OnStorageError, ...] = ("raise", "deny", "local", "allow")


@dataclass(frozen=True, slots=True)
class Health:
    """How a storage stands, as far as this process knows."""

    state: Literal["working", "failed"]
    """It has failed until it is back, and what was admitted meanwhile is charged to it."""
    since: float
    """POSIX time; to show, for nothing is decided by it."""
    error: StorageError | None
    """The last one; it stays when the storage works again."""
    breaker: Literal["closed", "open", "half-open"]
    """``open``: nobody asks the storage. ``half-open``: it is asked whether it is back; or it is, and what was admitted
    meanwhile is being charged."""
    fallback_keys: int
    """Keys that this process counts by itself."""
    pending: int
    """Admitted checks that are to be charged when the storage is back."""
    given_up: int
    """Admitted checks that could not be charged, of this or the last outage."""
    workers: Workers
    """Processes that share a limit while the storage is away."""

    @classmethod
    def of_this_process(cls) -> Health:
        """Of a storage that is in this process, and so cannot fail."""
        return cls("working", _STARTED, None, "closed", 0, 0, 0, Workers(1, "memory of this process"))


class GuardedStorage:
    """Asks ``storage``, and decides by itself when that fails.

    ``on_error`` is for hits that have no ``on_storage_error``. When one check has several, ``raise`` comes before
    ``deny``, ``local`` and ``allow``; a shadow hit, which never refuses, is not asked. ``workers`` is the number of
    processes that share the storage, on all machines; left out, it is found out (:func:`.count_workers`).
    ``on_change`` is called once when the storage begins to fail, and once when it is back. ``clock``, for tests,
    returns the microseconds by which this process limits by itself. Thread-safe, fork-safe.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        on_error: OnStorageError = "local",
        workers: int | None = None,
        logger: logging.Logger | None = None,
        on_change: Callable[[Health], object] | None = None,
        clock: Callable[[], int] = monotonic_microseconds,
    ) -> None:
        self.wrapped = storage
        self.shared: bool = storage.shared
        self._on_error = on_error
        self._given_workers = workers
        self._logger = logger or logging.getLogger("flask_multilimit")
        self._on_change = on_change
        self._fallback = Fallback(clock)
        self._share_between(count_workers(workers))
        self._failed = False
        """From the first failure until all is charged."""
        self._open = False
        """As long as nobody asks the storage."""
        self._outages = 0
        self._returning_until = 0.0
        """Infinite while the breaker is half open."""
        self._probing = False
        self._since = time.time()
        self._failed_at = 0.0
        self._error: StorageError | None = None
        self._failing_hits: tuple[Hit, ...] = ()
        self._arrears = Arrears(storage, clock, self._log_single)
        self._last_probe = 0.0
        self._next_log = 0.0
        self._prober: Thread | None = None
        self._closed = Event()
        self._lock = Lock()
        mind_forks(self)

    # What a storage does

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if self._open:
            return self._while_open(hits, check_id)
        if self._returning_until:
            return self._while_returning(hits, check_id)
        return self._ask(hits, check_id)

    def _ask(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        outages, start = self._outages, time.monotonic()
        try:
            decision = self.wrapped.check(hits, check_id)
        except StorageError as error:
            check_id = check_id or error.check_id
            try:
                decision = self._once_more(error, outages, start, self.wrapped.check, hits, check_id)
            except StorageError as last:
                return self._after_failure(hits, check_id, last, outages)
        self._fallback.remember(decision)
        return decision

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        if self._open:
            return self._decide(hits, PEEKED, self._latest_error(), charging=False)
        outages, start = self._outages, time.monotonic()
        try:
            decision = self.wrapped.peek(hits)
        except StorageError as error:
            try:
                decision = self._once_more(error, outages, start, self.wrapped.peek, hits)
            except StorageError as last:
                self._fail(hits, last, outages)
                return self._decide(hits, PEEKED, last, charging=False)
        self._fallback.remember(decision)
        return decision

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        each_id: Sequence[UUID | None] = ids or [None] * len(many)
        if self._open or self._returning_until:
            return [self.check(hits, id_) for hits, id_ in zip(many, each_id, strict=True)]
        outages, start = self._outages, time.monotonic()
        try:
            decisions = self.wrapped.check_many(many, ids)
        except StorageError as error:
            try:
                decisions = self._once_more(error, outages, start, self.wrapped.check_many, many, ids)
            except StorageError as last:
                return [self._after_failure(hits, id_, last, outages) for hits, id_ in zip(many, each_id, strict=True)]
        for decision in decisions:
            self._fallback.remember(decision)
        return decisions

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """While the storage is away, what it has charged is kept to be given back later."""
        with self._lock:
            admitted = self._arrears.find(check_id)
            if admitted is not None:
                refunded = frozenset(charge.hit.key for charge in charges)
                admitted.local = self._fallback.refund(admitted.local, refunded)
                later = admitted.carried
            else:
                later = self._open
            if later:
                self._arrears.owe(check_id, charges)
            if later or admitted is not None:
                return
        self.wrapped.refund(check_id, charges)

    def reset(self, keys: Sequence[str]) -> None:
        """Raises :class:`StorageError` when the storage is away: whoever resets wants to know."""
        self.wrapped.reset(keys)
        with self._lock:
            self._fallback.reset(keys)

    def rebuild(self, storage: Storage, clock: Callable[[], int]) -> GuardedStorage:
        return GuardedStorage(
            storage,
            on_error=self._on_error,
            workers=self._given_workers,
            logger=self._logger,
            on_change=self._on_change,
            clock=clock,
        )

    def stop(self) -> None:
        """Ask no more whether the storage is back."""
        self._closed.set()
        if self._prober is not None:
            self._prober.join(timeout=PROBE_SECONDS)

    def close(self) -> None:
        self.stop()
        self.wrapped.close()

    def health(self) -> Health:
        """How the storage stands."""
        with self._lock:
            return self._health()

    # When the storage does not answer

    def _once_more(self, error: StorageError, outages: int, start: float, ask: Callable[..., T], *arguments: Any) -> T:
        """A second try, so that a server which only stumbled is not taken for dead. Under its id, a check that was
        charged is not charged again. Raises :class:`StorageError`, also where a second try makes no sense."""
        if not error.no_reply or outages != self._outages or time.monotonic() - start > PATIENCE:
            raise error
        return ask(*arguments)

    def _after_failure(
        self, hits: tuple[Hit, ...], check_id: UUID | None, error: StorageError, outages: int
    ) -> Decision:
        self._fail(hits, error, outages)
        return self._decide(hits, (check_id or uuid4()).bytes, error, charging=True)

    def _while_open(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        self._ensure_prober()
        return self._decide(hits, (check_id or uuid4()).bytes, self._latest_error(), charging=True)

    def _while_returning(self, hits: tuple[Hit, ...], check_id: UUID | None) -> Decision:
        """Storage answers, but does not know yet all that this worker has admitted, and those that are still on their
        way back: none takes more than its share of what is left."""
        if self._has_returned():
            return self._ask(hits, check_id)
        local = tuple(hit for hit in hits if self._policy_of(hit) == "local")
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
        if self._returning_until == math.inf:
            self._ensure_prober()
            return False
        if time.monotonic() < self._returning_until:
            return False
        with self._lock:
            if time.monotonic() > self._returning_until:  # and not of a later outage
                self._returning_until = 0.0
        return True

    def _take_back(self, on_shares: Decision | None) -> None:
        if on_shares is not None:
            with self._lock:
                self._fallback.refund(on_shares, frozenset(hit.key for hit in on_shares.hits))

    def _decide(self, hits: tuple[Hit, ...], check_id: bytes, error: StorageError, *, charging: bool) -> Decision:
        policies = [self._policy_of(hit) for hit in hits]
        strictest = next(policy for policy in _STRICTEST_FIRST if policy in policies)
        if strictest == "raise":
            raise error
        if strictest == "deny":
            raise StorageDenied(f"refused while {error}", retry_after=1.0) from error
        local = hits
        if policies.count("local") < len(hits):
            local = tuple(hit for hit, policy in zip(hits, policies, strict=True) if policy == "local")
        with self._lock:
            decision, on_shares = self._fallback.decide(check_id, hits, local, charging=charging)
            if on_shares is not None and on_shares.charges and charging and not error.key_specific:
                self._arrears.keep(check_id, Admitted(local, on_shares))
        if not self._open and self._arrears:  # the storage came back in between
            self._ensure_prober()
        return decision

    def _policy_of(self, hit: Hit) -> OnStorageError:
        policy = hit.on_storage_error or self._on_error
        return "local" if hit.shadow and policy in {"raise", "deny"} else policy

    def _latest_error(self) -> StorageError:
        """Made anew, for one object raised again and again would collect tracebacks."""
        error = cast("StorageError", self._error)  # is there before the breaker opens
        latest = StorageError(str(error))
        latest.remedy, latest.__cause__ = error.remedy, error.__cause__
        return latest

    # The breaker

    def _fail(self, hits: tuple[Hit, ...], error: StorageError, outages: int) -> None:
        """Take note of a failure; the first one opens the breaker, unless it began before the last outage was over.
        One while it is half open belongs to the same outage, which goes on."""
        if error.key_specific:
            self._log_single(hits, error)
            return
        if outages != self._outages:
            return
        workers = count_workers(self._given_workers)
        with self._lock:
            if outages != self._outages:
                return
            self._error, self._failing_hits = error, hits
            self._open = True
            self._outages += 1
            goes_on, self._failed = self._failed, True
            if goes_on:
                return
            self._since, self._failed_at = time.time(), time.monotonic()
            self._arrears.begin()
            self._fallback.begin()
            self._share_between(workers)
            health = self._health()
        self._logger.error(
            "Rate limits: %s, asked about %s. Until the storage is back: %s",
            with_remedy(error),
            place_of(hits[0].key),
            self._meanwhile(),
        )
        self._tell(health)
        self._ensure_prober()

    def _share_between(self, workers: Workers) -> None:
        self._workers = workers
        self._fallback.workers = workers.count

    def _log_single(self, hits: tuple[Hit, ...], error: StorageError) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._next_log:
                return
            self._next_log = now + LOG_SECONDS
            self._share_between(count_workers(self._given_workers))
        self._logger.error("Rate limits: a check of %s failed: %s", hits[0].key, with_remedy(error))

    def _tell(self, health: Health) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(health)
        except Exception:
            self._logger.exception("Rate limits: who is told of changes raised")

    def _meanwhile(self) -> str:
        count = self._workers.count
        share = "the whole" if count == 1 else f"1/{count}"
        return {
            "local": f"this process admits {share} of each limit by itself ({self._workers.source}).",
            "allow": "everything is let through.",
            "deny": "what is limited is refused.",
            "raise": "every check is an error.",
        }[self._on_error]

    def _health(self) -> Health:
        return Health(
            state="failed" if self._failed else "working",
            since=self._since,
            error=self._error,
            breaker=self._breaker(),
            fallback_keys=len(self._fallback),
            pending=len(self._arrears),
            given_up=self._arrears.given_up,
            workers=self._workers,
        )

    def _breaker(self) -> Literal["closed", "open", "half-open"]:
        if not self._failed:
            return "closed"
        return "open" if self._open and not self._probing else "half-open"

    # The way back

    def _ensure_prober(self) -> None:
        """Whoever finds something to be done about the storage sees to it that somebody does it; after a fork, the
        one who did is gone."""
        prober = self._prober
        if prober is not None and prober.is_alive():
            return
        with self._lock:
            if self._closed.is_set() or self._prober is not prober:
                return
            prober = Thread(target=self._recover, name="multilimit-probe", daemon=True)
            try:
                prober.start()
            except RuntimeError as error:  # no more threads, or the interpreter is going down: the next one tries
                self._logger.warning("Rate limits: nobody asks whether the storage is back: %s", error)
                return
            self._prober = prober

    def _recover(self) -> None:
        """Ask until the server answers; then let checks go there, charge what is pending, and close the breaker."""
        wait, closed = random.uniform(*FIRST_PROBE), self._closed
        while not closed.wait(max(wait, self._last_probe + PROBE_SECONDS - time.monotonic())):
            if self._closed is not closed:  # a greenlet that was copied into a child: that has a prober of its own
                return
            wait = 0.0
            self._last_probe = time.monotonic()
            try:
                self._probe()
                self._settle()
            except StorageError as error:
                with self._lock:
                    self._error, self._open = error, self._failed
            else:
                if self._is_done():
                    return

    def _probe(self) -> None:
        """Raises :class:`StorageError`; else the breaker is half open. How much is to be charged does not count for how
        long nobody asks the storage."""
        if not self._open:
            return
        self._probing = True
        try:
            self.wrapped.check(_probes_like(self._failing_hits))
            self._returning_until = math.inf  # first, for others look at both without the lock
            self._open = False
        finally:
            self._probing = False

    def _is_done(self) -> bool:
        """Under one lock with the decisions: whoever leaves something behind starts another prober."""
        with self._lock:
            if self._open or self._arrears:
                return False
            self._prober = None
            return True

    def _settle(self) -> None:
        """Pay all arrears, and close when there are none left. Raises :class:`StorageError`."""
        while not self._close_if_settled():
            self._arrears.give_back()
            with self._lock:
                batch = self._arrears.take_batch()
            outages, start = self._outages, time.monotonic()
            try:
                self._arrears.charge(batch)
            except StorageError as error:
                self._once_more(error, outages, start, self._arrears.charge, batch)
            with self._lock:
                self._arrears.cross_off(batch)

    def _close_if_settled(self) -> bool:
        """Under one lock with the decisions, so that none falls in between."""
        with self._lock:
            if self._arrears:
                return False
            if self._open or not self._failed:  # open: again, by a check that has failed meanwhile
                return True
            self._failed = False
            self._fallback.end()
            self._returning_until = time.monotonic() + RETURN_SECONDS if self._workers.count > 1 else 0.0
            self._since = time.time()
            health, away = self._health(), time.monotonic() - self._failed_at
        self._logger.warning(
            "Rate limits: the storage is back after %.1f s; %d checks admitted meanwhile were charged to it, %d not.",
            away,
            self._arrears.charged,
            self._arrears.given_up,
        )
        self._tell(health)
        return True

    def _after_fork_in_child(self) -> None:
        """The parent asks the server, and charges what the parent has admitted."""
        self._lock = Lock()
        closed, self._closed = self._closed, Event()  # within the old one, the parent's prober may hold a lock
        if closed.is_set():
            self._closed.set()
        self._prober = None
        self._probing = False
        self._arrears.forget()


def _probes_like(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits that write wherever ``hits`` would (same prefixes, same slots), and are gone in a second."""
    keys = dict.fromkeys(beside(hit.key, "probe::fixed_window:1000") for hit in hits)
    return tuple(Hit(key, Rule(1, UNLIMITED, algorithm="fixed_window")) for key in keys)
