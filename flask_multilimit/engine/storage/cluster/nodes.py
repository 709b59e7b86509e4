"""The servers of a cluster: where to start, and a client for each, all within one deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from redis.cluster import ClusterNode

from ...errors import ConfigurationError
from ..addresses import PortError, host_and_port, redacted
from ..redis.deadline import Deadline
from ..redis.storage import timed_client

Address = tuple[str, int]
"""Host and port, by which the servers of the cluster know each other."""

_DEFAULT_PORT = 6379


class WholeDeadline(Deadline):
    """The deadline of a question that may go to several servers in turn. A further server does not restart it."""

    def begin(self) -> None:
        """The whole question begins."""
        super().start()

    def start(self, started: float | None = None) -> None:
        """The question to one server begins."""


class Nodes(Protocol):
    """Makes the clients. The caller keeps them."""

    start: Sequence[Address]
    """The servers to ask first; they know the others."""
    deadline: WholeDeadline
    """All clients keep it."""

    def client_at(self, address: Address) -> Any:
        """A client of the server at ``address``. It neither follows redirections nor retries."""

    def close(self) -> None:
        """Close the connections that were opened here."""


class NodesOfUri:
    """From ``redis+cluster://[user:password@]host:port[,host:port...][?options]``. The options apply to all servers."""

    def __init__(self, uri: str, *, timeout: float) -> None:
        scheme, _, rest = uri.partition("+cluster://")
        where, mark, options = rest.partition("?")
        credentials, at, hosts = where.rpartition("@")
        self._before, self._after = f"{scheme}://{credentials}{at}", f"{mark}{options}"
        self._clients: list[Any] = []
        self.deadline: WholeDeadline = WholeDeadline(timeout)
        hosts = hosts.removesuffix("/").removesuffix("/0")
        try:
            self.start: Sequence[Address] = [_address_of(host) for host in hosts.split(",")]
        except ValueError as error:
            raise ConfigurationError(f"storage URI {redacted(uri)!r}: {error}") from None
        self._reject_wrong_options(uri)

    def client_at(self, address: Address) -> Any:
        client = timed_client(self._url_of(address), self.deadline)
        self._clients.append(client)
        return client

    def close(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def _url_of(self, address: Address) -> str:
        host, port = address
        return f"{self._before}{f'[{host}]' if ':' in host else host}:{port}{self._after}"

    def _reject_wrong_options(self, uri: str) -> None:
        client = timed_client(self._url_of(self.start[0]), self.deadline, given=uri)
        if client.connection_pool.connection_kwargs.get("db"):
            raise ConfigurationError(f"storage URI {redacted(uri)!r}: a cluster has only database 0")


def _address_of(host: str) -> Address:
    """Raises ``ValueError``."""
    if "/" in host:
        raise ValueError("a cluster has only database 0")
    try:
        return host_and_port(host, _DEFAULT_PORT)
    except PortError:
        raise
    except ValueError:
        raise ValueError(f"{host!r} is not an address; write host:port, and separate several by commas") from None


class NodesOfClient:
    """From a ``RedisCluster``: uses its pools, options and timeouts, but not its retries, which would charge a check
    twice."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._kept: list[ClusterNode] = []  # redis-py 5.0 closes the connections of a node that is garbage
        self._made: list[Any] = []
        self.deadline: WholeDeadline = WholeDeadline(None)
        self.start: Sequence[Address] = [(str(node.host), int(node.port)) for node in client.get_nodes()]

    def client_at(self, address: Address) -> Any:
        host, port = self._client.nodes_manager.remap_host_port(*address)
        known = self._client.get_node(host=host, port=port)
        node = known or ClusterNode(host, port)  # type: ignore[no-untyped-call]
        client = self._client.get_redis_connection(node)
        self._kept.append(node)
        if known is None:
            self._made.append(client)
        return client

    def close(self) -> None:
        """Close the connections to servers that the client did not know. All others belong to the client."""
        while self._made:
            self._made.pop().close()
        self._kept.clear()
