"""The sample project is not collected here: it runs in an environment of its own (`nox -s userproject`)."""

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, request
from flask.testing import FlaskClient

from flask_multilimit import IP, USER, MultiLimit, Rule, rate_limiter
from flask_multilimit.serve.gate import gate_of
from support.asking import view

collect_ignore = ["userproject"]


def make_app(**settings: Any) -> Flask:
    app = Flask("kit")
    app.config.from_mapping(settings)
    MultiLimit(app, user_loader=lambda: request.headers.get("X-User"))
    calls = app.extensions["calls"] = []

    @app.get("/ip")
    @rate_limiter(type=IP, rules="3/minute; 5/hour")
    def by_ip() -> str:
        calls.append("ip")
        return "ok"

    by_user = rate_limiter(type=USER, rules="2/day")(rate_limiter(rules="10/day")(view()))
    app.add_url_rule("/user", "by_user", by_user, methods=["POST"])
    by_key = rate_limiter(type=lambda: request.headers.get("X-Key"), name="api_key", rules=lambda _: "2/minute")
    app.add_url_rule("/key", "by_key", by_key(view()))
    app.add_url_rule("/bucket", "bucket", rate_limiter(rules=Rule(3600, 60, algorithm="token_bucket", burst=5))(view()))
    app.add_url_rule("/cost", "cost", rate_limiter(rules="10/minute", cost=3)(view()))
    app.add_url_rule("/waits", "waits", rate_limiter(rules="1/minute", wait=120)(view()))
    app.add_url_rule("/shadow", "shadow", rate_limiter(rules="1/minute", shadow=True)(view()))
    app.add_url_rule("/pair", "pair", rate_limiter(type=(USER, IP), rules="2/minute")(view()))
    app.add_url_rule("/huge", "huge", rate_limiter(rules="100000000/minute")(view()))
    app.add_url_rule("/open", "without_limits", view())
    return app


@pytest.fixture(params=["memory", "server"])
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    """The app in memory, then on a real server."""
    uri = "memory://"
    if request.param == "server":
        uri = request.getfixturevalue("server").url
    app = make_app(MULTILIMIT_STORAGE_URI=uri, MULTILIMIT_STORAGE_TIMEOUT=5)
    yield app
    gate_of(app).limiter.close()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
