"""Every fault against a guarded limiter: no errors, no extra units, nothing forgotten, and recovery."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from faults.world import FAULTS, Fault, World, new_world
from flask_multilimit.engine import Decision, GuardedStorage, Health, Limiter, RedisStorage, Rule, StorageError
from flask_multilimit.engine.hits import OnStorageError
from flask_multilimit.engine.storage.layers import outage
from support.bench import hits
from support.servers import Binary
from support.threads import in_threads, under_load
from support.waiting import PATIENCE, until

LIMIT = "10/minute"


@pytest.fixture(scope="module")
def shared_world(binary: Binary) -> Iterator[World]:
    with new_world(binary) as world:
        yield world


@pytest.fixture
def world(shared_world: World) -> World:
    shared_world.admin.flushall()
    return shared_world


def is_working(limiter: Limiter) -> bool:
    return limiter.health().state == "working"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_limits_apply_during_and_after_a_fault(
    fault: Fault, world: World, open_guarded: Callable[..., Limiter], changes: list[Health]
) -> None:
    limiter, plan = open_guarded(world.proxy.url, timeout=0.1 if fault.noticed else 10), hits(LIMIT)
    for _ in range(3):
        assert limiter.check(plan).allowed
    until(lambda: is_working(limiter) and len(changes) % 2 == 0)  # a busy machine may have answered late
    changes.clear()

    fault.begin(world)
    try:
        admitted = 0
        for _ in range(12):
            decision = limiter.check(plan)
            admitted += decision.allowed
            assert (decision.decided_by == "local") is fault.noticed
        failed = limiter.health()
    finally:
        fault.end(world)
    until(lambda: is_working(limiter) and len(changes) == 2 * fault.noticed)

    assert admitted == 7
    assert failed.state == ("failed" if fault.noticed else "working")
    assert [change.state for change in changes] == (["failed", "working"] if fault.noticed else [])
    assert limiter.health().pending == limiter.health().given_up == 0
    left = 3 if fault.forgets else 0
    assert sum(limiter.check(plan).allowed for _ in range(5)) == left
    until(lambda: world.admin.keys() == [plan[0].key.encode()])
    assert world.admin.pttl(plan[0].key) > 0


@pytest.mark.parametrize("policy", ["local", "deny"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_slots_are_free_again_after_a_fault(
    fault: Fault, policy: OnStorageError, world: World, open_guarded: Callable[..., Limiter]
) -> None:
    """A check without a reply may be charged, even later: its slots are released, admitted or not."""
    limiter = open_guarded(world.proxy.url, timeout=0.1, on_error=policy)
    plan = hits("2 at once")

    def work() -> None:
        with contextlib.suppress(StorageError), limiter.slot(plan):
            time.sleep(0.002)
        time.sleep(0.001)  # threads that only check would keep the lock from the thread that probes

    with under_load(work):
        time.sleep(0.2)
        fault.begin(world)
        time.sleep(0.5)
        fault.end(world)
        until(lambda: is_working(limiter))

    until(lambda: limiter.peek(plan).remaining == 2)


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_never_settles_twice_and_a_lost_settlement_leaves_the_estimate(
    fault: Fault, algorithm: str, world: World, open_guarded: Callable[..., Limiter]
) -> None:
    limiter, done = open_guarded(world.proxy.url, timeout=0.1), list[int]()
    less, more = (hits(Rule(86_400, 10**6, algorithm=algorithm), scope=scope, cost=10) for scope in ("less", "more"))

    def work() -> None:
        limiter.check(less)  # a settlement that is made twice would give back these units
        for plan, units in ((less, 0), (more, 35)):
            decision = limiter.check(plan)
            with contextlib.suppress(StorageError):  # of the first that fails; later ones wait for the storage
                limiter.settle(decision, units)
        done.append(1)
        time.sleep(0.01)

    with under_load(work):
        until(lambda: len(done) > 40)
        fault.begin(world)
        time.sleep(0.5)
        fault.end(world)
        time.sleep(0.5)
    until(lambda: is_working(limiter) and limiter.health().pending == 0)

    # Without an algorithm that keeps ids, the estimate of a check whose reply was lost may be charged once more.
    twice = 10 if algorithm == "fixed_window" else 0
    least = 0 if fault.forgets else 10 * (len(done) - limiter.health().given_up)
    assert least <= 10**6 - limiter.peek(less).remaining <= len(done) * 2 * (10 + twice)
    assert least <= 10**6 - limiter.peek(more).remaining <= len(done) * (35 + twice)


# Faults that are no outage


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long for the first attempt, and would not begin a second one then."""
    monkeypatch.setattr(outage, "PATIENCE", PATIENCE)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("algorithm", ["sliding_window", "token_bucket"])
def test_short_stall_of_the_server_is_no_outage(
    world: World,
    open_guarded: Callable[..., Limiter],
    changes: list[Health],
    algorithm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check is repeated after its deadline, and the server answers the second time."""
    limiter, plan = open_guarded(world.proxy.url, timeout=2), hits(Rule(3600, 10, algorithm=algorithm))
    limiter.check(plan)
    check, stall = RedisStorage.check, iter([world.server.suspend, world.server.resume])

    def stalled_check(*arguments: Any) -> Decision:
        next(stall)()
        return check(*arguments)

    monkeypatch.setattr(RedisStorage, "check", stalled_check)

    decision = limiter.check(plan)

    assert (decision.allowed, decision.decided_by, changes) == (True, "storage", [])
    assert limiter.peek(plan).remaining in ({8} if algorithm == "sliding_window" else {7, 8})


@pytest.mark.usefixtures("_patient")
def test_silently_cut_connections_are_no_outage(
    world: World, open_guarded: Callable[..., Limiter], changes: list[Health]
) -> None:
    limiter, together = open_guarded(world.proxy.url, timeout=2), threading.Barrier(4)
    world.proxy.begin("latency", seconds=0.05)  # so that each has a connection of its own
    in_threads(4, lambda: (together.wait(10), limiter.check(hits("10/hour"))))
    world.proxy.end()

    world.proxy.silence()
    decision = limiter.check(hits("10/hour"))

    assert (decision.remaining, decision.decided_by, changes) == (5, "storage", [])


@pytest.mark.parametrize("most", [1, 3])
def test_check_waits_for_a_free_connection(
    world: World, open_guarded: Callable[..., Limiter], changes: list[Health], most: int
) -> None:
    limiter = open_guarded(f"{world.proxy.url}?max_connections={most}", timeout=5)
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait(10)
        for _ in range(20):
            limiter.check(hits("1000/hour"))

    in_threads(8, ask)

    assert limiter.peek(hits("1000/hour")).remaining == 1000 - 160
    assert changes == []
    assert len(limiter.check_many([hits("1000/hour")] * 2)) == 2


def test_log_says_when_no_connection_becomes_free(world: World, caplog: pytest.LogCaptureFixture) -> None:
    storage = RedisStorage.from_url(f"{world.proxy.url}?max_connections=1", timeout=0.05)
    taken = storage.client.pubsub()
    taken.subscribe("news")
    limiter = Limiter(GuardedStorage(storage, workers=1))

    assert limiter.check(hits()).decided_by == "local"
    assert "Too many connections (more checks run at once than max_connections" in caplog.text
    taken.close()
    until(lambda: is_working(limiter))
    limiter.close()


def test_outage_ends_with_only_one_connection(
    world: World, open_guarded: Callable[..., Limiter], changes: list[Health]
) -> None:
    limiter, plan = open_guarded(f"{world.proxy.url}?max_connections=1", timeout=0.1), hits("10/hour")
    limiter.check(plan)
    world.proxy.begin("reset")
    for _ in range(3):
        assert limiter.check(plan).decided_by == "local"
    world.proxy.end()
    until(lambda: is_working(limiter) and len(changes) == 2)

    assert limiter.peek(plan).remaining == 6


def test_recovery_costs_one_probe_and_one_charge_for_each_check(
    world: World, open_guarded: Callable[..., Limiter]
) -> None:
    limiter, plan, many = open_guarded(world.proxy.url, timeout=5), hits("100000/hour"), 1000
    limiter.check(plan)
    world.proxy.begin("says", reply=b"-LOADING Redis is loading the dataset in memory\r\n")
    while_away = [limiter.check(plan).decided_by for _ in range(many)]
    world.admin.config_resetstat()

    world.proxy.end()
    after = list[str | None]()

    def works_after_a_check() -> bool:
        after.append(limiter.check(plan).decided_by)
        return is_working(limiter)

    until(works_after_a_check, every=0.001)  # what waits for the storage is bounded, and a fast machine would fill it

    assert set(while_away) == {"local"}
    assert after == sorted(after, key=lambda decided_by: decided_by == "storage"), "decided here after it was back"
    commands = [world.admin.info("commandstats")[f"cmdstat_{name}"] for name in ("eval", "evalsha")]
    asked = sum(each["calls"] - each["failed_calls"] for each in commands)  # the script of a probe may be new there
    assert asked == 1 + many + len(after)
    assert limiter.peek(plan).remaining == 100_000 - 1 - many - len(after)
