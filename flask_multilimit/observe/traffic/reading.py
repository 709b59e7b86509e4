"""Reads traffic for `flask multilimit top`, the dashboard and metrics, off the request path."""

from __future__ import annotations

import math
import os
import time
from collections import Counter as Amounts
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...engine import ConfigurationError, Storage, StorageError
from ...engine.storage import KeepsTallies
from ..events import Outcome
from .counting import BAN_LIST, DENY_LIST
from .counts import (
    BUCKET_SECONDS,
    PAUSE_BUCKETS,
    CountedBan,
    Counts,
    Refused,
    RuleOutcome,
    TrafficKeys,
    bucket_at,
    decode_bans,
    decode_counts,
    decode_starts,
    tally_of_bans,
)

LONGEST_SECONDS = 3600
TOGETHER = 10
"""The number of buckets that one command reads."""
SETTLED_SECONDS = 30
"""After this time, a reader keeps a bucket and does not read it again. (A process that could not flush during an outage
adds to older buckets. A reader that has read these before does not see that.)"""


class TopSubject(NamedTuple):
    """A subject that one rule refused at one endpoint."""

    endpoint: str
    rule: str
    type: str
    subject: str
    """Plain or hashed, as ``MULTILIMIT_TRAFFIC_SUBJECTS`` says. Personal data."""
    refused: int
    """At least this many refusals: those in seconds in which many others were refused more often are missing."""
    since: float
    """POSIX time of the first refusal of the latest series, to ten seconds. A pause of over a minute ends a series."""
    until: float
    """POSIX time of the last refusal, to ten seconds."""


class RecentTraffic(NamedTuple):
    """What happened in a span of time. ``slices`` are ten seconds each, the oldest first, without gaps."""

    at: float
    """POSIX time of the end, by the clock of the storage."""
    start: float
    """POSIX time of the first slice."""
    slices: tuple[Counts, ...]

    @property
    def total(self) -> Counts:
        """All slices together."""
        total = Counts()
        for counts in self.slices:
            total.add(counts)
        return total

    def checks(self, *, endpoint: str | None = None, outcomes: Iterable[Outcome] | None = None) -> tuple[int, ...]:
        """The checks in each slice, at ``endpoint`` (default: all) with one of ``outcomes`` (default: all)."""
        wanted = None if outcomes is None else frozenset(outcomes)
        return tuple(
            sum(
                amount
                for check, amount in counts.checks.items()
                if endpoint in {None, check.endpoint} and (wanted is None or check.outcome in wanted)
            )
            for counts in self.slices
        )

    def rules(self, did: RuleOutcome, *, endpoint: str | None = None, rule: str | None = None) -> tuple[int, ...]:
        """The checks in each slice in which a rule did ``did``, by ``endpoint`` and ``rule`` (default: all)."""
        return tuple(
            sum(
                amount
                for each, amount in counts.rules.items()
                if each.did == did and endpoint in {None, each.endpoint} and rule in {None, each.rule}
            )
            for counts in self.slices
        )

    def top_subjects(self, most: int = 20) -> list[TopSubject]:
        """The subjects that were refused most, in order."""
        first = Amounts(self.total.refused).most_common(most)
        return [TopSubject(*who, amount, *self._times(who)) for who, amount in first]

    def _times(self, who: Refused) -> tuple[float, float]:
        places = [place for place, counts in enumerate(self.slices) if who in counts.refused]
        since = series_of(places)[-1][0]
        return self.start + since * BUCKET_SECONDS, min(self.start + (places[-1] + 1) * BUCKET_SECONDS, self.at)


def series_of(buckets: Iterable[int]) -> list[list[int]]:
    """``buckets`` with refusals, in order, split where there is a pause of more than a minute."""
    series: list[list[int]] = []
    for bucket in buckets:
        if not series or bucket - series[-1][-1] > PAUSE_BUCKETS:
            series.append([])
        series[-1].append(bucket)
    return series


class RecentBans(NamedTuple):
    """Bans by limiters, read from the storage."""

    at: float
    """When the storage was asked: POSIX time by its clock."""
    begun: Sequence[CountedBan]
    """Bans that may hold, and bans that ended in the last hour."""

    @property
    def latest(self) -> Mapping[str, CountedBan]:
        """The latest ban under each key: at any time, one ban at most holds under a key."""
        return {ban.key: ban for ban in sorted(self.begun, key=lambda ban: ban.began)}

    def in_force(self, at: float | None = None) -> dict[tuple[str, str], int]:
        """How many bans hold ``at`` a POSIX time (default: when the storage was asked), by endpoint and name."""
        now = self.at if at is None else at
        return dict(Amounts((ban.endpoint, ban.rule) for ban in self.latest.values() if ban.until > now))


def reader_of(storage: Storage, prefix: str) -> TrafficReader:
    """A reader of the traffic in ``storage``. Raises :class:`ConfigurationError` if the storage keeps none."""
    if isinstance(storage, KeepsTallies):
        return TrafficReader(storage, prefix)
    raise ConfigurationError(f"a {type(storage).__name__} keeps no traffic: it has no methods tally and tallies")


class TrafficReader:
    """Reads the traffic of all processes that share a storage and a prefix. It keeps slices that hardly change any
    more, so use one reader to show traffic repeatedly. Not thread-safe."""

    def __init__(self, storage: KeepsTallies, prefix: str) -> None:
        self._storage = storage
        self._keys = TrafficKeys(prefix)
        self._settled: dict[int, Counts] = {}

    def read(self, seconds: float = LONGEST_SECONDS) -> RecentTraffic:
        """The last ``seconds``, at most an hour. Raises :class:`StorageError`."""
        seconds = min(max(seconds, BUCKET_SECONDS), LONGEST_SECONDS)
        at = self._storage.tallies([self._keys.source("nobody")]).at
        last = bucket_at(at)
        buckets = range(last + 1 - math.ceil(seconds / BUCKET_SECONDS), last + 1)
        oldest, settled = bucket_at(at - LONGEST_SECONDS), bucket_at(at - SETTLED_SECONDS)
        for bucket in self._settled.keys() - range(oldest, settled):  # too old, or the clock was put back
            del self._settled[bucket]
        missing = [bucket for bucket in buckets if bucket not in self._settled]
        found: dict[int, Counts] = {}
        for begin in range(0, len(missing), TOGETHER):
            found |= self.ask(missing[begin : begin + TOGETHER])
        self._settled |= {bucket: counts for bucket, counts in found.items() if bucket < settled}
        slices = tuple(found[bucket] if bucket in found else self._settled[bucket] for bucket in buckets)
        return RecentTraffic(at, float(buckets[0] * BUCKET_SECONDS), slices)

    def bans(self) -> RecentBans:
        """The bans that the app's limiters began, unless they are forgotten. Raises :class:`StorageError`."""
        tallies = self._storage.tallies([self._keys.bans()])
        return RecentBans(tallies.at, decode_bans(tallies.amounts[0]))

    def starts(self) -> Mapping[Refused, Sequence[float]]:
        """The POSIX times of first refusals after a pause, in any process. Raises :class:`StorageError`."""
        return decode_starts(self._storage.tallies([self._keys.starts()]).amounts[0])

    def end_bans(self, keys: Iterable[str]) -> None:
        """Record that the bans under ``keys`` end now, because they were lifted. Raises :class:`StorageError`."""
        known, lifted = self.bans(), frozenset(keys)
        ended = [ban._replace(until=known.at) for ban in known.begun if ban.key in lifted and ban.until > known.at]
        if ended:
            source = self._keys.source(os.urandom(8).hex())
            self._storage.tally([tally_of_bans(self._keys, ended)], source=source, number=1)

    def ask(self, buckets: Sequence[int]) -> dict[int, Counts]:
        """The counts in ``buckets`` now, read in one command. Raises :class:`StorageError`."""
        keys = [*map(self._keys.counts, buckets), *map(self._keys.subjects, buckets)]
        amounts = self._storage.tallies(keys).amounts
        middle = len(buckets)
        return {bucket: decode_counts(amounts[i], amounts[middle + i]) for i, bucket in enumerate(buckets)}


SECONDS = 5.0
"""The time between two questions to the storage."""
SHARE_SECONDS = 300
"""The span of time for the share of the most refused subject."""


def top_shares(counts: Counts, *, bans: Container[tuple[str, str]], shared: str) -> dict[str, float]:
    """By endpoint, the share of the most refused subject in the refusals by rules. Refusals by lists and ``bans``
    (endpoint and name) do not count, nor do subjects of the type ``shared``, which stand for several clients."""
    refused, clients = Amounts[str](), defaultdict[str, Amounts[tuple[str, str]]](Amounts)
    for check, amount in counts.checks.items():
        if check.outcome == "refused":
            refused[check.endpoint] += amount
    for who, amount in counts.refused.items():
        if who.type != shared and who.rule not in {DENY_LIST, BAN_LIST} and (who.endpoint, who.rule) not in bans:
            clients[who.endpoint][who.type, who.subject] += amount
    most = {endpoint: max(amounts.values()) for endpoint, amounts in clients.items()}
    return {endpoint: min(most.get(endpoint, 0) / amount, 1.0) for endpoint, amount in refused.items() if amount}


class TrafficWatch:
    """Asks ``reader`` every few seconds for what metrics show of all processes together: a task of the beat.

    :param shared: the type of subjects that stand for several clients.
    """

    def __init__(self, reader: TrafficReader, *, shared: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._shared = shared
        self._clock = clock
        self.top_shares: Mapping[str, float] = {}
        """By endpoint, the share of its most refused subject in the refusals of :data:`SHARE_SECONDS`."""
        self._known: tuple[float, RecentBans] | None = None
        """When the storage was asked, by this process's clock, and the answer."""
        self._next = -float("inf")

    def look(self, *, ending: bool = False) -> bool:
        """Ask if it is time to. Return whether something may change later without an event."""
        now = self._clock()
        if now >= self._next and not ending:
            self._next = now + SECONDS
            with suppress(StorageError):  # the guard and the outbox report it; the known bans stay
                self._known = now, self._reader.bans()
                bans = {(ban.endpoint, ban.rule) for ban in self._known[1].begun}
                self.top_shares = top_shares(self._reader.read(SHARE_SECONDS).total, bans=bans, shared=self._shared)
        return bool(self.in_force() or self.top_shares)

    def in_force(self) -> Mapping[tuple[str, str], int]:
        """The number of bans that hold now, by endpoint and name of the ban, without asking the storage."""
        if self._known is None:
            return {}
        asked, bans = self._known
        return bans.in_force(bans.at + self._clock() - asked)
