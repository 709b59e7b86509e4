"""Calendar quotas on every storage: mixed with other rules in one atomic check, exact at the boundary of a period."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from math import inf
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
import redis

from engine.test_periods import hour_at, local_time, number_of
from flask_multilimit.engine import Ban, Calendar, Concurrent, Limiter, MemoryStorage, RedisStorage, Rule, hits_for
from flask_multilimit.engine.periods import Period, Periods
from support.bench import Bench, hits
from support.clock import SECOND, Clock
from support.server_clock import ServerClock, scripts_read_clock_of_test

BERLIN = ZoneInfo("Europe/Berlin")
MONTH = Calendar(3, "month", timezone="Europe/Berlin", anchor=15)
HOUR = 3_600 * SECOND


def at(text: str, zone: ZoneInfo = BERLIN) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * SECOND


def test_calendar_with_other_rules_is_charged_all_or_nothing(bench: Bench) -> None:
    bench.clock.now = at("2026-11-20")
    rules = [MONTH, Rule(60, 2), Concurrent(5), Calendar(4, "day"), Rule(10, 5, algorithm="gcra", burst=5)]
    wanted = hits(rules)
    assert [bench.limiter.check(wanted).allowed for _ in range(3)] == [True, True, False]

    remaining = [status.remaining for status in bench.limiter.peek(wanted).statuses]
    assert remaining == [1, 0, 3, 2, 3]

    bench.clock.advance(60)
    assert bench.limiter.check(wanted).allowed
    refused = bench.limiter.check(wanted)
    assert [status.allowed for status in refused.statuses] == [False, True, True, True, True]
    assert refused.retry_after == (at("2026-12-15") - bench.clock.now) / SECOND


@pytest.mark.parametrize("period", ["day", "week", "month", "year"])
def test_period_that_began_before_1970_counts(bench: Bench, period: Period) -> None:
    """A machine without a clock of its own boots in 1970."""
    bench.clock.now = 20 * SECOND
    wanted = hits(Calendar(2, period, timezone="Europe/Berlin"))
    assert [bench.limiter.check(wanted).allowed for _ in range(3)] == [True, True, False]


def test_refusals_of_a_calendar_are_strikes_of_a_ban(bench: Bench) -> None:
    bench.clock.now = at("2026-11-20")
    wanted = hits_for(
        Calendar(1, "day"),
        scope="api",
        subject="user:ada",
        ban=Ban(after=2, within=60, time=2 * 86_400, factor=1, most=2 * 86_400),
    )
    assert [bench.limiter.check(wanted).allowed for _ in range(3)] == [True, False, False]

    bench.clock.advance(86_400)
    assert not bench.limiter.check(wanted).allowed


def test_cost_is_charged_whole_and_one_above_the_count_never_passes(bench: Bench) -> None:
    assert bench.limiter.check(hits(MONTH, cost=2)).remaining == 1
    assert not bench.limiter.check(hits(MONTH, cost=2)).allowed
    assert bench.limiter.check(hits(MONTH, cost=4)).retry_after == float("inf")


def test_changed_count_applies_to_used_units(bench: Bench) -> None:
    bench.limiter.check(hits(MONTH, cost=3))
    more = Calendar(10, "month", timezone="Europe/Berlin", anchor=15)
    assert bench.limiter.check(hits(more)).remaining == 6
    assert bench.limiter.peek(hits(MONTH)).remaining == 0


def test_each_period_zone_and_anchor_has_its_own_quota(bench: Bench) -> None:
    others = [
        Calendar(3, "month", timezone="Europe/Berlin"),
        Calendar(3, "month", timezone="Europe/Paris", anchor=15),
        Calendar(3, "year", timezone="Europe/Berlin"),
        Calendar(3, "month", timezone="America/Argentina/ComodRivadavia", anchor=31),
        Calendar(3, "month", timezone="America/Argentina/Catamarca", anchor=31),
    ]
    bench.limiter.check(hits(MONTH, cost=3))

    for other in others:
        assert bench.limiter.check(hits(other, cost=3)).allowed


def test_settlement_counts_in_the_period_of_the_charge(bench: Bench) -> None:
    bench.clock.now = at("2026-11-14 23:00")
    old = bench.limiter.check(hits(MONTH, cost=3))
    bench.limiter.settle(old, 1)
    assert bench.limiter.peek(hits(MONTH)).remaining == 2

    late = bench.limiter.check(hits(MONTH, cost=2))
    bench.clock.now = at("2026-11-15 00:01")
    assert bench.limiter.check(hits(MONTH)).remaining == 2
    bench.limiter.refund(late)
    assert bench.limiter.peek(hits(MONTH)).remaining == 2, "units of a past period are not returned"


def test_check_without_an_estimate_passes_while_a_unit_is_free(bench: Bench) -> None:
    bench.clock.now = at("2026-11-14 23:00")
    wanted = hits_for(MONTH, scope="api", subject="user:ada", cost=0, settle=True)
    decision = bench.limiter.check(wanted)
    assert decision.allowed
    settled = bench.limiter.settle(decision, 7)
    (status,) = settled.statuses
    assert (status.remaining, status.debt, status.reset_after) == (0, 4, 3_600.0)

    refused = bench.limiter.check(wanted)
    assert (refused.allowed, refused.retry_after) == (False, 3_600.0)
    assert refused.statuses[0].remaining == 0
    bench.clock.advance(3_600)
    assert bench.limiter.check(wanted).allowed


def test_refund_after_a_reset_takes_units_of_others_as_documented(bench: Bench) -> None:
    decision = bench.limiter.check(hits(MONTH, cost=2))
    bench.limiter.reset(hits(MONTH))
    bench.limiter.check(hits(MONTH, cost=3))

    bench.limiter.refund(decision)

    assert bench.limiter.peek(hits(MONTH)).remaining == 2


def test_check_many_counts_each_check(bench: Bench) -> None:
    decisions = bench.limiter.check_many([hits(MONTH), hits(Rule(60, 5)), hits(MONTH, cost=2), hits(MONTH)])
    assert [decision.allowed for decision in decisions] == [True, True, True, False]


def test_key_expires_an_hour_after_its_period(bench: Bench) -> None:
    bench.clock.now = at("2026-11-14 23:00")
    bench.limiter.check(hits(MONTH))

    if bench.client is not None:
        in_test = 3_600_000  # keys of tests live longer by this, because the server has a clock of its own
        (key,) = bench.keys()
        assert 2 * 3_600_000 < bench.client.pttl(key) <= 2 * 3_600_000 + in_test


# A clock that steps back


def test_clock_step_back_over_a_boundary_gives_no_second_quota(bench: Bench) -> None:
    bench.clock.now = at("2026-11-14 23:59:50")
    assert bench.limiter.check(hits(MONTH, cost=3)).allowed
    bench.clock.now = at("2026-11-15 00:00:10")
    assert bench.limiter.check(hits(MONTH, cost=2)).allowed

    bench.clock.now = at("2026-11-14 23:59:55")
    refused = bench.limiter.check(hits(MONTH))
    assert (refused.allowed, refused.retry_after) == (False, 5.0)
    assert bench.limiter.check(hits(MONTH, cost=2)).retry_after == (at("2026-12-15") - bench.clock.now) / SECOND

    bench.clock.now = at("2026-11-15 00:00:00")
    assert bench.limiter.check(hits(MONTH)).remaining == 0
    assert not bench.limiter.check(hits(MONTH)).allowed


def test_clock_step_back_over_a_boundary_keeps_the_units_left(bench: Bench) -> None:
    bench.clock.now = at("2026-11-14 23:59:50")
    bench.limiter.check(hits(MONTH))
    bench.clock.now = at("2026-11-15 00:00:10")
    bench.limiter.check(hits(MONTH, cost=3))

    bench.clock.now = at("2026-11-14 23:59:55")
    decision = bench.limiter.check(hits(MONTH))
    assert (decision.allowed, decision.remaining) == (True, 1)
    bench.limiter.refund(decision)
    assert bench.limiter.peek(hits(MONTH)).remaining == 2

    bench.clock.now = at("2026-11-15 00:00:20")
    assert bench.limiter.peek(hits(MONTH)).remaining == 0


def test_refund_after_a_clock_step_back_keeps_the_units_of_the_earlier_period(bench: Bench) -> None:
    bench.clock.now = at("2026-11-14 23:59:50")
    bench.limiter.check(hits(MONTH, cost=3))
    bench.clock.now = at("2026-11-15 00:00:10")
    later = bench.limiter.check(hits(MONTH))

    bench.clock.now = at("2026-11-14 23:59:55")
    bench.limiter.refund(later)

    earlier = bench.limiter.peek(hits(MONTH))
    assert (earlier.remaining, earlier.reset_after) == (0, 5.0)


def test_refund_after_a_clock_step_back_returns_no_units_of_another_period(bench: Bench) -> None:
    bench.clock.now = at("2026-10-10")
    old = bench.limiter.check(hits(MONTH))
    bench.clock.now = at("2026-11-15 00:00:10")
    later = bench.limiter.check(hits(MONTH, cost=2))
    bench.clock.now = at("2026-11-14 23:59:55")

    bench.limiter.refund(old)
    bench.clock.now = at("2026-11-15 00:00:10")
    assert bench.limiter.peek(hits(MONTH)).remaining == 1

    bench.clock.now = at("2026-11-14 23:59:55")
    bench.limiter.reset(hits(MONTH))
    bench.limiter.check(hits(MONTH))
    bench.limiter.refund(later)
    assert bench.limiter.peek(hits(MONTH)).remaining == 2


def test_reset_of_a_calendar_is_the_end_of_its_period_also_after_a_step_back(bench: Bench) -> None:
    bench.clock.now = at("2026-11-15 00:00:10")
    bench.limiter.check(hits(MONTH))

    bench.clock.now = at("2026-11-14 23:59:55")
    said = [bench.limiter.peek(hits(MONTH)), *(bench.limiter.check(hits(MONTH)) for _ in range(4))]

    assert [each.remaining for each in said] == [3, 2, 1, 0, 0]
    assert [each.reset_after for each in said] == [5.0] * 5


def test_refund_of_a_repeated_check_after_a_step_back_gives_no_unit_of_the_later_period(bench: Bench) -> None:
    bench.clock.now = at("2026-11-15 00:00:10")
    bench.limiter.check(hits(MONTH, cost=3))
    bench.clock.now = at("2026-11-14 23:59:55")
    both, check_id = hits([MONTH, Rule(60, 5)]), uuid4()
    bench.limiter.check(both, check_id=check_id)

    bench.limiter.refund(bench.limiter.check(both, check_id=check_id))

    assert bench.limiter.peek(hits(MONTH)).remaining == 3
    bench.clock.now = at("2026-11-15 00:00:20")
    assert bench.limiter.peek(hits(MONTH)).remaining == 0


def test_refund_after_a_step_back_gives_back_units_of_the_later_period(bench: Bench) -> None:
    bench.clock.now = at("2026-11-15 00:00:10")
    later = bench.limiter.check(hits(MONTH, cost=3))
    bench.clock.now = at("2026-11-14 23:59:55")
    bench.limiter.refund(later)
    bench.clock.now = at("2026-11-15 00:00:20")
    assert bench.limiter.peek(hits(MONTH)).remaining == 3


def test_clock_that_was_years_ahead_locks_no_client_out(bench: Bench) -> None:
    bench.clock.now = at("2036-11-20")
    bench.limiter.check(hits(MONTH, cost=3))

    bench.clock.now = at("2026-11-20")
    assert [bench.limiter.check(hits(MONTH)).remaining for _ in range(3)] == [2, 1, 0]
    bench.clock.now = at("2026-12-20")
    assert bench.limiter.check(hits(MONTH)).remaining == 2


# Processes that know other rules of a zone, as before and after an upgrade of tzdata


def known_as(rule: Calendar, zone: timezone) -> Calendar:
    """The rule in a process whose zone data say that its zone is this one."""
    for name in ("quota", "longest_quota"):
        object.__setattr__(rule, name, replace(rule.quota, periods=Periods(rule.period, zone, rule.anchor)))
    return rule


@pytest.mark.parametrize("hours", [(1, 2), (2, 1), (-3, 3)], ids=str)
def test_processes_that_know_other_rules_of_a_zone_share_one_quota(bench: Bench, hours: tuple[int, int]) -> None:
    plans = [hits(known_as(Calendar(10, "day"), timezone(timedelta(hours=each)))) for each in hours]
    admitted = []
    bench.clock.now = at("2026-11-15 12:30", ZoneInfo("UTC"))

    for _ in range(48):
        admitted.append(sum(bench.limiter.check(plan).allowed for _ in range(11) for plan in plans))
        bench.clock.advance(3_600)

    assert sum(admitted) == 30, admitted


# Brute force


class BruteForce:
    """Keeps every charge of one key with its period, as a clock on the wall shows it."""

    def __init__(self, rule: Calendar) -> None:
        self.rule, self.charges = rule, list[tuple[object, int]]()

    def period(self, now: int) -> object:
        second, zone = now // SECOND, self.rule.timezone
        if self.rule.period == "hour":
            return hour_at(second, zone)
        return number_of(local_time(second, zone).date(), self.rule.period, self.rule.anchor)

    def remaining(self, now: int) -> int:
        period = self.period(now)
        return max(self.rule.count - sum(units for charged, units in self.charges if charged == period), 0)


@pytest.fixture(params=[inf, 0], ids=["generic", "compiled"])
def memory_and_server(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Iterator[list[Bench]]:
    """Memory, and a server on which all is as in production but the time that scripts read."""
    clock = Clock()
    with scripts_read_clock_of_test(compile_after=request.param):
        yield [
            Bench(Limiter(MemoryStorage(clock)), clock, None),
            Bench(Limiter(RedisStorage(redis_client)), ServerClock(redis_client), redis_client),
        ]


def test_memory_and_server_agree_with_brute_force_to_the_microsecond(memory_and_server: list[Bench]) -> None:
    rng = random.Random(27)
    rules: Sequence[Calendar] = (
        Calendar(7, "hour", timezone="Australia/Lord_Howe"),
        Calendar(9, "day", timezone="Europe/Berlin"),
        Calendar(40, "month", timezone="Pacific/Apia", anchor=28),
    )
    now = at("2011-10-28", ZoneInfo("UTC"))
    models = [[BruteForce(rule) for rule in rules] for _ in memory_and_server]
    for _ in range(1_500):
        wait = rng.choice([0, 0, 1, rng.randrange(20 * 60 * SECOND), 4 * HOUR])
        for which, (bench, model) in enumerate(zip(memory_and_server, models, strict=True)):
            bench.clock.now = now
            wanted = hits(rules, scope=f"s{which}", cost=1 + now % 3)
            decision = bench.limiter.check(wanted)
            left = [each.remaining(now) for each in model]
            allowed = all(wanted[0].cost <= each for each in left)
            assert decision.allowed == allowed
            for each, before, status in zip(model, left, decision.statuses, strict=True):
                if allowed:
                    each.charges.append((each.period(now), wanted[0].cost))
                assert status.remaining == before - allowed * wanted[0].cost
                if not status.allowed:
                    boundary = now + round(status.retry_after * SECOND)
                    assert each.period(boundary - 1) == each.period(now) != each.period(boundary)
            if which == 0:
                first = decision
            assert list(decision.reply) == list(first.reply)
            if allowed and first.at % 5 == 0:
                bench.limiter.settle(decision, now % 4)
                for each in model:
                    each.charges[-1] = (each.charges[-1][0], now % 4)
        now += wait
