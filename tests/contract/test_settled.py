"""Settlement: a charge becomes what the check really cost; less is given back, more is charged, and may be a debt."""

import pytest

from flask_multilimit import Concurrent, Rule
from flask_multilimit.engine import Decision, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS, EVENLY
from flask_multilimit.engine.hits import Hits
from support.bench import Bench, exhaust, hits, rule

REMEMBERING = [name for name, twin in ALGORITHMS.items() if twin.recognise and name != "concurrency"]


def settle(bench: Bench, decision: Decision, units: int) -> None:
    charges = [charge._replace(units=units) for charge in decision.charges]
    bench.limiter.storage.settle(decision.id, charges)


@pytest.mark.parametrize("units", [0, 1, 2, 5])
def test_settlement_changes_the_charge_to_its_units(bench: Bench, algorithm: str, units: int) -> None:
    plan = rule(algorithm, 3600, 9)
    decision = bench.limiter.check(hits(plan, cost=2))
    settle(bench, decision, units)
    assert bench.limiter.peek(hits(plan)).remaining == 9 - units


@pytest.mark.parametrize(("units", "remaining"), [(0, 9), (1, 9), (2, 9), (5, 6)])
def test_settlement_after_a_reset_charges_only_units_above_the_estimate(
    bench: Bench, algorithm: str, units: int, remaining: int
) -> None:
    plan = rule(algorithm, 3600, 9)
    decision = bench.limiter.check(hits(plan, cost=2))
    bench.limiter.reset(hits(plan))

    settle(bench, decision, units)

    assert bench.limiter.peek(hits(plan)).remaining == remaining


def test_units_above_the_count_are_a_debt_that_refuses_until_retry_after(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 5))
    settle(bench, bench.limiter.check(plan), 12)

    refused = bench.limiter.check(plan)
    bench.clock.now += round(refused.retry_after * 1_000_000) - 1
    too_early = bench.limiter.check(plan).allowed
    bench.clock.now += 1

    assert (refused.allowed, refused.remaining) == (False, 0)
    assert not too_early
    assert bench.limiter.check(plan).allowed


@pytest.mark.parametrize("units", [6, 12, 5000])
def test_peek_and_refusal_show_the_debt(bench: Bench, algorithm: str, units: int) -> None:
    plan = hits(rule(algorithm, 10, 5))
    settle(bench, bench.limiter.check(plan), units)
    for decision in (bench.limiter.peek(plan), bench.limiter.check(plan), bench.limiter.check(plan)):
        assert [(each.remaining, each.debt) for each in decision.statuses] == [(0, units - 5)]


@pytest.mark.parametrize(("name", "over"), [("fixed_window", 10**9 - 5), ("gcra", 400 * 86_400 // 2 - 5)])
def test_debt_beyond_the_precision_of_doubles_is_exact(bench: Bench, name: str, over: int) -> None:
    plan = hits(rule(name, 10, 5))
    settle(bench, bench.limiter.check(plan), 10**9)
    (status,) = bench.limiter.peek(plan).statuses
    assert (status.remaining, status.debt) == (0, over)


def test_debt_in_a_queue_leaves_no_place(bench: Bench) -> None:
    plan = hits(Rule(10, 5, algorithm="leaky_bucket", max_delay=4))
    settle(bench, bench.limiter.check(plan), 30)
    (status,) = bench.limiter.peek(plan).statuses
    assert (status.remaining, status.debt) == (0, 30 - plan[0].rule.quota.burst)


@pytest.mark.parametrize("units", [0, 1, 2, 7])
def test_settlement_in_a_queue_shows_its_places_and_no_earlier_end_than_it_has(bench: Bench, units: int) -> None:
    plan = hits(Rule(10, 3, algorithm="leaky_bucket", max_delay=2), cost=2)
    settled = bench.limiter.settle(bench.limiter.check(plan), units)

    later = bench.limiter.peek(hits(plan[0].rule))

    assert settled.remaining == later.remaining
    assert settled.reset_after >= later.reset_after


def test_cost_0_passes_during_a_debt(bench: Bench, algorithm: str) -> None:
    plan = rule(algorithm, 10, 5)
    settle(bench, bench.limiter.check(hits(plan)), 12)
    assert bench.limiter.check(hits(plan, cost=0)).allowed


def test_units_above_a_lowered_count_are_shown_as_debt(bench: Bench, algorithm: str) -> None:
    exhaust(bench.limiter, hits(rule(algorithm, 10, 5)))
    (status,) = bench.limiter.peek(hits(rule(algorithm, 10, 2))).statuses
    assert (status.allowed, status.remaining) == (False, 0)
    assert status.debt == 3 or algorithm in EVENLY  # with a lower count, their units come back more slowly


def test_debt_of_many_windows_lasts_for_several_windows(bench: Bench) -> None:
    for algorithm in ("token_bucket", "leaky_bucket", "gcra"):
        plan = hits(rule(algorithm, 10, 5))
        settle(bench, bench.limiter.check(plan), 5000)

        bench.clock.advance(100)

        assert bench.limiter.peek(plan).remaining == 0


def test_units_above_the_estimate_count_from_the_settlement_on(bench: Bench) -> None:
    plan = rule("sliding_window", 10, 5)
    decision = bench.limiter.check(hits(plan))
    bench.clock.advance(9)

    settle(bench, decision, 5)
    bench.clock.advance(2)

    assert bench.limiter.peek(hits(plan)).remaining == 1


def test_units_above_the_estimate_are_charged_after_the_window_of_the_check(bench: Bench, algorithm: str) -> None:
    plan = rule(algorithm, 10, 9)
    decision = bench.limiter.check(hits(plan, cost=2))
    bench.clock.advance(25)

    settle(bench, decision, 6)

    assert bench.limiter.peek(hits(plan)).remaining == 5


@pytest.mark.parametrize("units", [0, 1, 4, 7])
@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_repeated_settlement_counts_once(bench: Bench, algorithm: str, units: int) -> None:
    plan = rule(algorithm, 10, 9)
    decision = bench.limiter.check(hits(plan, cost=3))
    bench.limiter.check(hits(plan))

    settle(bench, decision, units)
    bench.clock.advance(1)
    settle(bench, decision, units)

    assert bench.limiter.peek(hits(plan)).remaining == 8 - units


def without_estimate(algorithm: str, count: int = 5) -> Hits:
    return hits_for(rule(algorithm, 10, count), scope="api", subject="user:ada", cost=0, settle=True)


def test_check_without_an_estimate_passes_while_a_unit_is_free_and_charges_nothing(
    bench: Bench, algorithm: str
) -> None:
    plan, one = without_estimate(algorithm), hits(rule(algorithm))

    admitted = [bench.limiter.check(plan).allowed for _ in range(9)]
    untouched = bench.limiter.peek(plan).remaining
    exhaust(bench.limiter, one)
    refused = bench.limiter.check(plan)

    assert (admitted, untouched) == ([True] * 9, 5)
    assert (refused.allowed, refused.retry_after) == (False, bench.limiter.check(one).retry_after)
    assert not bench.limiter.peek(plan).allowed


@pytest.mark.parametrize("units", [0, 1, 5, 12])
def test_check_without_an_estimate_is_charged_at_settlement(bench: Bench, algorithm: str, units: int) -> None:
    plan = without_estimate(algorithm)
    decision = bench.limiter.check(plan)
    bench.clock.advance(1)

    settled = bench.limiter.settle(decision, units)

    assert (settled.remaining, settled.statuses[0].charged) == (max(5 - units, 0), units)
    assert bench.limiter.peek(plan).remaining == max(5 - units, 0)


@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_repeated_settlement_without_an_estimate_counts_once(bench: Bench, algorithm: str) -> None:
    decision = bench.limiter.check(without_estimate(algorithm))

    settle(bench, decision, 3)
    bench.clock.advance(-0.05)
    settle(bench, decision, 3)

    assert bench.limiter.peek(without_estimate(algorithm)).remaining == 2


@pytest.mark.parametrize("cost", [0, 2])
def test_repeated_check_is_settled_again_when_its_first_settlement_no_longer_counts(bench: Bench, cost: int) -> None:
    plan = hits_for(rule("sliding_window", 10, 9), scope="api", subject="user:ada", cost=cost, settle=True)
    first = bench.limiter.check(plan)
    bench.limiter.settle(first, 5)
    bench.clock.advance(10)

    bench.limiter.settle(bench.limiter.check(plan, check_id=first.id), 5)

    assert bench.limiter.peek(plan).remaining == 4


def test_hits_with_and_without_an_estimate_are_charged_all_or_nothing(bench: Bench) -> None:
    spent, other = rule("fixed_window", count=1), rule("sliding_window", 60, 9)
    exhaust(bench.limiter, hits(spent))
    both = [*hits_for(spent, scope="api", subject="user:ada", cost=0, settle=True), *hits(other, cost=2)]

    assert not bench.limiter.check(both).allowed
    assert bench.limiter.peek(hits(other)).remaining == 9


def test_one_slot_is_taken_for_any_estimate(bench: Bench) -> None:
    for cost in (0, 50):
        scope = f"cost-{cost}"
        plan = hits_for([Concurrent(2), Rule(60, 100)], scope=scope, cost=cost, settle=True)

        decision = bench.limiter.check(plan)
        settled = bench.limiter.settle(decision, 7)

        for seen in (settled, bench.limiter.peek(plan)):
            assert [status.remaining for status in seen.statuses] == [1, 93]
