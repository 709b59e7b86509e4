"""Where traffic lies in storage: buckets of ten seconds that live an hour."""

from __future__ import annotations

from ...engine.storage import Tally
from .counts import Counts, written, written_subjects

BUCKET_SECONDS = 10
LIVES_SECONDS = 3600 + 2 * BUCKET_SECONDS
"""A bucket is there as long as any of its seconds is less than an hour ago."""
MOST_NAMES_KEPT = 8192
"""Names of counts in a bucket, of all processes together."""
MOST_SUBJECTS_KEPT = 200
"""Subjects in a bucket."""


class Places:
    """The keys. All have one hash tag, which no scope can have, for an escaped one begins with a ``*`` only if a digest
    follows."""

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
    """What is sent to storage."""
    tallies = [Tally(places.counts(bucket), written(counts), LIVES_SECONDS, MOST_NAMES_KEPT)]
    if counts.refused:
        subjects = written_subjects(counts.refused)
        tallies.append(Tally(places.subjects(bucket), subjects, LIVES_SECONDS, MOST_SUBJECTS_KEPT))
    return tallies


def is_traffic(key: str) -> bool:
    """Whether a key in storage is one of these."""
    return "{*traffic}:" in key
