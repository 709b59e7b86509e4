"""A storage around a shared one, which is not asked about every request: rules with a ``lease`` are asked about for
several units at once, and what a request leaves of them is spent here.

Never is more admitted than without:

- A unit is spent once, and only after the storage has charged it.
- Of a ``sliding_window`` it is spent within :attr:`Rule.lease_ms` of its charge, and counted so much longer than
  ``time``: all that is spent in any ``time`` seconds was charged in the window that the storage counts.
- Of a ``fixed_window`` it is spent before the window of its charge ends.
- The age of a unit is taken from before the storage was asked, by the monotonic clock of this process, which may be
  wrong by a thousandth.

Nor are units lost: a process has no more than ``lease`` of a quota that are not spent, and gives back what it did not
spend in time before it takes others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import cast
from uuid import UUID

from ...clock import monotonic_microseconds
from ...decision import FALLBACKS, Charge, Decision
from ...errors import StorageError
from ...forks import tell_child
from ...hits import Hit, Hits, memoized, new_id
from ...reply import DELAY, head, joined, retry_afters, standings_of
from ...rules import Rule
from ..base import KeepsSlots, Slot, Storage

MOST_LEASES = 1024
"""Quotas of which a process has leases; for another it gives back the one that was renewed longest ago."""

DRIFT = 1000
"""A lease ends sooner by this part of its life, by which the clocks may differ in their pace."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """What the storage has charged at once. ``at`` and ``whole_at`` are instants of its clock, the others of ours."""

    check_id: bytes
    units: int
    left: int
    """Units that were left in the storage."""
    at: int
    whole_at: int
    asked_at: int
    answered_at: int
    ends_at: int
    """From here on nothing of it is spent."""

    def earliest(self, now: int) -> int:
        """What it is now by the clock of the storage, at the earliest."""
        return self.at + now - self.answered_at


@dataclass(slots=True)
class _Lease:
    """What this process has of one quota."""

    rule: Rule
    units: int = 0
    """Charged to the storage, not spent yet; all of them by ``grant``."""
    grant: _Grant | None = None
    size: int = 0
    """Units that were in demand lately: so many are taken next."""
    asking: bool = False
    """Whether a thread is asking for the next grant."""
    uncertain: int = 0
    """Threads that may yet bring units back, because they are asking whether the other rules allow."""

    def has(self, cost: int, rule: Rule, now: int) -> bool:
        grant = self.grant
        return grant is not None and self.units >= cost and now < grant.ends_at and self._is_of(rule)

    def _is_of(self, rule: Rule) -> bool:
        return self.rule is rule or self.rule == rule

    def standing(self, at: int | None, now: int) -> tuple[int, int, int]:
        """Its part of a reply of the storage's instant ``at``, if that is known: units left, here and in the storage as
        it said last; nothing to wait for."""
        grant = self.grant
        assert grant is not None
        return grant.left + self.units, 0, max(grant.whole_at - (grant.earliest(now) if at is None else at), 0)

    def renew(self, rule: Rule, now: int) -> tuple[_Grant, int] | None:
        """Make room for the next grant; return what is left of the last one.

        The next is as large as what was spent of the last, twice as large if all of it was in half of its life; so
        that there is little to give back when there are few requests, and few questions when there are many.
        """
        grant, rest = self.grant, self.units
        if grant is not None:
            hurry = 2 if not rest and 2 * now < grant.asked_at + grant.ends_at else 1
            self.size = min((grant.units - rest) * hurry, grant.left)
        self.rule, self.grant, self.units = rule, None, 0
        return (grant, rest) if grant is not None and rest else None

    def cost_of_next(self, cost: int) -> int:
        """As many times ``cost`` as go into the next grant."""
        return max(min(self.size, self.rule.lease or 0) // cost, 1) * cost


@dataclass(slots=True)
class _Question:
    """What the storage is asked for a check of ``hits``; by their places among these."""

    hits: tuple[Hit, ...]
    spent: dict[int, _Lease]
    """Those that are paid for here."""
    claimed: dict[int, _Lease] = field(default_factory=dict)
    """Those for which this thread fetches the next grant."""
    costs: dict[int, int] = field(default_factory=dict)
    """What is asked for these, where it is more than their own cost."""
    rests: list[tuple[bytes, Charge]] = field(default_factory=list)
    """What is given back before."""

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.hits)) if i not in self.spent)

    def asked(self) -> tuple[Hit, ...]:
        if not self.costs:
            return _part(self.hits, self.places)
        return tuple(
            replace(self.hits[i], cost=self.costs[i]) if i in self.costs else self.hits[i] for i in self.places
        )

    def oversized(self, answer: Decision) -> list[int]:
        """The hits that ask for too much: those that are refused, though they might not be for what they need
        themselves; and all, where not the storage has decided, for only that grants anything in advance."""
        if answer.decided_by in FALLBACKS:
            return list(self.costs)
        refusals = zip(self.places, retry_afters(answer.reply), strict=True)
        return [i for i, retry_after in refusals if retry_after and i in self.costs]


class LeasingStorage:
    """Asks ``wrapped`` about rules with a ``lease`` only when what it has taken of them is spent.

    Rules without one, and shadows, are asked about at every check. So is all of a check that is given an id, for that
    is known only in the storage. ``clock``, for tests, returns the microseconds by which leases end. Thread-safe; a
    forked child begins without leases.
    """

    def __init__(self, wrapped: Storage, *, clock: Callable[[], int] = monotonic_microseconds) -> None:
        self.wrapped = wrapped
        self.on_units: Callable[[Sequence[str]], object] | None = None
        """Called with the keys of which this process has units that another thread has just fetched or brought back: a
        refusal that the storage gave meanwhile does not hold here. It is called under our lock."""
        self.shared: bool = wrapped.shared
        self._clock = clock
        self._leases: dict[str, _Lease] = {}  # by key, those first that were renewed longest ago
        self._lock = Lock()
        tell_child(self)

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        leased = memoized(hits, _leased)
        if not leased or check_id is not None:
            return self.wrapped.check(hits, check_id)
        with self._lock:
            now = self._clock()
            spent = self._spend(hits, leased, now)
            if len(spent) == len(hits):
                return _decided_here(hits, spent, now)
            question = self._question(hits, leased, spent, now)
        return self._ask(question)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        """What is left here counts as left."""
        decision = self.wrapped.peek(hits)
        leased = memoized(hits, _leased)
        if not leased:
            return decision
        standings = list(standings_of(decision.reply))
        with self._lock:
            now = self._clock()
            for i in leased:
                lease = self._leases.get(hits[i].key)
                if lease is not None and lease.has(1, hits[i].rule, now):
                    remaining, retry_after, reset_after = standings[i]
                    retry_after = 0 if lease.units >= hits[i].cost else retry_after
                    standings[i] = remaining + lease.units, retry_after, reset_after
        shadows = [hit.shadow for hit in hits]
        reply = joined(decision.at, decision.reply[DELAY], zip(standings, shadows, strict=True))
        return decision._replace(reply=reply)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        """One by one, when leases may save the round trips."""
        if ids is not None or not any(memoized(hits, _leased) for hits in many):
            return self.wrapped.check_many(many, ids)
        return [self.check(hits) for hits in many]

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """To the lease it was spent from; when there is another since, to the storage, which may not know it by this
        id: then it counts until it leaves its window."""
        with self._lock:
            late = [charge for charge in charges if not self._put_back(charge)]
        if late:
            self.wrapped.refund(check_id, late)

    def release(self, slots: Sequence[Slot]) -> None:
        cast("KeepsSlots", self.wrapped).release(slots)

    def renew(self, slots: Sequence[Slot]) -> None:
        cast("KeepsSlots", self.wrapped).renew(slots)

    def reset(self, keys: Sequence[str]) -> None:
        """Leases that other processes have stay."""
        self.wrapped.reset(keys)
        with self._lock:
            for key in keys:
                self._leases.pop(key, None)

    def rebuild(self, storage: Storage, clock: Callable[[], int]) -> LeasingStorage:
        return LeasingStorage(storage, clock=clock)

    def close(self) -> None:
        """Give back what is not spent."""
        with self._lock:
            idle = [(key, lease) for key, lease in self._leases.items() if not lease.asking and not lease.uncertain]
            rests = [rest for key, lease in idle for rest in _rest_of(key, lease, lease.rule, 0)]
        self._give_back(rests)
        self.wrapped.close()

    def __len__(self) -> int:
        """Quotas of which there are leases, spent or not."""
        return len(self._leases)

    def _after_fork_in_child(self) -> None:
        """In a forked child: what has been taken is the parent's."""
        self._lock = Lock()
        self._leases = {}

    # Under the lock

    def _spend(self, hits: tuple[Hit, ...], leased: tuple[int, ...], now: int) -> dict[int, _Lease]:
        """Take from the leases what they have for ``hits``."""
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
            lease.uncertain += 1
        for i in leased:
            if i not in spent:
                self._claim(question, i, now)
        return question

    def _claim(self, question: _Question, i: int, now: int) -> None:
        """Let this thread fetch the next grant, unless another one does, or may bring back units of the last."""
        hit = question.hits[i]
        lease = self._leases.pop(hit.key, None) or self._new_lease(question, hit.rule)
        if lease is None:
            return
        self._leases[hit.key] = lease
        if lease.asking or lease.uncertain:
            return
        lease.asking = True
        question.rests += _rest_of(hit.key, lease, hit.rule, now)
        question.claimed[i] = lease
        cost = lease.cost_of_next(hit.cost)
        if cost > hit.cost:
            question.costs[i] = cost

    def _new_lease(self, question: _Question, rule: Rule) -> _Lease | None:
        """In place of the oldest one when there are too many; ``None`` when that is in use."""
        if len(self._leases) >= MOST_LEASES:
            key, oldest = next(iter(self._leases.items()))
            if oldest.asking or oldest.uncertain:
                return None
            del self._leases[key]
            question.rests += _rest_of(key, oldest, oldest.rule, 0)
        return _Lease(rule)

    def _put_back(self, charge: Charge) -> bool:
        """Too late to be spent, it will be given back. No more than was granted: of a ``fixed_window``, units of
        earlier grants come back too."""
        lease = self._leases.get(charge.hit.key)
        if lease is None or lease.grant is None or lease.grant.whole_at != charge.until:
            return False
        if lease.units + charge.hit.cost > lease.grant.units:
            return False
        lease.units += charge.hit.cost
        return True

    # The way to the storage

    def _ask(self, question: _Question) -> Decision:
        try:
            self._give_back(question.rests)
            asked_at = self._clock()
            answer = self.wrapped.check(question.asked())
            if oversized := question.oversized(answer):
                self._undo(answer)
                for i in oversized:
                    del question.costs[i]
                answer = self.wrapped.check(question.asked())
        except BaseException:
            with self._lock:
                self._release(question, charged=False)
            raise
        with self._lock:
            self._release(question, charged=answer.allowed)
            return self._answer(question, answer, asked_at)

    def _give_back(self, rests: Sequence[tuple[bytes, Charge]]) -> None:
        """Unless the storage fails: then they count until they leave their window."""
        with suppress(StorageError):
            for check_id, charge in rests:
                self.wrapped.refund(UUID(bytes=check_id), (charge,))

    def _undo(self, answer: Decision) -> None:
        """Take back what a guard has charged to this process's share, in place of the storage."""
        if answer.charges:
            with suppress(StorageError):
                self.wrapped.refund(answer.id, answer.charges)

    def _release(self, question: _Question, *, charged: bool) -> None:
        """Under the lock."""
        for i, lease in question.spent.items():
            lease.uncertain -= 1
            if not charged:
                lease.units += question.hits[i].cost
                self._tell_of_units(question.hits[i])
        for lease in question.claimed.values():
            lease.asking = False

    def _tell_of_units(self, hit: Hit) -> None:
        if self.on_units is not None:
            self.on_units((hit.key,))

    def _answer(self, question: _Question, answer: Decision, asked_at: int) -> Decision:
        """Under the lock: note what has been granted, and put the reply together."""
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
                lease.grant = _granted(answer, units, remaining, reset_after, hit.rule, asked_at, now)
                remaining += lease.units
                if lease.units:
                    self._tell_of_units(hit)
            elif lease is not None and (retry_after or failed):
                lease.size = 0
            reply += remaining, retry_after, reset_after
        return Decision(answer.check_id, question.hits, reply, answer.decided_by)


def _leased(hits: tuple[Hit, ...]) -> tuple[int, ...]:
    """The places of those that may be paid for in advance."""
    return tuple(i for i, hit in enumerate(hits) if hit.rule.lease and hit.cost and not hit.shadow)


def _part(hits: tuple[Hit, ...], places: tuple[int, ...]) -> tuple[Hit, ...]:
    """Those at ``places``; kept with ``hits``, for the same are asked again and again."""
    if len(places) == len(hits):
        return hits
    parts = memoized(hits, _no_parts)
    if places not in parts:
        parts[places] = Hits(hits[i] for i in places)
    return parts[places]


def _no_parts(_: tuple[Hit, ...]) -> dict[tuple[int, ...], Hits]:
    return {}


def _rest_of(key: str, lease: _Lease, rule: Rule, now: int) -> list[tuple[bytes, Charge]]:
    """What is to be given back before ``lease`` is granted anything by ``rule``."""
    last = lease.renew(rule, now)
    if last is None:
        return []
    grant, units = last
    return [(grant.check_id, Charge(Hit(key, rule, units), grant.whole_at))]


def _granted(
    answer: Decision, units: int, left: int, reset_after: int, rule: Rule, asked_at: int, answered_at: int
) -> _Grant:
    lasts = rule.lease_ms * 1000 or reset_after
    return _Grant(
        check_id=answer.check_id,
        units=units,
        left=left,
        at=answer.at,
        whole_at=answer.at + reset_after,
        asked_at=asked_at,
        answered_at=answered_at,
        ends_at=asked_at + lasts - lasts // DRIFT,
    )


def _decided_here(hits: tuple[Hit, ...], spent: dict[int, _Lease], now: int) -> Decision:
    """Allowed without a question."""
    grant = spent[0].grant
    assert grant is not None
    at = grant.earliest(now)
    reply = head(at)
    for i in range(len(hits)):
        reply += spent[i].standing(at, now)
    return Decision(new_id(), hits, reply, "lease")
