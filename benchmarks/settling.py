"""What it costs to settle a charge, beside giving it back: python -m benchmarks.settling

Each call is a check and what follows it: a refund, or a settlement below or above the estimate. Each algorithm is asked
alone, on the server and in memory; the server shares our core, so that the work of both counts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

from flask_multilimit import Rule
from flask_multilimit.engine import GuardedStorage, Limiter, MemoryStorage, Storage, hits_for, storage_from_uri

from .contenders import PATIENCE
from .measure import Call, Samples, Variant, in_turn, pinned
from .setting import Setting

ALGORITHMS = ("sliding_window", "fixed_window", "sliding_window_counter", "gcra")
ESTIMATE = 10
SETTLED = {"refunded": 0, "settled at less": 6, "settled at more": 14}
"""What becomes of ten units."""
WINDOW = 2
"""Seconds; short, so that a sliding window keeps few entries."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    samples: Samples = {}
    with Setting().server() as server:

        def on_server() -> Storage:
            return GuardedStorage(storage_from_uri(server.tcp_url, timeout=PATIENCE), on_error="raise")

        places: tuple[tuple[str, Callable[[], Storage]], ...] = (("a server", on_server), ("memory", MemoryStorage))
        for name, storage in places:
            for algorithm in ALGORITHMS:
                with pinned(server.pid):
                    samples |= in_turn(_variants(algorithm, name, storage), rounds=rounds, server=server.pid)
    print(f"{'a check, and then':70} {'us':>7}  {'of a refund':>11}")
    for (who, where), taken in samples.items():
        pairs = zip(taken, samples[Variant("refunded", where)], strict=True)
        wall, times = median(each.wall for each in taken), median(one.wall / other.wall for one, other in pairs)
        print(f"{f'{who}: {where}':70} {wall:7.1f}  {times:11.2f}")


def _variants(algorithm: str, name: str, storage: Callable[[], Storage]) -> dict[Variant, Call]:
    where = f"{algorithm} on {name}"
    return {Variant(who, where): _settle(Limiter(storage()), algorithm, units) for who, units in SETTLED.items()}


def _settle(limiter: Limiter, algorithm: str, units: int) -> Call:
    burst = 10**6 if algorithm == "gcra" else None
    hits = hits_for(Rule(WINDOW, 10**6, algorithm=algorithm, burst=burst), scope=f"settled at {units}", cost=ESTIMATE)

    def call() -> None:
        limiter.settle(limiter.check(hits), units)

    return call


if __name__ == "__main__":
    main()
