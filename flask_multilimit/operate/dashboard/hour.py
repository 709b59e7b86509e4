"""The traffic of the last hour, as pages show it. It is read a little at a time, so that no page waits for it."""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Literal, NamedTuple, get_args

from ...engine import StorageError
from ...engine.forks import tell_child
from ...observe.events import PASSED, TURNED_AWAY
from ...observe.traffic import Counts, Refused, TrafficReader
from ...observe.traffic.counts import BUCKET_SECONDS, bucket_at
from ...observe.traffic.reading import LONGEST_SECONDS, SETTLED_SECONDS, TOGETHER, TopSubject, begin_of_last_series

SLICES = LONGEST_SECONDS // BUCKET_SECONDS
BUDGET_SECONDS = 0.05
"""The time to read slices that are new to this process. The next look reads the rest."""
FRESH_SECONDS = 1.0
"""Looks within this time see the same."""

Curve = Literal["passed", "refused", "other", "near", "shadowed", "bans"]
"""The lines of a drawing. ``other`` is banned, denied and unanswered; ``near``, ``shadowed`` and ``bans`` (those that
began) are counted by rule."""
CURVES: tuple[Curve, ...] = get_args(Curve)
_OF_RULES: Mapping[str, Curve] = {"near": "near", "shadows": "shadowed", "bans": "bans"}
ALL = ""
"""Stands for all endpoints."""


class EndpointCurve(NamedTuple):
    """One line of a drawing."""

    endpoint: str
    curve: Curve


class RuleDid(NamedTuple):
    """One number in the table of rules."""

    endpoint: str
    rule: str
    did: str


class Rings:
    """Amounts by name in each slice of the last hour, and their totals."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, ...], int] = {}
        self._rings: dict[tuple[str, ...], array[int]] = {}
        self._names: list[list[tuple[str, ...]]] = [[] for _ in range(SLICES)]

    def put(self, bucket: int, amounts: Mapping[tuple[str, ...], int]) -> None:
        """Let ``amounts`` replace what was known about this bucket and the one an hour before it."""
        place = bucket % SLICES
        for name in self._names[place]:
            self._add(name, place, -self._rings[name][place])
        for name, amount in amounts.items():
            if name not in self._rings:
                self._rings[name] = array("Q", bytes(8 * SLICES))
            self._add(name, place, amount)
        self._names[place] = list(amounts)

    def series(self, name: tuple[str, ...], last: int) -> list[int]:
        """One amount per slice, the oldest first, up to the bucket ``last``."""
        ring = self._rings.get(name)
        if ring is None:
            return [0] * SLICES
        split = (last + 1) % SLICES
        return [*ring[split:], *ring[:split]]

    def _add(self, name: tuple[str, ...], place: int, amount: int) -> None:
        self._rings[name][place] += amount
        total = self.totals.get(name, 0) + amount
        if total:
            self.totals[name] = total
        else:  # it was not counted within the hour
            self.totals.pop(name, None)
            del self._rings[name]


class Hour:
    """The last hour of one app, as this process has read it. Thread-safe."""

    def __init__(self, reader: TrafficReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self.at: float = 0.0
        """POSIX time by the clock of the storage; 0 if nothing was read yet."""
        self.milliseconds: float = 0.0
        """The time that the last round trip took."""
        self.problem: StorageError | None = None
        """Why newer traffic could not be read."""
        self._fresh_until = -float("inf")
        self._start()
        tell_child(self)

    @contextmanager
    def looking(self, *, is_away: bool = False) -> Iterator[Hour]:
        """Read what is new, unless the storage ``is_away``. Within the block, nothing changes."""
        with self._lock:
            begin = self._clock()
            if not is_away and begin >= self._fresh_until:
                try:
                    self._look(begin + BUDGET_SECONDS)
                    self.problem = None
                except StorageError as error:
                    self.problem = error
                self._fresh_until = self._clock() + FRESH_SECONDS
            yield self

    @property
    def last(self) -> int:
        """The number of the slice that has begun."""
        return bucket_at(self.at)

    @property
    def seconds(self) -> float:
        """How many seconds back it is known without a gap."""
        bucket = self.last
        while bucket in self._known and self.last - bucket < SLICES:
            bucket -= 1
        return max(self.at - (bucket + 1) * BUCKET_SECONDS, 1.0)

    @property
    def is_complete(self) -> bool:
        """Whether all of the hour was read."""
        return len(self._known) >= SLICES

    def total(self, *name: str) -> int:
        """The total over the hour."""
        return self._rings.totals.get(name, 0)

    def series(self, *name: str) -> list[int]:
        """One amount per slice of ten seconds, the oldest first. The last slice is not over yet."""
        return self._rings.series(name, self.last)

    def names(self) -> Iterable[tuple[str, ...]]:
        """The names of all amounts that are not 0."""
        return self._rings.totals

    def rate(self, *name: str) -> float:
        """The rate per second over about the last minute."""
        recent = self.series(*name)[-6:]
        return sum(recent) / min(max(self.at - (self.last - 5) * BUCKET_SECONDS, 1.0), self.seconds)

    def top_subjects(self, most: int, *, endpoint: str | None = None) -> list[TopSubject]:
        """The subjects that were refused most, in order."""
        wanted = (each for each in self._refused.items() if endpoint is None or each[0].endpoint == endpoint)
        return [self._described(*each) for each in heapq.nlargest(most, wanted, key=lambda each: each[1])]

    def refused_where(self, is_wanted: Callable[[str, str], bool], most: int) -> list[TopSubject]:
        """The subjects that were refused most, among those that are wanted."""
        wanted = [each for each in self._refused.items() if is_wanted(each[0].type, each[0].subject)]
        return [self._described(*each) for each in heapq.nlargest(most, wanted, key=lambda each: each[1])]

    def _described(self, who: Refused, amount: int) -> TopSubject:
        buckets = sorted(bucket for bucket, subjects in self._subjects.items() if who in subjects)
        since = begin_of_last_series(buckets)
        until = min((buckets[-1] + 1) * BUCKET_SECONDS, self.at)
        return TopSubject(*who, amount, float(since * BUCKET_SECONDS), until)

    # Under the lock

    def _start(self) -> None:
        """Start without any knowledge."""
        self._lock = Lock()
        self._rings = Rings()
        self._known: dict[int, bool] = {}
        """The buckets that were read, and whether they change no more."""
        self._refused: dict[Refused, int] = {}
        self._subjects: dict[int, dict[Refused, int]] = {}
        self.at, self._fresh_until = 0.0, -float("inf")

    def _look(self, deadline: float) -> None:
        """Read slices, the newest first: all that still change, and others until the ``deadline``."""
        begin = self._clock()
        at = self._reader.now()
        self.milliseconds = (self._clock() - begin) * 1000
        self.at, last, settled = at, bucket_at(at), bucket_at(at - SETTLED_SECONDS)
        self._forget_before(last - SLICES)
        wanted = [bucket for bucket in range(last, last - SLICES, -1) if not self._known.get(bucket, False)]
        done, together = 0, last - settled + 2
        while together > 0 and done < len(wanted):
            asked = wanted[done : done + together]
            for bucket, counts in self._reader.ask(asked).items():
                self._take(bucket, counts)
                self._known[bucket] = bucket < settled
            done += len(asked)
            now = self._clock()
            together = min(int((deadline - now) / max((now - begin) / done, 1e-6)), TOGETHER)

    def _take(self, bucket: int, counts: Counts) -> None:
        self._rings.put(bucket, _amounts(counts))
        self._drop_subjects(bucket)
        if counts.refused:
            self._subjects[bucket] = counts.refused
            for who, amount in counts.refused.items():
                self._refused[who] = self._refused.get(who, 0) + amount

    def _forget_before(self, oldest: int) -> None:
        """Forget what is an hour old."""
        for bucket in [bucket for bucket in self._known if bucket <= oldest]:
            del self._known[bucket]
            self._rings.put(bucket, {})
            self._drop_subjects(bucket)

    def _drop_subjects(self, bucket: int) -> None:
        for who, amount in self._subjects.pop(bucket, {}).items():
            left = self._refused[who] - amount
            if left:
                self._refused[who] = left
            else:
                del self._refused[who]

    def _after_fork_in_child(self) -> None:
        self._start()


def _amounts(counts: Counts) -> dict[tuple[str, ...], int]:
    """What a slice adds to each line and number."""
    amounts: dict[tuple[str, ...], int] = {}

    def add(name: tuple[str, ...], amount: int) -> None:
        amounts[name] = amounts.get(name, 0) + amount

    for check, amount in counts.checks.items():
        curve: Curve | None = None
        if check.outcome in PASSED:
            curve = "passed"
        elif check.outcome in TURNED_AWAY:
            curve = "refused" if check.outcome == "refused" else "other"
        if curve is not None:
            add(EndpointCurve(check.endpoint, curve), amount)
            add(EndpointCurve(ALL, curve), amount)
    for rule, amount in counts.rules.items():
        add(RuleDid(*rule), amount)
        if rule.did in _OF_RULES:
            add(EndpointCurve(rule.endpoint, _OF_RULES[rule.did]), amount)
            add(EndpointCurve(ALL, _OF_RULES[rule.did]), amount)
    return amounts
