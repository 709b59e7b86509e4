"""Which parameter belongs to which algorithm, and what it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit.engine import ConfigurationError, Rule
from support.bench import hits
from support.rates import RATES

if TYPE_CHECKING:
    from support.bench import Bench

TAKERS = {
    "burst": {"token_bucket", "leaky_bucket", "gcra"},
    "max_delay": {"leaky_bucket"},
    "lease": {"sliding_window", "fixed_window"},
}


@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize("parameter", TAKERS)
def test_a_parameter_is_taken_by_its_algorithms_and_by_no_other(algorithm: str, parameter: str) -> None:
    given: dict[str, Any] = {parameter: 5}

    if algorithm in TAKERS[parameter]:
        assert getattr(Rule(10, 20, algorithm=algorithm, **given), parameter) == 5
        return
    with pytest.raises(ConfigurationError) as caught:
        Rule(10, 20, algorithm=algorithm, **given)

    message = str(caught.value)
    assert f"{parameter}=5" in message
    assert f"{parameter} is taken by" in message
    assert f"not by {algorithm}; leave it out" in message
    assert all(taker in message for taker in TAKERS[parameter])


def test_the_message_names_rule_parameter_takers_and_remedy() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Rule(1, 5, burst=20)

    assert str(caught.value) == (
        "Rule(time=1, count=5, burst=20): burst is taken by token_bucket and leaky_bucket and gcra, "
        "not by sliding_window; leave it out"
    )


@pytest.mark.parametrize(
    ("time", "count", "lease", "message"),
    [
        (60, 9, 10, "lease=10 is more than sliding_window ever admits at once, which is 9 units"),
        (60, 10**6, 10_001, "lease=10001 is more than sliding_window ever admits at once, which is 10000 units"),
        (0.999, 100, 10, "a lease needs a time of at least 1 second; leave it out"),
    ],
)
def test_a_lease_that_could_never_be_taken_is_an_error(time: float, count: int, lease: int, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Rule(time, count, lease=lease)

    assert str(caught.value) == f"Rule(time={time}, count={count}, lease={lease}): {message}"


@pytest.mark.parametrize(
    ("time", "algorithm", "longer"),
    [
        (1, "sliding_window", 0.1),
        (3.337, "sliding_window", 0.333),
        (60, "sliding_window", 1),
        (86_400, "sliding_window", 1),
        (60, "fixed_window", 0),
    ],
)
def test_leased_units_are_counted_longer_by_their_life_in_the_same_key(
    time: float, algorithm: str, longer: float
) -> None:
    rule, plain = Rule(time, 100, algorithm=algorithm, lease=10), Rule(time, 100, algorithm=algorithm)

    assert rule.quota.window - plain.quota.window == round(longer * 1_000_000) == rule.lease_ms * 1000
    assert rule.window_ms == plain.window_ms


def test_a_burst_that_takes_longer_than_400_days_to_come_back_is_an_error() -> None:
    assert Rule(86_400, 1, algorithm="token_bucket", burst=400).burst == 400
    with pytest.raises(ConfigurationError, match="burst=401 would need more than 34560000 seconds"):
        Rule(86_400, 1, algorithm="token_bucket", burst=401)


@pytest.mark.parametrize(
    ("rule", "burst"),
    [
        (Rule(10, 20, algorithm="token_bucket"), 20),
        (Rule(10, 20, algorithm="leaky_bucket"), 20),
        (Rule(10, 20, algorithm="gcra"), 1),
        (Rule(10, 20, algorithm="leaky_bucket", max_delay=5), 10 + 20),
        (Rule(10, 20, algorithm="token_bucket", burst=3), 3),
        (Rule(10, 20, algorithm="leaky_bucket", burst=3, max_delay=5), 3),
        (Rule(10, 20, algorithm="gcra", burst=3), 3),
    ],
    ids=str,
)
def test_a_burst_left_out_is_what_the_documentation_says(bench: Bench, rule: Rule, burst: int) -> None:
    assert bench.limiter.check(hits(rule, cost=burst)).allowed
    assert bench.limiter.peek(hits(rule, cost=burst + 1)).retry_after == float("inf")
