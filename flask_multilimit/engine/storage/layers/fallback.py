"""What this process admits by itself while the storage does not answer: its share of each limit.

All workers together never admit more than the limit: a limit of 100 shared by 4 workers is 25 in each, a limit of 3 is
0. Nor do they admit more than was left in the storage's last answer: the units that were used then count here until
they would have come back. If the storage said nothing about a key, half of its limit is assumed to be used.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from uuid import UUID, uuid4

from ...algorithms import UNKNOWN
from ...algorithms.base import encode_ban, level_of
from ...decision import Charge, Decision
from ...hits import PEEK_ID, BanHit, Hit, bans_of, joined_keys, memoized, new_id
from ...periods import AROUND
from ...reply import DELAY, NOW, RESET_AFTERS, RETRY_AFTERS, Standing, head, standing_of, standings_of, start_of
from ...rules import LONGEST, Concurrent, Rule, changed
from ..base import Slot, monotonic_microseconds
from ..forgetting import MOST_KEYS
from ..memory import SWEEPS, MemoryStorage

REMEMBERED = 8192
"""The last answers of at least this many checks are kept, and of at most twice as many."""

REGATHER_AFTER = 1_000_000
"""Microseconds after which these answers are gathered again by key, if more have come in."""

OVERTAKEN = 1_000_000
"""Microseconds by which a reply may be older than the last one because other threads were faster. If it is older by
more, the server's clock has stepped back."""

RETRY_AFTER = 1_000_000
"""Microseconds to wait if the share of a limit is nothing: the storage may be back by then."""

UNLIMITED = 10**9
"""A count that refuses nothing."""


@dataclass(slots=True)
class LastAnswer:
    """The storage's last answer about the keys of one check."""

    at: int
    """When it came, by the clock of this process."""
    decision: Decision
    before: Decision | None
    """The answer before that."""
    changes: int
    """How many changes (of :class:`Fallback`) had been made when it came."""
    changes_before: int
    """How many had been made when the answer before that came."""


class Fallback:
    """Decides in place of a storage. Not thread-safe, except for :meth:`remember`."""

    def __init__(self, clock: Callable[[], int] = monotonic_microseconds, *, most_keys: int = MOST_KEYS) -> None:
        self.workers = 1
        self.now = clock
        self._down_since: int | None = None
        self._backdated_to: int | None = None
        self._memory = MemoryStorage(self._clock, most_keys=most_keys)
        self._recent: dict[str, LastAnswer] = {}
        self._older: dict[str, LastAnswer] = {}
        self._by_key: dict[str, LastAnswer] = {}
        self._gathered_at: int | None = None
        self._changes = 0
        """How many changes the storage's answers may not have shown yet: releases, resets, and units beyond a cost."""
        self._resets: OrderedDict[str, int] = OrderedDict()
        """By key, the change with which it was reset last."""
        self._released: OrderedDict[tuple[bytes, str], tuple[int, int]] = OrderedDict()
        """By check and key, the change with which slots of the storage were released first, and how many units."""
        self._given_back: dict[str, list[tuple[int, int]]] = {}
        """In an outage, those of them that were released before it, by key."""
        self._freed: dict[str, dict[bytes, tuple[int, int]]] = {}
        """In the same way, by key and check, slots that were released in the outage, or that count here now."""
        self._excess: deque[tuple[int, Hit, int]] = deque(maxlen=REMEMBERED)
        """The change with which units were charged beyond the cost of a check, a hit, and how many units."""
        self._needs_sweep = False
        self._has_new_answers = False

    def __len__(self) -> int:
        return len(self._memory)

    def begin(self) -> None:
        """An outage begins."""
        self._down_since = self.now()
        self.gather_again()
        self._freed.clear()
        self._given_back.clear()
        for (_, key), released in self._released.items():
            self._given_back.setdefault(key, []).append(released)
        while self._excess:
            change, hit, units = self._excess.popleft()
            last = self._answers_by_key().get(hit.key)
            if change > max(0 if last is None else last.changes, self._resets.get(hit.key, 0)):
                self._charge_excess(hit, units)

    def end(self) -> None:
        """The outage ends: the storage answers, and is charged for everything."""
        self._down_since = None

    def remember(self, decision: Decision) -> None:
        """Keep an answer of the storage. This runs at every request, so it does little."""
        keys = memoized(decision.hits, joined_keys)
        last = self._recent.get(keys)
        if last is None:
            self._add_answer(keys, decision)
        elif not -OVERTAKEN < decision.reply[NOW] - last.decision.reply[NOW] < 0:
            last.before, last.changes_before = last.decision, last.changes
            last.decision, last.at, last.changes = decision, self.now(), self._changes
        if self._needs_sweep:
            self._sweep()

    def _add_answer(self, keys: str, decision: Decision) -> None:
        last, recent = self._recent.get(keys) or self._older.get(keys), self._recent
        if len(recent) >= REMEMBERED:
            self._older, self._recent = recent, {}
        before, changes_before = (None, 0) if last is None else (last.decision, last.changes)
        self._recent[keys] = LastAnswer(self.now(), decision, before, self._changes, changes_before)

    def _sweep(self) -> None:
        """Forget some keys of an outage, during it and afterwards, when the storage decides the checks."""
        self._has_new_answers = True
        self._memory.sweep(SWEEPS)
        self._needs_sweep = False  # first, because a decision made here in another thread sets it again
        if self._down_since is not None or len(self._memory) > 0:
            self._needs_sweep = True

    def _clock(self) -> int:
        past = self._backdated_to  # read once: another thread may change it at any time
        return self.now() if past is None else past

    def decide(
        self, check_id: UUID | None, hits: tuple[Hit, ...], local: tuple[Hit, ...], *, charging: bool
    ) -> tuple[Decision, Decision | None]:
        """The decision on ``hits``, of which only the ``local`` ones are limited here; and the decision on the shares
        of those alone. Both have one id, so that a repeated check is recognized here, too.

        A ban that the storage has reported continues. No ban begins, because a share refuses sooner than its rule.
        """
        bans: dict[str, Standing] = {ban.hit.key: self._standing_of_ban(ban.hit) for ban in bans_of(local)}
        banned = any(bans[hit.key][1] and not hit.shadow for hit in local if hit.key in bans)
        local = without_bans(local)
        id_ = check_id.bytes if check_id is not None else new_id() if charging else PEEK_ID
        if not local:
            return _decision(id_, hits, head(self.now(), allowed=not banned), bans), None
        for hit in local:
            if not hit.rule.holds_slots:
                self._charge_known_usage(hit)
        shares = [self._share(hit) for hit in local]
        share_hits = tuple(map(_on_share, local, shares))
        if charging and not banned:
            on_shares = self._memory.check(share_hits, check_id)
            id_ = on_shares.check_id
        else:
            on_shares = self._memory.peek(share_hits)
        standings = dict(zip([hit.key for hit in local], standings_of(on_shares.reply), strict=True))
        for hit, share in zip(local, shares, strict=True):
            if share is None:
                wait = UNKNOWN if hit.rule.holds_slots else RETRY_AFTER
                standings[hit.key] = (0, wait if hit.needed else 0, 0)
        self._needs_sweep = True
        start = head(on_shares.at, on_shares.reply[DELAY], allowed=on_shares.allowed and not banned)
        return _decision(id_, hits, start, {**standings, **bans}), on_shares

    def _standing_of_ban(self, hit: Hit) -> tuple[int, int, int]:
        """The standing of a ban now, by the storage's last answer."""
        if (last := self._answers_by_key().get(hit.key)) is not None:
            remaining, retry_after, _ = _standing(last.decision, hit.key)
            left = last.at + retry_after - self.now()
            if retry_after and left > 0:
                return encode_ban(level_of(remaining), begun=False), left, left
        return hit.rule.quota.count, 0, 0

    def settle(self, local: Decision, units: Mapping[str, int]) -> Decision:
        """Settle what :meth:`decide` has charged at ``units`` by key. Return ``local`` without the charges that became
        0."""
        charges = [charge._replace(units=units[charge.hit.key]) for charge in local.charges if charge.hit.key in units]
        self._memory.settle(local.id, charges)
        return local.after_settlement({key: 0 for key, left in units.items() if not left})

    def record_excess(self, charges: Sequence[Charge]) -> None:
        """Record what the storage has charged beyond the cost of a check: its last answers may not show that."""
        for hit, _, units in charges:
            if units <= hit.cost:
                continue
            if self._down_since is None:
                self._changes += 1
                self._excess.append((self._changes, hit, units - hit.cost))
            else:
                self._charge_excess(hit, units - hit.cost)

    def _charge_excess(self, hit: Hit, units: int) -> None:
        """Charge ``units`` on top of what the storage's last answer says, even if they do not fit."""
        share = share_of(hit.rule, self.workers)
        if share is not None:
            self._charge_known_usage(hit)
            self._memory.settle(uuid4(), (Charge(Hit(hit.key, share, 0), 0, units),))

    def record_overtaken(self, answer: Decision) -> None:
        """Keep an ``answer``, unless that is done. In an outage, count what the storage has charged by it, as far as
        the last answers do not show it now."""
        shares = [(hit, share_of(hit.rule, self.workers)) for hit, _, _ in answer.charges if not hit.rule.holds_slots]
        counted = [(hit, share, self._standing_here(hit.key, share)[0] - hit.cost) for hit, share in shares if share]
        last = self._recent.get(memoized(answer.hits, joined_keys))
        if last is None or last.decision is not answer:
            self.remember(answer)
        for hit, share, left in counted if self._down_since is not None else ():
            self._charge_known_usage(hit)
            missing = max(self._standing_here(hit.key, share)[0] - left, 0)
            self._memory.settle(uuid4(), (Charge(Hit(hit.key, share, 0), 0, missing),))

    def _standing_here(self, key: str, share: Rule) -> Standing:
        return standing_of(self._memory.peek((Hit(key, share, 0),)).reply, 0)

    def record_release(self, slots: Sequence[Slot]) -> None:
        """Record that slots of the storage are being released: its last answers still count them."""
        self._changes += 1
        for check_id, hit in slots:
            self._released.setdefault((check_id, hit.key), (self._changes, hit.cost))
            if len(self._released) > REMEMBERED:
                self._released.popitem(last=False)

    def free_slot(self, slot: Slot) -> None:
        """Let other requests have a slot that the storage had charged before it failed, and that is free now."""
        if (slot.check_id, slot.hit.key) not in self._released:
            self.record_release((slot,))
            self._freed.setdefault(slot.hit.key, {})[slot.check_id] = self._changes, slot.hit.cost

    def take_over(self, slots: Sequence[Slot]) -> Decision:
        """Count slots here that the storage had charged before it failed and that are still in use. They no longer
        count as a part of its last answer."""
        self._changes += 1
        for check_id, hit in slots:
            self._freed.setdefault(hit.key, {})[check_id] = self._changes, hit.cost
        return self._memory.check(tuple(unlimited(slot.hit) for slot in slots))

    def renew(self, local: Decision) -> Decision:
        """Renew the slots that ``local`` has taken. Return the decision that holds them now."""
        slots = [Slot(local.check_id, charge.hit) for charge in local.charges if charge.hit.rule.holds_slots]
        self._memory.renew(slots)
        reply, elapsed = list(local.reply), self.now() - local.at
        reply[RESET_AFTERS] = [
            elapsed + hit.rule.quota.window if hit.rule.holds_slots else reset_after
            for hit, reset_after in zip(local.hits, local.reply[RESET_AFTERS], strict=True)
        ]
        return local.replaced(reply=reply)

    def reset(self, keys: Sequence[str]) -> None:
        """Forget ``keys``, also in the storage's answers so far. This may run at every login, so it does little."""
        self._memory.reset(keys)
        self._changes += 1
        for key in keys:
            self._resets[key] = self._changes
            self._resets.move_to_end(key)
        while len(self._resets) > 2 * REMEMBERED:  # as many as the answers
            self._resets.popitem(last=False)
        self.gather_again()

    def gather_again(self) -> None:
        """Gather the storage's answers by key again before the next decision."""
        self._gathered_at = None

    def _share(self, hit: Hit) -> Rule | None:
        """What this process may admit; ``None``: nothing."""
        if not hit.rule.holds_slots:
            return share_of(hit.rule, self.workers)
        left = self._slots_left(hit)
        return Concurrent(left, hit.rule.time) if left else None

    def _slots_left(self, hit: Hit) -> int:
        """This process's share of the slots that were left in the storage's last answer, and those that became free
        here since. It does not know which slots become free elsewhere. When all slots that were in use then have
        expired, except those that :meth:`take_over` counts here, it is the share of all."""
        since, full = self._down_since, hit.rule.count
        if since is None or self.now() >= since + hit.rule.quota.window:
            return full // self.workers
        last = self._answers_by_key().get(hit.key)
        known = 0 if last is None else last.changes
        if last is None:
            halved = full if self.workers == 1 else full // 2
            free = share = max(halved // self.workers, min(full // self.workers, 1))
        else:
            given_back = sum(units for change, units in self._given_back.get(hit.key, ()) if change > known)
            free = min(_remaining(last.decision, hit) + given_back, full)
            share = max(free - self._usage_since(hit, last), 0) // self.workers
        freed = sum(units for change, units in self._freed.get(hit.key, {}).values() if change > known)
        return min(share + min(freed, full - free), full)  # a reset may have freed them before

    def _charge_known_usage(self, hit: Hit) -> None:
        """Charge units so that no more is left here than this process's share of what was left in the storage."""
        last, share = self._answers_by_key().get(hit.key), share_of(hit.rule, self.workers)
        if share is None:
            return
        remaining = full = hit.rule.quota.burst
        burst, full_at = share.quota.burst, 0
        if last is not None:
            full_at = last.at + _standing(last.decision, hit.key)[2]
            if full_at > self.now():
                remaining = _remaining(last.decision, hit) - self._usage_since(hit, last)
        left = burst if remaining >= full else min(burst, max(remaining, 0) // self.workers)
        assumed, until = self._assumed_usage(hit.rule, last)
        if assumed and until > self.now():
            left = min(left, max((remaining - assumed) // self.workers, 1))
            full_at = max(full_at, until)
        if full_at > self.now():
            here, _, reset_after = self._standing_here(hit.key, share)
            is_calendar = share.quota.periods is not None
            if left <= here < burst and self.now() + reset_after < full_at and not is_calendar:
                self._memory.reset([hit.key])  # what an earlier outage left, which the last answer counts to a fraction
                here = burst
            self._charge(hit.key, share, here - left, full_at if here == burst and not is_calendar else None)

    def _assumed_usage(self, rule: Rule, last: LastAnswer | None) -> tuple[int, int]:
        """How many units of a key other workers may have used before the outage without this process learning of it,
        and until when they count. The assumption is half the limit in the time in which it refills."""
        since = self._down_since
        if self.workers == 1 or since is None:
            return 0, 0
        full, periods = rule.quota.burst, rule.quota.periods
        refill = full * rule.quota.window // rule.quota.count
        silent = refill if last is None else min(max(since - last.at, 0), refill)
        until = since + refill if periods is None else periods.around(since)[AROUND + 1]
        return full * silent // (2 * refill), until

    def _answers_by_key(self) -> dict[str, LastAnswer]:
        """The last answer about each key, in any check."""
        if self._gathered_at is None or (self._has_new_answers and self.now() - self._gathered_at > REGATHER_AFTER):
            self._gathered_at, self._has_new_answers = self.now(), False
            answers = sorted([*self._older.copy().values(), *self._recent.copy().values()], key=lambda last: last.at)
            for last in answers if self._resets else ():
                for place, hit in enumerate(last.decision.hits):
                    reset = self._resets.get(hit.key, 0)
                    if reset > last.changes:
                        last.decision = _after_reset(last.decision, place)
                    if last.before is not None and reset > last.changes_before:
                        last.before = _after_reset(last.before, place)
            self._by_key = {hit.key: last for last in answers for hit in last.decision.hits}
        return self._by_key

    def _usage_since(self, hit: Hit, last: LastAnswer) -> int:
        """How many units other workers may have used since the storage's last answer: twice what they used between the
        last two answers, or twice one unit each if that is more."""
        if self.workers == 1 or last.before is None:
            return 0
        ours = sum(charge.hit.cost for charge in last.decision.charges if charge.hit.key == hit.key)
        before, now = (_remaining(decision, hit) for decision in (last.before, last.decision))
        return 2 * max(before - now - ours, self.workers - 1)

    def _charge(self, key: str, share: Rule, units: int, full_at: int | None) -> None:
        """Charge ``units``, if any, to an unused key so that they come back at ``full_at``, or as soon after it as the
        last units of an earlier outage let them; ``None``: charge them now, which is always right for a calendar."""
        while units > 0:
            hit = Hit(key, share, min(units, share.implementation.MAX_COST))
            if full_at is not None:
                self._backdated_to = min(full_at - _time_to_full(share, hit.cost), self.now())
            try:
                refused_for = self._memory.check((hit,)).reply[RETRY_AFTERS][0]
                if refused_for and self._backdated_to is not None:
                    self._backdated_to = min(self._backdated_to + refused_for, self.now())
                    self._memory.check((hit,))
            finally:
                self._backdated_to = None
            units -= hit.cost


def unlimited(hit: Hit) -> Hit:
    """``hit``, changed so that it is charged however little is left, and never refuses.

    A bucket with another count would refill at another rate, so a hit of one is charged only if it fits.
    """
    return Hit(hit.key, _unlimited_rule(hit.rule), hit.cost, hit.name, shadow=True)


def without_bans(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """``hits`` without bans, which cannot be charged."""
    return tuple(hit for hit in hits if not isinstance(hit, BanHit))


def _standing(decision: Decision, key: str) -> Standing:
    return standing_of(decision.reply, next(place for place, hit in enumerate(decision.hits) if hit.key == key))


def _remaining(decision: Decision, hit: Hit) -> int:
    """What ``decision`` leaves of ``hit``, at most: the count may have been larger then."""
    then = next(_full_quota(each) for each in decision.hits if each.key == hit.key)
    return max(_standing(decision, hit.key)[0], 0) - max(then - _full_quota(hit), 0)


def _after_reset(decision: Decision, place: int) -> Decision:
    reply = list(decision.reply)
    reply[start_of(place) : start_of(place + 1)] = _full_quota(decision.hits[place]), 0, 0
    return decision.replaced(reply=reply)


@lru_cache(maxsize=1024)
def _time_to_full(rule: Rule, cost: int) -> int:
    """Microseconds until a key is full again that was unused before a charge of ``cost`` units."""
    return MemoryStorage(lambda: 0).check((Hit("", rule, cost),)).reply[RESET_AFTERS][0]


def _decision(
    check_id: bytes, hits: tuple[Hit, ...], start: Sequence[int], standings: Mapping[str, Standing]
) -> Decision:
    """A decision made of ``standings``, by key. Hits without a standing are not limited here, and show a full quota."""
    reply = [*start, *chain.from_iterable(standings.get(hit.key, (_full_quota(hit), 0, 0)) for hit in hits)]
    return Decision(check_id, hits, reply, "local" if standings else "allow")


def _full_quota(hit: Hit) -> int:
    """The units of an unused key; of a ban, the strikes until it begins."""
    return hit.rule.quota.burst or hit.rule.quota.count


def _on_share(hit: Hit, share: Rule | None) -> Hit:
    """``hit`` with its share as the rule. Without a share, a rule is asked for more than it ever admits, because rules
    with a count of 0 cannot be declared. Its own key may have been charged when there were fewer workers."""
    if share is None:
        return Hit("", _LEAST, min(hit.needed, 1) * 2, shadow=hit.shadow)
    return type(hit)(hit.key, share, hit.cost, hit.name, hit.shadow)


_LEAST = Rule(1, 1, algorithm="fixed_window")


@lru_cache(maxsize=1024)
def share_of(rule: Rule, workers: int) -> Rule | None:
    """What each of ``workers`` may admit so that together they keep within ``rule``; ``None``: nothing."""
    count, burst = rule.count // workers, rule.burst
    if "burst" in rule.implementation.PARAMETERS:
        # At least one unit at once. Workers that begin with more than their part of the burst refill more slowly: in
        # no window do they together admit more than `burst + count`, which is what the rule admits.
        full = rule.quota.burst
        burst = max(full // workers, 1)
        count = min(count, (rule.count + full) // workers - burst)
    if count < 1:
        return None
    if burst is not None:
        burst = min(burst, max(int(LONGEST * count / rule.time), 1))
    return changed(rule, count=count, burst=burst, lease=None)


@lru_cache(maxsize=1024)
def _unlimited_rule(rule: Rule) -> Rule:
    return rule if "burst" in rule.implementation.PARAMETERS else changed(rule, count=UNLIMITED)
