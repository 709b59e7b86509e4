"""Compiled scripts: which plans have one, when a process makes it, and what happens when a server forgets it."""

from collections.abc import Iterator
from math import inf

import pytest
import redis

from flask_multilimit.engine import Ban, Hit, Limiter, RedisStorage, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.hits import Hits
from flask_multilimit.engine.reply import completed, frame_of
from flask_multilimit.engine.storage.redis import compiled as compiling
from flask_multilimit.engine.storage.redis.compiled import (
    MOST_HITS,
    Shapes,
    compiled,
    shape_of,
)
from flask_multilimit.engine.storage.redis.scripts import Script
from flask_multilimit.engine.storage.redis.wire import command_of
from support.bench import hits, rule


@pytest.fixture
def client(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    redis_client.script_flush()
    yield redis_client
    redis_client.script_flush()


def script_of(wanted: tuple[Hit, ...]) -> Script:
    shape = shape_of(wanted)
    assert shape is not None
    return compiled(shape)


def is_known(client: redis.Redis, wanted: tuple[Hit, ...]) -> bool:
    """Whether the server has the compiled script."""
    return client.script_exists(script_of(wanted).sha) == [True]


# When a process compiles


def test_a_shape_that_is_checked_often_is_compiled(client: redis.Redis) -> None:
    limiter, plan = Limiter(RedisStorage(client)), hits(["1000/minute", "5000/hour"])

    for _ in range(compiling.COMPILE_AFTER):
        limiter.check(plan)
    assert not is_known(client, plan)
    remaining = [limiter.check(plan).remaining for _ in range(3)]

    assert is_known(client, plan)
    assert remaining == [1000 - compiling.COMPILE_AFTER - n for n in (1, 2, 3)]
    client.config_resetstat()
    limiter.check(plan)
    limiter.check(hits(["1000/minute", "5000/hour"], subject="bo"))
    calls = client.info("commandstats")["cmdstat_evalsha"]
    assert calls["calls"] == 2, "another subject of the same shape has known it, too"
    assert calls["failed_calls"] == 0


def test_no_more_shapes_are_compiled_than_the_bound(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_COMPILED", 3)
    limiter = Limiter(RedisStorage(client))

    for count in range(10, 20):
        for _ in range(compiling.COMPILE_AFTER + 1):
            assert limiter.check(hits(Rule(60, 10 * count), subject=str(count))).allowed

    assert int(client.info("memory")["number_of_cached_scripts"]) == 4, "three and the generic one"


def test_number_of_shapes_that_are_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_COUNTED", 5)
    learning = Shapes(compile_after=inf)

    known = [learning.of(hits(Rule(60, count))) for count in range(10, 100)]
    again = [learning.of(hits(Rule(60, count))) for count in range(99, 9, -1)]

    assert [one is other for one, other in zip(reversed(known), again, strict=True)] == [True] * 5 + [False] * 85


def test_compiled_script_is_sent_again_after_the_server_lost_it_and_charges_once(client: redis.Redis) -> None:
    limiter, plan = Limiter(RedisStorage(client)), hits("1000/minute")
    for _ in range(compiling.COMPILE_AFTER + 1):
        limiter.check(plan)
    client.script_flush()

    decision = limiter.check(plan)

    assert decision.remaining == 1000 - compiling.COMPILE_AFTER - 2
    assert is_known(client, plan)
    assert limiter.peek(plan).remaining == decision.remaining


# Which plans have a compiled script


@pytest.mark.parametrize(
    ("plan", "remaining"),
    [
        (hits("5/minute", cost=0), [5, 5]),
        (hits_for("5/minute", scope="s", ban=Ban(), cost=0), [5, 5]),
        (hits([Rule(n, 5) for n in range(1, MOST_HITS + 2)]), [4, 3]),
    ],
    ids=["charges nothing", "charges nothing, with a ban", "too long"],
)
def test_a_plan_that_charges_nothing_or_is_too_long_is_checked_by_the_generic_script(
    client: redis.Redis, plan: Hits, remaining: list[int]
) -> None:
    limiter = Limiter(RedisStorage(client))
    assert [limiter.check(plan).remaining for _ in remaining] == remaining
    assert shape_of(plan) is None
    assert shape_of(hits([Rule(n, 5) for n in range(1, MOST_HITS + 1)])) is not None


@pytest.mark.parametrize("registered_as", ["own", "fixed_window"])
def test_an_algorithm_of_a_user_is_checked_by_the_generic_script(
    registered_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own:
        def __getattr__(self, name: str) -> object:
            return getattr(ALGORITHMS["sliding_window"], name)

    monkeypatch.setitem(ALGORITHMS, registered_as, Own())
    own = Rule(60, 5, algorithm=registered_as)

    assert Shapes().of(hits(own)) is None
    assert Shapes().of(hits([Rule(60, 5), own])) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("with_ban", [False, True], ids=["without a ban", "with a ban"])
def test_longest_compiled_script_runs_within_the_local_names_that_lua_allows(
    client: redis.Redis, algorithm: str, *, with_ban: bool
) -> None:
    rules = [rule(algorithm, 10 + n, 50) for n in range(MOST_HITS - with_ban)]
    plan = hits_for(rules, scope="s", ban=Ban() if with_ban else None)

    script = script_of(plan)
    answer = client.eval(script.text, len(plan), *[hit.key for hit in plan], bytes(16))

    reply = completed(answer, len(plan), script.frame)
    assert reply is not None
    assert reply[1:6] == [1, 0, 49, 0, reply[5]]


# The compiled script


def test_compiled_check_sends_only_its_keys_and_its_id(client: redis.Redis) -> None:
    limiter, plan = Limiter(RedisStorage(client)), hits("1000/minute")
    for _ in range(compiling.COMPILE_AFTER + 1):
        limiter.check(plan)

    before, between = received_bytes(client), received_bytes(client)
    limiter.check(plan)
    after = received_bytes(client)

    command = command_of(b"EVALSHA", script_of(plan).sha.encode(), b"1", plan[0].key.encode(), bytes(16))
    assert (after - between) - (between - before) == len(command)


def received_bytes(client: redis.Redis) -> int:
    return int(client.info("stats")["total_net_input_bytes"])


def test_compiled_sliding_windows_call_no_function_of_the_algorithm() -> None:
    script = script_of(hits_for(["5/minute", "9/hour"], scope="api"))
    common = script.text.partition("local id =")[2].partition("return {now")[0]
    assert "function" not in common
    assert "hit" not in common


def test_compiled_reply_leaves_out_values_that_the_shape_determines() -> None:
    fixed = script_of(hits(["5/minute", "9/hour"]))
    varying = script_of(hits([Rule(60, 5), rule("leaky_bucket", 5, 60)]))

    assert "return {now,r1-1,r2-1}" in fixed.text
    assert completed([7, 4, 8], 2, fixed.frame) == [7, 1, 0, 4, 0, 60_000_000, 8, 0, 3_600_000_000]
    assert "return {now,1,delay,r1-1,0,e1,r2-1,0,e2}" in varying.text
    assert varying.frame is None


@pytest.mark.parametrize(
    "answer", [None, b"OK", 3, [], [1], [1, b"4"], [1, None], [1, 2, 3], [1, 1, 0, 4, 0, b"6"]], ids=str
)
def test_malformed_answer_of_a_compiled_script_is_recognised(answer: object) -> None:
    assert completed(answer, 1, frame_of([60])) is None
    assert completed([1, 1, 0, 4, 0, 6], 1, frame_of([60])) == [1, 1, 0, 4, 0, 6], "a whole reply, as for a refusal"
    assert completed([1, 4], 1, None) is None, "from a script that leaves nothing out"
