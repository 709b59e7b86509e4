"""One refused decision, by the server and by a process that remembers the refusal; and the memory that this takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

from flask_multilimit import Rule
from flask_multilimit.engine import DenyCache, GuardedStorage, Hit, Limiter, hits_for, storage_from_uri

from .contenders import NUMBERS, OURS, PATIENCE, PING, Calls, case_of, limits_refusing, yardsticks
from .measure import Variant, figures_of, in_turn, ratios_of
from .memory_per_subject import traced
from .results import Figure
from .setting import Setting

PART = "refusals"
ASKED = f"{OURS}, asked each time"
"""As with MULTILIMIT_DENY_CACHE=0, and as for a first refusal."""
LONGEST = 60
"""Seconds for which a refusal can be believed."""
SUBJECTS = 1000
"""The bytes of one refusal are counted over so many subjects."""


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server:
        url = server.tcp_url
        variants = {PING: yardsticks(url)[PING]} | refused_by_us(url) | limits_refusing(url)
        samples = in_turn(variants, rounds=setting.rounds(300), server=server.pid)
        for number in NUMBERS:
            yield Figure(PART, OURS, case_of(number), "bytes kept", _bytes_kept(url, number))
    yield from ratios_of(PART, samples, PING, "times a PING")
    yield from figures_of(PART, samples)


def refused_by_us(url: str) -> Calls:
    """The cache stands around the guard, as in Flask."""
    guarded = GuardedStorage(storage_from_uri(url, timeout=PATIENCE), on_error="raise")
    return _refused(OURS, Limiter(DenyCache(guarded))) | _refused(ASKED, Limiter(guarded))


def rules_of(number: int) -> list[Rule]:
    """The first refuses the second request; the others have units left."""
    return [Rule(600 + i, 1 + i) for i in range(number)]


def _refused(who: str, limiter: Limiter) -> Calls:
    """Each check is made once in advance, so that all measured ones are refused."""
    found: Calls = {}
    for number in NUMBERS:
        hits = hits_for(rules_of(number), scope=f"refused-{number}", subject="ip:203.0.113.7")
        limiter.check(hits)

        def call(hits: tuple[Hit, ...] = hits) -> bool:
            return limiter.check(hits).allowed

        found[Variant(who, case_of(number))] = call
    return found


def _bytes_kept(url: str, number: int) -> int:
    """The memory that is freed with the cache, for each of many refusals."""
    rules, storage = rules_of(number), storage_from_uri(url, timeout=PATIENCE)
    tracemalloc.start()
    limiter = Limiter(DenyCache(storage, seconds=LONGEST))
    for subject in range(SUBJECTS):
        for _ in range(2):
            limiter.check(hits_for(rules, scope=f"kept-{number}", subject=f"ip:203.0.113.{subject}"))
    full = traced()
    del limiter
    used = full - traced()
    tracemalloc.stop()
    return round(used / SUBJECTS)
