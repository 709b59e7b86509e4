"""What processes of the tests of concurrency run."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from math import inf

import redis

from flask_multilimit.engine import Calendar, Limiter, RedisStorage, Rule, hits_for, storage_from_uri
from flask_multilimit.engine.reply import DELAY
from support.clock import SECOND
from support.server_clock import scripts_read_clock_of_test

QUEUE = Rule(1, 1000, algorithm="leaky_bucket", max_delay=60)


def queue_up(url: str, times: int) -> list[tuple[int, int]]:
    """The instant of arrival and the delay of each request, in microseconds."""
    limiter = Limiter(storage_from_uri(url, timeout=30))  # waits long enough for a busy machine
    decisions = [limiter.check(hits_for(QUEUE, scope="queue")) for _ in range(times)]
    limiter.close()
    return [(decision.at, decision.reply[DELAY]) for decision in decisions]


BOUNDARY = round(datetime(2026, 11, 1, tzinfo=timezone.utc).timestamp()) * SECOND
COUNT = 60


def admitted(place: tuple[int, bool]) -> list[int]:
    """The instants of admitted checks, in four threads, with a clock that jumps over the boundary of a calendar.
    ``place`` is the port, and whether to use compiled scripts."""
    port, compiled_scripts = place

    def thread(_: int) -> list[int]:
        client = redis.Redis(port=port)
        limiter = Limiter(RedisStorage(client))
        hits = hits_for(Calendar(COUNT, "month"), scope="boundary", subject="user:ada")
        found = [decision.at for _ in range(60) if (decision := limiter.check(hits)).allowed]
        client.close()
        return found

    time = f"{BOUNDARY - 5 * SECOND} + call('TIME')[2] * 7919 % {10 * SECOND}"
    compile_after = 0 if compiled_scripts else inf
    with scripts_read_clock_of_test(compile_after=compile_after, time=time), ThreadPoolExecutor(4) as threads:
        return [at for each in threads.map(thread, range(4)) for at in each]
