"""Connections of redis-py that keep a deadline for a whole question.

The timeout of a socket restarts with every byte. Here, each step of a question (connecting, greeting, asking, reading)
gets the time that the steps before it have left. If this process is itself late, it still reads bytes that have arrived
by then.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError

_NOT_YET = (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_AN_INSTANT = 0.000_001
"""Seconds. A timeout of 0 would make a socket non-blocking."""
_MOST_LATE_READS = 100
"""The most reads after the deadline: a server may never stop sending."""
PUNCTUAL = 0.75
"""If at least this part of the time is left, a step does not change the timeout of the socket."""

_CLOSED_AFTER_HANDSHAKE = (
    "if the server requires a certificate, name one that it accepts: ssl_certfile and ssl_keyfile in the storage URI; "
    "if a proxy such as stunnel answers in its place, start the server behind it"
)


class Deadline(threading.local):
    """The deadline of the current thread's question. Without ``seconds`` there is none."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.started: float = math.inf
        """By ``time.monotonic``."""

    def start(self, started: float | None = None) -> None:
        """Start the deadline of a question, which begins now or began at ``started``."""
        self.started = monotonic() if started is None else started

    def start_again(self) -> None:
        """Give a question that has a deadline its full time from now on."""
        if self.started < math.inf:
            self.start()

    def stop(self) -> None:
        """End the deadline. From now on, the timeouts of the sockets apply to each step."""
        self.started = math.inf

    def step(self) -> float:
        """Seconds that the next step may take. Raises :class:`TimeoutError` if none are left."""
        return min(self.left(), self.seconds or math.inf)

    def left(self) -> float:
        """Seconds left. Raises :class:`TimeoutError` if there are none."""
        left = self.remaining()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def remaining(self) -> float:
        """Seconds left; 0 or less after the deadline."""
        return math.inf if self.seconds is None else self.started + self.seconds - monotonic()


class TimedSocket:
    """A socket, plain or of TLS, whose reads and writes end at the deadline."""

    def __init__(self, socket: Any, deadline: Deadline) -> None:
        self.plain = socket
        self._deadline = deadline
        self._long_enough = (deadline.seconds or 0) * PUNCTUAL
        self._is_shortened = False
        self._polling = False
        self._late_reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def recv_into(self, buffer: Any, *arguments: Any) -> int:
        return int(self._receive(self.plain.recv_into, buffer, *arguments))

    def recv(self, *arguments: Any) -> bytes:
        return bytes(self._receive(self.plain.recv, *arguments))

    def _receive(self, receive: Callable[..., Any], *arguments: Any) -> Any:
        self._set_timeout()
        try:
            return receive(*arguments)
        except _NOT_YET:
            if self._polling:
                raise
        self._is_shortened = True
        try:  # what has arrived by now: this process may be late itself if it is busy, or has many greenlets
            self.plain.settimeout(0)
            return receive(*arguments)
        except _NOT_YET:
            raise TimeoutError("timed out") from None

    def sendall(self, *arguments: Any) -> None:
        self._set_timeout()
        self.plain.sendall(*arguments)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout. With 0, redis-py finds out whether there is anything to read."""
        self._polling = seconds == 0
        self.plain.settimeout(seconds)

    def _set_timeout(self) -> None:
        left = self._deadline.remaining()
        if self._polling:
            return
        self._late_reads = self._late_reads + 1 if left <= 0 else 0
        if self._late_reads > _MOST_LATE_READS:
            raise TimeoutError("timed out")
        if left < self._long_enough:
            self.plain.settimeout(max(left, _AN_INSTANT))
            self._is_shortened = True
        elif self._is_shortened:
            self.plain.settimeout(self._deadline.seconds)
            self._is_shortened = False


class Timed:
    """Makes a connection of redis-py keep the deadline that is given as ``deadline=``."""

    socket_connect_timeout: float | None

    def __init__(self, *, deadline: Deadline, **options: Any) -> None:
        self._deadline = deadline
        super().__init__(**options)

    def connect(self) -> None:
        """Connect, and give the next question its full time."""
        super().connect()  # type: ignore[misc]
        self._deadline.start_again()

    def _connect(self) -> TimedSocket:
        self.socket_connect_timeout = self._deadline.step()
        try:
            return TimedSocket(super()._connect(), self._deadline)  # type: ignore[misc]
        except OSError:
            socket.socket().close()  # raises if no file can be opened: the look-up of a name gives another reason then
            raise


class TimedConnection(Timed, Connection):
    """Over TCP."""


class _TlsInTime(SSLConnection):
    """Connects as redis-py does, but reuses the TLS context, and limits the handshake to the remaining time."""

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

    def context(self) -> ssl.SSLContext:
        """The TLS context, cached by options and files: loading the CAs of a machine can take longer than a whole check
        may. Raises ``OSError``, which names the file."""
        authorities = self.ca_certs, self.ca_path, self.ca_data
        own = self.certfile, self.keyfile, self.certificate_password
        since_redis_py_5_1 = getattr(self, "ssl_min_version", None), getattr(self, "ssl_ciphers", None)
        files = [Path(file) for file in (self.ca_certs, self.certfile, self.keyfile) if file]
        changed = tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)  # certificates are renewed
        return _context(authorities, own, self.cert_reqs, self.check_hostname, since_redis_py_5_1, changed)


_ThreePaths = tuple["str | None", "str | None", "str | None"]


@lru_cache(maxsize=32)
def _context(
    authorities: _ThreePaths,
    own: _ThreePaths,
    cert_reqs: ssl.VerifyMode,
    check_hostname: bool,
    since_redis_py_5_1: tuple[Any, Any],
    _: tuple[int, ...],
) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = check_hostname and cert_reqs != ssl.CERT_NONE
    context.verify_mode = cert_reqs
    if any(authorities):
        _load("ssl_ca_certs, ssl_ca_path", authorities, context.load_verify_locations)
    certificate, key, password = own
    if certificate or key:  # always with a password, even an empty one: otherwise OpenSSL asks at the terminal
        _load("ssl_certfile, ssl_keyfile", (certificate or "", key, password or ""), context.load_cert_chain)
    min_version, ciphers = since_redis_py_5_1
    if min_version is not None:
        context.minimum_version = min_version
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def _load(names: str, given: tuple[Any, ...], load: Callable[..., object]) -> None:
    try:
        load(*given)
    except OSError as error:  # errors of TLS are OSErrors, too
        shown = ", ".join(repr(path) for path in given[:2] if path)
        raise OSError(f"{names}: {shown} cannot be used: {error.strerror or error}") from error


class TimedTlsConnection(Timed, _TlsInTime):
    """Over TLS. A verified certificate must be for this host; redis-py before 6.0 accepts one for any host."""

    def __init__(self, *, ssl_check_hostname: bool = True, **options: Any) -> None:
        super().__init__(ssl_check_hostname=ssl_check_hostname, **options)

    def connect(self) -> None:
        """Connect. If that fails after the handshake, say what may be wrong: the server checks a client certificate
        only then, and its error is often lost; and a TLS proxy notices only then that no server is behind it."""
        self._handshake_done = False
        try:
            super().connect()
        except RedisConnectionError as error:
            if self._handshake_done:
                error.remedy = _CLOSED_AFTER_HANDSHAKE  # type: ignore[attr-defined]
            raise

    def _connect(self) -> TimedSocket:
        socket = super()._connect()
        self._handshake_done = True
        return socket


class TimedUnixConnection(Timed, UnixDomainSocketConnection):
    """Over a unix socket."""

    port = 0  # redis-py 8 reads it if connecting takes too long, but sets it only for the others


TIMED_CONNECTIONS: dict[str, type[Any]] = {
    "redis": TimedConnection,
    "rediss": TimedTlsConnection,
    "unix": TimedUnixConnection,
}
"""The connection for each scheme of a URI, by redis-py's name for the scheme."""
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
"""The schemes of URIs that name sentinels, and the protocol of the servers behind them."""
