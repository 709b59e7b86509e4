"""A deadline for a whole question to the server: connecting, greeting, asking and reading, however the bytes drip in.

The time-outs of a socket begin anew with every byte. Here each step of one question gets what the steps before have
left of its time.
"""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

_PUNCTUAL = 0.75
"""Of the time, so much must be left for a step to go by the time-out that the socket has already."""


class Deadline(threading.local):
    """Of what the current thread is asking. Without ``seconds`` there is none."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._until = math.inf

    def start(self) -> None:
        """A question begins."""
        if self.seconds is not None:
            self._until = monotonic() + self.seconds

    def stop(self) -> None:
        """What follows is none of our questions: it goes by the time-outs of the sockets."""
        self._until = math.inf

    def left(self) -> float:
        """Seconds left. Raises :class:`TimeoutError` when there are none."""
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left


class TimedSocket:
    """A socket, plain or of TLS, whose reads and writes end at the deadline."""

    def __init__(self, socket: Any, deadline: Deadline) -> None:
        self._socket = socket
        self._deadline = deadline
        self._in_time = (deadline.seconds or 0) * _PUNCTUAL
        self._hurried = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv_into(self, *arguments: Any) -> int:
        self._hurry()
        return int(self._socket.recv_into(*arguments))

    def recv(self, *arguments: Any) -> bytes:
        self._hurry()
        return bytes(self._socket.recv(*arguments))

    def sendall(self, *arguments: Any) -> None:
        self._hurry()
        self._socket.sendall(*arguments)

    def _hurry(self) -> None:
        left = self._deadline.left()
        if left < self._in_time:
            self._socket.settimeout(left)
            self._hurried = True
        elif self._hurried:
            self._socket.settimeout(self._deadline.seconds)
            self._hurried = False


class _Timed:
    """What makes a connection of redis-py keep the deadline; it is told as ``deadline=``."""

    socket_connect_timeout: float | None

    def __init__(self, *, deadline: Deadline, **options: Any) -> None:
        self._deadline = deadline
        super().__init__(**options)

    def _connect(self) -> TimedSocket:
        self.socket_connect_timeout = min(self._deadline.left(), self._deadline.seconds or math.inf)
        return TimedSocket(super()._connect(), self._deadline)  # type: ignore[misc]


class TimedConnection(_Timed, Connection):
    """TCP."""


class TimedTlsConnection(_Timed, SSLConnection):
    """TLS."""


class TimedUnixConnection(_Timed, UnixDomainSocketConnection):
    """A unix socket."""


TIMED_CONNECTIONS: dict[str, type[Any]] = {
    "redis": TimedConnection,
    "rediss": TimedTlsConnection,
    "unix": TimedUnixConnection,
}
"""By the scheme of a URI as redis-py calls it."""
