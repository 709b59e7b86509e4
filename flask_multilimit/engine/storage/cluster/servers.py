"""The servers of a cluster, with a client for each. Asks the one that owns a hash slot, and others if it redirects or
fails, all within one deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from threading import RLock
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakSet

from redis.cluster import ClusterNode
from redis.crc import key_slot

from ...errors import ConfigurationError, StorageError
from ...forks import listed, notify_child
from ..addresses import Address, host_and_port, shown_storage
from ..redis.connections import Deadline
from ..redis.storage import RedisStorage, disconnect_idle, renew_in_child
from ..redis.uri import timed_client
from .hash_slots import HashSlots, redirection_of

MOST_SERVERS = 8
"""The most servers that are asked one question."""

_DEFAULT_PORT = 6379

T = TypeVar("T")
Question = Callable[[RedisStorage, "UUID | None"], T]
"""Asks a server. The id, if there is one, is that under which another server may have answered before it failed."""


class SharedDeadline(Deadline):
    """The deadline of a question that may go to several servers in turn. Asking another server does not restart it."""

    def begin(self) -> None:
        """Start the deadline of a question."""
        super().start()

    def start(self, started: float | None = None) -> None:
        """Do nothing when one server is asked."""


class Nodes:
    """Makes clients, which the caller keeps."""

    def __init__(self, start: Sequence[Address], deadline: SharedDeadline) -> None:
        self.start: Sequence[Address] = start
        """The servers to ask first, which know the others."""
        self.deadline: SharedDeadline = deadline
        """The deadline that all clients keep."""
        self._own_clients: WeakSet[Any] = WeakSet()

    def client_at(self, address: Address) -> Any:
        """A client of the server at ``address``. It neither follows redirections nor retries."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections that were opened here."""
        for client in listed(self._own_clients):
            disconnect_idle(client)


class NodesOfUri(Nodes):
    """From ``redis+cluster://[user:password@]host:port[,host:port...][?options]``. The options apply to all servers."""

    def __init__(self, uri: str, *, timeout: float) -> None:
        scheme, _, rest = uri.partition("+cluster://")
        authority, mark, options = rest.partition("?")
        credentials, at, hosts = authority.rpartition("@")
        self._before, self._after = f"{scheme}://{credentials}{at}", f"{mark}{options}"
        hosts = hosts.removesuffix("/").removesuffix("/0")
        try:
            super().__init__([_address_of(host) for host in hosts.split(",")], SharedDeadline(timeout))
        except ValueError as error:
            raise ConfigurationError(f"storage URI {shown_storage(uri)}: {error}") from None
        client = timed_client(self._url_of(self.start[0]), self.deadline, given=uri)  # raises for wrong options
        if client.connection_pool.connection_kwargs.get("db"):
            raise ConfigurationError(f"storage URI {shown_storage(uri)}: a cluster has only database 0")

    def client_at(self, address: Address) -> Any:
        client = timed_client(self._url_of(address), self.deadline)
        self._own_clients.add(client)
        return client

    def _url_of(self, address: Address) -> str:
        host, port = address
        return f"{self._before}{f'[{host}]' if ':' in host else host}:{port}{self._after}"


def _address_of(host: str) -> Address:
    """Raises ``ValueError``."""
    if "/" in host:
        raise ValueError("a cluster has only database 0")
    return host_and_port(host, _DEFAULT_PORT)


class NodesOfClient(Nodes):
    """From a ``RedisCluster``. Uses its pools, options and timeouts, but not its retries, which would charge a check
    twice."""

    def __init__(self, client: Any) -> None:
        self._client = client
        super().__init__([(str(node.host), int(node.port)) for node in client.get_nodes()], SharedDeadline(None))
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        self._client._lock = self._client.nodes_manager._lock = RLock()
        for node in self._client.get_nodes():
            renew_in_child(node.redis_connection)

    def client_at(self, address: Address) -> Any:
        host, port = self._client.nodes_manager.remap_host_port(*address)
        known = self._client.get_node(host=host, port=port)
        node = known or ClusterNode(host, port)  # type: ignore[no-untyped-call]
        client = self._client.get_redis_connection(node)
        client.node_of_cluster = node  # redis-py 5.0 closes the connections of a node that is garbage
        if known is None:  # the others belong to the client
            self._own_clients.add(client)
        return client


class Servers:
    """The servers of a cluster, each as a storage of its own. The caller begins the ``deadline`` of each question."""

    def __init__(self, nodes: Nodes, *, clock: Callable[[], int] | None) -> None:
        self.deadline: SharedDeadline = nodes.deadline
        self.clock: Callable[[], int] | None = clock
        self._nodes = nodes
        self._servers: dict[Address, RedisStorage] = {}
        self.hash_slots: HashSlots = HashSlots(nodes.start, self._ask_for_hash_slots, nodes.deadline)

    def use_clock(self, clock: Callable[[], int] | None) -> None:
        self.clock = clock
        for server in self._servers.values():
            server.clock = clock

    def ask(self, hash_slot: int, question: Question[T], *, may_repeat: bool = True) -> T:
        """The answer of the server that owns ``hash_slot``. If it cannot be reached and another server has taken over,
        ask that one, but only if the question ``may_repeat``, because the first server may have answered it, too."""
        failed_id: UUID | None = None
        address, only_once = self.hash_slots.owner(hash_slot), False
        for _ in range(MOST_SERVERS):
            try:
                server = self._at(address)
                return question(self._storage_on(_Asking(server)) if only_once else server, failed_id)
            except StorageError as error:
                failure, failed_id = error, error.check_id or failed_id
            redirection = redirection_of(failure, address)
            if redirection is None:
                address = self._successor(hash_slot, address, failure, may_repeat=may_repeat)
                only_once = False
                continue
            address, only_once = redirection.address, redirection.only_once
            if not only_once:
                self.hash_slots.record_move(hash_slot, address)
        failure.remedy = "the servers of the cluster disagree about the owner of the slot: compare their CLUSTER SLOTS"
        raise failure

    def ask_each(
        self,
        items: Iterable[T],
        key_of: Callable[[T], str],
        question: Callable[[RedisStorage, Sequence[T]], None],
        *,
        may_repeat: bool = True,
    ) -> None:
        """Ask once for each hash slot, with all its items. Then raise the first failure, if there was any: as one
        without a reply if other slots may have done it, so that nobody asks them again for what cannot be repeated."""

        def ask(hash_slot: int, some: Sequence[T]) -> None:
            self.ask(hash_slot, lambda server, _: question(server, some), may_repeat=may_repeat)

        by_hash_slot: dict[int, list[T]] = {}
        for item in items:
            by_hash_slot.setdefault(key_slot(key_of(item).encode()), []).append(item)
        waiting, failures, is_partly_done = list(by_hash_slot.items()), [], False
        while waiting:
            hash_slot, some = waiting.pop()
            try:
                ask(hash_slot, some)
                is_partly_done = True
            except StorageError as error:
                if error.server_code == "TRYAGAIN" and len(some) > 1:
                    waiting += [(hash_slot, [item]) for item in some]
                else:
                    failures.append(error)
        if failures:
            failures[0].no_reply = is_partly_done or any(each.no_reply for each in failures)
            raise failures[0]

    def primaries(self) -> list[RedisStorage]:
        """All servers that own hash slots. Asks the cluster. Begins the deadline; ``client`` and ``keys`` stop it."""
        self.deadline.begin()
        return [self._at(address) for address in self.hash_slots.primaries()]

    def close(self) -> None:
        for address in list(self._servers):
            if (server := self._servers.pop(address, None)) is not None:  # another thread may close it
                server.close()
        self._nodes.close()

    def _successor(self, hash_slot: int, address: Address, failure: StorageError, *, may_repeat: bool) -> Address:
        """The owner of ``hash_slot`` after ``address`` has failed. Raises ``failure`` if that is the same server, or if
        another one must not be asked."""
        if failure.key_specific or failure.server_code in {"TRYAGAIN", "NOPERM"}:  # others would say the same
            raise failure
        self.hash_slots.record_failure(address)
        with suppress(StorageError):
            if may_repeat and (successor := self.hash_slots.owner(hash_slot)) != address:
                return successor
        raise failure

    def _at(self, address: Address) -> RedisStorage:
        server = self._servers.get(address)
        if server is None:
            try:
                client = self._nodes.client_at(address)
            except ConfigurationError as error:  # nobody here has given that address: this is an outage
                raise StorageError(f"the cluster names a server that cannot be asked: {error}") from error
            server = self._servers.setdefault(address, self._storage_on(client))
        return server

    def _storage_on(self, client: Any) -> RedisStorage:
        return RedisStorage(client, clock=self.clock, deadline=self.deadline)

    def _ask_for_hash_slots(self, address: Address) -> Any:
        """Also forget servers that the last answer did not name: where each new server has another address, there would
        be more and more. Their connections are closed when no thread uses them any more."""
        for left in self._servers.keys() - set(self.hash_slots.servers):
            self._servers.pop(left, None)
        return self._at(address).ask(b"CLUSTER", b"SLOTS")


class _Asking:
    """Sends the commands of a :class:`RedisStorage` to a ``server`` to which a hash slot is being moved."""

    def __init__(self, server: RedisStorage) -> None:
        self._server = server

    def execute_command(self, name: str, *arguments: bytes) -> Any:
        answers = self._server.ask_each([(b"ASKING",), (name.encode(), *arguments)])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers[-1]
