"""flask multilimit doctor: what is wrong, with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine.storage.redis.failures import RIGHTS, RIGHTS_OF_WORKERS
from operate.cli.conftest import SHOP, Command
from support.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.servers import Binary

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def strict_server(server_binaries: dict[str, Binary]) -> Iterator[Server]:
    """One with a password."""
    with Server(next(iter(server_binaries.values())), tcp=True, options=["--requirepass", PASSWORD]) as server:
        yield server


def with_password(server: Server, password: str = PASSWORD, *, user: str = "") -> str:
    return server.tcp_url.replace("redis://", f"redis://{user}:{password}@")


def test_a_healthy_server(on_server: Command, server: Server) -> None:
    run = on_server("doctor")

    assert run.code == 0
    kind, version = server.binary.name.split("-", 1)
    told = " ".join(run.out.split())  # where a line ends depends on how long the path of the socket is
    assert f"ok storage {kind.capitalize()} {version} at unix://" in told
    assert "ok script Loads and runs: 7 rules checked, charged and reset," in told
    assert run.out.endswith("\nNo problems found.\n")
    assert server.client().dbsize() == 0


def test_doctor_prints_json(on_server: Command) -> None:
    run = on_server("doctor", "--json")

    assert run.json["schema"] == 2
    assert run.json["healthy"] is True
    assert [found["name"] for found in run.json["findings"]] == [
        "declarations",
        "addresses",
        "users",
        "traffic",
        "control",
        "storage",
        "latency",
        "clock",
        "eviction",
        "lazy freeing",
        "persistence",
        "script",
    ]
    assert all(set(found) == {"name", "level", "text", "remedy"} for found in run.json["findings"])


def test_no_server_is_wrong(tmp_path: Path) -> None:
    run = Command(SHOP, f"unix://{tmp_path}/none")("doctor")

    assert run.code == 1
    assert "WRONG    storage        No answer from" in run.out
    assert "> Start the server, or correct the storage URI." in run.out
    assert run.out.endswith("\n1 problem found.\n")


def test_a_password_is_never_shown(strict_server: Server) -> None:
    right = Command(SHOP, with_password(strict_server))
    wrong = Command(SHOP, with_password(strict_server, "hunter2but-wrong"))
    in_query = Command(SHOP, f"{strict_server.tcp_url}?password={PASSWORD}")

    runs = [right("doctor"), in_query("doctor"), wrong("doctor"), wrong("keys")]

    assert [run.code for run in runs] == [0, 0, 1, 1]
    assert "The user or the password in the storage URI is wrong." in " ".join(runs[2].out.split())
    for run in runs:
        assert PASSWORD not in run.out + run.err


@pytest.fixture
def as_limiter(strict_server: Server) -> Callable[[str], Command]:
    """The commands, as a user of the server with these rights."""

    def as_limiter(rights: str) -> Command:
        with strict_server.client(password=PASSWORD) as client:
            acl = ["SETUSER", "limiter", "reset", "on", ">pw", "~rate_limit:*", *rights.split()]
            client.execute_command("ACL", *acl)
        return Command(SHOP, with_password(strict_server, "pw", user="limiter"))

    return as_limiter


def test_a_mistake_is_told_with_its_remedy(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(RIGHTS)("keys")

    assert run.code == 1
    assert "the rate limit storage refused a command" in run.err
    assert run.err.rstrip().endswith("(the server's user needs the right +scan)")


def test_top_needs_no_right_to_list_keys(as_limiter: Callable[[str], Command]) -> None:
    run = as_limiter(f"{RIGHTS} {RIGHTS_OF_WORKERS}")("top", "--once")

    assert run.code == 0
    assert "Slots in use are not known" in run.err
    assert "+scan" in run.err
