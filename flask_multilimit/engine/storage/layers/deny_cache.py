"""A layer that does not ask the storage again about a check that it would only refuse again.

A refusal says how long it lasts, and other requests can only make it last longer. Until it ends, but at most for a
second, the process refuses the same check by itself. It remembers only refusals: the storage decides every check that
is admitted.

A refusal that is a strike of a ban is not remembered, because the next one is another strike, which only the storage
can count. There are few strikes before the ban holds, and a ban is remembered like any refusal, until it ends. If
other checks use up a rule that the ban watches while a refusal by another rule is remembered, its strikes begin later.

Three things end a refusal early: a reset, a refund, and another rule for the same key. In this process, the first two
take effect at once, and the third makes it another check. In other processes, they take effect within the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast
from uuid import UUID

from ...algorithms import NEVER
from ...algorithms.base import encode_ban, is_begun, level_of
from ...decision import FALLBACKS, Charge, Decision, decision_of
from ...errors import ConfigurationError, brief, is_number
from ...forks import LateLock
from ...hits import Hit, bans_of, joined_keys, memoized, new_id
from ...reply import ALLOWED, RETRY_AFTERS, aged, passing_times, start_of
from ..base import (
    DENY_SECONDS,
    LONGEST_DENY_SECONDS,
    HoldsUnits,
    KeepsSlots,
    Lost,
    Slot,
    Storage,
    check_clock,
    check_storage,
    layers_of,
    monotonic_microseconds,
)

REMEMBERED = 10_000
"""The most refusals that are remembered. Beyond that, the oldest is forgotten, and the storage is asked."""
SWEEPS = 2
"""The most expired refusals that are forgotten with each new one: more than one, so that they do not pile up."""
SHARDS = 1024
"""The instants at which units of keys were given back are kept by hash, in this many shards. If two keys share a shard,
a refusal is forgotten too early, which does no harm."""


class _Refusal(NamedTuple):
    """A refusal by the storage. Instants are microseconds by the clock of this process."""

    hits: tuple[Hit, ...]
    reply: list[int]
    times: tuple[int, ...]
    """The indices of the times in the reply that shrink as time passes (:func:`.passing_times`)."""
    shard: int
    """The shard of the key that refuses longest."""
    asked: int
    answered: int
    until: int


class DenyCache:
    """Asks ``storage``, unless it refused the same check and the refusal still holds: then refuses without asking.

    It is the outermost layer, around a :class:`GuardedStorage` if there is one. ``seconds``, above 0 and at most 60, is
    the longest time for which a refusal is remembered. So it is also the longest time for which a reset, a refund or a
    changed rule in *another* process goes unnoticed here. It counts from before the storage was asked, so no request is
    refused at an instant at which the storage would admit it. The units of other rules in such a refusal are those of
    the storage's answer. Not remembered are decisions of a process in place of a failed storage, a ``peek``, a check
    with a ``check_id``, and the checks of ``check_many``.

    ``clock``, for tests, returns microseconds. Thread-safe, fork-safe. Raises :class:`ConfigurationError`.
    """

    def __init__(
        self, storage: Storage, *, seconds: float = DENY_SECONDS, clock: Callable[[], int] = monotonic_microseconds
    ) -> None:
        if not is_number(seconds) or not 0 < seconds <= LONGEST_DENY_SECONDS:
            raise ConfigurationError(
                f"DenyCache(seconds={brief(seconds)}): must be above 0, at most {LONGEST_DENY_SECONDS:g}; to do "
                "without it, use the storage alone"
            )
        check_storage(storage, "DenyCache")
        check_clock(clock)
        self.wrapped = storage
        self.shared: bool = storage.shared
        self.seconds = seconds
        self._longest = round(seconds * 1_000_000)
        self._clock = clock
        self._refusals: dict[str, _Refusal] = {}  # by all keys of the check; the oldest first
        self._given_back: list[float] = [-math.inf] * SHARDS  # the last time, by shard
        self._lock = LateLock()  # for writes; reads need none
        for layer in layers_of(storage):
            if isinstance(layer, HoldsUnits):
                layer.on_units(self.forget)

    def __len__(self) -> int:
        return len(self._refusals)

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if check_id is not None:
            return self.wrapped.check(hits, check_id)
        keys = memoized(hits, joined_keys)
        now = self._clock()
        refusal = self._refusals.get(keys)
        if (
            refusal is not None
            and refusal.asked <= now < refusal.until  # a clock that tests had moved ahead may be back
            and self._given_back[refusal.shard] < refusal.asked
            and refusal.hits == hits
        ):
            # Times have shrunk, but a rule that has refused allows only if the storage says so.
            return decision_of(new_id(), hits, aged(refusal.reply, refusal.times, now - refusal.answered), "deny_cache")
        decision = self.wrapped.check(hits)
        if not decision.reply[ALLOWED] and decision.decided_by not in FALLBACKS:
            self._remember(keys, decision, asked=now)
        return decision

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        return self.wrapped.peek(hits)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        return self.wrapped.check_many(many, ids)

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        try:
            self.wrapped.settle(check_id, charges)
        finally:  # an error may mean that only the answer was lost
            self.forget([charge.hit.key for charge in charges])

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        """Refusals by slots are not remembered, so there is nothing to forget."""
        cast("KeepsSlots", self.wrapped).release(slots, lost)

    def renew(self, slots: Sequence[Slot]) -> None:
        cast("KeepsSlots", self.wrapped).renew(slots)

    def reset(self, keys: Sequence[str]) -> None:
        try:
            self.wrapped.reset(keys)
        finally:
            self.forget(keys)

    def close(self) -> None:
        self.wrapped.close()

    def forget(self, keys: Sequence[str]) -> None:
        """Forget refusals by ``keys``, because units were given back. That includes refusals by checks that have been
        sent, even if the answer comes later."""
        with self._lock():
            now = self._clock()
            for key in keys:
                self._given_back[_shard_of(key)] = now

    def _remember(self, keys: str, decision: Decision, *, asked: int) -> None:
        answered = self._clock()
        duration, key = _longest_refusal(decision)
        until = asked + min(duration, _strikes_after(decision), self._longest)
        if answered >= until:
            return
        reply = _with_begun_bans_holding(decision)
        refusal = _Refusal(decision.hits, reply, passing_times(reply), _shard_of(key), asked, answered, int(until))
        with self._lock():
            self._refusals.pop(keys, None)  # so that it becomes the newest
            self._refusals[keys] = refusal
            self._sweep(answered)

    def _sweep(self, now: int) -> None:
        for _ in range(SWEEPS):
            oldest = next(iter(self._refusals))
            if now < self._refusals[oldest].until and len(self._refusals) <= REMEMBERED:
                return
            del self._refusals[oldest]


def _with_begun_bans_holding(decision: Decision) -> list[int]:
    """The reply that the next check would get: a ban that began with this check simply holds."""
    reply = list(decision.reply)
    for place, _, _ in bans_of(decision.hits):
        begun = reply[start_of(place)]
        if is_begun(begun):
            reply[start_of(place)] = encode_ban(level_of(begun), begun=False)
    return reply


def _strikes_after(decision: Decision) -> float:
    """The microseconds after which such a refusal is a strike of a ban that watches it: those for which the ban holds,
    and 0 if it does not."""
    waits = decision.reply[RETRY_AFTERS]
    watching = [place for place, _, watched in bans_of(decision.hits) if any(waits[other] for other in watched)]
    return min([waits[place] for place in watching], default=math.inf)


def _longest_refusal(decision: Decision) -> tuple[float, str]:
    """The microseconds that the longest refusal lasts, below 0 if nobody knows, and its key."""
    return max(
        (math.inf if retry_after == NEVER else retry_after, hit.key)
        for hit, retry_after in zip(decision.hits, decision.reply[RETRY_AFTERS], strict=True)
        if not hit.shadow
    )


def _shard_of(key: str) -> int:
    return hash(key) % SHARDS
