"""An app with a dashboard, and a browser that keeps cookies."""

from base64 import b64encode
from typing import Any

import pytest
from flask import Flask, request
from flask.testing import FlaskClient

from flask_multilimit import IP, USER, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from support.asking import view

ROOT = "/multilimit/"


def author() -> str | None:
    """The user name of HTTP basic; the password is ignored."""
    return request.authorization.username if request.authorization else None


def made(uri: Any = "memory://", *, dashboard: dict[str, Any] | None = None, **settings: Any) -> Flask:
    app = Flask("shop")
    app.config.update(SECRET_KEY="key of the tests", MULTILIMIT_STORAGE_TIMEOUT=5, MULTILIMIT_DENY_CACHE=0)
    app.config.update(settings)
    multilimit = MultiLimit(app, storage=uri, user_loader=lambda: request.headers.get("X-User"))
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute")(view()))
    app.add_url_rule("/mine", "api.mine", rate_limiter(type=USER, rules="2/minute; 50/hour")(view()))
    app.add_url_rule("/open", "open", view())
    app.register_blueprint(Dashboard(multilimit, **{"authorize": author, **(dashboard or {})}))
    return app


@pytest.fixture
def app() -> Flask:
    return made()


@pytest.fixture
def ada(app: Flask) -> FlaskClient:
    """A browser of an authorized author."""
    return browser_of("ada", app)


def browser_of(name: str, app: Flask) -> FlaskClient:
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Basic {b64encode(f'{name}:secret'.encode()).decode()}"
    return client
