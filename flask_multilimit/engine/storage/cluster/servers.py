"""Asks the server of a cluster that owns a slot: follows redirections, and turns to the one that replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from redis.crc import key_slot

from ...errors import StorageError
from ..redis.storage import RedisStorage
from .nodes import Address, Nodes, WholeDeadline
from .slots import Slots, has_no_right, is_moving, redirection_of

MOST_SERVERS = 8
"""The most servers that one question is redirected to."""

T = TypeVar("T")
Question = Callable[[RedisStorage, "UUID | None"], T]
"""What to ask a server, given the id under which another server may have answered it before."""


class Servers:
    """The servers of a cluster, each as a storage of its own. The caller begins the ``deadline`` of each question."""

    def __init__(self, nodes: Nodes, *, clock: Callable[[], int] | None) -> None:
        self.deadline: WholeDeadline = nodes.deadline
        self._nodes = nodes
        self._clock = clock
        self._clients: dict[Address, Any] = {}
        self._servers: dict[Address, RedisStorage] = {}
        self._slots = Slots(nodes.start, self._ask_for_slots, nodes.deadline)

    @property
    def clock(self) -> Callable[[], int] | None:
        return self._clock

    @clock.setter
    def clock(self, clock: Callable[[], int] | None) -> None:
        self._clock = clock
        for server in self._servers.values():
            server.clock = clock

    def ask(self, slot: int, question: Question[T], *, again: bool = True) -> T:
        """The answer of the server that owns ``slot``. If it cannot be reached and another server has taken over its
        slots, ask that one, unless ``again`` forbids it because the question must not be answered twice."""
        tried: UUID | None = None
        address, only_once = self._slots.owner(slot), False
        for _ in range(MOST_SERVERS):
            try:
                return question(self._asking_at(address) if only_once else self._at(address), tried)
            except StorageError as error:
                failure, tried = error, error.check_id or tried
            redirection = redirection_of(failure, address)
            if redirection is None:
                address = self._successor(slot, address, failure, again=again)
                only_once = False
                continue
            address, only_once = redirection.address, redirection.only_once
            if not only_once:
                self._slots.moved(slot, address)
        failure.remedy = "the servers of the cluster disagree about the owner of the slot: compare their CLUSTER SLOTS"
        raise failure

    def ask_each(
        self,
        items: Iterable[T],
        key_of: Callable[[T], str],
        question: Callable[[RedisStorage, Sequence[T]], None],
        *,
        again: bool = True,
    ) -> None:
        """Ask once per slot, with all its items. Every slot is asked; then the first failure is raised."""

        def ask(slot: int, together: Sequence[T]) -> None:
            self.ask(slot, lambda server, _: question(server, together), again=again)

        by_slot: dict[int, list[T]] = {}
        for item in items:
            by_slot.setdefault(key_slot(key_of(item).encode()), []).append(item)
        waiting, failures = list(by_slot.items()), []
        while waiting:
            slot, together = waiting.pop()
            try:
                ask(slot, together)
            except StorageError as error:
                if is_moving(error) and len(together) > 1:
                    waiting += [(slot, [item]) for item in together]
                else:
                    failures.append(error)
        if failures:
            raise failures[0]

    def primaries(self) -> list[RedisStorage]:
        """All servers that own slots, according to the cluster now. Begins and stops the deadline."""
        self.deadline.begin()
        primaries = self._slots.primaries()
        self.deadline.stop()
        return [self._at(address) for address in primaries]

    def close(self) -> None:
        while self._servers:
            self._servers.popitem()[1].close()
        self._clients.clear()
        self._nodes.close()

    def _successor(self, slot: int, address: Address, failure: StorageError, *, again: bool) -> Address:
        """The owner of ``slot`` after ``address`` has failed. Raises ``failure`` if there is no other, or it must not
        be asked."""
        if failure.key_specific or is_moving(failure) or has_no_right(failure):
            raise failure
        self._slots.doubt(address)
        with suppress(StorageError):
            if again and (successor := self._slots.owner(slot)) != address:
                return successor
        raise failure

    def _at(self, address: Address) -> RedisStorage:
        server = self._servers.get(address)
        if server is None:
            server = self._servers.setdefault(address, self._storage_on(self._client_at(address)))
        return server

    def _asking_at(self, address: Address) -> RedisStorage:
        return self._storage_on(_Asking(self._client_at(address)))

    def _storage_on(self, client: Any) -> RedisStorage:
        return RedisStorage(client, clock=self._clock, deadline=self.deadline)

    def _client_at(self, address: Address) -> Any:
        client = self._clients.get(address)
        if client is None:
            client = self._clients.setdefault(address, self._nodes.client_at(address))
        return client

    def _ask_for_slots(self, address: Address) -> Any:
        return self._client_at(address).execute_command("CLUSTER", "SLOTS")


class _Asking:
    """Sends the commands of a :class:`RedisStorage` to a server to which a slot is being moved."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def evalsha(self, *arguments: Any) -> Any:
        return self._ask("EVALSHA", *arguments)

    def eval(self, *arguments: Any) -> Any:
        return self._ask("EVAL", *arguments)

    def unlink(self, *keys: str) -> Any:
        return self._ask("UNLINK", *keys)

    def execute_command(self, *command: Any) -> Any:
        return self._ask(*command)

    def _ask(self, *command: Any) -> Any:
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*command)
            replies = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies[-1]
