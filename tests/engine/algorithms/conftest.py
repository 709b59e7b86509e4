"""Storages that are emptied for every example of a property, because hypothesis runs many in one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flask_multilimit.engine import Limiter, MemoryStorage, RedisStorage
from support.bench import Bench
from support.clock import Clock
from support.compiled import CompiledStorage
from support.servers import Binary, Servers, find_binaries

Fresh = Callable[[], Bench]
"""Gives an empty storage with a clock of its own."""


@pytest.fixture(scope="session", params=["memory", "compiled", *find_binaries()])
def fresh(request: pytest.FixtureRequest, server_binaries: dict[str, Binary], servers: Servers) -> Iterator[Fresh]:
    """Each storage in turn."""
    if request.param == "memory":
        yield _fresh_memory
        return
    kind = CompiledStorage if request.param == "compiled" else RedisStorage
    binary = server_binaries.get(request.param) or next(iter(server_binaries.values()))
    with servers.running(binary).client() as client:
        clock = Clock()
        limiter = Limiter(kind(client, clock=clock))

        def fresh_server() -> Bench:
            client.flushdb()
            clock.now = Clock().now
            return Bench(limiter, clock, client)

        yield fresh_server
        limiter.close()


def _fresh_memory() -> Bench:
    clock = Clock()
    return Bench(Limiter(MemoryStorage(clock)), clock, None)


@pytest.fixture
def bench(fresh: Fresh) -> Bench:
    return fresh()
