"""The deny cache refuses by itself exactly what the storage would have refused."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flask_multilimit.engine import (
    Decision,
    DenyCache,
    GuardedStorage,
    Hit,
    Limiter,
    MemoryStorage,
    Rule,
    StorageError,
    hits_for,
)
from flask_multilimit.engine.decision import FALLBACKS
from flask_multilimit.engine.storage.layers import deny_cache
from support.bench import hits, rule
from support.clock import SECOND, Clock
from support.forks import forked
from support.rates import RATES


class RecordingMemory(MemoryStorage):
    """Records the commands it gets. ``meanwhile`` is called after each, then ``error`` is raised if it is set."""

    shared = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.commands: list[str] = []
        self.error: StorageError | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        for name in ("check", "peek", "settle", "reset"):
            setattr(self, name, partial(self._record, name, getattr(self, name)))

    def _record(self, name: str, ask: Callable[..., Any], *arguments: Any) -> Any:
        self.commands.append(name)
        answer = ask(*arguments)
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return answer


class Bench(NamedTuple):
    """A limiter whose refusals are cached for ten seconds at most."""

    limiter: Limiter
    cache: DenyCache
    storage: RecordingMemory
    clock: Clock

    def commands_during(self, action: Callable[[], object]) -> list[str]:
        """The commands that the storage gets during ``action``."""
        before = len(self.storage.commands)
        action()
        return self.storage.commands[before:]

    def give_back(self, how: str, taken: Decision) -> None:
        """Reset or refund what the check ``taken`` has charged."""
        if how == "reset":
            self.limiter.reset(taken.hits)
        else:
            self.limiter.refund(taken)

    def refused(self, wanted: tuple[Hit, ...]) -> Decision:
        """Check until the storage refuses."""
        for _ in range(1000):
            decision = self.limiter.check(wanted)
            if not decision.allowed:
                return decision
        raise AssertionError("it is never refused")


@pytest.fixture
def bench(clock: Clock) -> Bench:
    storage = RecordingMemory(clock)
    cache = DenyCache(storage, seconds=10, clock=clock)
    return Bench(Limiter(cache), cache, storage, clock)


# Refusals from the cache


@pytest.mark.parametrize("algorithm", RATES)
def test_storage_is_not_asked_again_until_exactly_retry_after(bench: Bench, algorithm: str) -> None:
    wanted = hits(rule(algorithm))
    wait = bench.refused(wanted).retry_after

    assert bench.commands_during(lambda: [bench.limiter.check(wanted) for _ in range(10)]) == []
    bench.clock.advance(wait - 1 / SECOND)
    assert not bench.limiter.check(wanted).allowed
    bench.clock.advance(1 / SECOND)
    assert bench.limiter.check(wanted).allowed


def test_cached_refusal_counts_its_times_down_and_keeps_the_rest(bench: Bench) -> None:
    wanted = (*hits("2 per 8 seconds"), *hits("20 per 50 seconds"))
    first = bench.refused(wanted)

    bench.clock.advance(2.5)
    again = bench.limiter.check(wanted)

    assert not again.allowed
    assert again.hits is wanted or again.hits == wanted
    assert again.at == first.at + 2_500_000
    assert again.retry_after == 5.5
    assert [status.reset_after for status in again.statuses] == [5.5, 47.5]
    assert [status.remaining for status in again.statuses] == [0, 18]
    assert [status.name for status in again.violated] == ["user-8s"]
    assert again.decided_by not in FALLBACKS


def test_each_cached_refusal_has_its_own_id_and_no_charges(bench: Bench) -> None:
    wanted = hits()
    decisions = [bench.refused(wanted), bench.limiter.check(wanted), bench.limiter.check(wanted)]

    assert len({decision.id for decision in decisions}) == 3
    assert {decision.id.version for decision in decisions} == {4}
    assert [decision.charges for decision in decisions] == [(), (), ()]


def test_cached_refusal_still_names_the_rule_with_the_shorter_wait(bench: Bench) -> None:
    wanted = hits("2 per 3 seconds; 2 per 9 seconds")
    bench.refused(wanted)

    bench.clock.advance(5)
    again = bench.limiter.check(wanted)

    assert [(status.name, status.retry_after) for status in again.violated] == [
        ("user-3s", 1 / SECOND),
        ("user-9s", 4.0),
    ]
    assert again.retry_after == 4


@pytest.mark.parametrize(("cost", "waits"), [(1, (60, 50.000_001)), (6, (float("inf"),) * 2)], ids=["long", "endless"])
def test_storage_is_asked_again_when_the_time_of_the_cache_has_passed(
    bench: Bench, cost: int, waits: tuple[float, float]
) -> None:
    wanted = hits("5/minute", cost=cost)
    first = bench.refused(wanted)

    bench.clock.advance(9.999999)
    assert bench.commands_during(lambda: bench.limiter.check(wanted)) == []
    assert (first.retry_after, bench.limiter.check(wanted).retry_after) == waits
    bench.clock.advance(0.000001)
    assert bench.commands_during(lambda: bench.limiter.check(wanted)) == ["check"]
    assert bench.commands_during(lambda: bench.limiter.check(wanted)) == [], "the new refusal is cached like the first"


def test_cached_refusal_ends_by_the_time_of_the_check_and_not_of_its_reply(bench: Bench) -> None:
    wanted = hits("1 per 5 seconds")
    bench.limiter.check(wanted)
    bench.storage.meanwhile = lambda: bench.clock.advance(2)  # the reply takes two seconds
    refused = bench.limiter.check(wanted)
    bench.storage.meanwhile = lambda: None

    assert refused.retry_after == 5
    bench.clock.advance(2.999999)
    told = bench.limiter.check(wanted)
    assert not told.allowed
    assert told.retry_after == 5 - 2.999999, "a client that waits this long from the reply on must not come too early"
    bench.clock.advance(0.000001)
    assert bench.limiter.check(wanted).allowed


def test_cached_refusal_does_not_hold_after_its_clock_is_back(bench: Bench) -> None:
    bench.clock.advance(86_400)
    wanted = bench.refused(hits()).hits
    bench.clock.advance(-86_400)

    assert bench.commands_during(lambda: bench.limiter.check(wanted)) == ["check"]


def test_refusal_that_ended_before_its_reply_came_is_not_cached(bench: Bench) -> None:
    wanted = hits("1 per 5 seconds")
    bench.limiter.check(wanted)
    bench.storage.meanwhile = lambda: bench.clock.advance(5)
    bench.limiter.check(wanted)

    assert len(bench.cache) == 0


# Checks that still ask the storage


def test_a_check_with_another_subject_cost_or_rule_asks_the_storage(bench: Bench) -> None:
    bench.refused(hits("2/minute", cost=2))
    others = [
        hits("2/minute", cost=2, subject="bo"),
        hits("2/minute", cost=1),
        hits("3/minute", cost=2),
        hits("2/minute; 9/hour", cost=2),
        hits_for("2/minute", scope="api", subject="user:ada", cost=2, shadow=True),
    ]

    commands = [bench.commands_during(partial(bench.limiter.check, other)) for other in others]

    assert commands == [["check"]] * 5


def test_refusals_of_two_plans_that_share_a_rule_are_both_cached(bench: Bench) -> None:
    shared = hits("1/minute")
    first, second = (*shared, *hits("9/hour", scope="a")), (*shared, *hits("9/hour", scope="b"))
    bench.refused(first)
    bench.refused(second)

    assert bench.commands_during(lambda: [bench.limiter.check(first), bench.limiter.check(second)]) == []


def test_peeks_repeated_checks_and_check_many_ask_the_storage(bench: Bench) -> None:
    wanted = hits()
    refused = bench.refused(wanted)

    assert bench.commands_during(lambda: bench.limiter.peek(wanted)) == ["peek"]
    assert bench.commands_during(lambda: bench.limiter.check(wanted, check_id=refused.id)) == ["check"]
    assert bench.commands_during(lambda: bench.limiter.check_many([wanted, wanted])) == ["check", "check"]


def test_refusals_of_peeks_repeated_checks_and_check_many_are_not_cached(bench: Bench) -> None:
    wanted = hits("1/minute")
    taken = bench.limiter.check(wanted)
    bench.limiter.peek(wanted)
    bench.limiter.check_many([wanted])
    bench.limiter.check((*wanted, *hits("1/hour", scope="b")), check_id=taken.id)

    assert len(bench.cache) == 0


def test_refusal_by_a_shadow_alone_is_not_cached(bench: Bench) -> None:
    shadow = hits_for("1/minute", scope="api", subject="user:ada", shadow=True)
    decisions = [bench.limiter.check(shadow) for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True] * 3
    assert len(bench.cache) == 0


def test_longer_wait_of_a_shadow_does_not_prolong_a_cached_refusal(bench: Bench) -> None:
    wanted = (*hits("1 per 4 seconds"), *hits_for("1/minute", scope="s", subject="user:ada", shadow=True))
    assert bench.refused(wanted).retry_after == 4

    again = bench.limiter.check(wanted)
    assert [status.name for status in again.shadowed] == ["user-60s"]
    bench.clock.advance(4)
    assert bench.limiter.check(wanted).allowed


def test_refusal_by_a_full_queue_is_cached_until_there_is_room(bench: Bench) -> None:
    wanted = hits(Rule(10, 10, algorithm="leaky_bucket", max_delay=3))
    wait = bench.refused(wanted).retry_after

    assert bench.commands_during(lambda: bench.limiter.check(wanted)) == []
    assert bench.limiter.check(wanted).delay == 0
    bench.clock.advance(wait)
    assert bench.limiter.check(wanted).delay == 3


def test_refusal_by_the_fallback_is_not_cached(bench: Bench) -> None:
    guard = GuardedStorage(bench.storage, workers=1, clock=bench.clock)
    cache = DenyCache(guard, seconds=10, clock=bench.clock)
    limiter = Limiter(cache)
    wanted = hits("2/minute")
    bench.storage.error = StorageError("it is broken")

    decisions = [limiter.check(wanted) for _ in range(4)]

    assert [(decision.allowed, decision.decided_by) for decision in decisions][-1] == (False, "local")
    assert len(cache) == 0
    limiter.close()


def test_cached_refusal_holds_when_the_storage_fails(bench: Bench) -> None:
    guard = GuardedStorage(bench.storage, workers=1, clock=bench.clock, on_error="allow")
    limiter = Limiter(DenyCache(guard, seconds=10, clock=bench.clock))
    wanted = hits("1/minute")
    limiter.check(wanted)
    limiter.check(wanted)
    bench.storage.error = StorageError("it is broken")

    assert limiter.check(hits("1/minute", subject="bo")).decided_by == "allow"
    assert not limiter.check(wanted).allowed
    assert limiter.check(wanted).decided_by not in FALLBACKS
    limiter.close()


# Resets, refunds and settlements


def test_reset_of_another_subject_keeps_a_cached_refusal(bench: Bench) -> None:
    wanted, others = hits(), (hits(subject=name) for name in ("bo", "cy"))
    bench.refused(wanted)
    bench.clock.advance(1)
    shards = {hash(hit.key) % deny_cache.SHARDS for hit in wanted}
    bench.limiter.reset(next(each for each in others if hash(each[0].key) % deny_cache.SHARDS not in shards))

    assert bench.commands_during(lambda: bench.limiter.check(wanted)) == []


@pytest.mark.parametrize("how", ["reset", "settle"])
def test_refusal_that_overlaps_a_reset_or_refund_is_not_cached(bench: Bench, how: str) -> None:
    wanted = hits("1/minute")
    taken = bench.limiter.check(wanted)

    def in_between() -> None:
        bench.storage.meanwhile = lambda: None
        bench.clock.advance(0.001)
        bench.give_back(how, taken)
        bench.clock.advance(0.001)

    bench.storage.meanwhile = in_between
    assert not bench.limiter.check(wanted).allowed

    assert bench.limiter.check(wanted).allowed


@pytest.mark.parametrize("units", [0, 2, 9])
@pytest.mark.parametrize("algorithm", RATES)
def test_cached_refusal_is_dropped_at_once_by_a_settlement_in_this_process(
    bench: Bench, algorithm: str, units: int
) -> None:
    wanted = hits(rule(algorithm, 10, 5), cost=3)
    taken = bench.limiter.check(wanted)
    bench.refused(wanted)
    bench.clock.advance(0.001)
    bench.limiter.settle(taken, units)

    assert bench.limiter.check(wanted).allowed is (units <= 2)
    assert bench.limiter.check(wanted).retry_after == bench.limiter.peek(wanted).retry_after


def test_cached_refusal_ignores_a_settlement_in_another_process_for_a_second(clock: Clock) -> None:
    storage, wanted = MemoryStorage(clock), hits(cost=3)
    here, there = (Limiter(DenyCache(storage, clock=clock)) for _ in range(2))
    taken = here.check(wanted)
    assert not there.check(wanted).allowed

    here.settle(taken, 0)
    clock.advance(0.999)
    assert not there.check(wanted).allowed
    clock.advance(0.001)
    assert there.check(wanted).allowed


@pytest.mark.parametrize("how", ["reset", "settle"])
def test_refusal_cached_while_a_reset_or_refund_is_under_way_is_dropped(bench: Bench, how: str) -> None:
    """The refusal is answered before the reset or refund reaches the storage, and cached before it is done."""
    wanted = hits("1/minute")
    taken = bench.limiter.check(wanted)
    inner = getattr(MemoryStorage, how)

    def late(*arguments: Any) -> None:
        bench.clock.advance(0.001)
        assert not bench.limiter.check(wanted).allowed
        bench.clock.advance(0.001)
        inner(bench.storage, *arguments)

    setattr(bench.storage, how, late)
    bench.give_back(how, taken)

    assert bench.limiter.check(wanted).allowed


@pytest.mark.parametrize("how", ["reset", "settle"])
def test_cached_refusal_is_dropped_when_the_reply_to_a_reset_or_refund_is_lost(bench: Bench, how: str) -> None:
    wanted = hits("1/minute")
    taken = bench.limiter.check(wanted)
    bench.refused(wanted)
    bench.storage.error = StorageError("the answer was lost")
    with pytest.raises(StorageError):
        bench.give_back(how, taken)
    bench.storage.error = None

    assert bench.limiter.check(wanted).allowed


def test_thread_that_resets_its_quota_never_meets_an_old_refusal() -> None:
    limiter = Limiter(DenyCache(MemoryStorage(), seconds=60))

    def meet_no_old_refusal(number: int) -> None:
        own = hits("1/hour", subject=str(number))
        for _ in range(300):
            limiter.check(own)
            limiter.check(own)
            limiter.reset(own)
            assert limiter.peek(own).allowed
            assert limiter.check(own).allowed
            limiter.reset(own)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(meet_no_old_refusal, range(8)))


def test_acquire_waits_for_the_end_of_a_cached_refusal_and_is_admitted(bench: Bench) -> None:
    limiter = Limiter(bench.cache, sleep=bench.clock.advance, monotonic=lambda: bench.clock.now / SECOND)
    wanted = hits("1 per 7 seconds")
    limiter.check(wanted)
    limiter.check(wanted)
    bench.clock.advance(2)

    assert bench.commands_during(lambda: limiter.acquire(wanted, timeout=5)) == ["check"], (
        "only the check that is admitted"
    )
    assert bench.limiter.peek(wanted).remaining == 0


# The bound of the cache


def test_oldest_refusals_are_forgotten_beyond_the_bound(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deny_cache, "REMEMBERED", 10)
    clients = [hits("1/minute", subject=str(number)) for number in range(15)]
    for wanted in clients:
        bench.refused(wanted)

    assert len(bench.cache) == 10
    assert bench.commands_during(lambda: [bench.limiter.check(wanted) for wanted in clients[5:]]) == []
    assert bench.commands_during(lambda: bench.limiter.check(clients[0])) == ["check"]
    assert len(bench.cache) == 10


def test_renewed_refusal_is_forgotten_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deny_cache, "REMEMBERED", 2)
    ada, bo, cy = (hits("1/minute", subject=name) for name in ("ada", "bo", "cy"))
    bench.refused(ada)
    bench.clock.advance(5)
    bench.refused(bo)
    bench.clock.advance(5)
    bench.limiter.check(ada)  # the refusal has ended, so the storage is asked
    bench.refused(cy)

    assert bench.commands_during(lambda: bench.limiter.check(ada)) == []
    assert bench.commands_during(lambda: bench.limiter.check(bo)) == ["check"]


def test_refusals_that_have_ended_are_forgotten(bench: Bench) -> None:
    for number in range(20):
        bench.refused(hits("1 per 2 seconds", subject=str(number)))
    bench.clock.advance(2)
    for number in range(20, 40):
        bench.refused(hits("1/minute", subject=str(number)))

    assert len(bench.cache) == 20


def test_forked_child_can_use_the_cache_although_its_lock_was_held_at_the_fork(bench: Bench) -> None:
    wanted = hits("1/minute")
    bench.refused(wanted)

    def check_and_reset() -> bool:
        assert bench.commands_during(lambda: bench.limiter.check(wanted)) == []
        bench.limiter.reset(wanted)
        return bench.limiter.check(wanted).allowed

    with bench.cache._lock():
        of_child = forked(check_and_reset)
    assert of_child()


# The same answers with and without the cache


class Step(NamedTuple):
    what: str
    plan: int
    parts: int
    """Of a thousandth of the window, to let pass."""


PLANS = 6
EACH_ALGORITHM = [*((name, None) for name in RATES), ("leaky_bucket", 2.0)]
histories = settings(max_examples=150, derandomize="CI" in os.environ, suppress_health_check=list(HealthCheck))
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["check"] * 8 + ["pass"] * 3 + ["until"] * 2 + ["peek", "refund", "reset"]),
        st.integers(0, PLANS - 1),
        st.integers(1, 1500),
    ),
    max_size=60,
)


def plans_of(algorithm: str, max_delay: float | None) -> list[tuple[Hit, ...]]:
    """Different checks that share keys."""
    of_it = Rule(
        3, 4, algorithm=algorithm, burst=3 if algorithm in {"gcra", "token_bucket"} else None, max_delay=max_delay
    )
    own = Rule(7, 5)
    return [
        hits(of_it),
        hits(of_it, cost=2),
        hits(of_it, subject="bo"),
        (*hits(of_it), *hits(own, scope="other")),
        (*hits(own, scope="other"), *hits(of_it, cost=3)),
        (*hits(of_it), *hits_for(own, scope="other", subject="user:ada", shadow=True)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "max_delay"), EACH_ALGORITHM)
@given(history=steps)
@histories
def test_random_history_gets_the_same_answers_with_and_without_the_cache(
    algorithm: str, max_delay: float | None, history: list[Step]
) -> None:
    clock = Clock()
    without = Limiter(MemoryStorage(clock))
    with_it = Limiter(DenyCache(MemoryStorage(clock), seconds=2, clock=clock))
    plans = plans_of(algorithm, max_delay)
    taken: list[tuple[Decision, Decision]] = []
    wait = 0.0
    for what, plan, parts in history:
        if what == "pass":
            clock.advance(parts * 0.003)
        elif what == "until":
            clock.advance(wait)
        elif what == "reset":
            with_it.reset(plans[plan])
            without.reset(plans[plan])
        elif what == "refund" and taken:
            one, other = taken.pop()
            with_it.refund(one)
            without.refund(other)
        elif what in {"check", "peek"}:
            answer, expected = getattr(with_it, what)(plans[plan]), getattr(without, what)(plans[plan])
            assert answer.allowed == expected.allowed
            assert answer.at == expected.at
            # Other plans may have made the wait longer since; then the client is refused again, with the longer wait.
            assert answer.retry_after <= expected.retry_after
            assert answer.reply == expected.reply or not expected.allowed
            if expected.allowed and what == "check":
                taken.append((answer, expected))
            wait = expected.retry_after if expected.retry_after != float("inf") else 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "max_delay"), EACH_ALGORITHM)
@given(history=steps, cost=st.integers(1, 5))
@histories
def test_single_plan_gets_the_same_times_with_and_without_the_cache(
    algorithm: str, max_delay: float | None, history: list[Step], cost: int
) -> None:
    clock = Clock()
    without = Limiter(MemoryStorage(clock))
    with_it = Limiter(DenyCache(MemoryStorage(clock), seconds=2, clock=clock))
    of_it, own = plans_of(algorithm, max_delay)[3]
    wanted = (replace(of_it, cost=cost), own)
    for what, _, parts in history:
        if what != "check":
            clock.advance(parts * 0.003)
            continue
        answer, expected = with_it.check(wanted), without.check(wanted)
        assert answer.retry_after == expected.retry_after
        for ours, true in zip(answer.statuses, expected.statuses, strict=True):
            assert ours.retry_after == true.retry_after or (ours.retry_after, true.retry_after) == (1 / SECOND, 0)
            assert ours.reset_after == true.reset_after or (ours.reset_after, true.reset_after) == (1 / SECOND, 0)
            assert ours.remaining <= true.remaining
