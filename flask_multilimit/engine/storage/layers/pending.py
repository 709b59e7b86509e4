"""What the storage must learn after an outage: charges of checks that were admitted without it, slots that are still
in use, and settlements."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from ...decision import Charge, Decision
from ...errors import StorageError
from ...hits import Hit, Hits, memoized
from ...reply import reset_afters, retry_afters
from ..base import KeepsSlots, Slot, Storage
from .fallback import unlimited

MOST_PENDING = 20_000
"""The most admitted checks that are kept to be charged later. Beyond that, the oldest are given up."""
BATCH = 100
"""The most checks that are charged in one round trip: no other command waits for more than these."""


@dataclass(slots=True, eq=False, repr=False)
class Admitted:
    """A check that was admitted without the storage, or whose slots it may have let expire: it must be charged."""

    hits: tuple[Hit, ...]
    local: Decision
    """The decision on the shares."""
    carried: bool = False
    """Whether the storage may know of it: it is being sent, or was charged before the outage."""
    asked: bool = False
    """Whether the storage has been asked and failed: it may have charged it, or may do so when it goes on."""
    before: bool = False
    """Whether its slots were taken before the outage."""
    excess: tuple[tuple[str, int], ...] = ()
    """The keys of charges that were settled beyond their cost, and until when that counts."""

    def note_excess(self, charges: Sequence[Charge], now: int) -> None:
        """``charges`` were settled: an excess counts from ``now`` on."""
        self.excess += tuple((hit.key, now + hit.rule.quota.window) for hit, _, units in charges if units > hit.cost)

    def lasting(self, now: int) -> tuple[Hit, ...]:
        """The hits whose charge still counts."""
        at, reply, settled = self.local.at, self.local.reply, self.local.settled
        if (
            not settled and not any(retry_afters(reply)) and at + min(reset_afters(reply)) > now
        ):  # usually, and there may be thousands
            return self.hits
        lasting = {charge.hit.key for charge in self.local.charges if charge.until > now}
        lasting.update(key for key, until in self.excess if until > now)
        return tuple(hit for hit in self.hits if hit.key in lasting)


class PendingCharges:
    """What ``storage`` must learn.

    ``now`` is the clock by which the checks were admitted. ``log`` is called for what cannot be charged or settled
    because of its own keys. Not thread-safe, except that :meth:`settle` or :meth:`charge` may run beside the others.
    """

    def __init__(
        self,
        storage: Storage,
        now: Callable[[], int],
        log: Callable[[tuple[Hit, ...], StorageError], None],
        *,
        most_hits: int,
    ) -> None:
        self.given_up: int = 0
        """Checks of this or the last outage that could not be charged."""
        self.charged: int = 0
        """Checks that were."""
        self._storage = storage
        self._now = now
        self._log = log
        self.admitted: OrderedDict[bytes, Admitted] = OrderedDict()
        """The checks that must be charged, by id."""
        self._hits = 0  # of all checks together
        self._most_hits = most_hits
        self.settlements: deque[tuple[bytes, tuple[Charge, ...]]] = deque(maxlen=MOST_PENDING)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.settlements)

    def begin(self) -> None:
        """Another outage begins."""
        self.given_up = self.charged = 0

    def forget(self) -> None:
        """Another process reports it to the storage."""
        self.admitted.clear()
        self._hits = 0
        self.settlements.clear()

    def keep(self, check_id: bytes, admitted: Admitted) -> None:
        self.drop(check_id)
        self.admitted[check_id] = admitted
        self._hits += len(admitted.hits)
        while len(self.admitted) > MOST_PENDING or (self._hits > self._most_hits and len(self.admitted) > 1):
            oldest = self.drop(next(iter(self.admitted)))
            self.given_up += bool(oldest and oldest.lasting(self._now()))

    def drop(self, check_id: bytes) -> Admitted | None:
        """Forget the check. Return what was kept."""
        dropped = self.admitted.pop(check_id, None)
        self._hits -= len(dropped.hits) if dropped is not None else 0
        return dropped

    def keep_settlement(self, check_id: bytes, charges: Sequence[Charge]) -> None:
        self.settlements.append((check_id, tuple(charges)))

    def take_batch(self) -> list[tuple[bytes, Admitted]]:
        """The oldest checks, for :meth:`charge`."""
        batch = [item for item, _ in zip(self.admitted.items(), range(BATCH), strict=False)]
        for _, admitted in batch:
            admitted.carried = True
        return batch

    def charge(self, batch: Sequence[tuple[bytes, Admitted]]) -> None:
        """Charge what still counts of each check, however little is left in the storage. Raises
        :class:`StorageError`."""
        try:
            self._charge_at_once(batch)
        except StorageError as error:
            if not error.key_specific:
                raise
            self._charge_each(batch)

    def settle(self) -> None:
        """Make all settlements, except those of charges that are still to be made. Raises :class:`StorageError`. One
        without a reply, which may have been carried out, is made again only where that changes nothing."""
        for _ in range(len(self.settlements)):
            check_id, charges = self.settlements.popleft()
            if check_id in self.admitted:
                self.settlements.append((check_id, charges))
                continue
            try:
                self._storage.settle(UUID(bytes=check_id), charges)
            except StorageError as error:
                if error.key_specific:
                    self._log(tuple(charge.hit for charge in charges), error)
                    continue
                if again := repeatable(charges) if error.no_reply else charges:
                    self.settlements.appendleft((check_id, tuple(again)))
                raise

    def _charge_at_once(self, batch: Sequence[tuple[bytes, Admitted]]) -> None:
        now, slots, many = self._now(), list[Slot](), dict[bytes, Hits]()
        for check_id, admitted in batch:
            hits = admitted.lasting(now)
            if admitted.before:
                slots += [Slot(check_id, hit) for hit in hits]
            elif hits:
                many[check_id] = memoized(hits, _unlimited)
        if slots:  # those that have expired there are taken again
            cast("KeepsSlots", self._storage).renew(slots)
        if not many:
            return
        decisions = self._storage.check_many(list(many.values()), [UUID(bytes=check_id) for check_id in many])
        self.charged += len(many)
        for decision in decisions:
            self._fill_up(decision)

    def _charge_each(self, batch: Sequence[tuple[bytes, Admitted]]) -> None:
        """One by one, if one of them cannot be charged."""
        for item in batch:
            try:
                self._charge_at_once([item])
            except StorageError as error:  # noqa: PERF203 - one failure must not stop the others
                if not error.key_specific:
                    raise
                self.given_up += 1
                self._log(item[1].hits, error)

    def _fill_up(self, decision: Decision) -> None:
        """A charge that does not fit takes all that is left."""
        if not any(retry_afters(decision.reply)):  # usually, and there may be thousands to charge
            return
        for status in decision.statuses:
            if not status.allowed and status.remaining:
                self._storage.check((replace(status.hit, cost=status.remaining),))


def _unlimited(hits: tuple[Hit, ...]) -> Hits:
    return Hits(map(unlimited, hits))


def repeatable(charges: Sequence[Charge]) -> Sequence[Charge]:
    """Those that can be settled although they were perhaps not made, or are settled already: their algorithms remember
    who was charged."""
    return [charge for charge in charges if charge.hit.rule.implementation.REMEMBERS_IDS]
