"""The breaker is open: each process decides by itself, and only a probe asks the storage."""

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from engine.storage.layers.guard.workers import FOUR, Shared, Work, Workers, begin_outage, exit_code_of_child
from flask_multilimit.engine import (
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
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.hits import Hits, OnStorageError
from flask_multilimit.engine.slots import slots_of
from flask_multilimit.engine.storage.layers.fallback import Fallback
from support.bench import hits, rule
from support.clock import Clock
from support.doubles import raising
from support.interrupts import interrupted
from support.rates import RATES
from support.threads import in_threads
from support.waiting import PATIENCE, until


def test_policy_local_limits_like_the_storage(broken: Workers) -> None:
    decisions = [broken.limiter.check(hits("5/minute")) for _ in range(7)]

    assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 2
    assert {decision.decided_by for decision in decisions} == {"local"}
    assert decisions[0].hits == hits("5/minute")
    assert decisions[0].remaining == 4
    assert decisions[-1].retry_after == 60


def test_error_of_a_subclass_that_sets_no_fields_begins_an_outage(workers: Workers) -> None:
    class BrokenError(StorageError):
        def __init__(self, code: int) -> None:  # does not call that of its base class
            self.code = code

    workers.storage.error = BrokenError(7)

    assert workers.limiter.check(hits("9/hour")).decided_by == "local"
    assert workers.limiter.health().state == "failed"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_worker_whose_outage_is_interrupted_when_it_begins_admits_its_share(make: Callable[..., Workers]) -> None:
    workers = make(4, broken=True)

    def check() -> None:
        workers.limiter.check(hits("8/minute"))

    for point in interrupted(check):
        assert workers.admitted(hits("8/minute"), 9)[0] <= 2, point
        workers.close()  # thousands of threads would ask the storage each second
        workers = make(4, broken=True)


def test_policy_allow_admits_every_check(make: Callable[..., Workers]) -> None:
    workers = make(on_error="allow", broken=True)

    decisions = [workers.limiter.check(hits("1/minute")) for _ in range(7)]

    assert all(decision.allowed for decision in decisions)
    assert {decision.decided_by for decision in decisions} == {"allow"}
    assert decisions[0].remaining == 1


def test_policy_deny_raises_an_error_with_retry_after(make: Callable[..., Workers]) -> None:
    workers = make(on_error="deny", broken=True)

    for _ in range(3):
        with pytest.raises(StorageDenied, match="it is broken") as caught:
            workers.limiter.check(hits("1/minute"))
        assert caught.value.retry_after == 1


def test_policy_raise_passes_on_the_error_of_the_storage(make: Callable[..., Workers]) -> None:
    workers = make(on_error="raise")
    workers.storage.error = error = StorageError("it is broken")
    error.remedy, error.__cause__ = "mend it", OSError("no way")

    for _ in range(3):
        with pytest.raises(StorageError, match="it is broken") as caught:
            workers.limiter.check(hits("1/minute"))
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
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_strictest_policy_among_the_hits_of_a_check_decides(
    make: Callable[..., Workers],
    policies: tuple[OnStorageError | None, OnStorageError | None],
    outcome: str | type[StorageError],
) -> None:
    workers = make(on_error="deny", broken=True)
    limiter = workers.limiter
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
def test_shadow_refuses_no_check_under_any_policy(broken: Workers, policy: OnStorageError) -> None:
    shadow = hits_for("1/minute", scope="x", shadow=True, on_storage_error=policy)
    assert [broken.limiter.check(shadow).allowed for _ in range(3)] == [True] * 3


def test_peek_in_an_outage_is_answered_and_charges_nothing(workers: Workers) -> None:
    limiter = workers.limiter
    limiter.check(hits("5/minute"))
    workers.break_down()

    assert [limiter.peek(hits("5/minute")).remaining for _ in range(2)] == [4, 4]
    workers.mend()
    assert limiter.peek(hits("5/minute")).remaining == 4


def test_check_many_in_an_outage_decides_one_check_after_the_other(broken: Workers) -> None:
    plans = [hits("1/minute", subject="ada"), hits("1/minute", subject="bob"), hits("1/minute", subject="ada")]
    assert [decision.allowed for decision in broken.limiter.check_many(plans)] == [True, True, False]


@pytest.mark.parametrize("breaker", ["closed", "open"])
@pytest.mark.parametrize("policy", ["deny", "raise"])
def test_batch_in_an_outage_charges_nothing_if_one_of_its_checks_raises(
    workers: Workers, policy: OnStorageError, breaker: str
) -> None:
    if breaker == "open":
        begin_outage(workers)
    workers.break_down()
    ada, slot = hits("2/minute", subject="ada"), hits("2 at once", subject="ada")
    plans = [ada, slot, hits_for("1/minute", scope="x", on_storage_error=policy), ada]

    for _ in range(3):
        with pytest.raises(StorageError):
            workers.limiter.check_many(plans)

    assert [workers.limiter.peek(plan).remaining for plan in (ada, slot)] == [2, 2]
    workers.mend()
    assert [workers.storage.peek(plan).remaining for plan in (ada, slot)] == [2, 2]


# The share of a worker


@pytest.mark.parametrize(("many", "each"), [(1, 10), (2, 5), (3, 3), (4, 2), (10, 1), (11, 0)])
def test_each_worker_admits_its_share_of_the_limit(make: Callable[..., Workers], many: int, each: int) -> None:
    workers = make(many, broken=True)
    workers.admitted(hits("10/minute", subject="bob"), 1)
    workers.clock.advance(60)
    assert workers.admitted(hits("10/minute"), 11) == [each] * many


@pytest.mark.parametrize(("many", "each"), [(1, 60), (2, 15), (4, 7), (40, 1), (61, 0)])
def test_half_the_limit_of_an_unknown_client_counts_as_used_in_the_first_window(
    make: Callable[..., Workers], many: int, each: int
) -> None:
    workers = make(many, broken=True)

    assert workers.admitted(hits("60/minute"), 61) == [each] * many
    workers.clock.advance(59.9)
    assert workers.admitted(hits("60/minute"), 1) == [0] * many
    workers.clock.advance(0.1)
    assert workers.admitted(hits("60/minute"), 61) == [{1: 60, 2: 30, 4: 15, 40: 1, 61: 0}[many]] * many


@pytest.mark.parametrize(("many", "each"), [(1, 4), (2, 1), (3, 1), (4, 1), (5, 0)])
def test_unknown_client_gets_half_the_slots_of_a_worker_rounded_up(
    make: Callable[..., Workers], many: int, each: int
) -> None:
    """Of four slots. A single worker has all of them."""
    workers = make(many, broken=True)
    assert workers.admitted(FOUR, 5) == [each] * many


@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize("used", [0, 10, 30, 45, 60])
@pytest.mark.parametrize("many", [2, 4])
def test_client_of_one_worker_exceeds_its_limit_only_if_it_had_used_more_than_half(
    make: Callable[..., Workers], many: int, used: int, algorithm: str
) -> None:
    """Then it gets less than half of it more: of 60 units 75 with 2 workers, and 81 with 4."""
    workers = make(many)
    plan = hits(rule(algorithm, 60, 60))
    assert all(workers.limiter.check(plan).allowed for _ in range(used))
    workers.break_down()

    admitted = used + sum(workers.admitted(plan, 61))

    assert admitted <= (60 if used <= 30 else 75 if many == 2 else 81)


def test_part_of_the_limit_counts_as_used_if_a_client_was_not_seen_for_long(make: Callable[..., Workers]) -> None:
    workers = make(2)
    plan = hits("60/hour")
    for limiter in workers.limiters:
        limiter.check(plan)
    workers.clock.advance(1800)
    workers.break_down()

    assert workers.admitted(plan, 61) == [(60 - 1 - 15) // 2, (60 - 2 - 15) // 2]


def test_workers_that_begin_with_more_than_their_share_of_a_burst_refill_more_slowly(
    make: Callable[..., Workers],
) -> None:
    """Ten workers, each of which begins with the one unit that the bucket holds, share 20 + 1 units of ten seconds."""
    plan = hits(Rule(10, 20, algorithm="token_bucket", burst=1))
    workers = make(10, broken=True)

    admitted = sum(workers.admitted(plan, 2))
    for _ in range(20):
        workers.clock.advance(0.5)
        admitted += sum(workers.admitted(plan, 2))

    assert 20 <= admitted <= 21


def test_failure_of_one_key_leaves_each_worker_its_share_of_it(make: Callable[..., Workers]) -> None:
    workers = make(4)
    workers.storage.error = StorageError("WRONGTYPE", key_specific=True)
    assert workers.admitted(hits("8/minute")) == [2] * 4


def test_slot_that_is_released_in_an_outage_that_has_charged_nothing_is_free_here(workers: Workers) -> None:
    work = Work(workers, 4)
    workers.break_down()
    workers.limiter.peek(FOUR)

    work.ends()

    assert [workers.limiter.check(FOUR).allowed for _ in range(2)] == [True, False]


def test_share_of_a_burst_is_no_larger_than_a_rule_of_its_count_may_have(make: Callable[..., Workers]) -> None:
    """A share of 3 at once, of which 1 comes back in 200 days, would be an error: it may be 2."""
    workers = make(3, broken=True)
    assert workers.admitted(hits(Rule(200 * 86_400, 5, algorithm="token_bucket", burst=10)), 1) == [1] * 3


def test_client_without_a_share_gets_a_retry_after_of_one_second(make: Callable[..., Workers]) -> None:
    workers = make(3, broken=True)
    decision = workers.limiter.check(hits("2/hour"))
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
def test_workers_in_an_outage_admit_no_more_than_the_rule_in_any_window(
    make: Callable[..., Workers], algorithm: str, burst: int | None, many: int
) -> None:
    takes_burst = "burst" in ALGORITHMS[algorithm].PARAMETERS
    plan = hits(Rule(10, 20, algorithm=algorithm, burst=burst))
    workers = make(many, broken=True)
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
def test_an_outage_gives_no_fresh_quota(make: Callable[..., Workers], algorithm: str, many: int) -> None:
    plan = hits(rule(algorithm, 10, 12))
    workers = make(many)
    before = 0
    for _ in range(3):
        before += sum(limiter.check(plan).allowed for limiter in workers.limiters)
    workers.break_down()

    during = workers.admitted(plan)

    assert before + sum(during) <= 12 + (many - 1)  # the last reply that each worker saw may be older by these units
    assert before + sum(during) >= 12 - 2 * many


@pytest.mark.parametrize(
    ("before", "lowered"),
    [
        (Rule(60, 100), Rule(60, 40)),
        (Rule(60, 100, algorithm="fixed_window"), Rule(60, 40, algorithm="fixed_window")),
        (Concurrent(100), Concurrent(40)),
    ],
    ids=str,
)
def test_units_used_before_an_outage_stay_used_under_a_lower_count(
    workers: Workers, before: Rule, lowered: Rule
) -> None:
    assert workers.admitted(hits(before), 30) == [30]
    workers.break_down()
    assert workers.admitted(hits(lowered), 30) == [10]


def test_repeated_outages_give_no_fresh_quota(workers: Workers) -> None:
    admitted = 0
    for _ in range(2):
        workers.break_down()
        admitted += sum(workers.limiter.check(hits("10/minute")).allowed for _ in range(4))
        workers.mend()
    workers.break_down()

    assert admitted + workers.admitted(hits("10/minute"))[0] == 10


def test_second_outage_gives_no_fresh_quota_when_units_that_the_first_one_counted_come_back(workers: Workers) -> None:
    plan = hits("3/minute")
    assert workers.admitted(plan, 2) == [2]
    workers.clock.advance(10)
    assert workers.admitted(plan) == [1]
    workers.break_down()
    assert workers.admitted(plan) == [0]
    workers.mend()
    workers.clock.advance(50.1)
    assert workers.admitted(plan) == [2]
    workers.clock.advance(10)
    workers.break_down()

    assert workers.admitted(plan) == [0]


@pytest.mark.parametrize("kind", [Hits, tuple], ids=["Hits", "plain tuple"])
def test_units_that_other_workers_took_between_two_replies_reduce_the_share(
    make: Callable[..., Workers], kind: Callable[[Iterable[Hit]], tuple[Hit, ...]]
) -> None:
    workers = make(2)
    plan = kind(hits("100/minute"))
    ours, theirs = workers.limiters
    ours.check(plan)
    for _ in range(10):
        theirs.check(plan)
    ours.check(plan)
    workers.break_down()

    decision = ours.check(plan)

    assert decision.decided_by == "local"
    share, supposed = 88 // 2, 2 * 10 // 2  # half of what was left; half of twice what others took meanwhile
    assert decision.remaining == share - supposed - 1


def test_units_that_other_workers_took_after_a_reset_reduce_the_share(make: Callable[..., Workers]) -> None:
    workers, plan = make(2), hits("100/minute")
    ours, theirs = workers.limiters
    for _ in range(50):
        ours.check(plan)
    ours.reset(plan)
    for _ in range(10):
        theirs.check(plan)
    ours.check(plan)
    workers.break_down()

    assert ours.check(plan).remaining == (89 - 2 * 10) // 2 - 1  # half of what was left; they may take as much again


def test_used_up_quota_returns_at_its_time_in_an_outage(workers: Workers) -> None:
    limiter = workers.limiter
    for _ in range(3):
        limiter.check(hits("3/minute"))
    workers.clock.advance(20)
    workers.break_down()

    assert workers.admitted(hits("3/minute")) == [0]
    workers.clock.advance(39.9)
    assert workers.admitted(hits("3/minute")) == [0]
    workers.clock.advance(0.2)
    assert workers.admitted(hits("3/minute")) == [3]


# Slots that were taken before the outage


@pytest.mark.parametrize("outage", [0, 20, 40, 60, 80, 400])
def test_slots_taken_before_an_outage_count_until_they_are_released(workers: Workers, outage: int) -> None:
    work = Work(workers, 3)
    begin_outage(workers)

    work.goes_on(outage)

    assert workers.admitted(FOUR, 5) == [1]
    work.ends()
    assert workers.admitted(FOUR, 5) == [1]


@pytest.mark.parametrize("outage", [0, 20])
def test_slot_taken_before_an_outage_is_free_once_it_is_refunded(workers: Workers, outage: int) -> None:
    work = Work(workers, 3)
    begin_outage(workers)
    work.goes_on(outage)

    workers.limiter.refund(work.held.pop())

    assert workers.admitted(FOUR, 5) == [2]


@pytest.mark.parametrize("outage", [0, 20])
def test_slot_that_is_released_twice_is_freed_once(workers: Workers, outage: int) -> None:
    work = Work(workers, 3)
    begin_outage(workers)
    work.goes_on(outage)

    for _ in range(2):
        work.storage.release(slots_of(work.held[0]))

    assert workers.admitted(FOUR, 5) == [2]


def test_slots_taken_before_an_outage_count_in_the_share_of_their_worker(make: Callable[..., Workers]) -> None:
    workers = make(2)
    work = Work(workers, 2)
    begin_outage(workers)

    work.goes_on(80)

    assert workers.admitted(FOUR, 5) == [0, 2]


def test_slots_released_after_the_last_answer_are_free_in_an_outage(workers: Workers) -> None:
    """Otherwise a client would have to wait for the timeout of slots that nobody holds."""
    work = Work(workers, 4)
    work.ends()
    work.ends()

    begin_outage(workers)

    assert workers.admitted(FOUR, 5) == [2]


def test_slot_that_was_released_before_a_reset_is_freed_once(make: Callable[..., Workers]) -> None:
    workers, plan = make(2), hits(Concurrent(4, 60), cost=2)
    storage: Any = workers.limiter.outermost
    storage.release(slots_of(workers.limiter.check(plan)))
    workers.limiter.reset(plan)

    begin_outage(workers)

    assert workers.admitted(FOUR) == [2, 1]


@pytest.mark.parametrize(("renewed", "ends", "admitted"), [(False, True, 2), (True, True, 2), (True, False, 0)])
def test_slots_that_were_in_use_at_a_reset_count_in_the_share_of_their_worker(
    make: Callable[..., Workers], *, renewed: bool, ends: bool, admitted: int
) -> None:
    workers, plan = make(2), hits(Concurrent(4, 60), cost=2)
    storage: Any = workers.limiter.outermost
    slots = slots_of(workers.limiter.check(plan))
    workers.limiter.reset(plan)
    begin_outage(workers)

    if renewed:
        storage.renew(slots)
    if ends:
        storage.release(slots)

    assert workers.admitted(FOUR) == [admitted, 1]


def test_slot_whose_release_is_repeated_in_an_outage_is_freed_once(workers: Workers) -> None:
    """The first release took effect, but its reply was lost."""
    work, ended = Work(workers, 3), slots_of(workers.limiter.check(FOUR))
    work.storage.release(ended)
    assert workers.limiter.check(FOUR).allowed
    begin_outage(workers)

    work.storage.release(ended)

    assert workers.admitted(FOUR, 5) == [0]


# Settlements of earlier checks


@pytest.mark.parametrize("begins", ["before the settlement", "after it"])
@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_units_beyond_the_estimate_of_an_earlier_check_count_in_an_outage(
    workers: Workers, algorithm: str, begins: str
) -> None:
    limiter, plan = workers.limiter, hits(rule(algorithm, 3600, 9))
    decision = limiter.check(plan)
    if begins == "before the settlement":
        begin_outage(workers)

    limiter.settle(decision, 5)
    begin_outage(workers)

    assert workers.admitted(plan) == [4]


def test_units_beyond_an_estimate_do_not_count_after_a_reset(workers: Workers) -> None:
    limiter, plan = workers.limiter, hits("9/hour")
    limiter.settle(limiter.check(plan), 5)
    limiter.reset(plan)

    begin_outage(workers)

    assert workers.admitted(plan) == [9]


@pytest.mark.parametrize("algorithm", sorted(RATES))
def test_settlement_that_the_last_answer_shows_counts_once_in_an_outage(workers: Workers, algorithm: str) -> None:
    limiter, plan = workers.limiter, hits(rule(algorithm, 3600, 9))
    limiter.settle(limiter.check(plan), 5)
    assert limiter.check(plan).remaining == 3

    begin_outage(workers)

    assert workers.admitted(plan) == [3]


# The begin of an outage, and its memory


def test_failed_renewal_of_slots_begins_an_outage(workers: Workers) -> None:
    work = Work(workers, 2)
    workers.break_down()

    with pytest.raises(StorageError):
        work.goes_on(20)
    assert work.limiter.health().state == "failed"
    work.goes_on(80)
    workers.mend()

    assert work.in_use() == 2
    assert work.limiter.health().given_up == 0


def test_failed_peek_begins_an_outage(broken: Workers) -> None:
    broken.limiter.peek(hits())
    assert broken.limiter.health().state == "failed"


def test_simultaneous_failures_are_one_outage_and_no_error(workers: Workers) -> None:
    limiter = workers.limiter
    barrier = threading.Barrier(8)

    def fail_together(*_: object) -> Decision:
        with contextlib.suppress(threading.BrokenBarrierError):  # in the thread of the probe
            barrier.wait(PATIENCE)
        raise StorageError("all at once")

    workers.storage.check = fail_together  # type: ignore[method-assign, assignment]
    outcomes = in_threads(8, lambda: limiter.check(hits()).allowed)
    barrier.abort()

    assert sorted(outcomes) == [False] * 3 + [True] * 5
    assert [change.state for change in workers.changes] == ["failed"]


def test_begin_and_end_of_an_outage_are_one_callback_and_one_log_line_each(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = workers.limiter
    assert limiter.health().state == "working"
    with caplog.at_level(logging.INFO):
        workers.break_down()
        for _ in range(5):
            limiter.check(hits())
        failed = limiter.health()
        workers.mend()
        until(lambda: len(workers.changes) == 2)

    assert (failed.state, failed.breaker, failed.pending, failed.fallback_keys) == ("failed", "open", 5, 1)
    assert str(failed.error) == "it is broken"
    assert [change.state for change in workers.changes] == ["failed", "working"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "storage failed (key rate_limit:{api}): it is broken; meanwhile" in caplog.text
    assert "ada" not in caplog.text
    assert "Checks admitted meanwhile: 5 charged to it, 0 not" in caplog.text


def test_callback_that_raises_is_logged_and_the_check_is_decided(caplog: pytest.LogCaptureFixture) -> None:
    storage = Shared(Clock())
    storage.error = StorageError("it is broken")
    limiter = Limiter(GuardedStorage(storage, workers=1, on_change=raising(RuntimeError("I do not want to know"))))

    assert limiter.check(hits()).allowed
    assert "I do not want to know" in caplog.text
    limiter.close()


def test_number_of_checks_kept_to_be_charged_is_bounded(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.pending.MOST_PENDING", 10)
    workers.break_down()
    assert workers.admitted(hits("30/minute")) == [30]

    health = workers.limiter.health()

    assert (health.pending, health.given_up) == (10, 20)
    workers.mend()
    workers.break_down()
    workers.admitted(hits("30/minute", subject="bob"), 1)
    assert workers.limiter.health().given_up == 0, "given up in this outage"


def test_number_of_keys_counted_in_an_outage_is_bounded() -> None:
    storage = Shared(Clock())
    storage.error = StorageError("it is broken")
    guard = GuardedStorage(storage, workers=1, memory_keys=1000, clock=storage.clock or Clock())
    limiter = Limiter(guard)
    plan = [Rule(60, 5), Rule(3600, 50)]

    for subject in range(800):
        assert limiter.check(hits_for(plan, scope="api", subject=f"user:{subject}")).allowed

    health = limiter.health()
    assert health.fallback_keys == 1000
    assert health.pending == 500
    assert health.given_up == 300
    assert [
        limiter.check(hits_for(plan[1], scope="api", subject=f"user:{each}")).remaining for each in ("0", "799")
    ] == [48, 48]

    for subject in range(800):
        limiter.reset(hits_for(plan, scope="api", subject=f"user:{subject}"))
    given_up = limiter.health().given_up
    for subject in range(800, 1300):
        limiter.check(hits_for(plan, scope="api", subject=f"user:{subject}"))
    assert limiter.health().given_up == given_up, "charges of keys that were reset take the place of others"
    limiter.close()


class PastChargedMeanwhile(Fallback):
    """Another thread has charged the past whenever this one has just looked at it."""

    @property
    def _backdated_to(self) -> int | None:
        return next(self._looks)

    @_backdated_to.setter
    def _backdated_to(self, _: int | None) -> None:
        self._looks = itertools.cycle([5, None])


def test_reply_can_be_remembered_while_another_thread_charges_in_the_past() -> None:
    fallback = PastChargedMeanwhile(Clock(60))
    shared = Limiter(MemoryStorage())
    fallback.begin()
    fallback.decide(None, hits(), hits(), charging=True)

    for _ in range(4):
        fallback.remember(shared.check(hits()))


def test_reply_that_another_one_has_overtaken_gives_back_no_unit() -> None:
    clock = Clock()
    fallback, shared = Fallback(clock), Limiter(MemoryStorage(clock))
    older = shared.check(hits("2/minute"))
    clock.advance(0.01)
    newer = shared.check(hits("2/minute"))

    fallback.remember(newer)
    fallback.remember(older)
    fallback.begin()

    assert not fallback.decide(None, hits("2/minute"), hits("2/minute"), charging=True)[0].allowed


def test_reply_after_the_clock_of_the_server_stepped_back_is_remembered() -> None:
    clock, clock_of_server = Clock(), Clock()
    fallback, shared = Fallback(clock), Limiter(MemoryStorage(clock_of_server))
    fallback.remember(shared.check(hits("1/minute", subject="alice")))
    clock.advance(70)
    clock_of_server.advance(-70)

    fallback.remember(shared.check(hits("1/minute", subject="alice")))
    fallback.begin()

    alice = hits("1/minute", subject="alice")
    assert not fallback.decide(None, alice, alice, charging=True)[0].allowed


# Probing


def test_only_a_probe_asks_the_storage_and_the_next_one_waits(broken: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.engine.storage.layers.outage.PROBE_SECONDS", 60)
    broken.limiter.check(hits())
    until(lambda: len(broken.storage.asked) > 1)
    for _ in range(1000):
        broken.limiter.check(hits())

    by_check, by_probe = broken.storage.asked

    assert by_check == threading.get_ident() != by_probe


def test_a_probe_leaves_no_key_in_the_storage(make: Callable[..., Workers]) -> None:
    workers = make(on_error="allow", broken=True)
    workers.limiter.check(hits())
    workers.mend()
    workers.clock.advance(2)
    workers.storage.check(hits(subject="bob"))

    assert [stored.key for stored in workers.storage.keys("")] == [hits(subject="bob")[0].key]


def test_a_forked_child_probes_by_itself_and_leaves_charges_to_its_parent(broken: Workers) -> None:
    limiter = broken.limiter
    limiter.check(hits())

    def probe() -> None:
        assert limiter.health().pending == 0
        limiter.check(hits())
        broken.mend()
        assert limiter.check(hits()).decided_by not in FALLBACKS

    assert exit_code_of_child(probe) == 0
    assert limiter.health().pending == 1
