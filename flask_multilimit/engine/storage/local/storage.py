"""``local://``: a server that starts by itself, for all processes of one user on one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from ...decision import Charge, Decision
from ...errors import ConfigurationError, StorageError
from ...hits import Hit
from ..addresses import redacted
from ..base import Lost, Slot, StoredKey
from ..redis.storage import RedisStorage
from ..tallies import Tallies, Tally
from .server import (
    EXAMPLE,
    HAS_LOCKS,
    INSTALL,
    LONGEST_SOCKET,
    LocalServer,
    default_directory,
    find_program,
    why_unusable,
)

Answer = TypeVar("Answer")


class LocalStorage:
    """Quotas in a server on a unix socket. The first check on the machine starts the server, and the server ends soon
    after the last process that uses it. Does everything that :class:`RedisStorage` does, with nothing to set up.

    ``directory`` is an absolute path that only this user can access (mode 0700); by default ``flask-multilimit-<uid>``
    in the folder for temporary files. Processes that use the same directory share their quotas. The first check of a
    process may take up to 5 seconds, to start the server; later checks take at most ``timeout``.
    """

    shared = True

    def __init__(self, directory: Path | None = None, *, timeout: float) -> None:
        try:
            reason = _why_unsupported() or _why_unusable(directory or default_directory())
        except FileNotFoundError as error:  # a container that can write nowhere
            reason = f"{error.strerror}: name a directory, {EXAMPLE}"
        if reason:
            raise _error_for(str(directory or ""), reason)
        self._given_directory = directory
        self._timeout = timeout
        self._made: dict[str, Any] = {}  # one server and one RedisStorage, even if several threads make them

    @classmethod
    def from_path(cls, path: str, *, timeout: float) -> LocalStorage:
        """The storage at ``path``, the part of a URI after ``local://``. Creates and starts nothing. Raises
        :class:`ConfigurationError`."""
        if "?" in path:
            raise _error_for(path, f"it takes no options; to keep quotas apart, name a directory, {EXAMPLE}")
        return cls(Path(unquote(path, errors="surrogateescape")) if path else None, timeout=timeout)

    @cached_property
    def directory(self) -> Path:
        """The directory of the server's socket. The default is chosen at the first check, because an app that is
        started as root may run its workers as another user."""
        return self._given_directory or default_directory()

    @property
    def runs(self) -> bool:
        """Whether its server runs. If not, there is nothing to read, and no server should be started to read it."""
        return self._server.listens()

    @property
    def in_use(self) -> bool:
        """Whether a process uses its server. If not, the server ends two seconds after the last one, with its data."""
        return self._server.is_used()

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        return self._ask(self._redis.check, hits, check_id)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        return self._ask(self._redis.peek, hits)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        return self._ask(self._redis.check_many, many, ids)

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._ask(self._redis.settle, check_id, charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        self._ask(self._redis.release, slots, lost)

    def confirm(self) -> None:
        self._redis.confirm()

    def renew(self, slots: Sequence[Slot]) -> None:
        self._ask(self._redis.renew, slots)

    def reset(self, keys: Sequence[str]) -> None:
        self._ask(self._redis.reset, keys)

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        return self._ask(lambda: self._redis.keys(prefix, limit, containing=containing))

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        return self._ask(lambda: self._redis.tally(tallies, source=source, number=number))

    def tallies(self, keys: Sequence[str]) -> Tallies:
        return self._ask(self._redis.tallies, keys)

    def run_script(self, script: str, keys: Sequence[str], arguments: Sequence[bytes]) -> Any:
        return self._ask(self._redis.run_script, script, keys, arguments)

    @property
    def client(self) -> Any:
        """A client object of ``redis`` for the server, which this starts if necessary. Raises :class:`StorageError`."""
        return self._ask(lambda: self._redis.client)

    @property
    def clock(self) -> Callable[[], int] | None:
        redis: RedisStorage | None = self._made.get("redis")  # made only when needed, because it fixes the directory
        return None if redis is None else redis.clock

    @clock.setter
    def clock(self, clock: Callable[[], int] | None) -> None:
        self._redis.clock = clock

    def close(self) -> None:
        """Close the connections and stop using the server, which ends if no other process uses it."""
        self._redis.close()
        self._server.leave()

    @cached_property
    def _server(self) -> LocalServer:
        server: LocalServer = self._made.setdefault("server", LocalServer(self.directory))
        return server

    @cached_property
    def _redis(self) -> RedisStorage:
        url = f"unix://{quote(str(self._server.socket))}"
        redis: RedisStorage = self._made.setdefault("redis", RedisStorage.from_url(url, timeout=self._timeout))
        return redis

    def _ask(self, ask: Callable[..., Answer], *arguments: Any) -> Answer:
        if not self._server.found:
            self._server.find()
        try:
            return ask(*arguments)
        except StorageError as error:
            if not error.key_specific:
                self._server.found = False  # the next check looks for it again
            raise


def _error_for(path: str, why: str) -> ConfigurationError:
    uri = redacted(f"local://{path}")
    return ConfigurationError(f"storage URI {uri!r}: {why}")


def _why_unsupported() -> str:
    if not HAS_LOCKS:
        return "this system has no flock: use redis:// or memory://"
    if find_program() is None:
        return f"its server is not installed: {INSTALL}"
    return ""


def _why_unusable(directory: Path) -> str:
    """Why ``directory`` cannot be used, as far as can be known before its use; empty if it can be."""
    if not directory.is_absolute():
        return f"the directory must be absolute, {EXAMPLE}"
    if "\0" in str(directory) or os.fsencode(directory) != str(directory).encode(errors="replace"):
        return f"the directory must have a name in UTF-8 and without NUL, {EXAMPLE}"
    excess = len(os.fsencode(directory / "socket")) - LONGEST_SOCKET
    if excess > 0:
        return f"{directory} is {excess} bytes too long for the path of a socket: name a shorter one, {EXAMPLE}"
    if not directory.parent.is_dir():
        return f"the directory {directory.parent} does not exist: create it"
    if not os.path.lexists(directory):
        return ""
    owner = os.geteuid() or None  # the workers of an app that root starts may run as another user
    return why_unusable(directory.lstat(), owner)
