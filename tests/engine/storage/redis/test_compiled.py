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
    monkeypatch.setattr(shapes, "MOST_COMPILED", 3)
    monkeypatch.setattr(shapes, "MOST_COUNTED", 5)
    learning._worth = 0
    limiter = Limiter(RedisStorage(client))

    for count in range(10, 30):
        for _ in range(2):
            assert limiter.check(hits(Rule(60, count), subject=str(count))).allowed

    assert learning.compiled == 3
    assert len(learning._counted) <= 5
    assert int(client.info("memory")["number_of_cached_scripts"]) == 4, "three and the generic one"


class Years:
    """Seconds that only pass when a test lets them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def compile_as(learning: Shapes, count: int) -> bool:
    """Check a shape often enough. Return whether it is compiled."""
    learned = learning.of(hits(Rule(60, count)))
    assert learned is not None
    return learning.note(learned)


def test_a_shape_that_nobody_uses_any_more_gives_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_COMPILED", 3)
    clock = Years()
    learning = Shapes(worth=0, clock=clock)
    assert [compile_as(learning, count) for count in (1, 2, 3, 4)] == [True, True, True, False]

    clock.now = shapes.UNUSED - 1
    assert not compile_as(learning, 4)
    assert compile_as(learning, 1), "it has its place, and uses it"
    clock.now = shapes.UNUSED
    assert [compile_as(learning, count) for count in (4, 5, 6)] == [True, True, False]

    assert learning.compiled == 3
    assert learning.of(hits(Rule(60, 1))) in learning._compiled.values(), "what is used stays"


def test_limits_that_change_for_long_are_compiled_until_the_scripts_of_a_lifetime_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shapes, "MOST_COMPILED", 3)
    monkeypatch.setattr(shapes, "MOST_EVER", 20)
    clock = Years()
    learning = Shapes(worth=0, clock=clock)
    found = []

    for count in range(1, 31):
        clock.now += shapes.UNUSED
        found.append(compile_as(learning, count))

    assert found == [True] * 20 + [False] * 10
    assert learning.compiled == 3
    assert compile_as(learning, 1), "its script is one that a server may have already"


def test_whoever_looks_for_a_place_in_vain_does_not_look_again_until_one_may_be_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shapes, "MOST_COMPILED", 2)
    clock = Years()
    learning = Shapes(worth=0, clock=clock)
    compile_as(learning, 1)
    clock.now = 5
    compile_as(learning, 2)

    compile_as(learning, 3)

    assert learning._full_until == shapes.UNUSED


@pytest.mark.usefixtures("client")
def test_hits_of_a_shape_that_has_lost_its_place_go_on(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_COMPILED", 1)
    clock = Years()
    learning = Shapes(worth=1, clock=clock)
    monkeypatch.setattr(storage, "SHAPES", learning)
    limiter, plan, other = Limiter(RedisStorage(client)), hits("9/minute"), hits("8/minute", subject="bo")
    first = [limiter.check(plan).remaining for _ in range(2)]
    clock.now = shapes.UNUSED
    assert [limiter.check(other).remaining for _ in range(2)] == [7, 6]
    assert list(learning._compiled) == [shape_of(other)]

    goes_on = [limiter.check(plan).remaining]
    client.script_flush()
    goes_on += [limiter.check(plan).remaining for _ in range(3)]

    assert first + goes_on == [8, 7, 6, 5, 4, 3]
    assert client.script_exists(script_of(plan)) == [False], "who has forgotten it is not taught it again"


def test_shapes_that_are_met_once_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "MOST_COUNTED", 5)
    learning = Shapes(worth=inf)

    for count in range(10, 100):
        assert learning.of(hits(Rule(60, count))) is not None

    assert len(learning._counted) == 5


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
