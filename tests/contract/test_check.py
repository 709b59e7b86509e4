"""One check: one instant, all or nothing, an answer of every rule, peek, and costs."""

import math
from dataclasses import replace
from uuid import RFC_4122

import pytest

from flask_multilimit.engine import ConfigurationError, Hit, Rule
from flask_multilimit.engine.algorithms import ALGORITHMS
from support.bench import Bench, hits, rule
from support.rates import RATES

ROOMY = 1000


def one_of_each(*, tight: str, cost: int = 1) -> tuple[Hit, ...]:
    """A plan of every algorithm, with room in all but ``tight``, which admits 2 units."""
    return tuple(
        hit for name in RATES for hit in hits(rule(name, count=2 if name == tight else ROOMY), scope=name, cost=cost)
    )


# One instant


def test_storage_clock_is_read_once_for_all_hits(bench: Bench) -> None:
    decision = bench.limiter.check(hits("5/second; 5/minute; 5/hour"))
    assert decision.at == bench.clock.now
    assert bench.clock.reads == 1


# All or nothing


def test_exactly_the_count_is_admitted_at_one_instant(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, count=5))
    decisions = [bench.limiter.check(plan) for _ in range(7)]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
    assert [decision.remaining for decision in decisions] == [4, 3, 2, 1, 0, 0, 0]


def test_allowed_check_charges_every_hit_its_own_cost(bench: Bench, algorithm: str) -> None:
    plan = (*one_of_each(tight=algorithm), *hits(rule(algorithm), scope="heavy", cost=3))
    assert bench.limiter.check(plan).allowed
    left = [status.remaining for status in bench.limiter.peek(plan).statuses]
    assert left == [hit.rule.count - hit.cost for hit in plan]


def test_check_of_thirty_rules_charges_all_or_nothing(bench: Bench) -> None:
    """More than a compiled script can have."""
    plan = hits([Rule(60 + i, 30 - i % 28) for i in range(30)])

    decisions = [bench.limiter.check(plan) for _ in range(4)]

    assert [decision.allowed for decision in decisions] == [True] * 3 + [False]
    assert [status.remaining for status in decisions[-1].statuses] == [hit.rule.count - 3 for hit in plan]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_refused_check_changes_no_state(bench: Bench, algorithm: str, position: int) -> None:
    plan = list(one_of_each(tight="") + hits("100/hour", scope="x") + hits("100/day", scope="y"))
    plan[position:position] = hits(rule(algorithm, time=60, count=2), scope="tight")
    wanted = tuple(plan)
    bench.limiter.check(wanted)
    bench.limiter.check(wanted)
    peeked, stored = bench.limiter.peek(wanted), bench.stored()

    decision = bench.limiter.check(wanted)

    assert not decision.allowed
    assert bench.limiter.peek(wanted).reply == peeked.reply
    assert bench.stored() == stored


def test_refused_check_creates_no_key(bench: Bench, algorithm: str) -> None:
    fresh = hits(rule(algorithm), subject="new")
    full = hits("1/minute")
    bench.limiter.check(full)
    stored = bench.stored()

    assert not bench.limiter.check(fresh + full).allowed

    assert bench.limiter.peek(fresh).remaining == 5
    assert bench.stored() == stored


# An answer of every rule


def test_every_rule_that_refuses_is_named(bench: Bench, algorithm: str) -> None:
    full = [rule(algorithm, 2, 1, "first"), rule(algorithm, 50, 1, "last")]
    plan = hits([full[0], rule(algorithm, 20, 9, "roomy"), full[1]])
    bench.limiter.check(plan)

    decision = bench.limiter.check(plan)

    assert [status.name for status in decision.violated] == ["first", "last"]
    assert [status.allowed for status in decision.statuses] == [False, True, False]
    assert [status.rule for status in decision.violated] == full


def test_remaining_of_a_decision_is_the_smallest_of_its_rules(bench: Bench, algorithm: str) -> None:
    plan = hits([rule(algorithm, 10, 5), rule(algorithm, 20, 3), rule(algorithm, 30, 9)])
    decision = bench.limiter.check(plan)
    assert [status.remaining for status in decision.statuses] == [4, 2, 8]
    assert decision.remaining == 2


def test_refused_check_shows_the_units_left_of_each_rule(bench: Bench, algorithm: str) -> None:
    narrow, wide = hits(rule(algorithm, 10, 3)), hits(rule(algorithm, 20, 9))
    bench.limiter.check(hits(rule(algorithm, 10, 3), cost=2) + wide)

    decision = bench.limiter.check(hits(rule(algorithm, 10, 3), cost=2) + wide)

    assert [status.remaining for status in decision.statuses] == [1, 8]
    assert bench.limiter.check(narrow).allowed


def test_hits_can_be_any_iterable(bench: Bench) -> None:
    assert bench.limiter.check(iter(hits("5/second; 5/minute"))).remaining == 4
    assert bench.limiter.peek(iter(hits("5/second; 5/minute"))).remaining == 4
    bench.limiter.reset(iter(hits("5/second; 5/minute")))
    assert bench.limiter.peek(hits("5/second; 5/minute")).remaining == 5


# Ids


def test_every_check_has_its_own_id(bench: Bench) -> None:
    ids = {bench.limiter.check(hits()).id for _ in range(10)}
    assert len(ids) == 10
    assert {(each.version, each.variant) for each in ids} == {(4, RFC_4122)}


# Peek, and cost 0


def test_peek_answers_like_a_check_and_charges_nothing(bench: Bench, algorithm: str) -> None:
    plan = hits([rule(algorithm), rule(algorithm, 3, 2)])
    for _ in range(3):
        stored = bench.stored()
        peeked = bench.limiter.peek(plan)
        assert bench.stored() == stored

        checked = bench.limiter.check(plan)

        assert peeked.allowed == checked.allowed
        assert [s.retry_after for s in peeked.statuses] == [s.retry_after for s in checked.statuses]
        charged = 1 if checked.allowed else 0
        assert [s.remaining - charged for s in peeked.statuses] == [s.remaining for s in checked.statuses]


def test_cost_0_is_answered_but_not_charged_or_refused(bench: Bench, algorithm: str) -> None:
    for remaining in (4, 0):
        bench.limiter.check(hits(rule(algorithm), cost=1 if remaining else 4))
        stored = bench.stored()

        decision = bench.limiter.check(hits(rule(algorithm), cost=0))

        assert (decision.allowed, decision.remaining) == (True, remaining)
        assert decision.reset_after > 0
        assert bench.stored() == stored


def test_hit_of_cost_0_leaves_other_hits_charged(bench: Bench, algorithm: str) -> None:
    asked, charged = hits(rule(algorithm), scope="asked", cost=0), hits(rule(algorithm), scope="charged")
    bench.limiter.check(asked + charged)
    assert [status.remaining for status in bench.limiter.peek(asked + charged).statuses] == [5, 4]


# Costs


def test_cost_is_charged_whole_or_not_at_all(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, count=5), cost=3)

    assert bench.limiter.check(plan).allowed
    refused = bench.limiter.check(plan)

    assert not refused.allowed
    assert refused.remaining == 2
    assert bench.limiter.check(hits(rule(algorithm, count=5), cost=2)).allowed


def test_cost_above_the_count_has_an_infinite_retry_after(bench: Bench, algorithm: str) -> None:
    plan = hits(rule(algorithm, count=5), cost=6) + hits("5/minute", subject="bo")

    decision = bench.limiter.check(plan)

    assert not decision.allowed
    assert decision.retry_after == math.inf
    assert [status.retry_after for status in decision.statuses] == [math.inf, 0]
    assert [status.remaining for status in decision.statuses] == [5, 5]
    assert decision.reset_after == 0
    bench.limiter.check(plan[1:] + hits(rule(algorithm, count=5)))
    assert bench.limiter.check(plan).retry_after == math.inf


def test_largest_cost_of_an_algorithm_is_charged_and_refunded(bench: Bench, algorithm: str) -> None:
    most = min(ALGORITHMS[algorithm].MAX_COST, 10_000)
    plan = hits(rule(algorithm, 60, 20_000), cost=most)

    decision = bench.limiter.check(plan)
    assert bench.limiter.peek(plan).remaining == 20_000 - most
    bench.limiter.refund(decision)

    assert bench.limiter.peek(plan).remaining == 20_000


def test_cost_above_the_maximum_of_the_algorithm_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="cost=10001: sliding_window takes at most 10000 units"):
        hits(Rule(60, 10_001), cost=10_001)


@pytest.mark.parametrize("cost", [10**9 + 2, 10**400])
def test_cost_above_every_possible_count_is_an_error(algorithm: str, cost: int) -> None:
    with pytest.raises(ConfigurationError, match=r"cost=.*: " + algorithm):
        hits(rule(algorithm), cost=cost)


@pytest.mark.parametrize("count", [5, 1000, 10_000, 20_000])
@pytest.mark.parametrize("asked", ["one more", 10**9 + 1])
def test_cost_above_the_count_is_refused_and_not_charged(
    bench: Bench, algorithm: str, count: int, asked: int | str
) -> None:
    cost = count + 1 if asked == "one more" else 10**9 + 1
    plan = hits(rule(algorithm, count=count), cost=cost)

    decision = bench.limiter.check(plan)

    assert (decision.allowed, decision.retry_after, decision.remaining) == (False, math.inf, count)
    assert bench.limiter.peek(hits(rule(algorithm, count=count))).remaining == count


def test_shadow_is_not_charged_a_cost_above_its_count(bench: Bench, algorithm: str) -> None:
    (hit,) = hits(rule(algorithm, count=5), cost=10**9 + 1)
    assert bench.limiter.check((replace(hit, shadow=True),)).allowed
    assert bench.limiter.peek(hits(rule(algorithm, count=5))).remaining == 5


# Invalid hits


def test_check_and_peek_without_hits_are_an_error(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="no hits"):
        bench.limiter.check(())
    with pytest.raises(ConfigurationError, match="no hits"):
        bench.limiter.peek([])


def test_two_hits_with_one_key_are_an_error_that_names_it(bench: Bench) -> None:
    twice = hits(Rule(60, 5)) + hits(Rule(60, 9))

    with pytest.raises(ConfigurationError, match="two hits") as caught:
        bench.limiter.check(twice)

    assert twice[0].key in str(caught.value)
    assert bench.limiter.peek(twice[:1]).remaining == 5
