"""Processes that run together repeatedly against one server, each with several threads."""

import multiprocessing
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from multiprocessing.synchronize import Barrier
from typing import Any

import redis

from history.broken import KINDS
from support.servers import Server
from support.waiting import PATIENCE

_barrier: Any = None


def set_barrier(barrier: Barrier) -> None:
    """Called once in each process, with the barrier at which all wait until all are ready."""
    global _barrier  # noqa: PLW0603 - the way in which a pool hands something to its processes
    _barrier = barrier


def by_threads(seed: int, threads: int, ask: Callable[[random.Random, int], Any]) -> list[Any]:
    """In a process, when all are ready: what ``ask`` returns in each thread, given its dice and its number."""
    _barrier.wait()
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda n: ask(random.Random(f"{seed} {n}"), n), range(threads)))


class Processes:
    """So many processes as ``number``, with one server."""

    def __init__(self, number: int, pool: ProcessPoolExecutor, server: Server) -> None:
        self._number, self._pool, self._server = number, pool, server
        self.client: redis.Redis = server.client()

    def start(
        self, run: Callable[..., list[Any]], seed: int, *arguments: Any, scripts: str = "both"
    ) -> list[Future[list[Any]]]:
        """``run`` in each process, on an empty server."""
        self.client.flushall()
        kinds = cycle(KINDS[scripts])
        return [
            self._pool.submit(run, self._server.url, 100 * seed + n, *arguments, are_compiled=next(kinds))
            for n in range(self._number)
        ]


def results_of(calls: list[Future[list[Any]]]) -> list[Any]:
    """What all processes have recorded."""
    return [each for call in calls for each in call.result(PATIENCE)]


@contextmanager
def processes_on(server: Server, number: int) -> Iterator[Processes]:
    context: Any = multiprocessing.get_context("spawn")
    barrier = context.Barrier(number, timeout=PATIENCE)
    with ProcessPoolExecutor(number, context, set_barrier, (barrier,)) as pool:
        processes = Processes(number, pool, server)
        yield processes
        processes.client.close()
