from __future__ import annotations

import os

import pytest
from flask import Flask
from flask.testing import FlaskClient
from guestbook import create_app


@pytest.fixture
def app() -> Flask:
    """On the server that the environment names, else in memory."""
    uri = os.environ.get("GUESTBOOK_STORAGE_URI", "memory://")
    storage = {"MULTILIMIT_STORAGE_URI": uri, "MULTILIMIT_STORAGE_TIMEOUT": 10}
    return create_app({"TESTING": True, **storage, "MULTILIMIT_KEY_PREFIX": "guestbook-test:"})


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
