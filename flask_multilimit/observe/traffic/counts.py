"""The counts, and their form in the storage: buckets of ten seconds that are kept for an hour, and the ends of bans."""

from __future__ import annotations

from collections import Counter as Amounts
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeVar, get_args

from ...engine.storage import Tally
from ..events import OUTCOMES, Outcome

K = TypeVar("K")

RuleOutcome = Literal["refuses", "shadows", "near", "bans", "returned", "added"]
"""What a rule did in a check:

- ``refuses``: it refuses.
- ``shadows``: it would refuse, but is a shadow.
- ``near``: it allows, with over 80 % of its quota used.
- ``bans``: it is a ban that began with this check.
- ``returned``: a settlement gave units back. This counts units.
- ``added``: a settlement charged units beyond the estimate. This counts units.
"""
RULE_OUTCOMES: tuple[RuleOutcome, ...] = get_args(RuleOutcome)

LONGEST_NAME = 120
"""The characters that are kept of an endpoint or a rule."""
LONGEST_SUBJECT = 64
MOST_BANS = 10_000
"""The most bans that are kept at once. If there are more, those that end first are forgotten."""
_TAB = str.maketrans("\t\n", "  ")


class Check(NamedTuple):
    """The label of checks of one endpoint with one outcome."""

    endpoint: str
    outcome: Outcome
    decided_by: str


class RuleCount(NamedTuple):
    """The label of checks of one endpoint in which one rule did one thing, or of its units."""

    endpoint: str
    rule: str
    did: RuleOutcome


class Refused(NamedTuple):
    """The label of a subject that one rule refuses at one endpoint."""

    endpoint: str
    rule: str
    type: str
    """The type of the subject."""
    subject: str
    """Plain or hashed, as ``MULTILIMIT_TRAFFIC_SUBJECTS`` says. Personal data."""


ANYBODY = Refused("", "", "", "")
"""In :attr:`Counts.starts`, stands for all checks in place of a subject."""


class CountedBan(NamedTuple):
    """A ban that a limiter began."""

    endpoint: str
    rule: str
    """Its name."""
    key: str
    """Its key in the storage, which contains the subject. Personal data."""
    began: float
    """POSIX time."""
    until: float
    """When it ends, or was lifted: POSIX time."""


@dataclass(slots=True)
class Counts:
    """What was counted in a span of time."""

    checks: dict[Check, int] = field(default_factory=dict)
    rules: dict[RuleCount, int] = field(default_factory=dict)
    refused: dict[Refused, int] = field(default_factory=dict)
    """The subjects that are refused most."""
    begun: list[CountedBan] = field(default_factory=list)
    starts: list[tuple[Refused, float]] = field(default_factory=list)
    """The POSIX times of first refusals after a pause, as far as one process knows."""

    def __bool__(self) -> bool:
        return bool(self.checks or self.rules or self.refused)

    def add(self, other: Counts) -> None:
        _add(self.checks, other.checks)
        _add(self.rules, other.rules)
        _add(self.refused, other.refused)
        self.begun += other.begun
        self.starts += other.starts


def encode_counts(counts: Counts) -> dict[str, int]:
    """The amounts of checks and rules, by their names in the storage."""
    amounts = Amounts[str]()
    for check, amount in counts.checks.items():
        amounts[f"{check.outcome}\t{counted_name(check.endpoint)}\t{counted_name(check.decided_by)}"] += amount
    for rule, amount in counts.rules.items():
        amounts[f"{rule.did}\t{counted_name(rule.endpoint)}\t{counted_name(rule.rule)}"] += amount
    return amounts


def encode_subjects(refused: Mapping[Refused, int]) -> dict[str, int]:
    amounts = Amounts[str]()
    for who, amount in refused.items():
        *labels, subject = who
        amounts["\t".join([*map(counted_name, labels), subject])] += amount
    return amounts


def encode_starts(starts: Iterable[tuple[Refused, float]]) -> dict[str, int]:
    """Each instant, in milliseconds, by its name in the storage."""
    return {f"{round(at * 1000)}\t{name}": round(at * 1000) for who, at in starts for name in encode_subjects({who: 1})}


def decode_starts(instants: Mapping[str, int]) -> dict[Refused, list[float]]:
    starts: dict[Refused, list[float]] = {}
    for _, endpoint, rule, type_, subject, at in _fields(instants, 5):
        starts.setdefault(Refused(endpoint, rule, type_, subject), []).append(int(at) / 1000)
    return starts


def encode_bans(begun: Iterable[CountedBan]) -> dict[str, int]:
    """The end of each ban, in milliseconds, by its name in the storage."""
    names = ((ban, f"{counted_name(ban.endpoint)}\t{counted_name(ban.rule)}\t{int(ban.began * 1000)}") for ban in begun)
    return {f"{name}\t{encodable(ban.key)}": int(ban.until * 1000) for ban, name in names}


def decode_bans(ends: Mapping[str, int]) -> list[CountedBan]:
    return [
        CountedBan(endpoint, rule, key, int(began) / 1000, int(until) / 1000)
        for endpoint, rule, began, key, until in _fields(ends, 4)
        if began.isascii() and began.isdigit()
    ]


def decode_counts(amounts: Mapping[str, int], subjects: Mapping[str, int]) -> Counts:
    """The counts for names in the storage. Names that another version wrote are left out."""
    counts = Counts()
    for did, endpoint, name, amount in _fields(amounts, 3):
        if did in OUTCOMES:
            counts.checks[Check(endpoint, did, name)] = int(amount)
        elif did in RULE_OUTCOMES:
            counts.rules[RuleCount(endpoint, name, did)] = int(amount)
    for endpoint, rule, type_, subject, amount in _fields(subjects, 4):
        counts.refused[Refused(endpoint, rule, type_, subject)] = int(amount)
    return counts


def short(subject: str) -> str:
    """``subject``; if it is long, its beginning and a digest."""
    if len(subject) <= LONGEST_SUBJECT:
        return subject
    digest = blake2b(subject.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{subject[: LONGEST_SUBJECT - 17]}*{digest}"


def encodable(subject: str) -> str:
    """``subject`` with lone surrogates escaped, because no storage takes them."""
    return subject.encode("utf-8", "backslashreplace").decode()


def _fields(amounts: Mapping[str, int], number: int) -> Iterator[list[str]]:
    for name, amount in amounts.items():
        fields = name.split("\t", number - 1)
        if len(fields) == number:
            yield [*fields, str(amount)]


def counted_name(text: str) -> str:
    """The name of an endpoint or a rule in counts, where long names are cut off."""
    return encodable(text[:LONGEST_NAME].translate(_TAB))


def _add(amounts: dict[K, int], others: Mapping[K, int]) -> None:
    for name, amount in others.items():
        amounts[name] = amounts.get(name, 0) + amount


BUCKET_SECONDS = 10
PAUSE_BUCKETS = 60 // BUCKET_SECONDS
"""The longest pause within a series of refusals: a minute."""
LIVES_SECONDS = 3600 + 2 * BUCKET_SECONDS
"""A bucket is kept as long as any of its seconds is less than an hour ago."""
MOST_NAMES_KEPT = 8192
"""The most names of counts in a bucket, over all processes."""
MOST_SUBJECTS_KEPT = 200
"""The most subjects in a bucket."""
MOST_STARTS_KEPT = 2000
"""The most first refusals whose second is kept. Of others, only the ten seconds are known."""


class TrafficKeys:
    """The keys of traffic. All have the same hash tag, which no scope can have: an escaped scope begins with ``*`` only
    if a digest follows."""

    def __init__(self, prefix: str) -> None:
        self._stem = f"{prefix}{{*traffic}}:"

    def counts(self, bucket: int) -> str:
        return f"{self._stem}counts:{bucket}"

    def subjects(self, bucket: int) -> str:
        return f"{self._stem}subjects:{bucket}"

    def bans(self) -> str:
        """The key of bans that are in force, or ended in the last hour."""
        return f"{self._stem}bans"

    def starts(self) -> str:
        return f"{self._stem}starts"

    def source(self, name: str) -> str:
        return f"{self._stem}from:{name}"


def bucket_at(seconds: float) -> int:
    return int(seconds // BUCKET_SECONDS)


def tallies_of(keys: TrafficKeys, bucket: int, counts: Counts) -> list[Tally]:
    """The tallies to send to the storage for ``counts``."""
    tallies = [Tally(keys.counts(bucket), encode_counts(counts), LIVES_SECONDS, MOST_NAMES_KEPT)]
    if counts.refused:
        subjects = encode_subjects(counts.refused)
        tallies.append(Tally(keys.subjects(bucket), subjects, LIVES_SECONDS, MOST_SUBJECTS_KEPT))
    if counts.starts:
        starts = encode_starts(counts.starts)
        tallies.append(Tally(keys.starts(), starts, LIVES_SECONDS, MOST_STARTS_KEPT, instants=True))
    if counts.begun:
        tallies.append(tally_of_bans(keys, counts.begun))
    return tallies


def tally_of_bans(keys: TrafficKeys, bans: Iterable[CountedBan]) -> Tally:
    return Tally(keys.bans(), encode_bans(bans), LIVES_SECONDS, MOST_BANS, instants=True)


def is_traffic(key: str) -> bool:
    """Whether a key in the storage holds traffic."""
    return "{*traffic}:" in key
