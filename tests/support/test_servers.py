"""The room that the other tests stand on: servers that start, obey and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from support.folders import TESTS
from support.servers import ENVIRONMENT_VARIABLE, PORTS, Binary, Server, ServerError, find_binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def own_server(any_server: Server) -> Iterator[Server]:
    with Server(any_server.binary, tcp=True) as server:
        yield server


def test_each_binary_is_named_after_its_kind_and_version(
    server_binaries: dict[str, Binary],
) -> None:
    for name, binary in server_binaries.items():
        assert name.startswith(("redis-", "valkey-"))
        assert binary.path.is_file()


def test_a_binary_asked_for_comes_first(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.symlink_to(server.binary.path)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(asked))

    found = find_binaries()

    assert next(iter(found.values())).path == asked


@pytest.mark.parametrize("wrong", ["/nowhere/redis-server", sys.executable])
def test_a_wrong_path_asked_for_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, wrong)

    with pytest.raises(ServerError, match=wrong):
        find_binaries()


def test_a_server_answers_on_its_socket_and_its_port(any_server: Server) -> None:
    assert any_server.client().ping()
    assert any_server.client(url=any_server.tcp_url).ping()


def test_a_server_keeps_nothing_on_disk(any_server: Server) -> None:
    client = any_server.client()

    assert client.config_get("save") == {"save": ""}
    assert client.config_get("appendonly") == {"appendonly": "no"}


def test_a_server_without_a_port_has_no_tcp_url(server: Server) -> None:
    with Server(server.binary) as unix_only:
        assert unix_only.client().ping()
        with pytest.raises(ServerError, match="tcp=True"):
            _ = unix_only.tcp_url


def test_options_reach_the_server(server: Server) -> None:
    with Server(server.binary, options=["--maxmemory", "3mb"]) as small:
        assert small.client().config_get("maxmemory") == {"maxmemory": str(3 * 1024 * 1024)}


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(
    server: Server, folders: Callable[[], set[Path]]
) -> None:
    before = folders()

    with pytest.raises(ServerError, match="no-such-option"):
        Server(server.binary, options=["--no-such-option", "1"]).__enter__()

    assert folders() == before


def test_a_port_in_use_is_passed_over(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = int(server.tcp_url.rpartition(":")[2])
    free = next(port for port in PORTS if port != taken)
    tries = iter([taken, taken, free])
    monkeypatch.setattr("support.servers.random.choice", lambda _: next(tries))

    with Server(server.binary, tcp=True) as second:
        assert second.tcp_url.endswith(f":{free}")


def test_stop_ends_the_process_and_leaving_removes_the_folder(any_server: Server) -> None:
    with Server(any_server.binary) as server:
        pid, folder = server.pid, server.folder

        server.stop()

        assert not lives(pid)
        assert folder.exists()
    assert not folder.exists()


@pytest.mark.parametrize("end", [Server.stop, Server.kill])
def test_a_server_that_ended_comes_back_empty_at_the_same_addresses(
    own_server: Server, end: Callable[[Server], None]
) -> None:
    addresses = own_server.url, own_server.tcp_url
    client = own_server.client()
    client.set("key", "value")

    end(own_server)
    with pytest.raises(redis.ConnectionError):
        client.ping()
    own_server.restart()

    assert (own_server.url, own_server.tcp_url) == addresses
    assert client.get("key") is None
    assert own_server.client(url=own_server.tcp_url).ping()


def test_a_suspended_server_is_silent_until_it_is_resumed(own_server: Server) -> None:
    client = own_server.client(socket_timeout=0.05)
    client.ping()

    own_server.suspend()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    own_server.resume()

    assert own_server.client().ping()


def test_a_suspended_server_can_be_stopped(own_server: Server) -> None:
    own_server.suspend()

    own_server.stop()

    with pytest.raises(ServerError, match="not running"):
        _ = own_server.pid


def test_a_server_ends_with_the_process_that_started_it(server: Server) -> None:
    with start_owner(server.binary) as owner:
        assert owner.stdout is not None
        url, folder = owner.stdout.readline().split()
        client = server.client(url=url)
        assert client.ping()

        owner.kill()

    eventually(lambda: not answers(client))
    eventually(lambda: not Path(folder).exists())


def test_a_redis_client_begins_with_an_empty_server(redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[Path]]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda: set(tmp_path.iterdir())


OWNER = """
import sys, time
from pathlib import Path
from support.servers import Binary, Server

with Server(Binary.at(Path(sys.argv[1]))) as server:
    print(server.url, server.folder, flush=True)
    time.sleep(60)
"""


def start_owner(binary: Binary) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, binary.path],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        text=True,
    )


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def eventually(holds: Callable[[], bool], *, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
