"""Websockets of flask-sock: a limiter refuses before the handshake, and a connection holds its slot until it ends."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import simple_websocket  # type: ignore[import-untyped]

from support.processes import Program
from support.servers import Server
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "websockets"
HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "eA==",
    "Sec-WebSocket-Version": "13",
}
SERVERS = {
    "gunicorn gthread": (
        *("gunicorn", "--chdir", str(HERE), "--bind", "127.0.0.1:0", "--workers", "2"),
        *("--worker-class", "gthread", "--threads", "4", "sockets:app"),
    ),
    "werkzeug": ("flask", "--app", str(HERE / "sockets"), "run", "--port", "0"),
}


@pytest.fixture(params=SERVERS)
def program(request: pytest.FixtureRequest, server: Server) -> Iterator[Program]:
    environment = {"STORAGE_URI": server.url, "PYTHONPATH": f"{HERE}:{':'.join(sys.path)}"}
    with Program(*SERVERS[request.param], environment=environment) as program:
        yield program


def connect(program: Program, path: str = "/echo") -> Any:
    return simple_websocket.Client.connect(f"ws://127.0.0.1:{program.port}{path}")


def answer_to(client: Any, text: str) -> str | None:
    """The next message of the server; ``None`` when the connection ends."""
    try:
        client.send(text)
        answer: str = client.receive(timeout=PATIENCE)
    except simple_websocket.ConnectionClosed:
        return None
    return answer


def wait_for(program: Program, in_use: str) -> None:
    until(lambda: program.get("/in-use").text == in_use, every=0.05)


def test_websocket_holds_its_slot_until_it_ends(program: Program) -> None:
    first = connect(program)
    assert answer_to(first, "one") == "one"
    assert program.get("/in-use").text == "1"

    assert program.get("/echo", HANDSHAKE).status == 429
    assert answer_to(first, "still there") == "still there"

    first.close()
    wait_for(program, "0")
    later = connect(program)
    assert answer_to(later, "three") == "three"
    later.close()
    wait_for(program, "0")


def test_refused_handshake_is_a_429_response(program: Program) -> None:
    for _ in range(2):
        client = connect(program, "/rated")
        assert [answer_to(client, "hello"), answer_to(client, "again")] == ["hello", None]

    refused = program.get("/rated", HANDSHAKE)

    assert refused.status == 429
    assert 50 <= int(refused.headers["Retry-After"]) <= 60
    assert json.loads(refused.text)["violated-policies"] == ["default-60s"]


def test_messages_can_be_limited_by_closing_the_websocket(program: Program) -> None:
    client = connect(program, "/messages")
    assert [answer_to(client, text) for text in ("one", "two", "three")] == ["one", "two", None]
    assert client.close_reason == 1013


def test_websocket_view_that_raises_releases_its_slot(program: Program) -> None:
    for _ in range(3):
        client = connect(program, "/raises")
        assert answer_to(client, "hello") == "hello"
        client.send("now")
        wait_for(program, "0")
