"""Redis Cluster as a storage: one command for each slot that holds keys of a check, and all or nothing over all slots.

A check whose keys lie in one slot, as nearly always, is one question to one server (:mod:`.servers`). Any other is
taken apart (:mod:`.all_or_nothing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from redis.cluster import RedisCluster
from redis.crc import key_slot

from ...decision import Charge, Decision
from ...errors import ConfigurationError, StorageError
from ...hits import Hit, memoized
from ..addresses import shown_storage
from ..base import Lost, Slot, StoredKey, check_clock, check_timeout
from ..redis.storage import RedisStorage
from ..releases import ReleaseBatcher
from ..tallies import Tallies, Tally
from .all_or_nothing import AllOrNothing, groups_of
from .servers import Nodes, NodesOfClient, NodesOfUri, Servers


class ClusterStorage:
    """Quotas in the primaries of a cluster. ``clock`` is for tests, as in :class:`RedisStorage`."""

    shared = True

    def __init__(self, nodes: Nodes, *, clock: Callable[[], int] | None = None) -> None:
        self._servers = Servers(nodes, clock=clock)
        self._deadline = nodes.deadline
        self._all_or_nothing = AllOrNothing(self._servers)
        self._releases = ReleaseBatcher()

    @classmethod
    def from_uri(cls, uri: str, *, timeout: float) -> ClusterStorage:
        """At ``redis+cluster://[user:password@]host:port[,host:port...]`` or ``rediss+cluster://``.

        A check answers within ``timeout`` seconds. If it fails after some groups were charged, it may take the same
        time again to refund them. Does not connect yet. Raises :class:`ConfigurationError`.
        """
        if not isinstance(uri, str):
            raise ConfigurationError(f"uri={shown_storage(uri)}: give text, such as redis+cluster://localhost:6379")
        check_timeout(timeout)
        return cls(NodesOfUri(uri, timeout=timeout))

    @classmethod
    def from_client(cls, client: RedisCluster, *, clock: Callable[[], int] | None = None) -> ClusterStorage:
        """Use the connections of ``client``, with its options and timeouts but without its retries. The caller remains
        responsible for closing it."""
        if not isinstance(client, RedisCluster):
            raise ConfigurationError(f"client={shown_storage(client)}: give a RedisCluster of redis")
        if clock is not None:
            check_clock(clock)
        return cls(NodesOfClient(client), clock=clock)

    @property
    def clock(self) -> Callable[[], int] | None:
        return self._servers.clock

    @clock.setter
    def clock(self, clock: Callable[[], int] | None) -> None:
        self._servers.clock = clock

    @property
    def clients(self) -> list[Any]:
        """A client object of ``redis`` for each primary. Raises :class:`StorageError`."""
        return [server.client for server in self._servers.primaries()]

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self._deadline.begin()
        groups = memoized(hits, groups_of)
        if len(groups) > 1:
            return self._all_or_nothing.check(hits, groups, check_id)
        try:
            return self._all_or_nothing.check_one(groups[0], check_id)
        except StorageError as error:
            if not groups[0].must_be_taken_apart(error):
                raise
        return self._all_or_nothing.check(hits, groups[0].apart(hits), check_id)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        self._deadline.begin()
        return self._all_or_nothing.peek(hits)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        """One check after the other, each within the deadline: a slot may move between two of them."""
        each_id: Sequence[UUID | None] = ids or [None] * len(many)
        return [self.check(hits, id_) for hits, id_ in zip(many, each_id, strict=True)]

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._deadline.begin()
        self._all_or_nothing.settle(check_id, charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        if lost is None:
            self._release(slots)
        else:
            self._releases.release(slots, lost, self._release)

    def _release(self, slots: Sequence[Slot]) -> None:
        self._deadline.begin()
        self._servers.ask_each(slots, _key_of, RedisStorage.release)

    def renew(self, slots: Sequence[Slot]) -> None:
        self._deadline.begin()
        self._servers.ask_each(slots, _key_of, RedisStorage.renew)

    def reset(self, keys: Sequence[str]) -> None:
        self._deadline.begin()
        self._servers.ask_each(keys, str, RedisStorage.reset)

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        """The keys of all primaries, in the order in which each lists them."""
        found = {
            stored.key: stored
            for server in self._servers.primaries()
            for stored in server.keys(prefix, limit, containing=containing)
        }
        return [found[key] for key in sorted(found)][:limit]

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        self._deadline.begin()
        hash_slot = key_slot(source.encode())
        return self._servers.ask(hash_slot, lambda server, _: server.tally(tallies, source=source, number=number))

    def tallies(self, keys: Sequence[str]) -> Tallies:
        self._deadline.begin()
        return self._servers.ask(key_slot(keys[0].encode()), lambda server, _: server.tallies(keys))

    def run_script(self, script: str, keys: Sequence[str], arguments: Sequence[bytes]) -> Any:
        self._deadline.begin()
        hash_slot = key_slot(keys[0].encode())
        return self._servers.ask(hash_slot, lambda server, _: server.run_script(script, keys, arguments), again=False)

    def close(self) -> None:
        self._servers.close()


def _key_of(slot: Slot) -> str:
    return slot.hit.key
