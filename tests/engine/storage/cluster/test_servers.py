"""Which server of a cluster is asked, and which one after it: with servers that are made up, and know one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from flask_multilimit.engine import ClusterStorage, StorageError
from flask_multilimit.engine.decision import Charge
from flask_multilimit.engine.storage.addresses import Address
from flask_multilimit.engine.storage.cluster.hash_slots import HASH_SLOTS, HashSlots
from flask_multilimit.engine.storage.cluster.servers import MOST_SERVERS, Servers, WholeDeadline
from flask_multilimit.engine.storage.redis.connections import Deadline
from flask_multilimit.engine.storage.redis.storage import RedisStorage
from support.bench import hits

FIRST, SECOND = ("10.0.0.1", 6379), ("10.0.0.2", 6379)
"""The first owns all slots until it fails, then the second."""


class Failing:
    """Makes clients of servers. The one of the first fails with ``error``, the other one answers 0."""

    start: Sequence[Address] = (FIRST, SECOND)

    def __init__(self, error: RedisError) -> None:
        self.error = error
        self.owner = FIRST
        self.asked: list[Address] = []
        self.deadline: WholeDeadline = WholeDeadline(None)

    def client_at(self, address: Address) -> Client:
        return Client(self, address)

    def close(self) -> None:
        """Nothing was opened."""


class Client:
    def __init__(self, nodes: Failing, address: Address) -> None:
        self._nodes, self._address = nodes, address

    def execute_command(self, *command: Any) -> Any:
        if command == ("CLUSTER", "SLOTS"):
            return [[0, 16_383, self._nodes.owner]]
        self._nodes.asked.append(self._address)
        if self._address == FIRST:
            self._nodes.owner = SECOND
            raise self._nodes.error
        return 0


def test_the_server_that_replaces_one_is_asked_instead() -> None:
    nodes = Failing(RedisConnectionError("closed"))

    ClusterStorage(nodes).reset(["key"])

    assert nodes.asked == [FIRST, SECOND]


def test_a_refund_is_asked_once_because_the_server_may_have_made_it_before_it_failed() -> None:
    nodes = Failing(RedisConnectionError("closed"))
    (hit,) = hits("5/minute", scope="api")

    with pytest.raises(StorageError, match="closed"):
        ClusterStorage(nodes).settle(uuid4(), [Charge(hit, 0)])

    assert nodes.asked == [FIRST]


def test_a_script_is_run_once_because_the_server_may_have_run_it_before_it_failed() -> None:
    nodes = Failing(RedisConnectionError("closed"))

    with pytest.raises(StorageError, match="closed"):
        ClusterStorage(nodes).run_script("return 0", ["key"], [])

    assert nodes.asked == [FIRST]


@pytest.mark.parametrize(
    "error", [NoPermissionError("no right"), ResponseError("TRYAGAIN"), ResponseError("WRONGTYPE")], ids=str
)
def test_an_answer_that_another_server_would_give_as_well_is_final(error: RedisError) -> None:
    nodes = Failing(error)

    with pytest.raises(StorageError, match=str(error)):
        ClusterStorage(nodes).reset(["key"])

    assert nodes.asked == [FIRST]


def test_the_second_server_learns_the_id_under_which_the_first_was_asked() -> None:
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


def test_servers_that_send_a_question_round_and_round_are_asked_so_many_times() -> None:
    nodes = Failing(ResponseError(f"MOVED 0 {FIRST[0]}:{FIRST[1]}"))

    with pytest.raises(StorageError) as raised:
        ClusterStorage(nodes).reset(["key"])

    assert nodes.asked == [FIRST] * MOST_SERVERS
    assert "disagree" in raised.value.remedy


def test_a_new_clock_is_for_servers_that_were_asked_before_too() -> None:
    storage = ClusterStorage(Failing(RedisConnectionError("closed")), clock=lambda: 1)
    servers = storage._servers.primaries()

    storage.clock = later = lambda: 2

    assert [server.clock for server in servers] == [later]
    assert storage.clock is later


# What a server answers to CLUSTER SLOTS


@pytest.mark.parametrize("host", [b"10.0.0.2", "10.0.0.2"], ids=["bytes", "text"])
def test_the_owner_is_the_server_that_the_answer_names(host: Any) -> None:
    """As bytes, or as text from a client that decodes answers."""
    slots = HashSlots([FIRST], lambda _: [[0, HASH_SLOTS - 1, [host, 7001]]], Deadline(None))

    assert slots.owner(0) == ("10.0.0.2", 7001)
    assert slots.primaries() == [("10.0.0.2", 7001)]


@pytest.mark.parametrize("host", [b"", "", b"?", "?", None])
def test_a_server_that_does_not_know_its_own_name_is_where_it_was_asked(host: Any) -> None:
    slots = HashSlots([FIRST], lambda _: [[0, HASH_SLOTS - 1, [host, 7001]]], Deadline(None))

    assert slots.owner(HASH_SLOTS - 1) == ("10.0.0.1", 7001)
