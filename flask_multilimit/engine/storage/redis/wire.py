"""A short path to one server, for the one command that each request sends.

redis-py takes a connection from its pool, polls it, packs the command, and runs it inside retries, events and metrics.
That is half of what a check costs the caller. This module also uses connections of redis-py, from the client's own
pool, so TLS, unix sockets, passwords, time-outs and limits are as configured. But it keeps connections between checks,
and sends commands that are packed already. With a plain system socket and hiredis, it uses the socket directly.

It serves only plain clients of protocol 2 that do not retry, and those of redis+sentinel:// URIs. All other clients
(Cluster, redis-py's Sentinel, subclasses, retries, push messages) must send their commands by themselves.
"""

from __future__ import annotations

import _socket
import contextlib
import functools
import inspect
import math
import select
import signal
import socket
import struct
import time  # not its sleep(), which gevent may patch later
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from time import monotonic
from typing import Any

from redis import Redis
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.utils import HIREDIS_AVAILABLE

from ...errors import StorageError
from ...forks import notify_child
from ..base import Lost
from .connections import PUNCTUAL, Deadline, Timed, TimedSocket
from .failures import ELSEWHERE, FAILURES, NONE_FREE, storage_error
from .uri import address_of

if HIREDIS_AVAILABLE:
    import hiredis

_PLAIN_CONNECTIONS = (Connection, SSLConnection, UnixDomainSocketConnection)
_ASKS_FOR_COMMAND = (
    inspect.signature(ConnectionPool.get_connection).parameters["command_name"].default is inspect.Parameter.empty
)
"""Whether this redis-py (before 5.3) needs the name of the command to get a connection."""

_WAIT_SECONDS = 0.001
"""Seconds between two attempts to get a free connection."""
_CHUNK = 4096
"""The bytes to read at once: the reply to about a hundred rules."""
_LONG_CHUNK = 65_536
"""The bytes to read at once if a reply is longer, or if there are several replies."""
_SECONDS_BETWEEN_TIMER_CHECKS = 1.0
_FRESH_SECONDS = 0.5
"""Seconds after its last use during which a connection is assumed to be open, for repeatable commands."""
_MOST_UNREAD = 128
"""The most replies to :meth:`Wire.send` that one connection leaves unread."""
_INCOMPLETE = object()
"""In place of a reply that is not complete yet."""

Explain = Callable[[Exception], StorageError]
"""Makes the error that says why a command of :meth:`Wire.send` may not have been executed. Called only then, because
nearly all commands are executed."""


class Wire:
    """Sends packed commands through the pool of a client. Safe for threads, greenlets and forks."""

    def __init__(self, pool: Any, deadline: Deadline, explain: Explain) -> None:
        self._pool = pool
        self._deadline = deadline
        self._explain = explain
        self._idle: list[_Line] = []
        self.waits: bool = False
        """Whether :meth:`send` waits for the reply on the latest connection that was opened."""
        notify_child(self)
        # A storage that is dropped without being closed must not keep the pool's connections.
        weakref.finalize(self, _when_collected, pool, _give_back, pool, self._idle).atexit = False

    def ask(self, command: bytes, started: float, *, check_open: bool = True) -> Any:
        """The reply to ``command``, for a question that began at ``started`` (``time.monotonic``).

        With ``check_open``, it first checks whether the server has closed the connection. Otherwise, a closed
        connection leads to a ``ConnectionError``, so the caller must be able to repeat the command safely.

        Raises :data:`FAILURES`. After an error, unless it concerns only the keys of ``command``, this connection and
        all idle ones are not used again: no caller may read a reply that was meant for another, or stay with a server
        that is gone or has become a replica.
        """
        try:
            line = self._idle.pop()  # the one used last
        except IndexError:
            line, started = self._open(started)
        if check_open and line.has_input():
            line, started = self._take_another(line, started)
        try:
            reply = line.ask(command, started)
        except BaseException as error:
            self._drop(line)
            if isinstance(error, OSError):
                raise _as_redis_error(error) from error
            raise
        self._idle.append(line)
        if isinstance(reply, Exception):
            self._close_after(reply)
            raise reply
        return reply

    def ask_all(self, commands: Sequence[bytes], started: float) -> list[Any]:
        """The replies to ``commands``, in one round trip; some may be errors. Each has as much time as the reply to one
        :meth:`ask`. Raises :data:`FAILURES`."""
        line, started = self._take_another(*self._take(started))
        replies: list[Any] = self._use(line, line.ask_all, commands, started)
        for reply in replies:
            if isinstance(reply, Exception):
                self._close_after(reply)
        return replies

    def send(self, command: bytes, started: float, lost: Lost) -> None:
        """Send ``command`` without waiting for its reply. The next question on this connection reads it, or
        :meth:`confirm`. Raises :data:`FAILURES` if it cannot be sent."""
        line, started = self._take(started)
        if started - line.used > _FRESH_SECONDS and line.has_input():
            line, started = self._take_another(line, started)
        self._use(line, line.send, command, started, lost)

    def confirm(self) -> None:
        """Read the replies to :meth:`send` on idle connections."""
        for line in [line for line in self._idle if line.unread]:
            try:
                self._idle.remove(line)
            except ValueError:  # it has just been taken into use, which reads them, too
                continue
            try:
                line.read_unread(monotonic())
            except FAILURES:
                self._drop(line)
            else:
                self._idle.append(line)

    def make_room(self, until: float) -> bool:
        """Give one idle connection back to the pool, so that a command of the client can use it, as soon as there is
        one. Return ``False`` if there is none ``until`` then, by ``time.monotonic``."""
        while not _give_back_one(self._pool, self._idle):
            if monotonic() >= until:
                return False
            time.sleep(_WAIT_SECONDS)
        return True

    def close(self) -> None:
        """Give all connections back to the pool."""
        _give_back(self._pool, self._idle)

    def _close_after(self, reply: Exception) -> None:
        """Give all connections back, unless ``reply`` concerns only the keys of its command."""
        failure = self._explain(reply)
        if not (isinstance(reply, NoScriptError) or failure.server_code in ELSEWHERE or failure.key_specific):
            self.close()

    def _after_fork_in_child(self) -> None:
        """Drop what belongs to the parent process."""
        for line in self._idle:
            line.finalizer.detach()
        self._idle.clear()

    def _take(self, started: float) -> tuple[_Line, float]:
        try:
            return self._idle.pop(), started
        except IndexError:
            return self._open(started)

    def _use(self, line: _Line, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of ``line``, and keep the line unless it fails. :meth:`ask` does the same in less time."""
        try:
            answer = ask(*arguments)
        except BaseException as error:
            self._drop(line)
            if isinstance(error, OSError):
                raise _as_redis_error(error) from error
            raise
        self._idle.append(line)
        return answer

    def _take_another(self, line: _Line, started: float) -> tuple[_Line, float]:
        """``line``, or another one if the server has closed it or sent something that nobody asked for."""
        while not _is_usable(line):
            _disconnect(self._pool, line)
            try:
                line = self._idle.pop()
            except IndexError:
                return self._open(started)
        return line, started

    def _open(self, started: float) -> tuple[_Line, float]:
        """A new line, and the instant from which the time of the question counts: connecting has its own time, unless
        several servers share one deadline."""
        while True:
            self._deadline.start(started)
            try:
                connection = self._pool.get_connection("EVALSHA") if _ASKS_FOR_COMMAND else self._pool.get_connection()
            except RedisConnectionError as error:
                self._wait_for_another(error)
            except BaseException as error:
                if not isinstance(error, RedisError):  # interrupted: the pool may keep it, with unread replies
                    self._pool.disconnect(inuse_connections=False)
                raise
            else:
                try:
                    line = _line_of(connection, self._deadline, self._explain)
                except BaseException:
                    _release(self._pool, connection)
                    raise
                # A signal handler may raise before or after a question: the pool would miss a connection for ever.
                line.finalizer = weakref.finalize(line, _when_collected, self._pool, _release, self._pool, connection)
                line.finalizer.atexit = False
                self.waits = line.waits
                return line, self._deadline.started
            with contextlib.suppress(IndexError):
                return self._idle.pop(), started

    def _wait_for_another(self, error: RedisConnectionError) -> None:
        """Wait until another thread may have given a line back. Raises ``error`` if it has another cause, or if no time
        is left."""
        if str(error) != NONE_FREE or self._deadline.seconds is None or self._deadline.remaining() <= 0:
            raise error
        time.sleep(_WAIT_SECONDS)

    def _drop(self, line: _Line) -> None:
        # The system forgets what it has sent, so that no lost packet comes after the repetition of its question.
        with contextlib.suppress(AttributeError, OSError):
            line.connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _disconnect(self._pool, line)
        _give_back(self._pool, self._idle)


def _check_release(reply: Any, lost: Lost, explain: Explain) -> None:
    if type(reply) is not int:
        error = reply if isinstance(reply, Exception) else InvalidResponse(f"{reply!r:.80} in place of a number")
        lost(explain(error))


def _give_back(pool: Any, idle: list[_Line]) -> None:
    while _give_back_one(pool, idle):
        pass


def _when_collected(pool: Any, give_back: Callable[..., object], *arguments: object) -> None:
    """Give back the connections of a wire that was garbage collected, or that of a line.

    The garbage collector can call this at any point, even while this thread holds the lock of the pool, which cannot be
    taken twice in older releases of redis-py. So if the lock is held, another thread waits for it.
    """
    if pool._lock.acquire(blocking=False):
        pool._lock.release()
        give_back(*arguments)
    else:
        Thread(target=give_back, args=arguments, name="multilimit-give-back", daemon=True).start()


def _give_back_one(pool: Any, idle: list[_Line]) -> bool:
    """Give back one connection. Return whether there was one: other threads take them, too."""
    try:
        line = idle.pop()
    except IndexError:
        return False
    _disconnect(pool, line)
    return True


def _is_usable(line: _Line) -> bool:
    """Whether the connection is open, and has nothing to read but replies to :meth:`Wire.send`."""
    try:
        while line.has_input():
            if not line.unread:
                return False
            line.read_unread(None)
        return True
    except FAILURES:
        return False


def _release(pool: Any, connection: Any) -> None:
    connection.disconnect()
    pool.release(connection)


def _disconnect(pool: Any, line: _Line) -> None:
    line.finalizer.detach()  # first: the pool may give a connection that is released to another user at once
    _release(pool, line.connection)
    line.report_lost(RedisConnectionError("the connection was given up before the answer came"))


def wire_of(client: Any, deadline: Deadline) -> Wire | None:
    """A wire for ``client``; ``None`` if it must send commands by itself."""
    pool = getattr(client, "connection_pool", None)
    if type(client) is not Redis or type(pool) is not ConnectionPool or client.connection is not None:
        return None
    options = pool.connection_kwargs
    retries = getattr(options.get("retry"), "_retries", 0) or options.get("retry_on_timeout")
    kind = pool.connection_class
    is_ours = isinstance(kind, type) and issubclass(kind, Timed)
    if not (is_ours or kind in _PLAIN_CONNECTIONS) or options.get("protocol") not in {2, "2"}:
        return None
    if retries or options.get("retry_on_error") or options.get("health_check_interval"):
        return None
    return Wire(pool, deadline, lambda error: storage_error(error, address_of(client)))


def command_of(*arguments: bytes) -> bytes:
    """A command as the protocol packs it (RESP: bulk strings)."""
    parts = [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"*%d\r\n%b" % (len(arguments), b"".join(parts))


def _line_of(connection: Any, deadline: Deadline, explain: Explain) -> _Line:
    """A line that uses the socket directly if it is a system socket, neither of TLS nor of gevent."""
    sock = getattr(connection, "_sock", None)
    plain: Any = sock.plain if isinstance(sock, TimedSocket) else sock
    parser = getattr(connection, "_parser", None)
    is_plain = getattr(type(plain), "recv", None) is _socket.socket.recv
    if not is_plain or parser is None or not HIREDIS_AVAILABLE or not hasattr(select, "poll"):
        return _Line(connection, deadline, explain)
    return _SocketLine(connection, plain, parser.parse_error, deadline.seconds, explain)


class _Line:
    """A connection for one question at a time. Uses the methods of redis-py's connection."""

    waits: bool = True
    """Whether :meth:`send` waits for the reply."""
    finalizer: weakref.finalize[..., Any]
    """Gives the connection back when nobody holds the line any more."""

    def __init__(self, connection: Any, deadline: Deadline, explain: Explain) -> None:
        self.connection = connection
        self.used = 0.0
        """When the last question on it began, by ``time.monotonic``."""
        self._deadline = deadline
        self._explain = explain

    def has_input(self) -> object:
        """Whether there is something to read, or the connection was closed. Does not wait."""
        try:
            return self.connection.can_read()
        except Exception:  # it was closed in some way
            return True

    def ask(self, command: bytes, started: float) -> Any:
        """The reply to ``command``, within the time left of a question that began at ``started``."""
        return self.ask_all((command,), started)[0]

    def ask_all(self, commands: Sequence[bytes], started: float) -> list[Any]:
        """The replies to ``commands``, sent together."""
        self._deadline.start(started)
        self.connection.send_packed_command(commands)
        replies = list[Any]()
        for _ in commands:
            try:
                replies.append(self.connection.read_response(disconnect_on_error=False))
            except ResponseError as error:
                replies.append(error)
            self._deadline.start()
        return replies

    def send(self, command: bytes, started: float, lost: Lost) -> None:
        """Send ``command``, which releases a slot. The reply is read before the next one, or by :meth:`read_unread`."""
        _check_release(self.ask(command, started), lost, self._explain)

    @property
    def unread(self) -> int:
        """The number of replies to :meth:`send` that are still to be read."""
        return 0

    def read_unread(self, started: float | None) -> None:
        """Read the replies to :meth:`send`: those that have arrived, or if ``started`` is given, all."""

    def report_lost(self, error: Exception) -> None:
        """Report ``error`` to each release whose reply is unread: nobody will read from this connection any more."""


class _SocketLine(_Line):
    """Uses a system socket directly.

    On a unix socket, it waits for a reply in ``poll``, whose timeout does not restart after a signal. Over TCP,
    ``recv`` alone takes less time, but its timeout restarts after each signal that is handled. So there it waits in
    ``poll`` only if a timer keeps sending signals, as some profilers do. It notices a new timer within a second.
    """

    waits = False

    def __init__(
        self,
        connection: Any,
        plain: socket.socket,
        parse_error: Callable[[str], Exception],
        seconds: float | None,
        explain: Explain,
    ) -> None:
        self.connection = connection
        self._explain = explain
        self._socket = plain
        self._seconds = seconds
        # If a question has taken this long before it is sent, the timeout of the socket is shortened.
        self._untimed = math.inf if seconds is None else seconds * (1 - PUNCTUAL)
        self._normal_timeout: float | None = connection.socket_timeout  # not what connecting has left of it
        self._is_shortened = False
        self._send, self._receive = plain.sendall, plain.recv
        reader = hiredis.Reader(protocolError=InvalidResponse, replyError=parse_error, notEnoughData=_INCOMPLETE)
        self._feed, self._gets = reader.feed, reader.gets
        poll = select.poll()
        poll.register(plain, select.POLLIN)
        self._poll = poll.poll
        is_local = plain.family == _socket.AF_UNIX
        self._polls: bool = is_local
        self._check_timers_at: float = math.inf if is_local else 0.0
        """When to check again whether a timer ticks."""
        self._unread: deque[Lost] = deque()
        self.used = 0.0
        self.has_input = functools.partial(poll.poll, 0)  # type: ignore[method-assign]  # in less time
        plain.setblocking(True)
        self._wait_at_most(self._normal_timeout)

    def ask(self, command: bytes, started: float) -> Any:
        self.used = started
        if monotonic() - started > self._untimed or self._is_shortened:
            self._set_timeout(started)
        if started > self._check_timers_at:
            self._check_timers_at, self._polls = started + _SECONDS_BETWEEN_TIMER_CHECKS, _timer_ticks()
        self._send(command)
        if self._polls and not self._poll(self._milliseconds):
            raise TimeoutError("timed out")
        self._feed(self._receive(_CHUNK))
        if self._unread:
            self._read_all_unread(started)
        return self._next_reply(started)

    def ask_all(self, commands: Sequence[bytes], started: float) -> list[Any]:
        self._set_timeout(started)
        self._send(b"".join(commands))
        replies = []
        self._read_all_unread(started)
        for _ in commands:
            replies.append(self._next_reply(started))
            started = monotonic()
        return replies

    def send(self, command: bytes, started: float, lost: Lost) -> None:
        if len(self._unread) >= _MOST_UNREAD:
            self._read_all_unread(started)
        self._send(command)
        self._unread.append(lost)

    @property
    def unread(self) -> int:
        return len(self._unread)

    def read_unread(self, started: float | None) -> None:
        if started is not None:
            self._read_all_unread(started)
        while self._unread and self._poll(0):
            self._read_more()
            while self._unread and (reply := self._gets()) is not _INCOMPLETE:
                self._take_release(reply)

    def report_lost(self, error: Exception) -> None:
        while self._unread:
            self._unread.popleft()(self._explain(error))

    def _read_all_unread(self, started: float) -> None:
        """Read all replies to :meth:`send`, and wait for those that have not arrived."""
        while self._unread:
            self._take_release(self._next_reply(started))

    def _take_release(self, reply: Any) -> None:
        _check_release(reply, self._unread.popleft(), self._explain)

    def _next_reply(self, started: float) -> Any:
        reply = self._gets()
        return self._read_reply(started) if reply is _INCOMPLETE else reply

    def _read_reply(self, started: float) -> Any:
        """Wait for the rest of a reply that arrives in pieces, and return it."""
        while True:
            self._set_timeout(started)
            if not self._poll(self._milliseconds):
                raise TimeoutError("timed out")
            self._read_more()
            reply = self._gets()
            if reply is not _INCOMPLETE:
                return reply

    def _read_more(self) -> None:
        received = self._receive(_LONG_CHUNK)
        if not received:
            raise RedisConnectionError("the server closed the connection")
        self._feed(received)

    def _set_timeout(self, started: float) -> None:
        """Set the timeout of the socket to the time left if that is short, or else back to the normal one."""
        elapsed, was_shortened = monotonic() - started, self._is_shortened
        self._is_shortened = elapsed > self._untimed
        if self._is_shortened and self._seconds is not None:
            self._wait_at_most(self._seconds - elapsed)
        elif was_shortened:
            self._wait_at_most(self._normal_timeout)

    def _wait_at_most(self, seconds: float | None) -> None:
        """Set the timeout of the socket. Raises :class:`TimeoutError` if there is no time left."""
        if seconds is not None and seconds <= 0:
            raise TimeoutError("timed out")
        self._milliseconds = seconds * 1000 if seconds else None
        whole, part = divmod(max(round((seconds or 0) * 1_000_000), 1 if seconds else 0), 1_000_000)
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", whole, part))


def _timer_ticks() -> bool:
    """Whether a timer sends this process signals."""
    return any(any(signal.getitimer(timer)) for timer in _TIMERS)


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF) if hasattr(signal, "getitimer") else ()


def _as_redis_error(error: OSError) -> RedisError:
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return RedisTimeoutError("timed out")
    return RedisConnectionError(str(error))
