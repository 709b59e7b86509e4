"""Leases on a real server: several processes and threads, and a Flask app."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from flask import Flask

from engine.storage.layers.leases import worker
from flask_multilimit import ConfigurationError, MultiLimit, Rule, rate_limiter
from support.asking import ask, commands, view
from support.bench import bare
from support.forks import FORKS
from support.servers import Server

pytestmark = pytest.mark.slow

PROCESSES = 3
TIMEOUT = 60


def answers_of_workers(server: Server, seconds: int, count: int) -> tuple[list[dict[str, Any]], int]:
    """What each process reports under a limit of ``count`` in ``seconds``, and how many checks reached the server."""
    with server.client() as client:
        client.flushall()
        client.config_resetstat()
        workers = [start(server.url, str(number), str(seconds), str(count)) for number in range(PROCESSES)]
        for process in workers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        answers = [json.loads(output) for output in finish(workers)]
        return answers, client.info("commandstats")["cmdstat_evalsha"]["calls"]


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, worker.__file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(workers: list[subprocess.Popen[str]]) -> Iterator[str]:
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in workers:
        yield process.communicate(timeout=TIMEOUT)[0]
        assert process.returncode == 0


def test_processes_on_a_server_never_admit_more_than_the_count_in_any_window(server: Server) -> None:
    """Each check was admitted between two instants. No window may certainly hold too many of them."""
    answers, _ = answers_of_workers(server, 1, 300)

    admitted = sorted(tuple(each) for answer in answers for each in answer["admitted"])
    for begin, _ in admitted:
        assert sum(begin <= begins and ends < begin + 1_000_000 for begins, ends in admitted) <= 300
    assert len(admitted) > 300
    assert sum(answer["asked"] for answer in answers) > len(admitted)


def test_leases_of_several_processes_save_two_thirds_of_the_commands(server: Server) -> None:
    """One check in twenty has a rule without a lease. Of the others, about one in twenty asks the server: even a busy
    machine spends a lease within an hour."""
    answers, questions = answers_of_workers(server, 3600, 500_000)
    admitted = sum(len(answer["admitted"]) for answer in answers)
    assert questions < admitted / 3


@pytest.fixture
def app(server: Server, redis_client: redis.Redis) -> Flask:
    """An app on an empty server."""
    assert redis_client.dbsize() == 0
    app = Flask("shop")
    app.testing = True
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    return app


def test_leased_requests_send_no_command_and_their_headers_show_what_remains(
    app: Flask, redis_client: redis.Redis
) -> None:
    MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(rules=Rule(3600, 1000, lease=10, algorithm="fixed_window"))(view()))

    ask(app)
    with commands(redis_client) as seen:
        responses = [ask(app) for _ in range(34)]

    assert [response.status_code for response in responses] == [200] * 34
    assert seen == ["EVALSHA"] * 5  # leases of 2, 4, 8, 10 and 10 units
    assert [response.headers["RateLimit"] for response in responses] == [
        f'"default-3600s";r={left};t=3600' for left in range(998, 964, -1)
    ]
    assert responses[-1].headers["RateLimit-Policy"] == '"default-3600s";q=1000;w=3600'


def test_process_that_ends_returns_its_unspent_units(server: Server, redis_client: redis.Redis) -> None:
    program = "import sys; from engine.storage.layers.leases.worker import spend; spend(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=TIMEOUT, env=environment)
    assert bare(redis_client).peek(worker.SPENT).remaining == 100 - 8

    child = FORKS.Process(target=worker.spend, args=(server.url,))
    child.start()
    child.join(TIMEOUT)
    assert bare(redis_client).peek(worker.SPENT).remaining == 100 - 16


def test_lease_on_only_one_of_two_rules_that_share_a_key_is_an_error(app: Flask) -> None:
    MultiLimit(app)
    app.add_url_rule("/one", "one", rate_limiter(rules=Rule(60, 50, lease=10), scope="api")(view()))
    app.add_url_rule("/two", "two", rate_limiter(rules=Rule(60, 50), scope="api")(view()))

    with pytest.raises(ConfigurationError) as caught:
        ask(app, "/one")

    assert str(caught.value) == (
        'limiter on "two": Rule(50 per minute) shares a key with Rule(50 per minute, lease of 10) on "one", but only '
        "one of them has a lease, and counts longer for it; give both a lease, or none"
    )
