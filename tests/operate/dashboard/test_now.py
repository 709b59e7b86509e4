"""The page Now, and the same as JSON."""

import re
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import IP, Ban, rate_limiter
from flask_multilimit.engine import StorageError
from flask_multilimit.engine.storage import MemoryStorage
from flask_multilimit.insight.traffic import MEMORY, memory_of
from flask_multilimit.serve.gate import gate_of
from support.asking import ask, pass_a_second, statuses, view
from support.doubles import raising
from support.forks import forked

from .conftest import ROOT, browser_of, made


def flush_traffic(app: Flask) -> None:
    """Flush the traffic, and forget what pages have read of it."""
    pass_a_second(app)
    app.extensions.pop(MEMORY, None)


def json_of(browser: FlaskClient, page: str) -> Any:
    return browser.get(f"{ROOT}api/{page}").get_json()


CLIENT = {"REMOTE_ADDR": "203.0.113.7"}


def send_requests(app: Flask, times: int = 5, path: str = "/", **options: Any) -> None:
    """Send this number of requests of one client, and flush their traffic."""
    for _ in range(times):
        ask(app, path, environ_base=CLIENT, **options)
    flush_traffic(app)


def test_page_now_without_traffic_says_what_to_do_and_links_bans_to_their_list(ada: FlaskClient) -> None:
    page = ada.get(ROOT).text
    assert page.count('href="/multilimit/lists?kind=ban"') == 2
    assert "No limit was checked in this time." in page
    assert "Send a request to a view that has a limit" in page
    assert "Nobody was refused in this time." in page


def test_page_now_shows_refused_clients(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)

    page = ada.get(ROOT).text

    assert "3 in the hour, 60.0 %" in page
    assert f'href="{ROOT}?endpoint=show"' in page
    assert "203.0.113.7" in page
    assert "ip-60s" in page


def test_api_now_has_the_numbers_of_the_page(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)

    found = json_of(ada, "now")

    assert found["totals"]["passed"]["amount"] == 2
    assert found["totals"]["refused"]["amount"] == 3
    assert [each["endpoint"] for each in found["endpoints"]] == ["show"]
    assert sum(found["series"]["refused"]) == 3
    assert found["subjects"][0]["shown"] == "203.0.113.7"
    (rule,) = found["rules"]
    did = {"refuses": 3, "near": 1, "shadows": 0, "bans": 0, "returned": 0, "added": 0}
    assert rule == {"endpoint": "show", "rule": "ip-60s", **did}
    assert found["storage"]["state"] == "working"


def test_page_now_can_be_limited_to_an_endpoint(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)
    send_requests(app, 3, "/mine", headers={"X-User": "ada"})

    found = json_of(ada, "now?endpoint=api.mine")

    assert found["totals"]["passed"]["amount"] == 2
    assert [each["type"] for each in found["subjects"]] == ["user"]
    assert "<title>api.mine" in ada.get(f"{ROOT}?endpoint=api.mine").text


def test_endpoints_can_be_searched_sorted_and_paged() -> None:
    app = made()
    for number in range(60):
        app.add_url_rule(f"/v/{number}", f"view{number:02}", rate_limiter(rules="1000/minute")(lambda: "ok"))
    for number in range(60):
        ask(app, f"/v/{number}")
    send_requests(app, 5)
    ada = browser_of("ada", app)

    first = json_of(ada, "now")
    third = json_of(ada, "now?page=3")
    found = json_of(ada, "now?q=W4&sort=name")

    assert first["paging"] == {"page": 1, "pages": 3, "total": 61}
    assert first["endpoints"][0]["endpoint"] == "show"
    assert "Page 1 of 3" in ada.get(ROOT).text
    assert len(third["endpoints"]) == 11
    assert [each["endpoint"] for each in found["endpoints"]] == [f"view4{digit}" for digit in range(10)]
    page = ada.get(f"{ROOT}?page=2").text
    assert "Page 2 of 3" in page
    assert f"{ROOT}?page=3" in page


def test_options_of_url_for_in_the_query_are_ignored(app: Flask, ada: FlaskClient) -> None:
    send_requests(app)
    page = ada.get(f"{ROOT}?_scheme=javascript&_external=1&_anchor=x&name=y&filename=z").text
    assert "javascript://" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_requests_to_the_dashboard_are_not_counted() -> None:
    app = made(MULTILIMIT_APPLICATION_LIMITS="3/minute", MULTILIMIT_ALLOW=["198.51.100.0/24"])
    ada = browser_of("ada", app)
    ada.environ_base["REMOTE_ADDR"] = "198.51.100.7"

    answers = [ada.get(ROOT).status_code for _ in range(5)]
    flush_traffic(app)

    assert answers == [200] * 5
    assert json_of(ada, "now")["endpoints"] == []


def test_page_now_says_when_traffic_is_switched_off() -> None:
    page = browser_of("ada", made(MULTILIMIT_TRAFFIC=False)).get(ROOT).text
    assert "MULTILIMIT_TRAFFIC is False: nothing is counted." in page


@pytest.mark.parametrize(
    ("settings", "path", "user"),
    [({"MULTILIMIT_TRAFFIC_SUBJECTS": "hashed"}, "/", ""), ({}, "/mine", "a" * 80)],
    ids=["hashed", "shortened"],
)
def test_hashed_and_shortened_subjects_have_no_link(settings: dict[str, Any], path: str, user: str) -> None:
    app = made(**settings)
    send_requests(app, 3, path, headers={"X-User": user})
    ada = browser_of("ada", app)

    (found,) = json_of(ada, "now")["subjects"]
    page = ada.get(ROOT).text

    assert found["known"] is False
    assert "203" not in found["shown"]
    assert f'<span class="subject">{found["shown"]}</span>' in page
    assert "subject?type=" not in page


@pytest.mark.parametrize(
    ("type_", "banned"),
    [("default", ""), ((IP, "header:X-User"), ""), (IP, "203.0.113.7"), ("header:X-User", "x-user:ada")],
)
def test_page_now_offers_to_ban_those_whom_a_list_can_name(type_: Any, banned: str) -> None:
    app = made()
    app.add_url_rule("/a", "a", rate_limiter(type=type_, rules="1/minute")(view()))
    send_requests(app, 2, "/a", headers={"X-User": "ada"})

    page = browser_of("ada", app).get(ROOT).text

    offered = re.findall(r'href="[^"]*change\?kind=ban&amp;who=([^"]*)"', page)
    assert [unquote(each) for each in offered] == [banned] * bool(banned)
    assert "subject?type=" in page


@pytest.mark.parametrize("path", ["/mine", "/service"])
def test_pages_offer_no_entry_about_a_type_that_lists_do_not_know(path: str) -> None:
    app = made()
    service = rate_limiter(type=lambda: "ada", name="caller", rules="2/minute")(view())
    app.add_url_rule("/service", "service", lambda: service())  # noqa: PLW0108
    send_requests(app, 3, path)
    browser = browser_of("ada", app)

    page = browser.get(ROOT).text
    (why,) = re.findall(r'href="([^"]*subject\?type=[^"]*)"[^>]*aria-label', page)

    assert "change?kind=ban" not in page
    assert "change?kind=" not in browser.get(unescape(why)).text


def test_client_with_several_refusing_rules_has_one_row() -> None:
    app = made()
    ban = Ban(after=2, within=60, time=600)
    app.add_url_rule("/a", "a", rate_limiter(type=IP, rules="1/minute; 2/hour", ban=ban)(view()))
    app.add_url_rule("/b", "b", rate_limiter(type=IP, rules="1/minute")(view()))
    answers = statuses(app, *["/a"] * 6, *["/b"] * 3, environ_base=CLIENT)
    flush_traffic(app)
    ada = browser_of("ada", app)

    (client,) = json_of(ada, "now")["subjects"]

    assert client["refused"] == answers.count(429) == 7
    assert {(each["endpoint"], each["rule"]): each["refused"] for each in client["rules"]} == {
        ("a", "ip-ban"): 4,
        ("b", "ip-60s"): 2,
        ("a", "ip-60s"): 1,
    }
    page = ada.get(ROOT).text
    assert page.count(">203.0.113.7</a>") == 1
    assert 'aria-label="Why 203.0.113.7"' in page
    assert 'aria-label="Ban 203.0.113.7"' in page


def test_page_now_keeps_the_last_slots_while_storage_is_down() -> None:
    storage: Any = MemoryStorage()
    storage.shared = True
    app = made(storage)
    app.add_url_rule("/export", "export", rate_limiter(type=IP, rules="5 at once")(lambda: iter("abc")))
    ada = browser_of("ada", app)
    assert "In progress" not in ada.get(ROOT).text
    app.extensions.pop("multilimit_slots")

    with app.test_client().get("/export", environ_base=CLIENT), app.test_client().get("/export", environ_base=CLIENT):
        page = ada.get(ROOT).text
        assert "In progress" in page
        assert '<dt>export <span class="soft">203.0.113.7</span></dt><dd>2 of 5</dd>' in page
        slots = json_of(ada, "slots")
        assert [(each["endpoint"], each["used"], each["limit"]) for each in slots["slots"]] == [("export", 2, 5)]
        storage.keys = raising(StorageError("it is away"))
        app.extensions["multilimit_slots"] = (0.0, app.extensions["multilimit_slots"][1])
        page = ada.get(ROOT).text
        assert "it is away" in page
        assert "<dd>2 of 5</dd>" in page


def test_forked_child_reads_traffic_anew() -> None:
    gate = gate_of(made())
    of_parent = memory_of(gate)
    assert memory_of(gate) is of_parent is not None
    assert forked(lambda: memory_of(gate) not in {of_parent, None})()
