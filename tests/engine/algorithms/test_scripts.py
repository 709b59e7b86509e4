"""Only the Lua of the algorithms a plan uses is sent to the server."""

from collections.abc import Iterator
from itertools import chain, combinations

import pytest
import redis

from flask_multilimit.engine import Hit, Rule
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.storage.redis import scripts
from support.bench import bare, hits, rule

SUBSETS = [
    frozenset(names)
    for names in chain.from_iterable(combinations(ALGORITHMS, many) for many in range(1, len(ALGORITHMS) + 1))
]


def plan_of(names: frozenset[str]) -> tuple[Hit, ...]:
    return tuple(hit for name in sorted(names) for hit in hits(rule(name, count=1000)))


def cached_scripts(client: redis.Redis) -> int:
    return int(client.info("memory")["number_of_cached_scripts"])


@pytest.fixture
def client(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    redis_client.script_flush()
    yield redis_client
    redis_client.script_flush()


@pytest.mark.parametrize("driver", ["check", "settle"])
def test_script_contains_only_the_algorithms_of_its_plan(driver: str) -> None:
    for names in SUBSETS:
        text = scripts.script(driver, names).text
        assert {name for name in ALGORITHMS if f"algorithms.{name} = " in text} == names


def test_shared_lua_is_in_a_script_once_and_only_where_it_is_needed() -> None:
    defines = {
        "numbers": "local function load_numbers(",
        "span": "local function span(",
        "rate": "local rate = {",
        "log": "local function others_of_log(",
    }
    users = {each: {name for name, algorithm in ALGORITHMS.items() if each in algorithm.INCLUDES} for each in defines}
    assert users["rate"] >= {"token_bucket", "leaky_bucket", "gcra"}

    for names in SUBSETS:
        text = scripts.script("check", names).text
        for include, line in defines.items():
            assert text.count(line) == (1 if names & users[include] else 0)


def test_server_gets_one_script_for_each_set_of_algorithms(client: redis.Redis) -> None:
    limiter = bare(client)
    for _ in range(2):
        for names in SUBSETS:
            assert limiter.check(plan_of(names)).allowed

    assert cached_scripts(client) == len(SUBSETS)


def test_plans_of_the_same_algorithms_share_one_script(client: redis.Redis) -> None:
    limiter = bare(client)
    rules = [Rule(time, count) for time in (1, 2, 3) for count in (10, 20)]
    gcra = [Rule(time, 9, algorithm="gcra", burst=burst) for time in (1, 2) for burst in (5, 9)]

    for window in rules:
        limiter.check(hits(window, subject=str(window)))
        for other in gcra:
            limiter.check(hits(window, cost=2) + hits(other, cost=3))
            limiter.check(hits(other) + hits(window) + hits("5/hour"))
            limiter.peek(hits(other) + hits(window))

    assert cached_scripts(client) == 2


def test_a_script_is_sent_once_and_then_called_by_its_digest(client: redis.Redis) -> None:
    limiter, names = bare(client), frozenset({"gcra", "sliding_window"})
    for _ in range(5):
        limiter.check(plan_of(names))

    assert client.script_exists(scripts.script("check", names).sha) == [True]
    assert client.info("commandstats")["cmdstat_evalsha"]["failed_calls"] >= 1
    client.config_resetstat()
    limiter.check(plan_of(names))
    stats = client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in stats
