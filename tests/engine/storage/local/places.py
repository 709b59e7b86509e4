"""A directory of `local://`, the processes that use it, and those that serve it."""

import multiprocessing
import os
import re
import signal
import subprocess
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.storage.local import users
from support.waiting import PATIENCE, until

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["flask_multilimit.engine"])  # so that each user starts fast


def kill(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, how)


def suspend(pid: int) -> None:
    """Until SIGCONT. It has stopped when this returns."""
    kill(pid, signal.SIGSTOP)
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    until(lambda: subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("T"))


class User:
    """A process that uses a storage and runs actions of `users`. It stays until it is made to leave or killed."""

    def __init__(self, uri: str) -> None:
        self._connection: Connection[Any, Any]
        self._connection, other = _processes.Pipe()
        self.process = _processes.Process(target=users.serve, args=(other, uri), daemon=True)
        self.process.start()
        other.close()

    def __call__(self, action: str, *arguments: object) -> Any:
        """What the action of that name returns. Raises what it raises."""
        self._connection.send((action, arguments))
        assert self._connection.poll(PATIENCE), f"{action} takes longer than {PATIENCE:g} s"
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def leave(self) -> None:
        self._connection.close()
        self.process.join(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE)
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Place:
    directory: Path
    users: list[User] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"local://{self.directory}"

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    def user(self) -> User:
        user = User(self.uri)
        self.users.append(user)
        return user

    def servers(self) -> list[int]:
        running = self._running(rf"valkey-server .*{re.escape(str(self.socket))}")
        return [pid for pid in running if pid not in self.supervisors()]

    def supervisors(self) -> list[int]:
        return self._running(rf"supervisor\.py {re.escape(str(self.directory))} ")

    @property
    def server(self) -> int:
        (pid,) = self.servers()
        return pid

    @property
    def supervisor(self) -> int:
        (pid,) = self.supervisors()
        return pid

    def is_deserted(self) -> bool:
        return not (self.servers() or self.supervisors() or self._files())

    def _files(self) -> list[Path]:
        try:
            return list(self.directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):  # the last process may remove the directory at any moment
            return []

    def clean_up(self) -> None:
        for user in self.users:
            if user.process.is_alive():
                user.kill()
        for pid in {*self.supervisors(), *self.servers()}:
            kill(pid)

    @staticmethod
    def _running(pattern: str) -> list[int]:
        """The processes with such a command line, without those that have ended and wait to be reaped."""
        listed = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
        )
        each = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
        return [int(pid) for pid, state, *args in each if state[0] != "Z" and args and re.search(pattern, args[0])]
