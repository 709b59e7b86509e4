"""The contract suite runs on every storage and, for promises of all algorithms, with every algorithm."""

from collections.abc import Iterator

import pytest

from flask_multilimit.engine import ClusterStorage, Limiter, MemoryStorage, RedisStorage
from flask_multilimit.engine.storage.cluster.servers import NodesOfUri
from flask_multilimit.engine.storage.redis.compiled import COMPILE_AFTER
from support.bench import Bench
from support.clock import Clock
from support.cluster import Cluster
from support.effort import slow
from support.pages import own_storage
from support.server_clock import ServerClock, scripts_read_clock_of_test
from support.servers import Binary, Servers, find_binaries

OWN_STORAGE = own_storage()
"""The storage of the page "Write your own storage"."""


@pytest.fixture(params=["memory", slow("own"), slow("cluster"), "compiled", *find_binaries()])
def bench(request: pytest.FixtureRequest, server_binaries: dict[str, Binary], servers: Servers) -> Iterator[Bench]:
    """Each storage in turn, empty, with a clock of the test. On a server, all is as in production but the time that
    scripts read: "compiled" is a process that compiles every check, the others one that has just started."""
    clock = Clock()
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
    binary = server_binaries.get(request.param) or next(iter(server_binaries.values()))
    client = servers.running(binary).shared_client()
    client.flushall()
    with scripts_read_clock_of_test(compile_after=0 if request.param == "compiled" else COMPILE_AFTER):
        yield Bench(Limiter(RedisStorage(client)), ServerClock(client), client)
