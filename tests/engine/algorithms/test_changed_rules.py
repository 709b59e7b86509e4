"""A rule that changes while its key exists, and a clock that steps back: how units charged before still count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.conftest import Fresh
from flask_multilimit.engine import Rule
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.algorithms.base import AHEAD
from flask_multilimit.engine.reply import RESET_AFTER, RETRY_AFTER
from support.bench import Bench, exhaust, hits
from support.rates import RATES

COUNTERS = ["sliding_window", "fixed_window", "sliding_window_counter"]
BUCKETS = ["token_bucket", "leaky_bucket"]


def bucket(algorithm: str, count: int = 10, burst: int | None = None, max_delay: float | None = None) -> Rule:
    return Rule(10, count, algorithm=algorithm, burst=burst, max_delay=max_delay)


# Count


@pytest.mark.parametrize("algorithm", COUNTERS)
def test_changed_count_applies_to_units_already_charged(bench: Bench, algorithm: str) -> None:
    bench.limiter.check(hits(Rule(10, 10, algorithm=algorithm), cost=6))
    for count, remaining in ((20, 14), (6, 0), (3, 0)):
        assert bench.limiter.peek(hits(Rule(10, count, algorithm=algorithm))).remaining == remaining
    assert not bench.limiter.check(hits(Rule(10, 3, algorithm=algorithm))).allowed


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_changed_count_of_a_bucket_keeps_its_reset_after(bench: Bench, algorithm: str) -> None:
    bench.limiter.check(hits(bucket(algorithm, count=10), cost=6))
    doubled, halved = (bench.limiter.peek(hits(bucket(algorithm, count=count))) for count in (20, 5))
    assert (doubled.remaining, doubled.reset_after) == (8, 6)  # six tenths of either are used
    assert (halved.remaining, halved.reset_after) == (2, 6)


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_a_fraction_of_a_microsecond_does_not_grow_when_the_count_is_lowered(bench: Bench, algorithm: str) -> None:
    """It is stored in parts of a microsecond: 10**9 of them under the old count, one under the new."""
    bench.limiter.check(hits(Rule(10, 10**9, algorithm=algorithm), cost=99))  # 0.99 us
    lowered = bench.limiter.peek(hits(Rule(10, 1, algorithm=algorithm)))
    assert (lowered.remaining, lowered.reset_after) == (1, 0)


# Burst


@pytest.mark.parametrize("algorithm", [*BUCKETS, "gcra"])
def test_key_is_kept_longer_after_its_burst_was_raised(bench: Bench, algorithm: str) -> None:
    bench.limiter.check(hits(bucket(algorithm, burst=1)))
    bench.limiter.check(hits(bucket(algorithm, burst=10), cost=9))  # the raised burst applies at once
    bench.clock.advance(2)
    bench.limiter.check(hits("5/minute", subject="bo"))
    bench.limiter.check(hits("5/minute", subject="cy"))

    assert bench.limiter.peek(hits(bucket(algorithm, burst=10))).remaining == 2


@pytest.mark.parametrize("algorithm", [*BUCKETS, "gcra"])
def test_backlog_counts_against_a_lowered_burst_also_if_it_exceeds_it(bench: Bench, algorithm: str) -> None:
    bench.limiter.check(hits(bucket(algorithm, burst=10), cost=4))
    lowered = hits(bucket(algorithm, burst=2))

    assert bench.limiter.peek(hits(bucket(algorithm, burst=5))).remaining == 1
    assert bench.limiter.peek(hits(bucket(algorithm, burst=4))).remaining == 0
    refused = bench.limiter.check(lowered)
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 3)
    bench.clock.advance(3)
    assert exhaust(bench.limiter, lowered) == 1


@pytest.mark.parametrize("algorithm", [*BUCKETS, "gcra"])
def test_one_key_under_two_bursts_admits_no_more_than_the_larger_one(bench: Bench, algorithm: str) -> None:
    rules = hits(bucket(algorithm, burst=10)), hits(bucket(algorithm, burst=3))
    assert sum(bench.limiter.check(rule).allowed for _ in range(30) for rule in rules) == 10


# Queue


def test_a_changed_max_delay_applies_at_once(bench: Bench) -> None:
    exhaust(bench.limiter, hits(bucket("leaky_bucket", max_delay=3)))
    assert bench.limiter.check(hits(bucket("leaky_bucket", max_delay=5))).delay == 4
    refused = bench.limiter.check(hits(bucket("leaky_bucket", max_delay=4)))
    assert (refused.allowed, refused.retry_after) == (False, 1)


def test_leaky_bucket_keeps_its_level_when_it_becomes_a_queue(bench: Bench) -> None:
    exhaust(bench.limiter, hits(bucket("leaky_bucket", count=10, burst=4)))
    assert bench.limiter.check(hits(bucket("leaky_bucket", count=10, max_delay=9))).delay == 4


# Random changes

changes = st.lists(
    st.tuples(
        st.integers(0, 20_000),
        st.integers(1, 12),
        st.none() | st.integers(1, 12),
        st.none() | st.sampled_from([0.001, 0.004, 0.05]),
        st.integers(0, 13),
    ),
    max_size=20,
)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", RATES)
@given(changes=changes)
def test_retry_after_is_exact_after_any_change_of_a_rule(
    fresh: Fresh, algorithm: str, changes: list[tuple[int, int, int | None, float | None, int]]
) -> None:
    bench = fresh()
    takes = ALGORITHMS[algorithm].PARAMETERS
    for gap, count, burst, max_delay, cost in changes:
        bench.clock.now += gap
        rule = Rule(
            0.01,
            count,
            algorithm=algorithm,
            burst=burst if "burst" in takes else None,
            max_delay=max_delay if "max_delay" in takes else None,
        )
        plan = hits(rule, cost=cost)
        decision = bench.limiter.check(plan)

        assert 0 <= decision.remaining <= rule.quota.burst
        assert decision.allowed or cost > 0
        wait, start = decision.reply[RETRY_AFTER], bench.clock.now
        if wait > 0:
            bench.clock.now = start + wait - 1
            assert not bench.limiter.peek(plan).allowed
            bench.clock.now = start + wait
            assert bench.limiter.peek(plan).allowed
            bench.clock.now = start


# Lease


@pytest.mark.parametrize("window", [1, 5, 60])
def test_rule_that_gets_a_lease_counts_earlier_units_as_long_as_leased_units(bench: Bench, window: int) -> None:
    without, leased = hits(Rule(window, 5)), hits(Rule(window, 5, lease=2))
    others = hits(Rule(window, 5), subject="bo")
    whole = bench.limiter.check(without).at + leased[0].rule.quota.window

    bench.clock.advance(window)
    for instant in (bench.clock.now, whole - 1):
        bench.clock.now = instant
        bench.limiter.check(others)  # lets memory forget what it may
        seen = bench.limiter.peek(leased)
        assert (seen.remaining, seen.reply[RESET_AFTER]) == (4, whole - instant)
    bench.clock.now = whole
    assert (bench.limiter.check(leased).remaining, bench.limiter.peek(without).remaining) == (4, 4)


# A clock that steps back


@pytest.mark.usefixtures("_never_forgetting")
@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter"])
def test_clock_that_steps_back_lengthens_the_window_by_its_step(bench: Bench, algorithm: str) -> None:
    plan = hits(Rule(10, 5, algorithm=algorithm))
    bench.limiter.check(plan)
    bench.clock.advance(6)
    before = bench.limiter.check(plan)
    bench.clock.advance(-5)

    after = bench.limiter.peek(plan)

    assert after.remaining == 3
    assert after.reset_after == before.reset_after + 5


@pytest.mark.usefixtures("_never_forgetting")
@pytest.mark.parametrize("algorithm", [*BUCKETS, "gcra"])
def test_bucket_is_empty_after_a_clock_step_back_and_full_after_a_far_one(bench: Bench, algorithm: str) -> None:
    plan = hits(bucket(algorithm, count=10, burst=10))
    bench.limiter.check(hits(bucket(algorithm, count=10, burst=10), cost=4))

    bench.clock.advance(-6)
    assert bench.limiter.peek(plan).remaining == 0
    bench.clock.now -= AHEAD
    assert bench.limiter.peek(plan).remaining == 0
    bench.clock.now -= 1
    assert bench.limiter.peek(plan).remaining == 10
