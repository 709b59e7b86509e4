"""Leases: the units that a process takes in advance, spends and returns, and what its decisions say."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from engine.storage.layers.leases.fleet import Fleet, Process
from flask_multilimit.engine import (
    Ban,
    Decision,
    GuardedStorage,
    Hit,
    LeasingStorage,
    Limiter,
    MemoryStorage,
    Rule,
    StorageDenied,
    StorageError,
    hits_for,
)
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.storage.layers.fallback import unlimited
from flask_multilimit.engine.storage.layers.leases import MOST_LEASES
from support.clock import SECOND, microseconds
from support.forks import forked
from support.waiting import until

LEASED = Rule(60, 100, lease=10)
FIXED = Rule(60, 100, lease=10, algorithm="fixed_window")
ONE = Rule(30, 1)
HITS = hits_for(LEASED, scope="api")
RAMP = 1 + 2 + 4
"""Units that are spent until 8 are taken at once."""


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(1)


@pytest.fixture
def process(fleet: Fleet) -> Process:
    return fleet.processes[0]


def take_lease(process: Process, hits: tuple[Hit, ...] = HITS) -> Decision:
    """Check until ``process`` has 7 unspent units; the last decision."""
    decisions = [process.limiter.check(hits) for _ in range(RAMP + 1)]
    assert all(decision.allowed for decision in decisions)
    return decisions[-1]


def remaining_in_storage(fleet: Fleet, hit: Hit) -> int:
    """Units that remain in the storage."""
    return fleet.storage.peek((hit,)).remaining


def costs_of_checks(process: Process, act: Callable[[], object]) -> list[list[int]]:
    """The costs of each check that the storage gets meanwhile."""
    before = len(process.wire.asked)
    act()
    return [[hit.cost for hit in hits] for hits in process.wire.asked[before:]]


# How many units are taken


def test_process_doubles_the_units_it_takes_up_to_the_lease(process: Process) -> None:
    asked = costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(45)])
    assert asked == [[1], [2], [4], [8], [10], [10], [10]]


def test_rare_checks_take_single_units(fleet: Fleet, process: Process) -> None:
    for _ in range(20):
        assert costs_of_checks(process, lambda: process.limiter.check(HITS)) == [[1]]
        fleet.clock.advance(0.6)
    assert process.wire.refunds == 0


def test_unspent_units_are_returned_and_the_next_lease_is_smaller(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    process.limiter.check(HITS)
    fleet.clock.advance(LEASED.lease_ms / 1000)

    assert costs_of_checks(process, lambda: process.limiter.check(HITS)) == [[2]]
    assert process.wire.refunds == 1
    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 2 - 2


def test_units_taken_are_a_multiple_of_the_cost_within_the_lease(process: Process) -> None:
    hits = hits_for(LEASED, scope="api", cost=3)
    asked = costs_of_checks(process, lambda: [process.limiter.check(hits) for _ in range(12)])
    assert asked == [[3], [6], [9], [9], [9]]


def test_check_that_costs_more_than_the_lease_takes_its_cost_alone(process: Process) -> None:
    hits = hits_for(LEASED, scope="api", cost=11)
    assert costs_of_checks(process, lambda: [process.limiter.check(hits) for _ in range(3)]) == [[11]] * 3


def test_process_takes_no_more_units_than_remain(process: Process) -> None:
    hits = hits_for(Rule(60, 10, lease=8), scope="api")

    decisions: list[Decision] = []
    asked = costs_of_checks(process, lambda: decisions.extend(process.limiter.check(hits) for _ in range(12)))

    assert asked == [[1], [2], [4], [3], [1], [1]]
    assert [decision.allowed for decision in decisions] == [True] * 10 + [False] * 2
    assert [decision.remaining for decision in decisions] == [*range(9, -1, -1), 0, 0]


def test_check_asks_again_for_its_cost_alone_when_the_lease_is_refused(fleet: Fleet, process: Process) -> None:
    for _ in range(RAMP):
        process.limiter.check(HITS)
    fleet.storage.check(hits_for(LEASED, scope="api", cost=92))

    asked = costs_of_checks(process, lambda: process.limiter.check(HITS))

    assert asked == [[8], [1]]
    assert remaining_in_storage(fleet, HITS[0]) == 0
    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(2)]) == [[1], [1]], "refused"
    assert not process.limiter.check(HITS).allowed


def test_refused_check_takes_no_lease_and_asks_for_one_again_only_after_the_refusal_of_another_rule(
    fleet: Fleet, process: Process
) -> None:
    both = hits_for([Rule(5, RAMP), LEASED], scope="api")
    for _ in range(RAMP):
        process.limiter.check(both)

    assert costs_of_checks(process, lambda: process.limiter.check(both)) == [[1, 8]], "the other rule refuses"
    fleet.storage.check(hits_for(LEASED, scope="api", cost=100 - RAMP))
    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(2)]) == [[8], [1], [1]]
    assert not process.limiter.check(HITS).allowed


@pytest.mark.parametrize("rule", [LEASED, FIXED], ids=str)
def test_check_with_a_lease_passes_exactly_at_retry_after_of_its_refusal(
    rule: Rule, fleet: Fleet, process: Process
) -> None:
    hits = hits_for(rule, scope="api")
    while (refused := process.limiter.check(hits)).allowed:
        fleet.clock.advance(0.07)

    fleet.clock.now += microseconds(refused.retry_after) - 1
    assert not process.limiter.check(hits).allowed
    fleet.clock.now += 1
    assert process.limiter.check(hits).allowed


# Spending units


def test_leased_units_are_spent_without_asking_the_storage(fleet: Fleet, process: Process) -> None:
    granted = take_lease(process)
    fleet.clock.advance(0.25)

    assert costs_of_checks(process, lambda: process.limiter.check(HITS)) == []
    spent = process.limiter.check(HITS)
    assert (spent.allowed, spent.remaining, spent.retry_after) == (True, granted.remaining - 2, 0)
    assert spent.reset_after == granted.reset_after - 0.25
    assert spent.at == granted.at + SECOND // 4
    assert spent.id != granted.id


def test_slow_reply_does_not_shorten_reset_after_of_leased_units(fleet: Fleet, process: Process) -> None:
    for _ in range(RAMP):
        process.limiter.check(HITS)
    process.wire.delays.extend([0.1, 0.2])
    granted = process.limiter.check(HITS)

    assert process.limiter.check(HITS).reset_after == granted.reset_after
    assert fleet.clock.now == granted.at + SECOND // 5


@pytest.mark.parametrize("rule", [LEASED, FIXED], ids=str)
def test_lease_ends_before_its_window_counted_from_when_it_was_requested(
    rule: Rule, fleet: Fleet, process: Process
) -> None:
    hits = hits_for(rule, scope="api")
    life = rule.lease_ms / 1000 or 60 - 0.1
    for _ in range(RAMP):
        process.limiter.check(hits)
    process.wire.delays.extend([0.1, 0.2])
    process.limiter.check(hits)

    fleet.clock.advance(life - 0.3 - life / 1000 - 0.000_001)
    assert costs_of_checks(process, lambda: process.limiter.check(hits)) == []
    fleet.clock.advance(0.000_001)
    assert len(costs_of_checks(process, lambda: process.limiter.check(hits))) == 1


def test_leased_units_are_not_spent_by_another_rule_of_the_same_key(process: Process) -> None:
    take_lease(process)
    stricter = hits_for(Rule(60, 5, lease=2), scope="api")
    assert stricter[0].key == HITS[0].key
    assert not process.limiter.check(stricter).allowed


def test_changed_rule_returns_the_old_lease_and_takes_its_own(process: Process) -> None:
    take_lease(process)
    changed = hits_for(Rule(60, 200, lease=20), scope="api")
    assert costs_of_checks(process, lambda: [process.limiter.check(changed) for _ in range(4)]) == [[1], [2], [4]]
    assert process.wire.refunds == 1


def test_equal_rule_spends_the_same_lease(process: Process) -> None:
    take_lease(process)
    again = hits_for(Rule(60, 100, lease=10), scope="api")
    assert costs_of_checks(process, lambda: process.limiter.check(again)) == []


# Other rules of the plan


def test_only_rules_without_a_lease_are_checked_and_statuses_keep_their_order(process: Process) -> None:
    hits = hits_for([Rule(5, 50), LEASED, FIXED], scope="api")
    granted = take_lease(process, hits)

    decision = process.limiter.check(hits)

    assert [hit.key for hit in process.wire.asked[-1]] == [hits[0].key]
    assert [status.hit for status in decision.statuses] == list(hits)
    assert [status.remaining for status in decision.statuses] == [41, 91, 91]
    assert [status.reset_after for status in decision.statuses] == [status.reset_after for status in granted.statuses]


def test_leased_units_are_not_spent_when_another_rule_refuses(fleet: Fleet, process: Process) -> None:
    hits = hits_for([Rule(5, RAMP + 1), LEASED], scope="api")
    take_lease(process, hits)

    for _ in range(20):
        refused = process.limiter.check(hits)
        assert [status.allowed for status in refused.statuses] == [False, True]
        assert [status.remaining for status in refused.statuses] == [0, 100 - RAMP - 1]

    fleet.clock.advance(0.5)
    assert costs_of_checks(process, lambda: [process.limiter.check(hits[1:]) for _ in range(7)]) == []
    assert remaining_in_storage(fleet, hits[1]) == 100 - RAMP - 8


def test_ban_that_this_process_has_seen_begin_ends_a_lease_of_its_subject(process: Process) -> None:
    plan = [hits_for(rules, scope="api", subject="user:ann", ban=Ban(after=1)) for rules in (LEASED, [LEASED, ONE])]
    take_lease(process, plan[0])
    decisions = [process.limiter.check(hits) for hits in (plan[1], plan[1], plan[0])]
    assert [decision.allowed for decision in decisions] == [True, False, False]
    assert decisions[-1].ban is not None


def test_no_lease_is_taken_while_units_may_still_be_returned(process: Process) -> None:
    """Otherwise the returned units would be spent as if they were as young as those of the new lease."""
    hits = hits_for([Rule(5, RAMP + 2), LEASED], scope="api", cost=1)
    take_lease(process, hits)
    seen: list[list[list[int]]] = []

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        seen.append(costs_of_checks(process, lambda: [process.limiter.check(hits[1:]) for _ in range(8)]))

    process.limiter.check(hits)
    process.wire.meanwhile = meanwhile
    assert not process.limiter.check(hits).allowed

    assert seen == [[[1], [1], [1]]]
    assert costs_of_checks(process, lambda: process.limiter.check(hits[1:])) == []


@pytest.mark.parametrize("act", ["close", "check another quota"])
@pytest.mark.parametrize("asks", [[LEASED], [Rule(5, 50), LEASED]], ids=["asks for units", "may return a unit"])
def test_lease_that_a_check_uses_is_not_given_back_meanwhile(
    asks: list[Rule], act: str, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the process, or for another one when there are too many."""
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.leases.MOST_LEASES", 1)
    other = hits_for(LEASED, scope="other")
    for _ in range(RAMP + 1 if len(asks) == 2 else RAMP):
        process.limiter.check(HITS)

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        if act == "close":
            process.leases.close()
        else:
            process.limiter.check(other)

    process.wire.meanwhile = meanwhile
    assert process.limiter.check(hits_for(asks, scope="api")).allowed

    assert process.wire.refunds == 0
    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(6)]) == []


def test_one_thread_renews_a_lease_and_the_others_ask_the_storage(process: Process) -> None:
    seen: list[list[list[int]]] = []

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        seen.append(costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(3)]))

    for _ in range(RAMP):
        process.limiter.check(HITS)
    process.wire.meanwhile = meanwhile

    assert process.limiter.check(HITS).allowed
    assert seen == [[[1], [1], [1]]]
    assert process.wire.asked[-1][0].cost == 8


def test_checks_without_a_lease_or_without_a_cost_are_passed_on_unchanged(process: Process) -> None:
    plain, free = hits_for("100/minute", scope="api"), hits_for(LEASED, scope="api", cost=0)
    for hits in (plain, free):
        process.limiter.check(hits)
        assert process.wire.asked[-1] is hits


def test_shadow_is_charged_in_the_storage_at_every_check(process: Process) -> None:
    hits = hits_for(LEASED, scope="api", shadow=True)
    assert costs_of_checks(process, lambda: [process.limiter.check(hits) for _ in range(5)]) == [[1]] * 5


def test_check_with_its_own_id_is_charged_once_in_the_storage(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    check_id = uuid4()
    before = remaining_in_storage(fleet, HITS[0])

    first, again = (process.limiter.check(HITS, check_id=check_id) for _ in range(2))

    (many,) = process.leases.check_many([HITS], [check_id])
    assert first.id == again.id == many.id == check_id
    assert remaining_in_storage(fleet, HITS[0]) == before - 1


def test_check_many_is_one_command_unless_one_of_its_checks_has_a_lease(process: Process) -> None:
    plain = hits_for("100/minute", scope="other")

    assert len(costs_of_checks(process, lambda: process.limiter.check_many([HITS, plain, HITS, HITS]))) == 3
    assert process.wire.batches == 0

    assert all(decision.allowed for decision in process.limiter.check_many([plain, plain]))
    assert process.wire.batches == 1


def test_peek_counts_unspent_units_of_the_lease(fleet: Fleet, process: Process) -> None:
    granted = take_lease(process)
    fleet.storage.check(hits_for(LEASED, scope="api", cost=remaining_in_storage(fleet, HITS[0])))

    peeked = process.limiter.peek(HITS)

    assert (granted.remaining, peeked.remaining, peeked.allowed) == (92, 7, True)
    assert [process.limiter.peek(hits_for(LEASED, scope="api", cost=cost)).allowed for cost in (7, 8)] == [True, False]
    for remaining in range(6, -1, -1):
        process.limiter.check(HITS)
        assert process.limiter.peek(HITS).remaining == remaining
    fleet.clock.advance(LEASED.lease_ms / 1000)
    assert (process.limiter.peek(HITS).remaining, process.limiter.peek(HITS).allowed) == (0, False)


def test_peek_counts_no_units_of_a_lease_of_another_client_or_of_one_that_has_ended(
    fleet: Fleet, process: Process
) -> None:
    take_lease(process)
    assert process.limiter.peek(hits_for(LEASED, scope="other")).remaining == 100
    fleet.clock.advance(LEASED.lease_ms / 1000)
    assert process.limiter.peek(HITS).remaining == remaining_in_storage(fleet, HITS[0])


# Returning units


def test_refunded_units_go_back_to_the_lease(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    decision = process.limiter.check(HITS)
    process.limiter.refund(decision)

    assert process.wire.refunds == 0
    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(7)]) == []
    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 8


def test_unit_of_the_check_that_took_the_lease_is_refunded_to_it(process: Process) -> None:
    process.limiter.refund(take_lease(process))
    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(8)]) == []


def test_refund_after_the_end_of_a_lease_goes_to_the_storage(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    decision = process.limiter.check(HITS)
    fleet.clock.advance(2)
    process.limiter.refund(decision)
    process.limiter.check(hits_for(LEASED, scope="api", cost=20))

    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 1 - 20


def test_units_that_are_given_back_twice_come_back_once(
    fleet: Fleet, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a guard does when the first reply is lost."""
    given_back, settle = list[tuple[Any, ...]](), fleet.storage.settle
    monkeypatch.setattr(fleet.storage, "settle", lambda *arguments: given_back.append(arguments))
    take_lease(process)
    fleet.clock.advance(2)
    process.limiter.check(HITS)

    for arguments in given_back * 2:
        settle(*arguments)

    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 1 - 1


@pytest.mark.parametrize(("rule", "lost"), [(LEASED, 1), (FIXED, 0)], ids=str)
def test_refund_after_the_next_lease_is_lost_if_units_have_ids(
    rule: Rule, lost: int, fleet: Fleet, process: Process
) -> None:
    hits = hits_for(rule, scope="api")
    take_lease(process, hits)
    decision = process.limiter.check(hits)
    fleet.clock.advance(2)
    process.limiter.check(hits_for(rule, scope="api", cost=20))
    before = remaining_in_storage(fleet, hits[0])

    process.limiter.refund(decision)
    process.limiter.check(hits_for(rule, scope="api", cost=20))  # returns what the lease has left

    assert remaining_in_storage(fleet, hits[0]) == before - 20 + 1 - lost


def test_refunds_give_a_lease_no_more_units_than_it_had(fleet: Fleet, process: Process) -> None:
    hits = hits_for(FIXED, scope="api")
    decisions = [process.limiter.check(hits) for _ in range(35)]

    for decision in decisions:
        process.limiter.refund(decision)

    assert remaining_in_storage(fleet, hits[0]) == 90
    assert costs_of_checks(process, lambda: [process.limiter.check(hits) for _ in range(10)]) == []


def test_closing_is_no_error_when_the_storage_fails(process: Process) -> None:
    take_lease(process)
    process.wire.error = StorageError("gone")
    process.limiter.close()


def test_closing_returns_units_of_all_other_keys_when_one_key_fails(fleet: Fleet, process: Process) -> None:
    other = hits_for(LEASED, scope="other")
    take_lease(process)
    take_lease(process, other)

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        raise StorageError("the key holds a value of another type")

    process.wire.meanwhile = meanwhile
    process.limiter.close()

    assert sorted([remaining_in_storage(fleet, HITS[0]), remaining_in_storage(fleet, other[0])]) == [
        100 - RAMP - 8,
        100 - RAMP - 1,
    ]


def test_a_reset_forgets_the_lease_of_this_process(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    process.limiter.reset(HITS)
    assert costs_of_checks(process, lambda: process.limiter.check(HITS)) == [[1]]
    assert remaining_in_storage(fleet, HITS[0]) == 99


# Failures


def test_failed_check_puts_its_units_back_into_the_lease(fleet: Fleet, process: Process) -> None:
    both = hits_for([Rule(5, 50), LEASED], scope="api")
    take_lease(process)
    process.wire.error = StorageError("gone")
    with pytest.raises(StorageError):
        process.limiter.check(both)

    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(7)]) == []
    process.wire.error = None
    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 8


def test_check_that_a_timeout_ends_leaves_the_units_of_others_in_the_lease(fleet: Fleet, process: Process) -> None:
    both = hits_for([Rule(5, 50), LEASED], scope="api")
    take_lease(process)

    def meanwhile() -> None:
        process.wire.meanwhile, process.wire.error = lambda: None, GeneratorExit()
        with pytest.raises(GeneratorExit):
            process.limiter.check(both)
        process.wire.error = None

    process.wire.meanwhile = meanwhile
    process.limiter.check(both)

    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(6)]) == []
    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 8


def test_a_failed_return_of_a_lease_is_no_error(fleet: Fleet, process: Process) -> None:
    limiter = Limiter(LeasingStorage(GuardedStorage(process.wire, workers=1, clock=fleet.clock), clock=fleet.clock))
    for _ in range(RAMP + 1):
        limiter.check(HITS)
    process.wire.error = StorageError("gone")
    fleet.clock.advance(2)

    assert limiter.check(HITS).decided_by == "local"
    limiter.close()


def test_next_lease_can_be_taken_after_a_failure(process: Process) -> None:
    process.wire.error = StorageError("gone")
    with pytest.raises(StorageError):
        process.limiter.check(HITS)
    process.wire.error = None

    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(3)]) == [[1], [2]]


@pytest.fixture
def guarded() -> Iterator[tuple[Fleet, list[Limiter]]]:
    """Four processes, each with a guard and unspent units of a lease."""
    fleet = Fleet(4)
    guards = [GuardedStorage(process.wire, workers=4, clock=fleet.local_clock) for process in fleet.processes]
    limiters = [Limiter(LeasingStorage(guard, clock=fleet.local_clock)) for guard in guards]
    for _ in range(RAMP + 1):
        assert all(limiter.check(HITS).allowed for limiter in limiters)
    yield fleet, limiters
    for limiter in limiters:
        limiter.close()


def test_process_in_an_outage_admits_its_lease_and_its_share_of_the_rest(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    fleet.break_down()
    spent = 4 * (RAMP + 1)

    for limiter in limiters:
        spent += sum(limiter.check(HITS).decided_by not in FALLBACKS for _ in range(7))
    decisions = [limiter.check(HITS) for limiter in limiters for _ in range(30)]
    spent += sum(decision.allowed for decision in decisions)

    assert {decision.decided_by for decision in decisions} == {"local"}
    assert 4 * (RAMP + 8) < spent <= LEASED.count


def test_no_lease_is_taken_in_an_outage(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    hits = hits_for(Rule(60, 40, lease=10), scope="other")
    for _ in range(3):
        limiters[0].check(hits)
    fleet.break_down()

    decisions = [limiters[0].check(hits) for _ in range(12)]

    assert [decision.decided_by for decision in decisions] == ["local"] * 12
    admitted = (40 - 3 - 2 * 3) // 4  # three others may have taken two each meanwhile
    assert sum(decision.allowed for decision in decisions) == admitted
    fleet.mend()
    until(lambda: limiters[0].health().state == "working")
    assert remaining_in_storage(fleet, hits[0]) == 40 - 3 - admitted


def test_refund_in_an_outage_returns_a_unit_to_the_local_share(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    hits = hits_for(Rule(60, 40, lease=10), scope="other")
    limiters[0].check(hits)
    fleet.break_down()

    for _ in range(20):
        decision = limiters[0].check(hits)
        assert (decision.allowed, decision.decided_by) == (True, "local")
        limiters[0].refund(decision)


def test_leased_and_local_rules_of_one_check_show_their_own_reset_after(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    fleet.break_down()
    fleet.clock.advance(0.5)

    decision = limiters[0].check(hits_for([LEASED, Rule(5, 50)], scope="api"))

    assert (decision.allowed, decision.decided_by) == (True, "local")
    assert [status.reset_after for status in decision.statuses] == [LEASED.quota.window / SECOND - 0.5, 5]


def test_charge_after_an_outage_counts_as_long_as_the_units_of_a_lease() -> None:
    assert unlimited(HITS[0]).rule.quota.window == LEASED.quota.window


def test_leased_units_are_spent_while_the_guard_denies(fleet: Fleet, process: Process) -> None:
    guard = GuardedStorage(process.wire, on_error="deny", workers=1, clock=fleet.clock)
    limiter = Limiter(LeasingStorage(guard, clock=fleet.clock))
    for _ in range(RAMP + 1):
        limiter.check(HITS)
    process.wire.error = StorageError("gone")

    assert sum(limiter.check(HITS).allowed for _ in range(7)) == 7
    with pytest.raises(StorageDenied):
        limiter.check(HITS)
    limiter.close()


# Forks and bounds


def test_forked_child_does_not_inherit_leased_units(process: Process) -> None:
    take_lease(process)
    assert len(forked(lambda: costs_of_checks(process, lambda: process.limiter.check(HITS)))()) == 1
    assert costs_of_checks(process, lambda: [process.limiter.check(HITS) for _ in range(7)]) == []


def test_only_the_latest_leases_are_kept_up_to_a_bound(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    for number in range(MOST_LEASES):
        assert process.limiter.check(hits_for(LEASED, scope="api", subject=f"user:{number}")).allowed

    assert len(process.leases) == MOST_LEASES
    assert remaining_in_storage(fleet, HITS[0]) == 100 - RAMP - 1
    assert costs_of_checks(process, lambda: process.limiter.check(HITS)) == [[1]]


def test_renewed_lease_is_kept_when_the_bound_is_reached(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    for number in range(MOST_LEASES - 1):
        process.limiter.check(hits_for(LEASED, scope="api", subject=f"user:{number}"))
    fleet.clock.advance(2)
    for _ in range(1 + 2):
        process.limiter.check(HITS)

    process.limiter.check(hits_for(LEASED, scope="api", subject="user:one more"))

    assert costs_of_checks(process, lambda: process.limiter.check(HITS)) != [[1]]


def test_memory_storage_can_have_leases() -> None:
    limiter = Limiter(LeasingStorage(MemoryStorage()))
    assert isinstance(limiter.storage, MemoryStorage)
    assert limiter.check(HITS).remaining == 99
