"""Runs the server of ``local://`` for as long as anybody uses it: a program of its own, started by ``local_server``,
which also says who holds which lock. Only what it needs is imported, for it lives as long as the server.

    python -I -S supervisor.py DIRECTORY LOCK SERVER [ARGUMENT ...]

``LOCK`` is the descriptor of the supervisor's lock: held already, and until the end of this process.
"""

import contextlib
import fcntl
import os
import signal
import sys
from types import FrameType

FILES = ("socket", "log", "supervisor", "election")
"""What is in the directory; the election comes last, for who holds it keeps all others away from the rest."""

NOT_FOR_US = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Sent to a whole service when it is stopped, whose workers may have requests to finish: we end after them."""

PR_SET_PDEATHSIG = 1


class ServerEnded(Exception):  # noqa: N818 - what happened, not what is wrong
    """Somebody has killed it, or it could not start."""


def main(directory: str, lock: str, *command: str) -> None:
    if os.fork():
        os._exit(0)  # so that the process that started us has no child to wait for
    os.chdir(directory)
    os.set_inheritable(int(lock), False)
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    users, election = os.open(".", os.O_RDONLY), os.open("election", os.O_RDWR)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    server = start(command)

    def on_child(_number: int, _frame: FrameType | None) -> None:
        if os.waitpid(server, os.WNOHANG)[0]:  # else it was stopped, or goes on
            raise ServerEnded

    signal.signal(signal.SIGCHLD, on_child)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        wait_for_the_last(users, election)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    except ServerEnded:
        if not locked_at_once(election):
            return  # to somebody who waits for this server, or for the next: it finds us gone
    else:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - pathlib would be a third of our memory


def start(command: tuple[str, ...]) -> int:
    """The process id of the server, which ends when we do, at least where the system can see to it."""
    us, server = os.getpid(), os.fork()
    if server:
        return server
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, NOT_FOR_US)  # the server would set handlers, but not the mask
        end_with_parent(us)
        os.execv(command[0], command)
    except BaseException as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(1)


def end_with_parent(parent: int) -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError):  # some interpreters are built without ctypes
        import ctypes  # noqa: PLC0415 - here, in the child, where it is gone in a moment

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def wait_for_the_last(users: int, election: int) -> None:
    """Returns when nobody uses the server, and nobody can begin to: both locks are ours."""
    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_UN)  # a newcomer holds the election and waits for this one: never the other way
        fcntl.flock(election, fcntl.LOCK_EX)
        if locked_at_once(users):
            return
        fcntl.flock(election, fcntl.LOCK_UN)


def locked_at_once(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
