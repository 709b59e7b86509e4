"""Streams on real servers: a client that hangs up in the middle frees its slot, and pays for what it got."""

from __future__ import annotations

import http.client
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes import Program
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.servers import Server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent / "streams"
PATIENCE = 10.0
GUNICORN = ("gunicorn", "--chdir", str(HERE), "--bind", "127.0.0.1:0")
SERVERS = {
    "gunicorn sync": (*GUNICORN, "--workers", "4", "app:app"),
    "gunicorn gthread": (*GUNICORN, "--workers", "2", "--worker-class", "gthread", "--threads", "4", "app:app"),
    "gunicorn gevent": (*GUNICORN, "--workers", "2", "--worker-class", "gevent", "app:app"),
    "gunicorn gevent, preload": (*GUNICORN, "--preload", "--workers", "2", "--worker-class", "gevent", "app:app"),
    "werkzeug": ("flask", "--app", str(HERE / "app"), "run", "--port", "0"),
    "waitress": ("waitress", "--listen", "127.0.0.1:0", "--threads", "6", "app:app"),
    "uwsgi": (
        *("uwsgi", "--http-socket", "127.0.0.1:0", "--chdir", str(HERE), "--module", "app:app", "--master"),
        *("--processes", "2", "--threads", "4", "--enable-threads", "--die-on-term", "--need-app"),
    ),
}


SENT_AS = {
    "gunicorn sync": "FileWrapper",
    "gunicorn gthread": "FileWrapper",
    "gunicorn gevent": "FileWrapper",
    "werkzeug": "_Body",
    "waitress": "ReadOnlyFileBasedBuffer",
    "uwsgi": "_Body",
}
"""What each server is given to send a file."""


@pytest.fixture(params=SERVERS)
def program(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Program]:
    with server.client() as client:
        client.flushall()
    arguments = SERVERS[request.param]
    python_path = f"{HERE}:{':'.join(sys.path)}"
    environment = {"STORAGE_URI": server.url, "FILE": str(tmp_path / "file"), "PYTHONPATH": python_path}
    with Program(*arguments, environment=environment) as program:
        yield program


def begin_stream(program: Program, path: str = "/") -> socket.socket:
    """A connection on which a stream has begun."""
    connection = socket.create_connection(("127.0.0.1", program.port), timeout=PATIENCE)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.")
    return connection


def wait_for(program: Program, in_use: str) -> None:
    until(lambda: program.get("/in-use").text == in_use, PATIENCE, every=0.05)


def test_a_client_that_hangs_up_pays_for_what_was_sent_until_then(program: Program) -> None:
    stream = begin_stream(program, "/tokens")
    sent = 0
    while sent < 10_000:
        sent += len(stream.recv(4096))
    assert program.get("/tokens-used").text == "5000"  # the estimate, until it ends

    stream.close()

    until(lambda: program.get("/tokens-used").text != "5000", PATIENCE)
    assert sent // 1100 <= int(program.get("/tokens-used").text) < 900


def test_a_client_that_hangs_up_frees_its_slot(program: Program) -> None:
    first, second = begin_stream(program), begin_stream(program)
    wait_for(program, "2")
    assert program.get("/").status == 429

    first.close()
    wait_for(program, "1")
    second.close()
    wait_for(program, "0")


def test_a_stream_that_pauses_frees_its_slot_when_it_writes_again(program: Program) -> None:
    stream = begin_stream(program, "/?pause=0.5")
    wait_for(program, "1")

    stream.close()

    wait_for(program, "0")


@pytest.mark.parametrize(("program", "sent_as"), SENT_AS.items(), indirect=["program"])
def test_a_file_holds_one_to_its_last_byte_and_is_sent_as_the_server_knows_it(
    program: Program, sent_as: str, tmp_path: Path
) -> None:
    content = bytes(range(256)) * 160_000  # more than the buffers on the way take
    (tmp_path / "file").write_bytes(content)

    connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=PATIENCE)
    connection.request("GET", "/file")
    response = connection.getresponse()
    first = response.read(1000)
    wait_for(program, "1")
    rest = response.read()

    assert response.headers["X-Body"] == sent_as
    assert first + rest == content
    wait_for(program, "0")
    connection.close()


def test_a_client_that_hangs_up_in_the_middle_of_a_file_frees_its_slot(program: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(40_000_000))
    connection = begin_stream(program, "/file")
    wait_for(program, "1")

    connection.close()

    wait_for(program, "0")


def test_streams_that_end_and_views_that_raise_keep_none(program: Program) -> None:
    for _ in range(3):
        assert program.get("/?seconds=0.1").status == 200
        wait_for(program, "0")  # it is given back after the last byte, which the client may have before
        assert program.get("/raises").status == 500
        wait_for(program, "0")


def test_requests_that_end_together_keep_none(program: Program) -> None:
    statuses = {reply.status for reply in program.get_all(["/?seconds=0.01", "/raises"] * 30)}

    assert statuses <= {200, 429, 500}
    wait_for(program, "0")
    assert "un-acquired lock" not in program.log
