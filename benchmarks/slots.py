"""What it costs to take a slot and give it back, beside one check of a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flask_multilimit import Concurrent, Rule
from flask_multilimit.engine import GuardedStorage, Limiter, MemoryStorage, Storage, hits_for, storage_from_uri

from .contenders import COUNT, OURS, PATIENCE
from .measure import Call, Variant, in_turn
from .results import Figure, median_of
from .setting import Setting

PART = "slots"
RATE, SLOT, BOTH = f"{OURS}, a rate", f"{OURS}, a slot", f"{OURS}, a rate and a slot"
STORAGES = ("a server", "memory")


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server:
        made: dict[str, Callable[[], Storage]] = {
            "a server": lambda: GuardedStorage(storage_from_uri(server.tcp_url, timeout=PATIENCE), on_error="raise"),
            "memory": MemoryStorage,
        }
        variants: dict[Variant, Call] = {}
        for where in STORAGES:
            variants[Variant(RATE, where)] = _check(Limiter(made[where]()))
            variants[Variant(SLOT, where)] = _take_and_give_back(Limiter(made[where]()), Concurrent(COUNT))
            both: Any = [Rule(600, COUNT), Concurrent(COUNT)]
            variants[Variant(BOTH, where)] = _take_and_give_back(Limiter(made[where]()), both)
        samples = in_turn(variants, rounds=setting.rounds(40), server=server.pid)
        for (who, where), taken in samples.items():
            pairs = list(zip(taken, samples[Variant(RATE, where)], strict=True))
            yield median_of(PART, who, where, "times a rate", (ours.wall / rate.wall for ours, rate in pairs))
            yield median_of(PART, who, where, "times a rate, CPU", (ours.cpu / rate.cpu for ours, rate in pairs))
            yield median_of(PART, who, where, "µs", (each.wall for each in taken))


def _check(limiter: Limiter) -> Call:
    hits = hits_for(Rule(600, COUNT), scope="rate")
    return lambda: limiter.check(hits)


def _take_and_give_back(limiter: Limiter, rules: Any) -> Call:
    hits = hits_for(rules, scope="slot")

    def call() -> None:
        with limiter.slot(hits):
            pass

    return call
