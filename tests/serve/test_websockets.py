"""Websockets of flask-sock: a connection holds its slot until it ends."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simple_websocket import Client, ConnectionClosed  # type: ignore[import-untyped]

from support.processes import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import Server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "websockets"
PATIENCE = 10.0
SERVERS = {
    "gunicorn gthread": (
        *("gunicorn", "--chdir", str(HERE), "--bind", "127.0.0.1:0", "--workers", "2"),
        *("--worker-class", "gthread", "--threads", "4", "sockets:app"),
    ),
    "werkzeug": ("flask", "--app", str(HERE / "sockets"), "run", "--port", "0"),
}


@pytest.fixture(params=SERVERS)
def program(request: pytest.FixtureRequest, server: Server) -> Iterator[Program]:
    with server.client() as client:
        client.flushall()
    environment = {"STORAGE_URI": server.url, "PYTHONPATH": f"{HERE}:{':'.join(sys.path)}"}
    with Program(*SERVERS[request.param], environment=environment) as program:
        yield program


def connect(program: Program, path: str = "/echo") -> Any:
    return Client.connect(f"ws://127.0.0.1:{program.port}{path}")


def says(client: Any, text: str) -> str | None:
    """What comes back; ``None`` when the connection ends."""
    try:
        client.send(text)
        told: str = client.receive(timeout=PATIENCE)
    except ConnectionClosed:
        return None
    return told


def wait_for(program: Program, in_use: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := program.get("/in-use").text) != in_use:
        assert time.monotonic() < deadline, f"{found} in use, not {in_use}\n{program.log}"
        time.sleep(0.05)


def test_a_connection_holds_its_slot_until_it_ends(program: Program) -> None:
    first = connect(program)
    assert says(first, "one") == "one"
    assert program.get("/in-use").text == "1"

    refused = connect(program)
    assert says(refused, "two") is None
    assert says(first, "still there") == "still there"

    first.close()
    wait_for(program, "0")
    later = connect(program)
    assert says(later, "three") == "three"
    later.close()
    wait_for(program, "0")


def test_a_view_that_raises_keeps_no_slot(program: Program) -> None:
    for _ in range(3):
        client = connect(program, "/raises")
        assert client.receive(timeout=PATIENCE) == "hello"
        wait_for(program, "0")
