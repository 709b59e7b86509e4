"""Bans: a subject that is refused repeatedly is refused for a time, in the same atomic command."""

from uuid import uuid4

import pytest

from flask_multilimit.engine import Ban, Concurrent, Decision, Hit, Hits, Rule, hits_for
from flask_multilimit.engine.rules import REFUSE_ALL, Rules
from support.bench import Bench

BAN = Ban(after=3, within=600, time=3600, factor=2, most=86_400)


def banning(
    ban: Ban = BAN, rules: Rules = "1/minute", *, scope: str = "login", subject: str = "ada", shadow: bool = False
) -> Hits:
    return hits_for(rules, scope=scope, subject=f"user:{subject}", ban=ban, shadow=shadow)


def refused(bench: Bench, wanted: tuple[Hit, ...], times: int) -> Decision:
    """The last of ``times`` refusals, after the quota is used up."""
    decision = bench.limiter.check(wanted)
    while decision.allowed:
        decision = bench.limiter.check(wanted)
    for _ in range(times - 1):
        decision = bench.limiter.check(wanted)
    assert not decision.allowed
    return decision


def seen(decision: Decision) -> list[tuple[bool, int]]:
    return [(ban.holds, ban.strikes_left) for ban in decision.bans]


# When a ban begins


def test_ban_begins_at_the_refusal_that_completes_after(bench: Bench) -> None:
    before = refused(bench, banning(), 2)
    assert before.ban is None
    assert before.retry_after == 60
    assert seen(before) == [(False, 1)]
    assert before.bans[0].reset_after == 600

    decision = bench.limiter.check(banning())

    assert decision.retry_after == 3600
    assert decision.ban is not None
    assert decision.ban[1:] == (True, True, 0, 0, 3600, 3600 + 86_400)
    assert [status.name for status in decision.violated] == ["user-60s", "user-ban"]


def test_ban_refuses_although_rules_allow_until_exactly_retry_after(bench: Bench) -> None:
    refused(bench, banning(), 3)

    bench.clock.advance(3600 - 0.000001)
    last = bench.limiter.check(banning())
    bench.clock.advance(0.000001)

    assert not last.allowed
    assert last.retry_after == 0.000001
    assert [status.name for status in last.violated] == ["user-ban"]
    assert bench.limiter.check(banning()).allowed


def test_checks_during_a_ban_do_not_extend_or_restart_it(bench: Bench) -> None:
    plan = banning(rules="1/hour")  # which refuses, too, as long as the ban holds
    refused(bench, plan, 3)

    for minute in range(1, 60):
        bench.clock.advance(60)
        decision = bench.limiter.check(plan)
        assert decision.retry_after == 3600 - 60 * minute
        assert decision.ban is not None
        assert not decision.ban.begun

    bench.clock.advance(60)
    assert bench.limiter.check(plan).allowed


def test_only_strikes_within_the_period_count(bench: Bench) -> None:
    plan = banning(rules="1/hour")
    refused(bench, plan, 1)
    bench.clock.advance(300)
    bench.limiter.check(plan)

    bench.clock.advance(300)  # the first strike is over at this instant
    assert bench.limiter.check(plan).ban is None
    bench.clock.advance(300 - 0.000001)  # the second is not over yet

    assert bench.limiter.check(plan).ban is not None


def test_refused_check_charges_only_strikes(bench: Bench) -> None:
    wide = hits_for("10/minute", scope="wide", subject="user:ada")
    plan = Hits((*wide, *banning()))
    refused(bench, plan, 3)
    assert bench.limiter.peek(wide).remaining == 9


def test_allowed_check_writes_no_ban_key(bench: Bench) -> None:
    bench.limiter.check(banning(rules="5/minute"))
    assert not [key for key in bench.stored() if b":ban:" in key]


def test_peek_is_no_strike_and_begins_no_ban(bench: Bench) -> None:
    refused(bench, banning(), 2)
    for _ in range(5):
        assert bench.limiter.peek(banning()).bans[0].strikes_left == 1
    assert bench.limiter.peek(banning()).ban is None


def test_peek_shows_a_ban_in_force(bench: Bench) -> None:
    refused(bench, banning(), 3)

    peeked = bench.limiter.peek(banning())

    assert not peeked.allowed
    assert peeked.ban is not None
    assert (peeked.ban.begun, peeked.ban.retry_after) == (False, 3600)


def test_check_of_cost_0_is_refused_during_a_ban_and_is_no_strike(bench: Bench) -> None:
    free = hits_for("1/minute", scope="login", subject="user:ada", ban=BAN, cost=0)
    refused(bench, banning(), 2)
    for _ in range(5):
        assert bench.limiter.check(free).allowed

    assert bench.limiter.check(banning()).ban is not None
    assert not bench.limiter.check(free).allowed


# Which refusals count


def test_refusals_of_another_limiter_are_no_strikes(bench: Bench) -> None:
    plan = Hits((*hits_for("1/hour", scope="other", subject="user:ada"), *banning(rules="100/minute")))
    decision = refused(bench, plan, 20)
    assert decision.bans[0].strikes_left == 3


def test_check_refused_by_several_rules_is_one_strike(bench: Bench) -> None:
    plan = banning(rules="1/minute; 1/hour; 1/day")
    decision = refused(bench, plan, 2)
    assert decision.bans[0].strikes_left == 1


def test_ban_of_one_subject_leaves_others_free(bench: Bench) -> None:
    refused(bench, banning(), 3)
    assert bench.limiter.check(banning(subject="bo")).allowed


def test_ban_refuses_every_check_with_its_scope(bench: Bench) -> None:
    page = Hits((*hits_for("100/minute", scope="page", subject="user:ada"), *banning()))
    refused(bench, banning(), 3)

    decision = bench.limiter.check(page)

    assert not decision.allowed
    assert decision.retry_after == 3600


def test_bans_of_one_check_count_strikes_separately(bench: Bench) -> None:
    first, second = banning(scope="a"), banning(Ban(after=2, time=60), "1/hour", scope="b")
    decision = refused(bench, Hits((*first, *second)), 2)
    assert seen(decision) == [(False, 1), (True, 0)]
    assert [status.name for status in decision.violated] == ["user-60s", "user-3600s", "user-ban"]


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


def test_each_repeated_ban_lasts_longer_up_to_most(bench: Bench) -> None:
    plan = banning(Ban(after=1, within=60, time=100, factor=3, most=1000))
    lasted = []
    for _ in range(5):
        decision = refused(bench, plan, 1)
        assert decision.ban is not None
        lasted.append((decision.ban.level, decision.ban.retry_after))
        bench.clock.advance(decision.ban.retry_after)

    assert lasted == [(0, 100), (1, 300), (2, 900), (3, 1000), (4, 1000)]


def test_repetition_is_forgotten_most_seconds_after_the_last_ban(bench: Bench) -> None:
    plan = banning(Ban(after=1, within=60, time=100, factor=3, most=1000))
    refused(bench, plan, 1)
    bench.clock.advance(1100 - 0.000001)
    assert refused(bench, plan, 1).retry_after == 300

    bench.clock.advance(300 + 1000)

    assert refused(bench, plan, 1).retry_after == 100


@pytest.mark.parametrize(("later", "lasts"), [(1000 - 0.000001, 300), (1000, 100)])
def test_strikes_between_bans_do_not_change_when_the_last_ban_is_forgotten(
    bench: Bench, later: float, lasts: int
) -> None:
    plan = banning(Ban(after=2, within=5000, time=100, factor=3, most=1000), "1/minute")
    refused(bench, plan, 2)
    bench.clock.advance(100)
    refused(bench, plan, 1)
    bench.clock.advance(later)

    assert refused(bench, plan, 1).retry_after == lasts


def test_every_ban_with_factor_1_lasts_the_same(bench: Bench) -> None:
    plan = banning(Ban(after=1, time=100, factor=1))
    for _ in range(3):
        decision = refused(bench, plan, 1)
        assert decision.ban is not None
        assert (decision.ban.level, decision.ban.retry_after, decision.ban.reset_after) == (0, 100, 100)
        bench.clock.advance(100)


def test_fractional_factor_rounds_down_to_microseconds_at_each_step(bench: Bench) -> None:
    plan = banning(Ban(after=1, within=1, time=0.001, factor=1.1, most=60), "1/day")
    bench.limiter.check(plan)
    expected = 1000
    for _ in range(8):
        decision = bench.limiter.check(plan)
        assert decision.ban is not None
        assert round(decision.ban.retry_after * 1_000_000) == expected
        bench.clock.advance(decision.ban.retry_after)
        expected = int(expected * 1.1)


def test_changed_ban_time_applies_to_a_ban_in_force(bench: Bench) -> None:
    refused(bench, banning(), 3)
    shorter = bench.limiter.check(banning(Ban(time=60, most=60)))
    longer = bench.limiter.check(banning(Ban(time=7200)))
    assert (shorter.retry_after, longer.retry_after) == (60, 7200)


# Repeated checks


def test_refused_check_repeated_with_its_id_is_one_strike(bench: Bench) -> None:
    first = refused(bench, banning(), 1)
    other = bench.limiter.check(banning())
    again = [bench.limiter.check(banning(), check_id=decision.id) for decision in (first, other, first)]
    assert [decision.bans[0].strikes_left for decision in again] == [1, 1, 1]


def test_repeated_check_that_began_a_ban_says_so_again(bench: Bench) -> None:
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


def test_repeated_allowed_check_is_no_strike(bench: Bench) -> None:
    decision = bench.limiter.check(banning())
    for _ in range(5):
        assert bench.limiter.check(banning(), check_id=decision.id).allowed
    assert bench.limiter.peek(banning()).bans[0].strikes_left == 3


def test_each_refusal_in_check_many_is_a_strike(bench: Bench) -> None:
    bench.limiter.check(banning())
    decisions = bench.limiter.check_many([banning()] * 4)
    assert [decision.ban is not None for decision in decisions] == [False, False, True, True]
    assert [decision.ban.begun for decision in decisions if decision.ban] == [True, False]


# Shadows, reset, refund


def test_ban_of_a_shadow_refuses_no_check_and_shows_when_it_would(bench: Bench) -> None:
    plan = banning(shadow=True)
    decisions = [bench.limiter.check(plan) for _ in range(5)]

    assert all(decision.allowed and decision.ban is None for decision in decisions)
    assert [decision.bans[0].holds for decision in decisions] == [False, False, False, True, True]
    assert [status.name for status in decisions[-1].shadowed] == ["user-60s", "user-ban"]


def test_reset_ends_a_ban_and_forgets_its_repetition(bench: Bench) -> None:
    refused(bench, banning(), 3)
    bench.limiter.reset(banning())
    assert bench.limiter.check(banning()).allowed
    assert refused(bench, banning(), 3).retry_after == 3600


def test_refund_takes_back_no_strike(bench: Bench) -> None:
    allowed = bench.limiter.check(banning())
    refused(bench, banning(), 2)

    bench.limiter.refund(allowed)

    assert bench.limiter.check(banning()).allowed
    assert bench.limiter.check(banning()).ban is not None


# Clocks, and many strikes


@pytest.mark.parametrize("strikes", [2, 3])
@pytest.mark.parametrize("back", [1, 30, 90_000])
def test_clock_step_back_ends_a_ban_and_forgets_strikes_for_good(bench: Bench, back: float, strikes: int) -> None:
    refused(bench, banning(), strikes)
    bench.clock.advance(-back)
    assert seen(bench.limiter.check(banning())) == [(False, 3)]
    bench.clock.advance(back)
    assert seen(bench.limiter.peek(banning())) == [(False, 3)]


def test_small_clock_step_back_keeps_a_ban(bench: Bench) -> None:
    refused(bench, banning(), 3)

    bench.clock.advance(-0.05)

    decision = bench.limiter.check(banning())
    assert decision.ban is not None
    assert decision.retry_after == pytest.approx(3600.05)


def test_thousand_strikes_are_counted_exactly(bench: Bench) -> None:
    plan = banning(Ban(after=1000, within=2000, time=60), [Rule(86_400, 1)])
    bench.limiter.check(plan)
    for _ in range(999):
        bench.clock.advance(1)
        assert bench.limiter.check(plan).ban is None

    decision = bench.limiter.check(plan)

    assert decision.ban is not None
