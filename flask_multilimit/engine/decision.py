"""The answer to a check, whatever the storage: a Decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

from .algorithms import BAN, EVENLY, NEVER, UNKNOWN
from .algorithms.base import Quota, is_begun, level_of
from .errors import require
from .hits import PEEK_ID, BanHit, Hit, OpenHit, bans_of
from .periods import AROUND
from .reply import ALLOWED, DELAY, NOW, RESET_AFTERS, RETRY_AFTERS, Reply, Standing, standing_of, standings_of
from .rules import MAX_COUNT, Rule

_MICROSECONDS = 1_000_000

NOT_SETTLED: Mapping[str, int] = {}
"""The settlements of a new decision: none."""

DecidedBy = Literal["storage", "deny_cache", "lease", "memory", "local", "allow"]
"""Who decided:

- ``storage``: a server that processes share.
- ``deny_cache``: this process, because the storage has just refused the same check.
- ``lease``: this process, with units that the storage has charged in advance.
- ``memory``: the memory of this process, which is the storage.
- ``local``: this process in place of a storage that failed, within its share of the limit.
- ``allow``: nobody; the storage failed and ``on_storage_error`` lets such checks pass.
"""

FALLBACKS: frozenset[DecidedBy] = frozenset({"local", "allow"})
"""The values of ``decided_by`` for checks that the storage could not decide."""


class RuleStatus(NamedTuple):  # a frozen dataclass would take four times as long to create, several times a request
    """The state of one rule after the check. Durations are seconds."""

    hit: Hit
    allowed: bool
    """Whether this rule alone would have let the check pass."""
    remaining: int
    """Units that are left: after the charge if the check was allowed, and as before if it was not."""
    retry_after: float
    """Time until this hit would be allowed if there are no other requests: refused before that instant, allowed at it.
    0 if it is allowed. ``inf`` if the time is not known: its cost is more than the rule ever admits, or
    :attr:`waits_for_slot`."""
    reset_after: float
    """Time until the quota is full again if there are no requests; for a :class:`.Concurrent` rule, at most."""
    charged: int = 0
    """Units that this check has charged, or was settled at; 0 if it charged nothing."""
    debt: int = 0
    """Units used beyond the count: by a settlement, or because the count was lowered."""

    @property
    def name(self) -> str:
        return self.hit.name

    @property
    def rule(self) -> Rule:
        return self.hit.rule

    @property
    def waits_for_slot(self) -> bool:
        """Whether a :class:`.Concurrent` rule refuses until other work ends, at an unknown time."""
        return not self.allowed and self.rule.holds_slots and self.hit.cost <= self.rule.count


class BanStatus(NamedTuple):
    """The state of one ban after the check. Durations are seconds."""

    hit: BanHit
    holds: bool
    """Whether it refuses."""
    begun: bool
    """Whether this check was the last strike, so that the ban began with it."""
    level: int
    """While it holds, how many bans it repeats; otherwise 0."""
    strikes_left: int
    """Further refusals until it begins; 0 while it holds."""
    retry_after: float
    """Time until it ends; 0 if it does not hold."""
    reset_after: float
    """Time until neither strikes nor a ban are remembered."""

    @property
    def name(self) -> str:
        return self.hit.name


class Charge(NamedTuple):
    """What a check has charged to one quota."""

    hit: Hit
    until: int
    """The instant at which the quota is full again, in microseconds by the clock of the server that keeps it. This is
    the clock of :attr:`Decision.at` unless several servers have answered."""
    units: int = 0
    """What the charge becomes when it is settled; 0 is a refund."""


class DecisionFields:
    """The fields of a decision while it is made."""

    __slots__ = ("ahead", "check_id", "decided_by", "hits", "reply", "settled")

    check_id: bytes
    """The :attr:`id` of this check, as 16 bytes."""
    hits: tuple[Hit, ...]
    reply: Reply
    """The answer in integers, as ``engine/reply.py`` describes it."""
    decided_by: DecidedBy
    settled: Mapping[str, int]
    """By key, the units that a charge became when :meth:`Limiter.settle` settled it; 0 is a refund."""
    ahead: Sequence[int] | None
    """How far ahead of :attr:`at` the clock of each hit's server was, in microseconds; ``None``: one server for all."""


class Decision(DecisionFields):
    """The answer to one check. Header fields, signals and the exception all read it; none of them asks the storage
    again.

    Immutable: :meth:`Limiter.settle` returns another one.
    """

    __slots__ = ()

    def __new__(cls, *fields: Any, **named: Any) -> Decision:
        return decision_of(*fields, **named)

    if not TYPE_CHECKING:

        def __init__(self, *_: Any, **__: Any) -> None:
            """Do nothing: :func:`decision_of` has set the fields."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Decision is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Decision is immutable: {name} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        return decision_of, (self.check_id, self.hits, self.reply, self.decided_by, self.settled, self.ahead)

    def __repr__(self) -> str:
        shown = (
            f"id={str(self.id)!r}, allowed={self.allowed}, statuses={self.statuses!r}, decided_by={self.decided_by!r}"
        )
        return f"{type(self).__name__}({shown})"

    @property
    def allowed(self) -> bool:
        """Whether every hit allows. Only then all were charged.

        The refusal of a shadow does not count, but a shadow that refuses is not charged itself.
        """
        return self.reply[ALLOWED] > 0

    @property
    def id(self) -> UUID:
        """The id of this check, by which :meth:`Limiter.refund` finds its charges. Nil for a peek, which charges
        nothing."""
        return UUID(bytes=self.check_id)

    @property
    def at(self) -> int:
        """The instant of the check, in microseconds by the storage's clock, which may have any origin."""
        return self.reply[NOW]

    @property
    def delay(self) -> float:
        """Seconds until the turn of this request in the queue of a ``leaky_bucket``; otherwise 0."""
        return self.reply[DELAY] / _MICROSECONDS if self.allowed else 0.0

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What was charged and has not been settled."""
        if not self.allowed or self.check_id == PEEK_ID:
            return ()
        ahead = self.ahead or [0] * len(self.hits)
        standings = zip(self.hits, ahead, self.reply[RETRY_AFTERS], self.reply[RESET_AFTERS], strict=True)
        return tuple(
            Charge(hit, self.at + offset + reset_after)
            for hit, offset, retry_after, reset_after in standings
            if (hit.cost or isinstance(hit, OpenHit)) and retry_after == 0 and hit.key not in self.settled
        )

    @property
    def statuses(self) -> tuple[RuleStatus, ...]:
        """One status per hit, in the order of the hits. A ban has one only while it holds."""
        charged = self.allowed and self.check_id != PEEK_ID
        statuses = [
            RuleStatus(
                hit,
                retry_after == 0,
                max(remaining, 0),
                retry_after / _MICROSECONDS if retry_after >= 0 else math.inf,
                (reset_after if hit.cost or hit.rule.algorithm != BAN else retry_after) / _MICROSECONDS,
                hit.cost if charged and not retry_after else 0,
                max(-remaining, 0) if hit.rule.algorithm != BAN and (retry_after or not hit.cost) else 0,
            )
            for hit, (remaining, retry_after, reset_after) in zip(self.hits, standings_of(self.reply), strict=True)
            if hit.cost or retry_after or hit.rule.algorithm != BAN
        ]
        return tuple(map(self._settled_status, statuses) if self.settled else statuses)

    @property
    def bans(self) -> tuple[BanStatus, ...]:
        """One status per limiter with a ban, even if the ban does not hold."""
        return tuple(_ban_status(hit, standing_of(self.reply, place)) for place, hit, _ in bans_of(self.hits))

    @property
    def ban(self) -> BanStatus | None:
        """The ban that refuses for the longest time; ``None`` if none does."""
        if not bans_of(self.hits):  # usually
            return None
        holding = [ban for ban in self.bans if ban.holds and not ban.hit.shadow]
        return max(holding, key=lambda ban: ban.retry_after, default=None)

    def _settled_status(self, status: RuleStatus) -> RuleStatus:
        hit = status.hit
        if hit.key not in self.settled:
            return status
        left, reset_after = self._left_after_settlement(hit, standing_of(self.reply, self.hits.index(hit)))
        seconds, units = reset_after / _MICROSECONDS, self.settled[hit.key]
        return RuleStatus(hit, status.allowed, max(left, 0), status.retry_after, seconds, units, max(-left, 0))

    def _left_after_settlement(self, hit: Hit, standing: Standing) -> tuple[int, int]:
        """The units that are left of ``hit`` (below 0: a debt) after its settlement, if nothing else was charged in
        between, and ``reset_after``. This is an upper bound: the old one, or the time until a debt has come back."""
        (remaining, _, reset_after), quota, units = standing, hit.rule.quota, self.settled[hit.key]
        if hit.rule.algorithm not in EVENLY:  # there, below 0 if a queue had fewer places than units
            remaining = max(remaining, 0)
        left = remaining + hit.cost - units
        if units > hit.cost:
            return left, full_after(quota, left, hit.rule.algorithm, reset_after, self.at)
        return left, 0 if left >= quota.burst else reset_after

    def _settled_standing(self, hit: Hit, standing: Standing) -> tuple[int, int, int]:
        """The standing of ``hit`` after its settlement. If nothing is left, ``remaining`` says when the next unit comes
        back: at the latest then, and exactly then if all that counts was charged now."""
        left, reset_after = self._left_after_settlement(hit, standing)
        if left > 0:
            return left, 0, reset_after
        quota, algorithm, next_after = hit.rule.quota, hit.rule.algorithm, reset_after
        if algorithm in EVENLY:
            next_after = -(-(1 - left) * quota.window // quota.count)
        elif algorithm == "sliding_window_counter":
            next_after = reset_after - (quota.count - 1) * quota.window // (quota.count - left)
        return -next_after, 0, reset_after

    @property
    def standings(self) -> list[tuple[int, int, int]]:
        """Remaining units, ``retry_after`` and ``reset_after`` of each hit, in microseconds, after settlements."""
        if not self.settled:
            return list(standings_of(self.reply))
        return [
            self._settled_standing(hit, standing) if hit.key in self.settled else standing
            for hit, standing in zip(self.hits, standings_of(self.reply), strict=True)
        ]

    @property
    def violated(self) -> tuple[RuleStatus, ...]:
        """All statuses that refuse the check, not only the first."""
        return self._refusing(shadow=False)

    @property
    def shadowed(self) -> tuple[RuleStatus, ...]:
        """The statuses of shadows that would have refused."""
        return self._refusing(shadow=True)

    def _refusing(self, *, shadow: bool) -> tuple[RuleStatus, ...]:
        if not any(self.reply[RETRY_AFTERS]):
            return ()
        return tuple(status for status in self.statuses if not status.allowed and status.hit.shadow is shadow)

    @property
    def remaining(self) -> int:
        """The smallest ``remaining`` of all rules; without rules, the largest count that a rule can have."""
        return min((status.remaining for status in self.statuses), default=MAX_COUNT)

    @property
    def retry_after(self) -> float:
        """The largest of all rules, in seconds: before that time has passed, the check is refused; then it is allowed
        if there are no other requests.

        ``inf`` if the time is not known: a cost is more than a rule ever admits, or :attr:`waits_for_slot`.
        """
        waits = self._waits
        if not waits:
            return 0.0
        return math.inf if min(waits) < 0 else max(waits) / _MICROSECONDS

    @property
    def waits_for_slot(self) -> bool:
        """Whether a :class:`.Concurrent` rule refuses and waiting helps: until other work has ended and
        :attr:`refused_for` is over."""
        waits = self._waits
        return UNKNOWN in waits and NEVER not in waits

    @property
    def refused_for(self) -> float:
        """Seconds for which the check is certain to be refused again, by the rules that know a time."""
        return max([0, *self._waits]) / _MICROSECONDS

    @property
    def _waits(self) -> list[int]:
        """The ``retry_after`` of each hit that refuses the check, as in a reply."""
        hits = self.hits
        return [wait for place, wait in enumerate(self.reply[RETRY_AFTERS]) if wait and not hits[place].shadow]

    @property
    def reset_after(self) -> float:
        """Seconds until every quota is full again if there are no requests."""
        if not self.settled and not bans_of(self.hits):
            return max(self.reply[RESET_AFTERS], default=0) / _MICROSECONDS
        return max((status.reset_after for status in self.statuses), default=0.0)

    def after_settlement(self, settled: Mapping[str, int]) -> Decision:
        """The same decision after the charges to the keys of ``settled`` became that many units."""
        return self.replaced(settled={**self.settled, **settled})

    def replaced(self, *, reply: Reply | None = None, settled: Mapping[str, int] | None = None) -> Decision:
        """The same decision with another ``reply`` or other settlements."""
        settled = self.settled if settled is None else settled
        return Decision(self.check_id, self.hits, reply or self.reply, self.decided_by, settled, self.ahead)


def full_after(quota: Quota, left: int, algorithm: str, before: int, now: int) -> int:
    """Microseconds until ``quota`` is full again after a settlement beyond the charge. ``left`` units remain (below 0:
    a debt); without the settlement, the quota would have been full after ``before``."""
    if quota.periods is not None:
        return before or quota.periods.around(now)[AROUND + 1] - now
    if algorithm in EVENLY:
        return max(-((left - quota.burst) * quota.window // quota.count), before)
    if algorithm == "fixed_window":
        return before or quota.window
    if algorithm == "sliding_window_counter":
        return before if before > quota.window else quota.window + (before or quota.window)
    return max(quota.window, before)


def decision_of(
    check_id: bytes,
    hits: tuple[Hit, ...],
    reply: Reply,
    decided_by: DecidedBy = "storage",
    settled: Mapping[str, int] = NOT_SETTLED,
    ahead: Sequence[int] | None = None,
) -> Decision:
    """Make a decision. Every request makes one, so this avoids ``object.__setattr__``, which takes four times as
    long."""
    made: Any = DecisionFields()
    made.check_id = check_id
    made.hits = hits
    made.reply = reply
    made.decided_by = decided_by
    made.settled = settled
    made.ahead = ahead
    made.__class__ = Decision
    return made  # type: ignore[no-any-return]


def require_decision(given: object) -> None:
    """Raise :class:`ConfigurationError` unless ``given`` is a :class:`Decision`."""
    require(isinstance(given, Decision), "decision", given, "the Decision of a check")


def _ban_status(hit: BanHit, standing: Standing) -> BanStatus:
    remaining, retry_after, reset_after = standing
    holds = retry_after != 0
    return BanStatus(
        hit,
        holds,
        begun=holds and is_begun(remaining),
        level=level_of(remaining) if holds else 0,
        strikes_left=0 if holds else max(remaining, 0),
        retry_after=retry_after / _MICROSECONDS,
        reset_after=reset_after / _MICROSECONDS,
    )
