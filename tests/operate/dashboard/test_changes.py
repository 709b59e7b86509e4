"""Changes: proposed, previewed, made and undone; and who may not make them."""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response
from flask.testing import FlaskClient
from flask_wtf.csrf import CSRFProtect  # type: ignore[import-untyped]
from werkzeug.test import TestResponse

from flask_multilimit import IP, USER, MultiLimit, RateLimiter, Rule, rate_limiter
from flask_multilimit.control.store import KINDS, Change
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import StorageError
from flask_multilimit.insight import impact
from flask_multilimit.serve.gate import gate_of
from support.asking import pass_a_second, statuses, view
from support.changes import control_of
from support.doubles import failing
from support.servers import Binary, Server

from .conftest import ROOT, browser_of, made
from .forms import forms_of, send

CHANGE = f"{ROOT}change"
RULE = {"endpoint": "show", "part": "rule:ip-60s", "what": "rules", "rules": "4/minute", "for": "1h", "reason": "sale"}
SHADOW = 'at show: new limit {"type": "ip", "rules": "9/hour", "shadow": true}'


def previewed(browser: FlaskClient, **given: str) -> TestResponse:
    return browser.get(CHANGE, query_string=given)


def _token(browser: FlaskClient) -> str:
    found = [each["fields"].get("token") for each in forms_of(previewed(browser, **RULE).text)]
    return str(next(filter(None, found)))


def confirm(browser: FlaskClient, page: TestResponse | None = None, /, **given: str) -> TestResponse:
    """Send the form that makes the change, of ``page`` or of a preview of what is ``given``."""
    extra = {} if page is None else given
    return send(browser, page or previewed(browser, **given), ending="/change", method="post", **extra)


def entries_of(app: Flask) -> list[str]:
    return [str(each) for each in control_of(app).entries()]


def test_form_offers_the_parts_that_can_be_changed(ada: FlaskClient) -> None:
    page = previewed(ada, endpoint="show", part="rule:ip-60s").text

    assert '<option value="rule:ip-60s" selected>ip-60s: 2 per minute</option>' in page
    assert "all rules of ip" in page
    assert "Fill in the form." in page
    more = previewed(ada, endpoint="show", part="more").text
    types = re.findall(r"<option[^>]*>([^<]*)", more.partition('name="type"')[2].partition("</select>")[0])
    assert types == ["default", "ip", "user"]


@pytest.mark.parametrize(
    ("endpoint", "limiter", "rule", "text"),
    [("show", "plan", "plan-3600s", "5 per hour"), ("unmatched", "ip", "ip-60s", "9 per minute")],
)
def test_form_offers_limits_of_extensions_and_of_requests_without_a_route_that_the_page_limits_links_to(
    endpoint: str, limiter: str, rule: str, text: str
) -> None:
    def listing(_: Flask, endpoint: str) -> dict[str, list[RateLimiter]]:
        return {"mail plans": [rate_limiter("5/hour", type=lambda: "ann", name="plan")]} if endpoint == "show" else {}

    app = made(MULTILIMIT_UNMATCHED_LIMITS={"type": "ip", "rules": "9/minute"})
    app.extensions["multilimit"].add_listing(listing)
    ada, part = browser_of("ada", app), {"endpoint": endpoint, "part": f"rule:{rule}"}

    form, shadow = previewed(ada, **part).text, previewed(ada, **{**RULE, **part, "what": "shadow"}).text

    assert f"change?endpoint={endpoint}&amp;part=rule%3A{rule}" in ada.get(f"{ROOT}limits").text
    assert f'<option value="rule:{rule}" selected>{rule}: {text}</option>' in form
    assert f"<strong>limiter {limiter} at {endpoint}: shadow</strong>" in shadow


def test_preview_shows_a_change_without_making_it(app: Flask, ada: FlaskClient) -> None:
    page = previewed(ada, **RULE)

    assert page.status_code == 200
    assert "ip-60s: 2 per minute" in page.text
    assert "ip-60s: 4 per minute" in page.text
    assert "Checks that it refused: 0. At most that many more would have passed." in page.text
    assert entries_of(app) == []


@pytest.mark.parametrize(
    ("shadow", "asked", "said"),
    [
        (
            False,
            {"what": "off"},
            "Checks that it refused: 3. They would have passed, unless another rule refuses them.",
        ),
        (False, {"what": "shadow"}, "Checks that it refused: 3. They would have passed, unless another rule refuses"),
        (True, {"what": "off"}, "Checks that it would have refused, as a shadow: 3."),
        (True, {"what": "unshadow"}, "Checks that it would have refused, as a shadow: 3."),
        (False, {"rules": "10/minute"}, "Checks that it refused: 3. At most 3 more would have been refused."),
        (False, {"rules": "5/minute"}, "Checks that passed with more than 80 percent of it used: 3."),
    ],
)
def test_preview_says_what_the_change_would_have_done_to_the_requests_of_the_last_hour(
    app: Flask, ada: FlaskClient, shadow: bool, asked: dict[str, str], said: str
) -> None:
    app.add_url_rule("/sale", "sale", rate_limiter(type=IP, rules="11/minute", shadow=shadow)(lambda: "ok"))
    statuses(app, *["/sale"] * 14)
    pass_a_second(app)
    query = {"endpoint": "sale", "part": "limiter:ip", "what": "rules", "for": "1h", "reason": "sale", **asked}

    (found,) = ada.get(f"{ROOT}api/change", query_string=query).get_json()["impact"]["evidence"]

    assert said in found["text"]


def test_preview_estimates_effects_of_a_calendar_change(app: Flask, ada: FlaskClient) -> None:
    period = "calendar month in America/Los_Angeles"
    app.add_url_rule("/month", "month", rate_limiter(type=IP, rules=f"100 per {period}")(lambda: "ok"))
    asks = {"endpoint": "month", "part": "rule:ip-month", "what": "rules", "for": "1h", "reason": "sale"}

    more = previewed(ada, **asks, rules=f"200 per {period}").text

    assert "Checks that it refused: 0. At most that many more would have passed." in more


def test_preview_does_not_know_what_another_algorithm_would_have_refused(app: Flask, ada: FlaskClient) -> None:
    declared = Rule(60, 2, algorithm="token_bucket", burst=50)
    app.add_url_rule("/burst", "burst", rate_limiter(type=IP, rules=[declared])(lambda: "ok"))
    asks = {"endpoint": "burst", "part": "limiter:ip", "what": "rules", "for": "1h", "reason": "sale"}

    page = previewed(ada, **asks, rules="4/minute").text

    assert "ip-60s: 4 per minute" in page
    assert "How near clients came to the new one is not known." in page
    assert "At most that many more would have passed." not in page


def test_preview_of_rules_or_times_for_one_client_says_that_they_concern_all_of_its_rules(ada: FlaskClient) -> None:
    own = {"endpoint": "*", "part": "who", "who": "user:ann", "for": "1h", "reason": "r"}

    replaced = ada.get(CHANGE, query_string={**own, "what": "rules", "rules": "200/minute"}).text
    multiplied = ada.get(CHANGE, query_string={**own, "what": "times", "times": "2"}).text

    assert impact.REPLACES_ALL in replaced
    assert impact.MULTIPLIES_ALL not in replaced
    assert impact.REPLACES_ALL not in multiplied
    assert impact.MULTIPLIES_ALL in multiplied
    assert "In the last hour" not in replaced
    query = {**own, "what": "rules", "rules": "200/minute"}
    assert ada.get(f"{ROOT}api/change", query_string=query).get_json()["impact"]["evidence"] == []


@pytest.mark.parametrize("given", [{}, {"part": "limiter:ip"}, {"part": "", "who": "203.0.113.7"}], ids=str)
@pytest.mark.parametrize(("rules", "counts_apart"), [("9/minute", False), ("9/hour", True), ("9 at once", True)])
def test_preview_says_whether_what_is_used_counts_under_the_new_rule(
    ada: FlaskClient, given: dict[str, str], rules: str, counts_apart: bool
) -> None:
    page = ada.get(CHANGE, query_string={**RULE, **given, "rules": rules}).text

    assert (impact.OWN_COUNT in page) == counts_apart


@pytest.mark.parametrize(("rules", "counts_apart"), [("9/hour", False), ("9/minute", True)])
def test_preview_compares_rules_for_a_client_with_those_that_it_has_by_an_earlier_change(
    app: Flask, ada: FlaskClient, rules: str, counts_apart: bool
) -> None:
    control_of(app).override("show", who="203.0.113.7", rules="5/hour", lasting=True)

    page = ada.get(CHANGE, query_string={**RULE, "part": "", "who": "203.0.113.7", "rules": rules}).text

    assert (impact.OWN_COUNT in page) == counts_apart


def test_preview_compares_rules_for_a_client_with_those_of_the_same_limiter(app: Flask, ada: FlaskClient) -> None:
    app.add_url_rule("/two", "two", rate_limiter(type=USER, rules="50/hour")(rate_limiter("2/minute", type=IP)(view())))

    client = {"endpoint": "two", "part": "", "who": "203.0.113.7"}

    assert impact.OWN_COUNT in ada.get(CHANGE, query_string={**RULE, **client, "rules": "9/hour"}).text


def test_change_applies_to_the_next_request_and_is_in_history(app: Flask, ada: FlaskClient) -> None:
    answer = confirm(ada, **RULE)

    assert answer.status_code == 303
    assert statuses(app, *["/"] * 5) == [200, 200, 200, 200, 429]
    page = ada.get(answer.location).text
    assert "In force within a second:" in page
    assert "rule ip-60s at show: 4/minute" in page
    history = ada.get(f"{ROOT}history").text
    assert ">ada<" in history
    assert "sale" in history


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        ({"what": "times", "times": "2"}, "rule ip-60s at show: 2 times the count"),
        ({"what": "off"}, "rule ip-60s at show: off"),
        ({"what": "shadow"}, "limiter ip at show: shadow"),
        ({"what": "off", "part": "all"}, "at show: off"),
        ({"what": "shadow", "part": "limiter:ip"}, "limiter ip at show: shadow"),
        ({"part": "more", "more": "9/hour", "type": "ip"}, "at show: new ip limit 9/hour"),
        ({"part": "more", "more": "9/hour", "type": "ip", "as_shadow": "1"}, SHADOW),
        ({"who": "203.0.113.7", "rules": "9/minute"}, "203.0.113.7 at show: 9/minute"),
        ({"lasting": "1", "what": "off"}, "rule ip-60s at show: off"),
        ({"endpoint": "api.*", "part": "all", "what": "off"}, "at api.*: off"),
    ],
)
def test_each_kind_of_change_can_be_made(app: Flask, ada: FlaskClient, given: dict[str, str], entry: str) -> None:
    whole = {**RULE, **given}
    if "who" in given:
        del whole["part"]

    assert confirm(ada, **whole).status_code == 303
    assert entries_of(app) == [entry]


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"reason": ""}, "reason", "say why"),
        ({"for": "soon"}, "for", "write a time as"),
        ({"for": "9000d"}, "for", "give a time from"),
        ({"rules": "many"}, "rules", ""),
        ({"what": "times", "times": "x"}, "times", "give a number"),
        ({"what": "times", "times": "-1"}, "times", ""),
        ({"part": "rule:nothing", "what": "shadow"}, "part", "no rule at"),
        ({"part": "more", "more": "0/minute"}, "more", ""),
        ({"who": "everybody", "part": "", "rules": "1/minute"}, "who", ""),
        ({"who": "nobody:7", "part": "", "rules": "1/minute"}, "who", "has a type called"),
        ({"part": "ip-60s", "what": "off"}, "part", "give all, more, who, rule:NAME or limiter:NAME"),
        ({"part": "rule:", "what": "off"}, "part", "give all, more, who, rule:NAME or limiter:NAME"),
        ({"kind": "deny", "who": "203.0.113.7", "status": "500"}, "status", "give 403 or 429"),
    ],
)
def test_mistake_is_shown_beside_its_field(
    app: Flask, ada: FlaskClient, given: dict[str, str], field: str, text: str
) -> None:
    whole = {name: value for name, value in {**RULE, **given}.items() if value}

    page = previewed(ada, **whole)
    sent = ada.post(CHANGE, data={**whole, "token": _token(ada)})

    assert page.status_code == sent.status_code == 400
    assert f'id="wrong-{field}"' in sent.text
    assert f'id="wrong-{field}"' in page.text
    assert text in page.text
    assert all(each["method"] == "get" for each in forms_of(page.text))
    assert entries_of(app) == []


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("kind", "bann", f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"),
        ("what", "of", "rules, times, shadow, unshadow or off"),
        *(("type", each, "one of the choices") for each in ("header:Authorization", "ip+header:Cookie", "a:function")),
    ],
)
def test_value_that_the_form_does_not_offer_is_an_error(
    app: Flask, ada: FlaskClient, name: str, value: str, choices: str
) -> None:
    """Of types, it offers no credentials: pages show subjects, and visitors would log in as their customers."""
    part = {"part": "more", "more": "9/hour"} if name == "type" else {}

    page = previewed(ada, **{**RULE, **part, name: value})

    assert page.status_code == 400
    assert f"{name}={value}: give {choices}" in page.text
    assert "it refused" not in page.text
    assert entries_of(app) == []


def test_clearing_the_client_of_a_form_is_an_error(ada: FlaskClient) -> None:
    page = previewed(ada, kind="override", endpoint="*", who="203.0.113.7")
    answer = send(ada, page, ending="/change", who="", what="times", times="9", reason="sale")
    assert answer.status_code == 400
    assert 'id="wrong-who"' in answer.text


def test_change_is_refused_when_the_limit_changed_since_the_preview(app: Flask, ada: FlaskClient) -> None:
    page = previewed(ada, **RULE)
    control_of(app).override("show", rule="ip-60s", rules="7/minute", lasting=True, author="ben")

    answer = confirm(ada, page)

    assert answer.status_code == 409
    assert "changed since you looked at it. Now in force: ben set rule ip-60s at show: 7/minute at" in answer.text
    assert entries_of(app) == ["rule ip-60s at show: 7/minute"]


def test_change_to_less_than_a_hundredth_needs_confirmation(app: Flask, ada: FlaskClient) -> None:
    given = {**RULE, "endpoint": "api.*", "part": "limiter:user", "what": "times", "times": "0.001"}
    page = previewed(ada, **given)
    assert "less than a hundredth" in page.text

    refused, forced = confirm(ada, page), confirm(ada, page, force="1")

    assert refused.status_code == 409
    assert "confirm that you are sure" in refused.text
    assert forced.status_code == 303
    assert len(entries_of(app)) == 1


@pytest.mark.parametrize("kind", ["ban", "deny", "allow"])
def test_network_can_be_allowed_denied_and_banned(app: Flask, ada: FlaskClient, kind: str) -> None:
    answer = confirm(ada, kind=kind, who="203.0.113.0/24", **{"for": "1h"}, reason="scraper")

    assert answer.status_code == 303
    assert entries_of(app) == [f"{kind} 203.0.113.0/24"]
    asked = statuses(app, *["/"] * 3, environ_base={"REMOTE_ADDR": "203.0.113.9"})
    assert asked == {"ban": [429] * 3, "deny": [403] * 3, "allow": [200] * 3}[kind]
    page = ada.get(f"{ROOT}lists").text
    assert "203.0.113.0/24" in page
    assert "scraper" in page
    assert "Bans that limits started" not in page


def test_denying_your_own_address_needs_confirmation(app: Flask, ada: FlaskClient) -> None:
    given = {"kind": "deny", "who": "127.0.0.0/8", "for": "1h", "reason": "oops"}
    pages = [previewed(ada, **given), previewed(ada, **{**given, "kind": "allow"})]
    assert confirm(ada, **given).status_code == 409
    assert entries_of(app) == []
    ada.environ_base["REMOTE_ADDR"] = ""  # as a proxy on a unix socket leaves it
    pages.append(previewed(ada, **given))

    assert [page.status_code for page in pages] == [200, 200, 200]
    assert ["This is your own address" in page.text for page in pages] == [True, False, False]


@pytest.mark.parametrize(("chosen", "filled"), [("rules", {"times": "3"}), ("times", {"rules": "9/minute"})])
def test_count_or_factor_that_is_filled_in_is_meant_although_the_other_one_is_chosen(
    app: Flask, ada: FlaskClient, chosen: str, filled: dict[str, str]
) -> None:
    whose = {"endpoint": "*", "who": "user:ada", "for": "1h", "reason": "partner"}
    assert confirm(ada, **whose, what=chosen, **filled).status_code == 303
    assert entries_of(app) == [
        {"rules": "user:ada everywhere: 3 times the count", "times": "user:ada everywhere: 9/minute"}[chosen]
    ]


@pytest.mark.parametrize("kind", ["deny", "ban"])
def test_denying_your_own_user_needs_confirmation(app: Flask, ada: FlaskClient, kind: str) -> None:
    given = {"kind": kind, "who": "user:ada", "for": "1h", "reason": "oops"}
    ada.environ_base["HTTP_X_USER"] = "ada"
    pages = [previewed(ada, **given), previewed(ada, **{**given, "who": "user:bob"})]

    assert confirm(ada, **given).status_code == 409
    assert entries_of(app) == []
    assert ["This is you" in page.text for page in pages] == [True, False]
    ada.environ_base["HTTP_X_USER"] = "bob"
    assert confirm(ada, **given).status_code == 303


def test_entry_can_be_undone_once(app: Flask, ada: FlaskClient) -> None:
    page = ada.get(confirm(ada, **RULE).location)

    answer = send(ada, page, ending="/undo")

    assert answer.status_code == 303
    assert entries_of(app) == []
    assert "Undone in all workers" in ada.get(answer.location).text
    assert statuses(app, *["/"] * 3) == [200, 200, 429]
    assert "undone" in ada.get(f"{ROOT}history").text
    again = send(ada, page, ending="/undo")
    assert again.status_code == 409
    assert "The last change: ada undo rule ip-60s at show" in again.text


def test_failed_undo_says_why_while_the_entry_is_in_force(app: Flask, ada: FlaskClient) -> None:
    page, store = ada.get(confirm(ada, **RULE).location), gate_of(app).applier.follower.store
    change = Change(at=0, author="", reason="", what="set", entry="", id="", replaces="")
    store.write(store.read("").stamp, '{"format": 2, "entries": []}', change)

    answer = send(ada, page, ending="/undo")

    assert answer.status_code == 409
    assert "written by a newer version" in answer.text
    assert "no longer in force" not in answer.text


def test_links_of_the_conflict_page_work(app: Flask, ada: FlaskClient) -> None:
    control = control_of(app)
    entry = [control.deny(f"198.51.100.{number}", lasting=True) for number in range(60)][-1]
    page = ada.get(f"{ROOT}lists")
    control.undo(entry.id)

    answer = send(ada, page, ending="/undo")

    assert answer.status_code == 409
    links = {unescape(each) for each in re.findall('href="([^"#]+)"', answer.text) if "/static/" not in each}
    assert f"{ROOT}lists?page=2" in links
    assert {each: ada.get(each).status_code for each in links} == dict.fromkeys(links, 200)


def test_lists_can_be_searched_and_paged(app: Flask, ada: FlaskClient) -> None:
    control = control_of(app)
    for number in range(60):
        control.deny(f"198.51.100.{number}", lasting=True, reason=f"number {number}", author="bob")
    control.ban("user:x", for_="1h")

    first = ada.get(f"{ROOT}api/lists").get_json()
    bans = ada.get(f"{ROOT}api/lists?kind=ban").get_json()
    found = ada.get(f"{ROOT}api/lists?q=number%207").get_json()

    assert (first["counts"]["ban"], first["counts"]["deny"]) == (1, 60)
    assert first["paging"] == {"page": 1, "pages": 3, "total": 61}
    assert [each["text"] for each in bans["entries"]] == ["ban user:x"]
    assert [each["who"] for each in found["entries"]] == ["198.51.100.7"]


def test_empty_lists_and_history_say_so(ada: FlaskClient) -> None:
    assert "No changes: all limits are as declared" in ada.get(f"{ROOT}lists").text
    assert "Nothing has been changed yet." in ada.get(f"{ROOT}history").text
    assert "No entry matches." in ada.get(f"{ROOT}lists?q=x").text


def test_lists_of_the_settings_and_of_the_file_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text('{"allow": ["user:ann"]}', encoding="utf-8")
    app = made(MULTILIMIT_DENY=["192.0.2.0/24"], MULTILIMIT_FILE=str(file))
    ada = browser_of("ada", app)
    control_of(app).deny("192.0.2.9", lasting=True)

    declared = ada.get(f"{ROOT}api/lists").get_json()["declared"]
    page = ada.get(f"{ROOT}lists").text

    assert declared == [
        {"kind": "allow", "text": "allow user:ann", "from": f"{file}: allow"},
        {"kind": "deny", "text": "deny 192.0.2.0/24", "from": "MULTILIMIT_DENY"},
    ]
    assert all(each["text"] in page and each["from"] in page for each in declared)


# Authors and settings that forbid changes


def test_author_without_the_right_to_change_changes_nothing() -> None:
    may_change = {"ada", "bob"}
    app = made(dashboard={"may_change": may_change.__contains__})
    bob = browser_of("bob", app)
    own = _token(bob)
    may_change.remove("bob")

    page = previewed(bob, **RULE)
    forms = [each for each in forms_of(page.text) if each["method"] == "post"]
    answers = [bob.post(CHANGE, data={**RULE, "token": each}) for each in (own, _token(browser_of("ada", app)))]

    assert page.status_code == 200
    assert "You may look, but not change anything." in page.text
    assert forms == []
    assert f'href="{CHANGE}' not in bob.get(f"{ROOT}limits").text
    assert [each.status_code for each in answers] == [403, 403]
    assert entries_of(app) == []
    assert confirm(browser_of("ada", app), **RULE).status_code == 303


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"SECRET_KEY": None}, "SECRET_KEY is not set, so nothing can be changed here"),
        ({"MULTILIMIT_CONTROL": False}, "MULTILIMIT_CONTROL or MULTILIMIT_ENABLED is False"),
    ],
)
def test_pages_say_when_nothing_can_be_changed(settings: dict[str, Any], told: str) -> None:
    ada = browser_of("ada", made(**settings))
    page = previewed(ada, **RULE)
    assert (page.status_code, told in page.text) == (200, True)
    assert ada.post(CHANGE, data={**RULE, "token": "x"}).status_code == 403


# Forged forms


FOREIGN, EXPIRED = "This form was not sent by a page of this dashboard", "opened too long ago"
FORGERIES: dict[str, tuple[Callable[[Flask, FlaskClient], None], dict[str, str], str]] = {
    "without its cookie": (lambda _, ada: ada.delete_cookie("multilimit_form", path=ROOT), {}, EXPIRED),
    "by somebody else": (lambda app, ada: ada.environ_base.update(browser_of("bob", app).environ_base), {}, EXPIRED),
    "by another key": (lambda app, _: setattr(app, "secret_key", "another"), {}, FOREIGN),
    "from another site": (lambda *_: None, {"Sec-Fetch-Site": "cross-site"}, FOREIGN),
}


@pytest.mark.parametrize(("forge", "headers", "told"), FORGERIES.values(), ids=FORGERIES)
def test_forged_token_changes_nothing(
    app: Flask, ada: FlaskClient, forge: Callable[[Flask, FlaskClient], None], headers: dict[str, str], told: str
) -> None:
    token = _token(ada)
    forge(app, ada)

    answer = ada.post(CHANGE, data={**RULE, "token": token}, headers=headers)

    assert (answer.status_code, told in answer.text) == (403, True)
    assert entries_of(app) == []


def test_missing_or_expired_token_changes_nothing(
    app: Flask, ada: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = _token(ada)
    monkeypatch.setattr("flask_multilimit.operate.dashboard.forms.LIVES_SECONDS", -1)

    without, old = (ada.post(CHANGE, data={**RULE, **given}) for given in ({}, {"token": token}))

    assert (without.status_code, FOREIGN in without.text) == (403, True)
    assert (old.status_code, EXPIRED in old.text) == (403, True)
    assert entries_of(app) == []


def test_token_of_a_fallback_secret_key_is_valid(app: Flask, ada: FlaskClient) -> None:
    token = _token(ada)
    app.config["SECRET_KEY_FALLBACKS"] = [app.secret_key]
    app.secret_key = "another"
    assert ada.post(CHANGE, data={**RULE, "token": token}).status_code == 303


def test_form_cookie_has_strict_attributes(app: Flask) -> None:
    plain, tls = (
        browser_of("ada", app).get(CHANGE, query_string=RULE, base_url=base).headers["Set-Cookie"]
        for base in ("http://localhost", "https://localhost")
    )

    ada = browser_of("ada", app)
    set_ = [ada.get(CHANGE, query_string=RULE).headers.getlist("Set-Cookie") for _ in range(2)]

    assert [len(each) for each in set_] == [2, 0], "a browser that has the cookies gets them once"
    assert {"HttpOnly", "SameSite=Strict", f"Path={ROOT}"} <= set(plain.split("; "))
    assert ("Secure" in plain, "Secure" in tls) == (False, True)


def test_form_cookie_is_set_by_a_response_class_of_the_app_that_takes_options_by_name(app: Flask) -> None:
    class Own(Response):
        def set_cookie(self, key: str, value: str = "", **options: Any) -> None:  # type: ignore[override]
            super().set_cookie(key, value, **options)

    app.response_class = Own

    assert len(browser_of("ada", app).get(CHANGE, query_string=RULE).headers.getlist("Set-Cookie")) == 2


def test_get_requests_change_nothing(app: Flask, ada: FlaskClient) -> None:
    assert ada.get(f"{ROOT}undo").status_code == 405
    ada.get(CHANGE, query_string={**RULE, "force": "1", "token": _token(ada)})
    assert entries_of(app) == []


def test_forms_work_beside_flask_wtf_csrf_protection() -> None:
    app = Flask("shop")
    app.secret_key = "key"
    CSRFProtect(app)
    multilimit = MultiLimit(app, application_limits={"type": "ip", "rules": "100/minute", "name": "all"})
    app.add_url_rule("/", "show", lambda: "ok")
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ada"))
    given = {**RULE, "part": "all", "what": "off"}

    assert confirm(app.test_client(), **given).status_code == 303
    assert entries_of(app) == ["at show: off"]


# Rate limits of the forms


def test_changes_are_rate_limited(ada: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_multilimit.operate.dashboard.visit.CHANGES", "2/minute")
    token = _token(ada)

    answers = [ada.post(CHANGE, data={**RULE, "token": token}) for _ in range(3)]

    assert [each.status_code for each in answers] == [303, 303, 429]
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    assert "Too many changes" in answers[-1].text


# Outages


@pytest.mark.parametrize(
    ("workers", "meanwhile"),
    [(1, "the only worker admits each limit in full."), (3, "admits 1/3 of a limit; one below 3 admits nobody.")],
)
def test_pages_and_api_say_what_clients_get_in_an_outage(
    server_binaries: dict[str, Binary], workers: int, meanwhile: str
) -> None:
    with Server(next(iter(server_binaries.values()))) as server:
        app = made(server.url, MULTILIMIT_WORKERS=workers)
        app.test_client().get("/show")
    ada = browser_of("ada", app)

    assert ada.get(f"{ROOT}api/now").get_json()["storage"]["meanwhile"].endswith(meanwhile)
    assert meanwhile in ada.get(ROOT).text


@pytest.mark.parametrize("page", ["", "limits", "lists", "history", "subject?who=203.0.113.7", "change", "what-if"])
def test_pages_show_begin_and_effect_of_an_outage(server_binaries: dict[str, Binary], page: str) -> None:
    with Server(next(iter(server_binaries.values()))) as server:
        app = made(server.url, MULTILIMIT_WORKERS=3)
        ada = browser_of("ada", app)
        assert "does not answer" not in ada.get(ROOT + page).text
    for _ in range(10):
        app.test_client().get("/show")

    found = ada.get(ROOT + page)

    assert found.status_code == 200
    assert "The storage fails:" in found.text
    assert (
        "unless a limiter says otherwise, each worker admits 1/3 of a limit; one below 3 admits nobody." in found.text
    )
    assert re.search(r"[^.]\. Down since <time ", found.text)
    assert ("Numbers are from" in found.text) == (page in {"", "lists"})
    assert 'class="verdict done"' not in found.text
    assert "all limits are as declared" not in found.text
    assert ("Bans that limits started</h2><p>Not known." in found.text) == (page == "lists")


@pytest.mark.parametrize("page", ["", "limits", "lists", "history", "subject?who=203.0.113.7", "change", "what-if"])
def test_pages_show_why_the_server_of_local_storage_cannot_start(tmp_path: Path, page: str) -> None:
    directory = tmp_path / "shared"
    app = made(f"local://{directory}", MULTILIMIT_WORKERS=1)
    directory.mkdir()
    directory.chmod(0o755)
    app.test_client().get("/")

    found = browser_of("ada", app).get(ROOT + page)

    assert found.status_code == 200
    assert "The storage fails:" in found.text


def test_failed_change_shows_the_error_of_the_storage() -> None:
    app = made(failing(StorageError("it is asleep"), "run_script"))
    ada = browser_of("ada", app)

    answer = confirm(ada, **RULE)

    undone = ada.post(f"{ROOT}undo", data={"id": "x", "token": _token(ada)})

    assert (answer.status_code, undone.status_code) == (503, 503)
    assert "it is asleep" in answer.text
    assert "it is asleep" in undone.text
    assert "it is asleep" in ada.get(f"{ROOT}lists").text


def test_history_shows_which_entry_a_change_replaced_and_whose_that_was(app: Flask) -> None:
    for author in ("ann", "bob"):
        control_of(app).deny("192.0.2.1", for_="1h", author=author)

    page = browser_of("ada", app).get(f"{ROOT}history").text

    assert page.count("It replaces: deny 192.0.2.1 by ann<") == 1


@pytest.mark.parametrize(
    ("since", "until"), [(1e308, None), (1e12, 1e308), (-1e308, 1e300), (253_402_300_800.0, 253_402_300_801.0)]
)
def test_entry_beyond_the_year_9999_is_shown(app: Flask, since: float, until: float | None) -> None:
    listed = {"id": "0123abcd", "kind": "deny", "who": "192.0.2.1", "since": since, "until": until}
    rule = {"id": "0123abce", "kind": "override", "endpoint": "show", "rule": "ip-60s", "rules": "9/minute"}
    entries = [listed, {**rule, "since": since, "until": until}]
    store = gate_of(app).applier.follower.store
    change = Change(at=since, author="", reason="", what="set", entry="deny 192.0.2.1", id="0123abcd", replaces="")
    store.write(store.read("").stamp, json.dumps({"format": 1, "entries": entries}), change)
    ada = browser_of("ada", app)

    for page in ("", "limits", "lists", "history", "subject?who=192.0.2.1", "api/lists", "api/history", "api/limits"):
        assert ada.get(ROOT + page).status_code == 200, page
    assert "deny 0123abcd" in app.test_cli_runner().invoke(args=["multilimit", "why", "192.0.2.1"]).output
