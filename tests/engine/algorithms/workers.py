"""What processes of the tests of concurrency run."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import redis

from flask_multilimit.engine import Calendar, Limiter, RedisStorage, Rule, hits_for, storage_from_uri
from flask_multilimit.engine.reply import DELAY
from support.clock import SECOND
from support.compiled import CompiledStorage

QUEUE = Rule(1, 1000, algorithm="leaky_bucket", max_delay=60)


def queue_up(url: str, times: int) -> list[tuple[int, int]]:
    """The instant of arrival and the delay of each request, in microseconds."""
    limiter = Limiter(storage_from_uri(url, timeout=30))  # waits long enough for a busy machine
    decisions = [limiter.check(hits_for(QUEUE, scope="queue")) for _ in range(times)]
    limiter.close()
    return [(decision.at, decision.reply[DELAY]) for decision in decisions]


BOUNDARY = round(datetime(2026, 11, 1, tzinfo=timezone.utc).timestamp()) * SECOND
COUNT = 60


def admitted(place: tuple[int, int, bool]) -> list[int]:
    """The instants of admitted checks, in four threads whose clocks step over the boundary of a calendar. ``place``
    is the port, a seed, and whether to use compiled scripts."""
    port, seed, compiled_scripts = place

    def thread(number: int) -> list[int]:
        rng = random.Random(f"{seed} {number}")
        kind = CompiledStorage if compiled_scripts else RedisStorage
        client = redis.Redis(port=port)
        limiter = Limiter(kind(client, clock=lambda: BOUNDARY + rng.randrange(-5 * SECOND, 5 * SECOND)))
        hits = hits_for(Calendar(COUNT, "month"), scope="boundary", subject="ada")
        found = [decision.at for _ in range(60) if (decision := limiter.check(hits)).allowed]
        client.close()
        return found

    with ThreadPoolExecutor(4) as threads:
        return [at for each in threads.map(thread, range(4)) for at in each]
