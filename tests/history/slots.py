"""One process of a run that takes and releases slots at random, and the checker of what all processes record.

All processes of a machine share one monotonic clock. A slot is certainly held from the return of its check until its
release is called. It is possibly held from the call of the check until the release has reached the server, a moment
after it has returned. So

- no more units than the count are ever certainly held ("too many");
- during a refused check there is an instant at which possibly too few units were free ("refused for nothing").
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest

from flask_multilimit.engine import Concurrent, Hit, Limiter, Rule, hits_for, storage_from_uri
from flask_multilimit.engine.algorithms import concurrency
from flask_multilimit.engine.storage.redis import storage
from history.broken import Defect, scripts_of_this_process
from history.processes import by_threads

COUNT, TIMEOUT = 6, 1
LONGEST_WORK = 0.01
COSTS = (1, 1, 1, 2)
ON_ITS_WAY = 0.05
"""Seconds that a release may take to the server, on a machine that is busy."""
SOON = 0.3
"""Seconds of work that is shorter than any timeout; some work takes longer, and its slots are renewed."""

BROKEN_RELEASES: dict[str, Callable[[bytes, int, bytes], tuple[bytes, ...]]] = {
    "nothing": lambda *_: (b"PING",),
    "one unit of a heavy check": lambda key, _, check_id: (b"ZREM", key, check_id),
}
"""Commands that release fewer units than were taken."""


@dataclass(frozen=True, slots=True)
class Work:
    """One check, and the work after it. Instants are nanoseconds."""

    cost: int
    asked: int
    answered: int
    allowed: bool
    ending: int
    """When its release was called; of a refused check, when it was answered."""
    ended: int
    """When that had returned."""


def plan(cost: int) -> tuple[Hit, ...]:
    rates = Rule(0.05, 12)
    return hits_for([rates, Concurrent(COUNT, TIMEOUT)], scope="slots", cost=cost)


def run(
    url: str,
    seed: int,
    threads: int,
    times: int,
    defect: Defect | None,
    longest: float,
    released: str | None = None,
    *,
    are_compiled: bool,
) -> list[Work]:
    """``times`` checks of each thread. Some work raises, and a little takes ``longest``: always the first work of one
    thread, which asks until it gets a slot, if ``seed`` is a multiple of 100. ``released`` is what a release gives
    back, if not everything."""
    with scripts_of_this_process(are_compiled=are_compiled, defect=defect), pytest.MonkeyPatch.context() as patch:
        if released is not None:
            patch.setattr(concurrency, "release_command", BROKEN_RELEASES[released])
        storage._release_parts.cache_clear()  # this process may have packed others in an earlier run
        limiter = Limiter(storage_from_uri(url, timeout=30))
        limiter.peek(plan(1))
        done = by_threads(
            seed, threads, lambda dice, n: work(limiter, dice, times, longest, starts_long=seed % 100 == n == 0)
        )
        limiter.close()
    return [each for together in done for each in together]


def work(limiter: Limiter, dice: random.Random, times: int, longest: float, *, starts_long: bool) -> list[Work]:
    done: list[Work] = []
    turns = 0
    while turns < times or (starts_long and not any(each.allowed for each in done)):
        turns += 1
        cost, asked = dice.choice(COSTS), time.monotonic_ns()
        ending = answered = 0
        allowed = False
        try:
            with limiter.slot(plan(cost)) as decision:
                answered, allowed = time.monotonic_ns(), decision.allowed
                if allowed:
                    is_long = dice.random() < 0.02 or (starts_long and not any(each.allowed for each in done))
                    time.sleep(longest if is_long else dice.random() * LONGEST_WORK)
                    ending = time.monotonic_ns()
                    if dice.random() < 0.2:
                        raise RuntimeError("the work fails")
        except RuntimeError:
            pass
        ended = time.monotonic_ns()
        if allowed or not any(status.rule.algorithm != "concurrency" for status in decision.violated):
            done.append(Work(cost, asked, answered, allowed, ending or answered, ended))
        time.sleep(dice.random() * LONGEST_WORK / 2)
    return done


def violations(history: Sequence[Work], count: int = COUNT, on_its_way: float = ON_ITS_WAY) -> set[str]:
    """The clauses of the contract that ``history`` breaks."""
    held = [each for each in history if each.allowed]
    found = set()
    if _most(held, lambda each: (each.answered, each.ending)) > count:
        found.add("too many")
    perhaps = _steps(held, lambda each: (each.asked, each.ended + round(on_its_way * 10**9)))
    for each in history:
        if not each.allowed and _most_during(perhaps, each.asked, each.answered) + each.cost <= count:
            found.add("refused for nothing")
    return found


def _steps(held: Iterable[Work], span: Callable[[Work], tuple[int, int]]) -> list[tuple[int, int]]:
    """Instants, and the units held from then on."""
    changes = sorted(change for each in held for change in ((span(each)[0], each.cost), (span(each)[1], -each.cost)))
    steps, units = [], 0
    for at, change in changes:
        units += change
        steps.append((at, units))
    return steps


def _most(held: Iterable[Work], span: Callable[[Work], tuple[int, int]]) -> int:
    return max((units for _, units in _steps(held, span)), default=0)


def _most_during(steps: Sequence[tuple[int, int]], start: int, end: int) -> int:
    before = 0
    most = 0
    for at, units in steps:
        if at <= start:
            before = units
        elif at <= end:
            most = max(most, units)
    return max(most, before)
