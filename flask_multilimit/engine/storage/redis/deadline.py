"""A deadline for a whole question to the server: connecting, greeting, asking and reading, however the bytes drip in.

The time-outs of a socket begin anew with every byte. Here each step of one question gets what the steps before have
left of its time. What has come by then still counts, when this process is late by itself.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from ssl import SSLContext, SSLWantReadError, SSLWantWriteError
from time import monotonic
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from .announced import OVERLAP, reject_too_long
from .tls import TlsOptions

_NOT_YET = (TimeoutError, BlockingIOError, SSLWantReadError, SSLWantWriteError)
_AN_INSTANT = 0.000_001
"""Seconds; 0 would mean something else to a socket."""
_LATE_READS = 100
"""Reads of what has come already, after the deadline: a server that never stops sending must not be read for ever."""
PUNCTUAL = 0.75
"""Of the time, so much must be left for a step to go by the time-out that the socket has already."""

_SHOW_A_CERTIFICATE = (
    "if the server wants to see a certificate, name one that it knows: ssl_certfile and ssl_keyfile in the storage URI"
)


class Deadline(threading.local):
    """Of what the current thread is asking. Without ``seconds`` there is none."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.started: float = math.inf
        """By ``time.monotonic``."""

    def start(self, started: float | None = None) -> None:
        """A question begins, or has begun when ``started`` says."""
        self.started = monotonic() if started is None else started

    def stop(self) -> None:
        """What follows is none of our questions: it goes by the time-outs of the sockets."""
        self.started = math.inf

    def step(self) -> float:
        """Seconds that the next step may take. Raises :class:`TimeoutError` when there are none."""
        return min(self.left(), self.seconds or math.inf)

    def left(self) -> float:
        """Seconds left. Raises :class:`TimeoutError` when there are none."""
        left = self.remaining()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def remaining(self) -> float:
        """Seconds left, 0 or less when it is over."""
        return math.inf if self.seconds is None else self.started + self.seconds - monotonic()


class TimedSocket:
    """A socket, plain or of TLS, whose reads and writes end at the deadline."""

    def __init__(self, socket: Any, deadline: Deadline) -> None:
        self.plain = socket
        self._deadline = deadline
        self._in_time = (deadline.seconds or 0) * PUNCTUAL
        self._hurried = False
        self._polling = False
        self._late = 0
        self._before = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def recv_into(self, buffer: Any, *arguments: Any) -> int:
        many = int(self._receive(self.plain.recv_into, buffer, *arguments))
        self._examine(bytes(memoryview(buffer)[:many]))
        return many

    def recv(self, *arguments: Any) -> bytes:
        received = bytes(self._receive(self.plain.recv, *arguments))
        self._examine(received)
        return received

    def _receive(self, receive: Callable[..., Any], *arguments: Any) -> Any:
        self._hurry()
        try:
            return receive(*arguments)
        except _NOT_YET:
            if self._polling:
                raise
            return self._last_look(receive, *arguments)

    def _examine(self, received: bytes) -> None:
        """But for what is none of our questions, whose reply may be of any length."""
        if self._deadline.remaining() < math.inf:
            received = self._before + received
            reject_too_long(received)
        self._before = received[-OVERLAP:]

    def sendall(self, *arguments: Any) -> None:
        self._hurry()
        try:
            self.plain.sendall(*arguments)
        except _NOT_YET:
            raise TimeoutError("timed out") from None

    def _last_look(self, receive: Callable[..., Any], *arguments: Any) -> Any:
        """What has come meanwhile: a process with much to do, or many greenlets, may be late by itself."""
        self._hurried = True
        try:
            self.plain.settimeout(0)
            return receive(*arguments)
        except _NOT_YET:
            raise TimeoutError("timed out") from None
        finally:
            self.plain.settimeout(_AN_INSTANT)

    def settimeout(self, seconds: float | None) -> None:
        """redis-py sets 0 to find out whether there is anything to read."""
        self._polling = seconds == 0
        self.plain.settimeout(seconds)

    def _hurry(self) -> None:
        left = self._deadline.remaining()
        if self._polling:
            return
        self._late = self._late + 1 if left <= 0 else 0
        if self._late > _LATE_READS:
            raise TimeoutError("timed out")
        if left < self._in_time:
            self.plain.settimeout(max(left, _AN_INSTANT))
            self._hurried = True
        elif self._hurried:
            self.plain.settimeout(self._deadline.seconds)
            self._hurried = False


class _Timed:
    """What makes a connection of redis-py keep the deadline; it is told as ``deadline=``."""

    socket_connect_timeout: float | None

    def __init__(self, *, deadline: Deadline, **options: Any) -> None:
        self._deadline = deadline
        super().__init__(**options)

    def connect(self) -> None:
        """What follows has a time of its own."""
        super().connect()  # type: ignore[misc]
        self._deadline.start()

    def _connect(self) -> TimedSocket:
        self.socket_connect_timeout = self._deadline.step()
        return TimedSocket(super()._connect(), self._deadline)  # type: ignore[misc]


class TimedConnection(_Timed, Connection):
    """TCP."""


class _TlsInTime(SSLConnection):
    """What redis-py does to connect, with a context that is at hand, and what is left of the time for the handshake."""

    _deadline: Deadline

    def _connect(self) -> Any:
        socket: Any = super(SSLConnection, self)._connect()  # type: ignore[no-untyped-call]
        try:
            socket.settimeout(self._deadline.step())
            encrypted = self.context().wrap_socket(socket, server_hostname=self.host)
            encrypted.settimeout(self.socket_timeout)
        except BaseException:
            socket.close()
            raise
        return encrypted

    def context(self) -> SSLContext:
        """Raises ``OSError``."""
        return TlsOptions.of(self).context()


class TimedTlsConnection(_Timed, _TlsInTime):
    """TLS. A certificate that is verified must be one for this host: redis-py before 6.0 takes any."""

    def __init__(self, *, ssl_check_hostname: bool = True, **options: Any) -> None:
        super().__init__(ssl_check_hostname=ssl_check_hostname, **options)
        self._trusts = False

    def connect(self) -> None:
        """The server looks at our certificate only after the handshake, and what it says then is often lost."""
        self._trusts = False
        try:
            super().connect()
        except RedisConnectionError as error:
            if self._trusts:
                error.remedy = _SHOW_A_CERTIFICATE  # type: ignore[attr-defined]
            raise

    def _connect(self) -> TimedSocket:
        socket = super()._connect()
        self._trusts = True
        return socket


class TimedUnixConnection(_Timed, UnixDomainSocketConnection):
    """A unix socket."""

    port = 0  # redis-py 8 wants to know it when connecting takes too long, and has it for the others only


TIMED_CONNECTIONS: dict[str, type[Any]] = {
    "redis": TimedConnection,
    "rediss": TimedTlsConnection,
    "unix": TimedUnixConnection,
}
"""By the scheme of a URI as redis-py calls it."""
