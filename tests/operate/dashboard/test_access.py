"""Who is let in, and what a browser is told to forbid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, abort
from werkzeug.test import create_environ, run_wsgi_app

from flask_multilimit import MultiLimit
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import ConfigurationError

from .conftest import ROOT, browser_of, made

if TYPE_CHECKING:
    from flask.testing import FlaskClient


def test_who_is_authorized_sees_the_page(ada: FlaskClient) -> None:
    answer = ada.get(ROOT)

    assert answer.status_code == 200
    assert ">ada<" in answer.text


def test_nobody_sees_nothing(app: Flask) -> None:
    for page in ("", "api/", "api/now"):
        assert app.test_client().get(ROOT + page).status_code == 403


def test_authorize_may_answer_by_itself() -> None:
    app = made(dashboard={"authorize": lambda: abort(401)})

    assert app.test_client().get(ROOT).status_code == 401


@pytest.mark.parametrize("returned", [True, 7, b"ada", "x" * 201])
def test_authorize_that_returns_no_name_is_an_error(returned: Any) -> None:
    app = made(dashboard={"authorize": lambda: returned}, PROPAGATE_EXCEPTIONS=True)

    with pytest.raises(ConfigurationError, match="authorize returned"):
        app.test_client().get(ROOT)


def test_without_authorize_registration_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="give authorize="):
        made(dashboard={"authorize": None})


def test_without_authorize_in_debug_mode_this_machine_sees_it_with_a_banner() -> None:
    app = debugged()

    answer = app.test_client().get(ROOT)

    assert answer.status_code == 200
    assert "anyone on this machine may see and change this" in answer.text


@pytest.mark.parametrize("host", ["localhost:5000", "shop.localhost:5000", "127.0.0.1", "127.0.0.1:5000", "[::1]:5000"])
def test_without_authorize_this_machine_may_be_asked_by_any_name_of_its_own(host: str) -> None:
    assert debugged().test_client().get(ROOT, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "asking",
    [
        {"environ_base": {"REMOTE_ADDR": "203.0.113.7"}},
        {"headers": {"X-Forwarded-For": "203.0.113.7"}},
        {"headers": {"Host": "evil.example:5000"}},
        {"headers": {"Host": "localhost.evil.example"}},
    ],
    ids=["from elsewhere", "over a proxy", "by another name", "by a longer name"],
)
def test_without_authorize_nobody_else_sees_it(asking: dict[str, Any]) -> None:
    assert debugged().test_client().get(ROOT, **asking).status_code == 403


def test_a_host_that_is_no_name_is_not_this_machine() -> None:
    """The test client of older releases of werkzeug rejects it."""
    asking = create_environ(ROOT)
    asking.update(REMOTE_ADDR="127.0.0.1", HTTP_HOST="localhost:5000:5000")

    _, status, _ = run_wsgi_app(debugged(), asking)

    assert status.startswith("403")


def test_without_authorize_nobody_sees_it_once_debug_mode_is_off() -> None:
    app = debugged()
    app.debug = False

    assert app.test_client().get(ROOT).status_code == 403


@pytest.mark.parametrize("name", ["authorize", "may_change"])
def test_what_cannot_be_asked_is_an_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}='ada'"):
        made(dashboard={name: "ada"})


def test_the_limits_of_another_are_an_error() -> None:
    app = Flask("shop")
    MultiLimit(app)

    with pytest.raises(ConfigurationError, match="does not have the MultiLimit"):
        app.register_blueprint(Dashboard(MultiLimit(), authorize=lambda: "ada"))


def test_the_limits_may_come_after_the_dashboard() -> None:
    app, multilimit = Flask("shop"), MultiLimit()
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ada"))
    multilimit.init_app(app)

    assert app.test_client().get(ROOT).status_code == 200


def test_a_browser_is_told_to_do_no_more_than_the_pages_need(ada: FlaskClient) -> None:
    for page in ("", "api/now"):
        headers = ada.get(ROOT + page).headers

        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"


def test_refusals_have_these_header_fields_too(app: Flask) -> None:
    assert app.test_client().get(ROOT).headers["X-Frame-Options"] == "DENY"


def test_files_of_the_package_need_nobodys_consent(app: Flask) -> None:
    with app.test_client().get(f"{ROOT}static/dashboard.css") as answer:
        assert answer.status_code == 200


def test_there_is_no_way_out_of_the_folder_of_files(app: Flask) -> None:
    for name in ("../shell.py", "..%2fshell.py", "%2e%2e/shell.py", "..%5cshell.py"):
        assert app.test_client().get(f"{ROOT}static/{name}").status_code == 404


def test_a_language_is_chosen_once(ada: FlaskClient) -> None:
    assert 'lang="en"' in ada.get(ROOT).text
    assert 'lang="zh-Hans"' in ada.get(ROOT, headers={"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}).text
    assert 'lang="zh-Hans"' in ada.get(f"{ROOT}?lang=zh").text
    assert 'lang="zh-Hans"' in ada.get(ROOT).text
    assert 'lang="zh-Hans"' in ada.get(f"{ROOT}?lang=fr").text


def debugged() -> Flask:
    app = Flask("shop")
    app.debug = True
    app.register_blueprint(Dashboard(MultiLimit(app)))
    return app


def test_two_people_are_two(app: Flask) -> None:
    assert ">ada<" in browser_of("ada", app).get(ROOT).text
    assert ">bob<" in browser_of("bob", app).get(ROOT).text
