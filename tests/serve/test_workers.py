"""Counts are exact with forked workers, threads, greenlets, async views, and child processes."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from flask_multilimit.engine import Limiter, storage_from_uri
from support.bench import hits
from support.forks import FORKS, forked
from support.processes import Program
from support.sentinel import SERVICE, SentinelServer
from support.servers import Server
from support.waiting import PATIENCE

pytestmark = pytest.mark.slow

LIMIT = 50
"""As in counting.py, which is not imported because that would create its app here."""
USERS = 4
THREADS = 16
CHILDREN = 3
CHECKS = 200
WORKERS = {
    "preload": ("--preload", "--workers", "3", "--worker-class", "gthread", "--threads", "4"),
    "gevent": ("--workers", "2", "--worker-class", "gevent"),
    "gevent, preload": ("--preload", "--workers", "2", "--worker-class", "gevent"),
}


@pytest.mark.parametrize(
    ("any_uri", "workers", "path"),
    [
        ("server", "preload", "/sync"),
        ("server", "preload", "/async"),
        ("server", "gevent", "/sync"),
        ("server", "gevent, preload", "/sync"),
        ("cluster", "preload", "/sync"),
        ("cluster", "gevent", "/sync"),
        ("cluster", "gevent, preload", "/sync"),
    ],
    indirect=["any_uri"],
)
def test_gunicorn_workers_admit_exactly_the_count(any_uri: str, workers: str, path: str) -> None:
    environment = {"FLASK_MULTILIMIT_STORAGE_URI": any_uri, "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10"}
    arguments = ("--chdir", str(Path(__file__).parent), "--bind", "127.0.0.1:0", *WORKERS[workers])
    with Program("gunicorn", *arguments, "counting:app", environment=environment) as program:
        pids = set[str | None]()
        for number in range(100):  # until more than one of the workers has begun
            users = [f"user-{number}-{n}" for n in range(USERS)]
            replies = program.get_all([f"{path}?who={user}" for user in users * (LIMIT + 10)])
            for n in range(USERS):  # a reply of another request would be missing there, and doubled here
                own = replies[n::USERS]
                left = [_left(reply.headers["RateLimit"]) for reply in own if reply.status == 200]
                assert sorted(left) == list(range(LIMIT))
                assert [reply.status for reply in own].count(429) == 10
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
    """A limiter over each kind of connection."""
    assert redis_client.dbsize() == 0
    with SentinelServer(server.binary, server.port, quorum=2) as sentinel:
        make: dict[str, Callable[[], object]] = {
            "unix": lambda: storage_from_uri(server.url, timeout=30),
            "tcp": lambda: storage_from_uri(server.tcp_url, timeout=30),
            "sentinel": lambda: storage_from_uri(f"redis+sentinel://127.0.0.1:{sentinel.port}/{SERVICE}", timeout=30),
            "client": lambda: server.client(protocol=3, socket_timeout=30),
        }
        with closing(Limiter(make[request.param]())) as limiter:
            yield limiter


def test_forked_processes_admit_exactly_the_count(limiter: Limiter) -> None:
    total = (CHILDREN + 1) * CHECKS
    limiter.check(hits(scope="before-the-fork"))
    limiter.check_many([hits(scope="before-the-fork")])
    all_are_there = FORKS.Barrier(CHILDREN + 1, timeout=PATIENCE)

    def ask() -> list[int]:
        all_are_there.wait()
        return _ask(limiter, f"process-{os.getpid()}", total)

    children = [forked(ask) for _ in range(CHILDREN)]
    left = ask()

    assert sorted(left + [each for child in children for each in child()]) == list(range(total))


def _ask(limiter: Limiter, who: str, count: int) -> list[int]:
    """What is left of the shared limit after each check; the limit of ``who`` must have one unit less each time."""
    plan = (*hits("1000/hour", scope="own", subject=who), *hits(f"{count}/hour"))
    decisions = [
        *(limiter.check(plan) for _ in range(CHECKS // 2)),
        *(limiter.check_many([plan])[0] for _ in range(CHECKS // 2)),
    ]
    own = [decision.statuses[0].remaining for decision in decisions if decision.allowed]
    assert own == list(range(999, 999 - len(own), -1))
    return [decision.statuses[1].remaining for decision in decisions if decision.allowed]
