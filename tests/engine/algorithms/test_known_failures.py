"""The errors of estimating algorithms are exactly as large as documented."""

import importlib.util
import sys
from typing import Any

import pytest

from flask_multilimit.engine import Rule
from support.bench import Bench
from support.clock import microseconds
from support.folders import ROOT

SCRIPT = ROOT / "benchmarks" / "estimate_error.py"
COUNT = 100
WINDOW = 60


@pytest.fixture(scope="module")
def script() -> Any:
    """The script that the figures of the documentation come from."""
    spec = importlib.util.spec_from_file_location("estimate_error", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["estimate_error"] = module
    spec.loader.exec_module(module)
    del sys.modules["estimate_error"]
    return module


def attack(script: Any, bench: Bench, algorithm: str) -> list[int]:
    start = bench.clock.now

    def move(at: int) -> int:
        bench.clock.now = start + at
        return bench.clock.now

    admitted: list[int] = script.attack(bench.limiter, Rule(WINDOW, COUNT, algorithm=algorithm), move)
    return admitted


@pytest.mark.parametrize(
    ("algorithm", "count", "burst", "most"),
    [
        *(("fixed_window", count, None, 2 * count - 1) for count in (1, 2, 3, 5, 8)),
        ("sliding_window_counter", 1, None, 1),
        *(("sliding_window_counter", count, None, 2 * count - 2) for count in (2, 3, 5, 8)),
        *(
            (algorithm, count, burst, burst + count - 1)
            for algorithm in ("token_bucket", "gcra")
            for count, burst in ((4, 1), (4, 4), (5, 3), (7, 2))
        ),
    ],
)
def test_worst_case_of_any_traffic_in_a_window_is_as_documented(
    script: Any, algorithm: str, count: int, burst: int | None, most: int
) -> None:
    more = {} if burst is None else {"burst": burst}
    assert script.worst_case(algorithm, window=24, count=count, **more) == most


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [("sliding_window", COUNT), ("fixed_window", 2 * COUNT - 1), ("sliding_window_counter", 2 * COUNT - 2)],
)
def test_attack_at_window_edges_is_admitted_exactly_the_documented_worst_case(
    script: Any, bench: Bench, algorithm: str, most: int
) -> None:
    assert script.most_in_a_window(attack(script, bench, algorithm), microseconds(WINDOW)) == most


@pytest.mark.parametrize(("share", "most"), [(0, 100), (0.1, 109), (0.5, 149)])
def test_sliding_window_counter_admits_its_surplus_gradually_after_a_burst(
    script: Any, bench: Bench, share: float, most: int
) -> None:
    """At most ``most`` units pass in any part of that ``share`` of a window, after a burst at the edge of windows."""
    admitted = attack(script, bench, "sliding_window_counter")
    assert script.most_in_a_window(admitted, max(round(share * microseconds(WINDOW)), 2)) == pytest.approx(most, abs=1)


@pytest.mark.parametrize(
    ("algorithm", "load", "most", "share"),
    [
        *((algorithm, 0.9, 90, 0.9) for algorithm in ("fixed_window", "sliding_window_counter", "sliding_window")),
        *(("sliding_window_counter", load, COUNT, 0.9902) for load in (1, 1.1, 2)),  # one in a hundred too few
    ],
)
def test_admitted_share_of_evenly_spaced_requests_is_as_documented(
    script: Any, algorithm: str, load: float, most: int, share: float
) -> None:
    result = script.drive(algorithm, script.Traffic(load, even=True))
    assert (result.most, result.share) == (most, share)


@pytest.mark.parametrize(("algorithm", "most"), [("sliding_window", 100), ("sliding_window_counter", 113)])
def test_most_random_requests_admitted_in_a_window_are_as_documented(script: Any, algorithm: str, most: int) -> None:
    worst = max(script.drive(algorithm, script.Traffic(load, even=False)).most for load in (0.9, 1, 1.1, 2))
    assert worst == most
