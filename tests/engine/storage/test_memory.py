"""MemoryStorage: which subjects it forgets, how many keys it keeps, and threads that use it at once."""

import logging
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.engine import Ban, Concurrent, Layers, Limiter, MemoryStorage, Rule, hits_for
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.decision import Charge
from flask_multilimit.engine.hits import Hit, Hits
from flask_multilimit.engine.rules import Rules
from flask_multilimit.engine.storage.base import Slot
from flask_multilimit.engine.storage.forgetting import MOST_LOOKS, Forgetting
from flask_multilimit.serve.gate import gate_of
from support.bench import exhaust, hits, rule
from support.clock import Clock
from support.rates import RATES
from support.waiting import SECONDS, until

MINUTE = Rule(60, 5)

each_algorithm = pytest.mark.parametrize("algorithm", RATES)


@pytest.fixture
def storage(clock: Clock) -> MemoryStorage:
    return MemoryStorage(clock)


@pytest.fixture
def limiter(storage: MemoryStorage) -> Limiter:
    return Limiter(storage)


@each_algorithm
def test_new_subjects_do_not_pile_up_in_memory(
    limiter: Limiter, storage: MemoryStorage, clock: Clock, algorithm: str
) -> None:
    most = 0
    for n in range(2_000):
        limiter.check(hits(rule(algorithm, 1, 5), subject=str(n)))
        clock.advance(0.0025)
        most = max(most, len(storage))

    assert most <= 2 * 400 + 2


def test_expired_charges_of_a_busy_subject_do_not_pile_up_in_memory(limiter: Limiter, clock: Clock) -> None:
    plan = hits(rule("sliding_window", 10, 100))

    def check(times: int) -> None:
        for _ in range(times):
            limiter.check(plan)
            clock.advance(0.1)

    tracemalloc.start()
    try:
        check(1_000)
        before, _ = tracemalloc.get_traced_memory()
        check(5_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100_000


@each_algorithm
def test_keys_of_long_windows_do_not_keep_those_of_short_windows(
    limiter: Limiter, storage: MemoryStorage, clock: Clock, algorithm: str
) -> None:
    for n in range(500):
        limiter.check(hits([rule(algorithm, 1, 5), rule(algorithm, 86_400, 5)], subject=str(n)))
    clock.advance(2)

    for _ in range(500):
        limiter.check(hits(rule(algorithm, 86_400, 5)))

    assert len(storage) == 501


@each_algorithm
def test_refused_checks_and_peeks_store_no_key(limiter: Limiter, storage: MemoryStorage, algorithm: str) -> None:
    exhaust(limiter, hits("1/minute"))

    for n in range(100):
        limiter.check(hits("1/minute") + hits(rule(algorithm), subject=str(n)))
        limiter.peek(hits(rule(algorithm), subject=str(n)))

    assert len(storage) == 1


@each_algorithm
def test_subject_is_not_forgotten_early_when_its_rule_changes(limiter: Limiter, clock: Clock, algorithm: str) -> None:
    """A quota that is full under the old rule need not be full under the new one."""
    remembering = Limiter(MemoryStorage(clock))
    burst = 1 if "burst" in ALGORITHMS[algorithm].PARAMETERS else None
    old, new = hits(Rule(10, 5, algorithm=algorithm, burst=burst)), hits(rule(algorithm, 10, 5))
    for each in (limiter, remembering):
        each.check(old)
        for _ in range(4):
            each.check(new)
    clock.advance(3)

    for _ in range(100):
        limiter.check(hits(MINUTE, subject="another"))

    assert limiter.peek(new).reply == remembering.peek(new).reply


def test_key_that_is_reset_repeatedly_is_stored_once(limiter: Limiter, storage: MemoryStorage, clock: Clock) -> None:
    """Also in the list of keys to look at, which other checks would have to work off."""
    often, other = hits(MINUTE, subject="often"), hits(MINUTE, subject="other")

    def play(many: int) -> None:
        for _ in range(many):
            limiter.reset(often)
            limiter.check(often)
            clock.advance(1)
            for _ in range(10):
                limiter.check(other)

    play(200)
    tracemalloc.start()
    try:
        play(2000)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert len(storage) == 2
    assert grown < 100_000  # 2000 entries of that list would take three times as much


def forget_all_that_has_passed(limiter: Limiter, clock: Clock) -> None:
    clock.advance(61)
    for _ in range(100):
        limiter.check(hits("5/minute", subject="another"))


@each_algorithm
def test_debts_of_new_subjects_do_not_pile_up_in_memory(
    limiter: Limiter, storage: MemoryStorage, clock: Clock, algorithm: str
) -> None:
    for n in range(100):
        plan = hits_for(rule(algorithm, 1, 5), scope="api", subject=f"user:{n}", cost=0, settle=True)
        limiter.settle(limiter.check(plan), 2)
    assert len(storage) == 100

    forget_all_that_has_passed(limiter, clock)

    assert len(storage) == 1


def test_renewed_slots_that_had_been_lost_do_not_pile_up_in_memory(
    limiter: Limiter, storage: MemoryStorage, clock: Clock
) -> None:
    storage.renew([Slot(uuid4().bytes, hits(Concurrent(2, 30), subject=str(n))[0]) for n in range(100)])
    assert len(storage) == 100

    forget_all_that_has_passed(limiter, clock)

    assert len(storage) == 1


def test_reset_release_and_refund_of_forgotten_keys_store_nothing(storage: MemoryStorage) -> None:
    ((charged,), (slot,)) = (hits("5/minute"), hits(Concurrent(2, 30)))

    storage.reset([charged.key])
    storage.release([Slot(uuid4().bytes, slot)])
    storage.settle(uuid4(), [Charge(charged, 0, 0)])

    assert len(storage) == 0


def test_key_is_not_listed_after_its_reset(limiter: Limiter, storage: MemoryStorage) -> None:
    limiter.check(hits("5/minute"))
    limiter.reset(hits("5/minute"))
    assert storage.keys("") == []


def test_debt_does_not_count_after_the_clock_stepped_back_before_it(limiter: Limiter, clock: Clock) -> None:
    decision = limiter.check(hits("10/minute"))
    clock.advance(10)
    limiter.settle(decision, 4)

    clock.advance(-5)

    assert limiter.check(hits("10/minute")).remaining == 8


# The bound of keys

FEW = 1000
FLOOD = 3 * FEW // 2


@pytest.fixture
def full(clock: Clock) -> Limiter:
    return Limiter(MemoryStorage(clock, most_keys=FEW))


def kept(limiter: Limiter) -> int:
    assert isinstance(limiter.storage, MemoryStorage)
    return len(limiter.storage)


def flood(limiter: Limiter, rules: Rules, clock: Clock, *, many: int = FLOOD, start: int = 0) -> None:
    """One unit each for subjects that have never been seen before."""
    for n in range(start, start + many):
        assert limiter.check(hits_for(rules, scope="api", subject=f"user:invented {n}")).allowed
        clock.advance(0.001)


@each_algorithm
def test_subject_whose_quota_is_full_again_first_is_forgotten_first(
    full: Limiter, clock: Clock, algorithm: str
) -> None:
    early, late = hits(rule(algorithm, 60, 5), subject="early"), hits(rule(algorithm, 60, 5), subject="late")
    full.check(early)
    clock.advance(1)
    flood(full, rule(algorithm, 60, 5), clock, many=FEW - 2)
    for _ in range(2):
        full.check(late)

    flood(full, rule(algorithm, 60, 5), clock, many=FEW // 2, start=FEW)

    assert [full.peek(each).remaining for each in (early, late)] == [5, 3]


def test_subject_that_came_back_late_is_not_forgotten_first(full: Limiter, clock: Clock) -> None:
    goes_on = hits("5/minute", subject="goes on")
    full.check(goes_on)
    flood(full, "5/minute", clock, many=FEW - 1)
    full.check(goes_on)

    flood(full, "5/minute", clock, many=FEW // 2, start=FEW)

    assert full.peek(goes_on).remaining == 3


@each_algorithm
@pytest.mark.parametrize(("count", "costs"), [(5, [1]), (7, [5]), (7, [1, 5])])
def test_flood_of_subjects_does_not_lift_a_refusal(
    full: Limiter, clock: Clock, algorithm: str, count: int, costs: list[int]
) -> None:
    limit = rule(algorithm, 60, count)
    for cost in costs:
        refused = hits(limit, subject="attacker", cost=cost)
        full.check(refused)
    exhaust(full, refused)

    flood(full, limit, clock)

    assert not full.check(refused).allowed


def test_flood_of_subjects_does_not_lift_a_ban(full: Limiter, clock: Clock) -> None:
    banned = hits_for("5/second", scope="api", subject="user:attacker", ban=Ban(after=2, within=60, time=30))
    for _ in range(7):
        full.check(banned)

    flood(full, "5/minute", clock)
    clock.advance(20)
    flood(full, "5/hour", clock)

    assert full.check(banned).ban is not None


def test_flood_of_subjects_does_not_free_slots_in_use(full: Limiter, clock: Clock) -> None:
    busy = hits(Concurrent(2, 30), subject="attacker")
    exhaust(full, busy)
    flood(full, "5/minute", clock)
    assert not full.check(busy).allowed


def test_flood_of_refused_subjects_leaves_limits_of_shorter_windows_in_force(full: Limiter, clock: Clock) -> None:
    """Otherwise the key of a minute would always be the first to be forgotten, and its limit would never refuse."""
    flood(full, "1/day", clock, many=2 * FEW)

    minute = hits("5/minute")
    for n in range(20):
        full.check(minute)
        flood(full, "1/day", clock, many=n, start=(2 + n) * FEW)

    assert not full.check(minute).allowed
    assert kept(full) <= FEW * 9 // 8


@each_algorithm
@pytest.mark.parametrize("windows", [(60,), (60, 3600), (3600, 60)], ids=str)
@pytest.mark.parametrize("time", [60, 40])
def test_new_subject_is_limited_when_memory_is_full_of_refused_subjects(
    full: Limiter, clock: Clock, algorithm: str, windows: tuple[int, ...], time: int
) -> None:
    """Otherwise the key of a new subject would be the only one that admits, so always the first to be forgotten."""
    for window in windows:
        flood(full, rule(algorithm, window, 1), clock)
    new = hits(rule(algorithm, time, 3), subject="new")
    for n in range(3):
        assert full.check(new).allowed
        if n < 2:
            flood(full, rule(algorithm, 60, 1), clock, many=3, start=FLOOD + 3 * n)

    assert not full.check(new).allowed
    assert kept(full) <= FEW * 9 // 8


def test_new_subject_is_banned_when_memory_is_full_of_refused_subjects(full: Limiter, clock: Clock) -> None:
    flood(full, "1/hour", clock, many=2 * FEW)
    guesses = hits_for("3/hour", scope="api", subject="user:guesser", ban=Ban(after=3, within=600, time=7200))
    assert [full.check(guesses).allowed for _ in range(9)] == [True] * 3 + [False] * 6
    assert full.check(guesses).ban is not None


def test_refused_subject_that_is_admitted_again_first_is_forgotten_first(full: Limiter, clock: Clock) -> None:
    flood(full, "1/minute", clock, many=2 * FEW)

    refused = [
        n
        for n in range(2 * FEW)
        if not full.peek(hits_for("1/minute", scope="api", subject=f"user:invented {n}")).allowed
    ]

    assert refused[-1] == 2 * FEW - 1
    assert refused == list(range(refused[0], 2 * FEW))
    assert FEW <= len(refused) <= FEW * 9 // 8


def test_subjects_that_are_no_longer_refused_make_room(full: Limiter, clock: Clock) -> None:
    flood(full, "1/minute", clock, many=2 * FEW)
    clock.advance(61)

    for _ in range(2 * FEW):
        full.check(hits("9999/minute"))

    assert kept(full) == 1


def test_check_looks_at_a_bounded_number_of_keys_to_forget() -> None:
    """Each key was written again since it was listed, and every second one refuses."""

    class Keys:
        asked = 0

        def reset_after(self, key: str, now: int) -> int:  # noqa: ARG002
            Keys.asked += 1
            return 10_000_000 + int(key)

        def refuses_for(self, key: str, now: int) -> int:  # noqa: ARG002
            return 5_000_000 * (int(key) % 2)

    forgetting, gone, most_asked, most = Forgetting(FEW), 0, 0, 0
    for n in range(5 * FEW):
        forgetting.add(str(n), 60_000_000, due=n)
        Keys.asked = 0
        gone += len(forgetting.surplus(Keys(), 0))
        most_asked, most = max(most_asked, Keys.asked), max(most, n + 1 - gone)

    assert most_asked <= MOST_LOOKS
    assert most <= FEW * 9 // 8


@pytest.mark.parametrize(
    "made",
    [
        lambda: Limiter("memory://", layers=Layers(memory_keys=FEW)),
        lambda: limiter_of(MULTILIMIT_MEMORY_KEYS=FEW),
    ],
    ids=["layers", "setting"],
)
def test_bound_of_keys_can_be_set(made: Callable[[], Limiter]) -> None:
    limiter = made()
    for n in range(FLOOD):
        limiter.check(hits("5/minute", subject=str(n)))
    assert kept(limiter) == FEW


def test_full_memory_is_one_warning_that_is_logged_outside_the_lock(caplog: pytest.LogCaptureFixture) -> None:
    limiter, asked = Limiter(MemoryStorage(most_keys=FEW), layers=Layers()), list[bool]()

    class AsksToo(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "memory is full" in record.getMessage():
                asking = pool.submit(limiter.check, hits("1/minute"))
                asked.append(asking.result(SECONDS).allowed)  # it would wait for ever if the lock were held

    handler = AsksToo()
    logging.getLogger("flask_multilimit").addHandler(handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            for n in range(FLOOD):
                limiter.check(hits("5/minute", subject=str(n)))
            until(lambda: asked)
    finally:
        logging.getLogger("flask_multilimit").removeHandler(handler)

    assert asked == [True]
    assert caplog.text.count("memory is full (1000 keys)") == 1


def limiter_of(**settings: Any) -> Limiter:
    app = Flask("shop")
    app.config.update(settings)
    MultiLimit(app)
    return gate_of(app).limiter


@pytest.fixture
def _frequent_thread_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@each_algorithm
@pytest.mark.usefixtures("_frequent_thread_switches")
def test_threads_are_admitted_exactly_the_count_together(limiter: Limiter, algorithm: str) -> None:
    plan = hits([rule(algorithm, 60, 500), rule(algorithm, 120, 400)])

    with ThreadPoolExecutor(8) as pool:
        admitted = sum(pool.map(lambda _: sum(limiter.check(plan).allowed for _ in range(100)), range(8)))

    assert admitted == 400
    assert [status.remaining for status in limiter.peek(plan).statuses] == [100, 0]


@each_algorithm
@pytest.mark.usefixtures("_frequent_thread_switches")
def test_threads_can_refund_reset_and_forget_at_once(
    limiter: Limiter, storage: MemoryStorage, clock: Clock, algorithm: str
) -> None:
    def work(thread: int) -> None:
        for n in range(200):
            plan = hits(rule(algorithm, 0.001, 5), subject=str(n % 7))
            limiter.refund(limiter.check(plan))
            clock.now += 100
            if n % 50 == thread:
                limiter.reset(plan)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    clock.advance(1)
    for _ in range(100):
        limiter.check(hits("5/minute"))
    assert len(storage) == 1


@pytest.mark.parametrize("seed", range(10))
def test_check_with_its_own_id_gets_the_same_reply_as_one_without(clock: Clock, seed: int) -> None:
    """A check with an id of its own is charged rule by rule, any other in one go. Some plans count one key in two
    windows, or have a shadow, many entries have expired, settlements leave debts, and the clock steps back."""
    draw = random.Random(seed)
    in_one_go, one_by_one = Limiter(MemoryStorage(clock)), Limiter(MemoryStorage(clock))
    plans = [
        hits("20/second; 9 per 2 seconds; 300/minute"),
        hits("9 per 2 seconds; 300/minute"),
        Hits([Hit("two windows", Rule(1, 9))]),
        Hits([Hit("two windows", Rule(2, 12))]),
        Hits([Hit("tried", Rule(1, 2), shadow=True), Hit("two windows", Rule(2, 12))]),
    ]
    for _ in range(400):
        plan = draw.choice(plans)
        decisions = in_one_go.check(plan), one_by_one.check(plan, check_id=uuid4())
        assert decisions[0].reply == decisions[1].reply
        if draw.random() < 0.05:
            in_one_go.settle(decisions[0], 4)
            one_by_one.settle(decisions[1], 4)
        clock.now += draw.choices([0, 1, 100_000, 300_000, 3_000_000, -1, -700_000], [4, 4, 8, 8, 1, 1, 1])[0]


def test_refusal_shows_a_quota_as_full_whose_only_unit_was_refunded(limiter: Limiter) -> None:
    plan = hits("20/minute; 1/hour")
    limiter.refund(limiter.check(plan), plan[:1])
    refused = limiter.check(plan)
    assert [(status.remaining, status.reset_after) for status in refused.statuses] == [(20, 0), (0, 3600)]


def test_quota_that_was_empty_when_another_refused_counts_from_its_next_charge(limiter: Limiter, clock: Clock) -> None:
    plan = hits("1/minute; 2/hour")
    other = hits("2/hour")
    limiter.refund(limiter.check(plan))
    in_use = [limiter.check(other), limiter.check(other)]
    assert not limiter.check(plan).allowed
    limiter.refund(in_use[0])
    clock.advance(50)

    assert limiter.check(plan).statuses[0].reset_after == 60
    assert limiter.check(plan).statuses[0].retry_after == 60
