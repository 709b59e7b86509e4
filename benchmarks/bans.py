"""What a ban adds to the check of a limiter, compared with one more rule: python -m benchmarks.bans"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING

from flask_multilimit import Ban, Rule
from flask_multilimit.engine import (
    GuardedStorage,
    Hit,
    Hits,
    Limiter,
    MemoryStorage,
    Storage,
    hits_for,
    storage_from_uri,
)

from .contenders import COUNT, PATIENCE
from .measure import Call, Variant, in_turn
from .setting import Setting

if TYPE_CHECKING:
    from support.servers import Server

ALONE, BANNING, ONE_MORE = "one rule", "one rule and a ban", "two rules"
STRUCK = "one rule and a ban of a subject with a strike"
TURNS, CALLS = 30, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with Setting(quick=False, pinned=True).server_on_one_core() as server:
        made: dict[str, Callable[[], Storage]] = {
            "a server": lambda: GuardedStorage(storage_from_uri(server.tcp_url, timeout=PATIENCE), on_error="raise"),
            "memory": MemoryStorage,
        }
        variants: dict[Variant, Call] = {}
        for where, storage in made.items():
            variants[Variant(ALONE, where)] = _check(Limiter(storage()), hits_for(Rule(600, COUNT), scope="alone"))
            banning = hits_for(Rule(600, COUNT), scope="banning", ban=Ban())
            variants[Variant(BANNING, where)] = _check(Limiter(storage()), banning)
            variants[Variant(STRUCK, where)] = _check_after_strike(Limiter(storage()))
            two = hits_for([Rule(600, COUNT), Rule(900, COUNT)], scope="two")
            variants[Variant(ONE_MORE, where)] = _check(Limiter(storage()), two)
        samples = in_turn(variants, rounds=rounds, server=server.pid)
        in_script = _script_times({who: call for (who, where), call in variants.items() if where != "memory"}, server)
    for who, us in in_script.items():
        print(f"{who:45} {us:6.1f} us in the script, {us / in_script[ALONE]:.2f} times one rule")
    print(f"{'':62} {'us':>7}  {'times':>6}  {'CPU us':>7}  {'times':>6}")
    for (who, where), taken in samples.items():
        pairs = list(zip(taken, samples[Variant(ALONE, where)], strict=True))
        wall, cpu = median(each.wall for each in taken), median(each.cpu for each in taken)
        times, times_cpu = median(a.wall / b.wall for a, b in pairs), median(a.cpu / b.cpu for a, b in pairs)
        print(f"{f'{who}, on {where}':62} {wall:7.1f}  {times:6.2f}  {cpu:7.1f}  {times_cpu:6.2f}")


def _script_times(calls: dict[str, Call], server: Server) -> dict[str, float]:
    """Microseconds that the server spends in the script of each call, by its own count: the median of many turns."""
    turns: dict[str, list[float]] = {who: [] for who in calls}
    with server.client() as client:
        for _ in range(TURNS):
            for who, call in calls.items():
                client.config_resetstat()
                for _ in range(CALLS):
                    call()
                turns[who].append(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])
    return {who: median(taken) for who, taken in turns.items()}


def _check(limiter: Limiter, hits: Iterable[Hit]) -> Call:
    kept = Hits(hits)
    return lambda: limiter.check(kept)


def _check_after_strike(limiter: Limiter) -> Call:
    hits = hits_for([Rule(600, COUNT), Rule(60, 1, algorithm="fixed_window")], scope="struck", ban=Ban(within=3600))
    while limiter.check(hits).allowed:
        pass
    return _check(limiter, (hits[0], hits[2]))


if __name__ == "__main__":
    main()
