"""What a decision costs, counted and not timed: nothing here depends on how fast the machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flask_multilimit.engine import Limiter, storage_from_uri

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from servers import Server


@pytest.fixture
def limiter(server: Server, redis_client: redis.Redis) -> Iterator[Limiter]:
    """On an empty server, by its address, as in earnest; but a busy machine may take its time."""
    limiter = Limiter(storage_from_uri(server.url, timeout=10.0))
    yield limiter
    limiter.close()
    redis_client.flushall()
