"""Settling a decision: what the limiter promises in addition to its storage."""

import random
from typing import Any

import pytest

from flask_multilimit import ConfigurationError, Rule
from flask_multilimit.engine import Decision, Limiter, MemoryStorage, StorageError, hits_for
from support.bench import hits, rule
from support.clock import Clock
from support.doubles import raising
from support.rates import RATES
from support.threads import another_collects_garbage


@pytest.mark.parametrize(("units", "remaining", "debt"), [(1, 9, 0), (3, 7, 0), (347, 0, 337)])
def test_settled_decision_shows_charge_remaining_units_and_debt(units: int, remaining: int, debt: int) -> None:
    limiter, plan = Limiter(), hits("10/minute", cost=3)
    decision = limiter.check(plan)

    settled = limiter.settle(decision, units)

    assert [(each.charged, each.remaining, each.debt) for each in decision.statuses] == [(3, 7, 0)]
    assert [(each.charged, each.remaining, each.debt) for each in settled.statuses] == [(units, remaining, debt)]
    assert settled.settled == {plan[0].key: units}


@pytest.mark.parametrize("units", [5, 6, 9, 1380])
@pytest.mark.parametrize("cost", [0, 1, 3])
@pytest.mark.parametrize("algorithm", RATES)
def test_settled_decision_shows_when_the_next_unit_and_all_units_return(algorithm: str, cost: int, units: int) -> None:
    limiter, window = Limiter(MemoryStorage(Clock())), rule(algorithm, 10, 5)
    plan = hits_for(window, scope="api", subject="user:ada", cost=cost, settle=True)

    settled = limiter.settle(limiter.check(plan), units)

    ((next_unit, _, _),) = settled.standings
    now = limiter.peek(hits(window))
    assert next_unit == -round(now.retry_after * 1_000_000)
    assert settled.reset_after == now.reset_after


@pytest.mark.parametrize("units", [4, 2, 0])
def test_charge_is_settled_only_once_even_at_its_own_cost(units: int) -> None:
    limiter, plan = Limiter(), hits("10/minute", cost=2)
    decision = limiter.check(plan)
    settled = [limiter.settle(decision, each).remaining for each in (units, 7)]
    assert [*settled, limiter.peek(plan).remaining] == [10 - units] * 3


def test_only_the_latest_checks_are_remembered_as_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the memory of a process would grow with each settlement."""
    monkeypatch.setattr("flask_multilimit.engine.limiter.MOST_SETTLEMENTS", 2)
    limiter, plan = Limiter(MemoryStorage(Clock())), hits(Rule(60, 10, algorithm="fixed_window"), cost=2)
    decisions = [limiter.check(plan) for _ in range(3)]
    for decision in decisions:
        limiter.settle(decision, 1)

    limiter.refund(decisions[2])
    assert limiter.peek(plan).remaining == 7
    limiter.refund(decisions[0])
    assert limiter.peek(plan).remaining > 7


def test_settling_some_hits_leaves_other_quotas_of_the_check_unchanged() -> None:
    limiter, tokens, requests = Limiter(), hits("100/hour", scope="tokens"), hits("10/minute", scope="requests")
    settled = limiter.settle(limiter.check([*tokens, *requests]), 40, tokens)
    assert [status.remaining for status in settled.statuses] == [60, 9]
    assert [limiter.peek(plan).remaining for plan in (tokens, requests)] == [60, 9]


def test_refused_checks_and_peeks_are_not_settled() -> None:
    limiter, plan = Limiter(), hits("1/minute")
    limiter.check(plan)

    refused = limiter.settle(limiter.check(plan), 5)

    assert (refused.settled, refused.statuses[0].charged) == ({}, 0)
    assert limiter.settle(limiter.peek(plan), 5).settled == {}


def test_settling_charges_a_sliding_window_at_most_10_000_units() -> None:
    limiter, plan = Limiter(), hits(Rule(60, 50_000))
    assert limiter.settle(limiter.check(plan), 10**9).remaining == 40_000
    assert limiter.peek(plan).remaining == 40_000


@pytest.mark.parametrize("units", [-1, 10**9 + 1, 10**30, True, 1.0, "3", None, float("nan")])
def test_settling_with_invalid_units_is_an_error_and_settles_nothing(units: Any) -> None:
    limiter, plan = Limiter(), hits("10/minute")
    decision = limiter.check(plan)

    with pytest.raises(ConfigurationError, match="units="):
        limiter.settle(decision, units)

    assert limiter.settle(decision, 3).remaining == 7


def test_units_of_a_lease_cannot_be_settled_but_can_be_refunded() -> None:
    limiter, plan = Limiter(), hits(Rule(60, 10, lease=5))
    decision = limiter.check(plan)

    with pytest.raises(ConfigurationError, match="leave out lease"):
        limiter.settle(decision, 3)

    assert limiter.refund(decision).remaining == 10


def test_settlement_is_not_repeated_after_its_reply_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, plan = Limiter(), hits("10/minute")
    decision, settle = limiter.check(plan), limiter.storage.settle

    def lose_the_reply(*arguments: Any) -> None:
        settle(*arguments)
        raise StorageError("the reply was lost")

    monkeypatch.setattr(limiter.storage, "settle", lose_the_reply)
    with pytest.raises(StorageError):
        limiter.settle(decision, 4)
    monkeypatch.undo()

    assert limiter.settle(decision, 9).remaining == 6
    assert limiter.peek(plan).remaining == 6


def test_settlement_is_made_or_raises_while_another_thread_collects_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of a dropped object must let a thread settle, and the error of that is only logged."""
    limiter, plan = Limiter(), hits("10/minute")
    first, second = limiter.check(plan), limiter.check(plan)
    with another_collects_garbage():
        limiter.refund(first)
        assert limiter.peek(plan).remaining == 9

        monkeypatch.setattr(limiter.storage, "settle", raising(StorageError("it is broken")))
        with pytest.raises(StorageError):
            limiter.refund(second)


@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize("seed", range(20))
def test_check_is_admitted_exactly_when_its_cost_fits_beside_settled_units(algorithm: str, seed: int) -> None:
    chance, limiter, count = random.Random(seed), Limiter(MemoryStorage(Clock())), 60
    used = 0
    under_way: list[tuple[Decision, int]] = []
    for _ in range(80):
        cost = chance.choice([0, 1, 3, 10])
        plan = hits_for(rule(algorithm, 3600, count), scope="api", subject="user:ada", cost=cost, settle=True)
        decision = limiter.check(plan)
        assert decision.allowed is (used + max(cost, 1) <= count)
        if decision.allowed:
            used += cost
            under_way.append((decision, cost))
        if under_way and chance.random() < 0.7:
            settling, estimate = under_way.pop(chance.randrange(len(under_way)))
            units = chance.choice([0, 0, 1, 4, 30])
            limiter.settle(settling, units)
            limiter.settle(settling, 7)
            used += units - estimate
