"""Servers of the tests: which are found, and that they end when the tests end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from support.folders import TESTS
from support.servers import ENVIRONMENT_VARIABLE, Server, ServerError, find_binaries
from support.waiting import until


def test_server_binary_named_in_the_environment_comes_first(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    asked.symlink_to(server.binary.path)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(asked))

    found = find_binaries()

    assert next(iter(found.values())).path == asked


@pytest.mark.parametrize("wrong", ["/nowhere/redis-server", sys.executable])
def test_wrong_server_path_in_the_environment_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, wrong)
    with pytest.raises(ServerError, match=wrong):
        find_binaries()


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerError, match="no-such-option"):
        Server(server.binary, options=["--no-such-option", "1"]).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_server_ends_with_the_process_that_started_it(server: Server) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    arguments = [sys.executable, "-c", OWNER, str(server.binary.path)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url, folder = owner.stdout.readline().split()
        client = server.client(url=url)
        assert client.ping()

        owner.kill()

    until(lambda: not Path(folder).exists())
    with pytest.raises(redis.ConnectionError):
        client.ping()


OWNER = """
import sys, time
from pathlib import Path
from support.servers import Binary, Server

with Server(Binary.at(Path(sys.argv[1]))) as server:
    print(server.url, server.folder, flush=True)
    time.sleep(60)
"""
