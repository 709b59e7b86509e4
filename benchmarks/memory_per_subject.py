"""Bytes that one rule keeps for one subject, by algorithm and by units used.

    python benchmarks/memory_per_subject.py [redis://HOST/0]

Without an address it starts the server of the test extra. On the server it asks MEMORY USAGE of a typical key; in
`memory://` it counts what Python allocates for many subjects, keys and all (tracemalloc), and divides.
"""

from __future__ import annotations

import gc
import platform
import statistics
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import redis

from flask_multilimit.engine import Hit, Limiter, MemoryStorage, RedisStorage, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS

UNITS = (1, 100, 10_000)
DAY = 86_400
TIMES = 5


class Clock:
    def __init__(self) -> None:
        self.now = 1_750_000_003_141_592

    def __call__(self) -> int:
        self.now += 1
        return self.now


RULES = {
    name: Rule(DAY, 100_000, algorithm=name, burst=100_000 if "burst" in twin.PARAMETERS else None)
    for name, twin in ALGORITHMS.items()
}


def plan_for(algorithm: str, subject: int) -> tuple[Hit, ...]:
    """A typical key: rate_limit:{api.update}:ip:203.0.113.7:sliding_window:86400000."""
    address = f"203.0.{subject // 256}.{subject % 256}"
    return hits_for(RULES[algorithm], scope="api.update", subject=f"ip:{address}")


def fill(limiter: Limiter, algorithm: str, subject: int, units: int) -> tuple[Hit, ...]:
    plan = plan_for(algorithm, subject)
    for _ in range(units):
        limiter.check(plan)
    return plan


def on_server(client: redis.Redis, algorithm: str, units: int) -> int:
    client.flushdb()
    (hit,) = fill(Limiter(RedisStorage(client, clock=Clock())), algorithm, 7, units)
    return int(client.memory_usage(hit.key, samples=0) or 0)


def in_memory(algorithm: str, units: int) -> int:
    """The median of several times, because other allocations of the process may count in one of them."""
    return round(statistics.median(_in_memory(algorithm, units) for _ in range(TIMES)))


def _in_memory(algorithm: str, units: int) -> float:
    """The memory that is freed with the storage of many subjects, for each of them."""
    subjects = max(20_000 // units, 5)
    tracemalloc.start()
    limiter = Limiter(MemoryStorage(Clock()))
    for subject in range(subjects):
        fill(limiter, algorithm, subject, units)
    full = traced()
    del limiter
    used = full - traced()
    tracemalloc.stop()
    return used / subjects


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def print_table(title: str, measure: Callable[[str, int], int]) -> None:
    print(f"\n{title}\n{'bytes, units used:':24}" + "".join(f"{units:>10,}" for units in UNITS))
    for algorithm in ALGORITHMS:
        print(f"{algorithm:24}" + "".join(f"{measure(algorithm, units):>10,}" for units in UNITS))


def server_of_the_tests(stack: ExitStack) -> redis.Redis:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.servers import Server, find_binaries  # noqa: PLC0415 - only without an address

    return stack.enter_context(Server(next(iter(find_binaries().values())))).client()


def main() -> None:
    with ExitStack() as stack:
        client = redis.Redis.from_url(sys.argv[1]) if len(sys.argv) > 1 else server_of_the_tests(stack)
        if client.dbsize():
            sys.exit("the database is not empty, and would be emptied: name another")
        info = client.info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version", info["redis_version"])
        print_table(f"{name} {version}", lambda algorithm, units: on_server(client, algorithm, units))
        client.flushdb()
    print_table(f"memory://, Python {platform.python_version()}", in_memory)


if __name__ == "__main__":
    main()
