"""One of the processes of test_server.py: it checks from several threads, and records what was admitted and when.

It is called with the address of the server, a name, and the time and count of the leased rule, says when it is ready,
and begins when it is told to.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from flask_multilimit.engine import GuardedStorage, LeasingStorage, Limiter, Rule, hits_for, storage_from_uri

THREADS = 4
SECONDS = 2.0
LEASE = 20
OWN = Rule(1, 25)
"""Of every process; it refuses what the leased one would admit."""
SPENT = hits_for(Rule(60, 100, lease=10), scope="spent")
SPENDING: list[Limiter] = []
"""The limiters of :func:`spend`, which live until the end of their process."""


def spend(url: str) -> None:
    """Spend 8 of 15 units that are taken, and end without closing."""
    SPENDING.append(Limiter(LeasingStorage(storage_from_uri(url, timeout=30))))
    for _ in range(1 + 2 + 4 + 1):
        SPENDING[-1].check(SPENT)


def main(url: str, name: str, seconds: str, count: str) -> None:
    limiter = Limiter(LeasingStorage(GuardedStorage(storage_from_uri(url, timeout=30))))
    leased = hits_for(Rule(int(seconds), int(count), lease=LEASE), scope="api")
    mixed = (*leased, *hits_for(OWN, scope="own", subject=f"user:{name}"))
    admitted: list[tuple[int, int]] = []

    def work(thread: int) -> int:
        asked, ends = 0, time.monotonic() + SECONDS
        while time.monotonic() < ends:
            asked += 1
            begins = time.monotonic_ns() // 1000
            if limiter.check(mixed if asked % 20 == thread else leased).allowed:
                admitted.append((begins, time.monotonic_ns() // 1000))
            time.sleep(0.002)
        return asked

    write("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(THREADS) as pool:
        asked = sum(pool.map(work, range(THREADS)))
    write(json.dumps({"asked": asked, "admitted": admitted}))
    limiter.close()


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
