"""A shop with a dashboard for several workers. An attacker has chosen some names of users and endpoints."""

import os

from flask import Flask, Response, abort, request
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import IP, USER, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from flask_multilimit.recording import Recorder
from support.asking import view

EVIL = "\"><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}'"
PEOPLE = ("ada", "eve")
"""Who is let in: ada may change, eve may look."""

app = Flask("shop")
app.config["SECRET_KEY"] = "the same in all workers"
app.config.from_prefixed_env()
app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
multilimit = MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
if folder := os.environ.get("RECORDED"):
    Recorder(app, folder)


def authorize() -> str:
    asked = request.authorization
    if asked is None or asked.username not in PEOPLE or asked.password != "secret":
        abort(Response("Who are you?", 401, {"WWW-Authenticate": 'Basic realm="dashboard"'}))
    return str(asked.username)


app.register_blueprint(Dashboard(multilimit, authorize=authorize, may_change=lambda author: author == "ada"))


app.add_url_rule("/search", "search", rate_limiter(type=IP, rules="3/minute")(view()))
app.add_url_rule("/mine", "mine", rate_limiter(type=USER, rules="2/minute; 50/hour")(view()))
app.add_url_rule("/evil", EVIL, rate_limiter(type=IP, rules="1/minute")(view()))
app.add_url_rule("/long", "endpoint" * 25, rate_limiter(type=IP, rules="1/minute")(view()))
app.add_url_rule("/open", "open", view())
for number in range(60):
    app.add_url_rule(f"/item/{number}", f"item.{number}", rate_limiter(type=IP, rules="100/minute")(view()))
