"""Waiting: retry_after, reset_after, edges of windows, and a clock that steps back."""

import pytest

from flask_multilimit.engine import Hit, hits_for
from flask_multilimit.engine.algorithms.base import AHEAD
from support.bench import Bench, exhaust, hits, rule
from support.clock import SECOND, microseconds
from support.effort import slow

DAY = 86_400
WINDOWS = [0.001, slow(0.007), 10, 400 * DAY]


def windows_of(algorithm: str) -> int:
    """For how many windows a unit counts: ``sliding_window_counter`` counts the window before, too."""
    return 2 if algorithm == "sliding_window_counter" else 1


def assert_admitted_exactly_at_retry_after(bench: Bench, plan: tuple[Hit, ...]) -> None:
    """Refused at every instant before ``retry_after`` that is tried, and admitted at it."""
    start = bench.clock.now
    wait = microseconds(bench.limiter.check(plan).retry_after)
    assert wait > 0
    for early in sorted({0, 1, wait // 3, wait // 2, wait - 1} - {wait}):
        bench.clock.now = start + early
        decision = bench.limiter.check(plan)
        assert not decision.allowed, f"admitted {wait - early} us early"
        assert microseconds(decision.retry_after) == wait - early
    bench.clock.now = start + wait
    assert bench.limiter.check(plan).allowed


@pytest.mark.parametrize("cost", [1, slow(2), 7])
@pytest.mark.parametrize("window", WINDOWS)
def test_exhausted_rule_admits_exactly_at_retry_after(bench: Bench, algorithm: str, window: float, cost: int) -> None:
    exhaust(bench.limiter, hits(rule(algorithm, window, 7)))
    assert_admitted_exactly_at_retry_after(bench, hits(rule(algorithm, window, 7), cost=cost))


@pytest.mark.parametrize("cost", [1, 3, 7])
def test_rule_charged_at_several_instants_admits_exactly_at_retry_after(
    bench: Bench, algorithm: str, cost: int
) -> None:
    for gap in (0, 0.1, 1.234567, 0.000001, 2):
        bench.clock.advance(gap)
        bench.limiter.check(hits(rule(algorithm, 10, 7), cost=2))
    exhaust(bench.limiter, hits(rule(algorithm, 10, 7)))

    assert_admitted_exactly_at_retry_after(bench, hits(rule(algorithm, 10, 7), cost=cost))


def test_plan_is_admitted_exactly_at_the_largest_retry_after(bench: Bench, algorithm: str) -> None:
    plan = hits([rule(algorithm, 3, 2), rule(algorithm, 7, 3), rule("sliding_window", 5, 4)])
    bench.limiter.check(plan)
    bench.clock.advance(0.5)

    for _ in range(5):
        exhaust(bench.limiter, plan)
        assert_admitted_exactly_at_retry_after(bench, plan)


@pytest.mark.parametrize("window", WINDOWS)
def test_quota_is_full_again_exactly_at_reset_after(bench: Bench, algorithm: str, window: float) -> None:
    plan = hits(rule(algorithm, window, 7))
    bench.limiter.check(plan)
    reset = microseconds(bench.limiter.check(plan).reset_after)

    bench.clock.now += reset - 1
    almost = bench.limiter.peek(plan)
    bench.clock.now += 1
    whole = bench.limiter.peek(plan)

    assert almost.remaining < 7
    assert microseconds(almost.reset_after) == 1
    assert (whole.remaining, whole.reset_after) == (7, 0)


def test_reset_after_of_a_decision_is_the_latest_of_its_rules(bench: Bench, algorithm: str) -> None:
    decision = bench.limiter.check(hits([rule(algorithm, 5), rule(algorithm, 50), rule(algorithm, 20)]))
    assert decision.reset_after == max(status.reset_after for status in decision.statuses)
    assert len({status.reset_after for status in decision.statuses}) == 3


# The edge of the sliding window: a unit charged at s counts at `now` while now - window < s <= now.


def test_sliding_window_never_admits_more_than_the_count_in_any_window(bench: Bench) -> None:
    plan = hits(rule("sliding_window", 10, 5))
    admitted = []
    for _ in range(200):
        if bench.limiter.check(plan).allowed:
            admitted.append(bench.clock.now)
        bench.clock.advance(0.377)

    assert max(sum(t - 10 * SECOND < s <= t for s in admitted) for t in admitted) == 5


# A clock that steps back


stepping_back = pytest.mark.usefixtures("_never_forgetting")


@stepping_back
@pytest.mark.parametrize("cost", [1, 5])
@pytest.mark.parametrize("window", [slow(1), slow(10), 29, 31, slow(60), slow(3600)])
def test_clock_step_back_locks_no_client_out_for_longer_than_a_window(
    bench: Bench, algorithm: str, window: float, cost: int
) -> None:
    exhaust(bench.limiter, hits(rule(algorithm, window, 5)))
    bench.clock.advance(-30)
    exhaust(bench.limiter, hits(rule(algorithm, window, 5)))

    assert bench.limiter.peek(hits(rule(algorithm, window, 5))).retry_after <= window * windows_of(algorithm)
    assert_admitted_exactly_at_retry_after(bench, hits(rule(algorithm, window, 5), cost=cost))


@stepping_back
@pytest.mark.parametrize("cost", [1, 5])
@pytest.mark.parametrize("window", [0.001, slow(1), slow(10)])
@pytest.mark.parametrize("step", [1, slow(50_000), AHEAD])
def test_small_clock_step_back_keeps_charges_and_lengthens_waits_by_the_step(
    bench: Bench, algorithm: str, window: float, cost: int, step: int
) -> None:
    plan = hits(rule(algorithm, window, 5), cost=cost)
    exhaust(bench.limiter, hits(rule(algorithm, window, 5)))
    wait = microseconds(bench.limiter.peek(plan).retry_after)
    bench.clock.now -= step

    assert bench.limiter.peek(plan).remaining == 0
    assert microseconds(bench.limiter.check(plan).retry_after) == wait + step
    assert_admitted_exactly_at_retry_after(bench, plan)


@stepping_back
@pytest.mark.parametrize("refused", [False, True])
def test_clock_step_back_forgets_only_charges_far_in_the_future(bench: Bench, *, refused: bool) -> None:
    plan, now = hits(rule("sliding_window", 60, 9), scope="plan"), bench.clock.now
    full = hits(rule("fixed_window", 60, 1), scope="full", cost=2 if refused else 1)
    for charged_at in (now - AHEAD // 2, now, now + AHEAD, now + AHEAD + 1, now + SECOND):
        bench.clock.now = charged_at
        bench.limiter.check(plan)
    bench.clock.now = now

    assert bench.limiter.check(full + plan).allowed != refused
    assert bench.limiter.peek(plan).remaining == 9 - 3 - (not refused)


@stepping_back
def test_check_whose_cost_is_not_known_yet_forgets_charges_far_in_the_future(bench: Bench, algorithm: str) -> None:
    """It charges nothing, as a peek, but unlike a peek it may write."""
    plan = hits(rule(algorithm, 10, 5))
    exhaust(bench.limiter, plan)
    bench.clock.advance(-30)
    assert bench.limiter.check(
        hits_for(rule(algorithm, 10, 5), scope="api", subject="user:ada", cost=0, settle=True)
    ).allowed
    bench.clock.advance(30)

    assert bench.limiter.peek(plan).remaining == 5


@stepping_back
def test_refund_after_a_small_step_back_returns_to_a_window_that_began_after_the_charge(
    bench: Bench, algorithm: str
) -> None:
    plan = hits(rule(algorithm, 10, 5))
    bench.limiter.check(plan)
    bench.clock.now -= AHEAD
    before = bench.limiter.peek(plan).remaining
    bench.limiter.refund(bench.limiter.check(plan))

    assert bench.limiter.peek(plan).remaining == before


@stepping_back
def test_charges_before_and_after_a_small_step_back_both_count(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 5))
    bench.limiter.check(hits(rule(algorithm, 10, 5), cost=2))
    bench.clock.advance(-0.05)

    assert exhaust(bench.limiter, plan) == (2 if algorithm in {"token_bucket", "leaky_bucket", "gcra"} else 3)
    assert_admitted_exactly_at_retry_after(bench, plan)


@stepping_back
def test_refused_check_keeps_charges_a_little_ahead_of_the_clock(bench: Bench, algorithm: str) -> None:
    full, other = hits(rule(algorithm, 50, 1), scope="full"), hits(rule(algorithm, 10, 5), scope="other")
    bench.limiter.check(full)
    exhaust(bench.limiter, other)
    bench.clock.now -= AHEAD
    assert not bench.limiter.check(full + other).allowed
    bench.clock.now += AHEAD

    assert bench.limiter.peek(other).remaining == 0


@stepping_back
def test_peek_after_a_clock_step_back_changes_nothing(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 60, 5))
    exhaust(bench.limiter, plan)
    before, stored = bench.limiter.peek(plan).reply, bench.stored()
    bench.clock.advance(-30)
    bench.limiter.peek(plan)
    bench.clock.advance(30)

    assert bench.limiter.peek(plan).reply == before
    assert bench.stored() == stored


@stepping_back
@pytest.mark.parametrize("back", [1, 30 * SECOND], ids=["just far enough", "30 s"])
def test_no_more_than_the_count_is_admitted_after_a_far_clock_step_back(
    bench: Bench, algorithm: str, back: int
) -> None:
    plan = hits(rule(algorithm, 10, 5))
    exhaust(bench.limiter, plan)
    bench.clock.now -= AHEAD + back

    assert exhaust(bench.limiter, plan) == 5
    assert bench.limiter.peek(plan).remaining == 0


@stepping_back
def test_retry_after_is_exact_with_charges_ahead_of_the_clock(bench: Bench, algorithm: str) -> None:
    full, future = hits(rule(algorithm, 50, 1), scope="full"), hits(rule(algorithm, 50, 1), scope="future")
    bench.limiter.check(full)
    bench.clock.advance(40)
    bench.limiter.check(future)
    bench.clock.advance(-30)

    assert_admitted_exactly_at_retry_after(bench, full + future)


@stepping_back
def test_sliding_window_retry_after_of_several_units_is_exact_after_a_step_back(bench: Bench) -> None:
    bench.limiter.check(hits(rule("sliding_window", 50, 2)))
    bench.clock.advance(40)
    bench.limiter.check(hits(rule("sliding_window", 50, 2)))
    bench.clock.advance(-30)

    assert_admitted_exactly_at_retry_after(bench, hits(rule("sliding_window", 50, 2), cost=2))


@stepping_back
def test_sliding_window_counter_retry_after_is_exact_after_a_step_back_to_the_window_before(bench: Bench) -> None:
    limit = rule("sliding_window_counter", 1, 1000)
    bench.limiter.check(hits(limit, cost=500))
    bench.clock.advance(1)
    bench.limiter.check(hits(limit))
    bench.clock.advance(-0.1)

    assert_admitted_exactly_at_retry_after(bench, hits(limit, cost=450))
