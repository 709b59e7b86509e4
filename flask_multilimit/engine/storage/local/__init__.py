"""``local://``: a server that starts by itself, for all processes of one user on one machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...errors import ConfigurationError
from ..addresses import redacted
from ..base import check_timeout
from ..redis.connections import Deadline, TimedSocket, TimedUnixConnection
from ..redis.storage import RedisStorage
from ..redis.uri import timed_client
from .server import (
    EXAMPLE,
    HAS_LOCKS,
    INSTALL,
    LONGEST_SOCKET,
    SUPERVISOR,
    LocalServer,
    default_directory,
    find_program,
    find_supervisor,
    why_unusable,
)


class LocalConnection(TimedUnixConnection):
    """Connects to a ``local_server``, which it first starts if necessary. That takes none of the time of a question."""

    def __init__(self, *, local_server: LocalServer, **options: Any) -> None:
        self._server = local_server
        super().__init__(**options)

    def _connect(self) -> TimedSocket:
        if self._server.found:
            try:
                return self._connect_to_found()
            except TimeoutError:
                raise
            except OSError:  # it has ended
                self._server.found = False
        self._server.find()
        self._deadline.start_again()
        return self._connect_to_found()

    def _connect_to_found(self) -> TimedSocket:
        self.path: str = str(self._server.socket)
        self._server.connections.add(self)
        return super()._connect()


class LocalStorage(RedisStorage):
    """Quotas in a server on a unix socket. The first check on the machine starts the server, and the server ends soon
    after the last process that uses it. Does everything that :class:`RedisStorage` does, with nothing to set up.

    ``directory`` is an absolute path that only this user can access (mode 0700); by default ``flask-multilimit-<uid>``
    in the folder for temporary files. Processes that use the same directory share their quotas. A check takes at most
    ``timeout``, and up to 5 seconds longer if it must start the server: the first one, or the next one after the server
    was killed.
    """

    def __init__(self, directory: Path | None = None, *, timeout: float) -> None:
        try:
            reason = _why_unsupported() or _mistake_in(directory or default_directory())
        except FileNotFoundError as error:  # a container that can write nowhere
            reason = f"{error.strerror}: name a directory, {EXAMPLE}"
        if reason:
            raise _error_for(str(directory or ""), reason)
        check_timeout(timeout)
        self._server = LocalServer(directory)
        deadline = Deadline(timeout)
        client = timed_client("unix:///socket", deadline, connection_class=LocalConnection, local_server=self._server)
        super().__init__(client, deadline=deadline)
        self._owns_client = True

    @classmethod
    def from_path(cls, path: str, *, timeout: float) -> LocalStorage:
        """The storage at ``path``, the part of a URI after ``local://``. Creates and starts nothing. Raises
        :class:`ConfigurationError`."""
        if "?" in path:
            raise _error_for(path, f"it takes no options; to keep quotas apart, name a directory, {EXAMPLE}")
        return cls(Path(unquote(path, errors="surrogateescape")) if path else None, timeout=timeout)

    @property
    def directory(self) -> Path:
        """The directory of the server's socket."""
        return self._server.directory

    @property
    def runs(self) -> bool:
        """Whether its server runs. If not, there is nothing to read, and no server should be started to read it."""
        return self._server.listens()

    @property
    def in_use(self) -> bool:
        """Whether a process uses its server. If not, the server ends two seconds after the last one, with its data."""
        return self._server.is_used()

    @property
    def client(self) -> Any:
        """A client object of ``redis`` for the server, which this starts if necessary. Raises :class:`StorageError`."""
        self._server.find()
        return super().client

    def close(self) -> None:
        """Close the connections and stop using the server, which ends if no other process uses it."""
        super().close()
        self._server.leave()


def _error_for(path: str, why: str) -> ConfigurationError:
    uri = redacted(f"local://{path}")
    return ConfigurationError(f"storage URI {uri!r}: {why}")


def _why_unsupported() -> str:
    if not HAS_LOCKS:
        return "this system has no flock: use redis:// or memory://"
    if find_program() is None:
        return f"its server is not installed: {INSTALL}"
    if not find_supervisor():
        return f"the file {SUPERVISOR} is missing: include it in the app, or use redis:// or memory://"
    return ""


def _mistake_in(directory: Path) -> str:
    """Why ``directory`` cannot be used, as far as can be known before its use; empty if it can be."""
    if not directory.is_absolute():
        return f"the directory must be absolute, {EXAMPLE}"
    if "\0" in str(directory) or os.fsdecode(str(directory).encode(errors="replace")) != str(directory):
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
