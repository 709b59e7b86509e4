"""Refunds, checks that are repeated with their id, and resets."""

from dataclasses import replace
from uuid import uuid4

import pytest

from flask_multilimit.engine.algorithms import ALGORITHMS
from support.bench import Bench, exhaust, hits, rule
from support.clock import microseconds
from support.rates import RATES

REMEMBERING = [name for name, twin in ALGORITHMS.items() if twin.recognise]
"""Algorithms that keep the ids of checks, and so recognise a repeated one."""

keeps_ids = pytest.mark.parametrize("algorithm", REMEMBERING)


# Refund


@pytest.mark.parametrize("cost", [1, 2, 5])
def test_refund_restores_the_quota(bench: Bench, algorithm: str, cost: int) -> None:
    plan = hits([rule(algorithm), rule(algorithm, 60, 9)], cost=cost)
    before = bench.limiter.peek(plan)
    bench.limiter.refund(bench.limiter.check(plan))
    assert bench.limiter.peek(plan).reply == before.reply


def test_decision_after_a_refund_has_the_new_reset_after(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 3600, 9))
    first, second = bench.limiter.check(plan), bench.limiter.check(plan)

    partly, wholly = bench.limiter.refund(second), bench.limiter.refund(first)

    assert 0 < partly.reset_after <= second.reset_after
    assert (wholly.remaining, wholly.reset_after) == (9, 0)
    assert [status.reset_after for status in wholly.statuses] == [0]
    assert bench.limiter.peek(plan).reset_after == 0


def test_window_emptied_by_a_refund_starts_again(bench: Bench) -> None:
    plan = hits(rule("sliding_window_counter", 10, 5))
    bench.limiter.check(plan)
    bench.clock.advance(10)
    later = bench.limiter.check(plan)
    bench.limiter.refund(later)
    bench.clock.advance(16)

    assert bench.limiter.check(plan).reset_after == 20


def test_refund_in_the_next_window_returns_all_units(bench: Bench) -> None:
    plan = hits(rule("sliding_window_counter", 10, 5), cost=3)
    charged = bench.limiter.check(plan)
    bench.clock.advance(10)
    assert bench.limiter.check(hits(rule("sliding_window_counter", 10, 5))).remaining == 1

    bench.limiter.refund(charged)

    assert bench.limiter.peek(plan).remaining == 4


def test_part_of_a_charge_can_be_refunded(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm), cost=5)
    (charge,) = (decision := bench.limiter.check(plan)).charges
    bench.limiter.storage.settle(decision.id, [charge._replace(hit=replace(charge.hit, cost=2))])
    assert bench.limiter.peek(plan).remaining == 2


def test_refund_of_a_check_that_charged_nothing_returns_nothing(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm))
    bench.limiter.check(plan)

    for asked in (
        bench.limiter.peek(plan),
        bench.limiter.check(hits(rule(algorithm), cost=0)),
        bench.limiter.check(hits(rule(algorithm), cost=5)),
    ):
        bench.limiter.refund(asked)

    assert bench.limiter.peek(plan).remaining == 4


@pytest.mark.parametrize("late", [10, 10.000001, 15, 25, 1000])
def test_late_refund_does_not_return_units_of_others(bench: Bench, algorithm: str, late: float) -> None:
    plan = hits(rule(algorithm, 10, 5))
    decision = bench.limiter.check(plan)
    bench.clock.advance(late)
    exhaust(bench.limiter, plan)

    bench.limiter.refund(decision)

    assert bench.limiter.peek(plan).remaining <= (0 if algorithm in REMEMBERING else 1)
    bench.clock.advance(1000)
    assert exhaust(bench.limiter, plan) == 5


def test_refund_after_a_reset_takes_units_of_others_only_as_documented(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 3600, 20), cost=5)
    decision = bench.limiter.check(plan)
    bench.clock.advance(1)
    bench.limiter.reset(plan)
    for _ in range(3):
        bench.limiter.check(plan)

    bench.limiter.refund(decision)

    windows, one_by_one = {5}, {9, 10}  # a part of a unit is not back yet, if units come back one after another
    documented = {"gcra": one_by_one, "leaky_bucket": one_by_one, "token_bucket": one_by_one}
    documented |= {"fixed_window": windows, "sliding_window": windows, "sliding_window_counter": windows}
    assert bench.limiter.peek(plan).remaining in documented.get(algorithm, windows | one_by_one)


@keeps_ids
def test_refund_takes_back_the_charge_of_its_own_instant(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 3))
    first = bench.limiter.check(plan)
    bench.clock.advance(4)
    second = bench.limiter.check(plan)
    bench.clock.advance(4)

    bench.limiter.refund(second)
    assert microseconds(bench.limiter.peek(plan).reset_after) == microseconds(2)
    bench.limiter.refund(first)
    assert bench.limiter.peek(plan).reset_after == 0


@keeps_ids
def test_refund_among_charges_of_one_instant_takes_back_its_own(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 9))
    decisions = [bench.limiter.check(hits(rule(algorithm, 10, 9), cost=cost)) for cost in (1, 3, 2)]
    bench.limiter.refund(decisions[1])
    assert bench.limiter.peek(plan).remaining == 6


# Repeat


@keeps_ids
@pytest.mark.parametrize("cost", [1, 3])
def test_check_repeated_with_its_id_is_charged_once(bench: Bench, algorithm: str, cost: int) -> None:
    plan = hits(rule(algorithm, 10, 9), cost=cost)
    check_id = uuid4()
    for _ in range(4):
        assert bench.limiter.check(plan, check_id=check_id).allowed
        bench.clock.advance(1)

    assert bench.limiter.peek(plan).remaining == 9 - cost


@keeps_ids
def test_check_of_the_last_unit_is_allowed_again_when_repeated(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 1))
    check_id = uuid4()
    bench.limiter.check(plan, check_id=check_id)

    repeated = bench.limiter.check(plan, check_id=check_id)

    assert (repeated.allowed, repeated.remaining, repeated.retry_after) == (True, 0, 0)
    assert repeated.reset_after == 10
    assert not bench.limiter.check(plan).allowed


@keeps_ids
def test_refused_check_is_checked_again_when_repeated(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 1))
    check_id = uuid4()
    bench.limiter.check(plan)
    assert not bench.limiter.check(plan, check_id=check_id).allowed
    bench.clock.advance(10)

    assert bench.limiter.check(plan, check_id=check_id).allowed
    assert bench.limiter.peek(plan).remaining == 0


@keeps_ids
def test_repeated_check_is_charged_once_if_one_rule_keeps_ids(bench: Bench, algorithm: str) -> None:
    others = [rule(name, 60, 9) for name in RATES if name not in REMEMBERING]
    plan = hits([*others, rule("sliding_window", 10, 5), rule(algorithm, 20, 9)])
    check_id = uuid4()
    first = bench.limiter.check(plan, check_id=check_id)

    bench.limiter.check(plan, check_id=check_id)

    left = [status.remaining for status in bench.limiter.peek(plan).statuses]
    assert left == [status.remaining for status in first.statuses]


@keeps_ids
def test_id_is_remembered_until_the_last_microsecond_of_its_window(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 2))
    check_id = uuid4()
    bench.limiter.check(plan, check_id=check_id)

    bench.clock.now += microseconds(10) - 1
    assert bench.limiter.check(plan, check_id=check_id).remaining == 1
    bench.clock.now += 1
    assert bench.limiter.check(plan, check_id=check_id).remaining == 1
    assert bench.limiter.peek(plan).reset_after == 10


def test_check_that_has_left_its_window_is_charged_when_repeated_though_units_of_its_settlement_count(
    bench: Bench,
) -> None:
    plan = hits(rule("sliding_window", 10, 9), cost=2)
    first = bench.limiter.check(plan)
    bench.clock.advance(12)
    bench.limiter.settle(first, 3)

    repeated = bench.limiter.check(plan, check_id=first.id)

    assert repeated.remaining == bench.limiter.peek(plan).remaining == 6


@keeps_ids
def test_refunded_check_is_charged_when_repeated(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm))
    decision = bench.limiter.check(plan)
    bench.limiter.refund(decision)

    assert bench.limiter.check(plan, check_id=decision.id).allowed
    assert bench.limiter.peek(plan).remaining == 4


@keeps_ids
def test_decision_of_a_repeated_check_can_be_refunded(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, 10, 5), cost=2)
    check_id = uuid4()
    bench.limiter.check(plan, check_id=check_id)
    bench.clock.advance(1)
    repeated = bench.limiter.check(plan, check_id=check_id)

    bench.limiter.refund(repeated)

    assert bench.limiter.peek(plan).remaining == 5


# Reset


def test_reset_restores_all_quotas_and_deletes_their_keys(bench: Bench, algorithm: str) -> None:
    plan = hits([rule(algorithm), rule(algorithm, 60, 9)])
    exhaust(bench.limiter, plan)

    bench.limiter.reset(plan)

    assert [status.remaining for status in bench.limiter.peek(plan).statuses] == [5, 9]
    assert bench.limiter.peek(plan).reset_after == 0
    assert bench.stored() == {}


def test_reset_leaves_other_subjects(bench: Bench, algorithm: str) -> None:
    for subject in ("ada", "bo"):
        exhaust(bench.limiter, hits(rule(algorithm), subject=subject))
    bench.limiter.reset(hits(rule(algorithm)))
    assert bench.limiter.peek(hits(rule(algorithm), subject="bo")).remaining == 0


def test_reset_of_an_unused_quota_changes_nothing(bench: Bench) -> None:
    bench.limiter.reset(hits())
    bench.limiter.reset(())
    assert bench.limiter.peek(hits()).remaining == 5


def test_refund_returns_a_new_decision_and_leaves_the_old_one(bench: Bench, algorithm: str) -> None:
    plan = hits([rule(algorithm), rule(algorithm, 60, 9)], cost=2)
    decision = bench.limiter.check(plan)

    after = bench.limiter.refund(decision, plan[:1])

    assert [status.remaining for status in decision.statuses] == [3, 7]
    assert [status.remaining for status in after.statuses] == [5, 7]
    assert [charge.hit for charge in after.charges] == [plan[1]]


def test_refund_in_parts_takes_back_each_part_once(bench: Bench, algorithm: str) -> None:
    plan = hits([rule(algorithm), rule(algorithm, 60, 9)], cost=2)
    bench.limiter.check(plan)
    decision = bench.limiter.check(plan)

    for part in (plan[:1], plan[:1], plan, None):
        decision = bench.limiter.refund(decision, part)

    assert [status.remaining for status in bench.limiter.peek(plan).statuses] == [3, 7]
    assert decision.charges == ()


def test_decision_is_immutable(bench: Bench) -> None:
    decision = bench.limiter.check(hits())
    with pytest.raises(AttributeError):
        decision.decided_by = "allow"
