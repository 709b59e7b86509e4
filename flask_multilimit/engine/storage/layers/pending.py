"""What a storage must be sent after an outage: charges of checks that were admitted without it, slots that are still in
use, and settlements."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from ...decision import Charge, Decision, full_after
from ...errors import StorageError
from ...hits import Hit
from ..base import KeepsSlots, Slot, Storage
from .fallback import unlimited

MOST_PENDING = 20_000
"""The most admitted checks that are kept to be charged later. Beyond that, the oldest are given up."""
BATCH = 100
"""The most checks that are charged in one round trip, so that other commands do not wait long."""


@dataclass(slots=True, eq=False, repr=False)
class Admitted:
    """A check that the storage must be charged for: this process admitted it in place of the storage, or the storage
    may have let its slots expire."""

    hits: tuple[Hit, ...]
    on_shares: Decision
    """The decision of this process within its share."""
    sent: bool = False
    """Whether it is being sent to the storage, or was charged there before the outage."""
    charged: bool = False
    """Whether the storage was charged for it, even if it failed to take others. Its slots may expire there again."""
    may_be_charged: bool = False
    """Whether the storage may have charged a check with this id: it failed when it was asked, or was asked before."""
    slots_from_before: bool = False
    """Whether its slots were taken before the outage."""
    excess: tuple[tuple[str, int], ...] = ()
    """The keys of charges that count although they were settled, each with the instant until which they do."""
    settlements: tuple[Charge, ...] = ()
    """Those that wait until it is charged."""

    @property
    def settled_later(self) -> bool:
        """Whether settlements wait until it is charged: if it is charged already, that is with its costs. But if none
        of its algorithms keeps ids, nobody would notice."""
        recognised = any(hit.cost and hit.rule.implementation.recognise for hit in self.hits)
        return self.sent or (self.may_be_charged and recognised)

    def add_excess(self, charges: Sequence[Charge], now: int) -> None:
        """Record which of the settled ``charges`` count: those beyond their cost from ``now`` on, and those that are
        settled later, because their settlement would otherwise give back units of others."""
        is_settled_later = self.settled_later and not all(hit.rule.implementation.recognise for hit in self.hits)
        for charge in charges:
            if charge.units > charge.hit.cost or is_settled_later:
                self.excess += ((charge.hit.key, _counts_until(charge, now)),)

    def still_counting(self, now: int) -> tuple[Hit, ...]:
        """The hits whose charge still counts."""
        keys = {charge.hit.key for charge in self.on_shares.charges if charge.until > now}
        keys.update(key for key, until in self.excess if until > now)
        is_done = self.charged and not any(hit.rule.holds_slots for hit in self.hits)
        return () if is_done else tuple(hit for hit in self.hits if hit.key in keys)


class PendingCharges:
    """What ``storage`` must be sent.

    ``now`` is the clock by which the checks were admitted. ``remember`` gets the answers of the storage. ``log`` is
    called for checks and settlements that fail because of their own keys. Not thread-safe, except that :meth:`settle`
    or :meth:`charge` may run at the same time as the other methods.
    """

    def __init__(
        self,
        storage: Storage,
        now: Callable[[], int],
        remember: Callable[[Decision], object],
        log: Callable[[tuple[Hit, ...], StorageError], None],
        *,
        most_hits: int,
    ) -> None:
        self.given_up: int = 0
        """Checks of this or the last outage that could not be charged."""
        self.charged: int = 0
        """Checks of this or the last outage that were charged."""
        self.unsettled: int = 0
        """Settlements of this or the last outage that were dropped, because there were too many."""
        self._storage = storage
        self._now = now
        self._remember = remember
        self._log = log
        self.admitted: OrderedDict[bytes, Admitted] = OrderedDict()
        """The checks that must be charged, by id."""
        self._hits = 0  # of all checks together
        self._most_hits = most_hits
        self.settlements: deque[tuple[bytes, list[Charge]]] = deque(maxlen=MOST_PENDING)

    def __bool__(self) -> bool:
        return bool(self.admitted or self.settlements)

    def begin(self) -> None:
        """Start to count again, because another outage begins."""
        self.given_up = self.charged = self.unsettled = 0

    def forget(self) -> None:
        """Drop everything, because another process sends it to the storage."""
        self.admitted.clear()
        self._hits = 0
        self.settlements.clear()

    def keep(self, check_id: bytes, admitted: Admitted) -> None:
        self.drop(check_id)
        self.admitted[check_id] = admitted
        self._hits += len(admitted.hits)
        while len(self.admitted) > MOST_PENDING or (self._hits > self._most_hits and len(self.admitted) > 1):
            oldest = self.drop(next(iter(self.admitted)))
            self.given_up += bool(oldest and oldest.still_counting(self._now()))

    def drop(self, check_id: bytes) -> Admitted | None:
        """Stop keeping the check. Return what was kept of it. If it was never charged, settlements would give back
        units of others, unless they change nothing then."""
        dropped = self.admitted.pop(check_id, None)
        if dropped is not None:
            self._hits -= len(dropped.hits)
            if charges := list(dropped.settlements) if dropped.charged else repeatable(dropped.settlements):
                self._add_settlement(check_id, charges)
        return dropped

    def reset(self, keys: Container[str]) -> None:
        """Charge nothing to ``keys``, and settle nothing that was charged to them."""
        for admitted in self.admitted.values():
            admitted.hits = tuple([hit for hit in admitted.hits if hit.key not in keys])
            admitted.settlements = tuple([each for each in admitted.settlements if each.hit.key not in keys])
        self._hits = sum([len(admitted.hits) for admitted in self.admitted.values()])
        for _, charges in self.settlements.copy():
            charges[:] = [each for each in charges if each.hit.key not in keys]

    def keep_settlement(self, check_id: bytes, charges: Sequence[Charge]) -> None:
        now, admitted = self._now(), self.admitted.get(check_id)
        kept = [each._replace(until=_counts_until(each, now)) for each in charges]
        if admitted is None:
            self._add_settlement(check_id, kept)
        else:
            admitted.settlements += (*kept,)

    def _add_settlement(self, check_id: bytes, charges: list[Charge]) -> None:
        if len(self.settlements) == self.settlements.maxlen:
            self.unsettled += 1  # the oldest, which this one replaces
        self.settlements.append((check_id, charges))

    def take_batch(self) -> list[tuple[bytes, Admitted]]:
        """Mark the oldest checks as sent, and return them for :meth:`charge`."""
        batch = [item for item, _ in zip(self.admitted.items(), range(BATCH), strict=False)]
        for _, admitted in batch:
            admitted.sent = True
        return batch

    def charge(self, batch: Sequence[tuple[bytes, Admitted]]) -> None:
        """Charge those hits of each check that still count, however little is left in the storage. Raises
        :class:`StorageError`."""
        now, slots, checks = self._now(), list[Slot](), dict[bytes, tuple[Hit, ...]]()
        for check_id, admitted in batch:
            hits = admitted.still_counting(now)
            if admitted.slots_from_before:
                slots += [Slot(check_id, hit) for hit in hits]
            elif hits:
                checks[check_id] = tuple(map(unlimited, hits))
        kept, decisions, failure = dict(batch), dict[bytes, Decision](), None
        try:
            if slots:  # slots that have expired there are taken again
                cast("KeepsSlots", self._storage).renew(slots)
            if checks:
                ids = [UUID(bytes=check_id) for check_id in checks]
                decisions = dict(zip(checks, self._storage.check_many([*checks.values()], ids), strict=True))
        except StorageError as error:
            failure, decisions = error, {each.check_id: each for each in error.decisions.values()}
        for check_id, decision in decisions.items():
            self.charged += not kept[check_id].charged
            kept[check_id].charged = True
            self._remember(decision)
        self._fill_up(decisions, kept)  # only now, because the storage may fail again
        if failure is None:
            return
        if not failure.key_specific:
            raise failure
        if len(batch) == 1:
            self.given_up += 1
            self._log(batch[0][1].hits, failure)
        else:  # one by one, because some of them cannot be charged
            for item in batch:
                self.charge([item])

    def settle(self) -> None:
        """Make all settlements, except those of charges that are still to be made. Raises :class:`StorageError`. If a
        settlement gets no reply, it may have been made, so it is repeated only where that changes nothing."""
        while self.settlements:
            check_id, charges = self.settlements.popleft()
            now = self._now()
            if not (charges := [each for each in charges if each.until > now or each.units <= each.hit.cost]):
                continue
            try:
                self._storage.settle(UUID(bytes=check_id), charges)
            except StorageError as error:
                again = repeatable(charges) if error.no_reply else charges
                if error.key_specific or len(again) < len(charges):
                    self._log(tuple(charge.hit for charge in charges), error)
                if error.key_specific:
                    continue
                if again:
                    self.settlements.appendleft((check_id, again))
                raise

    def _fill_up(self, decisions: Mapping[bytes, Decision], kept: Mapping[bytes, Admitted]) -> None:
        """For each charge that did not fit, take all that is left. Later charges of the batch may have taken some of
        what was left then. A charge that counts although it was settled becomes a debt."""
        for check_id, decision in decisions.items():
            settled, refusing = {key for key, _ in kept[check_id].excess}, list(decision.shadowed)
            while refusing:
                status = refusing.pop()
                if status.hit.key in settled:
                    self._storage.settle(decision.id, (Charge(replace(status.hit, cost=0), 0, status.hit.cost),))
                elif status.remaining:
                    refusing += self._storage.check((replace(status.hit, cost=status.remaining),)).shadowed


def _counts_until(charge: Charge, now: int) -> int:
    """The instant until which ``charge``, which is settled ``now``, counts."""
    hit, until, units = charge
    if units <= hit.cost:
        return until
    return now + full_after(hit.rule.quota, hit.rule.quota.burst - units, hit.rule.algorithm, 0, now)


def repeatable(charges: Sequence[Charge]) -> list[Charge]:
    """The charges that can be settled even if they were never made, or are settled already: their algorithms remember
    check ids."""
    return [charge for charge in charges if charge.hit.rule.implementation.recognise]
