"""What it costs to take a slot and give it back, beside one check of a sliding window: python -m benchmarks.slots

On one core with the server, the work of both counts. On a core of its own, as on a machine of its own, the server works
on a release while the app goes on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from flask_multilimit import Concurrent, Rule
from flask_multilimit.engine import GuardedStorage, Limiter, MemoryStorage, Storage, hits_for, storage_from_uri

from .contenders import COUNT, PATIENCE
from .measure import Call, Samples, Variant, in_turn, pinned
from .setting import Setting

RATE, SLOT, BOTH = "one check of a rate", "a slot, taken and given back", "a rate and a slot"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    samples: Samples = {}
    with Setting().server() as server:

        def on_server() -> Storage:
            return GuardedStorage(storage_from_uri(server.tcp_url, timeout=PATIENCE), on_error="raise")

        # One after the other, because the interpreter adapts its code to the storage that an app has.
        for where, storage, apart in (
            ("a server on our core", on_server, False),
            ("a server on a core of its own", on_server, True),
            ("memory", MemoryStorage, False),
        ):
            with pinned(server.pid, apart=apart):
                samples |= in_turn(_variants(where, storage), rounds=rounds, server=server.pid)
    print(f"{'':63} {'us':>7}  {'times':>6}  {'CPU us':>7}  {'times':>6}")
    for (who, where), taken in samples.items():
        pairs = list(zip(taken, samples[Variant(RATE, where)], strict=True))
        wall, cpu = median(each.wall for each in taken), median(each.cpu for each in taken)
        times, times_cpu = median(a.wall / b.wall for a, b in pairs), median(a.cpu / b.cpu for a, b in pairs)
        print(f"{f'{who}, on {where}':63} {wall:7.1f}  {times:6.2f}  {cpu:7.1f}  {times_cpu:6.2f}")


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
