"""All processes together never admit more than the limit, and fall short of it by no more than they hold in leases."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.storage.layers.leases.fleet import Fleet, Process, most_in_any_window
from flask_multilimit.engine import Decision, Hit, Rule, hits_for
from support.clock import microseconds

SLIDING = Rule(10, 12, lease=5)
FIXED = Rule(10, 12, lease=5, algorithm="fixed_window")
OTHER = Rule(3, 4)
"""Without a lease; refuses what the others would admit."""

PLANS = [(SLIDING,), (SLIDING,), (FIXED,), (FIXED, SLIDING), (SLIDING, OTHER), (OTHER, FIXED, SLIDING)]
WORKERS = 3

seconds = st.sampled_from([0, 0, 0, 0.001, 0.05, 0.3, 0.5, 0.95, 1, 1.05, 2, 5, 8.9, 9.05, 9.95, 10, 10.5])
delays = st.sampled_from([0, 0, 0, 0, 0.001, 0.2, 0.6, 1.2])
costs = st.sampled_from([1, 1, 1, 1, 2, 3, 5, 7])


@dataclass
class Admitted:
    """Units that were admitted."""

    at: int
    until: int
    """When they return, as the decision says."""
    cost: int


@dataclass
class Story:
    """What happens to a fleet, and the units that each rule admits."""

    fleet: Fleet = field(default_factory=lambda: Fleet(WORKERS))
    admitted: dict[Rule, list[Admitted]] = field(default_factory=lambda: defaultdict(list))
    decisions: list[tuple[Process, Decision, dict[str, Admitted]]] = field(default_factory=list)
    depth: int = 0

    def check(self, process: Process, hits: tuple[Hit, ...]) -> Decision:
        before = self.fleet.clock.now
        self.depth += 1
        decision = process.limiter.check(hits)
        self.depth -= 1
        decided_there = {hit.key for hit in process.wire.answered.get(decision.check_id, ())}
        spent = {
            charge.hit.key: Admitted(
                decision.at if charge.hit.key in decided_there else before, charge.until, charge.hit.cost
            )
            for charge in decision.charges
        }
        for charge in decision.charges:
            self.admitted[charge.hit.rule].append(spent[charge.hit.key])
        if spent:
            self.decisions.append((process, decision, spent))
        return decision

    def refund(self, number: int) -> None:
        if self.decisions:
            process, decision, spent = self.decisions.pop(number % len(self.decisions))
            process.limiter.refund(decision)
            for hit in decision.hits:
                if hit.key in spent:
                    self.admitted[hit.rule].remove(spent[hit.key])


def hits_of(plan: tuple[Rule, ...], cost: int) -> tuple[Hit, ...]:
    return hits_for(plan, scope="api", cost=cost)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("check"), st.integers(0, WORKERS - 1), st.sampled_from(PLANS), costs),
        st.tuples(st.just("check"), st.integers(0, WORKERS - 1), st.just(PLANS[0]), st.just(1)),
        st.tuples(st.just("wait"), seconds),
        st.tuples(st.just("slow"), st.integers(0, WORKERS - 1), delays),
        st.tuples(st.just("refund"), st.integers(0, 50)),
        st.tuples(st.just("burst"), st.integers(0, WORKERS - 1), st.integers(2, 9)),
    ),
    min_size=10,
    max_size=80,
)


def play_next_step(story: Story, todo: list[Any]) -> None:
    """Do the next step. While a check is on its way to the storage, other steps may be done."""
    match todo.pop(0):
        case ("check", number, plan, cost):
            story.check(story.fleet.processes[number], hits_of(plan, cost))
        case ("burst", number, many):
            for _ in range(many):
                story.check(story.fleet.processes[number], hits_of(PLANS[0], 1))
        case ("wait", gap):
            story.fleet.clock.advance(gap)
        case ("slow", number, delay):
            story.fleet.processes[number].wire.delays.append(delay)
        case ("refund", number):
            story.refund(number)


@settings(max_examples=150)
@given(steps=steps, meanwhile=st.lists(st.booleans(), max_size=60))
def test_processes_with_leases_never_admit_more_than_the_count_in_any_window(
    steps: list[Any], meanwhile: list[bool]
) -> None:
    story, todo, interrupted = Story(), list(steps), list(meanwhile)

    def interrupt() -> None:
        if story.depth < 4 and todo and interrupted and interrupted.pop(0):
            play_next_step(story, todo)

    for process in story.fleet.processes:
        process.wire.meanwhile = interrupt
    while todo:
        play_next_step(story, todo)

    for rule in (SLIDING, OTHER):
        admitted = [(each.at, each.cost) for each in story.admitted[rule]]
        assert not admitted or most_in_any_window(admitted, rule) <= rule.count
    by_window: dict[int, int] = defaultdict(int)
    for each in story.admitted[FIXED]:
        assert each.until - microseconds(FIXED.time) <= each.at < each.until
        by_window[each.until] += each.cost
    assert all(units <= FIXED.count for units in by_window.values())


@settings(max_examples=100)
@given(steps=steps.map(lambda steps: [step for step in steps if step[0] != "refund"]))
def test_process_refuses_only_units_that_others_may_hold_in_leases(steps: list[Any]) -> None:
    story, todo = Story(), list(steps)
    check = story.check

    def checked(process: Process, hits: tuple[Hit, ...]) -> Decision:
        decision = check(process, hits)
        for status in decision.violated:
            if status.rule is SLIDING:
                since = decision.at - SLIDING.quota.window
                live = sum(each.cost for each in story.admitted[SLIDING] if each.at > since)
                assert live + (WORKERS - 1) * (SLIDING.lease or 0) > SLIDING.count - status.hit.cost
        return decision

    story.check = checked  # type: ignore[method-assign]

    while todo:
        play_next_step(story, todo)


def test_admitted_units_fall_short_by_at_most_the_unspent_leases_of_others() -> None:
    rule = Rule(60, 100, lease=10)
    fleet, hits = Fleet(4), hits_for(rule, scope="api")
    *others, last = fleet.processes
    for process in others:
        for _ in range(1 + 2 + 4 + 8 + 1):  # each lease is twice as large as the last, and at most 10
            assert process.limiter.check(hits).allowed
    spent = 3 * 16

    while last.limiter.check(hits).allowed:
        spent += 1

    assert rule.count - spent == 3 * (10 - 1)
    assert all(process.limiter.check(hits).allowed for process in others for _ in range(10 - 1))
    assert not any(process.limiter.check(hits).allowed for process in fleet.processes)


@pytest.mark.parametrize("counts_longer", [True, False], ids=["counts longer", "counts as long as any unit"])
def test_count_holds_only_if_units_count_longer_by_the_life_of_a_lease(counts_longer: bool) -> None:
    rule = Rule(10, 12, lease=5)
    if not counts_longer:
        object.__setattr__(rule, "quota", Rule(10, 12).quota)
    fleet, hits = Fleet(2), hits_for(rule, scope="api")
    early, late = fleet.processes
    admitted = []
    for _ in range(4):
        early.limiter.check(hits)  # the third lease is of several units
        admitted.append((fleet.clock.now, 1))
    fleet.clock.advance(0.95)
    while early.limiter.check(hits).allowed:
        admitted.append((fleet.clock.now, 1))

    for _ in range(30):
        fleet.clock.advance(0.5)
        while late.limiter.check(hits).allowed:
            admitted.append((fleet.clock.now, 1))

    assert (most_in_any_window(admitted, rule) <= rule.count) is counts_longer
