"""Histories of concurrent processes satisfy the contract, and the checker finds scripts that break it."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from flask_multilimit.engine import Limiter, Rule, hits_for
from flask_multilimit.engine.reply import RETRY_AFTERS
from flask_multilimit.engine.storage import MemoryStorage
from history import worker
from history.broken import COMPILED_ONLY, DEFECTS, GENERIC_ONLY, JITTERING_CLOCK, Defect
from history.checker import why_impossible
from history.operations import Operation
from history.processes import Processes, processes_on, results_of
from support.clock import Clock
from support.servers import Server

PROCESSES = 3
THREADS = 4
TIMES = 150
SEEDS = range(3)
TIMES_WITH_A_DEFECT = 80
ALGORITHMS = frozenset(rule.algorithm for rule in worker.LIMITS.values())

each_kind = pytest.mark.parametrize("are_compiled", [False, True], ids=["generic", "compiled"])
BROKEN = {
    **{f"{name}-generic": (defect, False) for name, defect in DEFECTS.items()},
    **{f"{name}-compiled": (defect, True) for name, defect in DEFECTS.items() if name not in GENERIC_ONLY},
    **{f"{name}-compiled only": (defect, True) for name, defect in COMPILED_ONLY.items()},
}


def run(
    processes: Processes,
    seed: int,
    times: int,
    defect: Defect | None = None,
    *,
    slowness: int = 1,
    are_compiled: bool = True,
) -> list[Operation]:
    scripts = "compiled" if are_compiled else "generic"
    return results_of(processes.start(worker.run, seed, THREADS, times, defect, slowness, scripts=scripts))


@pytest.fixture(scope="module")
def processes(any_shared_server: Server) -> Iterator[Processes]:
    with processes_on(any_shared_server, PROCESSES) as processes:
        yield processes


@each_kind
@pytest.mark.parametrize("seed", SEEDS)
def test_concurrent_operations_satisfy_the_contract(processes: Processes, seed: int, are_compiled: bool) -> None:
    for slowness in (1, 4, 16, 64):
        operations = run(processes, seed, TIMES, slowness=slowness, are_compiled=are_compiled)

        assert not why_impossible(operations)
        if refuses_by_each_algorithm(operations):
            break
    assert_run_was_contended(operations)


@each_kind
def test_contract_holds_when_the_server_clock_jitters(processes: Processes, are_compiled: bool) -> None:
    """As the clock of Valkey 9.1 does by itself, but all the time."""
    assert not why_impossible(run(processes, 0, TIMES, JITTERING_CLOCK, are_compiled=are_compiled))


def test_checker_knows_that_a_refused_check_forgets_what_has_passed() -> None:
    """Then the clock steps back, to an instant at which it had not passed."""
    clock = Clock()
    limiter = Limiter(MemoryStorage(clock=clock))
    meter, other = (hits_for(Rule(1, 1, algorithm="leaky_bucket"), scope=name) for name in ("meter", "other"))
    asked: list[Operation] = []
    for seconds, hits in ((0.0, meter), (1.0001, other), (0.0, (*meter, *other)), (-0.0002, meter)):
        clock.advance(seconds)
        decision = limiter.check(hits)
        instant = len(asked)
        asked.append(Operation("check", instant, instant, decision.check_id, decision.hits, tuple(decision.reply)))

    assert [operation.allowed for operation in asked] == [True, True, False, True]
    assert not why_impossible(asked)


def assert_run_was_contended(operations: list[Operation]) -> None:
    """Otherwise a checker that finds nothing would show little."""
    kinds = Counter(operation.kind for operation in operations)
    assert min(kinds[kind] for kind in ("check", "repeat", "peek", "refund")) > 20
    checks = [operation for operation in operations if operation.kind == "check"]
    assert sum(check.allowed for check in checks) > len(checks) / 10
    assert refuses_by_each_algorithm(operations)
    assert any(len(check.charged) < len(check.hits) and check.charged for check in checks)
    assert overlapping(operations) > len(operations) / 10


def refuses_by_each_algorithm(operations: list[Operation]) -> bool:
    checks = [operation for operation in operations if operation.kind == "check"]
    return all(any(refused_by(algorithm, check) for check in checks) for algorithm in ALGORITHMS)


def refused_by(algorithm: str, check: Operation) -> bool:
    answers = zip(check.hits, check.reply[RETRY_AFTERS], strict=True)
    return any(hit.rule.algorithm == algorithm and retry_after > 0 for hit, retry_after in answers)


def overlapping(operations: list[Operation]) -> int:
    """How many operations were called before the previous one had returned."""
    in_order = sorted(operations, key=lambda operation: operation.invoked)
    return sum(later.invoked < earlier.returned for earlier, later in pairwise(in_order))


@pytest.mark.parametrize(("defect", "are_compiled"), BROKEN.values(), ids=BROKEN)
def test_checker_finds_a_defect_in_a_script(processes: Processes, defect: Defect, are_compiled: bool) -> None:
    assert why_impossible(run(processes, 0, TIMES_WITH_A_DEFECT, defect, are_compiled=are_compiled))
