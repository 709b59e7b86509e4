"""The layout of traffic in storage: buckets of ten seconds that live an hour, and the ends of bans."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.storage import Tally
from .counts import MOST_BANS, BanBegun, Counts, written, written_bans, written_subjects

BUCKET_SECONDS = 10
LIVES_SECONDS = 3600 + 2 * BUCKET_SECONDS
"""A bucket is kept as long as any of its seconds is less than an hour ago."""
MOST_NAMES_KEPT = 8192
"""The most names of counts in a bucket, over all processes."""
MOST_SUBJECTS_KEPT = 200
"""The most subjects in a bucket."""
BANS_LAST = (3600, 86_400, 31 * 86_400, 401 * 86_400)
"""Seconds. Each key holds the bans that last up to this long, and expires this long after the last one was added."""


class Places:
    """The keys of traffic. All have the same hash tag. No scope can have this one: an escaped scope begins with ``*``
    only if a digest follows."""

    def __init__(self, prefix: str) -> None:
        self._stem = f"{prefix}{{*traffic}}:"

    def counts(self, bucket: int) -> str:
        return f"{self._stem}counts:{bucket}"

    def subjects(self, bucket: int) -> str:
        return f"{self._stem}subjects:{bucket}"

    def bans(self) -> list[str]:
        """One key for each of :data:`BANS_LAST`."""
        return [f"{self._stem}bans:{lasts}" for lasts in BANS_LAST]

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
    return tallies + _tallies_of_bans(places, bucket * BUCKET_SECONDS, counts.begun)


def _tallies_of_bans(places: Places, now: int, begun: Sequence[BanBegun]) -> list[Tally]:
    tallies, shorter = [], 0
    for key, lasts in zip(places.bans(), BANS_LAST, strict=True):
        some = [ban for ban in begun if shorter < ban.until - now <= lasts]
        if some:
            tallies.append(Tally(key, written_bans(some), lasts, MOST_BANS))
        shorter = lasts
    return tallies


def is_traffic(key: str) -> bool:
    """Whether a key in the storage holds traffic."""
    return "{*traffic}:" in key
