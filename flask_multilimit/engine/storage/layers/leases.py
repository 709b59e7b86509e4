"""A layer that asks the shared storage less often than once per request. For a rule with a ``lease``, it lets the
storage charge several units at once, and spends them here on later requests.

Leases never admit more than the rule does without them:

- A unit is spent once, and only after the storage has charged it.
- A unit of a ``sliding_window`` is spent within :attr:`Rule.lease_ms` of its charge, and the storage counts it for that
  much longer than ``time``. So all units that are spent in any ``time`` seconds count in one window.
- A unit of a ``fixed_window`` is spent before the end of the window in which it was charged.
- The age of a unit counts from before the storage is asked. It is measured by the monotonic clock of this process,
  which may be off by one part in a thousand.

A check that leases pay for completely does not ask about bans either: the process notices a ban that began elsewhere
when its units are spent or the lease ends.

Units are not lost either: a process holds at most ``lease`` unspent units of a quota, and refunds units that it did not
spend in time before it takes others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import cast
from uuid import UUID

from ...decision import FALLBACKS, Charge, Decision
from ...errors import StorageError
from ...forks import notify_child
from ...hits import Hit, bans_of, memoized, new_id, part_of
from ...reply import DELAY, RETRY_AFTERS, head, joined, standings_of
from ...rules import Rule
from ...threads import notify_at_end
from ..base import KeepsSlots, Lost, Slot, Storage, check_clock, check_storage, monotonic_microseconds

MOST_LEASES = 1024
"""The most quotas of which a process has leases. For another one, it gives back the lease that was renewed longest
ago."""

DRIFT = 1000
"""A lease lasts shorter by one part in this many, because the clocks may run at different rates."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """What one question to the storage has charged. ``at`` and ``full_at`` are instants by its clock, the others by the
    clock of this process."""

    check_id: bytes
    units: int
    left: int
    """Units that were left in the storage after the charge."""
    at: int
    full_at: int
    asked_at: int
    answered_at: int
    ends_at: int
    """From this instant on, no unit is spent."""

    def earliest(self, now: int) -> int:
        """The earliest instant that the storage's clock can show at ``now``."""
        return self.at + now - self.answered_at


@dataclass(slots=True)
class _Lease:
    """The units of one quota that this process holds."""

    rule: Rule
    units: int = 0
    """Units of ``grant`` that are not spent yet."""
    grant: _Grant | None = None
    size: int = 0
    """The size of the next grant, by the demand for the last one."""
    is_asking: bool = False
    """Whether a thread is asking for the next grant."""
    may_return: int = 0
    """The number of threads that may put units back: they are asking whether other rules allow the request."""

    def has(self, cost: int, rule: Rule, now: int) -> bool:
        if self.grant is None or not (self.rule is rule or self.rule == rule):
            return False
        return self.units >= cost and now < self.grant.ends_at

    def standing(self, at: int | None, now: int) -> tuple[int, int, int]:
        """Its standing in a reply, at the instant ``at`` of the storage's clock, if that is known: the units left here
        plus those left in the storage by its last answer, and no wait."""
        grant = self.grant
        assert grant is not None
        return grant.left + self.units, 0, max(grant.full_at - (grant.earliest(now) if at is None else at), 0)

    def renew(self, key: str, rule: Rule, now: int) -> list[tuple[bytes, Charge]]:
        """Make room for the next grant, and return the charge to give back of the last one, if any.

        The next grant is as large as the part of the last one that was spent, or twice as large if that was all, in
        half of its time. So few units are given back when requests are few, and the storage is asked seldom when they
        are many.
        """
        grant, leftover = self.grant, self.units
        if grant is not None:
            growth = 2 if not leftover and 2 * now < grant.asked_at + grant.ends_at else 1
            self.size = min((grant.units - leftover) * growth, grant.left)
        self.rule, self.grant, self.units = rule, None, 0
        if grant is None or not leftover:
            return []
        whole = Hit(key, rule, grant.units)  # with less, a settlement that is repeated would give back spent units
        return [(grant.check_id, Charge(whole, grant.full_at, grant.units - leftover))]

    def cost_of_next(self, cost: int) -> int:
        """The largest multiple of ``cost`` that fits into the next grant; 0 if none does."""
        return min(self.size, self.rule.lease or 0) // cost * cost


@dataclass(slots=True)
class _Question:
    """What to ask the storage in a check of ``hits``. The dictionaries are by their places in it."""

    hits: tuple[Hit, ...]
    spent: dict[int, _Lease]
    """The leases that pay for hits."""
    claimed: dict[int, _Lease] = field(default_factory=dict)
    """The leases for which this thread asks for the next grant."""
    costs: dict[int, int] = field(default_factory=dict)
    """The units to ask for, where these are more than the hit's own cost."""
    leftovers: list[tuple[bytes, Charge]] = field(default_factory=list)
    """The charges to give back first."""

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.hits)) if i not in self.spent)

    def hits_to_ask(self) -> tuple[Hit, ...]:
        if not self.costs:
            return part_of(self.hits, self.places)
        return tuple(map(self._hit_to_ask, self.places))

    def _hit_to_ask(self, i: int) -> Hit:
        """The hit to ask in place of hit ``i``. A ban does not watch hits that ask for units in advance: their refusal
        is no strike, because only this layer asked for so much."""
        hit = self.hits[i]
        if i in self.costs:
            return replace(hit, cost=self.costs[i])
        in_advance = {self.hits[other].key for other in self.costs}
        return replace(hit, watches=tuple(key for key in hit.watches if key not in in_advance))

    def oversized(self, answer: Decision) -> list[int]:
        """The places of hits that asked for too much: those that are refused, but might pass with their own cost; all
        of those that asked for more if the storage did not decide, because only the storage grants units in advance."""
        if answer.decided_by in FALLBACKS:
            return list(self.costs)
        refusals = zip(self.places, answer.reply[RETRY_AFTERS], strict=True)
        return [i for i, retry_after in refusals if retry_after and i in self.costs]


class LeasingStorage:
    """Asks ``wrapped`` about rules with a ``lease`` only when the units that it holds are spent.

    Every check asks about rules without a lease and about shadows. A check with an id asks about all its rules, because
    only the storage knows ids. ``clock``, for tests, returns the microseconds by which leases end. Thread-safe. A
    forked child begins without leases. Raises :class:`ConfigurationError`.
    """

    def __init__(self, wrapped: Storage, *, clock: Callable[[], int] = monotonic_microseconds) -> None:
        check_storage(wrapped, "LeasingStorage")
        check_clock(clock)
        self.wrapped = wrapped
        self._listeners: tuple[Callable[[Sequence[str]], object], ...] = ()
        """Called, under the lock, with keys of which this process has units again: an earlier refusal by the storage is
        no longer valid here. Several apps may share this layer, each with a deny cache of its own."""
        self.shared: bool = wrapped.shared
        self._clock = clock
        self._leases: dict[str, _Lease] = {}  # by key; the one that was renewed longest ago comes first
        self._lock = Lock()
        notify_child(self)
        notify_at_end(self)

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        leased = memoized(hits, _leased)
        if not leased or check_id is not None:
            return self.wrapped.check(hits, check_id)
        with self._lock:
            now = self._clock()
            spent = self._spend(hits, leased, now)
            if len(spent) == len(hits) or len(spent) == len(hits) - len(bans_of(hits)):
                return _decide_here(hits, spent, now)
            question = self._question(hits, leased, spent, now)
        return self._ask_storage(question)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        """Units that this process holds count as remaining."""
        decision = self.wrapped.peek(hits)
        standings = list(standings_of(decision.reply))
        with self._lock:
            now = self._clock()
            for i in memoized(hits, _leased):
                lease = self._leases.get(hits[i].key)
                if lease is not None and lease.has(1, hits[i].rule, now):
                    remaining, retry_after, reset_after = standings[i]
                    retry_after = 0 if lease.units >= hits[i].cost else retry_after
                    standings[i] = remaining + lease.units, retry_after, reset_after
        shadows = [hit.shadow for hit in hits]
        reply = joined(decision.at, decision.reply[DELAY], zip(standings, shadows, strict=True))
        return decision.replaced(reply=reply)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        """Make the checks one by one if leases may save round trips."""
        if ids is not None or not any(memoized(hits, _leased) for hits in many):
            return self.wrapped.check_many(many, ids)
        return [self.check(hits) for hits in many]

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """Put units back into the lease that paid. If there is a newer grant, refund them in the storage, which may not
        know the charge by this id; then they count until they leave their window."""
        with self._lock:
            late = [charge for charge in charges if not self._put_back(charge)]
        if late:
            self.wrapped.settle(check_id, late)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        cast("KeepsSlots", self.wrapped).release(slots, lost)

    def renew(self, slots: Sequence[Slot]) -> None:
        cast("KeepsSlots", self.wrapped).renew(slots)

    def reset(self, keys: Sequence[str]) -> None:
        """Leases of other processes are not affected."""
        self.wrapped.reset(keys)
        with self._lock:
            for key in keys:
                self._leases.pop(key, None)

    def on_units(self, call: Callable[[Sequence[str]], object]) -> None:
        self._listeners += (call,)

    def close(self) -> None:
        """Give back the units that are not spent."""
        self._at_end()
        self.wrapped.close()

    def _at_end(self) -> None:
        """Give back unspent units: otherwise, workers that are replaced again and again would use up the quota."""
        with self._lock:
            idle = [(key, lease) for key, lease in self._leases.items() if not lease.is_asking and not lease.may_return]
            leftovers = [leftover for key, lease in idle for leftover in lease.renew(key, lease.rule, 0)]
        self._give_back(leftovers)

    def __len__(self) -> int:
        """The number of quotas of which there are leases, spent or not."""
        return len(self._leases)

    def _after_fork_in_child(self) -> None:
        """Forget the leases: they belong to the parent."""
        self._lock = Lock()
        self._leases = {}

    # The callers of these hold the lock

    def _spend(self, hits: tuple[Hit, ...], leased: tuple[int, ...], now: int) -> dict[int, _Lease]:
        """Pay for those of ``hits`` whose leases have enough units. Return these leases by place."""
        spent = {}
        for i in leased:
            hit = hits[i]
            lease = self._leases.get(hit.key)
            if lease is not None and lease.has(hit.cost, hit.rule, now):
                lease.units -= hit.cost
                spent[i] = lease
        return spent

    def _question(
        self, hits: tuple[Hit, ...], leased: tuple[int, ...], spent: dict[int, _Lease], now: int
    ) -> _Question:
        question = _Question(hits, spent)
        for lease in spent.values():
            lease.may_return += 1
        for i in leased:
            if i not in spent:
                self._claim(question, i, now)
        return question

    def _claim(self, question: _Question, i: int, now: int) -> None:
        """Let this thread ask for the next grant, unless another thread is doing so, or may put back units of the last
        grant."""
        hit = question.hits[i]
        lease = self._leases.pop(hit.key, None) or self._new_lease(question, hit.rule)
        if lease is None:
            return
        self._leases[hit.key] = lease
        if lease.is_asking or lease.may_return:
            return
        lease.is_asking = True
        question.leftovers += lease.renew(hit.key, hit.rule, now)
        question.claimed[i] = lease
        cost = lease.cost_of_next(hit.cost)
        if cost > hit.cost:
            question.costs[i] = cost

    def _new_lease(self, question: _Question, rule: Rule) -> _Lease | None:
        """A new lease. If there are too many, it replaces the oldest one, or is ``None`` if that is in use."""
        if len(self._leases) >= MOST_LEASES:
            key = next(iter(self._leases))
            oldest = self._leases.pop(key)
            if oldest.is_asking or oldest.may_return:
                self._leases[key] = oldest  # as the newest: if its check was interrupted, it is in use for ever
                return None
            question.leftovers += oldest.renew(key, oldest.rule, 0)
        return _Lease(rule)

    def _put_back(self, charge: Charge) -> bool:
        """Put the units of ``charge`` back into the lease that paid, which gives them back to the storage if they are
        too old to be spent. Return ``False`` if its grant is gone, or if the lease would hold more units than were
        granted: charges by earlier grants of the same ``fixed_window`` look like those of the last one."""
        lease = self._leases.get(charge.hit.key)
        if lease is None or lease.grant is None or lease.grant.full_at != charge.until:
            return False
        if lease.units + charge.hit.cost > lease.grant.units:
            return False
        lease.units += charge.hit.cost
        return True

    # Asking the storage

    def _ask_storage(self, question: _Question) -> Decision:
        try:
            self._give_back(question.leftovers)
            asked_at = self._clock()
            answer = self.wrapped.check(question.hits_to_ask())
            if oversized := question.oversized(answer):
                self._give_back([(answer.check_id, charge) for charge in answer.charges])  # to its share, by a guard
                for i in oversized:
                    del question.costs[i]
                answer = self.wrapped.check(question.hits_to_ask(), _id_of_strikes(question, answer))
        except BaseException:
            with self._lock:
                self._end(question, charged=False)
            raise
        with self._lock:
            self._end(question, charged=answer.allowed)
            return self._merge(question, answer, asked_at)

    def _give_back(self, charges: Sequence[tuple[bytes, Charge]]) -> None:
        """Refund charges of checks. If the storage fails, they count until they leave their window."""
        for check_id, charge in charges:
            with suppress(StorageError):
                self.wrapped.settle(UUID(bytes=check_id), (charge,))

    def _announce_units(self, key: str) -> None:
        for call in self._listeners:
            call((key,))

    def _end(self, question: _Question, *, charged: bool) -> None:
        """End the question. If nothing was charged, put back what the leases have paid. The caller holds the lock."""
        for i, lease in question.spent.items():
            lease.may_return -= 1
            if not charged:
                lease.units += question.hits[i].cost
                self._announce_units(question.hits[i].key)
        for lease in question.claimed.values():
            lease.is_asking = False

    def _merge(self, question: _Question, answer: Decision, asked_at: int) -> Decision:
        """Record what was granted, and make the decision on all hits. The caller holds the lock."""
        now, failed = self._clock(), answer.decided_by in FALLBACKS
        reply = head(answer.at, answer.reply[DELAY], allowed=answer.allowed)
        standings = dict(zip(question.places, standings_of(answer.reply), strict=True))
        for i, hit in enumerate(question.hits):
            if i in question.spent:
                reply += question.spent[i].standing(None if failed else answer.at, now)
                continue
            remaining, retry_after, reset_after = standings[i]
            lease = question.claimed.get(i)
            if lease is not None and answer.allowed and not failed:
                units = question.costs.get(i, hit.cost)
                lease.units = units - hit.cost
                lease.grant = _grant_of(answer, units, max(remaining, 0), reset_after, hit.rule, asked_at, now)
                if lease.units:
                    remaining = max(remaining, 0) + lease.units
                    self._announce_units(hit.key)
            elif lease is not None and (retry_after or failed):
                lease.size = 0
            reply += remaining, retry_after, reset_after
        decision = Decision(answer.check_id, question.hits, reply, answer.decided_by)
        if not answer.allowed:
            self._end_leases_of_banned(decision, now)
        return decision

    def _end_leases_of_banned(self, decision: Decision, now: int) -> None:
        """Let banned subjects spend no more units here. The caller holds the lock."""
        for ban in decision.bans:
            for key in ban.hit.watches if ban.holds else ():
                lease = self._leases.get(key)
                if lease is not None and lease.grant is not None:
                    lease.grant = replace(lease.grant, ends_at=now)


def _id_of_strikes(question: _Question, answer: Decision) -> UUID | None:
    """The id for asking again about a refused request: under this id, bans count its strike only once."""
    refused = not answer.allowed and answer.decided_by not in FALLBACKS
    return answer.id if refused and bans_of(question.hits) else None


def _leased(hits: tuple[Hit, ...]) -> tuple[int, ...]:
    """The places of the hits for which units may be charged in advance."""
    return tuple(i for i, hit in enumerate(hits) if hit.rule.lease and hit.cost and not hit.shadow)


def _grant_of(
    answer: Decision, units: int, left: int, reset_after: int, rule: Rule, asked_at: int, answered_at: int
) -> _Grant:
    duration = rule.lease_ms * 1000 or reset_after
    return _Grant(
        check_id=answer.check_id,
        units=units,
        left=left,
        at=answer.at,
        full_at=answer.at + reset_after,
        asked_at=asked_at,
        answered_at=answered_at,
        ends_at=asked_at + duration - duration // DRIFT,
    )


def _decide_here(hits: tuple[Hit, ...], spent: dict[int, _Lease], now: int) -> Decision:
    """Allow ``hits`` without asking the storage."""
    grant = next(iter(spent.values())).grant
    assert grant is not None
    at = grant.earliest(now)
    reply = head(at)
    for i, hit in enumerate(hits):
        reply += spent[i].standing(at, now) if i in spent else (hit.rule.quota.count, 0, 0)  # a ban, not asked about
    return Decision(new_id(), hits, reply, "lease")
