"""Runs a Redis Cluster for the tests: three primaries, and replicas of the first one."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from typing_extensions import Self

from support.servers import POLL_SECONDS, Binary, Server, ServerError

SLOTS = 16_384
FORM_SECONDS = 30.0
NODE_TIMEOUT = 2000
"""Milliseconds without an answer after which a server counts as dead."""


class Cluster(contextlib.ExitStack):
    """Three primaries on ports of 127.0.0.1, and this number of ``replicas`` of the first one.

    Each server announces its name and port in ``announced`` to clients; without it, its real address.
    """

    def __init__(self, binary: Binary, *, replicas: int = 0, announced: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__()
        self._binary = binary
        self._replicas = replicas
        self._announced = announced
        self._clients: dict[Server, redis.Redis] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.servers = [self.enter_context(self._server(n)) for n in range(3 + self._replicas)]
            self._form()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def uri(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def primaries(self) -> list[Server]:
        """The servers that began as primaries."""
        return self.servers[:3]

    def client(self, **options: Any) -> RedisCluster:
        """A client of redis-py, closed with the cluster."""
        nodes = [_node(server) for server in self.primaries]
        client = RedisCluster(startup_nodes=nodes, **options)
        self.callback(client.close)
        return client

    @functools.cached_property
    def shared_client(self) -> RedisCluster:
        """One client for all tests: a new one is slow, because it reads the whole table of commands."""
        return self.client()

    def client_of(self, server: Server) -> redis.Redis:
        """A client of this server alone, which follows no redirection."""
        if server not in self._clients:
            self._clients[server] = server.client()
        return self._clients[server]

    def flush(self) -> None:
        for server in self.primaries:
            self.client_of(server).flushall()

    def keys(self) -> list[str]:
        return sorted(key.decode() for server in self.primaries for key in self.client_of(server).scan_iter())

    def owner(self, key: str) -> Server:
        """The server that says it has the hash slot of ``key``."""
        return next(server for server in self.servers if key_slot(key.encode()) in self.slots_of(server))

    def another(self, server: Server) -> Server:
        """A primary that is not ``server``."""
        return next(other for other in self.primaries if other is not server)

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        """Begin to move a hash slot: from now on the source answers ASK for keys that it does not have."""
        self.until(self._agrees_on_epochs, "all having heard of the last move")
        self._command(target, "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self._command(source, "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_key(self, key: str, source: Server, target: Server) -> None:
        self.client_of(source).execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)  # type: ignore[no-untyped-call]

    def end_move(self, slot: int, source: Server, target: Server) -> None:
        """Move the keys that are left in the hash slot, and announce its new server to all primaries."""
        client = self.client_of(source)
        while keys := client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):  # type: ignore[no-untyped-call]
            for key in keys:
                self.move_key(key, source, target)
        for server in (target, source, *self.primaries):
            self._command(server, "SETSLOT", slot, "NODE", self.id_of(target))
        self.until(lambda: slot in self.slots_of(target), "the move of a slot")

    def move(self, slot: int, source: Server, target: Server) -> None:
        self.begin_move(slot, source, target)
        self.end_move(slot, source, target)

    def id_of(self, server: Server) -> str:
        return str(self._command(server, "MYID"), "ascii")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + FORM_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise ServerError(f"the cluster: {what} did not come about:\n{self.servers[0].log}")
            time.sleep(POLL_SECONDS)

    def _server(self, n: int) -> Server:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT)]
        options += ["--cluster-require-full-coverage", "no"]
        if self._announced:
            host, port = self._announced[n]
            options += ["--cluster-preferred-endpoint-type", "hostname", "--cluster-announce-hostname", host]
            options += ["--cluster-announce-port", str(port)]
        return Server(self._binary, tcp=True, options=options)

    def _form(self) -> None:
        share = -(-SLOTS // 3)
        for i, server in enumerate(self.primaries):
            self._command(server, "ADDSLOTS", *range(i * share, min((i + 1) * share, SLOTS)))
            self._command(server, "SET-CONFIG-EPOCH", i + 1)
        for server in self.servers[1:]:
            self._command(server, "MEET", "127.0.0.1", self.servers[0].port)
        self.until(lambda: all(self._knows_all(server) for server in self.servers), "everybody knowing everybody")
        for server in self.servers[3:]:
            self._command(server, "REPLICATE", self.id_of(self.servers[0]))
        self.until(lambda: all(self._is_replicating(server) for server in self.servers[3:]), "replication")
        self.until(lambda: all(self._is_ok(server) for server in self.servers), "a cluster that is up")

    def _agrees_on_epochs(self) -> bool:
        """Whether all primaries know the same current epoch, and have different epochs of their own. Otherwise the new
        server of a hash slot might not get a higher epoch than the old one, and no server would have the slot."""
        infos = [self._info(server) for server in self.primaries]
        mine = {info["cluster_my_epoch"] for info in infos}
        return len({info["cluster_current_epoch"] for info in infos}) == 1 and len(mine) == len(infos)

    def _knows_all(self, server: Server) -> bool:
        return int(self._info(server)["cluster_known_nodes"]) == len(self.servers)

    def _is_replicating(self, server: Server) -> bool:
        return bool(self.client_of(server).info("replication").get("master_link_status") == "up")

    def _is_ok(self, server: Server) -> bool:
        info = self._info(server)
        return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == SLOTS

    def _info(self, server: Server) -> dict[str, str]:
        text = self._command(server, "INFO")
        text = text.decode() if isinstance(text, bytes) else text
        return dict(line.split(":", 1) for line in text.split())

    def slots_of(self, server: Server) -> set[int]:
        """The hash slots that the server says it has; none if it is down."""
        own = self.id_of(server).encode()
        with contextlib.suppress(redis.ConnectionError):
            return {
                slot
                for first, last, primary, *_ in self._command(server, "SLOTS")
                if primary[2] == own
                for slot in range(first, last + 1)
            }
        return set()

    def _command(self, server: Server, *command: Any) -> Any:
        # Split, so that redis-py leaves the answer as it is.
        return self.client_of(server).execute_command("CLUSTER", *command)  # type: ignore[no-untyped-call]


def _node(server: Server) -> ClusterNode:
    return ClusterNode("127.0.0.1", server.port)  # type: ignore[no-untyped-call]
