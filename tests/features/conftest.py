"""An app whose time is given and whose checks are kept, and a storage on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flask import Flask

from flask_face.doubles import Clock, RecordingStorage
from flask_multilimit import RedisStorage

if TYPE_CHECKING:
    import redis


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(clock: Clock) -> RecordingStorage:
    return RecordingStorage(clock)


@pytest.fixture
def app() -> Flask:
    """Without a MultiLimit: each test says where its limits come from."""
    app = Flask("shop")
    app.testing = True
    return app


@pytest.fixture
def server_storage(redis_client: redis.Redis, clock: Clock) -> RedisStorage:
    """The first real server, empty, with the time of the tests."""
    return RedisStorage(redis_client, clock=clock)
