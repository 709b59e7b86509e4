"""What is asked (Hit) and what is answered (Decision), whatever the storage."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args
from uuid import UUID

from .errors import ConfigurationError, brief
from .keys import (
    DEFAULT_PREFIX,
    PREFIX_PATTERN,
    TYPE_PATTERN,
    HashTag,
    escape_subject,
    stem_of,
    stem_of_subject,
)
from .rules import Rule, Rules, rules_from

_MICROSECONDS = 1_000_000

T = TypeVar("T")


OnStorageError = Literal["local", "allow", "deny", "raise"]
"""What becomes of a check that storage does not answer: limited by this process alone, let through, refused, or
:class:`StorageError`."""


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
    on_storage_error: OnStorageError | None = None
    """What becomes of it when storage gives no answer; ``None``: what the guard of the storage says."""

    def __post_init__(self) -> None:
        check_cost(self.cost, self.rule)

    @property
    def packed(self) -> bytes:
        """Quota, cost and algorithm as the scripts read them."""
        return _pack(self.rule, self.cost, self.shadow)


class Hits(tuple[Hit, ...]):
    """The hits of one check: at least one, no two with the same key. Raises :class:`ConfigurationError`.

    Keep it where the same is asked again and again: what a storage works out from it is kept in it.
    """

    def __new__(cls, hits: Iterable[Hit]) -> Hits:
        made = super().__new__(cls, hits)
        if not made:
            raise ConfigurationError("no hits: a check of nothing would let everything pass")
        keys = [hit.key for hit in made]
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigurationError(f"two hits have the key {twice!r}: give one rule, or different scopes or types")
        made.worked_out = {}
        return made

    worked_out: dict[Any, Any]
    """By the function that has done it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Hits, (tuple(self),)


def worked_out(hits: tuple[Hit, ...], work: Callable[[tuple[Hit, ...]], T]) -> T:
    """``work(hits)``, done once for each :class:`Hits`."""
    try:
        return hits.worked_out[work]  # type: ignore[attr-defined,no-any-return]  # as nearly always
    except KeyError:
        kept: dict[Any, Any] = hits.worked_out  # type: ignore[attr-defined]
    except AttributeError:  # of hits that are no Hits, nothing is kept
        kept = {}
    done = kept[work] = work(hits)
    return done


def check_cost(cost: object, rule: Rule) -> None:
    """Raise :class:`ConfigurationError` unless ``cost`` is a number of units that ``rule`` can be asked for."""
    if type(cost) is not int or cost < 0:
        raise ConfigurationError(f"cost={brief(cost)}: must be a whole number, 0 or more")
    if cost > rule.twin.MAX_COST:
        most = f"{rule.algorithm} takes at most {rule.twin.MAX_COST} units in one check"
        raise ConfigurationError(f"cost={brief(cost)}: {most}")


def check_hash_tag(hash_tag: object) -> None:
    """Raise :class:`ConfigurationError` unless a key can have it."""
    known = get_args(HashTag)
    if hash_tag not in known:
        raise ConfigurationError(f"hash_tag={brief(hash_tag)}: give {' or '.join(map(repr, known))}")


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
    on_storage_error: OnStorageError | None = None,
    hash_tag: HashTag = "scope",
) -> Hits:
    """One hit a rule, for use without Flask.

    ``scope`` names what is limited, ``subject`` who is, ``type`` what kind of subject that is; the three may be
    of any content and length (``type``: a short identifier) and are kept apart exactly. ``hash_tag`` is what decides
    about the slot in a cluster.
    """
    for name, text in (("scope", scope), ("subject", subject)):
        if not isinstance(text, str):
            raise ConfigurationError(f"{name}={brief(text)}: must be text; {name}=str(...) for a number")
    if not PREFIX_PATTERN.fullmatch(prefix):
        raise ConfigurationError(f"prefix={brief(prefix)}: must match {PREFIX_PATTERN.pattern}")
    if not TYPE_PATTERN.fullmatch(type):
        raise ConfigurationError(f"type={brief(type)}: must match {TYPE_PATTERN.pattern}")
    check_hash_tag(hash_tag)
    stem = stem_of_subject(stem_of(prefix, scope, hash_tag), type, escape_subject(subject), hash_tag)
    return Hits(
        Hit(
            f"{stem}{rule.algorithm}:{rule.window_ms}",
            rule,
            cost,
            rule.name or f"{type}-{rule.window}",
            shadow,
            on_storage_error,
        )
        for rule in rules_from(rules)
    )


class RuleStatus(NamedTuple):  # a frozen dataclass would take four times as long to make, several a request
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
    """The instant when the quota is whole again, by the clock of the server that keeps it: as :attr:`Decision.at`,
    unless several have answered."""


_ID_BYTES = 16
_IDS_AT_ONCE = 256
_VERSION_BITS = int.from_bytes(bytes.fromhex("ffffffffffff0fff3fffffffffffffff") * _IDS_AT_ONCE, "big")
_VERSION_4 = int.from_bytes(bytes.fromhex("00000000000040008000000000000000") * _IDS_AT_ONCE, "big")

_ids: list[bytes] = []
if hasattr(os, "register_at_fork"):  # else two processes would go on with the same ids
    os.register_at_fork(after_in_child=_ids.clear)


def new_id() -> bytes:
    """A random UUID (version 4, RFC 9562), as ``uuid4`` makes it, but in blocks: one call of the system for many."""
    try:
        return _ids.pop()
    except IndexError:
        block = int.from_bytes(os.urandom(_ID_BYTES * _IDS_AT_ONCE), "big") & _VERSION_BITS | _VERSION_4
        first, *others = struct.unpack(f"{_ID_BYTES}s" * _IDS_AT_ONCE, block.to_bytes(_ID_BYTES * _IDS_AT_ONCE, "big"))
        _ids.extend(others)
        return cast("bytes", first)


PEEKED = bytes(_ID_BYTES)
"""The nil UUID, in place of the id of a check."""


def delay_in(reply: Sequence[int]) -> int:
    """Microseconds; of a refusal, what the delay would be."""
    return max(reply[1], ~reply[1])


@dataclass(slots=True, repr=False)  # frozen, it would take three times as long to make, once a request
class Decision:
    """The answer to one check. Headers, signals and the exception all read this; none asks storage again."""

    check_id: bytes
    """Of this check, as :attr:`id`, in 16 bytes."""
    hits: tuple[Hit, ...]
    reply: Sequence[int]
    """As storage gives it, in microseconds: now, delay (of a refusal: minus what it would be, minus 1), then remaining,
    retry_after, reset_after of each hit."""
    refunded: frozenset[str] = field(default=frozenset(), compare=False)
    """Keys whose charge :meth:`Limiter.refund` has taken back."""
    degraded: Literal["local", "allow"] | None = field(default=None, compare=False)
    """What decided in place of a storage that gave no answer (``on_storage_error``); ``None``: the storage did."""
    ahead: Sequence[int] | None = field(default=None, compare=False)
    """Microseconds from :attr:`at` to the instant of each hit, by the clock of its server; ``None``: one for all."""

    @classmethod
    def from_parts(cls, check_id: bytes, hits: tuple[Hit, ...], reply: Sequence[int]) -> Decision:
        """Of a ``reply`` that was put together: whether it is allowed is found out anew, from what it says of each."""
        refused = any(wait and not hit.shadow for hit, wait in zip(hits, reply[3::3], strict=True))
        delay = delay_in(reply)
        return cls(check_id, hits, [reply[0], ~delay if refused else delay, *reply[2:]])

    def __repr__(self) -> str:
        told = f"id={str(self.id)!r}, allowed={self.allowed}, statuses={self.statuses!r}, degraded={self.degraded!r}"
        return f"{type(self).__name__}({told})"

    @property
    def allowed(self) -> bool:
        """Whether every hit allows; then, and only then, all were charged.

        A shadow's own refusal does not count: it is then not charged itself.
        """
        return self.reply[1] >= 0

    @property
    def id(self) -> UUID:
        """Of this check; what :meth:`Limiter.refund` goes by. Nil for a peek, which charges nothing."""
        return UUID(bytes=self.check_id)

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
        if not self.allowed or self.check_id == PEEKED:
            return ()
        ahead = self.ahead or [0] * len(self.hits)
        return tuple(
            Charge(hit, self.at + ahead[i] + self.reply[4 + 3 * i])
            for i, hit in enumerate(self.hits)
            if hit.cost and self.reply[3 + 3 * i] == 0 and hit.key not in self.refunded
        )

    @property
    def statuses(self) -> tuple[RuleStatus, ...]:
        """One a hit, in the order of the hits."""
        reply, refunded = self.reply, self.refunded
        return tuple(
            [
                RuleStatus(
                    hit,
                    retry_after == 0,
                    max(remaining, 0) + (hit.cost if hit.key in refunded else 0),
                    retry_after / _MICROSECONDS if retry_after >= 0 else math.inf,
                    reset_after / _MICROSECONDS,
                )
                for hit, remaining, retry_after, reset_after in zip(
                    self.hits, reply[2::3], reply[3::3], reply[4::3], strict=True
                )
            ]
        )

    @property
    def violated(self) -> tuple[RuleStatus, ...]:
        """The statuses that refuse; every one of them, not the first only."""
        if not any(self.reply[3::3]):
            return ()
        return tuple(status for status in self.statuses if not status.allowed and not status.hit.shadow)

    @property
    def shadowed(self) -> tuple[RuleStatus, ...]:
        """The statuses of shadows that would have refused."""
        if not any(self.reply[3::3]):
            return ()
        return tuple(status for status in self.statuses if not status.allowed and status.hit.shadow)

    @property
    def remaining(self) -> int:
        """The smallest ``remaining`` of all rules."""
        return min(status.remaining for status in self.statuses)

    @property
    def retry_after(self) -> float:
        """The largest of all rules, seconds: refused at any instant before, allowed at it, if nobody else comes."""
        waits = [wait for hit, wait in zip(self.hits, self.reply[3::3], strict=True) if wait and not hit.shadow]
        return math.inf if waits and min(waits) < 0 else max(waits, default=0) / _MICROSECONDS

    @property
    def reset_after(self) -> float:
        """Seconds until every quota is whole again if nobody comes."""
        return max(self.reply[4::3]) / _MICROSECONDS
