"""The limits of our own examples, tested as their authors would test them."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, cast

from flask_multilimit.testing import exhaust, freeze
from support.folders import EXAMPLES

if TYPE_CHECKING:
    from flask import Flask


def app_of(name: str) -> Flask:
    return cast("Flask", runpy.run_path(str(EXAMPLES / name))["app"])


def test_a_user_of_the_demo_may_call_twice_a_second() -> None:
    app = app_of("demo.py")
    ann = {"X-User": "ann"}

    with freeze(app) as clock:
        client = app.test_client()
        assert [client.get("/", headers=ann).status_code for _ in range(3)] == [200, 200, 429]
        assert client.get("/", headers={"X-User": "bob"}).status_code == 200
        clock.advance(1)
        assert client.get("/", headers=ann).status_code == 200


def test_the_demo_as_a_whole_takes_fifty_calls_in_ten_seconds() -> None:
    app = app_of("demo.py")

    with freeze(app) as clock:
        refusal = exhaust(app, "index", "everyone")
        refused = app.test_client().get("/", headers={"X-User": "bob"})
        assert refused.status_code == 429
        assert "We are busy" in refused.text
        clock.advance(refusal.retry_after)
        assert app.test_client().get("/", headers={"X-User": "bob"}).status_code == 200
