"""Where traffic lies in storage: buckets of ten seconds that live an hour."""

from __future__ import annotations

from ...engine.storage import Tally
from .counts import Counts, written, written_subjects

BUCKET_SECONDS = 10
LIVES_SECONDS = 3600 + 2 * BUCKET_SECONDS
"""A bucket is kept as long as any of its seconds is less than an hour ago."""
MOST_NAMES_KEPT = 8192
"""The most names of counts in a bucket, over all processes."""
MOST_SUBJECTS_KEPT = 200
"""The most subjects in a bucket."""


class Places:
    """The keys of traffic. All have the same hash tag. No scope can have this one: an escaped scope begins with ``*``
    only if a digest follows."""

    def __init__(self, prefix: str) -> None:
        self._stem = f"{prefix}{{*traffic}}:"

    def counts(self, bucket: int) -> str:
        return f"{self._stem}counts:{bucket}"

    def subjects(self, bucket: int) -> str:
        return f"{self._stem}subjects:{bucket}"

    def source(self, name: str) -> str:
        return f"{self._stem}from:{name}"


def bucket_at(seconds: float) -> int:
    return int(seconds // BUCKET_SECONDS)


def tallies_of(places: Places, bucket: int, counts: Counts) -> list[Tally]:
    """What to send to the storage for ``counts``."""
    tallies = [Tally(places.counts(bucket), written(counts), LIVES_SECONDS, MOST_NAMES_KEPT)]
    if counts.refused:
        subjects = written_subjects(counts.refused)
        tallies.append(Tally(places.subjects(bucket), subjects, LIVES_SECONDS, MOST_SUBJECTS_KEPT))
    return tallies


def is_traffic(key: str) -> bool:
    """Whether a key in the storage holds traffic."""
    return "{*traffic}:" in key
