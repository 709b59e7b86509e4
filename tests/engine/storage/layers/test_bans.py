"""Bans in the layers around a shared storage: each refusal is one strike, and a ban holds in every layer."""

from collections.abc import Iterator

import pytest

from flask_multilimit.engine import (
    Ban,
    Decision,
    DenyCache,
    GuardedStorage,
    Hit,
    Hits,
    LeasingStorage,
    Limiter,
    MemoryStorage,
    Rule,
    StorageError,
    hits_for,
)
from support.clock import Clock
from support.doubles import RecordingStorage
from support.waiting import until

BAN = Ban(after=3, within=600, time=3600)
PLAN = hits_for("1/minute", scope="login", subject="user:ada", ban=BAN)


def refused(limiter: Limiter, wanted: tuple[Hit, ...], times: int) -> list[Decision]:
    """Use up the quota, and be refused so many times."""
    while (decision := limiter.check(wanted)).allowed:
        pass
    return [decision, *(limiter.check(wanted) for _ in range(times - 1))]


def strikes_left(storage: MemoryStorage, wanted: tuple[Hit, ...]) -> int:
    """By the storage itself, without layers."""
    return storage.peek(wanted).bans[0].strikes_left


# The deny cache


@pytest.fixture
def cached(storage: RecordingStorage, clock: Clock) -> Limiter:
    return Limiter(DenyCache(storage, seconds=10, clock=clock))


def test_deny_cache_passes_on_every_strike_and_answers_during_the_ban(
    cached: Limiter, storage: RecordingStorage, clock: Clock
) -> None:
    decisions = refused(cached, PLAN, 3)
    asked = len(storage.checks)
    clock.advance(1)
    later = [cached.check(PLAN) for _ in range(5)]

    assert [decision.decided_by for decision in decisions] == ["memory"] * 3
    assert len(storage.checks) == asked == 4
    assert [decision.decided_by for decision in later] == ["deny_cache"] * 5
    assert [decision.retry_after for decision in later] == [3599] * 5


def test_deny_cache_passes_on_strikes_again_as_soon_as_a_ban_has_ended(
    cached: Limiter, storage: RecordingStorage, clock: Clock
) -> None:
    plan = hits_for("1/minute", scope="login", subject="user:ada", ban=Ban(after=3, within=600, time=5))
    refused(cached, plan, 4)
    clock.advance(5)

    decisions = refused(cached, plan, 2)

    assert [decision.ban for decision in decisions] == [None, None]
    assert strikes_left(storage, plan) == 1


def test_ban_that_the_deny_cache_answers_keeps_its_level_and_does_not_begin_again(
    cached: Limiter, clock: Clock
) -> None:
    plan = hits_for("1/minute", scope="login", subject="user:ada", ban=Ban(after=3, within=600, time=5))
    refused(cached, plan, 3)
    clock.advance(5)
    *_, completing = refused(cached, plan, 3)

    later = cached.check(plan)

    assert later.decided_by == "deny_cache"
    assert [(ban.level, ban.begun) for ban in (completing.ban, later.ban) if ban] == [(1, True), (1, False)]


def test_deny_cache_asks_again_after_its_time_whether_a_ban_still_holds(
    cached: Limiter, storage: RecordingStorage, clock: Clock
) -> None:
    refused(cached, PLAN, 3)
    storage.reset([hit.key for hit in PLAN])

    clock.advance(9.9)
    assert not cached.check(PLAN).allowed
    clock.advance(0.1)

    assert cached.check(PLAN).allowed


def test_deny_cache_answers_refusals_that_are_no_strikes(cached: Limiter, storage: RecordingStorage) -> None:
    plan = Hits((*hits_for("1/hour", scope="other", subject="user:ada"), *hits_for("9/minute", scope="login", ban=BAN)))
    decisions = refused(cached, plan, 5)
    assert len(storage.checks) == 2
    assert strikes_left(storage, plan) == 3
    assert [decision.bans[0].strikes_left for decision in decisions] == [3] * 5


def test_deny_cache_passes_on_strikes_of_a_shadow_until_its_ban_would_hold(cached: Limiter) -> None:
    shadow = hits_for("1/minute", scope="login", subject="user:ada", ban=BAN, shadow=True)
    plan = Hits((*hits_for("1/hour", scope="other", subject="user:ada"), *shadow))

    decisions = refused(cached, plan, 5)

    assert [decision.decided_by for decision in decisions] == ["memory"] * 3 + ["deny_cache"] * 2
    assert [decision.bans[0].holds for decision in decisions] == [False, False, True, True, True]


# Leases


@pytest.fixture
def leasing(storage: RecordingStorage, clock: Clock) -> Limiter:
    return Limiter(LeasingStorage(storage, clock=clock))


def leased(count: int = 20, *more: Rule, lease: int = 10) -> tuple[Hit, ...]:
    return hits_for([Rule(60, count, lease=lease), *more], scope="api", subject="user:ada", ban=BAN)


@pytest.mark.parametrize("plan", [leased(), Hits(reversed(leased()))], ids=["rule first", "ban first"])
def test_lease_saves_checks_of_the_storage_for_a_rule_with_a_ban(
    leasing: Limiter, storage: RecordingStorage, plan: tuple[Hit, ...]
) -> None:
    decisions = [leasing.check(plan) for _ in range(15)]
    assert all(decision.allowed for decision in decisions)
    assert len(storage.checks) == 4
    assert decisions[-1].bans[0].strikes_left == 3


def test_refused_lease_is_no_strike_when_the_check_itself_is_admitted(
    leasing: Limiter, storage: RecordingStorage
) -> None:
    elsewhere = hits_for(Rule(60, 20), scope="api", subject="user:ada", cost=12)
    for _ in range(7):
        leasing.check(leased())
    storage.check(elsewhere)  # one unit is left; the next lease would take 8

    assert leasing.check(leased()).allowed
    assert strikes_left(storage, leased()) == 3


@pytest.mark.parametrize(
    ("count", "spent_elsewhere", "asked"),
    [(20, 0, 1), (12, 4, 2)],
    ids=["lease would fit", "lease is refused, too"],
)
def test_refused_check_with_a_lease_is_one_strike(
    leasing: Limiter, storage: RecordingStorage, count: int, spent_elsewhere: int, asked: int
) -> None:
    plan = leased(count, Rule(3600, 7))
    for _ in range(7):
        assert leasing.check(plan).allowed
    storage.check(hits_for(Rule(60, count, lease=10), scope="api", subject="user:ada", cost=spent_elsewhere))
    before = len(storage.checks)

    assert not leasing.check(plan).allowed

    assert len(storage.checks) - before == asked
    assert strikes_left(storage, plan) == 2


def test_client_banned_by_another_process_spends_its_leased_units_and_no_more(
    storage: RecordingStorage, clock: Clock
) -> None:
    here, elsewhere = (Limiter(LeasingStorage(storage, clock=clock)) for _ in range(2))
    for _ in range(8):
        here.check(leased())  # 7 units of the lease are left
    banned = refused(elsewhere, leased(), 3)[-1]

    decisions = [here.check(leased()) for _ in range(10)]

    assert banned.ban is not None
    assert [decision.allowed for decision in decisions] == [True] * 7 + [False] * 3
    assert decisions[-1].ban is not None


def test_leased_units_are_not_spent_after_the_process_learns_of_a_ban(storage: RecordingStorage, clock: Clock) -> None:
    window = Rule(3600, 20, lease=10, algorithm="fixed_window")
    plan = hits_for([window, Rule(60, 20)], scope="api", subject="user:ada", ban=BAN)
    here = Limiter(LeasingStorage(storage, clock=clock))
    for _ in range(8):
        here.check(plan)
    refused(Limiter(storage), plan, 3)
    assert not here.check(plan).allowed

    only = hits_for(window, scope="api", subject="user:ada", ban=BAN)

    assert not here.check(only).allowed


# The guard


@pytest.fixture
def guarded(storage: RecordingStorage, clock: Clock) -> Iterator[Limiter]:
    limiter = Limiter(GuardedStorage(storage, workers=1, clock=clock))
    yield limiter
    storage.broken = False
    limiter.close()


def test_ban_holds_in_an_outage(guarded: Limiter, storage: RecordingStorage, clock: Clock) -> None:
    refused(guarded, PLAN, 3)
    storage.broken = True
    clock.advance(600)

    decision = guarded.check(PLAN)

    assert decision.decided_by == "local"
    assert not decision.allowed
    assert decision.retry_after == 3000
    assert decision.ban is not None
    assert (decision.ban.begun, decision.ban.level) == (False, 0)
    clock.advance(3000)
    assert guarded.check(PLAN).allowed


def test_check_refused_by_a_ban_alone_in_an_outage_charges_nothing(
    guarded: Limiter, storage: RecordingStorage, clock: Clock
) -> None:
    wide = hits_for("10/hour", scope="wide", subject="user:ada")
    plan = Hits((*wide, *PLAN))
    refused(guarded, plan, 3)
    storage.broken = True
    clock.advance(60)

    for _ in range(5):
        assert not guarded.check(plan).allowed

    assert guarded.peek(wide).remaining == 9


def test_no_ban_begins_in_an_outage(guarded: Limiter, storage: RecordingStorage) -> None:
    guarded.check(PLAN)
    storage.broken = True

    decisions = [guarded.check(PLAN) for _ in range(10)]

    assert not any(decision.allowed for decision in decisions)
    assert all(decision.ban is None and decision.bans[0].strikes_left == 3 for decision in decisions)


def test_ban_of_a_shadow_refuses_nothing_in_an_outage(guarded: Limiter, storage: RecordingStorage) -> None:
    shadow = hits_for("1/minute", scope="login", subject="user:ada", ban=BAN, shadow=True)
    for _ in range(4):
        guarded.check(shadow)
    storage.broken = True

    decision = guarded.check(shadow)

    assert decision.allowed
    assert decision.bans[0].holds


def test_checks_admitted_in_an_outage_are_charged_later_without_strikes(
    storage: RecordingStorage, guarded: Limiter
) -> None:
    plan = hits_for("10/minute", scope="login", subject="user:ada", ban=BAN)
    guarded.check(plan)
    storage.broken = True
    for _ in range(3):
        assert guarded.check(plan).allowed
    storage.broken = False
    until(lambda: guarded.health().state == "working")

    standing = storage.peek(plan)

    assert (standing.remaining, standing.bans[0].strikes_left) == (6, 3)


def test_policy_allow_admits_a_banned_subject_in_an_outage(storage: RecordingStorage, clock: Clock) -> None:
    limiter = Limiter(GuardedStorage(storage, on_error="allow", workers=1, clock=clock))
    refused(limiter, PLAN, 3)
    storage.broken = True

    decision = limiter.check(PLAN)

    assert (decision.allowed, decision.decided_by) == (True, "allow")
    assert decision.bans[0].strikes_left == 3
    storage.broken = False
    limiter.close()


def test_refused_check_whose_reply_was_lost_is_one_strike(clock: Clock) -> None:
    class Losing(RecordingStorage):
        loses = False

        def check(self, hits: tuple[Hit, ...], check_id: object = None) -> Decision:
            decision = super().check(hits, check_id)  # type: ignore[arg-type]
            if self.loses and check_id is None:
                raise StorageError("the reply was lost", no_reply=True, check_id=decision.id)
            return decision

    storage = Losing(clock)
    limiter = Limiter(GuardedStorage(storage, workers=1, clock=clock))
    limiter.check(PLAN)
    storage.loses = True

    decisions = [limiter.check(PLAN) for _ in range(3)]

    assert [decision.ban is not None for decision in decisions] == [False, False, True]
    assert decisions[-1].ban is not None
    assert decisions[-1].ban.begun
    limiter.close()
