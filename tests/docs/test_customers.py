"""The page about showing customers what is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from support.asking import ask, statuses

if TYPE_CHECKING:
    from flask import Flask

PAGE = "docs/how-to/customers.md"
Run = Callable[..., dict[str, Any]]


def test_a_browser_gets_a_page(run: Run) -> None:
    app: Flask = run(PAGE)["app"]

    assert "<meter" in ask(app, "/rate_limit", headers={"Accept": "text/html", "X-User": "ada"}).text


def test_a_client_sees_the_chosen_limits_by_their_labels(run: Run) -> None:
    app: Flask = run(PAGE, "labels")["app"]

    found = json.loads(ask(app, "/account/limits").text)["resources"]

    assert {name: each["label"] for name, each in found.items()} == {"api.search:ip-86400s": "Searches per day"}


def test_a_page_of_the_app_shows_the_same(run: Run) -> None:
    app: Flask = run(PAGE, "own-page")["app"]
    statuses(app, "/search")

    assert ask(app, "/account").text == "<p>ip-86400s: 999 left</p>"


def test_the_blueprint_can_be_limited(run: Run) -> None:
    app: Flask = run(PAGE, "limited")["app"]

    assert ask(app, "/rate_limit").headers["RateLimit-Policy"] == '"ip-60s";q=60;w=60'


def test_support_sees_a_customer_by_the_plan_of_that_customer(run: Run) -> None:
    app: Flask = run(PAGE, "support")["app"]
    statuses(app, "/search", headers={"X-User": "bob"})

    assert json.loads(ask(app, "/support/bob").text)["left"] == {"50 per day": 49}
    assert json.loads(ask(app, "/support/ada").text)["left"] == {"1000 per day": 1000}
