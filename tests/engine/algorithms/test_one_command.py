"""A check of several algorithms for several subjects is all or nothing, also under processes with many threads."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import pytest

from engine.algorithms import workers
from support.bench import bare

if TYPE_CHECKING:
    import redis

    from support.servers import Server

PROCESSES = 3
THREADS = 4
TIMES = 50


@pytest.mark.slow
def test_check_of_all_algorithms_is_all_or_nothing_under_concurrent_processes(
    server: Server, redis_client: redis.Redis
) -> None:
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        each = [pool.submit(workers.check_mixed, server.url, THREADS, TIMES) for _ in range(PROCESSES)]
        allowed = [answer for future in each for answer in future.result()]

    assert len(allowed) == PROCESSES * THREADS * TIMES >= 2 * workers.TIGHTEST
    assert sum(allowed) == workers.TIGHTEST
    left = {status.hit.rule.algorithm: status.remaining for status in bare(redis_client).peek(workers.mixed).statuses}
    assert left == {rule.algorithm: rule.count - workers.TIGHTEST for rule in workers.LEVELS}
