"""Processes and threads that take and release slots: never more than the count at any instant, and none is lost."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import redis

from history import slots
from history.broken import Defect
from history.processes import Processes, processes_on, results_of
from history.slots import TIMEOUT, Work, violations
from support.servers import Server

pytestmark = pytest.mark.slow

PROCESSES, THREADS, TIMES = 8, 4, 40

DEFECTS = {
    "admits one too many": (Defect("hit.count - used", "hit.count + 1 - used"), "too many"),
    "forgets slots early": (
        Defect(
            "used = call('ZCOUNT', hit.key, argument(now - hit.window + 1",
            "used = call('ZCOUNT', hit.key, argument(now - 3000",
        ),
        "too many",
    ),
    "takes a slot when it refuses": (
        Defect("local charging = allowed and not", "local charging = not"),
        "refused for nothing",
    ),
}
"""Defects in scripts, and what the checker must find."""
COMPILED_ONLY = {
    "takes a slot when it refuses": (
        Defect("return {now,0,delay", "call('ZADD', k2, now, id) return {now,0,delay", "compiled"),
        "refused for nothing",
    ),
}
"""Those whose Lua in compiled scripts differs from that in generic ones."""


@pytest.fixture(scope="module")
def processes(shared_server: Server) -> Iterator[Processes]:
    with processes_on(shared_server, PROCESSES) as processes:
        yield processes


def start(
    processes: Processes,
    seed: int,
    times: int = TIMES,
    defect: Defect | None = None,
    longest: float = slots.SOON,
    released: str | None = None,
    scripts: str = "both",
) -> list[Future[list[Work]]]:
    return processes.start(slots.run, seed, THREADS, times, defect, longest, released, scripts=scripts)


def run(processes: Processes, seed: int, *arguments: Any, **options: Any) -> list[Work]:
    return results_of(start(processes, seed, *arguments, **options))


def in_use(client: redis.Redis) -> int:
    return sum(client.zcard(key) for key in client.scan_iter("*:concurrency:*"))


@pytest.mark.parametrize("seed", range(2))
def test_slots_in_use_never_exceed_the_count_and_none_is_lost(processes: Processes, seed: int) -> None:
    history = run(processes, seed)

    assert not violations(history)
    assert sum(work.allowed for work in history) > len(history) / 20
    assert any(not work.allowed for work in history)
    assert in_use(processes.client) == 0


def test_work_longer_than_the_timeout_keeps_its_slot(processes: Processes) -> None:
    history = run(processes, 2, TIMES // 2, longest=2.5 * TIMEOUT)
    assert not violations(history)
    assert any(work.ending - work.answered > 2 * TIMEOUT * 10**9 for work in history)
    assert in_use(processes.client) == 0


def test_no_slot_is_lost_when_the_server_stalls(processes: Processes) -> None:
    """Commands that are sent while it stalls, releases too, are executed afterwards in any order."""
    calls = start(processes, 0)
    for _ in range(3):
        time.sleep(0.1)
        processes.client.client_pause(150)

    history = results_of(calls)

    assert not violations(history, on_its_way=0.2)
    assert in_use(processes.client) == 0


@pytest.mark.parametrize("scripts", ["generic", "compiled"])
@pytest.mark.parametrize("name", DEFECTS)
def test_checker_finds_a_defect_in_a_script(processes: Processes, name: str, scripts: str) -> None:
    """In at least one of five runs: on a busy machine, clients may not meet in the first."""
    defects = DEFECTS if scripts == "generic" else DEFECTS | COMPILED_ONLY
    defect, clause = defects[name]
    runs = (run(processes, seed, 2 * TIMES, defect, scripts=scripts) for seed in range(5))
    assert any(clause in violations(run) for run in runs)


@pytest.mark.parametrize("released", slots.BROKEN_RELEASES)
def test_checker_finds_slots_that_are_not_released(processes: Processes, released: str) -> None:
    """In at least one of ten runs: a client must ask at the moment when only such slots are in use."""
    runs = (run(processes, seed, 3 * TIMES, released=released) for seed in range(1, 11))
    assert any("refused for nothing" in violations(run) for run in runs)
