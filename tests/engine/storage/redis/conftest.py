"""Clients and limiters on each kind of server."""

from collections.abc import Iterator

import pytest
import redis

from flask_multilimit.engine import Limiter
from support.bench import bare
from support.servers import Server


@pytest.fixture
def client(any_server: Server) -> Iterator[redis.Redis]:
    """A client of each server in turn. The server is empty."""
    with any_server.client() as client:
        yield client


@pytest.fixture
def served(any_server: Server) -> Iterator[Limiter]:
    """A limiter on each server in turn, by the server's own clock. The server is empty."""
    with any_server.client() as own:
        yield bare(own)
