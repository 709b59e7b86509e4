"""Which server of a cluster is asked, and which one next after a failure, mostly with clients that are made up."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from math import inf
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakSet

import pytest
import redis
from redis.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from flask_multilimit.engine import ClusterStorage, Concurrent, Hit, Hits, StorageError
from flask_multilimit.engine.decision import Charge
from flask_multilimit.engine.storage.addresses import Address
from flask_multilimit.engine.storage.base import Slot
from flask_multilimit.engine.storage.cluster import servers
from flask_multilimit.engine.storage.cluster.hash_slots import HASH_SLOTS, HashSlots
from flask_multilimit.engine.storage.cluster.servers import (
    MOST_SERVERS,
    Nodes,
    NodesOfClient,
    NodesOfUri,
    Servers,
    SharedDeadline,
)
from flask_multilimit.engine.storage.redis.connections import Deadline
from flask_multilimit.engine.storage.redis.scripts import script
from flask_multilimit.engine.storage.redis.storage import RedisStorage
from support.bench import hits
from support.cluster import Cluster
from support.threads import interleaved
from support.waiting import PATIENCE

FIRST, SECOND = ("10.0.0.1", 6379), ("10.0.0.2", 6379)
"""The first owns all slots until it fails, then the second."""


class Failing(Nodes):
    """Makes clients of servers. The client of the first fails with ``error``, the other one answers 0."""

    def __init__(self, error: RedisError) -> None:
        super().__init__((FIRST, SECOND), SharedDeadline(None))
        self.error = error
        self.owner = FIRST
        self.asked: list[Address] = []
        self.commands: list[tuple[Any, ...]] = []

    def client_at(self, address: Address) -> Client:
        return Client(self, address)


class Client:
    def __init__(self, nodes: Failing, address: Address) -> None:
        self._nodes, self._address = nodes, address

    def execute_command(self, *command: Any) -> Any:
        if command == ("CLUSTER", b"SLOTS"):
            return [[0, 16_383, self._nodes.owner]]
        self._nodes.asked.append(self._address)
        self._nodes.commands.append(command)
        if self._address == FIRST:
            self._nodes.owner = SECOND
            raise self._nodes.error
        return 0


def test_command_is_repeated_on_the_server_that_replaces_a_failed_one() -> None:
    nodes = Failing(RedisConnectionError("closed"))
    ClusterStorage(nodes).reset(["key"])
    assert nodes.asked == [FIRST, SECOND]


def test_check_has_the_same_id_on_the_server_that_replaces_a_failed_one() -> None:
    """That server may have been sent the charge already: under another id, it would charge twice."""
    nodes = Failing(RedisConnectionError("closed"))
    with pytest.raises(StorageError, match="wrong shape"):
        ClusterStorage(nodes).check(hits())
    assert nodes.asked[-1] == SECOND
    assert len({check_id for _, _, _, _, _, check_id, *_ in nodes.commands}) == 1


class Lost(Nodes):
    """The only server and its client. Answers nothing after the first check."""

    def __init__(self) -> None:
        super().__init__([FIRST], SharedDeadline(None))
        self.is_lost = False

    def client_at(self, _: Address) -> Lost:
        return self

    def execute_command(self, *command: Any) -> Any:
        self.is_lost |= command != ("CLUSTER", b"SLOTS")
        if self.is_lost:
            raise RedisConnectionError("closed")
        return [[0, 16_383, FIRST]]


def test_error_of_a_check_has_its_id_although_the_whole_cluster_is_lost() -> None:
    """Otherwise, the guard would repeat the check under another id, and charge it twice."""
    with pytest.raises(StorageError, match="closed") as caught:
        ClusterStorage(Lost()).check(hits())
    assert caught.value.check_id is not None


def test_refund_is_not_repeated_after_a_lost_connection() -> None:
    nodes = Failing(RedisConnectionError("closed"))
    both = hits("5/minute; 9/hour", scope="api")  # in one hash slot

    with pytest.raises(StorageError, match="closed"):
        ClusterStorage(nodes).settle(uuid4(), [Charge(hit, 0) for hit in both])

    assert nodes.asked == [FIRST]


class Spoiled(Nodes):
    """The only server and its client. Admits the checks of all keys but the first, and settles all but the second."""

    def __init__(self, keys: list[bytes]) -> None:
        super().__init__([FIRST], SharedDeadline(None))
        self.fails_to_check, self.fails_to_settle = keys[0], keys[1]
        self.settled = list[bytes]()

    def client_at(self, _: Address) -> Spoiled:
        return self

    def execute_command(self, *command: Any) -> Any:
        if command == ("CLUSTER", b"SLOTS"):
            return [[0, 16_383, FIRST]]
        _, sha, _, key, *_ = command
        settles = sha == script("settle", frozenset({"sliding_window"})).sha.encode()
        if settles:
            self.settled.append(key)
        if key == (self.fails_to_settle if settles else self.fails_to_check):
            raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return [1_000_000, 1, 0, 9, 0, 60_000_000]


def test_refund_that_fails_in_one_hash_slot_is_made_in_the_others() -> None:
    """Otherwise, a client is charged for what is refused, or charged twice when the check is decided elsewhere."""
    plan = [hit for scope in ("application", "api.update", "shop") for hit in hits("10/minute", scope=scope)]
    server = Spoiled([hit.key.encode() for hit in plan])

    with pytest.raises(StorageError):
        ClusterStorage(server).check(Hits(plan))

    assert sorted(server.settled) == sorted(hit.key.encode() for hit in plan[1:])


def test_script_is_not_repeated_after_a_lost_connection() -> None:
    nodes = Failing(RedisConnectionError("closed"))
    with pytest.raises(StorageError, match="closed"):
        ClusterStorage(nodes).run_script("return 0", ["key"], [])
    assert nodes.asked == [FIRST]


@pytest.mark.parametrize(
    "error", [NoPermissionError("no right"), ResponseError("TRYAGAIN"), ResponseError("WRONGTYPE")], ids=str
)
def test_error_that_any_server_would_give_is_not_repeated(error: RedisError) -> None:
    nodes = Failing(error)
    with pytest.raises(StorageError, match=str(error)):
        ClusterStorage(nodes).reset(["key"])
    assert nodes.asked == [FIRST]


def test_repeated_command_gets_the_check_id_of_the_first_attempt() -> None:
    id_, ids = uuid4(), list[UUID | None]()

    def question(server: RedisStorage, tried: UUID | None) -> None:
        ids.append(tried)
        try:
            server.reset(["key"])
        except StorageError as error:
            error.check_id = id_
            raise

    Servers(Failing(RedisConnectionError("closed")), clock=None).ask(0, question)

    assert ids == [None, id_]


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
@pytest.mark.parametrize("host", [FIRST[0], ""], ids=["host", "no host"])
def test_endless_redirections_are_an_error_with_a_remedy(word: str, host: str) -> None:
    nodes = Failing(ResponseError(f"{word} 0 {host}:{FIRST[1]}"))

    with pytest.raises(StorageError) as raised:
        ClusterStorage(nodes).reset(["key"])

    assert nodes.asked == [FIRST] * MOST_SERVERS
    assert "disagree" in raised.value.remedy


def test_new_clock_applies_to_servers_that_are_already_known() -> None:
    storage = ClusterStorage(Failing(RedisConnectionError("closed")), clock=lambda: 1)
    servers = storage._servers.primaries()

    storage.clock = later = lambda: 2

    assert [server.clock for server in servers] == [later]
    assert storage.clock is later


def test_clients_of_primaries_are_not_bound_to_the_deadline_of_the_question_that_found_them() -> None:
    nodes = Failing(RedisConnectionError("closed"))
    assert len(ClusterStorage(nodes).clients) == 1
    assert nodes.deadline.started == inf


class Counted(Failing):
    """Counts the clients that were made, and those that are still there."""

    def __init__(self, error: RedisError) -> None:
        super().__init__(error)
        self.made = 0
        self.alive = WeakSet[Client]()

    def client_at(self, address: Address) -> Client:
        self.made += 1
        self.alive.add(client := super().client_at(address))
        return client


def test_servers_that_have_left_the_cluster_are_forgotten() -> None:
    """As in Kubernetes, where each new one has another address."""
    nodes = Counted(RedisConnectionError("closed"))
    storage = ClusterStorage(nodes)
    for number in range(20):
        nodes.owner = (f"10.0.1.{number}", 6379)
        assert storage.clients

    gc.collect()

    assert len(nodes.alive) == 3, "the one that tells the owners, and the owners that it told last"


def test_servers_to_which_hash_slots_move_keep_their_connections() -> None:
    """Before they own a hash slot, no server names them in its CLUSTER SLOTS."""
    nodes = Counted(ResponseError())
    storage = ClusterStorage(nodes)
    for number in range(10):
        nodes.owner = FIRST
        nodes.error = ResponseError(f"ASK 0 10.0.1.{number % 2}:6379")
        storage.reset(["key"])

    assert nodes.made == 3


class ClusterClient:
    """As much of a ``RedisCluster`` as is asked for clients of servers that it does not know."""

    def __init__(self) -> None:
        self.made = WeakSet[redis.Redis]()
        self.nodes_manager = self

    def get_nodes(self) -> list[ClusterNode]:
        return []

    def get_node(self, **_: Any) -> None:
        return None

    def remap_host_port(self, *address: Any) -> Any:
        return address

    def get_redis_connection(self, node: ClusterNode) -> redis.Redis:
        node.redis_connection = client = redis.Redis(host=node.host, port=node.port)
        self.made.add(client)
        return client


def test_client_of_a_server_is_kept_no_longer_than_it_is_used() -> None:
    cluster = ClusterClient()
    nodes = NodesOfClient(cluster)
    used = nodes.client_at(FIRST)
    for number in range(20):
        nodes.client_at((f"10.0.1.{number}", 6379))

    gc.collect()

    assert list(cluster.made) == [used]
    assert used.node_of_cluster.redis_connection is used, "redis-py 5.0 closes the connections of a lost node"


def test_connections_of_a_client_that_is_given_are_used(cluster: Cluster) -> None:
    client: Any = cluster.shared_client
    used = ClusterStorage.from_client(client).clients
    assert {id(each) for each in used} <= {id(node.redis_connection) for node in client.get_nodes()}


QUESTIONS: dict[str, Callable[[ClusterStorage, Hit], Any]] = {
    "check": lambda storage, hit: storage.check((hit,)),
    "peek": lambda storage, hit: storage.peek((hit,)),
    "settle": lambda storage, hit: storage.settle(uuid4(), [Charge(hit, 0)]),
    "release": lambda storage, hit: storage.release([Slot(uuid4().bytes, hit)]),
    "renew": lambda storage, hit: storage.renew([Slot(uuid4().bytes, hit)]),
    "reset": lambda storage, hit: storage.reset([hit.key]),
    "keys": lambda storage, hit: storage.keys(hit.key),
    "owner_of": lambda storage, hit: storage.owner_of(hit.key),
    "tally": lambda storage, hit: storage.tally([], source=hit.key, number=1),
    "tallies": lambda storage, hit: storage.tallies([hit.key]),
    "run_script": lambda storage, hit: storage.run_script("return 0", [hit.key], []),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_each_question_has_the_whole_timeout(cluster: Cluster, question: Callable[[ClusterStorage, Hit], Any]) -> None:
    nodes = NodesOfUri(cluster.uri, timeout=10)
    nodes.deadline.started = -inf  # by the question before
    (hit,) = hits(Concurrent(5, 60), scope="api")

    question(ClusterStorage(nodes), hit)

    nodes.close()


# What a server answers to CLUSTER SLOTS


@pytest.mark.parametrize("host", [b"10.0.0.2", "10.0.0.2"], ids=["bytes", "text"])
def test_owner_of_a_hash_slot_is_the_server_named_in_the_reply(host: Any) -> None:
    """As bytes, or as text from a client that decodes answers."""
    slots = HashSlots([FIRST], lambda _: [[0, HASH_SLOTS - 1, [host, 7001]]], Deadline(None))
    assert slots.owner(0) == ("10.0.0.2", 7001)
    assert slots.primaries() == [("10.0.0.2", 7001)]


@pytest.mark.parametrize("host", [b"", "", b"?", "?", None])
def test_server_without_a_name_in_the_reply_is_at_the_address_that_was_asked(host: Any) -> None:
    slots = HashSlots([FIRST], lambda _: [[0, HASH_SLOTS - 1, [host, 7001]]], Deadline(None))
    assert slots.owner(HASH_SLOTS - 1) == ("10.0.0.1", 7001)


def test_reply_that_leaves_out_an_owner_is_not_believed() -> None:
    """Otherwise the owners of all further hash slots would be those of others."""
    slots = HashSlots([FIRST], lambda _: [[0, 99], [100, HASH_SLOTS - 1, ["10.0.0.2", 7001]]], Deadline(None))
    with pytest.raises(StorageError):
        slots.owner(100)


@pytest.mark.parametrize(
    "reply",
    [
        *(5, [5], [[0]], [[0, 99, ["10.0.0.2", "no port"]]], [[0, 99, ["10.0.0.2", inf]]], [[0, 99, {1: 2}]]),
        *([[0, 2**62, FIRST]], [[0, HASH_SLOTS, FIRST]], [[0, 99, FIRST], [-99, 99, FIRST]]),
    ],
    ids=str,
)
def test_reply_of_another_form_is_an_error_of_the_storage(reply: Any) -> None:
    """So that a guard decides in its place."""
    with pytest.raises(StorageError):
        HashSlots([FIRST], lambda _: reply, Deadline(None)).owner(0)


class Naming(NodesOfUri):
    """The first server, which names another one as the owner of all slots."""

    def __init__(self, owner: tuple[str, int]) -> None:
        super().__init__("redis+cluster://10.0.0.1", timeout=1)
        self.owner = owner

    def client_at(self, address: Address) -> Any:
        return self if address == FIRST else super().client_at(address)

    def execute_command(self, *_: Any) -> Any:
        return [[0, HASH_SLOTS - 1, self.owner]]


@pytest.mark.parametrize("owner", [("10.0.0.2", 0), ("x" * 64, 7001)], ids=["port of another protocol", "long name"])
def test_owner_that_cannot_be_addressed_is_an_error_of_the_storage(owner: tuple[str, int]) -> None:
    """A server that speaks only TLS has the port 0 for clients that do not."""
    with pytest.raises(StorageError, match="names a server"):
        ClusterStorage(Naming(owner)).check(Hits(hits("10/minute")))


def test_the_only_known_server_is_asked_again_after_it_has_failed() -> None:
    failures = [StorageError("closed")]

    def ask(_: Address) -> Any:
        if failures:
            raise failures.pop()
        return [[0, HASH_SLOTS - 1, FIRST]]

    slots = HashSlots([FIRST], ask, Deadline(None))
    with pytest.raises(StorageError, match="closed"):
        slots.owner(0)
    assert slots.owner(0) == FIRST
    slots.record_failure(FIRST)
    assert slots.owner(0) == FIRST


PATCHED_LATER = """
from flask_multilimit.engine.storage.cluster import servers
from flask_multilimit.engine.storage.cluster.hash_slots import HASH_SLOTS, HashSlots
from flask_multilimit.engine.storage.redis.connections import Deadline


def ask(_):
    greenlets.append(gevent.spawn(slots.owner, 1))
    gevent.sleep(0)
    return [[0, HASH_SLOTS - 1, ["10.0.0.2", 7001]]]


deadline = Deadline(5)
slots = HashSlots([("10.0.0.1", 7001)], ask, deadline)

from gevent import monkey

monkey.patch_all(ssl=False)

import gevent

greenlets = []
deadline.start()
slots.owner(0)
gevent.joinall(greenlets, raise_error=True)
print(greenlets[0].value)
"""


def test_greenlets_wait_for_the_owners_although_the_app_was_made_before_gevent_patched_python() -> None:
    """As with ``gunicorn --preload``, which patches Python in its workers."""
    command = [sys.executable, "-c", PATCHED_LATER]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert (made.stdout, made.stderr) == ("('10.0.0.2', 7001)\n", "")


def test_servers_can_be_closed_by_two_threads() -> None:
    def asked() -> Servers:
        made = Servers(Failing(RedisConnectionError("closed")), clock=None)
        made._at(FIRST)
        return made

    for closed in interleaved(asked, Servers.close, Servers.close, of=servers):
        assert not closed._servers
