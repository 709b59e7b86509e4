"""The contract suite runs on every storage and, for promises of all algorithms, with every algorithm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flask_multilimit.engine import ClusterStorage, Limiter, MemoryStorage, RedisStorage
from flask_multilimit.engine.storage.cluster.servers import NodesOfUri
from support.bench import Bench
from support.clock import Clock
from support.cluster import Cluster
from support.compiled import CompiledStorage
from support.effort import slow
from support.pages import own_storage
from support.servers import Binary, Servers, find_binaries

OWN_STORAGE = own_storage()
"""The storage of the page "Write your own storage"."""


@pytest.fixture
def clock() -> Clock:
    """A clock that starts at a time that is no whole second."""
    return Clock()


@pytest.fixture(params=["memory", slow("own"), slow("cluster"), "compiled", *find_binaries()])
def bench(
    request: pytest.FixtureRequest, clock: Clock, server_binaries: dict[str, Binary], servers: Servers
) -> Iterator[Bench]:
    """Each storage in turn, empty, with the clock of the test."""
    if request.param == "memory":
        yield Bench(Limiter(MemoryStorage(clock)), clock, None)
        return
    if request.param == "own":
        own = OWN_STORAGE["SqliteStorage"](":memory:", clock)
        yield Bench(Limiter(own), clock, None)
        own.close()
        return
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        storage = ClusterStorage(NodesOfUri(cluster.uri, timeout=10), clock=clock)
        yield Bench(Limiter(storage), clock, cluster.shared_client)
        storage.close()
        return
    kind = CompiledStorage if request.param == "compiled" else RedisStorage
    binary = server_binaries.get(request.param) or next(iter(server_binaries.values()))
    client = servers.running(binary).shared_client()
    client.flushall()
    yield Bench(Limiter(kind(client, clock=clock)), clock, client)
