"""Which parameter belongs to which algorithm, and what it may be."""

from typing import Any

import pytest

from flask_multilimit.engine import ConfigurationError, Rule
from support.bench import Bench, hits

TAKERS: dict[str, set[str]] = {
    "sliding_window": {"lease"},
    "fixed_window": {"lease"},
    "sliding_window_counter": set(),
    "token_bucket": {"burst"},
    "leaky_bucket": {"burst", "max_delay"},
    "gcra": {"burst"},
}


@pytest.mark.parametrize("algorithm", TAKERS)
@pytest.mark.parametrize("parameter", ["burst", "max_delay", "lease"])
def test_parameter_is_accepted_by_its_algorithms_only(algorithm: str, parameter: str) -> None:
    given: dict[str, Any] = {parameter: 5}

    if parameter in TAKERS[algorithm]:
        assert getattr(Rule(10, 20, algorithm=algorithm, **given), parameter) == 5
        return
    with pytest.raises(ConfigurationError, match=f"{parameter} works with .*, not with {algorithm}; leave it out"):
        Rule(10, 20, algorithm=algorithm, **given)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "Rule(time=1, count=5, burst=20)",
            "burst works with token_bucket and leaky_bucket and gcra, not with sliding_window; leave it out",
        ),
        (
            "Rule(time=60, count=9, lease=10)",
            "lease=10 is more than sliding_window ever admits at once, which is 9 units",
        ),
        ("Rule(time=60, count=1, lease=2)", "lease=2 is more than sliding_window ever admits at once, which is 1 unit"),
        (
            "Rule(time=60, count=1000000, lease=10001)",
            "lease=10001 is more than sliding_window ever admits at once, which is 10000 units",
        ),
        ("Rule(time=0.999, count=100, lease=10)", "a lease needs a time of at least 1 second; leave it out"),
        (
            "Rule(time=86400, count=1, algorithm='token_bucket', burst=401)",
            "burst=401 would need more than 34560000 seconds (400 days) to refill",
        ),
    ],
)
def test_parameters_that_contradict_each_other_are_an_error_with_its_reason(rule: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        eval(rule, {"Rule": Rule})
    assert str(caught.value) == f"{rule}: {message}"


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
def test_rule_with_a_lease_counts_units_longer_in_the_same_key(time: float, algorithm: str, longer: float) -> None:
    rule, plain = Rule(time, 100, algorithm=algorithm, lease=10), Rule(time, 100, algorithm=algorithm)
    assert rule.quota.window - plain.quota.window == round(longer * 1_000_000) == rule.lease_ms * 1000
    assert rule.window_ms == plain.window_ms


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
def test_default_burst_is_as_documented(bench: Bench, rule: Rule, burst: int) -> None:
    assert bench.limiter.check(hits(rule, cost=burst)).allowed
    assert bench.limiter.peek(hits(rule, cost=burst + 1)).retry_after == float("inf")
