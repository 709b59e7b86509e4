"""The log of a sliding window on a server: exact at any length, and with entries outside the window."""

import os
from math import inf

import pytest
import redis

from flask_multilimit.engine import Limiter, RedisStorage, Rule, hits_for
from flask_multilimit.engine.algorithms.base import AHEAD
from flask_multilimit.engine.algorithms.sliding_window import TRIM
from flask_multilimit.engine.hits import Hits
from support.clock import SECOND, Clock
from support.server_clock import ServerClock, scripts_read_clock_of_test

WINDOW = 60 * SECOND
LENGTHS = (0, 1, 24, 25, 128, 129)
"""Around the lengths at which the script begins to count in another way."""
OUTSIDE = (0, 1, 40)
ROOM = 3


def plan_with_room(live: int, cost: int = 1) -> Hits:
    """A rule that has room for ``ROOM`` units beside those that are ``live``."""
    return hits_for([Rule(60, live + ROOM)], scope="api", cost=cost)


def fill(client: redis.Redis, key: str, instants: list[int]) -> None:
    client.delete(key)
    if instants:
        client.zadd(key, {os.urandom(16): at for at in instants})


@pytest.mark.parametrize("compile_after", [inf, 0], ids=["generic", "compiled"])
@pytest.mark.parametrize("future", OUTSIDE)
@pytest.mark.parametrize("expired", OUTSIDE)
@pytest.mark.parametrize("live", LENGTHS)
def test_sliding_window_log_of_any_length_is_counted_exactly(
    redis_client: redis.Redis, compile_after: float, live: int, expired: int, future: int
) -> None:
    limiter, clock = Limiter(RedisStorage(redis_client)), ServerClock(redis_client)
    begin, end = clock.now - WINDOW, clock.now + AHEAD
    within = [begin + 1, *range(begin + 100, begin + 100 + live - 2), end][:live]
    key = plan_with_room(live)[0].key
    fill(redis_client, key, [*(begin - i for i in range(expired)), *within, *(end + 1 + i for i in range(future))])

    with scripts_read_clock_of_test(compile_after=compile_after):
        peeked = limiter.peek(plan_with_room(live)).statuses[0]
        refused = limiter.check(plan_with_room(live, cost=ROOM + 1)).statuses[0]
        left_by_refusal = redis_client.zcard(key)
        admitted = limiter.check(plan_with_room(live)).statuses[0]

    wait = (within[0] if live else clock.now) - begin
    reset_after = (within[-1] - begin if live else 0) / SECOND
    assert peeked[1:5] == (True, ROOM, 0, reset_after)
    assert refused[1:5] == (False, ROOM, wait / SECOND if live else float("inf"), reset_after)
    assert left_by_refusal == expired + live
    assert admitted[1:5] == (True, ROOM - 1, 0, 60)
    assert redis_client.zcard(key) == live + 1


@pytest.mark.parametrize("cost", [1, 3])
def test_long_expired_log_is_dropped_in_parts(redis_client: redis.Redis, cost: int) -> None:
    clock = Clock()
    limiter = Limiter(RedisStorage(redis_client, clock=clock))
    wanted = plan_with_room(100, cost=cost)
    expired = [clock.now - 2 * WINDOW + i for i in range(3 * TRIM)]
    fill(redis_client, wanted[0].key, expired)

    left = []
    for _ in range(4):
        assert limiter.check(wanted).allowed
        left.append(redis_client.zcount(wanted[0].key, "-inf", clock.now - WINDOW))

    assert left == [max(3 * TRIM - (TRIM + cost) * checks, 0) for checks in (1, 2, 3, 4)]


def test_repeated_check_whose_units_have_expired_is_charged_its_cost_once(redis_client: redis.Redis) -> None:
    """The repeated check replaces its old entries under its id, so fewer are dropped as expired than were seen."""
    clock = Clock()
    limiter = Limiter(RedisStorage(redis_client, clock=clock))
    wanted = plan_with_room(100, cost=10)
    old = limiter.check(wanted)
    clock.now += WINDOW
    expired = [clock.now - WINDOW - i for i in range(TRIM + 1)]
    redis_client.zadd(wanted[0].key, {os.urandom(16): at for at in expired})
    redis_client.zadd(wanted[0].key, {os.urandom(16): clock.now - i for i in range(5)})

    again = limiter.check(wanted, check_id=old.id)

    assert again.allowed
    assert limiter.peek(wanted).remaining == 100 + ROOM - 15
