"""What limits did in the last hour: read from the storage a little at a time, and summed up for people."""

from __future__ import annotations

import heapq
import os
import re
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from threading import RLock
from typing import Any, Literal, NamedTuple, get_args

from ..config import PREFIX
from ..declare.subjects import ANONYMOUS, LimitType
from ..engine import StorageError
from ..engine.keys import parts_of_key
from ..engine.storage import KeepsTallies
from ..engine.text import Phrase
from ..observe.events import PASSED, TURNED_AWAY
from ..observe.traffic import Counts, RecentBans, Refused, TrafficReader, reader_of
from ..observe.traffic.counts import ANYBODY, BUCKET_SECONDS, LONGEST_SUBJECT, CountedBan, bucket_at, counted_name
from ..observe.traffic.reading import LONGEST_SECONDS, SETTLED_SECONDS, TOGETHER, series_of
from ..plan.sources import UNMATCHED_SCOPE, scopes_of_endpoints
from ..serve.gate import AppGate
from .changes import ChangesInForce, changes_in_force
from .health import StorageState, Workers, require_charges, storage_state, workers
from .text import shown_subject
from .values import ROWS, Described, Paging, paged

SLICES = LONGEST_SECONDS // BUCKET_SECONDS
RECENT_SLICES = 6
"""The time over which rates are measured."""
BUDGET_SECONDS = 2.0
"""The longest time for which a page reads slices that are new to its process. The next look reads the rest; until then,
the page says so instead of showing a part."""
FRESH_SECONDS = 1.0
"""Looks within this time see the same."""
MOST_RULES = 10
MOST_SUBJECTS = 10

Curve = Literal["passed", "refused", "banned", "unanswered", "near", "shadowed", "bans"]
CURVES: tuple[Curve, ...] = get_args(Curve)
_CURVE_OF: Mapping[str, Curve] = {
    **dict.fromkeys(PASSED, "passed"),
    **dict.fromkeys(TURNED_AWAY, "unanswered"),
    "refused": "refused",
    "banned": "banned",
    "denied": "banned",
    "near": "near",
    "shadows": "shadowed",
    "bans": "bans",
}
"""The curve of each outcome of a check, and of what a rule did."""
Sort = Literal["refused", "passed", "near", "name"]
SORTS: tuple[Sort, ...] = get_args(Sort)
ALL = ""
"""Stands for all endpoints."""
_BAN_SUFFIX = re.compile(r"-ban(-\d+)?\Z")
"""What the name of a ban adds to that of its limiter: ``mailing-ban-2``."""
_SHORTENED = re.compile(rf".{{{LONGEST_SUBJECT - 17}}}\*[0-9a-f]{{16}}", re.DOTALL)
MEMORY = "multilimit_traffic"
"""Where in ``app.extensions`` the :class:`TrafficMemory` is."""


@dataclass(frozen=True, slots=True)
class Amount(Described):
    """How many."""

    rate: float
    """Per second, over the last minute, or over the time since the first check if that is less."""
    amount: int
    """In the time that is looked at."""


@dataclass(frozen=True, slots=True)
class Amounts(Described):
    """Checks."""

    passed: Amount
    refused: Amount
    """By a limit."""
    banned: Amount
    """Turned away by a ban or a list."""
    unanswered: Amount
    """With 503 or an error, as the storage failed."""
    near: Amount
    """Passed, with more than 80 % of a quota used."""
    shadowed: Amount
    """Passed, but a shadow would have refused."""
    bans: Amount
    """Bans that began."""


@dataclass(frozen=True, slots=True)
class Series(Described):
    """Checks in each slice of the time that is looked at, the oldest first. The last slice is not over yet."""

    passed: tuple[int, ...]
    refused: tuple[int, ...]
    banned: tuple[int, ...]
    unanswered: tuple[int, ...]
    near: tuple[int, ...]
    shadowed: tuple[int, ...]
    bans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndpointTraffic(Described):
    """Checks at one endpoint."""

    endpoint: str
    amounts: Amounts
    series: Series


@dataclass(frozen=True, slots=True)
class RuleTraffic(Described):
    """Checks in the time that is looked at."""

    endpoint: str
    rule: str
    refuses: int
    near: int
    shadows: int
    """Checks that it would have refused if it were no shadow."""
    bans: int
    """Bans that began."""
    returned: int = 0
    """Units that settling gave back."""
    added: int = 0
    """Units that settling charged beyond the estimates."""


@dataclass(frozen=True, slots=True)
class RefusedSubject(Described):
    """A subject that one rule refuses at one endpoint."""

    type: str
    subject: str
    """Plain or hashed, as MULTILIMIT_TRAFFIC_SUBJECTS says. Personal data."""
    shown: str
    """For people."""
    known: bool
    """Whether it can be looked up: it is neither hashed nor shortened."""
    endpoint: str
    rule: str
    refused: int
    """The least number of refusals: those in seconds when many others were refused more often are missing."""
    latest: int
    """The refusals since ``since``."""
    since: float
    """The first refusal of the latest series, to the second where it is known, otherwise to ten. A pause of over a
    minute ends a series."""
    until: float
    """The last refusal, to ten seconds."""


@dataclass(frozen=True, slots=True)
class RefusedClient(Described):
    """A subject that is refused, and by which rules."""

    type: str
    subject: str
    """Plain or hashed, as in ``rules``."""
    shown: str
    """For people."""
    known: bool
    """Whether it can be looked up: it is neither hashed nor shortened."""
    refused: int
    """By all its rules."""
    since: float
    """The first refusal of the latest series, by any of its rules."""
    until: float
    rules: tuple[RefusedSubject, ...]
    """Those that refused it most, at each endpoint."""


@dataclass(frozen=True, slots=True)
class BansBegunInForce(Described):
    """Bans that one limiter began, and that hold now."""

    endpoint: str
    rule: str
    """The name of the ban."""
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Now(Described):
    """What happens now."""

    at: float
    """When the storage answered last, by its clock."""
    minutes: int
    """The time that was asked for."""
    counted: bool
    why_not: str
    """Why nothing is counted."""
    seconds: float
    """The seconds that the numbers cover so far."""
    complete: bool
    """Whether all of the time that was asked for was read. If not, there are no numbers, so that no page shows a part.
    """
    endpoint: str | None
    """The endpoint that was asked for; ``null``: all."""
    q: str
    sort: Sort
    totals: Amounts
    series: Series
    last: int
    """The number of the last slice: when it began, divided by ``step``."""
    step: int
    """Seconds in a slice."""
    endpoints: tuple[EndpointTraffic, ...]
    paging: Paging
    """Of the endpoints."""
    rules: tuple[RuleTraffic, ...]
    """Those that refuse most, then those that clients come near most often."""
    subjects: tuple[RefusedClient, ...]
    """Those that were refused most."""
    bans_in_force: tuple[BansBegunInForce, ...]
    storage: StorageState
    changes: ChangesInForce
    workers: Workers | None
    """``null`` if none has announced itself."""


# Read


class RefusalSeries(NamedTuple):
    """Refusals without a pause of more than a minute."""

    amount: int
    since: float
    """The first one: POSIX time, to the second where it is known, otherwise to ten."""
    until: float
    """The last one, to ten seconds."""


class Refusals:
    """Who was refused in each slice of the last hour."""

    def __init__(self) -> None:
        self.now: float = 0.0
        """POSIX time by the clock of the storage."""
        self.starts: Mapping[Refused, Sequence[float]] = {}
        """The first refusals after a pause, as far as they are known."""
        self.slices: dict[int, dict[Refused, int]] = {}
        """How often each subject was refused, by bucket."""

    def most(self, number: int, is_wanted: Callable[[Refused], bool] | None = None) -> list[tuple[Refused, int]]:
        """The wanted subjects that were refused most, in order, and how often."""
        wanted = (each for each in self._totals(SLICES).items() if is_wanted is None or is_wanted(each[0]))
        return heapq.nlargest(number, wanted, key=lambda each: each[1])

    def by_client(
        self, most: int, is_wanted: Callable[[Refused], bool], *, slices: int = SLICES
    ) -> list[list[tuple[Refused, int]]]:
        """For each of the subjects that were refused most, in order: what refused it, and how often."""
        clients = dict[tuple[str, str], list[tuple[Refused, int]]]()
        for who, amount in self._totals(slices).items():
            if is_wanted(who):
                clients.setdefault((who.type, who.subject), []).append((who, amount))
        return heapq.nlargest(most, clients.values(), key=lambda rules: sum(amount for _, amount in rules))

    def series_at(self, at: float, is_wanted: Callable[[Refused], bool]) -> list[tuple[Refused, RefusalSeries]]:
        """The series of refusals in progress ``at`` a POSIX time, most first."""
        bucket, group = bucket_at(at), [who for who in self._totals(SLICES) if is_wanted(who)]
        series = next((each for each in self._series_of(group) if each[0] <= bucket <= each[-1]), ())
        own = ((who, [each for each in series if who in self.slices[each]]) for who in group)
        return sorted(((who, self._sum_of(part, [who])) for who, part in own if part), key=lambda each: -each[1].amount)

    def latest(self, group: Sequence[Refused]) -> RefusalSeries:
        """The latest series of refusals of a ``group`` together."""
        return self._sum_of(self._series_of(group)[-1], group)

    def first_in(self, bucket: int, group: Sequence[Refused]) -> float:
        """When one of a ``group`` was first refused in a bucket that begins a series, to the second if known: in this
        bucket, or in the second before it, and counted after that."""
        known = (at for who in group for at in self.starts.get(who, ()) if bucket_at(at) <= bucket <= bucket_at(at + 1))
        return min(known, default=float(bucket * BUCKET_SECONDS))

    def _totals(self, slices: int) -> Mapping[Refused, int]:
        found = Counter[Refused]()
        for bucket, subjects in self.slices.items():
            if bucket > bucket_at(self.now) - slices:
                found.update(subjects)
        return found

    def _series_of(self, group: Sequence[Refused]) -> list[list[int]]:
        found = (bucket for bucket, subjects in self.slices.items() if not subjects.keys().isdisjoint(group))
        return series_of(sorted(found))

    def _sum_of(self, series: Sequence[int], group: Sequence[Refused]) -> RefusalSeries:
        amount = sum(self.slices[bucket].get(who, 0) for bucket in series for who in group)
        until = min((series[-1] + 1) * BUCKET_SECONDS, self.now)
        return RefusalSeries(amount, self.first_in(series[0], group), until)


class TrafficMemory:
    """The traffic of the last hour, as this process has read it. Thread-safe."""

    def __init__(self, reader: TrafficReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.at: float = 0.0
        """POSIX time by the clock of the storage; 0 if nothing was read yet."""
        self.milliseconds: float = 0.0
        """The time that the last round trip took."""
        self.problem: StorageError | None = None
        """Why newer traffic could not be read."""
        self.bans: RecentBans | None = None
        """The bans that limiters began; ``None`` if they were not read yet."""
        self.refusals: Refusals = Refusals()
        self.process: int = os.getpid()
        self._reader = reader
        self._clock = clock
        self._lock = RLock()
        self.rings: dict[tuple[str, ...], array[int]] = {}
        """An amount for each slice of an hour, if one of them is not 0: by endpoint and curve, or by endpoint, rule and
        what the rule did."""
        self._names: list[list[tuple[str, ...]]] = [[] for _ in range(SLICES)]
        """The names of the amounts in each slice."""
        self._known: dict[int, bool] = {}
        """The buckets that were read, and whether they change no more."""
        self._with_checks: set[int] = set()
        self.first: float = 0.0
        """The first check of the hour: POSIX time; 0 if there was none."""
        self._fresh_until = -float("inf")

    @contextmanager
    def looking(self, *, is_away: bool = False, patient: bool = False) -> Iterator[TrafficMemory]:
        """Read what is new, unless the storage ``is_away``; if ``patient``, without a deadline. Within the block,
        nothing changes."""
        with self._lock:
            begin = self._clock()
            if not is_away and begin >= self._fresh_until:
                try:
                    self._look(float("inf") if patient else begin + BUDGET_SECONDS)
                    self.problem = None
                except StorageError as error:
                    self.problem = error
                self._fresh_until = self._clock() + FRESH_SECONDS
            yield self

    @property
    def last(self) -> int:
        """The number of the slice that has begun."""
        return bucket_at(self.at)

    def seconds(self, slices: int = SLICES) -> float:
        """How many seconds of the last ``slices`` are known without a gap, back from the latest to the first check."""
        bucket = self.last
        while bucket in self._known and self.last - bucket < slices:
            bucket -= 1
        return max(self.at - max((bucket + 1) * BUCKET_SECONDS, self.first), 1.0)

    def is_complete(self) -> bool:
        return all(self.last - back in self._known for back in range(SLICES))

    def total(self, *name: str, slices: int = SLICES) -> int:
        return sum(self.series(*name, slices=slices))

    def series(self, *name: str, slices: int = SLICES) -> Sequence[int]:
        """One amount per slice of ten seconds, the oldest first. The last slice is not over yet."""
        ring = self.rings.get(name)
        if ring is None:
            return (0,) * slices
        split = (self.last + 1) % SLICES
        return (ring[split:] + ring[:split])[SLICES - slices :]

    def rate(self, *name: str) -> float:
        """The rate per second over about the last minute, or since the first check of the hour."""
        begin = max((self.last - RECENT_SLICES + 1) * BUCKET_SECONDS, self.first)
        return sum(self.series(*name, slices=RECENT_SLICES)) / max(self.at - begin, 1.0)

    def by_endpoint(self, slices: int) -> dict[str, dict[str, int]]:
        """The amount of each curve that is not 0, by endpoint."""
        found = defaultdict[str, dict[str, int]](dict)
        for endpoint, *what in self.rings:
            if len(what) == 1 and (amount := self.total(endpoint, *what, slices=slices)):
                found[endpoint][what[0]] = amount
        return found

    def rules(self) -> set[tuple[str, str]]:
        """The endpoint and the name of each rule that did something."""
        return {(name[0], name[1]) for name in self.rings if len(name) == 3}

    # Under the lock

    def _look(self, deadline: float) -> None:
        """Read slices, the newest first: all that still change, and others until the ``deadline``."""
        begin = self._clock()
        self.bans = self._reader.bans()
        self.at = self.refusals.now = at = self.bans.at
        self.milliseconds = (self._clock() - begin) * 1000
        self.refusals.starts = self._reader.starts()
        last, settled = bucket_at(at), bucket_at(at - SETTLED_SECONDS)
        for bucket in self._known.keys() - range(last - SLICES + 1, last + 1):  # too old, or the clock was put back
            self._store(bucket, Counts())
            del self._known[bucket], self.refusals.slices[bucket]
        for bucket in self._known:  # after the clock was put back, some change again
            self._known[bucket] = self._known[bucket] and bucket < settled
        wanted = [bucket for bucket in range(last, last - SLICES, -1) if not self._known.get(bucket, False)]
        done, together = 0, last - settled + 2
        while together > 0 and done < len(wanted):
            batch = wanted[done : done + together]
            for bucket, counts in self._reader.ask(batch).items():
                self._store(bucket, counts)
                self._known[bucket] = bucket < settled
            done += len(batch)
            now = self._clock()
            left = (deadline - now) / max((now - begin) / done, 1e-6)
            together = int(min(left, TOGETHER))
        self.first = self.refusals.first_in(min(self._with_checks, default=0), [ANYBODY])

    def _store(self, bucket: int, counts: Counts) -> None:
        """Let ``counts`` replace what was known about this bucket and the one an hour before it."""
        self.refusals.slices[bucket] = counts.refused
        self._with_checks.discard(bucket)
        if counts.checks:
            self._with_checks.add(bucket)
        amounts = _amounts_of(counts)
        place = bucket % SLICES
        before, self._names[place] = self._names[place], list(amounts)
        for name in before:
            self.rings[name][place] = 0
        for name, amount in amounts.items():
            if name not in self.rings:
                self.rings[name] = array("Q", bytes(8 * SLICES))
            self.rings[name][place] = amount
        for name in before:
            if not any(self.rings[name]):
                del self.rings[name]


def _amounts_of(counts: Counts) -> dict[tuple[str, ...], int]:
    """The amounts of one slice, by name."""
    amounts = Counter[tuple[str, ...]](counts.rules)
    did: list[tuple[str, str, int]] = [
        (check.endpoint, check.outcome, amount) for check, amount in counts.checks.items()
    ]
    did += [(rule.endpoint, rule.did, amount) for rule, amount in counts.rules.items()]
    for endpoint, what, amount in did:
        if curve := _CURVE_OF.get(what):
            amounts[endpoint, curve] += amount
            amounts[ALL, curve] += amount
    return amounts


def memory_of(gate: AppGate) -> TrafficMemory | None:
    """What this process knows about the traffic of an app; ``None`` if traffic is not counted, or not kept."""
    found: TrafficMemory | None = gate.app.extensions.get(MEMORY)
    is_inherited = found is not None and found.process != os.getpid()  # a thread of the parent may hold its lock
    if (found is None or is_inherited) and not why_not_counted(gate):
        reader = reader_of(gate.limiter.storage, gate.settings.key_prefix)
        found = gate.app.extensions[MEMORY] = TrafficMemory(reader)
    return found


@contextmanager
def looking(gate: AppGate, *, patient: bool = False) -> Iterator[TrafficMemory | None]:
    """The traffic of the last hour, up to date; ``None`` if none is known, or not yet all of it."""
    memory = memory_of(gate)
    if memory is None:
        yield None
        return
    with memory.looking(is_away=storage_state(gate).state == "failed", patient=patient):
        yield memory if memory.at and memory.is_complete() else None


# Sum up


def now(
    gate: AppGate,
    *,
    minutes: int = 60,
    endpoint: str | None = None,
    q: str = "",
    sort: str = "",
    page: int = 1,
    patient: bool = False,
) -> Now:
    """What limits do, in the last ``minutes`` (1 to 60); with ``endpoint``, only there."""
    minutes = min(max(minutes, 1), LONGEST_SECONDS // 60)
    slices = minutes * 60 // BUCKET_SECONDS
    storage, memory = storage_state(gate), memory_of(gate)
    try:
        require_charges(gate)
    except StorageError as error:
        storage = storage.after(error, 0.0)
    found = Now(
        at=time.time(),
        minutes=minutes,
        counted=memory is not None,
        why_not="" if memory is not None else why_not_counted(gate),
        seconds=0.0,
        complete=True,
        endpoint=endpoint,
        q=q,
        sort=sort if sort in SORTS else SORTS[0],
        totals=Amounts(**dict.fromkeys(CURVES, Amount(0.0, 0))),
        series=Series(**dict.fromkeys(CURVES, (0,) * slices)),
        last=0,
        step=BUCKET_SECONDS,
        endpoints=(),
        paging=paged((), 1)[1],
        rules=(),
        subjects=(),
        bans_in_force=(),
        storage=storage,
        changes=changes_in_force(gate),
        workers=None if storage.state == "failed" else workers(gate),
    )
    if memory is None:
        return found
    with memory.looking(is_away=storage.state == "failed", patient=patient):
        found = replace(found, storage=storage.after(memory.problem, memory.milliseconds))
        if memory.at and memory.is_complete():
            return _with_numbers(found, gate, memory, page, slices)
        return replace(found, complete=False, seconds=memory.seconds(slices) if memory.at else 0.0)


def why_not_counted(gate: AppGate) -> str:
    """Why no traffic is counted; empty if it is."""
    if not gate.settings.traffic:
        return Phrase("{name} is False: nothing is counted.", name=f"{PREFIX}TRAFFIC")
    if not isinstance(gate.limiter.storage, KeepsTallies):
        lacks = "A {name} keeps no traffic: it has no methods tally and tallies."
        return Phrase(lacks, name=type(gate.limiter.storage).__name__)
    return ""


def _with_numbers(found: Now, gate: AppGate, memory: TrafficMemory, page: int, slices: int) -> Now:
    endpoint, amounts = found.endpoint, memory.by_endpoint(slices)
    names = [name for name in amounts if name != ALL and found.q.lower() in name.lower()]
    names.sort(key=lambda name: _order(found.sort, name, amounts[name]))
    shown, paging = paged(names, page, ROWS)
    of_all = _traffic(memory, endpoint or ALL, slices)
    wanted = memory.refusals.by_client(MOST_SUBJECTS, lambda who: endpoint in {None, who.endpoint}, slices=slices)
    return replace(
        found,
        at=memory.at,
        seconds=memory.seconds(slices),
        totals=of_all.amounts,
        series=of_all.series,
        last=memory.last,
        endpoints=tuple(_traffic(memory, name, slices) for name in shown),
        paging=paging,
        rules=_rules(memory, endpoint, slices),
        subjects=tuple(_client(gate, memory, rules) for rules in wanted),
        bans_in_force=_bans(gate, memory.bans, endpoint),
    )


def _traffic(memory: TrafficMemory, endpoint: str, slices: int) -> EndpointTraffic:
    totals = {each: Amount(memory.rate(endpoint, each), memory.total(endpoint, each, slices=slices)) for each in CURVES}
    series = {each: tuple(memory.series(endpoint, each, slices=slices)) for each in CURVES}
    return EndpointTraffic(endpoint, Amounts(**totals), Series(**series))


def _order(sort: Sort, name: str, amounts: Mapping[str, int]) -> tuple[Any, ...]:
    if sort == "name":
        return (name,)
    return (-amounts.get(sort, 0), *(-amounts.get(curve, 0) for curve in _BY_WEIGHT), name)


_BY_WEIGHT: tuple[Curve, ...] = ("refused", "banned", "unanswered", "near", "passed")


def _rules(memory: TrafficMemory, endpoint: str | None, slices: int) -> tuple[RuleTraffic, ...]:
    names = [each for each in memory.rules() if endpoint in {None, each[0]}]
    found = [rule_traffic(memory, *name, slices=slices) for name in names]
    counted = [each for each in found if each.refuses or each.near or each.shadows or each.bans]
    counted.sort(key=lambda each: (-each.refuses, -each.near, -each.shadows, each.endpoint, each.rule))
    return tuple(counted[:MOST_RULES])


def rule_traffic(memory: TrafficMemory, endpoint: str, rule: str, *, slices: int = SLICES) -> RuleTraffic:
    """What one rule did."""
    kinds = ("refuses", "near", "shadows", "bans", "returned", "added")
    name = counted_name(endpoint), counted_name(rule)
    amounts = [memory.total(*name, kind, slices=slices) for kind in kinds]
    return RuleTraffic(endpoint, rule, *amounts)


def refused_subject(gate: AppGate, memory: TrafficMemory, who: Refused, amount: int) -> RefusedSubject:
    shown = shown_subject(gate.plans, who.type, who.subject)
    known = gate.settings.traffic_subjects == "plain" and not _SHORTENED.fullmatch(who.subject)
    latest = memory.refusals.latest([who])
    return RefusedSubject(who.type, who.subject, shown, known, who.endpoint, who.rule, amount, *latest)


def _client(gate: AppGate, memory: TrafficMemory, rules: Sequence[tuple[Refused, int]]) -> RefusedClient:
    rules = sorted(rules, key=lambda rule: -rule[1])
    _, since, until = memory.refusals.latest([who for who, _ in rules])
    shown = tuple(refused_subject(gate, memory, *rule) for rule in rules[:MOST_RULES])
    first = shown[0]
    refused = sum(amount for _, amount in rules)
    return RefusedClient(first.type, first.subject, first.shown, first.known, refused, since, until, shown)


def _bans(gate: AppGate, recent: RecentBans | None, endpoint: str | None) -> tuple[BansBegunInForce, ...]:
    """The most frequent first."""
    held = {} if recent is None or not recent.begun else refusing_bans(gate, recent).in_force()
    found = [BansBegunInForce(*name, amount) for name, amount in held.items() if endpoint in {None, name[0]}]
    return tuple(sorted(found, key=lambda each: (-each.amount, each.endpoint, each.rule)))


def refusing_bans(gate: AppGate, bans: RecentBans) -> RecentBans:
    """Without the bans of limiters that a change has switched off, or made a shadow: they refuse nobody meanwhile."""
    limiters = (each for each in gate.plans.all_limiters() if not each.declaration.shadow)
    rules = {keys for each in limiters for keys in each.rules_by_keys}
    endpoints = scopes_of_endpoints(gate.app)

    @cache  # an extension may take as long as for a request
    def is_planned(scope: str) -> bool:
        """Whether no function, check or other extension limits there."""
        if scope == UNMATCHED_SCOPE:
            return True
        endpoint = endpoints.get(scope)
        return endpoint is not None and not any(limits(gate.app, endpoint) for limits in gate.listings)

    def refuses(ban: CountedBan) -> bool:
        parts = parts_of_key(ban.key)
        if parts is None or parts.keys_of_rule in rules:
            return True
        type_ = LimitType.USER.value if parts.type == ANONYMOUS else parts.type
        limiter = {None, type_, _BAN_SUFFIX.sub("", ban.rule)}  # by its type or its name
        changes = gate.plans.overrides.at(ban.endpoint).changes
        of_all = [each for each in changes if not each.rule and each.limiter in limiter]
        shadows = [each.shadow for each in of_all if each.shadow is not None]
        is_on = not any(each.off for each in of_all) and True not in shadows[-1:]
        return is_on and not is_planned(ban.endpoint)

    return bans._replace(begun=list(filter(refuses, bans.begun)))
