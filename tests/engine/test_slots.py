"""The keeper of slots releases them without waiting, repeats lost releases, and renews slots that are held."""

import gc
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import redis

from flask_multilimit.engine import (
    Concurrent,
    ConfigurationError,
    Decision,
    Hits,
    Layers,
    Limiter,
    MemoryStorage,
    RedisStorage,
    Rule,
    StorageError,
    hits_for,
    slots,
    threads,
)
from flask_multilimit.engine.slots import KEEPER, Keeper, slots_of
from flask_multilimit.engine.storage import Slot, Storage
from flask_multilimit.engine.storage.base import Lost, monotonic_microseconds
from support.doubles import failing, raising
from support.servers import Server
from support.threads import in_threads, interleaved
from support.waiting import SECONDS, until

THREE = hits_for(Concurrent(3), scope="reports")
SHORT = hits_for(Concurrent(3, timeout=1), scope="short")
CheckWhileItEnds = Callable[[Callable[[Limiter], Iterator[None]]], Limiter]


@pytest.fixture
def limiter(server: Server, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Limiter]:
    redis_client.delete(THREE[0].key)
    for name in ("CONFIRM_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(slots, name, 0.05)
    monkeypatch.setattr(KEEPER, "_silent_until", 0.0)
    limiter = Limiter(RedisStorage.from_url(server.url, timeout=10))
    yield limiter
    limiter.close()


def test_slot_block_cannot_be_entered_twice(limiter: Limiter) -> None:
    block = limiter.slot(THREE)

    with block, pytest.raises(ConfigurationError, match=r"limiter\.slot\(hits\) is for one block"), block:
        pass
    with pytest.raises(ConfigurationError, match=r"call slot\(\) again"), block:
        pass

    assert limiter.peek(THREE).remaining == 3
    assert len(KEEPER) == 0


def test_only_a_check_that_takes_slots_holds_them() -> None:
    keeper, storage, one = Keeper(), MemoryStorage(), hits_for(Concurrent(1), scope="reports")
    keeper.hold(storage, storage.peek(one))
    keeper.hold(storage, storage.check(one))

    keeper.hold(storage, storage.check(one))
    rate = hits_for("5/minute", scope="reports")
    keeper.hold(storage, storage.check(rate))
    keeper.hold(storage, storage.check((replace(one[0], shadow=True),)))
    keeper.hold(storage, storage.check((*hits_for(Concurrent(1), scope="exports", cost=0), *rate)))

    assert len(keeper) == 1
    keeper.forget_all(storage)


def test_slots_of_a_check_are_those_of_its_concurrent_rules() -> None:
    two = (*THREE, *SHORT)
    decision = MemoryStorage().check((*two, *hits_for("5/minute", scope="reports")))
    assert [slot.hit for slot in slots_of(decision)] == [*two]


def held_slots(limiter: Limiter, hits: Hits, many: int) -> list[Decision]:
    decisions = [limiter.check(hits) for _ in range(many)]
    for decision in decisions:
        limiter.hold(decision)
    return decisions


def test_only_one_of_several_threads_enters_a_shared_slot_block(limiter: Limiter) -> None:
    block = limiter.slot(THREE)
    ready = threading.Barrier(3)

    def work() -> str:
        ready.wait(SECONDS)
        try:
            with block:
                return "entered"
        except ConfigurationError:
            return "refused"

    assert sorted(in_threads(3, work)) == ["entered", "refused", "refused"]
    until(lambda: limiter.peek(THREE).remaining == 3)


@pytest.fixture(params=["when garbage is collected", "anywhere"])
def check_while_it_ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CheckWhileItEnds:
    """Makes a check in whose lock a generator ends that was dropped: in a cycle, or by another thread without the
    GIL."""
    anywhere = request.param == "anywhere"
    monkeypatch.setattr(threads, "ENDS_ANYWHERE", anywhere)
    cycles = list[Any]()

    def time_after_end() -> int:
        cycles.clear()
        if not anywhere:
            gc.collect()
        return monotonic_microseconds()

    def check(export: Callable[[Limiter], Iterator[None]]) -> Limiter:
        limiter = Limiter(MemoryStorage(time_after_end))
        cycle: list[Any] = [export(limiter)]
        next(cycle[0])
        cycle += [] if anywhere else [cycle]
        cycles.append(cycle)
        del cycle
        gc.disable()
        try:
            checking = threading.Thread(target=limiter.check, args=[SHORT], daemon=True)
            checking.start()
            checking.join(SECONDS)
        finally:
            gc.enable()
        assert not checking.is_alive(), "it waits for a lock that it holds itself"
        return limiter

    return check


def test_slot_of_a_dropped_generator_is_released_if_it_ends_inside_of_the_lock(
    check_while_it_ends: CheckWhileItEnds,
) -> None:
    def export(limiter: Limiter) -> Iterator[None]:
        with limiter.slot(THREE):
            yield

    limiter = check_while_it_ends(export)

    until(lambda: limiter.peek(THREE).remaining == 3)
    assert len(KEEPER) == 0


def test_charge_of_a_dropped_generator_is_settled_if_it_ends_inside_of_the_lock(
    check_while_it_ends: CheckWhileItEnds,
) -> None:
    hits, settled = hits_for("10/minute", scope="tokens", cost=5), list[Decision]()

    def export(limiter: Limiter) -> Iterator[None]:
        decision = limiter.check(hits)
        try:
            yield
        finally:
            settled.append(limiter.settle(decision, 2))

    limiter = check_while_it_ends(export)

    assert settled[0].remaining == 8
    until(lambda: limiter.peek(hits).remaining == 8)


@pytest.mark.parametrize("anywhere", [False, True])
def test_slot_of_a_generator_that_is_closed_is_free_at_once(monkeypatch: pytest.MonkeyPatch, *, anywhere: bool) -> None:
    monkeypatch.setattr(threads, "ENDS_ANYWHERE", anywhere)
    limiter = Limiter("memory://")

    def export() -> Generator[None, None, None]:
        with limiter.slot(THREE):
            yield

    exported = export()
    next(exported)
    exported.close()

    assert limiter.peek(THREE).remaining == 3


@pytest.mark.parametrize("taken_by", ["this process", "another process"])
def test_release_is_repeated_when_the_server_refuses_it(
    limiter: Limiter, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture, taken_by: str
) -> None:
    (slot,) = plan = hits_for(Concurrent(3), scope="reports", subject="user:zoe")
    decision = limiter.check(plan)
    if taken_by == "this process":
        limiter.hold(decision)
    redis_client.config_set("min-replicas-to-write", 1)
    try:
        limiter.release(decision)
        until(lambda: len(KEEPER) == 1)  # no other command reads the answer; the keeper does by itself
        assert redis_client.zcard(slot.key) == 1
    finally:
        redis_client.config_set("min-replicas-to-write", 0)

    until(lambda: redis_client.zcard(slot.key) == 0)
    until(lambda: len(KEEPER) == 0)
    assert "slots of rate_limit:{reports} could not be released" in caplog.text
    assert "zoe" not in caplog.text


def test_slots_held_before_leases_were_added_expire_after_the_limiter_closes(server: Server) -> None:
    limiter = Limiter(RedisStorage.from_url(server.url, timeout=10), layers=Layers(deny_cache=0))
    decision = limiter.check(THREE)
    limiter.hold(decision)
    limiter.check(hits_for(Rule(60, 100, lease=10), scope="leased"))

    limiter.close()

    assert not KEEPER.holds(decision)


def test_slot_released_before_the_limiter_closes_is_free(limiter: Limiter, redis_client: redis.Redis) -> None:
    with limiter.slot(THREE):
        pass
    limiter.close()

    assert redis_client.zcard(THREE[0].key) == 0
    assert len(KEEPER) == 0


def test_slot_that_was_refunded_is_not_held(limiter: Limiter, redis_client: redis.Redis) -> None:
    refunded = limiter.refund(limiter.check(THREE))
    limiter.hold(refunded)
    assert redis_client.zcard(THREE[0].key) == 0
    assert len(KEEPER) == 0


def test_leaving_a_slot_block_does_not_wait_for_the_server(
    limiter: Limiter, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CONFIRM_SECONDS", 30)
    with limiter.slot(THREE):
        redis_client.client_pause(60_000, all=False)
    assert redis_client.zcard(THREE[0].key) == 1, "the block has ended, and the server has not answered"
    redis_client.client_unpause()

    until(lambda: redis_client.zcard(THREE[0].key) == 0)


def test_releases_lost_together_are_repeated_at_once_and_logged_once(
    limiter: Limiter, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "RETRY_SECONDS", 3600)
    many = hits_for(Concurrent(40), scope="reports")
    held = held_slots(limiter, many, 40)
    redis_client.client_pause(60_000, all=False)
    try:
        for decision in held:
            limiter.release(decision)
        redis_client.client_kill_filter(_type="normal", skipme=True)
    finally:
        redis_client.client_unpause()

    until(lambda: "could not be released" in caplog.text)
    until(lambda: redis_client.zcard(many[0].key) == len(KEEPER) == 0)
    assert caplog.text.count("could not be released") == 1


@pytest.mark.parametrize("refunded", [1, 2])
def test_refunded_slots_are_free_and_others_held_until_the_block_ends(limiter: Limiter, refunded: int) -> None:
    two = [*hits_for(Concurrent(1), scope="reports"), *hits_for(Concurrent(1), scope="exports")]

    with limiter.slot(two) as decision:
        for hit in two[:refunded]:
            decision = limiter.refund(decision, [hit])  # noqa: PLW2901 - as an app does
        assert [limiter.peek([hit]).remaining for hit in two] == [1, refunded - 1]
        assert len(KEEPER) == 2 - refunded

    assert limiter.peek(two).remaining == 1
    assert len(KEEPER) == 0


class Renewing(MemoryStorage):
    """Records the slots that are renewed, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[bytes] = []
        self.commands: list[int] = []
        self.fails = False
        self.next_renewal_fails = False

    def renew(self, slots: Sequence[Slot]) -> None:
        self.commands.append(len(slots))
        if self.fails or self.next_renewal_fails:
            self.next_renewal_fails = False
            raise StorageError("away.", remedy="start the server")
        self.renewed += [slot.check_id for slot in slots]


def test_release_that_raises_does_not_prevent_other_releases() -> None:
    keeper, broken, sound = Keeper(), failing(TypeError("no attribute"), "release"), MemoryStorage()
    decisions = [storage.check(THREE) for storage in (sound, broken, sound)]
    for storage, decision in zip((sound, broken, sound), decisions, strict=True):
        keeper.hold(storage, decision)

    with pytest.raises(TypeError, match="no attribute"):
        keeper.release_all(decisions)

    assert sound.peek(THREE).remaining == 3
    keeper.forget_all(broken)
    assert len(keeper) == 0


@pytest.mark.parametrize(
    ("error", "lines"), [(StorageError("away"), 0), (TypeError("no attribute"), 3)], ids=["away", "bug"]
)
def test_release_that_fails_is_given_up_when_its_slots_have_expired(
    error: Exception, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, storage, releases = [0.0], MemoryStorage(), list[float]()

    def fail(*_: Any) -> None:
        releases.append(now[0])
        raise error if len(releases) > 1 else StorageError("away")

    monkeypatch.setattr(storage, "release", fail)
    keeper = keeper_at(now, monkeypatch)
    decision = storage.check(THREE)
    keeper.hold(storage, decision)
    keeper.release(decision)

    pending = list[int]()
    for now[0] in (0, 0.9, 1, 59, 60):
        keeper.renew_due()
        pending.append(len(keeper))

    assert releases == [0, 0, 1, 59]
    assert pending == [1, 1, 1, 0, 0]
    texts = ("Trying again until they expire", "TypeError: no attribute")
    assert [caplog.text.count(text) for text in texts] == [lines, lines]


class SoftTimeLimitError(Exception):
    """Raised by a signal handler, as by that of Celery."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SoftTimeLimitError])
def test_slot_whose_release_is_interrupted_is_released_by_the_thread(interrupt: type[BaseException]) -> None:
    class InterruptedAtFirst(MemoryStorage):
        def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
            if lost is not None:
                raise interrupt
            super().release(slots)

    keeper, storage = Keeper(), InterruptedAtFirst()
    decision = storage.check(THREE)
    keeper.hold(storage, decision)

    with pytest.raises(interrupt):
        keeper.release(decision)

    until(lambda: storage.peek(THREE).remaining == 3 and len(keeper) == 0)


def test_keeper_thread_survives_exceptions_of_its_calls(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "CONFIRM_SECONDS", 0.02)
    keeper, sound = Keeper(), Renewing()

    broken = failing(TypeError("no attribute"), "renew")
    keeper.hold(broken, broken.check(SHORT))
    keeper.hold(sound, sound.check(SHORT))

    keeper.call_soon(raising(KeyError))

    until(lambda: sound.renewed)
    assert "KeyError" in caplog.text
    assert caplog.text.count("could not renew slots (1): no attribute") == 1
    assert "TypeError: no attribute" in caplog.text, "the traceback of a bug"
    keeper.forget_all(broken)
    keeper.forget_all(sound)


class Slow(MemoryStorage):
    """Calls ``meanwhile`` during a renewal: before it is made, or after it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None
        self.renewal_is_made_first = False
        self.loses_the_answer = False

    def renew(self, slots: Sequence[Slot]) -> None:
        if self.renewal_is_made_first:
            super().renew(slots)
        self.meanwhile()
        if not self.renewal_is_made_first:
            super().renew(slots)
        if self.loses_the_answer:
            raise StorageError("no answer")


def keeper_at(now: list[float], monkeypatch: pytest.MonkeyPatch) -> Keeper:
    keeper = Keeper(clock=lambda: now[0])
    monkeypatch.setattr(keeper.beat, "wake", lambda _: None)  # so that only the test renews, and not the thread
    return keeper


@pytest.mark.parametrize("loses_the_answer", [False, True], ids=["answered", "answer lost"])
@pytest.mark.parametrize("renewal_is_made_first", [False, True], ids=["renewed last", "renewed first"])
@pytest.mark.parametrize("end", ["released", "refunded", "one of two refunded"])
def test_slot_given_back_during_its_renewal_stays_free(
    end: str, renewal_is_made_first: bool, loses_the_answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, storage = [0.0], Slow()
    keeper = keeper_at(now, monkeypatch)
    two = (*hits_for(Concurrent(3), scope="a", cost=2), *hits_for(Concurrent(1), scope="b"))
    decision, other = storage.check(two), storage.check(THREE)
    keeper.hold(storage, decision)
    keeper.hold(storage, other)
    storage.renewal_is_made_first, storage.loses_the_answer = renewal_is_made_first, loses_the_answer

    def give_back() -> None:
        keeper.forget_all(MemoryStorage())  # another limiter is closed
        if end == "released":
            keeper.release(decision)
            return
        charges = decision.charges if end == "refunded" else decision.charges[:1]
        storage.settle(decision.id, charges)
        keeper.forget(decision, {charge.hit.key for charge in charges})

    storage.meanwhile = give_back
    now[0] = 20
    keeper.renew_due()

    free = [3, 0] if end == "one of two refunded" else [3, 1]
    assert [status.remaining for status in storage.peek(two).statuses] == free
    assert storage.peek(THREE).remaining == 2
    assert len(keeper) == (2 if end == "one of two refunded" else 1)


@pytest.mark.parametrize("learns_at_once", [True, False])
def test_slot_stays_free_when_the_keeper_learns_of_its_refund_after_the_renewal(
    monkeypatch: pytest.MonkeyPatch, *, learns_at_once: bool
) -> None:
    now, storage = [0.0], Slow()
    keeper = keeper_at(now, monkeypatch)
    two = (*THREE, *hits_for(Concurrent(3), scope="exports"))
    decision = storage.check(two)
    keeper.hold(storage, decision)
    storage.meanwhile = lambda: storage.settle(decision.id, decision.charges)

    now[0] = 20
    keeper.renew_due()
    keeper.forget(decision, {two[0].key})
    release = storage.release

    def learn_of_the_other(slots: Sequence[Slot]) -> None:
        release(slots)
        if keeper.holds(decision):
            keeper.forget(decision, {two[1].key})

    monkeypatch.setattr(storage, "release", learn_of_the_other)
    if learns_at_once:
        keeper.forget(decision, {two[1].key})
    keeper.renew_due()
    keeper.renew_due()

    assert [status.remaining for status in storage.peek(two).statuses] == [3, 3]
    assert len(keeper) == 0


class Away(MemoryStorage):
    """Releases slots only when asked again."""

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        if lost is not None:
            raise StorageError("away")
        super().release(slots)


def test_slots_of_one_check_whose_releases_fail_in_two_threads_are_all_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, two = [0.0], (*THREE, *hits_for(Concurrent(3), scope="exports"))

    def due() -> tuple[Keeper, Storage, Decision]:
        now[0], storage, keeper = 0.0, Away(), keeper_at(now, monkeypatch)
        decision = storage.check(two)
        keeper.hold(storage, decision)
        now[0] = 20
        return keeper, storage, decision

    def refund_one_and_release(held: tuple[Keeper, Storage, Decision]) -> None:
        keeper, _, decision = held
        keeper.forget(decision, {two[0].key})
        keeper.renew_due()

    def release(held: tuple[Keeper, Storage, Decision]) -> None:
        held[0].release(held[2])

    for keeper, storage, _ in interleaved(due, refund_one_and_release, release, of=slots):
        keeper.renew_due()

        assert [status.remaining for status in storage.peek(two).statuses] == [3, 3]
        assert len(keeper) == 0


def test_storage_may_be_closed_before_its_releases_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def released() -> tuple[Keeper, MemoryStorage]:
        keeper, storage = keeper_at(now, monkeypatch), MemoryStorage()
        decision = storage.check(THREE)
        keeper.hold(storage, decision)
        keeper.release(decision)
        return keeper, storage

    for keeper, _ in interleaved(
        released, lambda held: held[0].renew_due(), lambda held: held[0].forget_all(held[1]), of=slots
    ):
        assert len(keeper) == 0


def test_slot_released_before_its_renewal_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, storage = [0.0], Renewing()
    keeper = keeper_at(now, monkeypatch)
    hits = hits_for(Concurrent(1000), scope="many")
    decisions = [storage.check(hits) for _ in range(501)]
    for decision in decisions:
        keeper.hold(storage, decision)
    renewed: list[int] = []

    def renew_then_release_all(slots: Sequence[Slot]) -> None:
        renewed.append(len(slots))
        keeper.release_all(decisions)

    monkeypatch.setattr(storage, "renew", renew_then_release_all)

    now[0] = 20
    keeper.renew_due()

    assert renewed == [500], "the last slot is released before the second command"
    assert storage.peek(hits).remaining == 1000


def test_slots_of_a_storage_closed_during_their_renewal_are_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    now, storage = [0.0], Slow()
    keeper = keeper_at(now, monkeypatch)
    keeper.hold(storage, storage.check(THREE))
    storage.meanwhile = lambda: keeper.forget_all(storage)

    now[0] = 20
    keeper.renew_due()

    assert storage.peek(THREE).remaining == 2, "the slot is left to expire"
    assert len(keeper) == 0


@pytest.mark.parametrize("lost", ["flushed", "expired"])
def test_renewal_restores_held_slots_that_the_server_lost(
    limiter: Limiter, redis_client: redis.Redis, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, are_lost = RedisStorage.renew, threading.Event()

    def renew_then(*call: Any) -> None:
        assert are_lost.wait(SECONDS)
        renew(*call)

    monkeypatch.setattr(RedisStorage, "renew", renew_then)
    with limiter.slot(SHORT), limiter.slot(SHORT):
        if lost == "flushed":
            redis_client.flushall()
        else:
            members: Any = redis_client.zrange(SHORT[0].key, 0, -1)
            redis_client.zadd(SHORT[0].key, dict.fromkeys(members, 1))
        assert limiter.peek(SHORT).remaining == 3

        are_lost.set()
        until(lambda: limiter.peek(SHORT).remaining == 1)
    until(lambda: not redis_client.exists(SHORT[0].key))


class Held(NamedTuple):
    """A slot with a timeout of 60 s, held from second 0 on."""

    keeper: Keeper
    storage: Renewing
    decision: Decision
    now: list[float]

    def renewals_at(self, second: float) -> int:
        self.now[0] = second
        self.keeper.renew_due()
        return len(self.storage.renewed)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    now, storage = [0.0], Renewing()
    keeper = keeper_at(now, monkeypatch)
    decision = storage.check(THREE)
    keeper.hold(storage, decision)
    return Held(keeper, storage, decision, now)


def test_slot_is_renewed_every_third_of_its_timeout_until_released(held: Held) -> None:
    assert [held.renewals_at(second) for second in (19, 20, 39, 40, 60)] == [0, 1, 1, 2, 3]
    held.keeper.release(held.decision)
    assert held.renewals_at(100) == 3
    assert set(held.storage.renewed) == {held.decision.check_id}


def test_thread_works_again_when_the_next_slot_is_due(held: Held) -> None:
    pauses = list[float | None]()
    for held.now[0] in (5, 20, 30):
        pauses.append(held.keeper._work())
    held.storage.fails, held.now[0] = True, 40
    pauses.append(held.keeper._work())
    held.keeper.release(held.decision)
    pauses += [held.keeper._work(), held.keeper._work()]

    assert pauses == [15, 20, 10, 1, slots.LINGER_SECONDS, None]


def test_failed_renewal_is_retried_after_a_second_and_logged_once(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    held.storage.fails = True
    assert [held.renewals_at(second) for second in (20, 20.5, 21, 22)] == [0, 0, 0, 0]
    assert caplog.text.count("could not renew slots (1): away (start the server). Trying again") == 1
    assert "Traceback" not in caplog.text

    held.storage.fails = False
    assert [held.renewals_at(second) for second in (22.5, 23, 42, 43)] == [0, 1, 1, 2]


def test_failed_renewal_of_a_short_slot_is_retried_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now, storage = [0.0], Renewing()
    held = Held(keeper_at(now, monkeypatch), storage, storage.check(SHORT), now)
    held.keeper.hold(storage, held.decision)
    storage.next_renewal_fails = True
    assert [held.renewals_at(second) for second in (0.4, 0.8)] == [0, 1]


def test_renewal_that_fails_again_after_a_success_is_logged_again(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    for held.storage.fails, second in ((True, 20), (False, 21), (True, 41)):
        held.renewals_at(second)
    assert caplog.text.count("could not renew slots") == 2


@pytest.fixture
def many(held: Held) -> Held:
    """1,200 slots, renewed from second 20 on."""
    held.keeper.release(held.decision)
    hits = hits_for(Concurrent(1200), scope="many")
    for _ in range(1200):
        held.keeper.hold(held.storage, held.storage.check(hits))
    return held


@pytest.mark.parametrize(
    ("fails", "renewed", "commands"),
    [
        ("none", [1200, 1200], [500, 500, 200]),
        ("the first", [700, 1200], [500, 500, 200, 500]),
        ("all", [0, 0], [500, 500, 200] * 2),
    ],
    ids=["no command fails", "the first command fails", "all commands fail"],
)
def test_command_renews_at_most_500_slots_and_failures_are_logged_once(
    many: Held, caplog: pytest.LogCaptureFixture, fails: str, renewed: list[int], commands: list[int]
) -> None:
    many.storage.next_renewal_fails, many.storage.fails = fails == "the first", fails == "all"

    assert [many.renewals_at(second) for second in (20, 21)] == renewed

    assert many.storage.commands == commands
    lines = [record.getMessage() for record in caplog.records]
    failed = 1200 - renewed[0]
    assert [line.partition(". ")[0] for line in lines] == [
        f"Rate limits: could not renew slots ({failed}): away (start the server)" for _ in range(min(failed, 1))
    ]


def test_each_unit_of_a_check_counts_towards_the_500_slots_of_a_command(held: Held) -> None:
    for cost in (200, 300, 1, 499, 600, 1):
        held.keeper.hold(held.storage, held.storage.check(hits_for(Concurrent(1000), scope=f"{cost}", cost=cost)))
    held.keeper.release(held.decision)

    held.renewals_at(20)

    assert held.storage.commands == [2, 2, 1, 1]
