"""Runs the server of ``local://`` as long as a process uses it, and a moment longer. This is a program of its own,
which ``server.py`` starts; that explains the locks. It lives as long as the server, so it imports only what it needs.

    python -I -S supervisor.py DIRECTORY LOCK SERVER [ARGUMENT ...]

``LOCK`` is the descriptor of the supervisor's lock. It is held already, and stays so until this process ends.
"""

import contextlib
import fcntl
import os
import signal
import sys
import time
from types import FrameType

FILES = ("socket", "log", "masters", "supervisor", "election")
"""The files in the directory, in the order of their removal. The election comes last: holding it keeps other processes
away from the rest."""

IGNORED_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Sent to all processes of a service that is stopped. Its workers may have requests to finish, so the supervisor ends
after them."""

LINGERS = 2.0
"""Seconds for which the server outlives the last process that used it, so that quotas survive when all workers are
replaced at nearly the same time."""

MOST_BYTES = 65_536
PR_SET_PDEATHSIG = 1


class ServerEnded(Exception):  # noqa: N818 - what happened, not what is wrong
    """The server was killed, or could not start."""


def main(directory: str, lock: str, *command: str) -> None:
    if os.fork():
        os._exit(0)  # so that the process that has started this one need not wait for it
    os.chdir(directory)
    os.set_inheritable(int(lock), False)
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    users, election = os.open(".", os.O_RDONLY), os.open("election", os.O_RDWR)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    server = start(command)

    def on_child(_number: int, _frame: FrameType | None) -> None:
        if os.waitpid(server, os.WNOHANG)[0]:  # otherwise it was only stopped or continued
            raise ServerEnded

    signal.signal(signal.SIGCHLD, on_child)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)  # if the first signal comes just before a wait, the next one ends it
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        wait_until_unused(users, election)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    except ServerEnded:
        if not try_lock(election):
            return  # a process that waits for this server, or the next process, notices that it has ended
    else:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - pathlib would take a third of this process's memory


def start(command: tuple[str, ...]) -> int:
    """Start the server and return its process id. It ends with this process, if the system supports that."""
    supervisor, server = os.getpid(), os.fork()
    if server:
        return server
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, IGNORED_SIGNALS)  # the server would set handlers, but not the mask
        end_with_parent(supervisor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv(command[0], command)
    except BaseException as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError):  # some interpreters are built without ctypes
        import ctypes  # noqa: PLC0415 - in the child, which is about to become the server

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def wait_until_unused(users: int, election: int) -> None:
    """Return when no process uses the server and none can begin to, because this one holds both locks."""
    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)  # in place of the workers that a master will start
        while a_master_runs():
            time.sleep(LINGERS)
        fcntl.flock(users, fcntl.LOCK_UN)  # a new process has the election while it waits for this lock: do the same
        time.sleep(LINGERS)
        fcntl.flock(election, fcntl.LOCK_EX)
        if not a_master_runs() and try_lock(users):
            return
        fcntl.flock(election, fcntl.LOCK_UN)


def a_master_runs() -> bool:
    """Whether a process runs that replaces those of its workers that end."""
    try:
        masters = os.open("masters", os.O_RDONLY)
    except FileNotFoundError:  # no user had one
        return False
    try:
        return any(map(runs, map(int, os.read(masters, MOST_BYTES).split())))
    finally:
        os.close(masters)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the master of workers that run as another user
        pass
    return True


def try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
