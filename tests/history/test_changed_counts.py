"""Counts are raised and lowered under load: no window holds more than the largest count in force during it."""

from __future__ import annotations

import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import pytest

from control.conftest import made
from flask_multilimit.engine import Rule, hits_for
from flask_multilimit.engine.storage.redis import scripts
from history import counts
from history.broken import KINDS, Defect, broken_by
from history.counts import DECLARED, LEARNED, SCOPE, WINDOW, Asked, Changed, longest_stall, violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.synchronize import Barrier, Event

    import redis

    from support.servers import Server

pytestmark = pytest.mark.slow

PROCESSES, THREADS = 3, 2
PATIENCE = 60
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


class Processes:
    """Several, which run together again and again."""

    def __init__(
        self, pool: ProcessPoolExecutor, barrier: Barrier, over: Event, server: Server, client: redis.Redis
    ) -> None:
        self._pool, self._barrier, self._over = pool, barrier, over
        self._server, self._client = server, client

    def run(
        self,
        schedule: Sequence[tuple[int, float]],
        defect: Defect | None = None,
        follows: str | None = None,
        scripts: str = "both",
    ) -> Run:
        """Ask while counts change; ``follows`` is how the first process breaks the contract."""
        self._client.flushall()
        self._over.clear()
        kinds = cycle(KINDS[scripts])
        calls = [
            self._pool.submit(
                counts.run,
                *(self._server.url, n, THREADS, defect, follows if n == 0 else None),
                are_compiled=next(kinds),
            )
            for n in range(PROCESSES)
        ]
        self._barrier.wait()
        try:
            changes = self._change(schedule)
        finally:
            self._over.set()
            wait(calls, PATIENCE)
        return Run([thread for call in calls for thread in call.result(PATIENCE)], changes)

    def _change(self, schedule: Sequence[tuple[int, float]]) -> list[Changed]:
        control, changes = made(self._server.url).control, []
        for count, seconds in schedule:
            before = time.monotonic_ns()
            rules = {"time": WINDOW, "count": count}
            control.override(SCOPE, limiter="default", rules=rules, lasting=True, force=True)
            changes.append(Changed(count, before, time.monotonic_ns()))
            time.sleep(seconds)
        return changes


@pytest.fixture(scope="module")
def processes(server: Server) -> Iterator[Processes]:
    context: Any = multiprocessing.get_context("spawn")
    barrier, over = context.Barrier(PROCESSES + 1, timeout=PATIENCE), context.Event()
    with (
        server.client() as client,
        ProcessPoolExecutor(PROCESSES, context, counts.meet_at, (barrier, over)) as pool,
    ):
        yield Processes(pool, barrier, over, server, client)


@pytest.mark.parametrize("seed", range(2))
def test_no_window_holds_more_than_the_largest_count_in_force_during_it(processes: Processes, seed: int) -> None:
    dice = random.Random(seed)
    at_random = [(dice.randint(LOW, HIGH), dice.random()) for _ in range(12)]

    run = processes.run([*at_random, *RAISED_AND_LOWERED])

    assert run.violations() == set()
    *_, raised, lowered = run.changes
    assert run.admitted(raised.after, lowered.before) > HIGH, "nobody has taken the raised count"


@pytest.mark.parametrize("name", counts.BROKEN)
def test_the_checker_finds_a_process_that(processes: Processes, name: str) -> None:
    assert "too many" in processes.run(RAISED_AND_LOWERED, follows=name).violations()


@pytest.mark.parametrize("kind", KINDS)
def test_the_checker_finds_a_script_that_admits_one_too_many(processes: Processes, kind: str) -> None:
    assert ONE_TOO_MANY.clause in processes.run(RAISED_AND_LOWERED, ONE_TOO_MANY, scripts=kind).violations()


def test_the_broken_script_is_the_shipped_one_but_for_one_place() -> None:
    text = scripts.script(ONE_TOO_MANY.driver, frozenset({"sliding_window"})).text

    assert text.count(ONE_TOO_MANY.text) == 1
    assert broken_by(ONE_TOO_MANY, hits_for(Rule(WINDOW, DECLARED), scope=SCOPE)), "and when it is compiled"


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
