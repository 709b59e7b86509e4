"""The dashboard behind a proxy, under a server name, in several apps, and with Flask-Login."""

import re
from typing import Any

from flask import Flask, abort, redirect
from flask_login import LoginManager, UserMixin, current_user, login_user
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from support.asking import view
from support.changes import control_of

from .conftest import ROOT, browser_of, made
from .forms import send
from .test_changes import RULE, confirm

ADDRESSES = re.compile(r'(?:href|src|action)="([^"]*)"')


def addresses(page: str) -> set[str]:
    found = {each.split("?")[0] for each in ADDRESSES.findall(page)} - {"#main"}
    assert found
    return found


def test_dashboard_works_behind_a_proxy_that_strips_a_prefix() -> None:
    app = made()
    served = ProxyFix(app.wsgi_app, x_prefix=1)

    def proxy(environ: dict[str, Any], start_response: Any) -> Any:
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix("/shop")
        return served({**environ, "HTTP_X_FORWARDED_PREFIX": "/shop"}, start_response)

    app.wsgi_app = proxy  # type: ignore[method-assign]
    ada = browser_of("ada", app)

    page = ada.get(f"/shop{ROOT}")
    form = ada.get(f"/shop{ROOT}change", query_string=RULE)
    answer = send(ada, form, ending="/change", method="post")

    assert all(each.startswith(f"/shop{ROOT}") for each in addresses(page.text))
    assert "Path=/shop/multilimit/" in form.headers["Set-Cookie"]
    assert answer.location.startswith(f"/shop{ROOT}lists?done=")


def test_dashboard_works_under_a_server_name() -> None:
    app = made(SERVER_NAME="limits.example", PREFERRED_URL_SCHEME="https")
    ada = browser_of("ada", app)

    page = ada.get(ROOT, base_url="https://limits.example")

    assert page.status_code == 200
    assert all(each.startswith(ROOT) for each in addresses(page.text))


def test_several_apps_share_one_dashboard() -> None:
    multilimit = MultiLimit()
    dashboard = Dashboard(multilimit, authorize=lambda: "ada")

    def create_app(name: str) -> Flask:
        app = Flask(name)
        app.secret_key = "key"
        multilimit.init_app(app)
        app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute")(view()))
        app.register_blueprint(dashboard)
        return app

    shop, bank = create_app("shop"), create_app("bank")

    assert confirm(shop.test_client(), **RULE).status_code == 303

    assert "Nothing has been changed yet." not in shop.test_client().get(f"{ROOT}history").text
    assert control_of(bank).entries() == ()
    assert "<span>bank</span>" in bank.test_client().get(ROOT).text
    assert "Nothing has been changed yet." in bank.test_client().get(f"{ROOT}history").text


def test_dashboard_works_with_flask_login() -> None:
    app, multilimit = Flask("shop"), MultiLimit()
    app.secret_key = "key"
    manager = LoginManager(app)

    class User(UserMixin):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.id = name

    manager.user_loader(User)

    def admin() -> str | None:
        if not current_user.is_authenticated:
            abort(redirect("/login"))
        return current_user.get_id() if current_user.get_id() == "ada" else None

    def login(name: str) -> str:
        login_user(User(name))
        return "in"

    app.add_url_rule("/login/<name>", "login", login)
    multilimit.init_app(app)
    app.register_blueprint(Dashboard(multilimit, authorize=admin))
    browser = app.test_client()

    answers = [browser.get(ROOT) for _ in range(15)]
    assert {(each.status_code, each.location) for each in answers} == {(302, "/login")}
    browser.get("/login/bob")
    assert browser.get(ROOT).status_code == 403
    browser.get("/login/ada")
    assert browser.get(ROOT).status_code == 200
