"""The page Limits, and the same as JSON."""

from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import IP, rate_limiter
from support.changes import control_of

from .conftest import ROOT, browser_of, made
from .test_now import send_requests


def limits(browser: FlaskClient, query: str = "") -> Any:
    return browser.get(f"{ROOT}api/limits{query}").get_json()


def names(found: Any) -> list[str]:
    return [each["endpoint"] for each in found["endpoints"]]


def test_limits_page_lists_every_endpoint_but_its_own(ada: FlaskClient) -> None:
    assert names(limits(ada)) == ["api.mine", "open", "show", "static"]


def test_limits_show_rules_and_place_of_declaration(ada: FlaskClient) -> None:
    found = limits(ada, "?q=mine")["endpoints"][0]

    assert [row["text"] for row in found["limits"]] == ["2 per minute", "50 per hour"]
    assert [row["type"] for row in found["limits"]] == ["user", "user"]
    assert found["routes"] == [{"path": "/mine", "methods": ["GET"]}]
    page = ada.get(f"{ROOT}limits").text
    assert "2 per minute" in page
    assert found["limits"][0]["from"].replace("<", "&lt;").replace(">", "&gt;") in page


def test_limits_can_be_searched_by_name_path_rule_and_type(ada: FlaskClient) -> None:
    assert names(limits(ada, "?q=MINE")) == ["api.mine"]
    assert names(limits(ada, "?q=/open")) == ["open"]
    assert names(limits(ada, "?q=user-3600s")) == ["api.mine"]
    assert names(limits(ada, "?q=ip")) == ["show"]
    assert "No endpoint matches." in ada.get(f"{ROOT}limits?q=nothing").text


def test_limits_can_be_filtered_by_state(app: Flask, ada: FlaskClient) -> None:
    control_of(app).override("show", shadow=True, for_="1h", author="bob", reason="too strict")
    assert names(limits(ada, "?show=unlimited")) == ["open", "static"]
    assert names(limits(ada, "?show=shadow")) == ["show"]
    assert names(limits(ada, "?show=changed")) == ["show"]


def test_override_is_shown_with_author_and_reason(app: Flask, ada: FlaskClient) -> None:
    control_of(app).override("show", rule="ip-60s", rules="9/minute", for_="1h", author="bob", reason="sale")

    (row,) = limits(ada, "?q=show")["endpoints"][0]["limits"]
    page = ada.get(f"{ROOT}limits?q=show").text

    assert (row["text"], row["changed"], row["declared"]) == ("9 per minute", True, "ip limiter (2 per minute)")
    assert "declared: ip limiter (2 per minute)" in page
    assert "by bob" in page
    assert "sale" in page


def test_limit_that_is_switched_off_stays_listed(app: Flask, ada: FlaskClient) -> None:
    control_of(app).override("show", off=True, for_="1h")
    found = limits(ada, "?q=show")["endpoints"][0]
    assert found["limits"] == []
    assert [each["text"] for each in found["changes"]] == ["at show: off"]


def test_overrides_for_subjects_are_shown_with_their_limiter(app: Flask, ada: FlaskClient) -> None:
    for number in range(5):
        control_of(app).override("show", who=f"192.0.2.{number}", rules="9/minute", for_="1h")

    (row,) = limits(ada, "?q=show")["endpoints"][0]["limits"]

    assert len(row["entries"]) == 3
    assert row["entries_in_all"] == 5
    assert "and 2 more" in ada.get(f"{ROOT}limits?q=show").text


def test_endpoints_are_paged() -> None:
    app = made(MULTILIMIT_UNMATCHED_LIMITS="20/minute")
    for number in range(60):
        app.add_url_rule(f"/v/{number}", f"view{number:02}", rate_limiter(rules="1000/minute")(lambda: "ok"))
    ada = browser_of("ada", app)

    third = limits(ada, "?page=3")

    assert third["paging"] == {"page": 3, "pages": 3, "total": 65}
    assert names(third)[-1] == "unmatched"
    assert "requests that match no route" in ada.get(f"{ROOT}limits?page=3").text


@pytest.mark.parametrize("name", ["long" * 50, "two\nlines"], ids=["long", "two lines"])
def test_traffic_is_shown_for_endpoints_with_unusual_names(app: Flask, ada: FlaskClient, name: str) -> None:
    app.add_url_rule("/named", name, rate_limiter(type=IP, rules="2/minute")(lambda: "ok"))
    send_requests(app, path="/named")
    (found,) = limits(ada, "?q=/named")["endpoints"]
    assert found["limits"][0]["traffic"]["refuses"] == 3


def test_names_and_queries_are_escaped(app: Flask, ada: FlaskClient) -> None:
    evil = "<img src=x onerror=alert(1)>"
    app.add_url_rule("/evil&<b>'\"", evil, rate_limiter(rules="1/minute")(lambda: "ok"))

    for page in ("limits", f"change?endpoint={evil}", f"lists?q={evil}", f"history?q={evil}"):
        text = ada.get(ROOT + page).text
        assert "&lt;img src=x" in text, page
        assert "<img src=x" not in text
        assert "<b>" not in text
    assert "<img src=x" not in ada.get(f"{ROOT}lists?undone={evil}").text


def test_links_use_url_prefix_and_application_root() -> None:
    app = made(dashboard={"url_prefix": "/ops/limits"}, APPLICATION_ROOT="/shop")
    ada = browser_of("ada", app)

    page = ada.get("/ops/limits/", base_url="http://localhost/shop").text

    assert 'href="/shop/ops/limits/limits"' in page
    assert 'href="/shop/ops/limits/static/dashboard.css' in page
    assert 'href="/multilimit' not in page


def test_limit_of_several_methods_is_one_row_beside_changes(app: Flask, ada: FlaskClient) -> None:
    app.add_url_rule("/form", "form", rate_limiter(rules="9/minute")(lambda: "ok"), methods=["GET", "POST"])
    control_of(app).override("form", limit="400/hour", for_="1h")
    control_of(app).override("show", shadow=True, for_="1h")

    rows = limits(ada, "?q=form")["endpoints"][0]["limits"]

    assert [(row["text"], row["methods"], row["changed"]) for row in rows] == [
        ("9 per minute", None, False),
        ("400 per hour", None, True),
    ]
