"""Bans: who is refused again and again is refused for a time, in the same atomic command."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flask_multilimit.engine import Ban, Concurrent, Hits, Rule, hits_for
from flask_multilimit.engine.rules import REFUSE_ALL

if TYPE_CHECKING:
    from flask_multilimit.engine import Decision, Hit
    from flask_multilimit.engine.rules import Rules
    from support.bench import Bench

BAN = Ban(after=3, within=600, time=3600, factor=2, most=86_400)


def banning(
    ban: Ban = BAN, rules: Rules = "1/minute", *, scope: str = "login", subject: str = "ada", shadow: bool = False
) -> Hits:
    return hits_for(rules, scope=scope, subject=subject, ban=ban, shadow=shadow)


def refused(bench: Bench, wanted: tuple[Hit, ...], times: int) -> Decision:
    """Use up what there is, and be refused so many times; the last answer."""
    decision = bench.limiter.check(wanted)
    while decision.allowed:
        decision = bench.limiter.check(wanted)
    for _ in range(times - 1):
        decision = bench.limiter.check(wanted)
    assert not decision.allowed
    return decision


# When a ban begins


def test_the_refusal_that_completes_after_begins_the_ban_and_tells_its_wait(bench: Bench) -> None:
    before = refused(bench, banning(), 2)
    assert before.ban is None
    assert before.retry_after == 60
    assert [(ban.holds, ban.strikes_left) for ban in before.bans] == [(False, 1)]

    decision = bench.limiter.check(banning())

    assert decision.retry_after == 3600
    assert decision.ban is not None
    assert decision.ban[1:] == (True, True, 0, 0, 3600, 3600 + 86_400)
    assert [status.name for status in decision.violated] == ["default-60s", "default-ban"]


def test_a_ban_holds_when_the_rules_would_allow_and_ends_at_the_promised_instant(bench: Bench) -> None:
    refused(bench, banning(), 3)

    bench.clock.advance(3600 - 0.000001)
    last = bench.limiter.check(banning())
    bench.clock.advance(0.000001)

    assert not last.allowed
    assert last.retry_after == 0.000001
    assert [status.name for status in last.violated] == ["default-ban"]
    assert bench.limiter.check(banning()).allowed


def test_asking_does_not_lengthen_a_ban_nor_begin_it_again(bench: Bench) -> None:
    refused(bench, banning(), 3)

    for minute in range(1, 60):
        bench.clock.advance(60)
        decision = bench.limiter.check(banning())
        assert decision.retry_after == 3600 - 60 * minute
        assert decision.ban is not None
        assert not decision.ban.begun

    bench.clock.advance(60)
    assert bench.limiter.check(banning()).allowed


def test_only_strikes_within_the_time_count_exactly(bench: Bench) -> None:
    plan = banning(rules="1/hour")
    refused(bench, plan, 1)
    bench.clock.advance(300)
    bench.limiter.check(plan)

    bench.clock.advance(300)  # the first strike is over at this instant
    assert bench.limiter.check(plan).ban is None
    bench.clock.advance(300 - 0.000001)  # the second is not over yet

    assert bench.limiter.check(plan).ban is not None


def test_a_refused_check_charges_nothing_but_strikes(bench: Bench) -> None:
    wide = hits_for("10/minute", scope="wide", subject="ada")
    plan = Hits((*wide, *banning()))

    refused(bench, plan, 3)

    assert bench.limiter.peek(wide).remaining == 9


def test_an_allowed_check_writes_no_key_of_a_ban(bench: Bench) -> None:
    bench.limiter.check(banning(rules="5/minute"))

    assert not [key for key in bench.stored() if b":ban:" in key]


def test_a_peek_neither_strikes_nor_begins_a_ban(bench: Bench) -> None:
    refused(bench, banning(), 2)

    for _ in range(5):
        assert bench.limiter.peek(banning()).bans[0].strikes_left == 1

    assert bench.limiter.peek(banning()).ban is None


def test_a_peek_shows_the_ban_that_holds(bench: Bench) -> None:
    refused(bench, banning(), 3)

    peeked = bench.limiter.peek(banning())

    assert not peeked.allowed
    assert peeked.ban is not None
    assert (peeked.ban.begun, peeked.ban.retry_after) == (False, 3600)


def test_a_check_of_cost_0_is_refused_too_and_is_no_strike(bench: Bench) -> None:
    free = hits_for("1/minute", scope="login", subject="ada", ban=BAN, cost=0)
    refused(bench, banning(), 2)
    for _ in range(5):
        assert bench.limiter.check(free).allowed

    assert bench.limiter.check(banning()).ban is not None
    assert not bench.limiter.check(free).allowed


# Whose refusals count


def test_only_the_refusals_of_its_own_limiter_are_strikes(bench: Bench) -> None:
    plan = Hits((*hits_for("1/hour", scope="other", subject="ada"), *banning(rules="100/minute")))

    decision = refused(bench, plan, 20)

    assert decision.bans[0].strikes_left == 3


def test_a_check_that_several_rules_refuse_is_one_strike(bench: Bench) -> None:
    plan = banning(rules="1/minute; 1/hour; 1/day")

    decision = refused(bench, plan, 2)

    assert decision.bans[0].strikes_left == 1


def test_subjects_are_banned_each_for_itself(bench: Bench) -> None:
    refused(bench, banning(), 3)

    assert bench.limiter.check(banning(subject="bo")).allowed


def test_limiters_of_one_scope_share_the_ban_wherever_they_stand(bench: Bench) -> None:
    page = Hits((*hits_for("100/minute", scope="page", subject="ada"), *banning()))
    refused(bench, banning(), 3)

    decision = bench.limiter.check(page)

    assert not decision.allowed
    assert decision.retry_after == 3600


def test_every_ban_of_a_check_counts_for_itself(bench: Bench) -> None:
    first, second = banning(scope="a"), banning(Ban(after=2, time=60), "1/hour", scope="b")

    decision = refused(bench, Hits((*first, *second)), 2)

    assert [(ban.holds, ban.strikes_left) for ban in decision.bans] == [(False, 1), (True, 0)]
    assert [status.name for status in decision.violated] == ["default-60s", "default-3600s", "default-ban"]


def test_refusals_of_slots_are_strikes(bench: Bench) -> None:
    plan = banning(rules=[Concurrent(1)])

    decision = refused(bench, plan, 3)

    assert decision.ban is not None
    assert decision.refused_for == 3600


def test_refusals_of_a_rule_with_count_0_are_no_strikes(bench: Bench) -> None:
    plan = banning(rules=[REFUSE_ALL])

    decision = refused(bench, plan, 10)

    assert decision.bans[0].strikes_left == 3


# Repetitions


def test_each_repetition_lasts_longer_up_to_the_most(bench: Bench) -> None:
    plan = banning(Ban(after=1, within=60, time=100, factor=3, most=1000))
    lasted = []
    for _ in range(5):
        decision = refused(bench, plan, 1)
        assert decision.ban is not None
        lasted.append((decision.ban.level, decision.ban.retry_after))
        bench.clock.advance(decision.ban.retry_after)

    assert lasted == [(0, 100), (1, 300), (2, 900), (3, 1000), (4, 1000)]


def test_a_repetition_is_forgotten_most_seconds_after_the_end_of_the_last_ban(bench: Bench) -> None:
    plan = banning(Ban(after=1, within=60, time=100, factor=3, most=1000))
    refused(bench, plan, 1)
    bench.clock.advance(1100 - 0.000001)
    assert refused(bench, plan, 1).retry_after == 300

    bench.clock.advance(300 + 1000)

    assert refused(bench, plan, 1).retry_after == 100


def test_strikes_between_two_bans_do_not_make_the_last_one_be_forgotten_nor_remembered_longer(bench: Bench) -> None:
    plan = banning(Ban(after=2, within=5000, time=100, factor=3, most=1000), "1/minute")
    refused(bench, plan, 2)
    bench.clock.advance(100)
    refused(bench, plan, 1)
    bench.clock.advance(1000)

    assert refused(bench, plan, 1).retry_after == 100


def test_with_a_factor_of_1_every_ban_lasts_the_same(bench: Bench) -> None:
    plan = banning(Ban(after=1, time=100, factor=1))
    for _ in range(3):
        decision = refused(bench, plan, 1)
        assert decision.ban is not None
        assert (decision.ban.level, decision.ban.retry_after) == (0, 100)
        bench.clock.advance(100)


def test_a_factor_that_is_no_whole_number_is_rounded_down_to_microseconds_at_each_step(bench: Bench) -> None:
    plan = banning(Ban(after=1, within=1, time=0.001, factor=1.1, most=60), "1/day")
    bench.limiter.check(plan)
    expected = 1000
    for _ in range(8):
        decision = bench.limiter.check(plan)
        assert decision.ban is not None
        assert round(decision.ban.retry_after * 1_000_000) == expected
        bench.clock.advance(decision.ban.retry_after)
        expected = int(expected * 1.1)


def test_other_times_count_for_a_ban_that_holds_already(bench: Bench) -> None:
    refused(bench, banning(), 3)

    shorter = bench.limiter.check(banning(Ban(time=60, most=60)))
    longer = bench.limiter.check(banning(Ban(time=7200)))

    assert (shorter.retry_after, longer.retry_after) == (60, 7200)


# Once


def test_a_refused_check_that_is_repeated_under_its_id_is_one_strike(bench: Bench) -> None:
    first = refused(bench, banning(), 1)
    other = bench.limiter.check(banning())

    again = [bench.limiter.check(banning(), check_id=decision.id) for decision in (first, other, first)]

    assert [decision.bans[0].strikes_left for decision in again] == [1, 1, 1]


def test_a_check_that_has_begun_a_ban_tells_so_again_when_it_is_repeated(bench: Bench) -> None:
    refused(bench, banning(), 2)
    check_id = uuid4()
    bench.limiter.check(banning(), check_id=check_id)
    bench.clock.advance(1)

    again = bench.limiter.check(banning(), check_id=check_id)
    other = bench.limiter.check(banning())

    assert again.ban is not None
    assert other.ban is not None
    assert (again.ban.begun, other.ban.begun) == (True, False)
    assert again.retry_after == other.retry_after == 3599


def test_a_check_that_was_charged_is_no_strike_when_it_is_repeated(bench: Bench) -> None:
    decision = bench.limiter.check(banning())

    for _ in range(5):
        assert bench.limiter.check(banning(), check_id=decision.id).allowed

    assert bench.limiter.peek(banning()).bans[0].strikes_left == 3


def test_checks_in_one_round_trip_strike_each_for_itself(bench: Bench) -> None:
    bench.limiter.check(banning())

    decisions = bench.limiter.check_many([banning()] * 4)

    assert [decision.ban is not None for decision in decisions] == [False, False, True, True]
    assert [decision.ban.begun for decision in decisions if decision.ban] == [True, False]


# Shadows, reset, refund


def test_the_ban_of_a_shadow_refuses_nobody_and_tells_what_it_would_do(bench: Bench) -> None:
    plan = banning(shadow=True)
    decisions = [bench.limiter.check(plan) for _ in range(5)]

    assert all(decision.allowed and decision.ban is None for decision in decisions)
    assert [decision.bans[0].holds for decision in decisions] == [False, False, False, True, True]
    assert [status.name for status in decisions[-1].shadowed] == ["default-60s", "default-ban"]


def test_a_reset_ends_a_ban_and_what_was_remembered_of_it(bench: Bench) -> None:
    refused(bench, banning(), 3)
    bench.limiter.reset(banning())

    assert bench.limiter.check(banning()).allowed
    assert refused(bench, banning(), 3).retry_after == 3600


def test_a_refund_takes_back_no_strike(bench: Bench) -> None:
    allowed = bench.limiter.check(banning())
    refused(bench, banning(), 2)

    bench.limiter.refund(allowed)

    assert bench.limiter.check(banning()).allowed
    assert bench.limiter.check(banning()).ban is not None


# What is kept


@pytest.mark.parametrize("back", [1, 30, 90_000])
def test_a_clock_that_stepped_back_bans_nobody_for_longer(bench: Bench, back: float) -> None:
    refused(bench, banning(), 3)

    bench.clock.advance(-back)

    assert bench.limiter.peek(banning()).ban is None


def test_a_clock_that_slips_back_a_little_changes_nothing(bench: Bench) -> None:
    refused(bench, banning(), 3)

    bench.clock.advance(-0.05)

    decision = bench.limiter.check(banning())
    assert decision.ban is not None
    assert decision.retry_after == pytest.approx(3600.05)


def test_a_thousand_strikes_are_counted_exactly(bench: Bench) -> None:
    plan = banning(Ban(after=1000, within=2000, time=60), [Rule(86_400, 1)])
    bench.limiter.check(plan)
    for _ in range(999):
        bench.clock.advance(1)
        assert bench.limiter.check(plan).ban is None

    decision = bench.limiter.check(plan)

    assert decision.ban is not None
