"""One of the processes of test_exactness.py: checks from several threads, and writes down what was answered.

It is called with the address of the server and a subject, says when it is ready, and begins when it is told to.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from flask_multilimit.engine import Hit, Limiter, Rule, hits_for, storage_from_uri

THREADS = 4
CHECKS = 80
OWN = Rule(time=0.05, count=10)
SHARED = Rule(time=0.15, count=45)


def plan_of(subject: str) -> tuple[Hit, ...]:
    """One limit of the subject's own, and one that all share."""
    return (*hits_for(OWN, scope="own", subject=subject), *hits_for(SHARED, scope="shared"))


def main(url: str, subject: str) -> None:
    limiter = Limiter(storage_from_uri(url, timeout=30))
    plan = plan_of(subject)

    def work(_: int) -> list[list[int]]:
        return [list(limiter.check(plan).reply) for _ in range(CHECKS)]

    write("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(THREADS) as pool:
        write(json.dumps([reply for replies in pool.map(work, range(THREADS)) for reply in replies]))
    limiter.close()


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
