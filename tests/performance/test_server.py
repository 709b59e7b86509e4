"""What one check costs the server: commands, calls within the script, bytes."""

from collections.abc import Callable

import pytest
import redis

from flask_multilimit.engine import Limiter, Rule, hits_for
from flask_multilimit.engine.hits import Hits
from support.asking import commands
from support.rates import RATES

MANY = 10**6


def hits(number: int, algorithm: str = "sliding_window", subject: str = "203.0.113.7") -> Hits:
    rules = [Rule(60 + i, MANY, algorithm=algorithm) for i in range(number)]
    return hits_for(rules, scope="api.update", subject=f"ip:{subject}")


def calls_during(client: redis.Redis, action: Callable[[], object]) -> tuple[list[str], list[str]]:
    """The commands that clients sent meanwhile, and the calls that scripts made, by name."""
    called: list[str] = []
    with commands(client, called) as sent:
        action()
    return sent, called


@pytest.mark.parametrize("number", [1, 3, 10])
def test_check_is_one_command_and_three_calls_for_each_sliding_window(
    limiter: Limiter, redis_client: redis.Redis, number: int
) -> None:
    wanted = hits(number)
    limiter.check(wanted)

    sent, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sent == ["EVALSHA"]
    assert sorted(called) == sorted(["TIME", *["ZCOUNT", "ZADD", "ZCARD"] * number])


def test_number_of_calls_does_not_grow_with_the_units_of_a_sliding_window(
    limiter: Limiter, redis_client: redis.Redis
) -> None:
    wanted = hits(1)
    for _ in range(25):
        limiter.check(wanted)

    _, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sorted(called) == sorted(["TIME", "ZCARD", "ZCOUNT", "ZCOUNT", "ZADD"])


@pytest.mark.parametrize("algorithm", [name for name in RATES if name != "sliding_window"])
def test_check_is_one_command_and_two_calls_for_each_rule_of_another_algorithm(
    limiter: Limiter, redis_client: redis.Redis, algorithm: str
) -> None:
    wanted = hits(3, algorithm)
    limiter.check(wanted)

    sent, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sent == ["EVALSHA"]
    assert sorted(called) == ["GET"] * 3 + ["SET"] * 3 + ["TIME"]


def test_dropping_expired_units_takes_two_more_calls(limiter: Limiter, redis_client: redis.Redis) -> None:
    wanted = hits(1)
    limiter.check(wanted)
    redis_client.zadd(wanted[0].key, {b"x" * 16: 1})

    _, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sorted(called) == sorted(["TIME", "ZCOUNT", "ZADD", "ZCARD", "ZREMRANGEBYSCORE", "PEXPIRE"])


def test_each_rule_adds_fewer_than_150_bytes_to_a_command(limiter: Limiter, redis_client: redis.Redis) -> None:
    def bytes_of(wanted: Hits) -> int:
        before = redis_client.info("stats")["total_net_input_bytes"]
        for _ in range(100):
            limiter.check(wanted)
        return int(redis_client.info("stats")["total_net_input_bytes"] - before) // 100

    one, eleven = hits(1), hits(11)
    limiter.check(one)
    limiter.check(eleven)

    assert bytes_of(one) < 300
    assert (bytes_of(eleven) - bytes_of(one)) / 10 < 150


def test_consecutive_checks_share_one_connection(limiter: Limiter, redis_client: redis.Redis) -> None:
    limiter.check(hits(1))
    before = redis_client.info("stats")["total_connections_received"]

    for number in range(50):
        limiter.check(hits(3, subject=str(number)))

    assert redis_client.info("stats")["total_connections_received"] == before
