"""A primary that Sentinel monitors: each new connection first asks the sentinels for its address.

redis-py has its own pool for this. But that asks one sentinel after another with a full timeout each, and its
connections do not keep the deadline. Here, only the connection is special, so the rest (pool, wire, deadline) is the
same as for a single server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from redis.connection import parse_url
from redis.exceptions import AuthenticationError, InvalidResponse
from redis.exceptions import ConnectionError as RedisConnectionError

from ...threads import Beat
from ..addresses import Address, MalformedError, host_and_port
from .connections import SENTINEL_SCHEMES, TIMED_CONNECTIONS, Deadline, TimedConnection, TimedTlsConnection
from .failures import FAILURES

PORT = 26379
_PORTS = range(65_536)
LOOK_SECONDS = 1.0
"""The time between two questions whether there is a new primary."""
CLOSE_IDLE_SECONDS = 3.5
"""How long idle connections are closed, again and again, after a new primary was found: some were in use before."""
TIME_SHARE = 0.5
"""The part of the remaining time that one sentinel may take: the next one and the primary need the rest."""


class NoPrimaryError(RedisConnectionError):
    """No sentinel has named the primary."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class Primary:
    """The primary of ``service``, whose address the sentinels know. Thread-safe, fork-safe.

    ``scheme`` is ``redis`` or ``rediss``, ``options`` are options of redis-py for a connection to a sentinel.
    """

    def __init__(self, service: str, sentinels: tuple[Address, ...], scheme: str, options: Mapping[str, Any]) -> None:
        self.service = service
        self._sentinels = sentinels
        self._connection_class = TIMED_CONNECTIONS[scheme]
        self._options = options

        self.close_idle: Callable[[], Callable[[], object] | None] = lambda: None
        """A weak reference to a method that closes the idle connections of a storage. Weak, because the pool has this
        object and must not keep its storage alive."""
        self._connected = set[Address]()
        self._close_idle_until = 0.0
        self._kept: Any = None
        """The beat's connection to a sentinel."""
        self._beat = Beat(self._look, name="multilimit-sentinel")

    def __repr__(self) -> str:
        return f"the primary of {self.service!r}, named by {_listed(self._sentinels)}"

    def address(self, deadline: Deadline) -> Address:
        """The address of the primary, from the first sentinel that knows it. Raises :class:`NoPrimaryError`."""
        failures: list[tuple[Address, Exception | None]] = []
        for sentinel in self._sentinels:
            try:
                address = self._ask(sentinel, deadline)
            except FAILURES as error:
                failures.append((sentinel, error))
                continue
            if address:
                self._move_to_end({failed for failed, _ in failures})
                return address
            failures.append((sentinel, None))
        self._move_to_end({failures[0][0]})
        raise _no_primary(self.service, failures)

    def ask_another_first(self) -> None:
        """Ask another sentinel first next time, because nobody answers at the last address: its sentinel may be out of
        date."""
        self._move_to_end({self._sentinels[0]})

    def watch(self, address: Address) -> None:
        """Watch from now on whether ``address``, to which there is a connection, remains the primary. After a planned
        fail-over, the old primary answers until the sentinels make it a replica, and then loses its latest charges."""
        self._connected.add(address)
        self._beat.wake(monotonic() + LOOK_SECONDS)

    def close(self) -> None:
        self._beat.close(wait=LOOK_SECONDS)
        self._leave_kept()

    def _look(self) -> float:
        """The task of the beat."""
        deadline = Deadline(LOOK_SECONDS)
        deadline.start()
        with suppress(*FAILURES):  # the next connection reports it
            address = self._ask_first(deadline) or self.address(deadline)
            if self._connected - {address}:
                self._connected, self._close_idle_until = {address}, monotonic() + CLOSE_IDLE_SECONDS
            close_idle = self.close_idle()
            if close_idle is not None and monotonic() < self._close_idle_until:
                close_idle()
        return LOOK_SECONDS

    def _ask(self, sentinel: Address, deadline: Deadline) -> Address | None:
        connection = self._connection_to(sentinel, deadline)
        try:
            return self._ask_on(connection)
        finally:
            connection.disconnect()

    def _ask_first(self, deadline: Deadline) -> Address | None:
        """Ask the first sentinel, by a connection that is kept for the next time; ``None`` if it does not answer."""
        kept, first = self._kept, self._sentinels[0]
        if kept is None or (kept.host, kept.port) != first or kept.pid != os.getpid():
            self._leave_kept()
            kept = self._kept = self._connection_to(first, deadline)
        try:
            return self._ask_on(kept)
        except FAILURES:
            self._leave_kept()
            return None

    def _leave_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.disconnect()

    def _connection_to(self, sentinel: Address, deadline: Deadline) -> Any:
        host, port = sentinel
        seconds = deadline.step() * TIME_SHARE
        own = Deadline(seconds)
        own.start()
        return self._connection_class(host=host, port=port, deadline=own, socket_timeout=seconds, **self._options)

    def _ask_on(self, connection: Any) -> Address | None:
        connection.connect()
        connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        answer = connection.read_response()
        try:
            return (answer[0].decode(), _PORTS.index(int(answer[1]))) if answer else None
        except (ValueError, TypeError, LookupError, AttributeError):
            raise InvalidResponse(f"this is no address: {answer!r:.80}") from None

    def _move_to_end(self, sentinels: set[Address]) -> None:
        self._sentinels = tuple(sorted(self._sentinels, key=sentinels.__contains__))


class _ToPrimary:
    """Makes a timed connection connect to the primary that is given as ``primary=``."""

    host: str
    port: int
    _deadline: Deadline

    def __init__(self, *, primary: Primary, **options: Any) -> None:
        self._primary = primary
        super().__init__(**options)

    def _connect(self) -> Any:
        self.host, self.port = self._primary.address(self._deadline)
        try:
            connected = super()._connect()  # type: ignore[misc]
        except OSError:
            self._primary.ask_another_first()
            raise
        self._primary.watch((self.host, self.port))
        return connected


class PrimaryConnection(_ToPrimary, TimedConnection):
    """TCP."""


class PrimaryTlsConnection(_ToPrimary, TimedTlsConnection):
    """TLS."""


PRIMARY_CONNECTIONS: dict[str, type[Any]] = {"redis": PrimaryConnection, "rediss": PrimaryTlsConnection}
"""The connection for each scheme of a URI, by redis-py's name for the scheme."""


def to_primary(url: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """Translate ``redis+sentinel://user:password@host:port,host:port/service/db?sentinel_password=...`` to a URI that
    redis-py understands, and further options of the client.

    ``options`` are options of redis-py for the connections to sentinels. Raises ``ValueError``.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    credentials, at, hosts = place.rpartition("@")
    service, _, database = path.partition("/")
    if not service:
        raise MalformedError(f"it names no service: {scheme}://host:{PORT},host:{PORT}/SERVICE")
    if "" in hosts.split(","):
        raise MalformedError("it names no sentinel, or has a comma too many: host:port,host:port")
    sentinels = tuple(host_and_port(host, PORT) for host in hosts.split(","))
    own = {name: value for name, value in parse_qsl(query) if name.startswith("sentinel_")}
    others = urlencode([(name, value) for name, value in parse_qsl(query) if name not in own])
    plain = f"{SENTINEL_SCHEMES[scheme]}://{credentials}{at}localhost/{database}?{others}"
    credentials_of_sentinels = {name: own.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    if own:
        raise MalformedError(f"{', '.join(own)}: of sentinels it takes sentinel_username and sentinel_password")
    given: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
    shared = {name: value for name, value in given.items() if name.startswith(("ssl_", "socket_"))}
    all_options = {**options, **shared, **credentials_of_sentinels}
    primary = Primary(unquote(service), sentinels, SENTINEL_SCHEMES[scheme], all_options)
    return plain, {"connection_class": PRIMARY_CONNECTIONS[SENTINEL_SCHEMES[scheme]], "primary": primary}


def _no_primary(service: str, failures: list[tuple[Address, Exception | None]]) -> NoPrimaryError:
    answers = "; ".join(
        f"{_listed((sentinel,))} {f'{type(error).__name__}: {error}' if error else 'knows none of this name'}"
        for sentinel, error in failures
    )
    return NoPrimaryError(f"no sentinel names the primary of {service!r}: {answers}", remedy=_remedy(failures))


def _remedy(failures: list[tuple[Address, Exception | None]]) -> str:
    errors = [error for _, error in failures]
    if None in errors:
        return "the service is called as in the sentinels' `sentinel monitor NAME ...`"
    if any(isinstance(error, AuthenticationError) for error in errors):
        return "give sentinel_password, and sentinel_username if there are users, in the storage URI"
    if any("NOPERM" in str(error) or "permission" in str(error) for error in errors):
        return "the sentinels' user needs +sentinel|get-master-addr-by-name"
    return "see whether the sentinels run and can be reached from this machine"


def _listed(sentinels: tuple[Address, ...]) -> str:
    return ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sentinels)
