"""Counts are exact whatever serves: forked workers, threads, greenlets, async views, children of a process."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import hits
from e2e.processes import Program
from flask_multilimit.engine import Limiter, storage_from_uri
from sentinel import SERVICE, SentinelServer, port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from servers import Server

LIMIT = 50
"""As in counting.py, which is not imported: that would make its app here."""
THREADS = 16
CHILDREN = 3
CHECKS = 40
WORKERS = {
    "preload": ("--preload", "--workers", "3", "--worker-class", "gthread", "--threads", "4"),
    "gevent": ("--workers", "2", "--worker-class", "gevent"),
    "gevent, preload": ("--preload", "--workers", "2", "--worker-class", "gevent"),
}


@pytest.mark.parametrize(
    ("workers", "path"),
    [("preload", "/sync"), ("preload", "/async"), ("gevent", "/sync"), ("gevent, preload", "/sync")],
)
@pytest.mark.usefixtures("redis_client")
def test_workers_admit_the_count_and_no_reply_is_anothers(server: Server, workers: str, path: str) -> None:
    environment = {"FLASK_MULTILIMIT_STORAGE_URI": server.url, "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10"}
    arguments = ("--chdir", str(Path(__file__).parent), "--bind", "127.0.0.1:0", *WORKERS[workers])
    with Program("gunicorn", *arguments, "counting:app", environment=environment) as program:
        pids = set[str | None]()
        for number in range(100):  # until more than one of the workers has begun
            replies = program.get_all([f"{path}?who=user-{number}"] * (LIMIT + 30))
            left = [_left(reply.headers["RateLimit"]) for reply in replies if reply.status == 200]
            assert sorted(left) == list(range(LIMIT))
            assert [reply.status for reply in replies].count(429) == 30
            pids |= {reply.headers["X-Pid"] for reply in replies}
            if len(pids) > 1:
                break
        assert len(pids) > 1
        assert not re.search("Traceback|Rate limits:", program.log)


def _left(field: str) -> int:
    found = re.search(r"r=(\d+)", field)
    assert found is not None
    return int(found[1])


@pytest.fixture(params=["unix", "tcp", "sentinel", "client"])
def limiter(request: pytest.FixtureRequest, server: Server, redis_client: redis.Redis) -> Iterator[Limiter]:
    """Over each kind of connection: a wire, or a client's own way."""
    assert redis_client.dbsize() == 0
    with SentinelServer(server.binary, port_of(server), quorum=2) as sentinel:
        make: dict[str, Callable[[], object]] = {
            "unix": lambda: storage_from_uri(server.url, timeout=30),
            "tcp": lambda: storage_from_uri(server.tcp_url, timeout=30),
            "sentinel": lambda: storage_from_uri(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", timeout=30),
            "client": lambda: server.client(protocol=3, socket_timeout=30),
        }
        with closing(Limiter(make[request.param]())) as limiter:
            yield limiter


def test_threads_admit_the_count_together(limiter: Limiter) -> None:
    plan = hits("200/hour")
    with ThreadPoolExecutor(THREADS) as threads:
        decisions = list(threads.map(lambda _: limiter.check(plan), range(THREADS * 20)))

    assert sorted(decision.remaining for decision in decisions if decision.allowed) == list(range(200))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_parent_and_children_share_no_connection(limiter: Limiter) -> None:
    total = (CHILDREN + 1) * CHECKS + 2
    plan = hits(f"{total}/hour")
    left = [limiter.check(plan).remaining, *[decision.remaining for decision in limiter.check_many([plan])]]
    read, write = os.pipe()
    children = [_fork(limiter, total, write) for _ in range(CHILDREN)]
    os.close(write)
    left += _ask(limiter, total)
    with os.fdopen(read) as pipe:
        left += [int(line) for line in pipe]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    assert statuses == [0] * CHILDREN
    assert sorted(left) == list(range(total))


def _fork(limiter: Limiter, total: int, write: int) -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os.write(write, "".join(f"{left}\n" for left in _ask(limiter, total)).encode())
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _ask(limiter: Limiter, total: int) -> list[int]:
    plan = hits(f"{total}/hour")
    single = [limiter.check(plan).remaining for _ in range(CHECKS // 2)]
    return single + [limiter.check_many([plan])[0].remaining for _ in range(CHECKS // 2)]
