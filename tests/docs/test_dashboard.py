"""The ways to let people in that the page about the dashboard shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flask import Flask

PAGE = "docs/how-to/dashboard.md"
Run = Callable[..., dict[str, Any]]


def test_flask_login_lets_operators_in(run: Run) -> None:
    app: Flask = run(PAGE, "flask-login")["app"]

    assert status_of_user(app, None) == 403
    assert status_of_user(app, "bob") == 403
    assert status_of_user(app, "ann") == 200


def status_of_user(app: Flask, user: str | None) -> int:
    client = app.test_client()
    if user is not None:
        with client.session_transaction() as session:
            session["_user_id"] = user
    return client.get("/multilimit/").status_code


@pytest.mark.parametrize(
    ("credentials", "status"),
    [
        (None, 401),
        (("ann", "wrong"), 401),
        (("bob", "for this example only"), 401),
        (("ann", "for this example only"), 200),
    ],
)
def test_http_basic_lets_in_who_knows_the_password(run: Run, credentials: tuple[str, str] | None, status: int) -> None:
    app: Flask = run(PAGE, "basic")["app"]

    answer = app.test_client().get("/limits/", auth=credentials)

    assert answer.status_code == status
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)


def test_a_visitor_who_may_not_change_sees_no_forms(run: Run) -> None:
    app: Flask = run(PAGE, "may-change")["app"]

    page = app.test_client().get("/limits/lists").text

    assert "on call" in page
    assert 'method="post"' not in page
