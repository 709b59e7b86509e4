"""What a calendar costs the server, beside a fixed window: python -m benchmarks.calendars

Each call is one check of one rule, sent by EVALSHA. The two kinds take turns, on one connection, and what
the server says that its scripts took counts, so that nothing of the worker is in it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from flask_multilimit import Calendar, Rule
from flask_multilimit.engine import Hits, Limiter, RedisStorage, hits_for

from .setting import Setting

CHECKS = 2000
"""Checks of one kind in a row."""
RULES: dict[str, Rule] = {
    "fixed window": Rule(30 * 86_400, 10**9, algorithm="fixed_window"),
    "calendar": Calendar(10**9, "month", timezone="Europe/Berlin", anchor=15),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with Setting().server() as server:
        client = server.client()
        for many in (1, 3):
            calls = {name: _check(RedisStorage(client), rule, many) for name, rule in RULES.items()}
            taken = _in_turns(calls, rounds, lambda: _spent(client))
            _show(many, taken)


def _check(storage: RedisStorage, rule: Rule, many: int) -> Callable[[], object]:
    """A check of ``many`` such rules, compiled already."""
    limiter = Limiter(storage)
    hits = Hits(hit for number in range(many) for hit in hits_for(rule, scope=f"benchmark {number}"))
    for _ in range(50):
        limiter.check(hits)
    return lambda: limiter.check(hits)


def _in_turns(
    calls: dict[str, Callable[[], object]], rounds: int, spent: Callable[[], float]
) -> dict[str, list[float]]:
    """Microseconds of the server for each check, by kind."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            before = spent()
            for _ in range(CHECKS):
                call()
            taken[name].append((spent() - before) / CHECKS)
    return taken


def _spent(client: Any) -> float:
    """Microseconds that the server has spent in scripts, by its own count."""
    stats = client.info("commandstats")
    return float(stats["cmdstat_evalsha"]["usec"])


def _show(many: int, taken: dict[str, list[float]]) -> None:
    window, calendar = (taken[name] for name in RULES)
    more = median(one - other for one, other in zip(calendar, window, strict=True))
    ratio = median(one / other for one, other in zip(calendar, window, strict=True))
    print(f"{many} in a check: fixed window {median(window):.1f} us, calendar {median(calendar):.1f} us", end="")
    print(f" ({more:+.1f} us, {ratio:.2f} times)")


if __name__ == "__main__":
    main()
