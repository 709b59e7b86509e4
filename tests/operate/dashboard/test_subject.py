"""The page Subject: what is left to a client, and how to reset it."""

import re
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from markupsafe import escape
from werkzeug.test import TestResponse

from flask_multilimit import IP, USER, Ban, MultiLimit, rate_limiter
from flask_multilimit.control import Control, Who
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import StorageError
from flask_multilimit.engine.text import quoted
from support.asking import statuses, view
from support.changes import control_of
from support.doubles import failing, raising

from .conftest import ROOT, browser_of, made
from .forms import forms_of, send
from .test_now import send_requests

SUBJECT = f"{ROOT}subject"
CLIENT, ASKED = {"REMOTE_ADDR": "203.0.113.7"}, {"who": "203.0.113.7"}


def found(browser: FlaskClient, **query: str) -> Any:
    return browser.get(f"{ROOT}api/subject", query_string=query).get_json()["found"]


def verdict_of(browser: FlaskClient, **query: str) -> str:
    """The verdict about the client, as HTML."""
    page = browser.get(SUBJECT, query_string={**ASKED, **query}).text
    (verdict,) = re.findall('class="verdict.*?</strong>', page, re.DOTALL)
    return str(verdict)


def rules(about: Any) -> dict[str, tuple[int, int]]:
    """The used and remaining units, by endpoint and rule."""
    return {
        f"{each['endpoint']} {rule['name']}": (rule["used"], rule["remaining"])
        for each in about["requests"]
        for rule in each["rules"]
    }


def test_page_without_a_client_offers_a_search(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)
    page = ada.get(SUBJECT).text
    assert "Look up an address, a network, or a subject" in page
    assert 'value=203.0.113.7">203.0.113.7</a>' in page


def test_page_about_a_digest_offers_no_entry_which_would_not_be_about_its_client(ada: FlaskClient) -> None:
    page = ada.get(SUBJECT, query_string={"who": f"user:*{'0a' * 20}"}).text
    assert "this is the digest of a long subject" in page
    assert "change?kind=" not in page


def test_page_shows_quotas_and_refusals_of_an_address(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)

    about = found(ada, **ASKED)

    assert rules(about) == {"show ip-60s": (2, 0), "api.mine user-60s": (0, 2), "api.mine user-3600s": (0, 50)}
    assert [each["allowed"] for each in about["requests"]] == [False, True]
    assert (about["state"], about["untouched"]) == ("refused", 1)
    assert [(each["endpoint"], each["refused"]) for each in about["refusals"]] == [("show", 3)]
    page = ada.get(SUBJECT, query_string=ASKED).text
    assert "while not logged in" in page
    assert "refused" in page


def test_debt_is_shown_as_units_over(app: Flask, ada: FlaskClient) -> None:
    with app.test_request_context(environ_base=CLIENT):
        multilimit = app.extensions["multilimit"]
        multilimit.settle(multilimit.check("2/minute", type=IP, scope="show"), 342)

    page, about = ada.get(SUBJECT, query_string=ASKED).text, found(ada, **ASKED)

    assert ">340 over<" in page
    assert rules(about)["show ip-60s"] == (342, 0)
    assert (
        '<td class="n" data-label="剩余"><div class="cell">超出 340</div>'
        in ada.get(SUBJECT, query_string={**ASKED, "lang": "zh"}).text
    )


def test_page_links_the_quota_that_all_clients_without_a_login_share() -> None:
    app = made(MULTILIMIT_ANONYMOUS_USER="shared")
    statuses(app, *["/mine"] * 3)
    ada = browser_of("ada", app)

    page = ada.get(SUBJECT, query_string=ASKED).text
    (link,) = set(re.findall(r'<a href="([^"]+)">while not logged in</a>', page))

    assert "refused at api.mine by user-60s" in ada.get(unescape(link)).text
    assert "<a" not in ada.get(unescape(link)).text.partition("while not logged in")[0].rpartition("<th")[2]


def test_page_shows_quotas_of_a_user(app: Flask, ada: FlaskClient) -> None:
    statuses(app, "/mine", headers={"X-User": "a/b ..?#&é"})
    about = found(ada, who="user:a/b ..?#&é")
    assert rules(about) == {"api.mine user-60s": (1, 1), "api.mine user-3600s": (1, 49)}
    assert rules(found(ada, type="user", value="a/b ..?#&é")) == rules(about)


@pytest.mark.parametrize("asked", [{"who": "203.0.113.0/24"}, {"type": "ip", "value": "203.0.113.0/24"}], ids=str)
def test_network_shows_refusals_of_its_clients(app: Flask, ada: FlaskClient, asked: dict[str, str]) -> None:
    send_requests(app)

    about = found(ada, **asked)

    assert about["requests"] == []
    assert [each["subject"] for each in about["refusals"]] == ["203.0.113.7"]
    assert "a network is many clients" in ada.get(SUBJECT, query_string=asked).text


def test_combined_subject_can_be_looked_up() -> None:
    app = made()
    app.add_url_rule("/both", "both", rate_limiter(type=(USER, IP), rules="5/minute")(view()))
    send_requests(app, 7, "/both", headers={"X-User": "eve"})
    ada = browser_of("ada", app)

    top = ada.get(f"{ROOT}api/now").get_json()["subjects"][0]
    about = found(ada, type=top["type"], value=top["subject"])

    assert top["shown"] == "eve + 203.0.113.7"
    assert rules(about) == {"both user-ip-60s": (5, 0)}
    assert about["who"] == ""


def test_page_says_that_refusals_are_not_known_without_traffic() -> None:
    answers = [
        browser_of("ada", made(MULTILIMIT_TRAFFIC=counted)).get(SUBJECT, query_string=ASKED).text
        for counted in (True, False)
    ]

    assert ["It was not refused" in text for text in answers] == [True, False]
    assert "Nothing is known: traffic is not counted" in answers[1]


@pytest.mark.parametrize("who", ["user", "default:", "1.2.3.4/99", ":::", "a+b:c"])
def test_malformed_client_is_a_400_with_examples_and_stays_in_the_field(ada: FlaskClient, who: str) -> None:
    page = ada.get(SUBJECT, query_string={"who": who})
    assert page.status_code == 400
    assert f'name="who" value="{who}"' in page.text
    assert "give a network such as" in page.text


STRANGE = ["a\nb", "a\rb", "a\r\nb", "a\0b", "a ", " a", " ", '"a', '"a\\nb"', "a\u202eb"]


def test_page_without_an_answer_of_the_storage_is_a_503() -> None:
    app = made(failing(StorageError("it is asleep"), "tallies"))
    page = browser_of("ada", app).get(SUBJECT, query_string=ASKED)
    assert page.status_code == 503
    assert "it is asleep" in page.text


@pytest.mark.parametrize("user", STRANGE)
def test_client_with_unusual_characters_can_be_reset_and_banned(app: Flask, ada: FlaskClient, user: str) -> None:
    as_user = {**CLIENT, "HTTP_X_USER": user}
    assert statuses(app, *["/mine"] * 3, environ_base=as_user) == [200, 200, 429]
    page = ada.get(SUBJECT, query_string={"type": "user", "value": user})

    assert f'name="who" value="{escape(quoted(f"user:{user}"))}" placeholder' in page.text, "it looks like no other"
    assert "Quotas reset: 2." in ada.get(reset(ada, page).location).text
    assert statuses(app, "/mine", environ_base=as_user) == [200]
    preview = send(ada, ada.get(_link(page.text, "Ban")), ending="/change", reason="scraper")
    assert send(ada, preview, ending="/change", method="post").status_code == 303
    assert [each.who for each in control_of(app).entries()] == [Who(None, "user", user)]
    listed = ada.get(_link(ada.get(f"{ROOT}lists").text, re.escape(escape(quoted(f"user:{user}")))))
    assert send(ada, listed, ending="/unban").status_code == 303
    assert control_of(app).entries() == ()


def _link(page: str, text: str) -> str:
    """The address of the first link whose text has this beginning."""
    (address,) = re.findall(f'<a class="[a-z]+" href="([^"]*)">{text}', page)[:1]
    return unescape(address)


@pytest.mark.parametrize(
    ("user", "shown"), [("  ", '"  "'), ("a\n", '"a\\n"'), ("a\nb", r'"a\nb"'), (r"a\nb", r"a\nb")]
)
def test_spaces_and_new_lines_in_a_name_are_visible(ada: FlaskClient, user: str, shown: str) -> None:
    assert found(ada, type="user", value=user)["shown"] == shown


def test_page_shows_bans_and_overrides_by_operators(app: Flask, ada: FlaskClient) -> None:
    control = control_of(app)
    control.ban("203.0.113.7", for_="1h", author="bob", reason="scraper")
    control.override("show", who="203.0.113.0/24", rules="9/minute", for_="1h")
    control.deny("198.51.100.0/24", lasting=True)

    about = found(ada, **ASKED)
    page = ada.get(SUBJECT, query_string=ASKED).text

    assert [each["kind"] for each in about["entries"]] == ["ban", "override"]
    assert about["listed"]["action"] == "ban"
    assert rules(about)["show ip-60s"] == (0, 9)
    assert "refused everywhere with 429: banned by ban " in page
    assert "scraper" in page
    assert [each["kind"] for each in found(ada, who="198.51.100.0/22")["entries"]] == ["deny"]
    assert found(ada, who="192.0.2.1")["listed"] is None


@pytest.mark.parametrize(("listing", "passes"), [("allow", True), ("deny", False), ("ban", False)])
@pytest.mark.parametrize("used", [1, 3])
def test_page_says_of_a_listed_client_what_its_requests_get_whatever_limits_say(
    app: Flask, ada: FlaskClient, listing: str, *, passes: bool, used: int
) -> None:
    statuses(app, *["/"] * used, environ_base=CLIENT)
    getattr(control_of(app), listing)("203.0.113.7", for_="1h")
    assert _said(ada) == ({"passes"} if passes else {"refuses"})


def test_page_says_that_a_request_passes_which_only_a_shadow_refuses(app: Flask, ada: FlaskClient) -> None:
    control_of(app).override("show", limiter="ip", shadow=True, lasting=True, force=True)
    statuses(app, *["/"] * 3, environ_base=CLIENT)
    assert _said(ada) == {"passes"}


def _said(ada: FlaskClient) -> set[str]:
    """What the page says of requests."""
    return set(re.findall('tag (passes|refuses)"', ada.get(SUBJECT, query_string={"who": "203.0.113.7"}).text))


def test_client_on_a_list_of_the_settings_is_shown_as_allowed() -> None:
    ada = browser_of("ada", made(MULTILIMIT_ALLOW=["user:bob"]))

    about = found(ada, who="user:bob")

    listed = about["listed"]
    assert (about["state"], listed["where"], listed["who"]) == ("allowed", "MULTILIMIT_ALLOW", "user:bob")
    assert "passes everywhere: allowed by MULTILIMIT_ALLOW" in ada.get(SUBJECT, query_string={"who": "user:bob"}).text


@pytest.fixture
def banning() -> Flask:
    return app_that_bans()


def app_that_bans(**settings: Any) -> Flask:
    app = Flask("shop")
    app.config.update(settings)
    app.secret_key = "key"
    multilimit = MultiLimit(app)
    ban = Ban(after=2, within=60, time=600)
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute", ban=ban)(view()))
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ada"))
    return app


def test_each_cell_of_rules_and_bans_has_the_label_that_a_phone_shows_instead_of_headings(banning: Flask) -> None:
    statuses(banning, *["/"] * 5, environ_base=CLIENT)
    page = banning.test_client().get(SUBJECT, query_string=ASKED).text
    (ban,) = re.findall('<tr><th scope="row">ip-ban.*?</tr>', page, re.DOTALL)
    assert re.findall('<td[^>]* data-label="([^"]+)"', ban) == ["ban", "used", "a request", "resets in"]


def test_automatic_ban_is_shown_and_reset(banning: Flask) -> None:
    ada = banning.test_client()
    statuses(banning, *["/"] * 2, environ_base=CLIENT)
    before = found(ada, **ASKED)["requests"][0]["bans"][0]
    assert "refusals to go: 2" in ada.get(SUBJECT, query_string=ASKED).text
    statuses(banning, *["/"] * 3, environ_base=CLIENT)
    (banned,) = found(ada, **ASKED)["requests"]

    assert (before["holds"], before["strikes_left"]) == (False, 2)
    assert banned["bans"][0]["holds"] is True
    assert 590 < banned["retry_after"] <= 600
    page = ada.get(SUBJECT, query_string=ASKED)
    assert "banned" in page.text
    assert send(ada, page, ending="/reset").status_code == 303
    assert statuses(banning, "/", environ_base=CLIENT) == [200]


@pytest.mark.parametrize("control", [True, False], ids=["", "no change of limits is possible"])
def test_automatic_bans_are_listed_and_lifted(*, control: bool) -> None:
    app = app_that_bans(MULTILIMIT_CONTROL=control)
    ada = app.test_client()
    send_requests(app)

    page = ada.get(f"{ROOT}lists")

    assert "Bans that limits started" in page.text
    assert send(ada, page, ending="/unban", who="203.0.113.7 or so").status_code == 409
    lifted = send(ada, page, ending="/unban")
    assert "Bans lifted: 1." in ada.get(lifted.location).text
    changes = ada.get(f"{ROOT}api/history").get_json()["changes"]
    assert [(each["what"], each["entry"]) for each in changes] == ([("unban", "203.0.113.7")] if control else [])
    assert "Bans that limits started" not in ada.get(f"{ROOT}lists").text
    assert found(ada, **ASKED)["state"] == "refused"


def test_page_offers_no_reset_of_a_quota_that_everyone_shares() -> None:
    app = app_that_bans(MULTILIMIT_APPLICATION_LIMITS="1/minute")
    ada = app.test_client()
    assert statuses(app, *["/"] * 2, environ_base={"REMOTE_ADDR": "192.0.2.1"}) == [200, 429]

    page = ada.get(SUBJECT, query_string=ASKED)

    assert " by application-60s, for " in page.text
    assert [each["action"] for each in forms_of(page.text) if each["action"].endswith("/reset")] == []


@pytest.mark.parametrize("ban", [None, Ban(after=1, within=60, time=600)], ids=["refused", "banned"])
def test_page_offers_no_reset_and_no_lift_of_what_clients_without_a_login_share(ban: Ban | None) -> None:
    app = Flask("shop")
    app.config.update(SECRET_KEY="key", MULTILIMIT_ANONYMOUS_USER="shared")
    multilimit = MultiLimit(app, user_loader=lambda: None)
    app.add_url_rule("/", "show", rate_limiter(type=USER, rules="1/minute", ban=ban)(view()))
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ada"))
    assert statuses(app, *["/"] * 3, environ_base=CLIENT) == [200, 429, 429]
    ada = app.test_client()

    of_address, of_all = (ada.get(SUBJECT, query_string={"who": who}).text for who in ("203.0.113.7", "anonymous:"))

    assert "refused at show" in of_address
    assert [each["action"] for each in forms_of(of_address) if each["method"] == "post"] == []
    assert [each["action"] for each in forms_of(of_all) if each["method"] == "post"] != []


def test_lift_on_the_page_of_an_address_within_an_ipv6_client_ends_the_ban_of_that_address(
    app: Flask, ada: FlaskClient
) -> None:
    control_of(app).ban("2001:db8::7", for_=600)
    send(ada, ada.get(SUBJECT, query_string={"who": "2001:db8::7"}), ending="/unban")
    assert control_of(app).entries() == ()


def test_lift_on_the_page_of_an_address_ends_the_ban_of_its_network(app: Flask, ada: FlaskClient) -> None:
    control_of(app).ban("203.0.113.0/24", for_=600)
    send(ada, ada.get(SUBJECT, query_string=ASKED), ending="/undo")
    assert control_of(app).entries() == ()
    assert found(ada, **ASKED)["state"] == "passes"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_times_in_the_verdict_are_for_the_clock_of_the_reader(banning: Flask, language: str) -> None:
    send_requests(banning)
    verdict = verdict_of(banning.test_client(), lang=language)
    assert "ip-ban" in verdict
    assert len(re.findall(r'<time datetime="[-0-9T:]{19}Z">[-0-9]{10} [0-9:]{8} UTC</time>', verdict)) == 2


def test_wait_of_a_refused_client_is_in_chinese_beside_the_time_of_its_refusals(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)
    verdict = verdict_of(ada, lang="zh")
    assert "<time" in verdict
    assert re.search("[0-9] 秒", verdict), verdict


def test_endpoint_in_a_verdict_with_a_time_is_escaped(app: Flask, ada: FlaskClient) -> None:
    app.add_url_rule("/evil", "<b>evil</b>", rate_limiter(type=IP, rules="1/minute")(view()))
    send_requests(app, path="/evil")
    verdict = verdict_of(ada)
    assert "<time" in verdict
    assert "&lt;b&gt;evil&lt;/b&gt;" in verdict


def test_automatic_bans_can_be_searched_and_paged(banning: Flask) -> None:
    ada = banning.test_client()
    for number in range(30):
        send_requests(banning, environ_overrides={"REMOTE_ADDR": f"203.0.113.{number}"})

    first, second, found, none = (ada.get(f"{ROOT}lists{query}").text for query in ("", "?held=2", "?q=.29", "?q=ann"))

    shown = [set(re.findall(r'class="subject"[^>]*>([^<]+)', page)) for page in (first, second)]
    assert [len(each) for each in shown] == [25, 5]
    assert len(shown[0] | shown[1]) == 30
    assert 'href="/multilimit/lists?held=2"' in first
    assert re.findall(r'class="subject"[^>]*>([^<]+)', found) == ["203.0.113.29"]
    assert "Bans that limits started" not in none


# Resets


def reset(browser: FlaskClient, page: TestResponse, **fields: str) -> TestResponse:
    return send(browser, page, ending="/reset", **fields)


def test_reset_of_all_quotas_is_in_history(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)

    answer = reset(ada, ada.get(SUBJECT, query_string=ASKED))

    assert answer.status_code == 303
    assert "Quotas reset: 1." in ada.get(answer.location).text
    assert statuses(app, "/", "/", "/", environ_base=CLIENT) == [200, 200, 429]
    (change,) = ada.get(f"{ROOT}api/history").get_json()["changes"]
    assert (change["what"], change["entry"], change["author"]) == ("reset", "203.0.113.7 at all endpoints", "ada")


def test_reset_counts_used_quotas_only_and_is_in_history_only_if_there_were_any(app: Flask, ada: FlaskClient) -> None:
    statuses(app, "/", "/mine", environ_base=CLIENT)
    page = ada.get(SUBJECT, query_string=ASKED)

    first, second = (ada.get(reset(ada, page, endpoint="").location).text for _ in range(2))

    assert "Quotas reset: 3." in first
    assert "Quotas reset: 0." in second
    assert len(ada.get(f"{ROOT}api/history").get_json()["changes"]) == 1


def test_reset_succeeds_when_history_cannot_be_written(
    app: Flask, ada: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send_requests(app)
    page = ada.get(SUBJECT, query_string=ASKED)
    monkeypatch.setattr(Control, "note", raising(StorageError("NOPERM")))

    assert reset(ada, page).status_code == 303
    assert statuses(app, "/", environ_base=CLIENT) == [200]
    assert "Rate limits: the history does not show the reset of 203.0.113.7 at all endpoints: NOPERM" in caplog.text


def test_reset_of_one_endpoint_keeps_other_quotas(app: Flask, ada: FlaskClient) -> None:
    statuses(app, *["/", "/mine"] * 3, environ_base=CLIENT)
    page = ada.get(SUBJECT, query_string=ASKED)
    (form,) = [each for each in forms_of(page.text) if each["fields"].get("endpoint") == "show"]

    ada.post(form["action"], data=form["fields"])

    assert statuses(app, "/", "/mine", environ_base=CLIENT) == [200, 429]


@pytest.mark.parametrize("endpoint", ["show", ""])
@pytest.mark.parametrize(
    "change", [{"rule": "ip-60s", "rules": "9 per 2 minutes"}, {"off": True}], ids=["rules", "off"]
)
def test_reset_during_an_override_also_resets_declared_rules(
    app: Flask, ada: FlaskClient, change: dict[str, Any], endpoint: str
) -> None:
    send_requests(app)
    page = ada.get(SUBJECT, query_string=ASKED)
    control = control_of(app)
    entry = control.override("show", **change, for_="1h")

    assert reset(ada, page, endpoint=endpoint).status_code == 303

    control.undo(entry.id)
    assert statuses(app, "/", environ_base=CLIENT) == [200]


def test_reset_without_a_matching_limit_is_refused(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)
    page = ada.get(SUBJECT, query_string=ASKED)

    assert reset(ada, page, endpoint="open").status_code == 409
    assert reset(ada, page, endpoint="no such").status_code == 409
    assert reset(ada, page, token="forged").status_code == 403
    assert statuses(app, "/", environ_base=CLIENT) == [429]


def test_author_without_the_right_to_change_resets_nothing() -> None:
    app = made(dashboard={"may_change": lambda author: author == "ada"})
    send_requests(app)
    ada, bob = browser_of("ada", app), browser_of("bob", app)
    page = ada.get(SUBJECT, query_string=ASKED)

    assert {each["method"] for each in forms_of(bob.get(SUBJECT, query_string=ASKED).text)} <= {"get"}
    assert reset(bob, page).status_code == 403
    assert statuses(app, "/", environ_base=CLIENT) == [429]
