"""A check of several algorithms for several subjects is one command on the wire, and all or nothing for everyone."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import pytest
from flask import Flask

from engine.algorithms import workers
from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter
from support.asking import commands
from support.bench import bare, hits
from support.rates import RATES

if TYPE_CHECKING:
    import redis

    from support.servers import Server

PROCESSES = 3
THREADS = 4
TIMES = 50


@pytest.fixture
def watcher(server: Server) -> redis.Redis:
    """A client of its own: what it needs to watch is not among what it sees."""
    return server.client()


def test_a_check_of_every_algorithm_for_a_subject_each_is_one_command(
    watcher: redis.Redis, redis_client: redis.Redis
) -> None:
    limiter = bare(redis_client)
    limiter.check(workers.mixed)

    with commands(watcher) as seen:
        limiter.check(workers.mixed)

    assert {hit.rule.algorithm for hit in workers.mixed} == set(RATES)
    assert seen == ["EVALSHA"]


def test_a_refund_of_every_algorithm_is_one_command(watcher: redis.Redis, redis_client: redis.Redis) -> None:
    limiter = bare(redis_client)
    limiter.refund(limiter.check(workers.mixed))
    decision = limiter.check(workers.mixed)

    with commands(watcher) as seen:
        limiter.refund(decision)

    assert seen == ["EVALSHA"]


def test_a_request_of_a_view_with_mixed_algorithms_and_subjects_is_one_command(
    watcher: redis.Redis, redis_client: redis.Redis
) -> None:
    app = Flask("shop")
    MultiLimit(app, storage=redis_client, user_loader=lambda: "ada")

    @app.get("/")
    @rate_limiter(type=LimitType.USER, rules=[Rule(1, 5, algorithm="token_bucket", burst=20)])
    @rate_limiter(type=LimitType.IP, rules=[Rule(60, 100)])
    @rate_limiter(rules=[Rule(60, 10_000, algorithm="sliding_window_counter")])
    def view() -> str:
        return "ok"

    client = app.test_client()
    assert client.get("/").status_code == 200

    with commands(watcher) as seen:
        client.get("/")

    assert seen == ["EVALSHA"]
    assert len(redis_client.keys()) == 3


def test_no_key_is_touched_that_was_not_declared(redis_client: redis.Redis) -> None:
    limiter = bare(redis_client)
    limiter.check(workers.mixed)
    limiter.refund(limiter.check(workers.mixed))

    declared = {hit.key.encode() for hit in workers.mixed}
    assert set(redis_client.keys()) == declared
    assert all(redis_client.pttl(key) > 0 for key in declared)


@pytest.mark.slow
def test_under_processes_of_several_threads_a_mixed_check_is_all_or_nothing(
    server: Server, redis_client: redis.Redis
) -> None:
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        each = [pool.submit(workers.check_mixed, server.url, THREADS, TIMES) for _ in range(PROCESSES)]
        allowed = [answer for future in each for answer in future.result()]

    assert len(allowed) == PROCESSES * THREADS * TIMES >= 2 * workers.TIGHTEST
    assert sum(allowed) == workers.TIGHTEST
    left = {status.hit.rule.algorithm: status.remaining for status in bare(redis_client).peek(workers.mixed).statuses}
    assert left == {rule.algorithm: rule.count - workers.TIGHTEST for rule in workers.LEVELS}


def test_on_one_connection_each_after_the_other_the_tightest_of_all_decides(redis_client: redis.Redis) -> None:
    limiter = bare(redis_client)
    others = hits("5/minute")

    allowed = [limiter.check(workers.mixed + others).allowed for _ in range(7)]

    assert allowed == [True] * 5 + [False] * 2
    assert [status.remaining for status in limiter.peek(workers.mixed).statuses] == [
        rule.count - 5 for rule in workers.LEVELS
    ]
