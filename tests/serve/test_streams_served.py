"""Streams on real servers: a client that disconnects releases its slot, and pays for what was sent."""

import http.client
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Program
from support.servers import Server
from support.waiting import PATIENCE, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("server")]  # all quotas are full

HERE = Path(__file__).parent / "streams"
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
    "gunicorn gevent, preload": "FileWrapper",
    "werkzeug": "_HoldingBody",
    "waitress": "ReadOnlyFileBasedBuffer",
    "uwsgi": "_HoldingBody",
}
"""The class of the body with which each server sends a file."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is sent from ``/file``: more than fits into the buffers of the connection."""
    file = tmp_path_factory.mktemp("sent") / "file"
    file.write_bytes(bytes(range(256)) * 160_000)
    return file


@pytest.fixture(scope="module", params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    """Each server in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def program(name: str, shared_server: Server, file: Path) -> Iterator[Program]:
    python_path = f"{HERE}:{':'.join(sys.path)}"
    environment = {"STORAGE_URI": shared_server.url, "FILE": str(file), "PYTHONPATH": python_path}
    with Program(*SERVERS[name], environment=environment) as program:
        yield program


def begin_stream(program: Program, path: str = "/") -> socket.socket:
    """A connection on which a stream has begun."""
    connection = socket.create_connection(("127.0.0.1", program.port), timeout=PATIENCE)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.")
    return connection


def wait_for(program: Program, in_use: str) -> None:
    until(lambda: program.get("/in-use").text == in_use, every=0.05)


def test_client_that_disconnects_pays_for_what_was_sent(program: Program) -> None:
    stream = begin_stream(program, "/tokens")
    sent = 0
    while sent < 10_000:
        sent += len(stream.recv(4096))
    assert program.get("/tokens-used").text == "5000"  # the estimate, until the stream ends

    stream.close()

    until(lambda: program.get("/tokens-used").text != "5000")
    assert sent // 1100 <= int(program.get("/tokens-used").text) < 900


def test_slot_is_released_when_the_client_disconnects(program: Program) -> None:
    first, second = begin_stream(program), begin_stream(program)
    wait_for(program, "2")
    assert program.get("/").status == 429

    first.close()
    wait_for(program, "1")
    second.close()
    wait_for(program, "0")


def test_slot_of_a_paused_stream_is_released_at_its_next_write(program: Program) -> None:
    stream = begin_stream(program, "/?pause=0.5")
    wait_for(program, "1")
    stream.close()
    wait_for(program, "0")


def test_file_holds_its_slot_to_the_last_byte_and_keeps_its_file_wrapper(
    program: Program, name: str, file: Path
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=PATIENCE)
    connection.request("GET", "/file")
    response = connection.getresponse()
    first = response.read(1000)
    wait_for(program, "1")
    rest = response.read()

    assert response.headers["X-Body"] == SENT_AS[name]
    assert first + rest == file.read_bytes()
    wait_for(program, "0")
    connection.close()


def test_slot_of_a_file_is_released_when_the_client_disconnects(program: Program) -> None:
    connection = begin_stream(program, "/file")
    wait_for(program, "1")

    connection.close()

    wait_for(program, "0")


def test_finished_streams_and_failed_views_release_their_slots(program: Program) -> None:
    for _ in range(3):
        assert program.get("/?seconds=0.1").status == 200
        wait_for(program, "0")  # the slot is released after the client has the last byte
        assert program.get("/raises").status == 500
        wait_for(program, "0")


def test_requests_that_end_together_release_their_slots(program: Program) -> None:
    statuses = {reply.status for reply in program.get_all(["/?seconds=0.01", "/raises"] * 30)}
    assert statuses <= {200, 429, 500}
    wait_for(program, "0")
    assert "un-acquired lock" not in program.log
