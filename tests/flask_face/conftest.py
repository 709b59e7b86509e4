"""One app with a limiter whose time is given and whose checks are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flask import Flask

from flask_face.doubles import Clock, RecordingStorage
from flask_multilimit import MultiLimit

if TYPE_CHECKING:
    from flask.testing import FlaskClient


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(clock: Clock) -> RecordingStorage:
    return RecordingStorage(clock)


@pytest.fixture
def bare_app() -> Flask:
    """Without a MultiLimit."""
    app = Flask("shop")
    app.testing = True
    return app


@pytest.fixture
def app(bare_app: Flask, storage: RecordingStorage) -> Flask:
    MultiLimit(bare_app, storage=storage)
    return bare_app


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
