"""What it costs to take a slot and give it back, beside one check of a sliding window: python -m benchmarks.slots"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from flask_multilimit import Concurrent, Rule
from flask_multilimit.engine import GuardedStorage, Limiter, MemoryStorage, Storage, hits_for, storage_from_uri

from .contenders import COUNT, PATIENCE
from .measure import Call, Samples, Variant, in_turn
from .setting import Setting

RATE, SLOT, BOTH = "one check of a rate", "a slot, taken and given back", "a rate and a slot"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with Setting(quick=False, pinned=True).server_on_one_core() as server:
        made: dict[str, Callable[[], Storage]] = {
            "a server": lambda: GuardedStorage(storage_from_uri(server.tcp_url, timeout=PATIENCE), on_error="raise"),
            "memory": MemoryStorage,
        }
        samples: Samples = {}
        for where, storage in made.items():  # apart: the interpreter adapts its code to the storage that an app has
            variants = _variants(where, storage)
            samples |= in_turn(variants, rounds=rounds, server=server.pid)
    print(f"{'':45} {'us':>7}  {'times':>6}  {'CPU us':>7}  {'times':>6}")
    for (who, where), taken in samples.items():
        pairs = list(zip(taken, samples[Variant(RATE, where)], strict=True))
        wall, cpu = median(each.wall for each in taken), median(each.cpu for each in taken)
        times, times_cpu = median(a.wall / b.wall for a, b in pairs), median(a.cpu / b.cpu for a, b in pairs)
        print(f"{f'{who}, on {where}':45} {wall:7.1f}  {times:6.2f}  {cpu:7.1f}  {times_cpu:6.2f}")


def _variants(where: str, storage: Callable[[], Storage]) -> dict[Variant, Call]:
    both: Any = [Rule(600, COUNT), Concurrent(COUNT)]
    return {
        Variant(RATE, where): _check(Limiter(storage())),
        Variant(SLOT, where): _take_and_give_back(Limiter(storage()), Concurrent(COUNT)),
        Variant(BOTH, where): _take_and_give_back(Limiter(storage()), both),
    }


def _check(limiter: Limiter) -> Call:
    hits = hits_for(Rule(600, COUNT), scope="rate")
    return lambda: limiter.check(hits)


def _take_and_give_back(limiter: Limiter, rules: Any) -> Call:
    hits = hits_for(rules, scope="slot")

    def call() -> None:
        with limiter.slot(hits):
            pass

    return call


if __name__ == "__main__":
    main()
