"""What one decision asks of the server: commands, calls within the script, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import DenyCache, Limiter, Rule, hits_for
from flask_multilimit.engine.hits import Hits
from support.asking import commands
from support.rates import RATES

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

MANY = 10**6


def hits(number: int, algorithm: str = "sliding_window", subject: str = "203.0.113.7") -> Hits:
    rules = [Rule(60 + i, MANY, algorithm=algorithm) for i in range(number)]
    return hits_for(rules, scope="api.update", subject=subject, type="ip")


def calls_during(client: redis.Redis, action: Callable[[], object]) -> tuple[list[str], list[str]]:
    """The commands that clients sent meanwhile, and the calls that scripts made, by name."""
    called: list[str] = []
    with commands(client, called) as sent:
        action()
    return sent, called


@pytest.mark.parametrize("number", [1, 3, 10])
@pytest.mark.parametrize("algorithm", RATES)
def test_a_decision_is_one_command_whatever_the_number_of_rules(
    limiter: Limiter, redis_client: redis.Redis, algorithm: str, number: int
) -> None:
    wanted = hits(number, algorithm)
    limiter.check(wanted)

    sent, _ = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sent == ["EVALSHA"]


@pytest.mark.parametrize("number", [1, 3, 10])
def test_a_rule_of_a_sliding_window_is_three_calls_and_the_clock_is_read_once(
    limiter: Limiter, redis_client: redis.Redis, number: int
) -> None:
    wanted = hits(number)
    limiter.check(wanted)

    _, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sorted(called) == sorted(["TIME", *["ZCOUNT", "ZADD", "ZCARD"] * number])


def test_a_list_of_some_length_is_not_counted_unit_by_unit(limiter: Limiter, redis_client: redis.Redis) -> None:
    wanted = hits(1)
    for _ in range(25):
        limiter.check(wanted)

    _, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sorted(called) == sorted(["TIME", "ZCARD", "ZCOUNT", "ZCOUNT", "ZADD"])


@pytest.mark.parametrize("algorithm", [name for name in RATES if name != "sliding_window"])
def test_a_rule_of_any_other_algorithm_is_two_calls(
    limiter: Limiter, redis_client: redis.Redis, algorithm: str
) -> None:
    wanted = hits(3, algorithm)
    limiter.check(wanted)

    _, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sorted(called) == ["GET"] * 3 + ["SET"] * 3 + ["TIME"]


def test_dropping_what_has_expired_is_two_calls_more(limiter: Limiter, redis_client: redis.Redis) -> None:
    wanted = hits(1)
    limiter.check(wanted)
    redis_client.zadd(wanted[0].key, {b"x" * 16: 1})

    _, called = calls_during(redis_client, lambda: limiter.check(wanted))

    assert sorted(called) == sorted(["TIME", "ZCOUNT", "ZADD", "ZCARD", "ZREMRANGEBYSCORE", "PEXPIRE"])


def test_a_rule_is_few_bytes_on_the_wire(limiter: Limiter, redis_client: redis.Redis) -> None:
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


@pytest.mark.parametrize("number", [1, 3, 10])
def test_a_refusal_that_is_known_is_no_byte_on_the_wire(
    limiter: Limiter, redis_client: redis.Redis, number: int
) -> None:
    wanted = hits_for([Rule(60 + i, 1 + i) for i in range(number)], scope="api.update", subject="203.0.113.7")
    knowing = Limiter(DenyCache(limiter.storage, seconds=60))
    knowing.check(wanted)
    assert not knowing.check(wanted).allowed

    def bytes_during(action: Callable[[], object]) -> int:
        before = redis_client.info("stats")["total_net_input_bytes"]
        action()
        return int(redis_client.info("stats")["total_net_input_bytes"] - before)

    def refuse() -> None:
        assert not any(knowing.check(wanted).allowed for _ in range(100))

    assert bytes_during(refuse) == bytes_during(lambda: None)
    assert calls_during(redis_client, refuse) == ([], [])


def test_many_decisions_one_after_the_other_go_over_one_connection(limiter: Limiter, redis_client: redis.Redis) -> None:
    limiter.check(hits(1))
    before = redis_client.info("stats")["total_connections_received"]

    for number in range(50):
        limiter.check(hits(3, subject=str(number)))

    assert redis_client.info("stats")["total_connections_received"] == before
