"""What a charge becomes when it is known what it really was: less is given back, more is a debt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Rule
from flask_multilimit.engine.algorithms import ALGORITHMS, EVENLY
from support.bench import exhaust, hits, rule

if TYPE_CHECKING:
    from flask_multilimit.engine import Decision
    from support.bench import Bench

REMEMBERING = [name for name, twin in ALGORITHMS.items() if twin.REMEMBERS_IDS and name != "concurrency"]


def settle(bench: Bench, decision: Decision, units: int) -> None:
    charges = [charge._replace(units=units) for charge in decision.charges]
    bench.limiter.storage.settle(decision.id, charges)


@pytest.mark.parametrize("units", [0, 1, 2, 5])
def test_a_charge_becomes_what_it_really_was(bench: Bench, algorithm: str, units: int) -> None:
    plan = rule(algorithm, 3600, 9)
    decision = bench.limiter.check(hits(plan, cost=2))

    settle(bench, decision, units)

    assert bench.limiter.peek(hits(plan)).remaining == 9 - units


def test_units_beyond_the_count_are_a_debt_that_refuses_until_it_has_left(bench: Bench, algorithm: str) -> None:
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
def test_a_peek_and_a_refusal_say_how_many_units_are_over(bench: Bench, algorithm: str, units: int) -> None:
    plan = hits(rule(algorithm, 10, 5))
    settle(bench, bench.limiter.check(plan), units)

    for decision in (bench.limiter.peek(plan), bench.limiter.check(plan), bench.limiter.check(plan)):
        assert [(each.remaining, each.debt) for each in decision.statuses] == [(0, units - 5)]


@pytest.mark.parametrize(("name", "over"), [("fixed_window", 10**9 - 5), ("gcra", 400 * 86_400 // 2 - 5)])
def test_a_debt_beyond_what_doubles_hold_is_exact_too(bench: Bench, name: str, over: int) -> None:
    plan = hits(rule(name, 10, 5))
    settle(bench, bench.limiter.check(plan), 10**9)

    (status,) = bench.limiter.peek(plan).statuses
    assert (status.remaining, status.debt) == (0, over)


def test_a_debt_in_a_queue_leaves_no_place_in_it(bench: Bench) -> None:
    plan = hits(Rule(10, 5, algorithm="leaky_bucket", max_delay=4))
    settle(bench, bench.limiter.check(plan), 30)

    (status,) = bench.limiter.peek(plan).statuses
    assert (status.remaining, status.debt) == (0, 30 - plan[0].rule.quota.burst)


def test_a_peek_at_no_cost_passes_whatever_the_debt(bench: Bench, algorithm: str) -> None:
    plan = rule(algorithm, 10, 5)
    settle(bench, bench.limiter.check(hits(plan)), 12)

    assert bench.limiter.check(hits(plan, cost=0)).allowed


def test_what_a_lowered_count_leaves_over_is_said_too(bench: Bench, algorithm: str) -> None:
    exhaust(bench.limiter, hits(rule(algorithm, 10, 5)))

    (status,) = bench.limiter.peek(hits(rule(algorithm, 10, 2))).statuses
    assert (status.allowed, status.remaining) == (False, 0)
    assert status.debt == 3 or algorithm in EVENLY  # their units take longer to come back now


def test_a_debt_of_many_windows_is_no_fresh_quota(bench: Bench) -> None:
    for algorithm in ("token_bucket", "leaky_bucket", "gcra"):
        plan = hits(rule(algorithm, 10, 5))
        settle(bench, bench.limiter.check(plan), 5000)

        bench.clock.advance(100)

        assert bench.limiter.peek(plan).remaining == 0


def test_a_settlement_counts_the_excess_from_its_own_instant(bench: Bench) -> None:
    plan = rule("sliding_window", 10, 5)
    decision = bench.limiter.check(hits(plan))
    bench.clock.advance(9)

    settle(bench, decision, 5)
    bench.clock.advance(2)

    assert bench.limiter.peek(hits(plan)).remaining == 1


def test_units_that_left_the_window_are_not_given_back(bench: Bench, algorithm: str) -> None:
    plan = rule(algorithm, 10, 5)
    decision = bench.limiter.check(hits(plan, cost=3))
    bench.clock.advance(25)
    exhaust(bench.limiter, hits(plan))

    settle(bench, decision, 0)

    assert bench.limiter.peek(hits(plan)).remaining == 0


def test_an_excess_is_charged_although_the_window_has_forgotten_the_charge(bench: Bench, algorithm: str) -> None:
    plan = rule(algorithm, 10, 9)
    decision = bench.limiter.check(hits(plan, cost=2))
    bench.clock.advance(25)

    settle(bench, decision, 6)

    assert bench.limiter.peek(hits(plan)).remaining == 5


@pytest.mark.parametrize("units", [0, 1, 4, 7])
@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_a_settlement_that_is_carried_out_twice_counts_once(bench: Bench, algorithm: str, units: int) -> None:
    plan = rule(algorithm, 10, 9)
    decision = bench.limiter.check(hits(plan, cost=3))

    settle(bench, decision, units)
    bench.clock.advance(1)
    settle(bench, decision, units)

    assert bench.limiter.peek(hits(plan)).remaining == 9 - units
