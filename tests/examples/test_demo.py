"""The demo served by gunicorn: a user may call twice a second; all together 50 times in 10 s and 100 times in 60 s.

The exact numbers hold only within one window, and a test cannot stop a real clock. So each case measures its own
duration, which includes that of the server, and tries again when it was too long.
"""

import re
import runpy
import time
from collections import Counter
from collections.abc import Iterator
from typing import cast

import pytest
import redis
from flask import Flask

from flask_multilimit.testing import exhaust, freeze
from support.folders import EXAMPLES
from support.processes import Program, Reply, gunicorn
from support.servers import Server

WORKERS = 4
TRIES = 5
TEN_SECONDS = "rate_limit:{index}:default::sliding_window:10000"
SIXTY_SECONDS = "rate_limit:{index}:default::sliding_window:60000"


@pytest.fixture(scope="module")
def shared(shared_server: Server) -> Iterator[Program]:
    """The demo in four processes that share a server."""
    environment = {
        "FLASK_MULTILIMIT_STORAGE_URI": shared_server.url,
        # The test is about counts; a busy machine may answer late.
        "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10",
        # Tests delete keys on the server, which a deny cache would not see.
        "FLASK_MULTILIMIT_DENY_CACHE": "0",
    }
    with gunicorn("demo:app", workers=WORKERS, threads=2, environment=environment) as program:
        wait_for_workers(program)
        yield program


def wait_for_workers(program: Program) -> None:
    deadline = time.monotonic() + 20
    while len(served_by(program.log, 404)) < WORKERS:
        assert time.monotonic() < deadline, program.log
        program.get_all(["/nowhere"] * 20)


def served_by(log: str, status: int) -> set[str]:
    """The processes that have answered with ``status``."""
    return set(re.findall(rf"served {status} by (\S+)", log))


@pytest.fixture
def demo(shared: Program, server: Server) -> Program:
    """The same program with unused quotas."""
    del server  # which is empty
    return shared


def paths_of_different_users(many: int) -> list[str]:
    return [f"/?user=user{number}" for number in range(many)]


def statuses(replies: list[Reply]) -> dict[int, int]:
    return dict(Counter(reply.status for reply in replies))


def test_processes_together_admit_exactly_fifty_in_ten_seconds(demo: Program, redis_client: redis.Redis) -> None:
    for _ in range(TRIES):
        redis_client.flushall()
        before = len(demo.log)
        start = time.monotonic()
        replies = demo.get_all(paths_of_different_users(200))
        if time.monotonic() - start < 10 and len(served_by(demo.log[before:], 200)) > 1:
            break
    else:
        pytest.fail("this machine takes more than 10 s for 200 requests, or one process serves them all")

    assert statuses(replies) == {200: 50, 429: 150}
    assert [redis_client.zcard(key) for key in (TEN_SECONDS, SIXTY_SECONDS)] == [50, 50]
    assert len(redis_client.keys("rate_limit:{index}:user:*")) == 50
    refused = next(reply for reply in replies if reply.status == 429)
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert "We are busy, please try again later." in refused.text
    assert 1 <= int(refused.headers["Retry-After"]) <= 10


def test_memory_storage_in_several_processes_is_logged_once() -> None:
    with gunicorn("demo:app", workers=2, threads=1) as demo:
        demo.get()
        log = demo.log

    assert log.count("the server may run several worker processes, and with ") == 1
    assert "MULTILIMIT_STORAGE_URI=memory://" in log
    assert "redis://localhost:6379/0" in log


# Tests as the author of the demo would write them


def app_of(name: str) -> Flask:
    return cast("Flask", runpy.run_path(str(EXAMPLES / name))["app"])


def test_user_of_the_demo_may_call_twice_a_second() -> None:
    app = app_of("demo.py")
    ann = {"X-User": "ann"}

    with freeze(app) as clock:
        client = app.test_client()
        assert [client.get("/", headers=ann).status_code for _ in range(3)] == [200, 200, 429]
        assert client.get("/", headers={"X-User": "bob"}).status_code == 200
        clock.advance(1)
        assert client.get("/", headers=ann).status_code == 200


def test_users_of_the_demo_share_fifty_calls_in_ten_seconds() -> None:
    app = app_of("demo.py")

    with freeze(app) as clock:
        refusal = exhaust(app, "index", "everyone")
        refused = app.test_client().get("/", headers={"X-User": "bob"})
        assert refused.status_code == 429
        assert "We are busy" in refused.text
        clock.advance(refusal.retry_after)
        assert app.test_client().get("/", headers={"X-User": "bob"}).status_code == 200
