"""Overrides of a scope change hits without a plan, such as those of tasks and scripts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from control.conftest import Shop, SlowStart, shop_on
from flask_multilimit import Ban, ConfigurationError, Rule
from flask_multilimit.control import follow_control
from flask_multilimit.control.store import StoredDocument, StoreInStorage
from flask_multilimit.engine import Hits, Limiter, hits_for, storage_from_uri
from flask_multilimit.signals import subject_banned
from support.asking import commands, heard
from support.waiting import until


def mail(subject: str = "42", *, rules: str = "2/minute", **options: Any) -> Hits:
    return hits_for(rules, scope="mail", subject=f"user:{subject}", **options)


def passes(limiter: Limiter, hits: Hits, times: int = 6) -> int:
    return [limiter.check(hits).allowed for _ in range(times)].count(True)


@pytest.mark.parametrize(
    ("override", "admitted"),
    [
        ({"rule": "user-60s", "rules": "4/minute"}, 4),
        ({"rule": "user-60s", "off": True}, 6),
        ({"limiter": "user", "rules": "3/minute"}, 3),
        ({"limiter": "user", "shadow": True}, 6),
        ({"limiter": "user", "off": True}, 6),
        ({"times": 2.0}, 4),
        ({"who": "user:42", "times": 2.5}, 5),
        ({"who": "user:42", "rules": "1/minute"}, 1),
        ({"who": "user:43", "times": 2.5}, 2),
        ({"limiter": "ip", "off": True}, 2),
    ],
    ids=str,
)
def test_limiter_of_an_app_applies_overrides_of_a_scope(shop: Shop, override: dict[str, Any], admitted: int) -> None:
    where = None if "who" in override else "mail"
    shop.control.override(where, **override, lasting=True, force=True)
    assert passes(shop.limiter, mail()) == admitted


def test_check_costs_as_much_after_an_override_that_replaces_rates_and_slots(shop: Shop) -> None:
    shop.control.override("mail", limiter="user", rules="9/minute", lasting=True, force=True)

    limiter = shop.limiter
    limiter.check(mail(rules="5 at once; 20/minute", cost=4, settle=True))
    left = [status.remaining for status in limiter.peek(mail()).statuses]

    assert left == [5]


@pytest.mark.parametrize("rules", ["1/hour", "1/minute; 1/hour"])
def test_ban_of_another_scope_watches_rules_changed_by_an_override(shop: Shop, rules: str) -> None:
    shop.control.override("mail", limiter="user", rules=rules, lasting=True, force=True)
    watched = mail(rules="1/day")
    *_, ban = hits_for("1/minute", scope="all", subject="user:42", ban=Ban(after=1, within=60, time=60))
    hits = Hits((*watched, replace(ban, watches=(watched[0].key,))))

    found = [shop.limiter.check(hits) for _ in range(2)]

    assert [[ban.begun for ban in each.bans] for each in found] == [[False], [True]]


def test_check_hits_applies_overrides_of_the_scope(shop: Shop) -> None:
    shop.control.override("mail", rule="user-60s", rules="4/minute", lasting=True, force=True)
    with shop.app.test_request_context():
        found = [shop.multilimit.check_hits(mail(), scope="mail", subject="user:42") for _ in range(5)]
    assert [each.allowed for each in found] == [True] * 4 + [False]


def test_check_hits_applies_overrides_of_the_endpoint_that_it_is_given(shop: Shop) -> None:
    shop.control.override("cart", rule="user-60s", rules="4/minute", lasting=True, force=True)
    hits = mail()

    def admitted(scope: str) -> int:
        found = [shop.multilimit.check_hits(hits, scope=scope, subject="user:42") for _ in range(5)]
        assert {getattr(each.hits, "scope", None) for each in found} == {scope}
        shop.multilimit.limiter.reset(hits)
        return [each.allowed for each in found].count(True)

    with shop.app.test_request_context():
        assert [admitted("cart"), admitted("mail"), admitted("cart")] == [4, 2, 4]


def test_refund_finds_a_charge_that_an_override_of_the_endpoint_has_moved(shop: Shop) -> None:
    shop.control.override("cart", limiter="user", rules="3/hour", lasting=True, force=True)
    both = Hits((*mail(), *hits_for("5/minute", scope="sms", subject="phone:1")))

    with shop.app.test_request_context():
        decision = shop.multilimit.check_hits(both, scope="cart", subject="user:42")
        refunded = shop.multilimit.refund(decision, [*mail()])

    assert [status.charged for status in refunded.statuses] == [0, 1]


def test_ban_of_checked_hits_names_its_subject_where_an_override_changes_the_rules(shop: Shop) -> None:
    shop.control.override("mail", limiter="user", rules="1/hour", lasting=True, force=True)
    hits = mail(ban=Ban(after=1, within=60, time=60))

    with shop.app.test_request_context(), heard(shop.app, subject_banned) as signals:
        for _ in range(2):
            shop.multilimit.check_hits(hits, scope="mail", subject=["ip:203.0.113.7", "user:42"])

    assert [(told["limiter"], told["subject"]) for _, told in signals] == [("user", "42")]


def test_ban_that_watches_other_keys_keeps_them_where_an_override_changes_another_limit(shop: Shop) -> None:
    shop.control.override("sms", times=2.0, lasting=True, force=True)
    sms = hits_for("1/minute", scope="sms", subject="user:42")
    *own, ban = mail(rules="9/minute", ban=Ban(after=1, within=60, time=60))
    hits = Hits((*sms, *own, replace(ban, watches=(sms[0].key,))))

    found = [shop.limiter.check(hits) for _ in range(3)]

    assert [[ban.begun for ban in each.bans] for each in found] == [[False], [False], [True]]


def test_override_keeps_used_units_and_undo_restores_the_count(shop: Shop) -> None:
    limiter, hits = shop.limiter, mail()
    assert passes(limiter, hits) == 2
    entry = shop.control.override("mail", rule="user-60s", rules="5/minute", lasting=True, force=True)
    assert passes(limiter, hits) == 3
    assert limiter.peek(hits).statuses[0].rule.count == 5
    assert [each.allowed for each in limiter.check_many([hits, mail("43")])] == [False, True]
    shop.control.undo(entry.id)
    assert limiter.peek(hits).statuses[0].rule.count == 2


def test_acquire_goes_on_by_the_limits_in_force_when_an_override_is_undone_while_it_waits(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = shop.control.override("mail", limiter="user", rules="1/hour", lasting=True, force=True)

    limiter = shop.limiter
    monkeypatch.setattr(limiter, "_sleep", lambda _: shop.control.undo(entry.id))
    limiter.check(mail())
    decision = limiter.acquire(mail(), timeout=3600)

    assert decision.allowed
    assert [str(status.rule) for status in decision.statuses] == ["2 per minute"]


def test_check_many_admits_checks_whose_limit_is_off(shop: Shop) -> None:
    shop.control.override("mail", rule="user-60s", off=True, lasting=True, force=True)
    sms = hits_for("1/minute", scope="sms", subject="user:42")

    found = shop.limiter.check_many([mail(), sms, mail(), sms, mail()])

    assert [each.allowed for each in found] == [True, True, True, False, True]


def test_cost_above_the_count_passes_while_the_limit_is_off(shop: Shop) -> None:
    shop.control.override("mail", rule="user-60s", off=True, lasting=True, force=True)
    hits = mail(cost=3)

    limiter = shop.limiter
    decisions = [limiter.check(hits), limiter.peek(hits), *limiter.check_many([hits])]

    assert [each.allowed for each in decisions] == [True] * 3
    assert [status.allowed for each in decisions for status in each.statuses] == [True] * 3


def test_refund_of_checked_hits_finds_charges_that_an_override_moved(shop: Shop) -> None:
    shop.control.override("mail", limiter="user", rules="3/hour", lasting=True, force=True)
    both = Hits((*mail(), *hits_for("5/minute", scope="sms", subject="user:42")))

    limiter = shop.limiter
    refunded = limiter.refund(limiter.check(both), mail())
    left = [status.remaining for status in limiter.peek(both).statuses]

    assert [status.charged for status in refunded.statuses] == [0, 1]
    assert left == [3, 4]


def test_reset_of_hits_makes_the_quotas_full_that_an_override_counts_in_their_place(shop: Shop) -> None:
    limiter = shop.limiter
    limiter.check(mail())
    shop.control.override("mail", limiter="user", rules="3/hour", lasting=True, force=True)
    assert passes(limiter, mail()) == 3

    limiter.reset(mail())

    assert passes(limiter, mail()) == 3
    assert limiter.storage.peek(mail()).remaining == 2


@pytest.mark.parametrize("then", [None, "4/day"])
@pytest.mark.parametrize("units", [0, 3])
def test_settlement_of_checked_hits_finds_charges_after_the_override_is_undone_or_changed(
    shop: Shop, units: int, then: str | None
) -> None:
    entry = shop.control.override("mail", limiter="user", rules="3/hour", lasting=True, force=True)
    both = Hits((*mail(), *hits_for("5/minute", scope="sms", subject="user:42")))

    limiter = shop.limiter
    decision = limiter.check(both)
    shop.control.undo(entry.id)
    if then is not None:
        shop.control.override("mail", limiter="user", rules=then, lasting=True, force=True)
    settled = limiter.settle(decision, units, mail())
    left = [status.remaining for status in limiter.peek(decision.hits).statuses]

    assert [status.charged for status in settled.statuses] == [units, 1]
    assert left == [3 - units, 4]


def test_refund_may_name_one_key_by_several_hits_while_overrides_apply(shop: Shop) -> None:
    shop.control.override("mail", limiter="user", rules="3/hour", lasting=True, force=True)

    limiter = shop.limiter
    refunded = limiter.refund(limiter.check(mail(cost=2)), [*mail(), *mail(cost=2)])

    assert [(status.charged, status.remaining) for status in refunded.statuses] == [(0, 3)]


@pytest.fixture
def following(on_server: str) -> Iterator[Limiter]:
    """A limiter without an app, which has made no check."""
    limiter = Limiter(storage_from_uri(on_server, timeout=10))
    follow_control(limiter)
    yield limiter
    limiter.close()


def test_limiter_without_an_app_applies_overrides_with_follow_control(
    on_server: str, following: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    control = shop_on(on_server).control
    assert passes(following, mail()) == 2
    control.override("mail", rule="user-60s", rules="4/minute", lasting=True, force=True)

    until(lambda: following.peek(mail()).statuses[0].rule.count == 4)
    assert passes(following, mail()) == 2
    assert caplog.messages == [], "it is no worker, which would announce itself"


def test_override_that_does_not_fit_is_logged_once_although_lists_change(
    on_server: str, following: Limiter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, looks = shop_on(on_server).control, list[str]()
    control.override("mail", limiter="user", rules={"count": 10**6, "time": 60}, lasting=True, force=True)
    read = StoreInStorage.read

    def look(store: StoreInStorage, known: str) -> StoredDocument:
        looks.append(known)
        return read(store, known)

    monkeypatch.setattr(StoreInStorage, "read", look)
    unfit = hits_for(Rule(60, 10**6, algorithm="fixed_window"), scope="mail", subject="user:42", cost=50_000)
    following.check(unfit)
    control.ban("203.0.113.7", for_="1h")
    seen = len(looks)

    until(lambda: len(looks) > seen + 1)
    following.check(unfit)

    assert [each.partition(":")[0] for each in caplog.messages] == ["Rate limits"]


def test_no_check_of_a_new_process_passes_before_it_knows_the_overrides(
    on_server: str, following: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop_on(on_server).control.override("mail", limiter="user", rules="5/minute", lasting=True, force=True)
    decisions = SlowStart(monkeypatch).two(lambda: following.check(mail()))

    assert [each.statuses[0].rule.count for each in decisions] == [5, 5]


def test_limiter_follows_control_if_its_first_try_failed(
    on_server: str, following: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop_on(on_server).control.override("mail", limiter="user", rules="5/minute", lasting=True, force=True)
    with monkeypatch.context() as patched:
        patched.setattr(StoreInStorage, "read", Mock(side_effect=ConfigurationError("the directory is not writable")))
        with pytest.raises(ConfigurationError):
            following.check(mail())

    assert following.check(mail()).statuses[0].rule.count == 5


def test_check_of_a_limiter_that_follows_control_is_one_command(
    on_server: str, following: Limiter, redis_client: redis.Redis
) -> None:
    shop_on(on_server).control.override("mail", times=3.0, lasting=True, force=True)
    following.check(mail())

    with commands(redis_client) as seen:
        following.check(mail())

    assert seen == ["EVALSHA"]


def test_follow_control_on_memory_storage_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="is in this process"):
        follow_control(Limiter())


def test_following_control_twice_is_an_error(shop: Shop) -> None:
    with shop.app.app_context(), pytest.raises(ConfigurationError, match="follows already"):
        follow_control(shop.multilimit.limiter)
