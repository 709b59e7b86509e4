"""What do the first checks of new workers cost, alone and when many start at once?

    python benchmarks/start_burst.py [--checkout ../other] [--processes 8] [--threads 4] [--server redis-server]

Alone: the slowest of the first 40 checks after the first one, in one thread, beside the median. The goal is at most 5
times the median, plus 1 ms. The first check connects and loads the script, so it is shown by itself.

At once: all processes have imported the package and wait; then each of their threads checks for ``--seconds``. The
output counts the checks that the storage did not answer in time. The goal is none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from before_after import server_at  # type: ignore[import-not-found]  # beside this script

HERE = Path(__file__).parents[1]
FIRST = 40
RULES = ["1000000/minute", "2000000/hour", "3000000/day"]


# In a process of the checkout


def work(url: str, threads: int, seconds: float) -> None:
    """Answer a line with the times of checks of several threads, as JSON."""
    from flask_multilimit.engine import Limiter, StorageError, hits_for, storage_from_uri  # noqa: PLC0415

    limiter = Limiter(storage_from_uri(url))
    hits = [hits_for(RULES, scope="burst", subject=f"user:{os.getpid()}-{n}") for n in range(threads)]
    found: list[tuple[float, float, str]] = []
    """Of each check: when it began, its seconds, and what went wrong."""
    together = threading.Barrier(threads + 1)

    def check(own: Any, begin: float) -> None:
        together.wait()
        while (started := time.perf_counter()) < begin + seconds:
            error = ""
            try:
                limiter.check(own)
            except StorageError as failure:
                error = str(failure)
            found.append((started - begin, time.perf_counter() - started, error))

    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    running = [threading.Thread(target=check, args=(own, begin)) for own in hits]
    for thread in running:
        thread.start()
    together.wait()
    for thread in running:
        thread.join()
    print(json.dumps(found), flush=True)


# In the process that measures


class Worker:
    def __init__(self, checkout: Path, url: str, threads: int, seconds: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", url, "--threads", str(threads), "--seconds", str(seconds)],
            env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._stdout.readline()

    def go(self) -> None:
        print(file=self._stdin, flush=True)

    def result(self) -> list[tuple[float, float, str]]:
        found: list[tuple[float, float, str]] = json.loads(self._stdout.readline())
        self._process.communicate()
        return found


def alone(checkout: Path, url: str, times: int) -> bool:
    """Whether the goal was reached, at the median over some processes."""
    print(f"alone: {'first':>8} {'slowest':>8} {'which':>6} {'median':>8} {'goal':>8}  (ms)")
    beyond = []
    for _ in range(times):
        worker = Worker(checkout, url, 1, 0.1)
        worker.go()
        first, *others = [1000 * taken for _, taken, _ in worker.result()][: FIRST + 1]
        slowest, median = max(others), statistics.median(others)
        goal = 5 * median + 1
        beyond.append(slowest / goal)
        print(f"       {first:8.2f} {slowest:8.2f} {others.index(slowest) + 2:6} {median:8.3f} {goal:8.2f}")
    return statistics.median(beyond) <= 1


def at_once(checkout: Path, url: str, processes: int, threads: int, seconds: float) -> bool:
    """Whether the storage answered every check."""
    workers = [Worker(checkout, url, threads, seconds) for _ in range(processes)]
    for worker in workers:
        worker.go()
    found = sorted(check for worker in workers for check in worker.result())
    failed = [check for check in found if check[2]]
    slowest = max(taken for _, taken, _ in found)
    print(f"{processes} x {threads}: {len(found)} checks, slowest {1000 * slowest:.0f} ms, {len(failed)} unanswered")
    for began, taken, error in failed[:10]:
        print(f"       at {began:.2f} s, after {1000 * taken:.0f} ms: {error:.90}")
    return not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, default=HERE, help="another checkout, to compare")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--server", default="redis-server", help="the binary of a Redis or Valkey server")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.threads, given.seconds)
        return
    reached = []
    for _ in range(given.times):
        with server_at(given.server) as url:
            reached.append(at_once(given.checkout, url, given.processes, given.threads, given.seconds))
    with server_at(given.server) as url:
        reached.append(alone(given.checkout, url, given.times))
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
