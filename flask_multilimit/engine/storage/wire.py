"""A straight wire to one server, for the one command that is sent at every request.

redis-py takes a connection from its pool, polls it, packs the command, and runs it inside of retries, events and
metrics: half of what a check costs the caller. Here the connections are redis-py's too, from the client's own pool,
so that TLS, unix sockets, passwords, time-outs and limits are as configured; but they stay at hand between two checks,
and the command comes packed.

Only for plain clients of protocol 2 that do not try again: everything else (Cluster, Sentinel, subclasses, retries,
push messages) has reasons of its own to be between us and the server.
"""

from __future__ import annotations

import functools
import inspect
import os
import select
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from redis import Redis
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .deadline import TIMED_CONNECTIONS

_PLAIN_CONNECTIONS = (Connection, SSLConnection, UnixDomainSocketConnection, *TIMED_CONNECTIONS.values())
_ASKS_FOR_COMMAND = (
    inspect.signature(ConnectionPool.get_connection).parameters["command_name"].default is inspect.Parameter.empty
)
"""Whether this redis-py (before 5.3) wants to be told what a connection is for."""


class _Line(NamedTuple):
    """A connection with nothing under way, and how to use it."""

    connection: Any
    send: Callable[[bytes], object]
    receive: Callable[[], Any]
    has_news: Callable[[], object]
    """Tells at once whether there is something to read."""


class Wire:
    """Sends packed commands through the pool of a client. Safe for threads, greenlets and forks."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._idle: list[_Line] = []
        _wires.add(self)
        # A storage that is dropped without being closed must not keep the pool's connections.
        weakref.finalize(self, _give_back, pool, self._idle).atexit = False

    def ask(self, command: bytes) -> Any:
        """The reply to ``command``. Raises redis-py's errors, after which the connection is not used again: nobody
        shall read what was meant for another, nor stay with a server that has become a replica."""
        line = self._take()
        try:
            line.send(command)
            reply = line.receive()
        except BaseException as error:
            self._drop(line.connection)
            if isinstance(error, OSError):
                raise _as_redis_error(error) from error
            raise
        if isinstance(reply, Exception) and not isinstance(reply, NoScriptError):
            self._drop(line.connection)
            raise reply
        self._idle.append(line)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Give all connections back to the pool."""
        _give_back(self._pool, self._idle)

    def forget(self) -> None:
        """Drop what belongs to the parent process."""
        self._idle.clear()

    def _take(self) -> _Line:
        """The line used last, unless the server has closed it meanwhile, or has something to say unasked."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return self._open()
            if not line.has_news():
                return line
            self._drop(line.connection)

    def _open(self) -> _Line:
        connection = self._pool.get_connection("EVALSHA") if _ASKS_FOR_COMMAND else self._pool.get_connection()
        return _line_of(connection)

    def _drop(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)


def _give_back(pool: Any, idle: list[_Line]) -> None:
    while idle:
        connection = idle.pop().connection
        connection.disconnect()
        pool.release(connection)


def wire_of(client: Any) -> Wire | None:
    """A wire beside ``client``, if it is a plain one."""
    pool = getattr(client, "connection_pool", None)
    if type(client) is not Redis or type(pool) is not ConnectionPool or client.connection is not None:
        return None
    options = pool.connection_kwargs
    retries = getattr(options.get("retry"), "_retries", 0) or options.get("retry_on_timeout")
    if pool.connection_class not in _PLAIN_CONNECTIONS or options.get("protocol") not in {2, "2"}:
        return None
    if retries or options.get("retry_on_error") or options.get("health_check_interval"):
        return None
    return Wire(pool)


def command_of(*arguments: bytes, and_more: int = 0) -> bytes:
    """A command as the protocol writes it (RESP: bulk strings), or its beginning, and more arguments to be added."""
    parts = [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"*%d\r\n%b" % (len(arguments) + and_more, b"".join(parts))


def _line_of(connection: Any) -> _Line:
    """Straight to the socket and the parser, where this redis-py has them; its public methods take some 4 % more of a
    check."""
    socket, parser = getattr(connection, "_sock", None), getattr(connection, "_parser", None)
    if socket is None or parser is None or not hasattr(select, "poll"):
        return _Line(
            connection,
            lambda command: connection.send_packed_command((command,)),
            connection.read_response,
            lambda: _can_be_read(connection),
        )
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return _Line(connection, socket.sendall, parser.read_response, functools.partial(poll.poll, 0))


def _as_redis_error(error: OSError) -> RedisError:
    kind = RedisTimeoutError if isinstance(error, TimeoutError) else RedisConnectionError
    return kind(str(error))


def _can_be_read(connection: Any) -> bool:
    try:
        return bool(connection.can_read())
    except Exception:  # closed, in whatever way
        return True


_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


def _forget_all() -> None:
    for wire in _wires:
        wire.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
