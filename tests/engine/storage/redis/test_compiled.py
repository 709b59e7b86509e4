"""Compiled scripts: when a process makes one, what it is like, and what happens when a server forgets it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Limiter, RedisStorage, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.reply import completed, frame_of
from flask_multilimit.engine.storage.redis import shapes, storage
from flask_multilimit.engine.storage.redis.compiled import MOST_HITS, compiled, shape_of
from flask_multilimit.engine.storage.redis.inline import CannotBeWrittenOut, Function
from flask_multilimit.engine.storage.redis.shapes import Shapes
from support.bench import hits, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from flask_multilimit.engine import Hit


@pytest.fixture
def client(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    redis_client.script_flush()
    yield redis_client
    redis_client.script_flush()


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Shapes:
    """A process that has compiled nothing yet."""
    fresh = Shapes()
    monkeypatch.setattr(storage, "SHAPES", fresh)
    return fresh


def script_of(wanted: tuple[Hit, ...]) -> str:
    shape = shape_of(wanted)
    assert shape is not None
    return compiled(shape).sha


def evalshas(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_shape_that_is_checked_often_is_compiled(client: redis.Redis, learning: Shapes) -> None:
    limiter, plan = Limiter(RedisStorage(client)), hits(["1000/minute", "5000/hour"])

    for _ in range(shapes.WORTH):
        limiter.check(plan)
    assert client.script_exists(script_of(plan)) == [False]
    remaining = [limiter.check(plan).remaining for _ in range(3)]

    assert client.script_exists(script_of(plan)) == [True]
    assert remaining == [1000 - shapes.WORTH - n for n in (1, 2, 3)]
    assert learning.compiled == 1
    client.config_resetstat()
    limiter.check(plan)
    limiter.check(hits(["1000/minute", "5000/hour"], subject="bo"))
    assert evalshas(client) == 2, "another subject of the same shape has learned it, too"
    assert client.info("commandstats")["cmdstat_evalsha"]["failed_calls"] == 0


@pytest.mark.usefixtures("learning")
def test_a_compiled_check_carries_keys_and_id_and_nothing_else(client: redis.Redis) -> None:
    limiter, plan = Limiter(RedisStorage(client)), hits("1000/minute")
    for _ in range(shapes.WORTH + 1):
        limiter.check(plan)

    start = plan.memory[storage._prepared].start  # type: ignore[attr-defined]

    assert start.startswith(b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + script_of(plan).encode() + b"\r\n$1\r\n1\r\n")
    assert start.endswith(plan[0].key.encode() + b"\r\n$16\r\n")


@pytest.mark.usefixtures("learning")
def test_a_server_that_forgets_a_compiled_script_is_sent_it_again_and_charges_once(client: redis.Redis) -> None:
    limiter, plan = Limiter(RedisStorage(client)), hits("1000/minute")
    for _ in range(shapes.WORTH + 1):
        limiter.check(plan)
    client.script_flush()

    decision = limiter.check(plan)

    assert decision.remaining == 1000 - shapes.WORTH - 2
    assert client.script_exists(script_of(plan)) == [True]
    assert limiter.peek(plan).remaining == decision.remaining


def test_no_more_shapes_are_compiled_than_the_bound(
    client: redis.Redis, learning: Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "WORTH", 0)
    monkeypatch.setattr(shapes, "MOST_COMPILED", 3)
    monkeypatch.setattr(shapes, "MOST_COUNTED", 5)
    learning._worth = 0
    limiter = Limiter(RedisStorage(client))

    for count in range(10, 30):
        for _ in range(2):
            assert limiter.check(hits(Rule(60, count), subject=str(count))).allowed

    assert learning.compiled == 3
    assert len(learning._learned) <= 5
    assert int(client.info("memory")["number_of_cached_scripts"]) == 4, "three and the generic one"


def test_shapes_that_are_met_once_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_COUNTED", 5)
    learning = Shapes(worth=inf)

    for count in range(10, 100):
        assert learning.of(hits(Rule(60, count))) is not None

    assert len(learning._learned) == 5


def test_what_has_no_compiled_script() -> None:
    assert shape_of(hits("5/minute", cost=0)) is None
    assert shape_of(hits([Rule(n, 5) for n in range(1, MOST_HITS + 2)])) is None
    assert shape_of(hits([Rule(n, 5) for n in range(1, MOST_HITS + 1)])) is not None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_as_many_hits_as_may_be_compiled_are_no_more_than_lua_takes(client: redis.Redis, algorithm: str) -> None:
    plan = hits([rule(algorithm, 10 + n, 50) for n in range(MOST_HITS)])
    shape = shape_of(plan)
    assert shape is not None

    script = compiled(shape)
    answer = client.eval(script.text, len(plan), *[hit.key for hit in plan], bytes(16))

    reply = completed(answer, len(plan), script.frame)
    assert reply is not None
    assert reply[1:6] == [1, 0, 49, 0, reply[5]]


def test_a_plan_of_sliding_windows_runs_no_function_of_its_algorithm() -> None:
    shape = shape_of(hits_for(["5/minute", "9/hour"], scope="api"))
    assert shape is not None
    common = compiled(shape).text.partition("local id =")[2].partition("return {now")[0]

    assert "function" not in common
    assert "hit" not in common


def test_a_reply_leaves_out_what_the_shape_determines() -> None:
    windows, queue = hits(["5/minute", "9/hour"]), hits([Rule(60, 5), rule("leaky_bucket", 5, 60)])

    fixed, varying = (compiled(shape) for plan in (windows, queue) if (shape := shape_of(plan)) is not None)

    assert "return {now,r1-1,r2-1}" in fixed.text
    assert completed([7, 4, 8], 2, fixed.frame) == [7, 1, 0, 4, 0, 60_000_000, 8, 0, 3_600_000_000]
    assert "return {now,1,delay,r1-1,0,e1,r2-1,0,e2}" in varying.text
    assert varying.frame is None


@pytest.mark.parametrize("answer", [None, b"OK", 3, [], [1], [1, b"4"], [1, None], [1, 2, 3], [1, 1, 0, 4, 0, b"6"]])
def test_an_answer_that_is_no_reply_is_told_from_one(answer: object) -> None:
    assert completed(answer, 1, frame_of([60])) is None
    assert completed([1, 1, 0, 4, 0, 6], 1, frame_of([60])) == [1, 1, 0, 4, 0, 6], "as for a refusal"
    assert completed([1, 4], 1, None) is None, "from a script that leaves nothing out"


LUA = """
local MANY = 128 -- a number
local function helper(hit) return hit.count end
algorithms.plain = {
  evaluate = function(hit, now)
    local used = call('GET', hit.key) + MANY -- of what there is
    if used > hit.count then
      return used, 0
    elseif now > 3 then
      return 'a return', #hit.key
    end
    return used - 1, other(hit)
  end,
  loops = function(hit) for i = 1, 3 do return i end end,
  helped = function(hit) return helper(hit) end,
  writes = function(hit) hit.count = 3 end,
  fixed = function(hit, now)
    if now > 3 then
      return 0, hit.count, 5, math.max(1, 2), 3
    end
    return now, hit.count, 6, math.max(1, 2), 3
  end,
}
"""
FIELDS = {"key": "k1", "count": "7"}


def test_a_function_is_written_out_with_numbers_for_names_and_assignments_for_returns() -> None:
    function = Function.found_in(LUA.replace("other", "tostring"), "evaluate")

    text = function.written_out(FIELDS, ["now"], ["a", "b"])

    assert text == (
        "repeat local used = call ( 'GET' , k1 ) + 128 if used > 7 then a,b = used , 0 break elseif now > 3 then "
        "a,b = 'a return' , # k1 break end a,b = used - 1 , tostring ( {key=k1,count=7} ) break until true\n"
    )


@pytest.mark.parametrize("name", ["evaluate", "loops", "helped", "writes", "missing"])
def test_what_only_a_call_can_give_is_not_written_out(name: str) -> None:
    with pytest.raises(CannotBeWrittenOut):
        Function.found_in(LUA, name).written_out(FIELDS, ["now"], ["a", "b"])


def test_results_are_fixed_that_are_the_same_number_at_every_return() -> None:
    assert Function.found_in(LUA, "fixed").fixed_results(FIELDS) == {1: 7, 4: 3}
