"""A worker at a boundary of a calendar, as processes of tests run it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import redis

from flask_multilimit.engine import Calendar, Limiter, RedisStorage, hits_for
from support.clock import SECOND
from support.compiled import CompiledStorage

BOUNDARY = round(datetime(2026, 11, 1, tzinfo=timezone.utc).timestamp()) * SECOND
COUNT = 60


def admitted(place: tuple[int, int, bool]) -> list[int]:
    """When this process admitted, in four threads whose clocks go to and fro over the boundary. ``place`` is the port,
    a seed, and whether to use compiled scripts."""
    port, seed, of_a_shape = place

    def thread(number: int) -> list[int]:
        rng = random.Random(f"{seed} {number}")
        kind = CompiledStorage if of_a_shape else RedisStorage
        client = redis.Redis(port=port)
        limiter = Limiter(kind(client, clock=lambda: BOUNDARY + rng.randrange(-5 * SECOND, 5 * SECOND)))
        hits = hits_for(Calendar(COUNT, "month"), scope="boundary", subject="ada")
        found = [decision.at for _ in range(60) if (decision := limiter.check(hits)).allowed]
        client.close()
        return found

    with ThreadPoolExecutor(4) as threads:
        return [at for each in threads.map(thread, range(4)) for at in each]
