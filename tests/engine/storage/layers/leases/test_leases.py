"""What a process does with the units it has taken, and what it says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from engine.storage.layers.leases.fleet import Fleet, Process
from flask_multilimit.engine import (
    GuardedStorage,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flask_multilimit.engine import Decision, Hit

LEASED = Rule(60, 100, lease=10)
FIXED = Rule(60, 100, lease=10, algorithm="fixed_window")
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
    """The last of checks after which ``process`` has 7 units that are not spent."""
    decisions = [process.limiter.check(hits) for _ in range(RAMP + 1)]
    assert all(decision.allowed for decision in decisions)
    return decisions[-1]


def left(fleet: Fleet, hit: Hit) -> int:
    """As the storage itself knows."""
    return fleet.storage.peek((hit,)).remaining


def questions(process: Process, act: Callable[[], object]) -> list[list[int]]:
    """The costs of each question that is asked meanwhile."""
    before = len(process.wire.asked)
    act()
    return [[hit.cost for hit in hits] for hits in process.wire.asked[before:]]


# How much is taken


def test_a_process_takes_more_at_once_the_more_it_is_asked_up_to_the_lease(process: Process) -> None:
    asked = questions(process, lambda: [process.limiter.check(HITS) for _ in range(45)])

    assert asked == [[1], [2], [4], [8], [10], [10], [10]]


def test_where_requests_are_rare_each_takes_its_own_unit(fleet: Fleet, process: Process) -> None:
    for _ in range(20):
        assert questions(process, lambda: process.limiter.check(HITS)) == [[1]]
        fleet.clock.advance(0.6)

    assert process.wire.refunds == 0


def test_unspent_units_go_back_and_the_next_lease_is_smaller(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    process.limiter.check(HITS)
    fleet.clock.advance(LEASED.lease_ms / 1000)

    assert questions(process, lambda: process.limiter.check(HITS)) == [[2]]
    assert process.wire.refunds == 1
    assert left(fleet, HITS[0]) == 100 - RAMP - 2 - 2


def test_a_cost_is_taken_as_often_as_it_goes_into_the_lease(process: Process) -> None:
    hits = hits_for(LEASED, scope="api", cost=3)

    asked = questions(process, lambda: [process.limiter.check(hits) for _ in range(12)])

    assert asked == [[3], [6], [9], [9], [9]]


def test_a_cost_above_the_lease_is_asked_for_as_it_is(process: Process) -> None:
    hits = hits_for(LEASED, scope="api", cost=11)

    assert questions(process, lambda: [process.limiter.check(hits) for _ in range(3)]) == [[11]] * 3


def test_no_more_is_taken_than_was_left(process: Process) -> None:
    hits = hits_for(Rule(60, 10, lease=8), scope="api")

    decisions: list[Decision] = []
    asked = questions(process, lambda: decisions.extend(process.limiter.check(hits) for _ in range(12)))

    assert asked == [[1], [2], [4], [3], [1], [1]]
    assert [decision.allowed for decision in decisions] == [True] * 10 + [False] * 2
    assert [decision.remaining for decision in decisions] == [*range(9, -1, -1), 0, 0]


def test_when_others_took_what_was_left_it_is_asked_again_for_what_is_needed(fleet: Fleet, process: Process) -> None:
    for _ in range(RAMP):
        process.limiter.check(HITS)
    fleet.storage.check(hits_for(LEASED, scope="api", cost=92))

    asked = questions(process, lambda: process.limiter.check(HITS))

    assert asked == [[8], [1]]
    assert left(fleet, HITS[0]) == 0
    assert not process.limiter.check(HITS).allowed


def test_a_refused_process_asks_for_single_units(fleet: Fleet, process: Process) -> None:
    for _ in range(RAMP):
        process.limiter.check(HITS)
    fleet.storage.check(hits_for(LEASED, scope="api", cost=93))

    assert questions(process, lambda: [process.limiter.check(HITS) for _ in range(3)]) == [[8], [1], [1], [1]]


@pytest.mark.parametrize("rule", [LEASED, FIXED], ids=str)
def test_a_refusal_says_when_a_check_of_this_cost_would_pass(rule: Rule, fleet: Fleet, process: Process) -> None:
    hits = hits_for(rule, scope="api")
    while (refused := process.limiter.check(hits)).allowed:
        fleet.clock.advance(0.07)

    fleet.clock.now += microseconds(refused.retry_after) - 1
    assert not process.limiter.check(hits).allowed
    fleet.clock.now += 1
    assert process.limiter.check(hits).allowed


# What is spent


def test_leased_units_are_spent_without_asking_the_storage(fleet: Fleet, process: Process) -> None:
    granted = take_lease(process)
    fleet.clock.advance(0.25)

    assert questions(process, lambda: process.limiter.check(HITS)) == []
    spent = process.limiter.check(HITS)
    assert (spent.allowed, spent.remaining, spent.retry_after) == (True, granted.remaining - 2, 0)
    assert spent.reset_after == granted.reset_after - 0.25
    assert spent.at == granted.at + SECOND // 4
    assert spent.id != granted.id


def test_its_reset_is_no_sooner_than_the_storage_may_have_meant(fleet: Fleet, process: Process) -> None:
    for _ in range(RAMP):
        process.limiter.check(HITS)
    process.wire.delays.extend([0.1, 0.2])
    granted = process.limiter.check(HITS)

    assert process.limiter.check(HITS).reset_after == granted.reset_after
    assert fleet.clock.now == granted.at + SECOND // 5


@pytest.mark.parametrize("rule", [LEASED, FIXED], ids=str)
def test_a_lease_ends_shortly_before_its_window_counted_from_the_question(
    rule: Rule, fleet: Fleet, process: Process
) -> None:
    hits = hits_for(rule, scope="api")
    life = rule.lease_ms / 1000 or 60 - 0.1
    for _ in range(RAMP):
        process.limiter.check(hits)
    process.wire.delays.extend([0.1, 0.2])
    process.limiter.check(hits)

    fleet.clock.advance(life - 0.3 - life / 1000 - 0.000_001)
    assert questions(process, lambda: process.limiter.check(hits)) == []
    fleet.clock.advance(0.000_001)
    assert len(questions(process, lambda: process.limiter.check(hits))) == 1


def test_units_of_one_rule_are_not_spent_by_another_that_counts_in_the_same_key(process: Process) -> None:
    take_lease(process)
    stricter = hits_for(Rule(60, 5, lease=2), scope="api")

    assert stricter[0].key == HITS[0].key
    assert not process.limiter.check(stricter).allowed


def test_a_changed_rule_takes_units_of_its_own(process: Process) -> None:
    take_lease(process)
    changed = hits_for(Rule(60, 200, lease=20), scope="api")

    assert questions(process, lambda: [process.limiter.check(changed) for _ in range(4)]) == [[1], [2], [4]]
    assert process.wire.refunds == 1


def test_equal_rules_are_one(process: Process) -> None:
    take_lease(process)

    again = hits_for(Rule(60, 100, lease=10), scope="api")

    assert questions(process, lambda: process.limiter.check(again)) == []


# Other rules of the plan


def test_only_unleased_rules_are_asked_and_statuses_keep_their_order(process: Process) -> None:
    hits = hits_for([Rule(5, 50), LEASED, FIXED], scope="api")
    granted = take_lease(process, hits)

    decision = process.limiter.check(hits)

    assert [hit.key for hit in process.wire.asked[-1]] == [hits[0].key]
    assert [status.hit for status in decision.statuses] == list(hits)
    assert [status.remaining for status in decision.statuses] == [41, 91, 91]
    assert [status.reset_after for status in decision.statuses] == [status.reset_after for status in granted.statuses]


def test_when_another_rule_refuses_nothing_is_spent(fleet: Fleet, process: Process) -> None:
    hits = hits_for([Rule(5, RAMP + 1), LEASED], scope="api")
    take_lease(process, hits)

    for _ in range(20):
        refused = process.limiter.check(hits)
        assert [status.allowed for status in refused.statuses] == [False, True]
        assert [status.remaining for status in refused.statuses] == [0, 100 - RAMP - 1]

    fleet.clock.advance(0.5)
    assert questions(process, lambda: [process.limiter.check(hits[1:]) for _ in range(7)]) == []
    assert left(fleet, hits[1]) == 100 - RAMP - 8


def test_while_units_may_come_back_no_others_take_their_place(process: Process) -> None:
    """Else those would be spent as if they were as young."""
    hits = hits_for([Rule(5, RAMP + 2), LEASED], scope="api", cost=1)
    take_lease(process, hits)
    seen: list[list[list[int]]] = []

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        seen.append(questions(process, lambda: [process.limiter.check(hits[1:]) for _ in range(8)]))

    process.limiter.check(hits)
    process.wire.meanwhile = meanwhile
    assert not process.limiter.check(hits).allowed

    assert seen == [[[1], [1], [1]]]
    assert questions(process, lambda: process.limiter.check(hits[1:])) == []


def test_one_thread_renews_a_lease_and_the_others_ask_the_storage(process: Process) -> None:
    seen: list[list[list[int]]] = []

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        seen.append(questions(process, lambda: [process.limiter.check(HITS) for _ in range(3)]))

    for _ in range(RAMP):
        process.limiter.check(HITS)
    process.wire.meanwhile = meanwhile

    assert process.limiter.check(HITS).allowed
    assert seen == [[[1], [1], [1]]]
    assert process.wire.asked[-1][0].cost == 8


def test_rules_without_a_lease_and_those_that_cost_nothing_are_asked_as_they_are(process: Process) -> None:
    plain, free = hits_for("100/minute", scope="api"), hits_for(LEASED, scope="api", cost=0)

    for hits in (plain, free):
        process.limiter.check(hits)
        assert process.wire.asked[-1] is hits


def test_a_shadow_is_counted_at_every_check(process: Process) -> None:
    hits = hits_for(LEASED, scope="api", shadow=True)

    assert questions(process, lambda: [process.limiter.check(hits) for _ in range(5)]) == [[1]] * 5


def test_a_check_with_an_id_is_known_in_the_storage(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    check_id = uuid4()
    before = left(fleet, HITS[0])

    first, again = (process.limiter.check(HITS, check_id=check_id) for _ in range(2))

    assert first.id == again.id == check_id
    assert left(fleet, HITS[0]) == before - 1


def test_many_checks_are_one_question_unless_one_of_them_is_leased(process: Process) -> None:
    plain = hits_for("100/minute", scope="other")

    assert len(questions(process, lambda: process.limiter.check_many([HITS, plain, HITS, HITS]))) == 3
    assert all(decision.allowed for decision in process.limiter.check_many([plain, plain]))


def test_a_peek_counts_what_is_left_here(fleet: Fleet, process: Process) -> None:
    granted = take_lease(process)
    fleet.storage.check(hits_for(LEASED, scope="api", cost=left(fleet, HITS[0])))

    peeked = process.limiter.peek(HITS)

    assert (granted.remaining, peeked.remaining, peeked.allowed) == (92, 7, True)
    assert not process.limiter.peek(hits_for(LEASED, scope="api", cost=8)).allowed
    fleet.clock.advance(LEASED.lease_ms / 1000)
    assert (process.limiter.peek(HITS).remaining, process.limiter.peek(HITS).allowed) == (0, False)


# Given back


def test_refunded_units_go_back_to_the_lease(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    decision = process.limiter.check(HITS)
    process.limiter.refund(decision)

    assert process.wire.refunds == 0
    assert questions(process, lambda: [process.limiter.check(HITS) for _ in range(7)]) == []
    assert left(fleet, HITS[0]) == 100 - RAMP - 8


def test_the_unit_of_the_check_that_took_the_others_is_refunded_alike(process: Process) -> None:
    process.limiter.refund(take_lease(process))

    assert questions(process, lambda: [process.limiter.check(HITS) for _ in range(8)]) == []


def test_a_refund_after_the_lease_has_ended_goes_to_the_storage_with_the_rest(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    decision = process.limiter.check(HITS)
    fleet.clock.advance(2)
    process.limiter.refund(decision)
    process.limiter.check(hits_for(LEASED, scope="api", cost=20))

    assert left(fleet, HITS[0]) == 100 - RAMP - 1 - 20


@pytest.mark.parametrize(("rule", "lost"), [(LEASED, 1), (FIXED, 0)], ids=str)
def test_a_refund_after_the_next_lease_is_lost_where_the_storage_knows_units_by_id(
    rule: Rule, lost: int, fleet: Fleet, process: Process
) -> None:
    hits = hits_for(rule, scope="api")
    take_lease(process, hits)
    decision = process.limiter.check(hits)
    fleet.clock.advance(2)
    process.limiter.check(hits_for(rule, scope="api", cost=20))
    before = left(fleet, hits[0])

    process.limiter.refund(decision)
    process.limiter.check(hits_for(rule, scope="api", cost=20))  # gives back what the lease has got

    assert left(fleet, hits[0]) == before - 20 + 1 - lost


def test_no_more_comes_back_to_a_lease_than_it_had(fleet: Fleet, process: Process) -> None:
    hits = hits_for(FIXED, scope="api")
    decisions = [process.limiter.check(hits) for _ in range(35)]

    for decision in decisions:
        process.limiter.refund(decision)

    assert left(fleet, hits[0]) == 90
    assert questions(process, lambda: [process.limiter.check(hits) for _ in range(10)]) == []


def test_closing_is_no_error_when_the_storage_fails(process: Process) -> None:
    take_lease(process)
    process.wire.error = StorageError("gone")

    process.limiter.close()


def test_closing_gives_back_the_units_of_all_other_keys_when_one_key_fails(fleet: Fleet, process: Process) -> None:
    other = hits_for(LEASED, scope="other")
    take_lease(process)
    take_lease(process, other)

    def meanwhile() -> None:
        process.wire.meanwhile = lambda: None
        raise StorageError("the key holds a value of another type")

    process.wire.meanwhile = meanwhile
    process.limiter.close()

    assert sorted([left(fleet, HITS[0]), left(fleet, other[0])]) == [100 - RAMP - 8, 100 - RAMP - 1]


def test_a_reset_forgets_the_lease_of_this_process(fleet: Fleet, process: Process) -> None:
    take_lease(process)

    process.limiter.reset(HITS)

    assert questions(process, lambda: process.limiter.check(HITS)) == [[1]]
    assert left(fleet, HITS[0]) == 99


# Failures


def test_when_a_check_fails_its_units_go_back(fleet: Fleet, process: Process) -> None:
    both = hits_for([Rule(5, 50), LEASED], scope="api")
    take_lease(process)
    process.wire.error = StorageError("gone")
    with pytest.raises(StorageError):
        process.limiter.check(both)

    assert questions(process, lambda: [process.limiter.check(HITS) for _ in range(7)]) == []
    process.wire.error = None
    assert left(fleet, HITS[0]) == 100 - RAMP - 8


def test_a_failed_return_of_a_lease_is_no_error(fleet: Fleet, process: Process) -> None:
    limiter = Limiter(LeasingStorage(GuardedStorage(process.wire, workers=1, clock=fleet.clock), clock=fleet.clock))
    for _ in range(RAMP + 1):
        limiter.check(HITS)
    process.wire.error = StorageError("gone")
    fleet.clock.advance(2)

    assert limiter.check(HITS).decided_by == "local"
    limiter.close()


def test_after_a_failure_the_next_units_can_be_fetched(process: Process) -> None:
    process.wire.error = StorageError("gone")
    with pytest.raises(StorageError):
        process.limiter.check(HITS)
    process.wire.error = None

    assert questions(process, lambda: [process.limiter.check(HITS) for _ in range(3)]) == [[1], [2]]


@pytest.fixture
def guarded() -> Iterator[tuple[Fleet, list[Limiter]]]:
    """Four processes, each with a guard, and some units that it has taken in advance."""
    fleet = Fleet(4)
    guards = [GuardedStorage(process.wire, workers=4, clock=fleet.local_clock) for process in fleet.processes]
    limiters = [Limiter(LeasingStorage(guard, clock=fleet.local_clock)) for guard in guards]
    for _ in range(RAMP + 1):
        assert all(limiter.check(HITS).allowed for limiter in limiters)
    yield fleet, limiters
    for limiter in limiters:
        limiter.close()


def test_in_an_outage_each_process_admits_what_it_has_taken_and_its_share_of_what_was_left(
    guarded: tuple[Fleet, list[Limiter]],
) -> None:
    fleet, limiters = guarded
    for process in fleet.processes:
        process.wire.error = StorageError("gone")
    spent = 4 * (RAMP + 1)

    for limiter in limiters:
        spent += sum(limiter.check(HITS).decided_by not in FALLBACKS for _ in range(7))
    decisions = [limiter.check(HITS) for limiter in limiters for _ in range(30)]
    spent += sum(decision.allowed for decision in decisions)

    assert {decision.decided_by for decision in decisions} == {"local"}
    assert 4 * (RAMP + 8) < spent <= LEASED.count


def test_in_an_outage_nothing_is_taken_in_advance(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    hits = hits_for(Rule(60, 40, lease=10), scope="other")
    for _ in range(3):
        limiters[0].check(hits)
    for process in fleet.processes:
        process.wire.error = StorageError("gone")

    decisions = [limiters[0].check(hits) for _ in range(12)]

    assert [decision.decided_by for decision in decisions] == ["local"] * 12
    admitted = (40 - 3 - 2 * 3) // 4  # three others may have taken two each meanwhile
    assert sum(decision.allowed for decision in decisions) == admitted
    for process in fleet.processes:
        process.wire.error = None
    until(lambda: limiters[0].health().state == "working")
    assert left(fleet, hits[0]) == 40 - 3 - admitted


def test_a_refund_in_an_outage_is_of_the_share(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    hits = hits_for(Rule(60, 40, lease=10), scope="other")
    limiters[0].check(hits)
    for process in fleet.processes:
        process.wire.error = StorageError("gone")

    for _ in range(20):
        decision = limiters[0].check(hits)
        assert (decision.allowed, decision.decided_by) == (True, "local")
        limiters[0].refund(decision)


def test_a_lease_and_a_share_in_one_check_have_a_time_each(guarded: tuple[Fleet, list[Limiter]]) -> None:
    fleet, limiters = guarded
    for process in fleet.processes:
        process.wire.error = StorageError("gone")
    fleet.clock.advance(0.5)

    decision = limiters[0].check(hits_for([LEASED, Rule(5, 50)], scope="api"))

    assert (decision.allowed, decision.decided_by) == (True, "local")
    assert [status.reset_after for status in decision.statuses] == [LEASED.quota.window / SECOND - 0.5, 5]


def test_what_is_charged_after_an_outage_lets_nothing_be_forgotten_too_early() -> None:
    assert unlimited(HITS[0]).rule.quota.window == LEASED.quota.window


def test_while_a_guard_denies_what_has_been_taken_is_spent(fleet: Fleet, process: Process) -> None:
    guard = GuardedStorage(process.wire, on_error="deny", workers=1, clock=fleet.clock)
    limiter = Limiter(LeasingStorage(guard, clock=fleet.clock))
    for _ in range(RAMP + 1):
        limiter.check(HITS)
    process.wire.error = StorageError("gone")

    assert sum(limiter.check(HITS).allowed for _ in range(7)) == 7
    with pytest.raises(StorageDenied):
        limiter.check(HITS)
    limiter.close()


# Processes, memory


def test_a_forked_child_has_nothing_of_its_parent(process: Process) -> None:
    take_lease(process)

    assert len(forked(lambda: questions(process, lambda: process.limiter.check(HITS)))()) == 1
    assert questions(process, lambda: [process.limiter.check(HITS) for _ in range(7)]) == []


def test_leases_are_of_so_many_quotas_and_of_the_latest(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    for number in range(MOST_LEASES):
        assert process.limiter.check(hits_for(LEASED, scope="api", subject=str(number))).allowed

    assert len(process.leases) == MOST_LEASES
    assert left(fleet, HITS[0]) == 100 - RAMP - 1
    assert questions(process, lambda: process.limiter.check(HITS)) == [[1]]


def test_a_lease_that_is_renewed_stays_while_others_go(fleet: Fleet, process: Process) -> None:
    take_lease(process)
    for number in range(MOST_LEASES - 1):
        process.limiter.check(hits_for(LEASED, scope="api", subject=str(number)))
    fleet.clock.advance(2)
    for _ in range(1 + 2):
        process.limiter.check(HITS)

    process.limiter.check(hits_for(LEASED, scope="api", subject="one more"))

    assert questions(process, lambda: process.limiter.check(HITS)) != [[1]]


def test_a_storage_of_one_process_may_be_leased_too_and_stays_what_it_is() -> None:
    limiter = Limiter(LeasingStorage(MemoryStorage()))

    assert isinstance(limiter.storage, MemoryStorage)
    assert limiter.check(HITS).remaining == 99
