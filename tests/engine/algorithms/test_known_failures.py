"""What the estimating algorithms get wrong, as the documentation says: no less, and no more."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit.engine import Rule
from support.bench import hits
from support.clock import microseconds
from support.folders import ROOT

if TYPE_CHECKING:
    from support.bench import Bench

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


# Fixed window


def test_fixed_window_admits_exactly_twice_the_count_from_one_edge_to_the_other(bench: Bench) -> None:
    """From the instant at which the window begins to that at which the next does, both included."""
    plan = hits(Rule(WINDOW, COUNT, algorithm="fixed_window"))
    start = bench.clock.now
    admitted = []
    for at in [0] + [microseconds(WINDOW) - 1] * COUNT + [microseconds(WINDOW)] * (COUNT + 1):
        bench.clock.now = start + at
        if bench.limiter.check(plan).allowed:
            admitted.append(at)

    assert len(admitted) == 2 * COUNT
    assert admitted[-1] - admitted[0] == microseconds(WINDOW)
    assert admitted[-1] - admitted[1] == 1  # all but the first of them in two microseconds


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_no_traffic_whatever_gets_more_of_a_fixed_window_than_twice_the_count_less_one(script: Any, count: int) -> None:
    assert script.worst_case("fixed_window", window=20, count=count) == 2 * count - 1


def test_a_window_of_one_unit_is_exact(script: Any) -> None:
    assert script.worst_case("fixed_window", window=20, count=1) == 1
    assert script.worst_case("sliding_window_counter", window=20, count=1) == 1


def test_the_attack_reaches_the_worst_of_a_fixed_window(script: Any, bench: Bench) -> None:
    admitted = attack(script, bench, "fixed_window")

    assert script.most_in_a_window(admitted, microseconds(WINDOW)) == 2 * COUNT - 1


# Sliding window counter


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_no_traffic_whatever_gets_more_of_the_counter_than_twice_the_count_less_two(script: Any, count: int) -> None:
    assert script.worst_case("sliding_window_counter", window=24, count=count) == 2 * count - 2


def test_the_attack_reaches_the_worst_of_the_counter(script: Any, bench: Bench) -> None:
    """The units of the window before came at its end, while the estimate takes them as spread over it."""
    admitted = attack(script, bench, "sliding_window_counter")

    assert script.most_in_a_window(admitted, microseconds(WINDOW)) == 2 * COUNT - 2


@pytest.mark.parametrize(("share", "most"), [(0, 100), (0.1, 109), (0.5, 149)])
def test_the_counter_admits_no_burst_beyond_its_count_but_the_estimate_lets_more_in_little_by_little(
    script: Any, bench: Bench, share: float, most: int
) -> None:
    """Of the window after the burst at its edge, so much passes in the part given."""
    admitted = attack(script, bench, "sliding_window_counter")

    assert script.most_in_a_window(admitted, max(round(share * microseconds(WINDOW)), 2)) == pytest.approx(most, abs=1)


# What the two are compared with


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
@pytest.mark.parametrize(("count", "burst"), [(4, 1), (4, 4), (5, 3), (7, 2)])
def test_no_traffic_whatever_gets_more_of_a_bucket_than_its_burst_and_the_count_less_one(
    script: Any, algorithm: str, count: int, burst: int
) -> None:
    assert script.worst_case(algorithm, window=20, count=count, burst=burst) == burst + count - 1


def test_the_attack_gets_the_count_and_no_more_of_a_sliding_window(script: Any, bench: Bench) -> None:
    admitted = attack(script, bench, "sliding_window")

    assert script.most_in_a_window(admitted, microseconds(WINDOW)) == COUNT


# Ordinary traffic


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window"])
def test_evenly_spaced_requests_below_the_rate_are_all_admitted(script: Any, algorithm: str) -> None:
    result = script.drive(algorithm, script.Traffic(0.9, even=True))

    assert (result.most, result.share) == (90, 0.9)


@pytest.mark.parametrize("load", [1, 1.1, 2])
def test_of_evenly_spaced_requests_at_or_above_the_rate_the_counter_admits_one_in_a_hundred_too_few(
    script: Any, load: float
) -> None:
    result = script.drive("sliding_window_counter", script.Traffic(load, even=True))

    assert result.most == COUNT
    assert result.share == 0.9902


@pytest.mark.parametrize(("algorithm", "most"), [("sliding_window", 100), ("sliding_window_counter", 113)])
def test_of_random_requests_the_counter_admits_somewhat_more_than_the_count(
    script: Any, algorithm: str, most: int
) -> None:
    worst = max(script.drive(algorithm, script.Traffic(load, even=False)).most for load in (0.9, 1, 1.1, 2))

    assert worst == most
