"""What the processes that use `local://` do in these tests."""

from __future__ import annotations

import contextlib
import os
import random
import time
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from flask_multilimit.engine import GuardedStorage, Limiter, StorageError, hits_for, storage_from_uri

HITS = hits_for("50/hour", scope="all", subject="user:everyone")
MANY = hits_for("1000000/hour", scope="many", subject="user:everyone")


def serve(connection: Connection[Any, Any], uri: str) -> None:
    """Do what the other end asks for, until it closes or its process ends."""
    limiter = Limiter(storage_from_uri(uri, timeout=10))  # a busy machine may answer late
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = connection.recv()
            try:
                connection.send(ACTION_BY_NAME[name](limiter, *arguments))
            except Exception as error:
                connection.send(error)


def check(limiter: Limiter, times: int = 1) -> int:
    """How many of ``times`` checks were admitted."""
    return sum(limiter.check(HITS).allowed for _ in range(times))


def server_id(limiter: Limiter) -> str:
    return str(limiter.storage.client.info("server")["run_id"])  # type: ignore[attr-defined]


def close(limiter: Limiter) -> None:
    limiter.close()


def fork(_: Limiter) -> int:
    """Leave a child behind that does nothing; its process id."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    return child


def fork_at_the_start(limiter: Limiter) -> int:
    """Leave a child behind that was forked while another thread was starting the server."""
    election = limiter.storage.directory / "election"  # type: ignore[attr-defined]
    first = Thread(target=check, args=(limiter,))
    first.start()
    while not election.exists():
        time.sleep(0.0001)
    child = fork(limiter)
    first.join()
    return child


def fork_and_check(limiter: Limiter, times: int) -> int:
    """How many checks of a forked child were admitted."""
    child = os.fork()
    if not child:
        os._exit(check(limiter, times))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def visit(limiter: Limiter, seed: float) -> tuple[str, float, float, list[int]]:
    """Use the server for a moment: its id, the begin and end, and the units that remained after each check."""
    pick = random.Random(seed)
    time.sleep(pick.uniform(0, 0.03))
    left = [limiter.check(MANY).statuses[0].remaining for _ in range(pick.randint(1, 20))]
    begin = time.monotonic()
    server = server_id(limiter)
    time.sleep(pick.uniform(0, 0.03))
    left += [limiter.check(MANY).statuses[0].remaining for _ in range(pick.randint(0, 20))]
    return server, begin, time.monotonic(), left


def survive(limiter: Limiter, times: int) -> tuple[int, str]:
    """Check through a guard until the storage decides again; how many checks it did not decide."""
    guarded = GuardedStorage(limiter.storage, workers=1)
    mine = Limiter(guarded)
    decided_here = 0
    deadline = time.monotonic() + 15
    for _ in range(times):
        mine.check(MANY)
    while (decision := mine.check(MANY)).decided_by == "local" or guarded.health().state == "failed":
        decided_here += 1
        if time.monotonic() > deadline:
            raise StorageError(f"not back: {guarded.health()}")
        time.sleep(0.005)
    return decided_here, str(decision.decided_by)


ACTIONS = (check, server_id, close, fork, fork_at_the_start, fork_and_check, visit, survive)
ACTION_BY_NAME = {action.__name__: action for action in ACTIONS}
