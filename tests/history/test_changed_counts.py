"""Counts are raised and lowered under load: no window holds more than the largest count in force during it."""

from __future__ import annotations

import random
import time
from concurrent.futures import wait
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from control.conftest import made
from history import counts
from history.broken import KINDS, Defect
from history.counts import DECLARED, LEARNED, SCOPE, WINDOW, Asked, Changed, longest_stall, violations
from history.processes import PATIENCE, Processes, processes_on, together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.servers import Server

pytestmark = pytest.mark.slow

PROCESSES, THREADS = 3, 2
LOW, HIGH = 4, 40
RAISED_AND_LOWERED = [(HIGH, 1.5), (LOW, LEARNED + 3.0)]
"""Counts, and the seconds for which each is left: every process learns of each, and fills windows by it."""
ONE_TOO_MANY = Defect("hit.count - used\n    if hit.cost", "hit.count + 1 - used\n    if hit.cost", "too many")


@dataclass(frozen=True, slots=True)
class Run:
    asked: list[list[Asked]]
    """Of each thread."""
    changes: list[Changed]

    @property
    def history(self) -> list[Asked]:
        return list(chain.from_iterable(self.asked))

    @property
    def learned(self) -> float:
        """Seconds: as promised, and as long as a thread that learns may be kept waiting until it asks, and until it is
        answered."""
        return LEARNED + 2 * longest_stall(self.asked)

    def violations(self) -> set[str]:
        return violations(self.history, self.changes, self.learned)

    def admitted(self, start: int, end: int) -> int:
        return sum(each.allowed and start <= each.before and each.after <= end for each in self.history)


def run(
    processes: Processes,
    server: Server,
    schedule: Sequence[tuple[int, float]],
    defect: Defect | None = None,
    follows: str | None = None,
    scripts: str = "both",
) -> Run:
    """Ask while counts change; ``follows`` is how the first process breaks the contract."""
    calls = processes.start(counts.run, 0, THREADS, defect, follows, scripts=scripts)
    processes.barrier.wait()
    try:
        changes = change(server, schedule)
    finally:
        processes.over.set()
        wait(calls, PATIENCE)
    return Run(together(calls), changes)


def change(server: Server, schedule: Sequence[tuple[int, float]]) -> list[Changed]:
    control, changes = made(server.url).control, []
    for count, seconds in schedule:
        before = time.monotonic_ns()
        rules = {"time": WINDOW, "count": count}
        control.override(SCOPE, limiter="default", rules=rules, lasting=True, force=True)
        changes.append(Changed(count, before, time.monotonic_ns()))
        time.sleep(seconds)
    return changes


@pytest.fixture(scope="module")
def processes(server: Server) -> Iterator[Processes]:
    with processes_on(server, PROCESSES, waiting=1) as processes:
        yield processes


@pytest.mark.parametrize("seed", range(2))
def test_no_window_holds_more_than_the_largest_count_in_force_during_it(
    processes: Processes, server: Server, seed: int
) -> None:
    dice = random.Random(seed)
    at_random = [(dice.randint(LOW, HIGH), dice.random()) for _ in range(12)]

    found = run(processes, server, [*at_random, *RAISED_AND_LOWERED])

    assert found.violations() == set()
    *_, raised, lowered = found.changes
    assert found.admitted(raised.after, lowered.before) > HIGH, "nobody has taken the raised count"


@pytest.mark.parametrize("name", counts.BROKEN)
def test_the_checker_finds_a_process_that(processes: Processes, server: Server, name: str) -> None:
    assert "too many" in run(processes, server, RAISED_AND_LOWERED, follows=name).violations()


@pytest.mark.parametrize("kind", KINDS)
def test_the_checker_finds_a_script_that_admits_one_too_many(processes: Processes, server: Server, kind: str) -> None:
    assert ONE_TOO_MANY.clause in run(processes, server, RAISED_AND_LOWERED, ONE_TOO_MANY, scripts=kind).violations()


SECOND = 10**9


def burst(at: float, units: int) -> list[Asked]:
    start = round(at * SECOND)
    return [Asked(start + n, start + n + 1000, allowed=True) for n in range(units)]


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (burst(9, DECLARED), False),
        (burst(9, DECLARED + 1), True),
        (burst(10, HIGH), False),
        (burst(10, HIGH + 1), True),
        (burst(20.9, HIGH), False),
        (burst(21.1, HIGH), False),  # the window has begun before all have learned of the lowered count
        (burst(21.6, LOW), False),
        (burst(21.6, LOW + 1), True),
        ([*burst(30, LOW), *burst(30.4, 1)], True),
        ([*burst(30, LOW), *burst(30.6, LOW)], False),
        ([*burst(30, LOW), Asked(30 * SECOND, 31 * SECOND, allowed=True)], False),  # charged perhaps only at its end
        ([*burst(30, LOW), Asked(30 * SECOND, 30 * SECOND + 1, allowed=False)], False),
    ],
)
def test_the_checker_judges_histories_written_by_hand(history: list[Asked], *, found: bool) -> None:
    changes = [Changed(HIGH, 10 * SECOND, 10 * SECOND), Changed(LOW, 20 * SECOND, 20 * SECOND)]

    assert violations(history, changes) == ({"too many"} if found else set())
