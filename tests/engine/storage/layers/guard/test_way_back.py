"""The storage is back: it is charged for checks admitted in the outage, and decides again."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from engine.storage.layers.guard.workers import (
    FOUR,
    Shared,
    Work,
    Workers,
    begin_outage,
    exit_code_of_child,
    fails_first,
    loses_the_first_reply,
    lost_reply,
)
from flask_multilimit.engine import (
    Calendar,
    Concurrent,
    Decision,
    GuardedStorage,
    Hit,
    Limiter,
    MemoryStorage,
    Rule,
    StorageDenied,
    StorageError,
    hits_for,
)
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.hits import OnStorageError
from flask_multilimit.engine.rules import Rules
from flask_multilimit.engine.slots import slots_of
from flask_multilimit.engine.storage.layers import pending
from support.bench import hits, rule
from support.calls import lines_during
from support.clock import Clock
from support.rates import RATES
from support.threads import under_load
from support.waiting import PATIENCE, until

# Charges and settlements


def test_storage_is_charged_afterwards_for_checks_admitted_in_an_outage(make: Callable[..., Workers]) -> None:
    workers = make(2)
    plan = hits("10/minute; 15/hour", cost=2)
    assert workers.limiter.check(plan).allowed
    workers.break_down()
    assert workers.admitted(plan) == [2, 1]

    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [2, 7]


def test_worker_that_ends_makes_its_pending_charges_first() -> None:
    """As in a deploy that restarts the app and its server."""
    script = """
import atexit
atexit.register(lambda: print(storage.peek(plan).remaining))
from engine.storage.layers.guard.workers import Shared
from flask_multilimit.engine import GuardedStorage, Limiter, StorageError, hits_for
from support.clock import Clock
storage, plan = Shared(Clock()), hits_for("10/minute", scope="api")
limiter = Limiter(GuardedStorage(storage, workers=1))
storage.error = StorageError("it is away")
assert all(limiter.check(plan).allowed for _ in range(4))
storage.error = None
"""
    path = os.pathsep.join(filter(None, sys.path))
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.split() == ["6"]


def test_closing_a_limiter_makes_its_pending_charges_first(broken: Workers) -> None:
    """As a worker of Celery does when it ends."""
    assert broken.admitted(hits("10/minute"), 4) == [4]
    broken.storage.error = None

    broken.limiter.close()

    assert broken.storage.peek(hits("10/minute")).remaining == 6


def test_limiter_closed_in_an_outage_returns_to_the_storage_when_used_again(broken: Workers) -> None:
    broken.limiter.check(hits("100/minute"))
    broken.limiter.close()
    broken.storage.error = None
    until(lambda: broken.limiter.check(hits("100/minute")).decided_by not in FALLBACKS)


def test_charge_whose_window_has_passed_is_not_made(broken: Workers) -> None:
    plan = hits("10/minute; 15/hour")
    assert broken.limiter.check(plan).allowed
    broken.clock.advance(61)

    broken.mend()

    assert [status.remaining for status in broken.limiter.peek(plan).statuses] == [10, 14]


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_pending_charge_that_does_not_fit_is_a_debt_of_a_window_and_takes_all_that_remains_of_a_bucket(
    broken: Workers, algorithm: str
) -> None:
    plan = hits(rule(algorithm, 10, 5))
    assert broken.admitted(plan) == [5]
    MemoryStorage.check(broken.storage, hits(rule(algorithm, 10, 5), cost=3))

    broken.mend()

    (status,) = broken.limiter.peek(plan).statuses
    assert (status.remaining, status.debt) == (0, 3 if "window" in algorithm else 0)


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_pending_charges_that_follow_one_that_does_not_fit_leave_nothing_of_it(broken: Workers, algorithm: str) -> None:
    plan = {cost: hits_for(Rule(10, 10, algorithm=algorithm, burst=10), scope="api", cost=cost) for cost in (1, 5)}
    for cost, seconds in [(5, 1), (1, 0), (5, 1), (1, 1), (1, 1)]:
        assert broken.limiter.check(plan[cost]).allowed
        broken.clock.advance(seconds)

    broken.mend()

    assert broken.limiter.peek(plan[1]).remaining == 0, "13 units were admitted in 4 seconds"


@pytest.mark.parametrize(
    ("algorithm", "seconds"), [("token_bucket", 0.3), ("leaky_bucket", 0.3), ("gcra", 0.3), ("sliding_window", 9.3)]
)
def test_second_outage_admits_no_more_than_the_storage_had_left_after_the_first(
    workers: Workers, algorithm: str, seconds: float
) -> None:
    burst = None if algorithm == "sliding_window" else 10
    plan = hits_for(Rule(10, 10, algorithm=algorithm, burst=burst), scope="api")
    workers.break_down()
    assert workers.admitted(plan, 8) == [8]
    workers.clock.advance(0.8)
    workers.mend()
    assert workers.limiter.peek(plan).remaining == 2, "it was charged only now"

    workers.break_down()

    assert workers.admitted(plan) == [2]
    workers.clock.advance(seconds)
    assert not workers.limiter.check(plan).allowed


def test_a_check_that_only_its_second_attempt_may_have_charged_is_charged_once(workers: Workers) -> None:
    storage, errors = workers.storage, [StorageError("no connection", no_reply=True)]
    storage.loses_replies, ask = True, storage.check

    def fail_once(hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if errors:
            raise errors.pop()
        return ask(hits, check_id)

    storage.check = fail_once  # type: ignore[method-assign]
    workers.limiter.check(hits("5/minute"))
    workers.mend()

    assert storage.peek(hits("5/minute")).remaining == 4


@pytest.mark.parametrize("is_charged", [True, False])
@pytest.mark.parametrize("units", [0, 1, 5])
def test_each_rule_of_a_check_without_a_reply_is_settled(workers: Workers, units: int, *, is_charged: bool) -> None:
    """If it is charged already, only one of its rules remembers that."""
    plan = hits([Rule(60, 9), Rule(60, 9, algorithm="fixed_window")], cost=3)
    workers.storage.loses_replies = is_charged
    workers.storage.error = None if is_charged else lost_reply()

    workers.limiter.settle(workers.limiter.check(plan), units)
    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [9 - units] * 2


def test_pending_charges_without_a_reply_are_repeated_and_count_once(broken: Workers) -> None:
    assert broken.admitted(hits("5/minute"), 3) == [3]
    batches = loses_the_first_reply(broken.storage, "check_many")

    broken.mend()

    assert [len(many) for many, _ in batches] == [3, 3]
    assert broken.limiter.peek(hits("5/minute")).remaining == 2
    assert str(broken.limiter.health().error) == "it is broken", "the charges were repeated without another probe"


def test_charge_that_the_storage_refuses_is_given_up_and_others_are_made(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    plans = [hits("5/minute", subject=subject) for subject in ("ada", "bob")]
    workers.break_down()
    assert all(workers.limiter.check(plan).allowed for plan in plans)
    wrong = StorageError("WRONGTYPE", key_specific=True)
    fails_first(workers.storage, "check_many", wrong, None, wrong)  # both, then that of ada, then that of bob

    workers.mend()

    assert workers.limiter.health().given_up == 1
    assert "a check of rate_limit:{api}:user:bob" in caplog.text
    assert "Checks admitted meanwhile: 1 charged to it, 1 not." in caplog.text
    assert [workers.storage.peek(plan).remaining for plan in plans] == [4, 5]


def test_charges_made_one_by_one_are_kept_if_the_storage_fails_again(workers: Workers) -> None:
    plans = [hits("5/minute", subject=subject) for subject in ("ada", "bob")]
    workers.break_down()
    assert all(workers.limiter.check(plan).allowed for plan in plans)
    fails_first(workers.storage, "check_many", StorageError("WRONGTYPE", key_specific=True), StorageError("down"))

    workers.mend()

    assert workers.limiter.health().given_up == 0
    assert [workers.storage.peek(plan).remaining for plan in plans] == [4, 4]


def test_charges_that_the_storage_took_before_it_failed_again_are_not_made_again(workers: Workers) -> None:
    """It may begin to fail between two checks of a batch."""
    storage, plans = (
        workers.storage,
        [hits(Rule(60, 5, algorithm="fixed_window"), subject=who) for who in ("ada", "bob")],
    )
    workers.break_down()
    assert all(workers.limiter.check(plan).allowed for plan in plans)
    charge = storage.check_many

    def fail_in_between(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID]) -> list[Decision]:
        storage.check_many = charge  # type: ignore[method-assign]
        failure = StorageError("down")
        failure.decisions = {ids[0]: storage.check(many[0], ids[0])}
        raise failure

    storage.check_many = fail_in_between  # type: ignore[method-assign,assignment]
    workers.mend()

    assert [storage.peek(plan).remaining for plan in plans] == [4, 4]
    assert workers.limiter.health().given_up == 0


def test_charges_of_a_batch_are_not_made_again_if_the_storage_fails_after_it_took_them(workers: Workers) -> None:
    """A bucket takes no more than that."""
    storage, names = workers.storage, ("token_bucket", "fixed_window")
    plans = [hits(Rule(60, 5, algorithm=name), cost=2) for name in names]
    workers.break_down()
    assert all(workers.limiter.check(plan).allowed for plan in plans)
    charge = storage.check_many

    def fail_afterwards(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID]) -> list[Decision]:
        storage.check_many = charge  # type: ignore[method-assign]
        storage.check(hits(Rule(60, 5, algorithm="token_bucket"), cost=4))  # of another process
        decisions = charge(many, ids)
        fails_first(storage, "check", StorageError("no answer", no_reply=True))
        return decisions

    storage.check_many = fail_afterwards  # type: ignore[method-assign,assignment]
    workers.mend()

    assert storage.peek(plans[1]).remaining == 3


def test_slot_that_expires_after_the_storage_took_it_and_failed_again_is_taken_again_and_logged_once(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    begin_outage(workers)
    work, storage = Work(workers, 1), workers.storage
    charge = storage.check_many

    def fail_afterwards(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID]) -> list[Decision]:
        storage.check_many = charge  # type: ignore[method-assign]
        failure = StorageError("down")
        failure.decisions = dict(zip(ids, charge(many, ids), strict=True))
        work.goes_on(80)
        raise failure

    storage.check_many = fail_afterwards  # type: ignore[method-assign,assignment]
    workers.mend()

    assert work.in_use() == 1
    assert "Checks admitted meanwhile: 2 charged to it, 0 not." in caplog.text


def test_each_check_that_threads_get_admitted_around_an_outage_is_charged_once(workers: Workers) -> None:
    limiter = workers.limiter
    admitted: list[int] = []

    def ask() -> None:
        admitted.append(limiter.check(hits("100000/hour")).allowed)
        time.sleep(0.001)  # threads that only check would keep the lock from the thread that probes, for seconds

    with under_load(ask):
        workers.break_down()
        until(lambda: limiter.health().state == "failed")
        time.sleep(0.05)
        workers.mend()
        time.sleep(0.05)
    until(lambda: limiter.health().pending == 0)

    assert limiter.peek(hits("100000/hour")).remaining == 100_000 - sum(admitted)


@pytest.mark.parametrize("algorithm", sorted(RATES))
@pytest.mark.parametrize("mended_first", [False, True], ids=["settled before its end", "settled after its end"])
def test_check_of_an_outage_without_an_estimate_is_settled_before_and_after_its_end(
    workers: Workers, algorithm: str, *, mended_first: bool
) -> None:
    limiter, plan = workers.limiter, hits_for(rule(algorithm, 3600, 9), scope="api", cost=0, settle=True)
    workers.break_down()
    decision = limiter.check(plan)
    if mended_first:
        workers.mend()

    limiter.settle(decision, 5)

    if not mended_first:
        assert limiter.peek(plan).remaining == 4
        workers.mend()
    assert (decision.decided_by, workers.storage.peek(plan).remaining) == ("local", 4)


@pytest.mark.parametrize("algorithm", sorted(RATES))
@pytest.mark.parametrize("settled", [(50,), (8, 8)], ids=["beyond the bucket", "beyond what is left in it"])
def test_debt_of_checks_in_an_outage_refuses_as_long_as_any_other(
    workers: Workers, algorithm: str, settled: tuple[int, ...]
) -> None:
    limiter = workers.limiter
    before, during = (hits(rule(algorithm, 3600, 9), scope=scope) for scope in ("before", "during"))
    for units in settled:
        limiter.settle(limiter.check(before), units)
    workers.break_down()

    for units in settled:
        limiter.settle(limiter.check(during), units)
    workers.mend()

    assert workers.storage.check(during).retry_after == workers.storage.check(before).retry_after > 0


@pytest.mark.parametrize(
    ("rules", "passed", "left"),
    [
        (Rule(60, 9), 59, 4),
        (Rule(60, 9), 61, 9),
        (Rule(60, 9, algorithm="token_bucket"), 6, 4),
        (Rule(60, 9, algorithm="token_bucket"), 61, 9),
        (Calendar(9, "day"), 3600, 4),
        (Calendar(9, "day"), 12 * 3600, 9),  # the test begins at 15:06
    ],
    ids=str,
)
@pytest.mark.parametrize("begins", ["before the outage", "in it"])
def test_units_beyond_an_estimate_are_charged_after_an_outage_while_they_count(
    workers: Workers, rules: Rule, passed: float, left: int, begins: str
) -> None:
    limiter, plan = workers.limiter, hits(rules)
    decision = limiter.check(plan) if begins == "before the outage" else None
    begin_outage(workers)

    limiter.settle(decision or limiter.check(plan), 5)
    workers.clock.advance(passed)
    workers.mend()

    assert workers.storage.peek(plan).remaining == left


def test_used_up_share_refuses_a_check_without_an_estimate(make: Callable[..., Workers]) -> None:
    workers = make(2, broken=True)
    for rules, scope in (("5/minute", "some"), ("1/minute", "none")):
        workers.admitted(hits(rules, scope=scope))
        plan = hits_for(rules, scope=scope, subject="user:ada", cost=0, settle=True)

        assert [limiter.check(plan).allowed for limiter in workers.limiters] == [False, False]


@pytest.mark.parametrize(("passed", "left"), [(59, 4), (61, 9)])
def test_units_beyond_the_estimate_of_a_long_stream_are_charged_after_an_outage_while_they_count(
    workers: Workers, passed: int, left: int
) -> None:
    limiter, plan = workers.limiter, hits("9/minute")
    begin_outage(workers)
    decision = limiter.check(plan)
    workers.clock.advance(90)

    limiter.settle(decision, 5)
    workers.clock.advance(passed)
    workers.mend()

    assert workers.storage.peek(plan).remaining == left


def test_settlement_that_fails_because_of_its_key_does_not_prolong_an_outage(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = workers.limiter
    bad, good = limiter.check(hits("5/minute", subject="eve")), limiter.check(hits("5/minute"))
    begin_outage(workers)
    limiter.settle(bad, 0)
    limiter.settle(good, 0)
    settled = fails_first(workers.storage, "settle", StorageError("WRONGTYPE", key_specific=True))

    workers.mend()

    assert [check_id for check_id, _ in settled] == [bad.id, good.id]
    assert limiter.peek(hits("5/minute")).remaining == 5
    assert "a check of rate_limit:{api}:user:eve" in caplog.text


def test_refund_of_a_check_that_only_its_key_made_fail_is_repeated_until_the_storage_takes_it(
    workers: Workers,
) -> None:
    limiter, storage = workers.limiter, workers.storage
    refunds = fails_first(storage, "settle", StorageError("it is down"))
    assert limiter.check(hits("1/minute")).allowed
    storage.error = StorageError("WRONGTYPE", key_specific=True, check_id=uuid4())
    assert not limiter.check(hits("1/minute")).allowed

    until(lambda: len(refunds) == 2)

    assert refunds[0][0] == refunds[1][0]


@pytest.mark.parametrize("units", [0, 4])
@pytest.mark.parametrize("begins", ["before", "with an error", "without a reply"])
def test_settlement_of_a_charge_made_before_an_outage_is_made_after_it(
    workers: Workers, units: int, begins: str
) -> None:
    """The outage begins before the settlement, or with it."""
    limiter = workers.limiter
    decision = limiter.check(hits("5/minute"))
    workers.storage.error = StorageError("it is down", no_reply=begins == "without a reply")
    if begins == "before":
        limiter.check(hits("5/minute", subject="bob"))

    limiter.settle(decision, units)
    workers.mend()

    assert limiter.peek(hits("5/minute")).remaining == 5 - units


def test_settlements_after_one_that_may_have_been_made_are_made_after_the_outage(workers: Workers) -> None:
    limiter, plan = workers.limiter, hits(Rule(3600, 9, algorithm="fixed_window"), cost=2)
    first, second = limiter.check(plan), limiter.check(plan)
    workers.storage.error = StorageError("it is down", no_reply=True)

    with pytest.raises(StorageError, match="it is down"):
        limiter.settle(first, 0)
    limiter.settle(second, 0)
    workers.mend()

    assert limiter.peek(plan).remaining == 9 - 2


def test_settlement_that_fails_when_the_storage_is_back_is_made_by_the_next_attempt(workers: Workers) -> None:
    limiter, plan = workers.limiter, hits(Rule(3600, 9, algorithm="fixed_window"), cost=2)
    decision = limiter.check(plan)
    begin_outage(workers)
    limiter.settle(decision, 0)
    fails_first(workers.storage, "settle", StorageError("it is down again"))

    workers.mend()

    assert workers.storage.peek(plan).remaining == 9
    assert str(limiter.health().error) == "it is down again", "the next probe came first"


@pytest.mark.parametrize("units", [0, 1, 3])
@pytest.mark.parametrize("before", [0, 1])
def test_settlement_waits_until_what_it_settles_is_charged(workers: Workers, before: int, units: int) -> None:
    limiter, plan = workers.limiter, hits(Rule(3600, 9, algorithm="fixed_window"), cost=2)
    for _ in range(before):
        limiter.check(plan)
    begin_outage(workers)
    decision, charge = limiter.check(plan), workers.storage.check_many

    def settle_and_fail(*_: Any, **__: Any) -> Any:
        workers.storage.check_many = charge  # type: ignore[method-assign]
        limiter.settle(decision, units)
        raise StorageError("it is down again")

    workers.storage.check_many = settle_and_fail  # type: ignore[method-assign]
    workers.mend()

    assert workers.storage.peek(plan).remaining == 9 - 2 * before - units


@pytest.mark.parametrize("given", [True, False], ids=["own id", "id of the decision"])
def test_check_that_is_repeated_with_its_id_in_an_outage_is_charged_once(broken: Workers, given: bool) -> None:
    plan = hits("2/minute; 1/hour")
    first = broken.limiter.check(plan, check_id=uuid4() if given else None)

    again = [broken.limiter.check(plan, check_id=first.id) for _ in range(3)]

    assert [(each.allowed, each.id) for each in again] == [(True, first.id)] * 3
    broken.limiter.refund(again[-1])
    assert broken.admitted(plan) == [1]
    broken.mend()
    assert [status.remaining for status in broken.storage.peek(plan).statuses] == [1, 0]


@pytest.mark.parametrize("before", [True, False], ids=["admitted in the outage", "new"])
def test_check_that_is_repeated_with_its_id_while_the_storage_comes_back_is_charged_once(
    make: Callable[..., Workers], before: bool
) -> None:
    workers, plan, own = make(2, broken=True), hits("4/minute"), uuid4()
    checks = [workers.limiter.check(plan, check_id=own) for _ in range(before)]
    workers.half_open()

    checks += [workers.limiter.check(plan, check_id=own) for _ in range(4)]
    workers.mend()
    checks += [workers.limiter.check(plan, check_id=own) for _ in range(4)]

    assert all(each.allowed for each in checks)
    assert workers.storage.peek(plan).remaining == 3


def test_check_that_the_storage_refuses_when_it_is_repeated_after_an_outage_still_counts(broken: Workers) -> None:
    plan, own = hits("2/minute"), uuid4()
    assert broken.limiter.check(plan, check_id=own).allowed
    broken.half_open()
    broken.storage.check(hits("2/minute", cost=2))

    assert not broken.limiter.check(plan, check_id=own).allowed
    broken.storage.reset([plan[0].key])
    assert broken.admitted(plan) == [1]


@pytest.mark.parametrize("rules", ["2/minute", Concurrent(2, 60)], ids=str)
def test_check_that_is_refused_when_it_is_repeated_in_an_outage_still_counts(workers: Workers, rules: Rules) -> None:
    plan, own = hits(rules), uuid4()
    assert [workers.limiter.check(plan, check_id=each).allowed for each in (own, uuid4())] == [True] * 2
    workers.break_down()

    assert not workers.limiter.check(plan, check_id=own).allowed
    workers.mend()
    assert workers.storage.peek(plan).remaining == 0


@pytest.mark.parametrize("units", [0, 5])
def test_check_that_is_repeated_in_an_outage_is_settled_in_the_storage_that_charged_it(
    workers: Workers, units: int
) -> None:
    limiter, plan = workers.limiter, hits("9/hour", cost=2)
    charged = limiter.check(plan)
    begin_outage(workers)

    limiter.settle(limiter.check(plan, check_id=charged.id), units)
    workers.mend()

    assert workers.storage.peek(plan).remaining == 9 - units


def test_refund_of_a_charge_whose_reply_is_lost_gives_back_what_was_charged(workers: Workers) -> None:
    limiter, plan = workers.limiter, hits([Rule(3600, 9, algorithm="fixed_window"), Rule(3600, 9)], cost=2)
    begin_outage(workers)
    decision, charge = limiter.check(plan), workers.storage.check_many

    def refund_and_lose_the_reply(*arguments: Any) -> Any:
        workers.storage.check_many = charge  # type: ignore[method-assign]
        charge(*arguments)
        limiter.refund(decision)
        raise StorageError("it is down again")

    workers.storage.check_many = refund_and_lose_the_reply  # type: ignore[method-assign,assignment]
    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [9, 9]


def test_settlement_whose_reply_alone_is_lost_begins_no_outage_and_counts_once(workers: Workers) -> None:
    limiter, plan = workers.limiter, hits("9/hour", cost=2)
    decision = limiter.check(plan)
    loses_the_first_reply(workers.storage, "settle")

    with pytest.raises(StorageError, match="the reply was lost"):
        limiter.settle(decision, 5)

    assert (limiter.health().state, limiter.peek(hits("9/hour")).remaining) == ("working", 4)


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_a_settlement_whose_reply_is_lost_counts_once(workers: Workers, algorithm: str) -> None:
    limiter, plan = workers.limiter, hits(rule(algorithm, 3600, 9), cost=2)
    decision = limiter.check(plan)
    workers.break_down()
    limiter.check(hits("5/minute", subject="bob"))
    limiter.settle(decision, 5)
    loses_the_first_reply(workers.storage, "settle")

    workers.mend()

    assert workers.storage.peek(hits(rule(algorithm, 3600, 9))).remaining == 4


def test_settlements_that_are_too_many_to_keep_are_dropped_and_counted_in_the_log(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pending, "MOST_PENDING", 2)
    workers, plan = make(), hits("9/hour")
    charged = [workers.limiter.check(plan) for _ in range(5)]
    begin_outage(workers)
    for each in charged:
        workers.limiter.refund(each)

    workers.mend()

    assert workers.storage.peek(plan).remaining == 9 - 3
    assert "not. Settlements not made, because there were too many: 3." in caplog.text


def test_a_settlement_that_cannot_be_repeated_when_its_reply_is_lost_is_logged(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, plan = workers.limiter, hits(Rule(3600, 9, algorithm="token_bucket"), cost=2)
    decision = limiter.check(plan)
    begin_outage(workers)
    limiter.settle(decision, 1)
    fails_first(workers.storage, "settle", lost_reply())

    workers.mend()

    assert f"a check of {plan[0].key} failed: the reply was lost" in caplog.text


def test_a_refund_of_a_check_that_never_reached_the_storage_changes_nothing_there(workers: Workers) -> None:
    limiter, plan = workers.limiter, hits(Rule(3600, 9, algorithm="fixed_window"))
    for _ in range(3):
        limiter.check(plan)
    workers.break_down()

    limiter.refund(limiter.check(plan))
    workers.mend()

    assert workers.storage.peek(plan).remaining == 6


@pytest.mark.parametrize("algorithm", sorted(set(RATES) - {"sliding_window"}))
def test_a_refund_of_a_check_that_was_given_up_gives_back_no_unit_of_others(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(pending, "MOST_PENDING", 2)
    workers, plan = make(), hits([rule(algorithm, 3600, 9), Rule(3600, 9)])
    assert workers.admitted(plan, 3) == [3]
    workers.storage.error = lost_reply()
    given_up = workers.limiter.check(plan)
    workers.limiter.refund(given_up)

    assert workers.admitted(hits("9/minute", subject="bob"), 3) == [3]
    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [6, 6]


@pytest.mark.parametrize("is_charged", [False, True])
@pytest.mark.parametrize("algorithm", sorted(set(RATES) - {"sliding_window"}))
def test_a_refund_of_a_check_that_was_reset_meanwhile_gives_back_no_unit_of_others(
    workers: Workers, algorithm: str, is_charged: bool
) -> None:
    limiter, plan = workers.limiter, hits([rule(algorithm, 3600, 9), Rule(3600, 9)])
    before = limiter.check(plan)
    workers.storage.error = lost_reply()
    lost = limiter.check(plan)
    limiter.refund(before if is_charged else lost)
    workers.storage.error = None
    limiter.reset(plan)
    for _ in range(3):
        workers.storage.check(plan)

    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [6, 6]


@pytest.mark.parametrize("algorithm", sorted(set(RATES) - {"sliding_window"}))
def test_denied_check_whose_reply_was_lost_refunds_no_unit(make: Callable[..., Workers], algorithm: str) -> None:
    """An algorithm that keeps no ids might refund a unit that was never charged."""
    workers = make(on_error="deny")
    limiter, plan = workers.limiter, hits(rule(algorithm, 3600, 9))
    workers.storage.loses_replies = True

    with pytest.raises(StorageDenied):
        limiter.check(plan)
    left = workers.storage.peek(plan).remaining
    workers.mend()

    assert workers.storage.peek(plan).remaining == left


@pytest.mark.parametrize("policy", ["deny", "raise"])
def test_batch_that_is_denied_after_its_replies_were_lost_refunds_each_check(
    make: Callable[..., Workers], policy: OnStorageError
) -> None:
    workers = make(on_error=policy)
    storage, plans = workers.storage, [hits("9/hour"), hits("1 at once", subject="bob")]
    charge = storage.check_many

    def lose(many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        decided = charge(many, ids)
        raise StorageError("the replies were lost", check_ids=[decision.id for decision in decided])

    storage.check_many = lose  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        workers.limiter.check_many(plans)
    storage.check_many = charge  # type: ignore[method-assign]
    workers.mend()

    assert [storage.peek(plan).remaining for plan in plans] == [9, 1]


# Half open


def test_storage_decides_while_charges_are_still_pending(returning: Workers) -> None:
    limiter = returning.limiter

    assert [limiter.check(hits("10/minute", subject="eve")).decided_by for _ in range(5)] == ["memory"] * 5
    half_open = limiter.health()
    returning.mend()

    assert (half_open.breaker, half_open.state) == ("half-open", "failed")
    assert half_open.pending >= 3
    assert limiter.health().breaker == "closed"
    assert [change.state for change in returning.changes] == ["failed", "working"]


def test_peek_says_what_a_check_would_while_this_worker_keeps_within_its_share(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.outage.RETURN_SECONDS", 60)
    workers, plan = make(2), hits("10/minute")
    limiter = workers.limiter
    workers.break_down()
    assert workers.admitted(plan) == [2, 2]
    workers.half_open()

    half_open = limiter.peek(plan), limiter.check(plan)
    workers.mend()
    returning = limiter.peek(plan), limiter.check(plan)

    for peeked, checked in (half_open, returning):
        assert (peeked.allowed, peeked.decided_by, peeked.remaining) == (False, "local", 0)
        assert (checked.allowed, checked.decided_by, checked.remaining) == (False, "local", 0)


def test_peek_says_what_is_left_in_the_storage_once_all_workers_have_charged_it(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.outage.RETURN_SECONDS", 0)
    workers, plan = make(2), hits("10/minute")
    workers.break_down()
    assert workers.admitted(plan) == [2, 2]
    workers.mend()

    peeked = workers.limiter.peek(plan)

    assert (peeked.allowed, peeked.decided_by, peeked.remaining) == (True, "memory", 6)


def test_pending_units_are_not_admitted_again(returning: Workers) -> None:
    limiter, plan = returning.limiter, hits("10/minute")
    assert returning.storage.peek(plan).remaining == 10

    during = sum(limiter.check(plan).allowed for _ in range(20))
    returning.mend()

    assert during == 7
    assert limiter.peek(plan).remaining == 0


def test_refusal_by_the_storage_uses_nothing_of_the_local_share(returning: Workers) -> None:
    limiter, everyone = returning.limiter, hits_for("20/minute", scope="all")
    each = [hits("1/minute", subject=f"client-{n}") for n in range(15)]
    for one in each:
        returning.storage.check(one)

    refused = [limiter.check(everyone + one) for one in each]

    assert [decision.decided_by for decision in refused] == ["memory"] * 15
    assert [decision.allowed for decision in refused] == [False] * 15
    assert returning.admitted(everyone) == [20]


def test_reset_also_resets_the_local_share_of_this_client_and_of_no_other(workers: Workers) -> None:
    plans = [hits("10/minute", subject=subject) for subject in ("eve", "ada")]
    assert [workers.admitted(plan, 8) for plan in plans] == [[8], [8]]
    workers.break_down()
    assert workers.admitted(plans[0], 1) == [1]

    workers.storage.error = None  # which the worker does not know yet
    workers.limiter.reset(plans[0])

    assert [workers.admitted(plan) for plan in plans] == [[10], [2]]


def test_reset_takes_as_many_steps_with_many_clients_as_with_one(workers: Workers) -> None:
    """An app may reset the limit of failed logins at each login."""
    plans, steps = [hits("10/minute", subject=f"client{number}") for number in range(200)], list[int]()
    for many in (1, 1, 200):  # the first time, there is more to do
        assert all(workers.limiter.check(plan).allowed for plan in plans[:many])
        steps.append(lines_during(lambda: workers.limiter.reset(plans[0])))

    assert steps[2] == steps[1]


def test_outage_knows_the_latest_resets_of_many_also_of_a_client_that_was_reset_long_before(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.fallback.REMEMBERED", 10)
    plan = hits("1/minute", subject="eve")
    workers.limiter.reset(plan)
    for number in range(19):
        workers.limiter.reset(hits("1/minute", subject=f"client{number}"))
    assert workers.limiter.check(plan).allowed
    workers.limiter.reset(plan)
    workers.limiter.reset(hits("1/minute", subject="ada"))

    begin_outage(workers)

    assert workers.admitted(plan) == [1]


def test_outage_after_a_reset_gives_no_fresh_quota_of_other_limits_of_the_same_checks(workers: Workers) -> None:
    own, slots, of_all = hits("5/minute"), FOUR, hits("9/minute", scope="site", subject="everyone")
    assert workers.admitted((*own, *slots, *of_all), 3) == [3]
    workers.limiter.reset(own)

    begin_outage(workers)

    assert [workers.admitted(plan) for plan in (own, slots, of_all)] == [[5], [1], [6]]


def test_reset_before_the_storage_is_charged_is_not_undone_by_charges(workers: Workers) -> None:
    """The storage answers again, but the worker does not know that yet."""
    limiter, plans = workers.limiter, [hits("10/minute", subject=subject) for subject in ("eve", "ada")]
    workers.break_down()
    for plan in plans:
        workers.admitted(plan, 3)

    workers.storage.error = None
    limiter.reset(plans[0])
    workers.mend()

    assert [workers.storage.peek(plan).remaining for plan in plans] == [10, 7]


def test_failure_while_half_open_belongs_to_the_same_outage(
    returning: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, plan, slots = returning.limiter, hits("10/minute"), hits(Concurrent(4, 30))
    assert limiter.check(plan).decided_by not in FALLBACKS
    assert returning.admitted(slots, 5) == [4]
    returning.clock.advance(30)

    returning.break_down()
    decision = limiter.check(plan)
    assert (decision.decided_by, decision.remaining) == ("local", 10 - 5)
    again = limiter.health()
    assert returning.admitted(slots, 5) == [4], "those of before the outage have expired"
    returning.mend()

    assert (again.breaker, again.state, again.since) == ("open", "failed", returning.changes[0].since)
    assert [change.state for change in returning.changes] == ["failed", "working"]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "of the end: it began before the test"
    assert limiter.peek(plan).remaining == 10 - 5


@pytest.mark.slow
def test_outage_continues_while_the_storage_takes_no_charges(workers: Workers) -> None:
    """Otherwise a request would have to wait for a storage that does not answer."""
    limiter, plan = workers.limiter, hits("10/minute")
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
    until(lambda: len(tries) == 1)
    until(lambda: limiter.health().breaker == "open")
    workers.mend()

    assert len(tries) == 3
    assert all(later - earlier > 0.89 for earlier, later in itertools.pairwise(tries))
    assert [change.state for change in workers.changes] == ["failed", "working"]
    assert limiter.peek(plan).remaining == 9


@pytest.mark.slow
def test_outage_continues_while_the_storage_takes_nothing_but_charges(returning: Workers) -> None:
    limiter, storage, ask = returning.limiter, returning.storage, returning.storage.check
    refused: list[tuple[Hit, ...]] = []

    def take_charges(hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if "{mail}" not in hits[0].key:
            return ask(hits, check_id)
        refused.append(hits)
        raise StorageError("charges only")

    storage.check = take_charges  # type: ignore[method-assign]
    owes_nothing = limiter.check(hits_for("10/minute", scope="mail", on_storage_error="allow"))
    storage.takes_charges.set()
    until(lambda: len(refused) == 2)  # by the check and by a probe
    charged = limiter.health()
    storage.check = ask  # type: ignore[method-assign]
    returning.mend()

    assert owes_nothing.decided_by == "allow"
    assert (charged.state, charged.pending) == ("failed", 0)
    assert [change.state for change in returning.changes] == ["failed", "working"]


def test_outage_continues_while_the_storage_refuses_to_write_what_failed(make: Callable[..., Workers]) -> None:
    """As a server does whose user lacks +zadd."""
    workers = make(on_error="deny")  # so nothing is left to be charged
    limiter, storage, ask = workers.limiter, workers.storage, workers.storage.check
    refused: list[tuple[Hit, ...]] = []

    def take_numbers(hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if all(hit.rule.algorithm == "fixed_window" for hit in hits):
            return ask(hits, check_id)
        refused.append(hits)
        raise StorageError("no logs")

    storage.check = take_numbers  # type: ignore[method-assign]
    with pytest.raises(StorageDenied):
        limiter.check(hits("10/minute"))
    until(lambda: len(refused) == 2 or limiter.health().state == "working")  # by the check and by a probe

    assert limiter.health().state == "failed"
    storage.check = ask  # type: ignore[method-assign]
    workers.mend()
    assert [change.state for change in workers.changes] == ["failed", "working"]


def test_forked_child_returns_to_the_storage_by_itself(returning: Workers) -> None:
    limiter = returning.limiter

    def return_alone() -> None:
        assert limiter.check(hits("10/minute")).decided_by not in FALLBACKS
        until(lambda: limiter.health().breaker == "closed")

    assert exit_code_of_child(return_alone) == 0
    assert limiter.health().breaker == "half-open"


# Returning to the storage


@pytest.mark.slow
def test_worker_that_returns_first_leaves_other_workers_their_share(make: Callable[..., Workers]) -> None:
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
    until(lambda: first.health().state == "working")

    admitted = sum(first.check(plan).allowed for _ in range(10)) + sum(second.check(plan).allowed for _ in range(10))

    assert admitted <= 4
    time.sleep(1.6)
    workers.mend()
    assert admitted + sum(first.check(plan).allowed for _ in range(10)) == 4


def test_storage_alone_decides_after_all_charges_are_made(returning: Workers) -> None:
    plan = hits("10/minute")
    returning.mend()
    returning.storage.reset([plan[0].key])
    assert returning.admitted(plan) == [10]


def test_client_that_is_new_after_an_outage_has_its_whole_limit(make: Callable[..., Workers]) -> None:
    workers = make(2, broken=True)
    workers.admitted(hits("60/minute", subject="bob"), 1)
    workers.mend()

    for _ in range(20):
        assert workers.admitted(hits("60/minute"), 1) == [1, 1]
    workers.break_down()
    assert sum(workers.admitted(hits("60/minute"), 20)) >= 18


@contextlib.contextmanager
def check_that_is_late(workers: Workers, plan: tuple[Hit, ...], *, charged: bool, fails: bool = True) -> Iterator[None]:
    """Another thread asks the storage before the block, and gets the answer, or an error, after it."""
    storage, asked, ends, ask = workers.storage, threading.Event(), threading.Event(), workers.storage.check

    def answer_late(hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        storage.check = ask  # type: ignore[method-assign]
        answer = ask(hits, check_id) if charged else None
        asked.set()
        assert ends.wait(PATIENCE)
        if answer is None or fails:
            raise StorageError("it took too long", check_id=None if answer is None else answer.id)
        return answer

    def check() -> None:
        with contextlib.suppress(StorageDenied):
            workers.limiter.check(plan)

    storage.check = answer_late  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(check)
        assert asked.wait(PATIENCE)
        yield
        ends.set()
    late.result()


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_check_that_the_storage_answers_after_an_outage_has_begun_counts_in_it(
    workers: Workers, algorithm: str
) -> None:
    plan = hits(rule(algorithm, 3600, 4))
    with check_that_is_late(workers, plan, charged=True, fails=False):
        workers.break_down()
        assert workers.admitted(plan, 1) == [1]

    assert workers.admitted(plan) == [2]
    workers.mend()
    assert workers.storage.peek(plan).remaining == 0


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_answer_that_is_being_kept_when_an_outage_begins_counts_in_it(algorithm: str) -> None:
    now, plan, interruptions = Clock(), hits(rule(algorithm, 3600, 4)), list[Callable[[], object]]()
    storage = Shared(now)

    def clock() -> int:  # the guard reads it when it keeps an answer
        while interruptions:
            interruptions.pop()()
        return now()

    def break_down() -> None:
        storage.error = StorageError("it is away")
        assert limiter.check(plan).allowed

    limiter = Limiter(GuardedStorage(storage, workers=1, clock=clock))
    interruptions.append(break_down)
    assert limiter.check(plan).allowed

    assert [limiter.check(plan).allowed for _ in range(3)] == [True, True, False]
    limiter.close()


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_answer_that_comes_while_another_check_is_decided_in_an_outage_counts_once(
    workers: Workers, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, plan = workers.limiter, hits(rule(algorithm, 3600, 6))
    outage = workers._guards()[0]._outage
    record, admitted = outage.record_overtaken, [limiter.check(plan).allowed]

    def be_overtaken(answer: Decision) -> None:  # by a thread that takes the lock first
        admitted.append(limiter.check(plan).allowed)
        record(answer)

    monkeypatch.setattr(outage, "record_overtaken", be_overtaken)
    with check_that_is_late(workers, plan, charged=True, fails=False):
        begin_outage(workers)
    admitted += [True, *[limiter.check(plan).allowed for _ in range(8)]]

    assert admitted == [True] * 6 + [False] * 5


def test_late_failure_after_an_outage_is_charged_and_begins_no_new_outage(workers: Workers) -> None:
    limiter, storage, plan = workers.limiter, workers.storage, hits("10/minute")
    with check_that_is_late(workers, plan, charged=False):
        workers.break_down()
        assert limiter.check(plan).decided_by == "local"
        workers.mend()
        before = len(storage.asked)

    until(lambda: limiter.health().pending == 0)

    assert len(storage.asked) - before == 1, "it was probed, too"
    assert [change.state for change in workers.changes] == ["failed", "working"]
    assert limiter.peek(plan).remaining == 8


def test_keys_of_an_outage_are_forgotten_when_their_windows_have_passed(broken: Workers) -> None:
    limiter = broken.limiter
    for n in range(100):
        limiter.check(hits("30/minute", subject=f"client-{n}"))
    broken.mend()
    assert limiter.health().fallback_keys == 100

    broken.clock.advance(61)  # a second longer than the window, in case another rule for the key has a lease
    for _ in range(100):
        limiter.check(hits("30/minute", subject="bob"))

    assert limiter.health().fallback_keys == 0


def test_keys_counted_while_workers_return_are_forgotten_when_their_windows_have_passed(
    make: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.outage.RETURN_SECONDS", 60)
    workers = make(2)
    limiter = workers.limiter
    workers.break_down()
    workers.admitted(hits("30/minute"), tries=1)
    workers.clock.advance(61)
    workers.mend()
    limiter.peek(hits("30/minute"))
    assert limiter.health().fallback_keys == 0

    limiter.check(hits("30/minute", subject="bob"))
    assert limiter.health().fallback_keys == 1
    workers.clock.advance(61)
    limiter.peek(hits("30/minute"))

    assert limiter.health().fallback_keys == 0


# Slots


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
@pytest.mark.parametrize("outage", [20, 40, 80, 400])
def test_slots_taken_before_an_outage_are_in_use_until_released(
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
    assert work.in_use() == 2, "they are charged with their whole timeout"
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
def test_check_whose_reply_was_lost_holds_nothing_after_its_release(
    make: Callable[..., Workers], policy: OnStorageError, rules: str, left: int
) -> None:
    workers = make(on_error=policy)
    limiter, plan = workers.limiter, hits(rules)
    workers.storage.loses_replies = True

    with contextlib.suppress(StorageError):
        limiter.release(limiter.check(plan))
    workers.mend()

    assert workers.storage.peek(plan).remaining == left


def test_check_whose_reply_was_lost_holds_no_slot_when_refused_locally(make: Callable[..., Workers]) -> None:
    workers = make(3)
    limiter, plan = workers.limiter, hits("2 at once")
    workers.storage.loses_replies = True

    assert not limiter.check(plan).allowed
    workers.mend()

    assert workers.storage.peek(plan).remaining == 2


def test_late_failure_after_an_outage_holds_no_slot(make: Callable[..., Workers]) -> None:
    workers, plan = make(on_error="deny"), hits("1 at once")
    with check_that_is_late(workers, plan, charged=True):
        workers.break_down()
        with pytest.raises(StorageDenied):
            workers.limiter.check(plan)
        workers.mend()

    until(lambda: workers.storage.peek(plan).remaining == 1)


@pytest.mark.parametrize(("give_back", "left"), [(Limiter.release, 3), (Limiter.refund, 2)])
def test_sequential_requests_use_one_slot_of_the_local_share(
    make: Callable[..., Workers], give_back: Callable[[Limiter, Decision], object], left: int
) -> None:
    """A slot counts in the share as long as it is held, and no longer."""
    workers = make(2)
    limiter, eight = workers.limiter, hits("8 at once")
    workers.break_down()
    limiter.release(limiter.check(eight))
    workers.half_open()

    for _ in range(20):
        decision = limiter.check(eight)
        assert (decision.allowed, decision.decided_by) == (True, "memory")
        give_back(limiter, decision)
    held = limiter.check(eight)
    workers.mend()
    give_back(limiter, held)
    begin_outage(workers)

    assert sum(limiter.check(eight).allowed for _ in range(5)) == left, "no slot is held"


def test_slot_taken_while_half_open_counts_once_in_the_next_outage(returning: Workers) -> None:
    limiter = returning.limiter
    storage: Any = limiter.outermost
    held = limiter.check(FOUR)
    begin_outage(returning)

    storage.renew(slots_of(held))

    assert held.decided_by == "memory"
    assert returning.admitted(FOUR, 5) == [3]


def test_slot_that_the_storage_took_before_it_failed_again_is_taken_from_its_last_answer(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "BATCH", 1)
    limiter = workers.limiter
    limiter.check((*hits("9/hour"), *FOUR))
    begin_outage(workers)
    work = Work(workers, 2)
    fails_first(workers.storage, "check_many", None, None, *[StorageError("down")] * 99)
    workers.storage.error = None
    until(lambda: limiter.health().pending == 1 and limiter.health().breaker == "open")

    work.storage.renew(slots_of(work.held[0]))

    assert workers.admitted(FOUR) == [1]


def test_last_answers_are_not_gathered_again_when_a_probe_is_not_answered(workers: Workers) -> None:
    """That may take a tenth of a second, in which all requests wait."""
    storage: Any = workers.limiter.outermost
    begin_outage(workers)
    assert workers.admitted(FOUR) == [4]

    storage.stop()  # probes at once, for what it has admitted

    assert storage._outage.fallback._gathered_at is not None


def test_slots_charged_to_the_storage_do_not_count_locally_in_the_next_outage(workers: Workers) -> None:
    limiter = workers.limiter
    begin_outage(workers)
    during = limiter.check(FOUR)
    workers.mend()
    limiter.release(during)
    begin_outage(workers)

    assert workers.admitted(FOUR, 5) == [4]


def test_slots_charged_to_the_storage_that_are_still_held_count_in_the_next_outage(workers: Workers) -> None:
    limiter = workers.limiter
    before = limiter.check(FOUR)
    begin_outage(workers)
    during = [limiter.check(FOUR) for _ in range(2)]
    workers.mend()

    begin_outage(workers)

    assert all(decision.allowed for decision in (before, *during))
    assert workers.admitted(FOUR, 5) == [1]


def test_other_worker_is_not_blamed_for_what_this_one_was_charged_after_an_outage(make: Callable[..., Workers]) -> None:
    workers = make(2)
    first, plan = workers.limiters[0], hits("100/minute")
    first.check(plan)
    begin_outage(workers)
    first.check(plan)
    workers.mend()
    first.check(plan)

    begin_outage(workers)

    assert sum(first.check(plan).allowed for _ in range(60)) == (97 - 2) // 2


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_refund_in_an_outage_of_an_earlier_check_is_made_after_it(workers: Workers, algorithm: str) -> None:
    limiter, plan = workers.limiter, (*FOUR, *hits(rule(algorithm, 3600, 9)))
    storage: Any = limiter.outermost
    taken = limiter.check(plan)
    begin_outage(workers)
    storage.renew(slots_of(taken))

    limiter.refund(taken)
    workers.mend()

    assert [status.remaining for status in workers.storage.peek(plan).statuses] == [4, 9]


def test_units_beyond_the_cost_of_an_earlier_check_count_in_an_outage_in_which_its_slot_is_renewed(
    workers: Workers,
) -> None:
    limiter, tokens = workers.limiter, hits("1000/hour")
    storage: Any = limiter.outermost
    running = limiter.check((*FOUR, *tokens))
    begin_outage(workers)
    storage.renew(slots_of(running))

    limiter.settle(running, 900, tokens)
    left_in_outage = limiter.peek(tokens).remaining
    workers.mend()

    assert (left_in_outage, workers.storage.peek(tokens).remaining) == (100, 100)


def test_renewal_of_a_slot_in_an_outage_prolongs_no_other_charge_of_its_check(workers: Workers) -> None:
    fixed = hits(Rule(30, 9, algorithm="fixed_window"))
    limiter = workers.limiter
    storage: Any = limiter.outermost
    begin_outage(workers)
    refunded, running = (limiter.check((*FOUR, *fixed)) for _ in range(2))

    workers.clock.advance(20)
    storage.renew([*slots_of(refunded), *slots_of(running)])
    limiter.refund(refunded)
    left_in_outage = limiter.peek(fixed).remaining
    workers.clock.advance(20)
    workers.mend()

    assert left_in_outage == 8, "a refund gives back what was charged"
    assert [workers.storage.peek(plan).remaining for plan in (FOUR, fixed)] == [3, 9], "the window has passed"
