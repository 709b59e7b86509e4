"""What this process admits by itself while the storage does not answer: its share of each limit.

All workers together never admit more than the limit: a limit of 100 shared by 4 workers is 25 in each, one of 3 is 0.
Nor do they admit more than was left in the storage's last answer: the units that were used then count here until they
would have come back. If the storage said nothing about a key, half of its limit is assumed to be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from ...algorithms import UNKNOWN
from ...algorithms.base import encode_ban, level_of
from ...decision import Decision
from ...hits import BanHit, Hit, bans_among, bans_of, memoized
from ...periods import AROUND
from ...reply import DELAY, Standing, at_instant, head, reset_afters, standing_of, standings_of
from ...rules import LONGEST, Concurrent, Rule, changed
from ..base import Slot, monotonic_microseconds
from ..forgetting import MOST_KEYS
from ..memory import SWEEPS, MemoryStorage

REMEMBERED = 8192
"""At least this many checks have their latest answer kept; at most twice as many."""

GATHERED_FOR = 1_000_000
"""Microseconds for which the knowledge of each key, gathered from these answers, is used while more answers come in."""

COME_BACK = 1_000_000
"""Microseconds after which it is worth asking for a key without a share again: the storage may be back by then."""

UNLIMITED = 10**9
"""A count that refuses nothing."""


@dataclass(slots=True, eq=False, repr=False)
class Known:
    """The storage's last answer about the keys of one check, and when it came, by the clock of this process."""

    at: int
    decision: Decision
    before: Decision | None
    """The answer before that."""


class Fallback:
    """Decides in place of a storage. Not thread-safe, except for :meth:`remember`."""

    def __init__(self, clock: Callable[[], int] = monotonic_microseconds, *, most_keys: int = MOST_KEYS) -> None:
        self.workers = 1
        self.now = clock
        self._away_since: int | None = None
        self._past: int | None = None
        self._memory = MemoryStorage(self._clock, most_keys=most_keys)
        self._recent: dict[str, Known] = {}
        self._older: dict[str, Known] = {}
        self._by_key: dict[str, Known] = {}
        self._gathered_at: int | None = None
        self._freed: dict[str, dict[bytes, int]] = {}
        """The units of slots that the storage had charged and that became free while it was down, by key and check."""
        self._unsettled = False
        self._has_news = False

    def __len__(self) -> int:
        return len(self._memory)

    def begin(self) -> None:
        """The storage has stopped answering."""
        self._away_since = self.now()
        self._gathered_at = None
        self._freed.clear()

    def end(self) -> None:
        """The storage answers again, and knows what it was charged before."""
        self._away_since = None

    def remember(self, decision: Decision) -> None:
        """The storage has answered. This runs at every request, so it does little."""
        place = memoized(decision.hits, _joined_keys)
        known = self._recent.get(place)
        if known is None:
            self._make_room(place, decision)
        else:
            known.before, known.decision, known.at = known.decision, decision, self.now()
        if self._unsettled:
            self._settle_down()

    def _make_room(self, place: str, decision: Decision) -> None:
        known, recent = self._recent.get(place) or self._older.get(place), self._recent
        if len(recent) >= REMEMBERED:
            self._older, self._recent = recent, {}
        self._recent[place] = Known(self.now(), decision, None if known is None else known.decision)

    def _settle_down(self) -> None:
        """Sweep the keys of an outage, during it and afterwards, when no check here would."""
        self._has_news = True
        self._memory.sweep(SWEEPS)
        self._unsettled = False  # before looking: a decision that is made here meanwhile sets it again
        if self._away_since is not None or len(self._memory) > 0:
            self._unsettled = True

    def _clock(self) -> int:
        past = self._past  # read once: a thread that sweeps does not wait for one that charges the past
        return self.now() if past is None else past

    def decide(
        self, check_id: bytes, hits: tuple[Hit, ...], local: tuple[Hit, ...], *, charging: bool
    ) -> tuple[Decision, Decision | None]:
        """The decision on ``hits``, of which only the ``local`` ones are limited here; and the decision on their shares
        alone.

        A ban that the storage has reported holds on. No new one begins, for a share refuses sooner than the rule does.
        """
        bans: dict[str, Standing] = {ban.hit.key: self._standing_of_ban(ban.hit) for ban in bans_among(local)}
        banned = any(bans[hit.key][1] and not hit.shadow for hit in local if hit.key in bans)
        local = without_bans(local)
        if not local:
            return _decision(check_id, hits, head(self.now(), allowed=not banned), bans), None
        for hit in local:
            if not hit.rule.holds_slots:
                self._take_what_is_known(hit)
        shares = [self._share(hit) for hit in local]
        on_shares = tuple(map(_on_share, local, shares))
        answer = self._memory.check(on_shares) if charging and not banned else self._memory.peek(on_shares)
        standings: dict[str, Standing] = dict(zip((hit.key for hit in local), standings_of(answer.reply), strict=True))
        for hit, share in zip(local, shares, strict=True):
            if share is None:
                wait = UNKNOWN if hit.rule.holds_slots else COME_BACK
                standings[hit.key] = (0, wait if hit.needed else 0, 0)
        self._unsettled = True
        start = head(answer.at, answer.reply[DELAY], allowed=answer.allowed and not banned)
        return _decision(check_id, hits, start, {**standings, **bans}), answer

    def _standing_of_ban(self, hit: Hit) -> tuple[int, int, int]:
        """What is left of the ban that the storage reported last."""
        known = self._known().get(hit.key)
        if known is not None:
            remaining, retry_after, _ = _standing(known.decision, hit.key)
            left = known.at + retry_after - self.now()
            if retry_after and left > 0:
                return encode_ban(level_of(remaining), begun=False), left, left
        return hit.rule.quota.count, 0, 0

    def settle(self, local: Decision, units: Mapping[str, int]) -> Decision:
        """Make what :meth:`decide` has charged to these keys so many ``units``. Return what is left of ``local``."""
        charges = [charge._replace(units=units[charge.hit.key]) for charge in local.charges if charge.hit.key in units]
        self._memory.settle(local.id, charges)
        return local.after_settlement({key: 0 for key, left in units.items() if not left})

    def slot_is_free(self, slot: Slot) -> None:
        """A slot that the storage had charged before it failed is free now: another request may have it."""
        self._freed.setdefault(slot.hit.key, {})[slot.check_id] = slot.hit.cost

    def take_over(self, slots: Sequence[Slot]) -> Decision:
        """Slots that the storage had charged before it failed are still in use. They count here from now on, and no
        longer as a part of its last answer."""
        for slot in slots:
            self.slot_is_free(slot)
        return self._memory.check(tuple(unlimited(slot.hit) for slot in slots))

    def renew(self, local: Decision) -> Decision:
        """Restart the time of the slots that ``local`` has taken. Return the decision that holds them now."""
        slots = [Slot(local.check_id, charge.hit) for charge in local.charges if charge.hit.rule.holds_slots]
        self._memory.renew(slots)
        return local.replaced(reply=at_instant(local.reply, self.now()))

    def reset(self, keys: Sequence[str]) -> None:
        """Forget ``keys`` and what was known about them."""
        self._memory.reset(keys)
        forgotten = set(keys)
        for remembered in (self._recent, self._older):
            for place, known in list(remembered.items()):
                if any(hit.key in forgotten for hit in known.decision.hits):
                    del remembered[place]
        self._gathered_at = None

    def _share(self, hit: Hit) -> Rule | None:
        """What this process may admit; ``None``: nothing."""
        if not hit.rule.holds_slots:
            return _share_of(hit.rule, self.workers)
        left = self._slots_left(hit)
        return Concurrent(left, hit.rule.time) if left else None

    def _slots_left(self, hit: Hit) -> int:
        """This process's share of the slots that were left in the storage's last answer, and those that became free
        here since. Slots that become free elsewhere are not known until all that were in use then have expired, but
        for those that :meth:`take_over` got."""
        since, whole = self._away_since, hit.rule.count
        if since is None or self.now() >= since + hit.rule.quota.window:
            return whole // self.workers
        known = self._known().get(hit.key)
        if known is None:
            halved = whole if self.workers == 1 else whole // 2
            share = max(halved // self.workers, min(whole // self.workers, 1))
        else:
            left = _standing(known.decision, hit.key)[0] - self._taken_unseen(hit.key, known)
            share = max(left, 0) // self.workers
        return min(share + sum(self._freed.get(hit.key, {}).values()), whole)

    def _take_what_is_known(self, hit: Hit) -> None:
        """Charge what other workers have taken, so that no more is left here than our share of what was left there."""
        known = self._known().get(hit.key)
        share = _share_of(hit.rule, self.workers)
        if share is None:
            return
        whole, burst, whole_at = hit.rule.quota.burst, share.quota.burst, 0
        remaining = whole
        if known is not None:
            remaining, _, reset_after = _standing(known.decision, hit.key)
            remaining = max(remaining, 0)
            remaining -= self._taken_unseen(hit.key, known)
            whole_at = known.at + reset_after
        if whole_at <= self.now():
            remaining = whole
        left = burst if remaining >= whole else min(burst, max(remaining, 0) // self.workers)
        supposed, until = self._supposed(hit.rule, known)
        if supposed and until > self.now():
            left = min(left, max((remaining - supposed) // self.workers, 1))
            whole_at = max(whole_at, until)
        if whole_at > self.now():
            here = self._memory.peek((Hit(hit.key, share, 0),)).remaining
            in_past = here == burst and share.quota.periods is None
            self._charge(hit.key, share, here - left, whole_at if in_past else None)

    def _supposed(self, rule: Rule, known: Known | None) -> tuple[int, int]:
        """What other workers may have taken of a key before the outage without this process learning of it, and until
        when that counts. This is an assumption: half the limit, in the time in which it comes back."""
        since = self._away_since
        if self.workers == 1 or since is None:
            return 0, 0
        whole = rule.quota.burst
        back = whole * rule.quota.window // rule.quota.count
        silent = back if known is None else min(max(since - known.at, 0), back)
        periods = rule.quota.periods
        until = since + back if periods is None else periods.around(since)[AROUND + 1]
        return whole * silent // (2 * back), until

    def _known(self) -> dict[str, Known]:
        """What was said last about each key, in any check."""
        if self._gathered_at is None or (self._has_news and self.now() - self._gathered_at > GATHERED_FOR):
            self._gathered_at, self._has_news = self.now(), False
            found = sorted([*self._older.copy().values(), *self._recent.copy().values()], key=lambda known: known.at)
            self._by_key = {hit.key: known for known in found for hit in known.decision.hits}
        return self._by_key

    def _taken_unseen(self, key: str, known: Known) -> int:
        """What other workers may have taken since the storage's last answer: at most twice what they took between the
        last two answers, or twice one unit each if that is more."""
        if self.workers == 1 or known.before is None:
            return 0
        ours = sum(charge.hit.cost for charge in known.decision.charges if charge.hit.key == key)
        before, now = (max(_standing(decision, key)[0], 0) for decision in (known.before, known.decision))
        theirs = before - now - ours
        return 2 * max(theirs, self.workers - 1)

    def _charge(self, key: str, share: Rule, units: int, whole_at: int | None) -> None:
        """Charge ``units``, if any, to an unused key, so that they come back at ``whole_at``; ``None``: charge
        them now, as is always right for a calendar."""
        while units > 0:
            hit = Hit(key, share, min(units, share.implementation.MAX_COST))
            if whole_at is not None:
                self._past = min(whole_at - _lasting(share, hit.cost), self.now())
            try:
                self._memory.check((hit,))
            finally:
                self._past = None
            units -= hit.cost


def unlimited(hit: Hit) -> Hit:
    """``hit``, changed to be charged no matter how much is left, and to refuse nothing.

    Some algorithms keep an instant as their state. They would take a charge of more than the bucket holds for an error
    of the clock, so for them the hit is charged only if it fits.
    """
    return Hit(hit.key, _unlimited(hit.rule), hit.cost, hit.name, shadow=True)


def without_bans(hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """The hits that can be charged."""
    if not bans_of(hits):
        return hits
    return tuple(hit for hit in hits if not isinstance(hit, BanHit))


def _joined_keys(hits: tuple[Hit, ...]) -> str:
    return "\n".join(hit.key for hit in hits)


def _standing(decision: Decision, key: str) -> Standing:
    return standing_of(decision.reply, next(place for place, hit in enumerate(decision.hits) if hit.key == key))


@lru_cache(maxsize=1024)
def _lasting(rule: Rule, cost: int) -> int:
    """Microseconds until ``cost`` units that are charged to an unused key have come back."""
    reply = MemoryStorage(lambda: 0).check((Hit("", rule, cost),)).reply
    return reset_afters(reply)[0]


def _decision(
    check_id: bytes, hits: tuple[Hit, ...], start: Sequence[int], standings: Mapping[str, Standing]
) -> Decision:
    """A decision made of ``standings``, by key. Hits that are not limited have their whole quota."""
    reply = [*start, *chain.from_iterable(standings.get(hit.key, (_whole(hit), 0, 0)) for hit in hits)]
    return Decision(check_id, hits, reply, "local" if standings else "allow")


def _whole(hit: Hit) -> int:
    """The units that an untouched key has; of a ban, the strikes that it takes."""
    return hit.rule.quota.burst or hit.rule.quota.count


def _on_share(hit: Hit, share: Rule | None) -> Hit:
    """The hit on a share. There is no rule with a count of 0: such a share is a rule that is asked for more than it
    ever admits."""
    if share is not None:
        return type(hit)(hit.key, share, hit.cost, hit.name, hit.shadow)
    time = hit.rule.time
    least = Concurrent(1, time) if hit.rule.holds_slots else Rule(time, 1, algorithm="fixed_window")
    return Hit(hit.key, least, min(hit.needed, 1) * 2, hit.name, hit.shadow)


def has_share(rule: Rule, workers: int) -> bool:
    """Whether each of ``workers`` admits anything by ``rule`` while the storage is down."""
    return rule.count >= workers if rule.holds_slots else _share_of(rule, workers) is not None


@lru_cache(maxsize=1024)
def _share_of(rule: Rule, workers: int) -> Rule | None:
    """What each of ``workers`` may admit, so that together they keep within ``rule``; ``None``: nothing."""
    count, burst = rule.count // workers, rule.burst
    if "burst" in rule.implementation.PARAMETERS:
        # At least one unit at once. Workers that begin with more than their part of the burst refill more slowly:
        # in no window do they admit more together than `burst + count`, which is what the rule admits.
        whole = rule.quota.burst
        burst = max(whole // workers, 1)
        count = min(count, (rule.count + whole) // workers - burst)
    if count < 1:
        return None
    if burst is not None:
        burst = min(burst, max(int(LONGEST * count / rule.time), 1))
    return changed(rule, count=count, burst=burst, lease=None)


@lru_cache(maxsize=1024)
def _unlimited(rule: Rule) -> Rule:
    if "burst" in rule.implementation.PARAMETERS:
        return rule
    return changed(rule, count=UNLIMITED)
