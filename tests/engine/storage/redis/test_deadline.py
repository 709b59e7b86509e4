"""Sockets with a deadline: what they read and send when the time is over."""

import functools
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from flask_multilimit.engine.storage.redis.connections import (
    Deadline,
    TimedConnection,
    TimedSocket,
    TimedUnixConnection,
)
from flask_multilimit.engine.storage.redis.wire import Wire, command_of, wire_of
from support.liar import Liar
from support.servers import Binary, Server


@pytest.fixture
def deadline() -> Deadline:
    deadline = Deadline(0.02)
    deadline.start()
    return deadline


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with_server, server = socket.socketpair()
    with with_server, server:
        with_server.settimeout(0.02)
        yield with_server, server


Ends = tuple[socket.socket, socket.socket]


def expire(deadline: Deadline) -> None:
    deadline.started -= 1


def test_bytes_that_arrived_in_time_are_read_after_the_deadline(deadline: Deadline, ends: Ends) -> None:
    ours, server = ends
    timed, buffer = TimedSocket(ours, deadline), bytearray(9)
    server.sendall(b"in time")
    expire(deadline)

    assert timed.recv(2) == b"in"
    assert timed.recv_into(buffer) == 5


class Busy:
    """A socket of gevent while its hub is busy: what arrives in time is read only without waiting."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self.settimeout, self.sendall = plain.settimeout, plain.sendall

    def recv(self, size: int) -> bytes:
        if self._plain.gettimeout():
            raise TimeoutError
        return self._plain.recv(size)


def test_bytes_that_arrive_in_time_are_read_although_the_process_was_late(deadline: Deadline, ends: Ends) -> None:
    ours, server = ends
    server.sendall(b"in time")

    assert TimedSocket(Busy(ours), deadline).recv(9) == b"in time"


def test_bytes_that_have_not_arrived_by_the_deadline_are_not_awaited(deadline: Deadline, ends: Ends) -> None:
    timed = TimedSocket(ends[0], deadline)
    expire(deadline)

    for _ in range(2):
        with pytest.raises(TimeoutError):
            timed.recv(1)
        with pytest.raises(TimeoutError):
            timed.recv_into(bytearray(1))


def test_reading_stops_after_the_deadline_if_the_server_sends_without_end(deadline: Deadline, ends: Ends) -> None:
    ours, server = ends
    timed = TimedSocket(ours, deadline)
    server.sendall(bytes(1000))
    expire(deadline)

    with pytest.raises(TimeoutError):
        list(iter(functools.partial(timed.recv, 1), b""))
    deadline.start()

    assert timed.recv(1) == b"\0"


def test_a_command_that_cannot_be_sent_times_out(deadline: Deadline, ends: Ends) -> None:
    expire(deadline)
    with pytest.raises(TimeoutError):
        TimedSocket(ends[0], deadline).sendall(bytes(10_000_000))


@pytest.mark.parametrize(("kind", "late"), [(lambda plain: plain, 60), (Busy, 0)], ids=["late", "busy"])
def test_each_command_has_the_whole_timeout(ends: Ends, kind: Callable[..., Any], late: float) -> None:
    ours, server = ends
    deadline = Deadline(60)
    timed = TimedSocket(kind(ours), deadline)
    deadline.start(time.monotonic() - late)
    server.sendall(b"late")
    assert timed.recv(9) == b"late"

    deadline.start()
    timed.sendall(b"next")

    assert ours.gettimeout() == 60


@contextmanager
def wire_to(url: str, connection_class: Any, seconds: float) -> Iterator[tuple[Wire, redis.Redis]]:
    """A wire with that timeout, and its client."""
    deadline = Deadline(seconds)
    client = redis.Redis.from_url(
        url,
        connection_class=connection_class,
        deadline=deadline,
        socket_timeout=seconds,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        health_check_interval=0,
    )
    wire = wire_of(client, deadline)
    assert wire is not None
    yield wire, client
    client.close()


def test_command_has_its_whole_timeout_after_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def answers(data: bytes) -> Iterator[bytes]:
        greetings = data.count(b"CLIENT")
        now[0] += 20
        if greetings:
            yield b"+OK\r\n" * greetings
        else:  # in two pieces: the time left for the second is worked out when it is awaited
            yield b"$4\r\n"
            yield b"mine\r\n"

    for module in ("connections", "wire"):
        monkeypatch.setattr(f"flask_multilimit.engine.storage.redis.{module}.monotonic", lambda: now[0])
    with Liar(answers) as liar, wire_to(liar.url, TimedConnection, 60) as (wire, _):
        assert wire.ask(command_of(b"ECHO", b"mine"), now[0]) == b"mine"


def test_slow_connect_does_not_shorten_the_timeout_of_later_reads(any_server: Server) -> None:
    with wire_to(any_server.url, TimedUnixConnection, 60) as (wire, client):
        wire.ask(command_of(b"PING"), time.monotonic() - 50)
        (connection,) = client.connection_pool._in_use_connections
        times = connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("ll"))
        assert struct.unpack("ll", times) == (60, 0)


def test_connecting_without_time_left_is_a_timeout(deadline: Deadline, any_server: Server) -> None:
    """redis-py 8 then asks the connection for its port. A connection to a unix socket has none."""
    path = any_server.url.removeprefix("unix://")
    connection = TimedUnixConnection(path=path, deadline=deadline)  # type: ignore[abstract]
    expire(deadline)

    with pytest.raises(redis.TimeoutError):
        connection.connect()


def test_non_blocking_read_does_not_wait_until_the_deadline(deadline: Deadline, ends: Ends) -> None:
    """As redis-py does, before 5.1, with a connection that it hands out."""
    timed = TimedSocket(ends[0], deadline)
    deadline.started -= 0.019
    timed.settimeout(0)

    for _ in range(2):
        with pytest.raises(BlockingIOError):
            timed.recv(1)


@contextmanager
def ticking(tick: Callable[..., object]) -> Iterator[None]:
    """A timer that ticks a hundred times a second."""
    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


SIGNALLER = """
import os, signal, sys, time
print("ready", flush=True)
for _ in range(1000):
    time.sleep(0.01)
    os.kill(int(sys.argv[1]), signal.SIGUSR1)
"""


@contextmanager
def signalled(tick: Callable[..., object]) -> Iterator[None]:
    """Another process that sends a hundred signals a second."""
    before = signal.signal(signal.SIGUSR1, tick)
    other = subprocess.Popen([sys.executable, "-c", SIGNALLER, str(os.getpid())], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        yield
    finally:
        other.kill()
        other.communicate()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
@pytest.mark.parametrize(
    ("over", "signals"), [("unix", ticking), ("tcp", ticking), ("unix", signalled)], ids=["unix", "tcp", "from others"]
)
def test_signals_do_not_extend_the_timeout(
    binary: Binary, over: str, signals: Callable[..., AbstractContextManager[None]]
) -> None:
    ticks = 0

    def tick(*_: object) -> None:
        nonlocal ticks
        ticks += 1
        assert ticks < 500, "the time has been over for seconds"

    with Server(binary, tcp=True) as server:
        url, connection_class = (
            (server.url, TimedUnixConnection) if over == "unix" else (server.tcp_url, TimedConnection)
        )
        with wire_to(url, connection_class, 0.1) as (wire, _), signals(tick), pytest.raises(redis.TimeoutError):
            wire.ask(command_of(b"BLPOP", b"nothing", b"0"), time.monotonic())

    assert ticks
