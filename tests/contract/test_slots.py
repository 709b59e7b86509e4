"""Concurrent rules on every storage: at most the count in progress, each slot released once, no slot lost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flask_multilimit import Concurrent, ConfigurationError, Decision, Rule
from flask_multilimit.engine import Limiter
from flask_multilimit.engine.slots import slots_of
from flask_multilimit.engine.storage import Inspectable, KeepsSlots
from support.bench import Bench, hits
from support.clock import SECOND

TIMEOUT = 60
THREE = hits(Concurrent(3, TIMEOUT))


@pytest.fixture
def bench(bench: Bench) -> Bench:
    if not isinstance(bench.limiter.storage, KeepsSlots):
        pytest.skip("slots are an optional capability, which the storage of the documentation does not have")
    return bench


def used(bench: Bench, asked: Any = THREE) -> int:
    (status,) = bench.limiter.peek(asked).statuses
    return int(status.rule.count - status.remaining)


def renew(bench: Bench, *decisions: Decision) -> None:
    storage: Any = bench.limiter.storage
    storage.renew([slot for decision in decisions for slot in slots_of(decision)])


def test_listed_keys_can_be_filtered_by_contained_text(bench: Bench) -> None:
    storage, (slots,) = bench.limiter.storage, THREE
    assert isinstance(storage, Inspectable)
    bench.limiter.check([slots, *hits("9/minute")])

    assert len(storage.keys("rate_limit:")) == 2
    assert [stored.key for stored in storage.keys("rate_limit:", containing=":concurrency:")] == [slots.key]
    assert storage.keys("rate_limit:", containing="*") == []
    assert storage.keys(slots.key, containing=":concurrency:") == []


def test_refusal_by_slots_has_no_retry_after_and_takes_no_slot(bench: Bench) -> None:
    for _ in range(3):
        bench.limiter.check(THREE)

    refused = bench.limiter.check(THREE)

    assert (refused.allowed, refused.waits_for_slot, refused.refused_for) == (False, True, 0)
    assert refused.retry_after == float("inf")
    (status,) = refused.violated
    assert status.waits_for_slot
    bench.limiter.release(refused)
    assert used(bench) == 3


def test_cost_above_the_count_does_not_wait_for_a_slot(bench: Bench) -> None:
    refused = bench.limiter.check(hits(Concurrent(3), cost=4))
    assert (refused.allowed, refused.waits_for_slot) == (False, False)


def test_rates_and_slots_are_charged_together_or_not_at_all(bench: Bench) -> None:
    both = hits([Rule(60, 4), Concurrent(2)])
    for _ in range(2):
        bench.limiter.check(both)

    refused = bench.limiter.check(both)
    assert [status.remaining for status in refused.statuses] == [2, 0]
    assert (refused.waits_for_slot, refused.refused_for) == (True, 0)
    for _ in range(2):
        bench.limiter.check(hits(Rule(60, 4)))
    refused = bench.limiter.check(both)
    assert [status.allowed for status in refused.statuses] == [False, False]
    assert (refused.waits_for_slot, refused.refused_for) == (True, 60)


def test_release_leaves_the_charges_of_rates(bench: Bench) -> None:
    both = hits([Rule(60, 4), Concurrent(2)])
    decision = bench.limiter.check(both)

    bench.limiter.release(decision)
    bench.limiter.release(decision)

    assert [status.remaining for status in bench.limiter.peek(both).statuses] == [3, 2]


@pytest.mark.parametrize("lost", ["reset", "expired", "clock stepped back"])
def test_lost_slots_count_again_when_renewed(bench: Bench, lost: str) -> None:
    heavy, light = bench.limiter.check(hits(Concurrent(3, TIMEOUT), cost=2)), bench.limiter.check(THREE)
    if lost == "reset":
        bench.limiter.reset(THREE)
    elif lost == "expired":
        bench.clock.advance(3 * TIMEOUT)
    else:
        bench.clock.advance(-10)
        bench.limiter.release(bench.limiter.check(THREE))  # drops slots of the future
    assert used(bench) == 0

    renew(bench, heavy)
    assert used(bench) == 2
    renew(bench, light, heavy)
    assert used(bench) == 3
    assert not bench.limiter.check(THREE).allowed

    bench.clock.advance(TIMEOUT - 1)
    assert used(bench) == 3
    bench.limiter.release(heavy)
    assert used(bench) == 1
    bench.limiter.release(light)
    assert bench.stored() == {}


def test_lost_slots_expire_when_their_renewals_end(bench: Bench) -> None:
    decision = bench.limiter.check(THREE)
    bench.limiter.reset(THREE)

    renew(bench, decision)

    if bench.client is not None:
        (key,) = bench.keys()
        assert bench.client.pttl(key) > TIMEOUT * 1000
    bench.clock.advance(TIMEOUT)
    assert used(bench) == 0


def test_renewed_lost_slots_may_exceed_the_count_and_refuse_others(bench: Bench) -> None:
    before = [bench.limiter.check(THREE) for _ in range(3)]
    bench.limiter.reset(THREE)
    after = [bench.limiter.check(THREE) for _ in range(3)]

    renew(bench, *before)

    for decision in before:
        refused = bench.limiter.check(THREE)
        assert (refused.allowed, refused.remaining, refused.waits_for_slot) == (False, 0, True)
        bench.limiter.release(decision)
    assert not bench.limiter.check(THREE).allowed
    bench.limiter.release(after[0])
    assert bench.limiter.check(THREE).allowed


def test_repeated_check_takes_its_slot_once(bench: Bench) -> None:
    check_id = uuid4()

    first, again = (bench.limiter.check(THREE, check_id=check_id) for _ in range(2))

    assert first.allowed
    assert again.allowed
    assert used(bench) == 1
    bench.limiter.release(again)
    assert used(bench) == 0


def test_count_can_change_while_slots_are_in_use(bench: Bench) -> None:
    taken = [bench.limiter.check(THREE) for _ in range(3)]
    two = hits(Concurrent(2, TIMEOUT))

    assert bench.limiter.peek(two).remaining == 0
    assert not bench.limiter.check(two).allowed
    bench.limiter.release(taken[0])
    assert not bench.limiter.check(two).allowed
    bench.limiter.release(taken[1])
    assert bench.limiter.check(two).allowed


def test_slots_of_several_checks_and_subjects_are_released_together(bench: Bench) -> None:
    taken = [bench.limiter.check(hits(Concurrent(3, TIMEOUT), subject=who)) for who in ("ada", "bo", "ada")]

    storage: Any = bench.limiter.storage
    storage.release([slot for decision in taken for slot in slots_of(decision)])

    assert used(bench, hits(Concurrent(3, TIMEOUT), subject="ada")) == 0
    assert used(bench, hits(Concurrent(3, TIMEOUT), subject="bo")) == 0


def test_slot_key_has_a_ttl_and_is_deleted_with_the_last_slot(bench: Bench) -> None:
    taken = [bench.limiter.check(hits([Concurrent(3, TIMEOUT)])) for _ in range(3)]
    if bench.client is not None:
        (key,) = bench.keys()
        assert bench.client.pttl(key) > TIMEOUT * 1000

    for decision in taken:
        bench.limiter.release(decision)

    assert bench.stored() == {}
    assert used(bench) == 0


def test_slot_block_holds_its_slot(bench: Bench) -> None:
    with bench.limiter.slot(THREE) as decision:
        assert decision.allowed
        assert used(bench) == 1
    assert used(bench) == 0
    with pytest.raises(RuntimeError), bench.limiter.slot(THREE):
        raise RuntimeError
    assert used(bench) == 0


def test_acquire_passes_when_a_slot_is_free(bench: Bench) -> None:
    taken = [bench.limiter.check(THREE) for _ in range(3)]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        bench.clock.advance(seconds)
        if len(pauses) == 4:
            bench.limiter.release(taken[0])

    waiting = Limiter(bench.limiter.storage, sleep=sleep, monotonic=lambda: bench.clock.now / SECOND)

    assert waiting.acquire(THREE, timeout=10).allowed
    assert len(pauses) == 4
    assert pauses[0] < pauses[3] <= 0.25
    pauses.clear()
    assert not waiting.acquire(THREE, timeout=2).allowed
    assert sum(pauses) == pytest.approx(2, abs=0.01)


def test_only_checks_with_slots_need_a_storage_that_keeps_them() -> None:
    class Plain:
        shared = False

        def __getattr__(self, name: str) -> Any:
            if name in {"release", "renew", "wrapped"}:
                raise AttributeError(name)
            return lambda *_: Limiter().check(THREE)

    storage: Any = Plain()
    assert not isinstance(storage, KeepsSlots)
    Limiter(storage).release(Limiter().check(hits("5/minute")))
    with pytest.raises(ConfigurationError, match="keeps no slots"), Limiter(storage).slot(THREE):
        pass


# Random traffic against a model


@dataclass
class Model:
    """A slot counts until it is released, or for the timeout after it was taken or renewed."""

    count: int
    slots: dict[Any, tuple[int, int]] = field(default_factory=dict)
    """By id: when it was taken or renewed, and its units."""

    def used(self, now: int) -> int:
        return sum(units for since, units in self.slots.values() if since > now - TIMEOUT * SECOND)

    def check(self, now: int, id_: Any, cost: int) -> bool:
        if cost and self.used(now) + cost > self.count:
            return False
        if cost:
            self.slots[id_] = (now, cost)
        return True

    def renew(self, now: int, id_: Any) -> None:
        _, units = self.slots[id_]
        self.slots[id_] = (now, units)


steps = st.lists(
    st.tuples(
        st.sampled_from(["check", "check", "check", "release", "renew", "wait"]),
        st.integers(0, 5),
        st.sampled_from([1, 1, 1, 2, 3, 0]),
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps=steps, count=st.integers(1, 4))
def test_random_traffic_is_answered_like_the_model(
    bench: Bench, steps: Sequence[tuple[str, int, int]], count: int
) -> None:
    bench.limiter.reset(hits(Concurrent(count, TIMEOUT)))
    model, taken = Model(count), list[Any]()
    for kind, which, cost in steps:
        if kind == "wait":
            bench.clock.advance([0.000001, 1, 29, TIMEOUT - 1, TIMEOUT, 3 * TIMEOUT][which])
        elif kind == "check":
            decision = bench.limiter.check(hits(Concurrent(count, TIMEOUT), cost=cost))
            assert decision.allowed == model.check(bench.clock.now, decision.check_id, cost)
            if decision.charges:
                taken.append(decision)
        elif taken and kind == "release":
            decision = taken.pop(which % len(taken))
            bench.limiter.release(decision)
            model.slots.pop(decision.check_id, None)
        elif taken:
            decision = taken[which % len(taken)]
            renew(bench, decision)
            model.renew(bench.clock.now, decision.check_id)
        assert used(bench, hits(Concurrent(count, TIMEOUT))) == min(model.used(bench.clock.now), count)
