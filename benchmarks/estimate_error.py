"""How far `fixed_window` and `sliding_window_counter` are from an exact count, in units admitted within one window.

    python benchmarks/estimate_error.py

`worst_case` tries every possible traffic on a small rule, so its figure is the true maximum; `attack` is the traffic
that reaches it, for a rule of any size; `Traffic` is what ordinary clients send. All of them use a simulated clock.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flask_multilimit.engine import Limiter, MemoryStorage, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS, Quota
from flask_multilimit.engine.reply import RETRY_AFTER

COUNT = 100
WINDOW = 60_000_000
WINDOWS = 50
ESTIMATES = ["fixed_window", "sliding_window_counter"]
SHOWN = ["sliding_window", *ESTIMATES]

State = Any


def worst_case(algorithm: str, *, window: int, count: int, burst: int | None = None) -> int:
    """The most units that any traffic can be admitted within one window of so many microseconds."""
    follow = _every_next_state(algorithm, Quota(window, count, burst or count, 0))
    best = dict.fromkeys(follow, 0)
    for _ in range(window):
        best = {state: max(units + best[after] for units, after in choices) for state, choices in follow.items()}
    return max(best.values())


def _every_next_state(algorithm: str, quota: Quota) -> dict[State, list[tuple[int, State]]]:
    """For every reachable state: (units charged now, state a microsecond later)."""
    follow: dict[State, list[tuple[int, State]]] = {}
    found: list[State] = [None]
    while found:
        state = found.pop()
        if state not in follow:
            follow[state] = list(_choices(algorithm, quota, state))
            found += [after for _, after in follow[state]]
    return follow


def _choices(algorithm: str, quota: Quota, state: State) -> Iterator[tuple[int, State]]:
    twin = ALGORITHMS[algorithm]
    remaining, _, _, seen = twin.evaluate(state, quota, 1, 0)
    yield 0, _later(state, quota)
    for units in range(1, remaining + 1):
        after, _ = twin.charge(state, quota, units, 0, seen, bytes(16))
        yield units, _later(after, quota)


def _later(state: State, quota: Quota) -> State:
    """The state a microsecond later, on a clock that always shows 0; ``None`` once it no longer counts."""
    if state is None or state[0] - 1 <= -2 * quota.window:
        return None
    return (state[0] - 1, *state[1:])


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now

    def move(self, at: int) -> int:
        self.now = at
        return at


def attack(limiter: Limiter, rule: Rule, move: Callable[[int], int]) -> list[int]:
    """One unit begins a window, the others come just before its end, and then as many as are admitted until a second
    window has passed.

    ``move`` sets the clock to a number of microseconds after the start and returns the instant. Returns the admitted
    instants.
    """
    plan = hits_for(rule, scope="attack")
    window = rule.window_ms * 1000
    admitted: list[int] = []
    at, end = 0, 2 * window - 2
    while at <= end:
        now = move(at)
        decision = limiter.check(plan)
        if decision.allowed:
            admitted.append(now)
            at = max(at, window - 1) if len(admitted) < rule.count else at
        else:
            at += decision.reply[RETRY_AFTER]
    return admitted


def most_in_a_window(admitted: list[int], window: int) -> int:
    """The largest number of instants in any (t - window, t]."""
    return max(count - bisect_right(admitted, at - window) for count, at in enumerate(admitted, 1))


@dataclass(frozen=True)
class Traffic:
    """One client that sends ``load`` times what the rule admits, either evenly spaced or at random."""

    load: float
    even: bool

    def instants(self) -> Iterator[int]:
        chance = random.Random(2026)
        gap = WINDOW / (COUNT * self.load)
        at, number = 0.0, 0
        while at < WINDOWS * WINDOW:
            yield round(at)
            number += 1
            at = number * gap if self.even else at + max(1, chance.expovariate(1 / gap))


@dataclass(frozen=True)
class Result:
    most: int
    """The most units admitted within one window."""
    share: float
    """The admitted units, as a share of what the rule allows."""


def drive(algorithm: str, traffic: Traffic) -> Result:
    clock = Clock()
    limiter = Limiter(MemoryStorage(clock))
    plan = hits_for(Rule(WINDOW / 1_000_000, COUNT, algorithm=algorithm), scope="estimate")
    admitted: list[int] = []
    for instant in traffic.instants():
        clock.now = instant
        if limiter.check(plan).allowed:
            admitted.append(instant)
    return Result(most_in_a_window(admitted, WINDOW), len(admitted) / (WINDOWS * COUNT))


def main() -> None:
    print("The most that any traffic is admitted within one window (all of it tried, 24 us)")
    for count in (2, 3, 5, 8):
        figures = ", ".join(f"{name} {worst_case(name, window=24, count=count)}" for name in ESTIMATES)
        print(f"  count {count}: {figures}")
    print(f"\nThe same traffic at count {COUNT} in 60 s")
    for name in SHOWN:
        clock = Clock()
        admitted = attack(Limiter(MemoryStorage(clock)), Rule(60, COUNT, algorithm=name), clock.move)
        print(f"  {name}: {most_in_a_window(admitted, WINDOW)}")
    for even in (True, False):
        print(f"\n{'Evenly spaced' if even else 'Random (Poisson)'} requests, {WINDOWS} windows, count {COUNT}")
        print(f"  {'load':>5}  {'algorithm':22}  {'most':>4}  {'admitted':>8}")
        for load in (0.5, 0.9, 1, 1.1, 2, 5):
            for name in SHOWN:
                result = drive(name, Traffic(load, even))
                print(f"  {load:5}  {name:22}  {result.most:4}  {result.share:8.2%}")


if __name__ == "__main__":
    main()
