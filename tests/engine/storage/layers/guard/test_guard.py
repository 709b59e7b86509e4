"""The guard by itself, around a storage in memory that fails when told to."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from flask_multilimit.engine import (
    Concurrent,
    ConfigurationError,
    Decision,
    GuardedStorage,
    Health,
    Hit,
    Layers,
    Limiter,
    MemoryStorage,
    Rule,
    StorageDenied,
    StorageError,
    hits_for,
)
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.hits import Hits
from flask_multilimit.engine.slots import slots_of
from flask_multilimit.engine.storage.layers.guard.fallback import Fallback
from flask_multilimit.engine.storage.layers.guard.workers import count_workers
from support.bench import hits, rule
from support.clock import Clock
from support.rates import RATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from uuid import UUID

    from flask_multilimit.engine.decision import Charge
    from flask_multilimit.engine.hits import OnStorageError
    from flask_multilimit.engine.storage import Lost, Slot

Policy = Literal["local", "allow", "deny", "raise"]


class Shared(MemoryStorage):
    """What all workers share; `error` is raised in place of every answer."""

    shared = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.error: StorageError | None = None
        self.loses_replies = False
        self.stumbles = 0
        self.asked: list[float] = []
        self.takes_charges = threading.Event()
        """Until it is set, the guards wait for an answer to what they charge."""
        self.takes_charges.set()

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self.asked.append(time.monotonic())
        self._may_fail()
        decision = super().check(hits, check_id)
        if self.loses_replies or self.stumbles:
            self.stumbles = max(self.stumbles - 1, 0)
            error = StorageError("the reply was lost")
            error.no_reply = True
            error.check_id = decision.id
            raise error
        return decision

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        assert self.takes_charges.wait(10)
        return super().check_many(many, ids)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        self._may_fail()
        return super().peek(hits)

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._may_fail()
        super().settle(check_id, charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        self._may_fail()
        super().release(slots, lost)

    def renew(self, slots: Sequence[Slot]) -> None:
        self._may_fail()
        super().renew(slots)

    def _may_fail(self) -> None:
        if self.error is not None:
            raise self.error


class Workers:
    """Some processes' guards around one storage, under one clock of the test."""

    def __init__(self, many: int, on_error: OnStorageError = "local") -> None:
        self.clock = Clock()
        self.storage = Shared(self.clock)
        self.changes: list[Health] = []
        self.limiters = [
            Limiter(
                GuardedStorage(
                    self.storage, on_error=on_error, workers=many, on_change=self.changes.append, clock=self.clock
                )
            )
            for _ in range(many)
        ]

    def break_down(self) -> None:
        self.storage.error = StorageError("it is broken")

    def mend(self) -> None:
        self.storage.error = None
        self.storage.loses_replies = False
        self.storage.takes_charges.set()
        self.until(lambda: all(limiter.health().state == "working" for limiter in self.limiters))
        self.until(lambda: all(not guard._recovery.running for guard in self._guards()))  # all is logged

    def _guards(self) -> list[GuardedStorage]:
        return [guard for limiter in self.limiters if isinstance(guard := limiter._storage, GuardedStorage)]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def admitted(self, plan: tuple[Hit, ...], tries: int = 40) -> list[int]:
        """Of how many tries, in turn, each worker admits how many."""
        return [sum(limiter.check(plan).allowed for _ in range(tries)) for limiter in self.limiters]


@pytest.fixture
def make() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def make(many: int = 1, on_error: OnStorageError = "local") -> Workers:
        made.append(Workers(many, on_error))
        return made[-1]

    yield make
    for workers in made:
        for limiter in workers.limiters:
            limiter.close()


# What becomes of a check


def test_local_limits_as_before(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.break_down()

    decisions = [workers.limiters[0].check(hits("5/minute")) for _ in range(7)]

    assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
    assert {decision.decided_by for decision in decisions} == {"local"}
    assert decisions[0].hits == hits("5/minute")
    assert decisions[0].remaining == 4
    assert decisions[-1].retry_after == 60


def test_allow_lets_everything_pass(make: Callable[..., Workers]) -> None:
    workers = make(on_error="allow")
    workers.break_down()

    decisions = [workers.limiters[0].check(hits("1/minute")) for _ in range(7)]

    assert all(decision.allowed for decision in decisions)
    assert {decision.decided_by for decision in decisions} == {"allow"}
    assert decisions[0].remaining == 1


def test_deny_refuses_with_an_error_of_its_own(make: Callable[..., Workers]) -> None:
    workers = make(on_error="deny")
    workers.break_down()

    for _ in range(3):
        with pytest.raises(StorageDenied, match="it is broken") as caught:
            workers.limiters[0].check(hits("1/minute"))
        assert caught.value.retry_after == 1


def test_raise_gives_the_error_on(make: Callable[..., Workers]) -> None:
    workers = make(on_error="raise")
    workers.storage.error = error = StorageError("it is broken")
    error.remedy, error.__cause__ = "mend it", OSError("no way")

    for _ in range(3):
        with pytest.raises(StorageError, match="it is broken") as caught:
            workers.limiters[0].check(hits("1/minute"))
        assert not isinstance(caught.value, StorageDenied)
        assert (caught.value.remedy, caught.value.__cause__) == (error.remedy, error.__cause__)


@pytest.mark.parametrize(
    ("policies", "outcome"),
    [
        (("allow", "local"), "refused"),
        (("local", "allow"), "refused"),
        (("allow", "allow"), "allowed"),
        (("deny", "local"), StorageDenied),
        (("local", "deny"), StorageDenied),
        (("deny", "raise"), StorageError),
        (("allow", "raise"), StorageError),
        ((None, "allow"), StorageDenied),
    ],
)
def test_the_strictest_of_the_hits_decides(
    make: Callable[..., Workers], policies: tuple[Policy, Policy], outcome: str | type[StorageError]
) -> None:
    workers = make(on_error="deny")
    workers.break_down()
    limiter = workers.limiters[0]
    both = tuple(
        hit
        for scope, policy in zip(("a", "b"), policies, strict=True)
        for hit in hits_for("1/minute", scope=scope, on_storage_error=policy)
    )

    if isinstance(outcome, type):
        with pytest.raises(outcome) as caught:
            limiter.check(both)
        assert type(caught.value) is outcome
    else:
        assert limiter.check(both).allowed
        assert limiter.check(both).allowed is (outcome == "allowed")


@pytest.mark.parametrize("policy", ["raise", "deny"])
def test_a_shadow_never_refuses(make: Callable[..., Workers], policy: Policy) -> None:
    workers = make()
    workers.break_down()
    shadow = hits_for("1/minute", scope="x", shadow=True, on_storage_error=policy)

    assert [workers.limiters[0].check(shadow).allowed for _ in range(3)] == [True] * 3


def test_a_peek_is_decided_alike_and_charges_nothing(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter = workers.limiters[0]
    limiter.check(hits("5/minute"))
    workers.break_down()

    assert [limiter.peek(hits("5/minute")).remaining for _ in range(2)] == [4, 4]
    workers.mend()
    assert limiter.peek(hits("5/minute")).remaining == 4


def test_many_checks_are_decided_alike(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.break_down()
    plans = [hits("1/minute", subject="ada"), hits("1/minute", subject="bob"), hits("1/minute", subject="ada")]

    assert [decision.allowed for decision in workers.limiters[0].check_many(plans)] == [True, True, False]


# The share of a worker


@pytest.mark.parametrize(("many", "each"), [(1, 10), (2, 5), (3, 3), (4, 2), (10, 1), (11, 0)])
def test_each_worker_admits_its_share(make: Callable[..., Workers], many: int, each: int) -> None:
    workers = make(many)
    workers.break_down()
    workers.admitted(hits("10/minute", subject="bob"), 1)
    workers.clock.advance(60)

    assert workers.admitted(hits("10/minute"), 11) == [each] * many


@pytest.mark.parametrize(("many", "each"), [(1, 60), (2, 15), (4, 7), (40, 1), (61, 0)])
def test_of_whom_a_worker_has_not_heard_half_is_supposed_to_be_used(
    make: Callable[..., Workers], many: int, each: int
) -> None:
    workers = make(many)
    workers.break_down()

    assert workers.admitted(hits("60/minute"), 61) == [each] * many
    workers.clock.advance(59.9)
    assert workers.admitted(hits("60/minute"), 1) == [0] * many
    workers.clock.advance(0.1)
    assert workers.admitted(hits("60/minute"), 61) == [{1: 60, 2: 30, 4: 15, 40: 1, 61: 0}[many]] * many


@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize("used", [0, 10, 30, 45, 60])
@pytest.mark.parametrize("many", [2, 4])
def test_whom_one_worker_has_served_alone_gets_no_more_unless_he_had_used_more_than_half(
    make: Callable[..., Workers], many: int, used: int, algorithm: str
) -> None:
    """Then up to a half more, and not quite: of 60 with 2 workers 75, with 4 workers 81."""
    workers = make(many)
    plan = hits(rule(algorithm, 60, 60))
    assert all(workers.limiters[0].check(plan).allowed for _ in range(used))
    workers.break_down()

    admitted = used + sum(workers.admitted(plan, 61))

    assert admitted <= (60 if used <= 30 else 75 if many == 2 else 81)


def test_nothing_is_supposed_of_whom_comes_when_the_storage_is_back(make: Callable[..., Workers]) -> None:
    workers = make(2)
    workers.break_down()
    workers.admitted(hits("60/minute", subject="bob"), 1)
    workers.mend()

    for _ in range(20):
        assert workers.admitted(hits("60/minute"), 1) == [1, 1]
    workers.break_down()
    assert sum(workers.admitted(hits("60/minute"), 20)) >= 18


def test_whom_a_worker_has_not_heard_of_for_long_is_in_between(make: Callable[..., Workers]) -> None:
    workers = make(2)
    plan = hits("60/hour")
    for limiter in workers.limiters:
        limiter.check(plan)
    workers.clock.advance(1800)
    workers.break_down()

    assert workers.admitted(plan, 61) == [(60 - 1 - 15) // 2, (60 - 2 - 15) // 2]


def test_what_begins_with_more_than_its_part_of_a_burst_refills_more_slowly(make: Callable[..., Workers]) -> None:
    """Ten workers, each of which begins with the one unit that the bucket holds, share 20 + 1 units of ten seconds."""
    plan = hits(Rule(10, 20, algorithm="token_bucket", burst=1))
    workers = make(10)
    workers.break_down()

    admitted = sum(workers.admitted(plan, 2))
    for _ in range(20):
        workers.clock.advance(0.5)
        admitted += sum(workers.admitted(plan, 2))

    assert 20 <= admitted <= 21


def test_who_has_no_share_is_told_to_come_back_soon(make: Callable[..., Workers]) -> None:
    workers = make(3)
    workers.break_down()

    decision = workers.limiters[0].check(hits("2/hour"))

    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 0, 1)


@pytest.mark.parametrize("many", [1, 2, 7])
@pytest.mark.parametrize(
    ("algorithm", "burst"),
    [
        (name, burst)
        for name, twin in ALGORITHMS.items()
        for burst in ([None, 1, 4, 25] if "burst" in twin.PARAMETERS else [None])
    ],
)
def test_together_they_admit_no_more_than_the_rule_in_any_window(
    make: Callable[..., Workers], algorithm: str, burst: int | None, many: int
) -> None:
    takes_burst = "burst" in ALGORITHMS[algorithm].PARAMETERS
    plan = hits(Rule(10, 20, algorithm=algorithm, burst=burst))
    workers = make(many)
    workers.break_down()
    times: list[int] = []

    for _ in range(30):
        times += [workers.clock.now] * sum(workers.admitted(plan, 26 // many + 1))
        workers.clock.advance(1.5)

    quota = plan[0].rule.quota
    most = quota.count * {"fixed_window": 2}.get(algorithm, 1) + (quota.burst if takes_burst else 0)
    assert max(sum(start <= at < start + 10_000_000 for at in times) for start in times) <= most
    assert len(times) <= most + quota.count * 4.5


@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize("algorithm", RATES)
def test_an_outage_is_no_fresh_quota(make: Callable[..., Workers], algorithm: str, many: int) -> None:
    plan = hits(rule(algorithm, 10, 12))
    workers = make(many)
    before = 0
    for _ in range(3):
        before += sum(limiter.check(plan).allowed for limiter in workers.limiters)
    workers.break_down()

    during = workers.admitted(plan)

    assert before + sum(during) <= 12 + (many - 1)  # what each has last seen may be so old
    assert before + sum(during) >= 12 - 2 * many


def test_what_others_have_taken_since_is_not_admitted_again(make: Callable[..., Workers]) -> None:
    workers, plan = make(2), hits("10/minute")
    before = [limiter.check(plan).allowed for limiter in workers.limiters for _ in range(2)]
    workers.break_down()

    assert sum(before) + sum(workers.admitted(plan)) <= 10


def test_a_quota_that_was_used_up_is_whole_again_when_it_would_have_been(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter = workers.limiters[0]
    for _ in range(3):
        limiter.check(hits("3/minute"))
    workers.clock.advance(20)
    workers.break_down()

    assert workers.admitted(hits("3/minute")) == [0]
    workers.clock.advance(39.9)
    assert workers.admitted(hits("3/minute")) == [0]
    workers.clock.advance(0.2)
    assert workers.admitted(hits("3/minute")) == [3]


def test_a_storage_that_fails_again_and_again_gives_no_fresh_quota_either(make: Callable[..., Workers]) -> None:
    workers = make()
    admitted = 0
    for _ in range(2):
        workers.break_down()
        admitted += sum(workers.limiters[0].check(hits("10/minute")).allowed for _ in range(4))
        workers.mend()
    workers.break_down()

    assert admitted + workers.admitted(hits("10/minute"))[0] == 10


# When the storage is back


def test_what_was_admitted_is_charged(make: Callable[..., Workers]) -> None:
    workers = make(2)
    plan = hits("10/minute; 15/hour", cost=2)
    assert workers.limiters[0].check(plan).allowed
    workers.break_down()
    assert workers.admitted(plan) == [2, 1]

    workers.mend()

    assert [status.remaining for status in workers.limiters[0].peek(plan).statuses] == [2, 7]


def test_what_has_left_its_window_is_not_charged(make: Callable[..., Workers]) -> None:
    workers = make()
    plan = hits("10/minute; 15/hour")
    workers.break_down()
    assert workers.limiters[0].check(plan).allowed
    workers.clock.advance(61)

    workers.mend()

    assert [status.remaining for status in workers.limiters[0].peek(plan).statuses] == [10, 14]


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_a_bucket_is_charged_as_far_as_it_goes(make: Callable[..., Workers], algorithm: str) -> None:
    workers = make()
    plan = hits(rule(algorithm, 10, 5))
    workers.break_down()
    assert workers.admitted(plan) == [5]
    MemoryStorage.check(workers.storage, hits(rule(algorithm, 10, 5), cost=3))

    workers.mend()

    assert workers.limiters[0].peek(plan).remaining == 0


def test_a_lost_reply_is_charged_once(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.storage.loses_replies = True
    assert workers.limiters[0].check(hits("5/minute")).allowed
    assert workers.storage.peek(hits("5/minute")).remaining == 4

    workers.mend()

    assert workers.limiters[0].peek(hits("5/minute")).remaining == 4


def test_a_storage_that_stumbles_over_what_it_is_to_be_charged_is_asked_again(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter, answer = workers.limiters[0], workers.storage.check_many
    workers.break_down()
    assert workers.admitted(hits("5/minute"), 3) == [3]
    unanswered = StorageError("the reply was lost")
    unanswered.no_reply = True
    batches: list[int] = []

    def lose_the_first_reply(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        decisions = answer(many, ids)
        batches.append(len(many))
        if len(batches) == 1:
            raise unanswered
        return decisions

    workers.storage.check_many = lose_the_first_reply  # type: ignore[method-assign]
    workers.mend()

    assert batches == [3, 3]
    assert limiter.peek(hits("5/minute")).remaining == 2
    assert limiter.health().error is not unanswered, "another probe was waited for"


@pytest.mark.parametrize("mended_first", [False, True])
@pytest.mark.parametrize("units", [0, 1, 3])
def test_a_settlement_finds_the_charge_wherever_it_is(
    make: Callable[..., Workers], *, units: int, mended_first: bool
) -> None:
    workers = make()
    limiter = workers.limiters[0]
    workers.break_down()
    decision = limiter.check(hits("5/minute"))
    limiter.check(hits("5/minute"))
    if mended_first:
        workers.mend()

    limiter.settle(decision, units)

    if not mended_first:
        assert limiter.peek(hits("5/minute")).remaining == 4 - units
        workers.mend()
    assert limiter.peek(hits("5/minute")).remaining == 4 - units


@pytest.mark.parametrize("units", [0, 4])
def test_a_settlement_of_before_the_outage_is_made_after_it(make: Callable[..., Workers], units: int) -> None:
    workers = make()
    limiter = workers.limiters[0]
    decision = limiter.check(hits("5/minute"))
    workers.break_down()
    limiter.check(hits("5/minute", subject="bob"))

    limiter.settle(decision, units)
    workers.mend()

    assert limiter.peek(hits("5/minute")).remaining == 5 - units


def test_a_reset_while_it_is_away_is_an_error(make: Callable[..., Workers]) -> None:
    workers = make()
    plan = hits("5/minute")
    limiter = workers.limiters[0]
    limiter.check(plan)
    limiter.reset(plan)

    assert limiter.check(plan).remaining == 4


def test_no_check_falls_between_two_stools(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter = workers.limiters[0]
    stop = threading.Event()
    admitted: list[int] = []

    def ask() -> None:
        while not stop.is_set():
            admitted.append(limiter.check(hits("100000/hour")).allowed)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        workers.break_down()
        workers.until(lambda: limiter.health().state == "failed")
        time.sleep(0.05)
        workers.mend()
        time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    workers.until(lambda: limiter.health().pending == 0)

    assert limiter.peek(hits("100000/hour")).remaining == 100_000 - sum(admitted)


@pytest.mark.slow
def test_a_worker_that_is_back_first_leaves_the_others_their_share(make: Callable[..., Workers]) -> None:
    workers = make(2)
    first, second = workers.limiters
    plan = hits("10/minute")
    for limiter in workers.limiters:
        limiter.check(plan)
    workers.break_down()
    for _ in range(2):
        assert first.check(plan).allowed
        assert second.check(plan).allowed
    workers.storage.error = None
    workers.until(lambda: first.health().state == "working")

    admitted = sum(first.check(plan).allowed for _ in range(10)) + sum(second.check(plan).allowed for _ in range(10))

    assert admitted <= 4
    time.sleep(1.6)
    workers.mend()
    assert admitted + sum(first.check(plan).allowed for _ in range(10)) == 4


# Half open


@pytest.fixture
def returning(make: Callable[..., Workers]) -> Iterator[Workers]:
    """One worker who admitted 3 of 10 while the storage was away; it is there again, but takes no charges yet."""
    workers = make()
    limiter, storage = workers.limiters[0], workers.storage
    workers.break_down()
    assert workers.admitted(hits("10/minute"), 3) == [3]
    storage.takes_charges.clear()
    storage.error = None
    workers.until(lambda: limiter.check(hits("100000/minute", subject="bob")).decided_by not in FALLBACKS)
    yield workers
    storage.takes_charges.set()


def test_checks_go_to_a_storage_that_answers_however_much_is_to_be_charged_first(returning: Workers) -> None:
    limiter = returning.limiters[0]

    assert [limiter.check(hits("10/minute", subject="eve")).decided_by for _ in range(5)] == ["memory"] * 5
    half_open = limiter.health()
    returning.mend()

    assert (half_open.breaker, half_open.state) == ("half-open", "failed")
    assert half_open.pending >= 3
    assert limiter.health().breaker == "closed"
    assert [change.state for change in returning.changes] == ["failed", "working"]


def test_what_is_not_charged_yet_is_not_admitted_again(returning: Workers) -> None:
    limiter, plan = returning.limiters[0], hits("10/minute")
    assert returning.storage.peek(plan).remaining == 10

    during = sum(limiter.check(plan).allowed for _ in range(20))
    returning.mend()

    assert during == 7
    assert limiter.peek(plan).remaining == 0


def test_what_a_storage_refuses_on_its_way_back_takes_nothing_of_the_share(returning: Workers) -> None:
    limiter, everyone = returning.limiters[0], hits_for("20/minute", scope="all")
    each = [hits("1/minute", subject=f"client-{n}") for n in range(15)]
    for one in each:
        returning.storage.check(one)

    refused = [limiter.check(everyone + one) for one in each]

    assert [decision.decided_by for decision in refused] == ["memory"] * 15
    assert [decision.allowed for decision in refused] == [False] * 15
    assert returning.admitted(everyone) == [20]


def test_a_reset_on_its_way_back_resets_the_share_too(returning: Workers) -> None:
    limiter, plan = returning.limiters[0], hits("10/minute", subject="eve")
    assert returning.admitted(plan) == [10]

    limiter.reset(plan)

    assert returning.admitted(plan) == [10]


def test_a_refund_of_what_is_not_charged_yet_is_made_up_for(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter, plan = workers.limiters[0], hits("10/minute")
    workers.break_down()
    first, second = limiter.check(plan), limiter.check(plan)
    workers.storage.takes_charges.clear()
    workers.storage.error = None
    workers.until(lambda: limiter.check(hits("100000/minute", subject="bob")).decided_by not in FALLBACKS)

    limiter.refund(first)
    third = limiter.check(plan)
    limiter.refund(third)
    workers.mend()

    assert (first.decided_by, second.decided_by, third.decided_by) == ("local", "local", "memory")
    assert limiter.peek(plan).remaining == 9


def test_a_storage_that_fails_half_way_back_has_not_been_back(
    returning: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, plan = returning.limiters[0], hits("10/minute")
    assert limiter.check(plan).decided_by not in FALLBACKS

    returning.break_down()
    assert limiter.check(plan).decided_by == "local"
    again = limiter.health()
    returning.mend()

    assert (again.breaker, again.state) == ("open", "failed")
    assert [change.state for change in returning.changes] == ["failed", "working"]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "of the end, for it began before"
    assert limiter.peek(plan).remaining == 10 - 5


@pytest.mark.slow
def test_nor_has_one_that_takes_no_charges(make: Callable[..., Workers]) -> None:
    """Then no request has to find out that it does not answer."""
    workers = make()
    limiter, plan = workers.limiters[0], hits("10/minute")
    charge, tries = workers.storage.check_many, list[float]()
    workers.break_down()
    assert limiter.check(plan).allowed

    def fail_twice(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        tries.append(time.monotonic())
        if len(tries) <= 2:
            raise StorageError("no room for so much")
        return charge(many, ids)

    workers.storage.check_many = fail_twice  # type: ignore[method-assign]
    workers.storage.error = None
    workers.until(lambda: len(tries) == 1)
    workers.until(lambda: limiter.health().breaker == "open")
    workers.mend()

    assert len(tries) == 3
    assert all(later - earlier > 0.89 for earlier, later in itertools.pairwise(tries))
    assert [change.state for change in workers.changes] == ["failed", "working"]
    assert limiter.peek(plan).remaining == 9


@pytest.mark.slow
def test_nor_has_one_that_takes_charges_and_nothing_else(returning: Workers) -> None:
    limiter, storage, ask = returning.limiters[0], returning.storage, returning.storage.check
    refused: list[tuple[Hit, ...]] = []

    def take_charges(hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if check_id is not None:
            return ask(hits, check_id)
        refused.append(hits)
        raise StorageError("charges only")

    storage.check = take_charges  # type: ignore[method-assign]
    owes_nothing = limiter.check(hits_for("10/minute", scope="mail", on_storage_error="allow"))
    storage.takes_charges.set()
    returning.until(lambda: len(refused) == 2)  # the check, and a probe
    charged = limiter.health()
    storage.check = ask  # type: ignore[method-assign]
    returning.mend()

    assert owes_nothing.decided_by == "allow"
    assert (charged.state, charged.pending) == ("failed", 0)
    assert [change.state for change in returning.changes] == ["failed", "working"]


def test_when_all_is_charged_the_storage_alone_decides(returning: Workers) -> None:
    plan = hits("10/minute")
    returning.mend()
    returning.storage.reset([plan[0].key])

    assert returning.admitted(plan) == [10]


def test_a_check_that_fails_when_the_outage_is_over_is_charged_and_there_is_no_other(
    make: Callable[..., Workers],
) -> None:
    workers = make()
    limiter, storage, plan = workers.limiters[0], workers.storage, hits("10/minute")
    asked, fails, ask = threading.Event(), threading.Event(), storage.check

    def fail_late(*_: object) -> Decision:
        storage.check = ask  # type: ignore[method-assign]
        asked.set()
        assert fails.wait(10)
        raise StorageError("it took too long")

    storage.check = fail_late  # type: ignore[method-assign, assignment]
    late = threading.Thread(target=limiter.check, args=(plan,))
    late.start()
    assert asked.wait(10)
    workers.break_down()
    assert limiter.check(plan).decided_by == "local"
    workers.mend()
    before = len(storage.asked)

    fails.set()
    late.join(10)
    workers.until(lambda: limiter.health().pending == 0)

    assert len(storage.asked) - before == 1, "it was probed, too"
    assert [change.state for change in workers.changes] == ["failed", "working"]
    assert limiter.peek(plan).remaining == 8


def test_a_child_of_a_process_half_way_back_comes_back_by_itself(returning: Workers) -> None:
    limiter = returning.limiters[0]
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            assert limiter.check(hits("10/minute")).decided_by not in FALLBACKS
            returning.until(lambda: limiter.health().breaker == "closed")
            os._exit(0)
        finally:
            os._exit(2)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert limiter.health().breaker == "half-open"


# A second try


def test_a_storage_that_stumbles_is_asked_again_and_charged_once(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.storage.stumbles = 1

    decision = workers.limiters[0].check(hits("5/minute"))

    assert (decision.allowed, decision.decided_by) == (True, "memory")
    assert workers.limiters[0].peek(hits("5/minute")).remaining == 4
    assert (workers.changes, len(workers.storage.asked)) == ([], 2)


@pytest.mark.parametrize("ask", ["peek", "check_many"])
def test_so_is_one_that_stumbles_over_another_question(make: Callable[..., Workers], ask: str) -> None:
    workers = make()
    unanswered = StorageError("no answer")
    unanswered.no_reply = True
    errors = [unanswered]
    answer = getattr(workers.storage, ask)

    def stumble(*arguments: object) -> object:
        if errors:
            raise errors.pop()
        return answer(*arguments)

    setattr(workers.storage, ask, stumble)
    given = hits() if ask == "peek" else [hits()]

    answered = getattr(workers.limiters[0], ask)(given)

    assert (answered if ask == "peek" else answered[0]).decided_by not in FALLBACKS
    assert workers.changes == []


def test_who_answers_with_an_error_is_not_asked_again(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.break_down()

    workers.limiters[0].check(hits())

    assert len(workers.storage.asked) == 1
    assert [change.state for change in workers.changes] == ["failed"]


def test_who_let_us_wait_for_long_is_not_asked_again(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.guard.outage.PATIENCE", -1)
    workers = make()
    workers.storage.stumbles = 1

    assert workers.limiters[0].check(hits()).decided_by == "local"


# The breaker


@pytest.mark.slow
def test_nobody_but_the_probe_asks_a_storage_that_is_away_and_it_once_a_second(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.break_down()
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        workers.limiters[0].check(hits())
        time.sleep(0.001)

    first, *probes = workers.storage.asked

    assert 2 <= len(probes) <= 3
    assert probes[0] - first < 1
    assert all(later - earlier > 0.89 for earlier, later in itertools.pairwise(probes))


def test_two_first_failures_at_once_are_told_once_and_never_an_error(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter = workers.limiters[0]
    barrier = threading.Barrier(8)
    outcomes: list[bool] = []

    def fail_together(*_: object) -> Decision:
        with contextlib.suppress(threading.BrokenBarrierError):  # of the probe, which nobody joins
            barrier.wait(10)
        raise StorageError("all at once")

    workers.storage.check = fail_together  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=lambda: outcomes.append(limiter.check(hits()).allowed)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    barrier.abort()

    assert sorted(outcomes) == [False] * 3 + [True] * 5
    assert [change.state for change in workers.changes] == ["failed"]


def test_changes_are_told_and_logged_once_each(make: Callable[..., Workers], caplog: pytest.LogCaptureFixture) -> None:
    workers = make()
    limiter = workers.limiters[0]
    assert limiter.health().state == "working"
    with caplog.at_level(logging.INFO):
        workers.break_down()
        for _ in range(5):
            limiter.check(hits())
        failed = limiter.health()
        workers.mend()
        workers.until(lambda: len(workers.changes) == 2)

    assert (failed.state, failed.breaker, failed.pending, failed.fallback_keys) == ("failed", "open", 5, 1)
    assert str(failed.error) == "it is broken"
    assert [change.state for change in workers.changes] == ["failed", "working"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "storage failed (key rate_limit:{api}): it is broken; meanwhile" in caplog.text
    assert "ada" not in caplog.text
    assert "Checks admitted meanwhile: 5 charged to it, 0 not" in caplog.text


def test_who_is_told_and_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def complain(_: Health) -> None:
        raise RuntimeError("I do not want to know")

    storage = Shared(Clock())
    storage.error = StorageError("it is broken")
    limiter = Limiter(GuardedStorage(storage, workers=1, on_change=complain))

    assert limiter.check(hits()).allowed
    assert "I do not want to know" in caplog.text
    limiter.close()


def test_what_fails_one_check_alone_leaves_the_others_to_the_storage(
    make: Callable[..., Workers], caplog: pytest.LogCaptureFixture
) -> None:
    workers = make()
    limiter = workers.limiters[0]
    error = StorageError("WRONGTYPE")
    error.key_specific = True
    workers.storage.error = error

    assert [limiter.check(hits("3/minute")).allowed for _ in range(4)] == [True] * 3 + [False]
    workers.storage.error = None

    assert limiter.check(hits("3/minute", subject="bob")).decided_by not in FALLBACKS
    assert limiter.health().state == "working"
    assert workers.changes == []
    assert len(caplog.records) == 1


def test_the_probe_leaves_nothing_behind(make: Callable[..., Workers]) -> None:
    workers = make(on_error="allow")
    workers.break_down()
    workers.limiters[0].check(hits())
    workers.mend()
    workers.clock.advance(2)
    workers.storage.check(hits(subject="bob"))

    assert [stored.key for stored in workers.storage.keys("")] == [hits(subject="bob")[0].key]


def test_what_is_pending_is_bounded(make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.guard.pending.MOST_PENDING", 10)
    workers = make()
    workers.break_down()
    assert workers.admitted(hits("30/minute")) == [30]

    health = workers.limiters[0].health()

    assert (health.pending, health.given_up) == (10, 20)
    workers.mend()
    workers.break_down()
    workers.admitted(hits("30/minute", subject="bob"), 1)
    assert workers.limiters[0].health().given_up == 0, "of this outage"


def test_what_is_remembered_of_the_storage_is_bounded(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.guard.fallback.REMEMBERED", 10)
    guard = make().limiters[0]._storage
    assert isinstance(guard, GuardedStorage)

    for n in range(100):
        guard.check(hits(subject=f"client-{n}"))

    fallback = guard._outage.fallback
    assert len(fallback._recent) + len(fallback._older) <= 20


@pytest.mark.parametrize("kind", [Hits, tuple], ids=["hits", "plain tuple"])
def test_what_others_take_between_two_answers_is_remembered_of_hits_of_any_kind(
    make: Callable[..., Workers], kind: Callable[[Iterable[Hit]], tuple[Hit, ...]]
) -> None:
    workers = make(2)
    plan = kind(hits("100/minute"))
    ours, theirs = (limiter._storage for limiter in workers.limiters)
    ours.check(plan)
    for _ in range(10):
        theirs.check(plan)
    ours.check(plan)
    workers.break_down()

    decision = ours.check(plan)

    assert decision.decided_by == "local"
    share, supposed = 88 // 2, 2 * 10 // 2  # of what was left; of what others took meanwhile, twice
    assert decision.remaining == share - supposed - 1


class PastElsewhere(Fallback):
    """Beside a thread that is through with charging what is past whenever this one has just looked at it."""

    @property
    def _past(self) -> int | None:
        return next(self._looks)

    @_past.setter
    def _past(self, _: int | None) -> None:
        self._looks = itertools.cycle([5, None])


def test_who_sweeps_while_another_thread_charges_what_is_past_has_a_clock() -> None:
    fallback = PastElsewhere(Clock(60))
    shared = Limiter(MemoryStorage())
    fallback.begin()
    fallback.decide(bytes(16), hits(), hits(), charging=True)

    for _ in range(4):
        fallback.remember(shared.check(hits()))


def test_what_an_outage_has_left_in_this_process_is_forgotten_when_its_windows_have_passed(
    make: Callable[..., Workers],
) -> None:
    workers = make()
    limiter = workers.limiters[0]
    workers.break_down()
    for n in range(100):
        limiter.check(hits("30/minute", subject=f"client-{n}"))
    workers.mend()
    assert limiter.health().fallback_keys == 100

    workers.clock.advance(61)  # as long as a rule with a lease would count them
    for _ in range(100):
        limiter.check(hits("30/minute", subject="somebody"))

    assert limiter.health().fallback_keys == 0


def test_so_is_what_the_way_back_has_left(make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.guard.outage.RETURN_SECONDS", 60)
    workers = make(2)
    limiter = workers.limiters[0]
    workers.break_down()
    workers.admitted(hits("30/minute"), tries=1)
    workers.clock.advance(61)
    workers.mend()
    limiter.peek(hits("30/minute"))
    assert limiter.health().fallback_keys == 0

    limiter.check(hits("30/minute", subject="who comes while others are on their way"))
    assert limiter.health().fallback_keys == 1
    workers.clock.advance(61)
    limiter.peek(hits("30/minute"))

    assert limiter.health().fallback_keys == 0


def test_a_child_asks_by_itself_and_leaves_to_the_parent_what_is_its(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter = workers.limiters[0]
    workers.break_down()
    limiter.check(hits())
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            assert limiter.health().pending == 0
            limiter.check(hits())
            workers.mend()
            os._exit(0 if limiter.check(hits()).decided_by not in FALLBACKS else 1)
        finally:
            os._exit(2)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert limiter.health().pending == 1


def test_a_storage_of_this_process_is_always_well() -> None:
    assert Limiter().health().state == "working"


def test_a_limiter_without_a_guard_knows_no_health() -> None:
    with pytest.raises(ConfigurationError, match="Shared is not guarded"):
        Limiter(Shared(Clock())).health()


# How many there are


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["/usr/bin/gunicorn", "-w", "4", "app:app"], {}, 4),
        (["gunicorn", "-w4", "app:app"], {}, 4),
        (["gunicorn", "--workers=4", "-k", "gthread", "app:app"], {}, 4),
        (["/x/gunicorn/__main__.py", "--workers", "4"], {}, 4),
        (["gunicorn", "app:app"], {"WEB_CONCURRENCY": "3"}, 3),
        (["gunicorn", "app:app"], {"GUNICORN_CMD_ARGS": "--bind=[::]:80 --workers=5"}, 5),
        (["gunicorn", "-w", "2", "app:app"], {"WEB_CONCURRENCY": "3"}, 3),
        (["celery", "-w", "4"], {"UWSGI_PROCESSES": "6"}, 6),
    ],
)
def test_the_number_of_workers_is_found(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], expected: int
) -> None:
    workers = count_workers(environment=environment, arguments=arguments, proc=tmp_path)

    assert (workers.count, workers.certain) == (expected, True)


def test_workers_are_counted_when_somebody_asks_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(given: int | None) -> object:
        counted.append(given)
        return count_workers(3)

    monkeypatch.setattr("flask_multilimit.engine.storage.layers.guard.outage.count_workers", count)
    storage = GuardedStorage(MemoryStorage())
    assert Limiter(storage).check(hits("5/minute")).allowed
    before = list(counted)

    assert [storage.health().workers.count for _ in range(2)] == [3, 3]
    assert (before, counted) == ([], [None])


def test_workers_are_counted_anew_in_each_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, numbers = Shared(Clock()), iter([2, 5])
    monkeypatch.setattr(
        "flask_multilimit.engine.storage.layers.guard.outage.count_workers", lambda _: count_workers(next(numbers))
    )
    guard = GuardedStorage(storage)
    limiter = Limiter(guard)
    assert guard.health().workers.count == 2
    storage.error = StorageError("it is broken")

    admitted = sum(limiter.check(hits("20/minute")).allowed for _ in range(20))
    limiter.close()

    assert (admitted, guard.health().workers.count) == (2, 5)


def test_a_guard_by_another_clock_keeps_its_options(caplog: pytest.LogCaptureFixture) -> None:
    changes, clock, logger = list[Health](), Clock(), logging.getLogger("app")
    options: dict[str, Any] = {"workers": 4, "logger": logger, "on_change": changes.append, "memory_keys": 1000}
    storage = Shared(clock)
    guard = GuardedStorage(MemoryStorage(), **options, on_error="deny").rebuild(storage, clock)
    storage.error = StorageError("it is broken")

    with pytest.raises(StorageDenied):
        guard.check(hits())
    guard.stop()

    assert [(change.state, change.workers.count) for change in changes] == [("failed", 4)]
    assert [record.name for record in caplog.records] == ["app"]
    for n in range(1200):
        guard.check(hits_for("5/minute", scope="x", subject=str(n), on_storage_error="local"))
    assert guard.health().fallback_keys <= 1000
    last = hits_for("5/minute", scope="x", subject="last", on_storage_error="local")
    before = [guard.check(last).allowed for _ in range(2)]
    clock.advance(60)
    assert [*before, guard.check(last).allowed] == [True, False, True]


def test_a_number_that_is_given_holds() -> None:
    assert count_workers(7, environment={"WEB_CONCURRENCY": "9"}).count == 7


def test_uwsgi_knows_better_than_who_counts_its_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(numproc=2))

    assert count_workers(environment={"UWSGI_PROCESSES": "3"}, arguments=["uwsgi"], proc=tmp_path).count == 2
    assert count_workers(7).count == 7


def test_processes_of_the_same_parent_and_command_are_counted(tmp_path: Path) -> None:
    parent = os.getppid()
    for pid, ppid, command in [
        ("self", parent, "serve"),
        ("11", parent, "serve"),
        ("12", parent, "serve"),
        ("13", parent, "other"),
        ("14", parent + 1, "serve"),
    ]:
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(command.encode())
        (tmp_path / pid / "stat").write_text(f"{pid} (a ) name) S {ppid} 0 0")

    workers = count_workers(environment={}, arguments=["serve"], proc=tmp_path)

    assert (workers.count, workers.certain) == (2, True)


def test_where_nothing_tells_it_is_more_than_there_are_likely_to_be(tmp_path: Path) -> None:
    workers = count_workers(environment={}, arguments=["serve"], proc=tmp_path)

    assert workers.count > (os.cpu_count() or 1)
    assert not workers.certain


def test_the_memory_of_an_outage_is_bounded() -> None:
    storage = Shared(Clock())
    storage.error = StorageError("it is broken")
    guard = GuardedStorage(storage, workers=1, memory_keys=1000, clock=storage.clock or Clock())
    limiter = Limiter(guard)
    plan = [Rule(60, 5), Rule(3600, 50)]

    for subject in range(800):
        assert limiter.check(hits_for(plan, scope="api", subject=str(subject))).allowed

    health = limiter.health()
    assert health.fallback_keys == 1000
    assert health.pending == 500
    assert health.given_up == 300
    assert [limiter.check(hits_for(plan[1], scope="api", subject=each)).remaining for each in ("0", "799")] == [48, 48]
    limiter.close()


@pytest.mark.parametrize("most", [999, 0, True, 1e6, "50000", None])
def test_a_wrong_bound_is_told(most: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"memory_keys=.*: give a whole number, 1000 or more"):
        GuardedStorage(Shared(Clock()), memory_keys=most)
    with pytest.raises(ConfigurationError, match="memory_keys="):
        Layers(memory_keys=most)


# Slots that were taken before an outage

FOUR = hits(Concurrent(4, 60))


class Work:
    """Slots of ``FOUR`` that the first worker holds, as its keeper does."""

    def __init__(self, workers: Workers, many: int) -> None:
        self.workers, self.limiter = workers, workers.limiters[0]
        self.storage: Any = self.limiter.outermost
        self.held = [self.limiter.check(FOUR) for _ in range(many)]

    def goes_on(self, seconds: int) -> None:
        """Each slot is renewed every 20 seconds."""
        for _ in range(seconds // 20):
            self.workers.clock.advance(20)
            self.storage.renew([slot for decision in self.held for slot in slots_of(decision)])

    def ends(self) -> None:
        self.storage.release(slots_of(self.held.pop()))

    def in_use(self) -> int:
        """By the storage itself."""
        return 4 - self.workers.storage.peek(FOUR).remaining


def fails(workers: Workers) -> None:
    """The storage, as all workers notice."""
    workers.break_down()
    for limiter in workers.limiters:
        limiter.check(hits("100000/minute", subject="bob"))


@pytest.mark.parametrize("outage", [0, 20, 40, 60, 80, 400])
def test_slots_from_before_an_outage_count_in_it_for_as_long_as_their_work_goes_on(
    make: Callable[..., Workers], outage: int
) -> None:
    workers = make()
    work = Work(workers, 3)
    fails(workers)

    work.goes_on(outage)

    assert workers.admitted(FOUR, 5) == [1]
    work.ends()
    assert workers.admitted(FOUR, 5) == [1]


@pytest.mark.parametrize("outage", [0, 20])
def test_a_slot_that_is_released_twice_in_an_outage_makes_room_once(make: Callable[..., Workers], outage: int) -> None:
    workers = make()
    work = Work(workers, 3)
    fails(workers)
    work.goes_on(outage)

    for _ in range(2):
        work.storage.release(slots_of(work.held[0]))

    assert workers.admitted(FOUR, 5) == [2]


def test_slots_from_before_an_outage_count_in_the_share_of_the_worker_that_holds_them(
    make: Callable[..., Workers],
) -> None:
    workers = make(2)
    work = Work(workers, 2)
    fails(workers)

    work.goes_on(80)

    assert workers.admitted(FOUR, 5) == [0, 2]


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
@pytest.mark.parametrize("outage", [20, 40, 80, 400])
def test_slots_from_before_an_outage_are_in_use_when_it_is_over_until_their_work_ends(
    make: Callable[..., Workers], outage: int, on_error: OnStorageError
) -> None:
    workers = make(on_error=on_error)
    work = Work(workers, 3)
    workers.break_down()
    with contextlib.suppress(StorageDenied):
        work.limiter.check(hits("100000/minute", subject="bob"))
    work.goes_on(outage)
    work.ends()

    workers.mend()

    assert work.in_use() == 2
    workers.clock.advance(59)
    assert work.in_use() == 2, "they are as new"
    work.storage.renew([slot for decision in work.held for slot in slots_of(decision)])
    work.goes_on(80)
    assert work.in_use() == 2
    work.ends()
    work.ends()
    assert work.in_use() == 0


@pytest.mark.parametrize(
    ("policy", "rules", "left"),
    [
        ("deny", "1 at once", 1),
        ("raise", "1 at once", 1),
        ("allow", "1 at once", 1),
        ("local", "1 at once", 1),
        ("deny", "9/hour", 9),
        ("raise", "9/hour", 9),
    ],
)
def test_a_check_whose_reply_is_lost_keeps_nothing_when_its_work_is_over(
    make: Callable[..., Workers], policy: OnStorageError, rules: str, left: int
) -> None:
    workers = make(on_error=policy)
    limiter, plan = workers.limiters[0], hits(rules)
    workers.storage.loses_replies = True

    with contextlib.suppress(StorageError):
        limiter.release(limiter.check(plan))
    workers.storage.loses_replies = False
    workers.mend()

    assert workers.storage.peek(plan).remaining == left


def test_nor_one_that_is_refused_here(make: Callable[..., Workers]) -> None:
    workers = make(3)
    limiter, plan = workers.limiters[0], hits("2 at once")
    workers.storage.loses_replies = True

    assert not limiter.check(plan).allowed
    workers.storage.loses_replies = False
    workers.mend()

    assert workers.storage.peek(plan).remaining == 2


def test_a_check_that_fails_when_the_outage_is_over_keeps_no_slot(make: Callable[..., Workers]) -> None:
    workers = make(on_error="deny")
    limiter, storage, plan = workers.limiters[0], workers.storage, hits("1 at once")
    asked, fails_now, ask = threading.Event(), threading.Event(), storage.check

    def charge_and_fail(hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        storage.check = ask  # type: ignore[method-assign]
        error = StorageError("it took too long")
        error.check_id = ask(hits, check_id).id
        asked.set()
        assert fails_now.wait(10)
        raise error

    def check() -> None:
        with pytest.raises(StorageDenied):
            limiter.check(plan)

    storage.check = charge_and_fail  # type: ignore[method-assign]
    late = threading.Thread(target=check)
    late.start()
    assert asked.wait(10)
    workers.break_down()
    check()
    workers.mend()
    fails_now.set()
    late.join(10)

    workers.until(lambda: storage.peek(plan).remaining == 1)


@pytest.mark.parametrize("algorithm", sorted(set(RATES) - {"sliding_window"}))
def test_a_check_whose_reply_is_lost_is_no_reason_for_another_unit(
    make: Callable[..., Workers], algorithm: str
) -> None:
    """An algorithm that does not remember who was charged might refund what it never took."""
    workers = make(on_error="deny")
    limiter, plan = workers.limiters[0], hits(rule(algorithm, 3600, 9))
    workers.storage.loses_replies = True

    with pytest.raises(StorageDenied):
        limiter.check(plan)
    left = workers.storage.peek(plan).remaining
    workers.storage.loses_replies = False
    workers.mend()

    assert workers.storage.peek(plan).remaining == left


@pytest.mark.parametrize("units", [0, 4])
def test_a_settlement_of_a_check_whose_reply_is_lost_reaches_the_storage(
    make: Callable[..., Workers], units: int
) -> None:
    workers = make()
    limiter, plan = workers.limiters[0], hits("9/hour")
    workers.storage.loses_replies = True
    admitted = limiter.check(plan)

    limiter.settle(admitted, units)
    workers.storage.loses_replies = False
    workers.mend()

    assert admitted.decided_by == "local"
    assert workers.storage.peek(plan).remaining == 9 - units


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_a_settlement_that_has_lost_its_reply_on_the_way_back_counts_once(
    make: Callable[..., Workers], algorithm: str
) -> None:
    workers = make()
    limiter, plan = workers.limiters[0], hits(rule(algorithm, 3600, 9), cost=2)
    decision = limiter.check(plan)
    workers.break_down()
    limiter.check(hits("5/minute", subject="bob"))
    limiter.settle(decision, 5)
    settle, times = workers.storage.settle, itertools.count(1)

    def lose_the_first_reply(check_id: UUID, charges: Sequence[Charge]) -> None:
        settle(check_id, charges)
        if next(times) == 1:
            lost = StorageError("the reply was lost")
            lost.no_reply = True
            raise lost

    workers.storage.settle = lose_the_first_reply  # type: ignore[method-assign]
    workers.mend()

    assert workers.storage.peek(hits(rule(algorithm, 3600, 9))).remaining == 4


def test_a_refund_of_a_check_that_never_reached_the_storage_is_none_there(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter, plan = workers.limiters[0], hits(Rule(3600, 9, algorithm="fixed_window"))
    for _ in range(3):
        limiter.check(plan)
    workers.break_down()

    limiter.refund(limiter.check(plan))
    workers.mend()

    assert workers.storage.peek(plan).remaining == 6


def test_many_checks_whose_replies_are_lost_once_take_their_slots_once(make: Callable[..., Workers]) -> None:
    workers = make()
    check_many, asked = workers.storage.check_many, list[object]()

    def lose_the_first(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        asked.append(ids)
        decisions = check_many(many, ids)
        if len(asked) == 1:
            error = StorageError("the reply was lost")
            error.no_reply = True
            raise error
        return decisions

    workers.storage.check_many = lose_the_first  # type: ignore[method-assign]
    decisions = workers.limiters[0].check_many([FOUR, FOUR])

    assert [decision.allowed for decision in decisions] == [True, True]
    assert workers.storage.peek(FOUR).remaining == 2


@pytest.mark.parametrize("give_back", [Limiter.release, Limiter.refund])
def test_on_its_way_back_one_request_after_the_other_needs_one_slot(
    make: Callable[..., Workers], give_back: Callable[[Limiter, Decision], object]
) -> None:
    """A slot counts in the share as long as it is held, and no longer."""
    workers = make(2)
    limiter, eight = workers.limiters[0], hits("8 at once")
    workers.break_down()
    limiter.release(limiter.check(eight))
    workers.storage.takes_charges.clear()
    workers.storage.error = None
    workers.until(lambda: limiter.check(hits("100000/minute", subject="bob")).decided_by not in FALLBACKS)

    for _ in range(20):
        decision = limiter.check(eight)
        assert (decision.allowed, decision.decided_by) == (True, "memory")
        give_back(limiter, decision)
    held = limiter.check(eight)
    workers.mend()
    give_back(limiter, held)
    fails(workers)

    assert sum(limiter.check(eight).allowed for _ in range(5)) == 2, "nothing is in progress"


def test_a_slot_taken_on_its_way_back_counts_once_when_it_fails_again(returning: Workers) -> None:
    limiter = returning.limiters[0]
    storage: Any = limiter.outermost
    held = limiter.check(FOUR)
    fails(returning)

    storage.renew(slots_of(held))

    assert held.decided_by == "memory"
    assert returning.admitted(FOUR, 5) == [3]


def test_slots_that_are_charged_to_the_storage_do_not_count_here_in_the_next_outage(
    make: Callable[..., Workers],
) -> None:
    workers = make()
    limiter = workers.limiters[0]
    fails(workers)
    during = limiter.check(FOUR)
    workers.mend()
    limiter.release(during)
    fails(workers)

    assert workers.admitted(FOUR, 5) == [4]


def test_a_renewal_without_an_answer_begins_an_outage(make: Callable[..., Workers]) -> None:
    workers = make()
    work = Work(workers, 2)
    workers.break_down()

    with pytest.raises(StorageError):
        work.goes_on(20)
    assert work.limiter.health().state == "failed"
    work.goes_on(80)
    workers.mend()

    assert work.in_use() == 2
    assert work.limiter.health().given_up == 0


def test_what_is_refunded_of_a_check_from_before_an_outage_is_refunded_after_it(make: Callable[..., Workers]) -> None:
    workers = make()
    limiter, plan = workers.limiters[0], (*FOUR, *hits("9/hour"))
    storage: Any = limiter.outermost
    taken = limiter.check(plan)
    fails(workers)
    storage.renew(slots_of(taken))

    limiter.refund(taken)
    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [4, 9]
