"""Storages that are emptied for every example of a property, because hypothesis runs many in one test."""

from collections.abc import Callable, Iterator

import pytest

from flask_multilimit.engine import Limiter, MemoryStorage, RedisStorage
from flask_multilimit.engine.storage.redis.compiled import COMPILE_AFTER
from support.bench import Bench
from support.clock import Clock
from support.server_clock import ServerClock, scripts_read_clock_of_test
from support.servers import Binary, Servers, find_binaries

Fresh = Callable[[], Bench]
"""Gives an empty storage with a clock of its own."""


@pytest.fixture(params=["memory", "compiled", *find_binaries()])
def fresh(request: pytest.FixtureRequest, server_binaries: dict[str, Binary], servers: Servers) -> Iterator[Fresh]:
    """Each storage in turn. On a server, all is as in production but the time that scripts read."""
    if request.param == "memory":
        yield _fresh_memory
        return
    binary = server_binaries.get(request.param) or next(iter(server_binaries.values()))
    client = servers.running(binary).shared_client()
    storage = RedisStorage(client)
    limiter = Limiter(storage)

    def fresh_server() -> Bench:
        storage.confirm()
        client.flushdb()
        return Bench(limiter, ServerClock(client), client)

    with scripts_read_clock_of_test(compile_after=0 if request.param == "compiled" else COMPILE_AFTER):
        yield fresh_server
    limiter.close()


def _fresh_memory() -> Bench:
    clock = Clock()
    return Bench(Limiter(MemoryStorage(clock)), clock, None)


@pytest.fixture
def bench(fresh: Fresh) -> Bench:
    return fresh()
