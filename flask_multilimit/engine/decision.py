"""What is asked (Hit) and what is answered (Decision), whatever the storage."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from .errors import ConfigurationError
from .keys import DEFAULT_PREFIX, TYPE_PATTERN, escape_scope, escape_subject
from .rules import Rule, Rules, rules_from

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Hit:
    """One rule for one subject, with a cost: one key in storage."""

    key: str
    rule: Rule
    cost: int = 1
    """Units to charge, 0 or more; 0 asks without charging."""
    name: str = ""
    """What header fields call the rule; unique within a plan."""
    shadow: bool = False
    """Whether it is evaluated and counted, but never refuses."""

    def __post_init__(self) -> None:
        check_cost(self.cost, self.rule)

    @property
    def packed(self) -> bytes:
        """Quota, cost and algorithm as the scripts read them."""
        return _pack(self.rule, self.cost, self.shadow)


def check_cost(cost: object, rule: Rule) -> None:
    """Raise :class:`ConfigurationError` unless ``cost`` is a number of units that ``rule`` can be asked for."""
    if type(cost) is not int or cost < 0:
        raise ConfigurationError(f"cost={cost!r}: must be a whole number, 0 or more")
    if cost > rule.twin.MAX_COST:
        raise ConfigurationError(f"cost={cost}: {rule.algorithm} takes at most {rule.twin.MAX_COST} units in one check")


@lru_cache(maxsize=1024)
def _pack(rule: Rule, cost: int, shadow: bool) -> bytes:
    quota = rule.quota
    numbers = struct.pack("<6d", quota.window, quota.count, cost, quota.burst, quota.max_delay, shadow)
    return numbers + rule.algorithm.encode() + b"\0"


def hits_for(
    rules: Rules,
    *,
    scope: str,
    subject: str = "",
    type: str = "default",  # noqa: A002 - the field's word, as in rate_limiter
    cost: int = 1,
    shadow: bool = False,
    prefix: str = DEFAULT_PREFIX,
) -> tuple[Hit, ...]:
    """One hit a rule, for use without Flask.

    ``scope`` names what is limited, ``subject`` who is, ``type`` what kind of subject that is; the three may be
    of any content and length (``type``: a short identifier) and are kept apart exactly.
    """
    if not TYPE_PATTERN.fullmatch(type):
        raise ConfigurationError(f"type={type!r}: must match {TYPE_PATTERN.pattern}")
    stem = f"{prefix}{{{escape_scope(scope)}}}:{type}:{escape_subject(subject)}"
    return tuple(
        Hit(
            f"{stem}:{rule.algorithm}:{rule.window_ms}",
            rule,
            cost,
            rule.name or f"{type}-{rule.window}",
            shadow,
        )
        for rule in rules_from(rules)
    )


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """How one rule stands after the check. Durations are seconds."""

    hit: Hit
    allowed: bool
    """Whether this rule alone would have let the check pass."""
    remaining: int
    """Units left now: after the charge when the check was allowed, as they were when it was not."""
    retry_after: float
    """Until this hit would be allowed if nobody else comes: refused at any instant before, allowed at it.
    0 when allowed, ``inf`` when its cost is more than the rule ever admits."""
    reset_after: float
    """Until the quota is whole again if nobody comes."""

    @property
    def name(self) -> str:
        return self.hit.name

    @property
    def rule(self) -> Rule:
        return self.hit.rule


@dataclass(frozen=True, slots=True)
class Charge:
    """What a check has taken from one quota."""

    hit: Hit
    until: int
    """The instant (as :attr:`Decision.at`) when the quota is whole again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one check. Headers, signals and the exception all read this; none asks storage again."""

    id: UUID
    """Of this check; what :meth:`Limiter.refund` goes by."""
    hits: tuple[Hit, ...]
    allowed: bool
    """Whether every hit allows; then, and only then, all were charged. (A shadow's own refusal does not count: it
    is then not charged itself.)"""
    reply: Sequence[int] = field(repr=False)
    """As storage gives it, in microseconds: now, delay, then remaining, retry_after, reset_after of each hit."""
    refunded: set[str] = field(default_factory=set, compare=False)
    """Keys whose charge :meth:`Limiter.refund` has taken back."""

    @classmethod
    def from_reply(cls, check_id: UUID, hits: tuple[Hit, ...], reply: Sequence[int]) -> Decision:
        refusals = reply[3::3]
        allowed = not any(refusals) or not any(
            retry_after for hit, retry_after in zip(hits, refusals, strict=True) if not hit.shadow
        )
        return cls(check_id, hits, allowed, reply)

    @property
    def at(self) -> int:
        """The instant of the check in microseconds of the storage's clock, which may count from anywhere."""
        return self.reply[0]

    @property
    def delay(self) -> float:
        """Seconds until the turn of this request in the queue of a ``leaky_bucket``; else 0."""
        return self.reply[1] / _MICROSECONDS if self.allowed else 0.0

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What was charged, and has not been refunded."""
        if not self.allowed:
            return ()
        return tuple(
            Charge(hit, self.at + self.reply[4 + 3 * i])
            for i, hit in enumerate(self.hits)
            if hit.cost and self.reply[3 + 3 * i] == 0 and hit.key not in self.refunded
        )

    @property
    def statuses(self) -> tuple[RuleStatus, ...]:
        """One a hit, in the order of the hits."""
        reply = self.reply
        return tuple(
            RuleStatus(
                hit,
                reply[i + 1] == 0,
                max(reply[i], 0) + (hit.cost if hit.key in self.refunded else 0),
                _seconds(reply[i + 1]),
                reply[i + 2] / _MICROSECONDS,
            )
            for i, hit in zip(range(2, len(reply), 3), self.hits, strict=True)
        )

    @property
    def violated(self) -> tuple[RuleStatus, ...]:
        """The statuses that refuse; every one of them, not the first only."""
        return tuple(status for status in self.statuses if not status.allowed and not status.hit.shadow)

    @property
    def shadowed(self) -> tuple[RuleStatus, ...]:
        """The statuses of shadows that would have refused."""
        return tuple(status for status in self.statuses if not status.allowed and status.hit.shadow)

    @property
    def remaining(self) -> int:
        """The smallest ``remaining`` of all rules."""
        return min(status.remaining for status in self.statuses)

    @property
    def retry_after(self) -> float:
        """The largest of all rules, seconds: refused at any instant before, allowed at it, if nobody else comes."""
        return max((status.retry_after for status in self.violated), default=0.0)

    @property
    def reset_after(self) -> float:
        """Seconds until every quota is whole again if nobody comes."""
        return max(self.reply[4::3]) / _MICROSECONDS


def _seconds(microseconds: int) -> float:
    return math.inf if microseconds < 0 else microseconds / _MICROSECONDS
