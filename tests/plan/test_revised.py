"""What overrides make of hits that no plan has made."""

from __future__ import annotations

from typing import Any

import pytest

from flask_multilimit import Ban
from flask_multilimit.engine import Hits, hits_for
from flask_multilimit.engine.hits import BanHit
from flask_multilimit.plan.endpoint import revised
from plan.written import override, overrides


def mail(rules: str = "2/minute", **options: Any) -> Hits:
    return hits_for(rules, scope="mail", subject="42", type="user", **options)


def left(hits: Hits | None) -> Hits:
    assert hits is not None
    return hits


def counts(hits: Hits | None) -> list[int]:
    return [hit.rule.count for hit in left(hits)]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"rule": "user-60s", "rules": "4/minute"}, 4),
        ({"limiter": "user", "times": 3}, 6),
        ({"who": "user:42", "rules": "1/minute"}, 1),
    ],
)
def test_an_override_of_the_scope_of_hits_changes_them(change: dict[str, Any], count: int) -> None:
    (hit,) = mail()

    (changed,) = left(revised(mail(), overrides(override("mail", **change))))

    assert (changed.rule.count, changed.key, changed.shadow) == (count, hit.key, False)


def test_hits_that_no_override_changes_stay_the_same_object() -> None:
    hits = mail()

    assert revised(hits, overrides(override("other", off=True))) is hits


def test_overrides_that_switch_all_rules_off_leave_no_hits() -> None:
    assert revised(mail(), overrides(override("mail", off=True))) is None


def test_hits_of_several_scopes_follow_the_overrides_of_each() -> None:
    hits = Hits((*mail("2/minute; 50/hour"), *hits_for("3/minute", scope="other")))

    assert counts(revised(hits, overrides(override("mail", rule="user-60s", off=True)))) == [50, 3]


def test_a_ban_watches_the_keys_that_are_left() -> None:
    hits = mail("2/minute; 50/hour", ban=Ban(after=3, within=60, time=600))

    hour, ban = left(revised(hits, overrides(override("mail", rule="user-60s", off=True))))

    assert isinstance(ban, BanHit)
    assert ban.watches == (hour.key,)


def test_hits_are_changed_once_for_the_same_overrides() -> None:
    hits, entry = mail(), override("mail", times=2)
    doubled = overrides(entry)

    first = revised(hits, doubled)

    assert revised(hits, doubled) is first
    assert revised(hits, overrides(override("mail", times=3))) is not first


def test_overrides_that_do_not_fit_hits_are_logged_once_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    clash = overrides(override("mail", rule="user-3600s", rules={"timeout": 9}))

    found = [revised(mail("2/minute; 3/hour"), clash) for _ in range(2)]

    assert [counts(each) for each in found] == [[2, 3]] * 2
    assert len([each for each in caplog.records if "do not fit" in each.getMessage()]) == 1
