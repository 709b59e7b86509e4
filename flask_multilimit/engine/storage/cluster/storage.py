"""Redis Cluster: one command for each slot that holds keys of a check, and all or nothing over all slots.

A server is atomic only for keys of one slot. So the hits of each slot form a *group*, and the groups are checked one
after the other under one id. If a group refuses, the charges of the groups before it are refunded exactly, by that id,
and the groups after it are only peeked; a refusal there is still a strike. A ban that watches rules of other slots gets
its strike in a command of its own. A rule never admits more than it allows. For a moment, other requests may see
charges that are about to be refunded.

While a slot moves from one server to another, the servers may answer commands with several keys by TRYAGAIN. Then each
hit is a group of its own. A ban that holds still refuses, but no refusal is a strike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from redis.cluster import RedisCluster
from redis.crc import key_slot

from ...decision import Charge, Decision
from ...errors import ConfigurationError, StorageError, brief
from ...hits import BanHit, Hit, Hits, bans_among, memoized
from ...reply import DELAY, Standing, joined, retry_afters, standing_of
from ...rules import Rule
from ..addresses import redacted
from ..base import Lost, Slot, StoredKey, check_clock, check_timeout
from ..redis.failures import code_of
from ..redis.storage import RedisStorage, remembers_ids
from ..tallies import Tallies, Tally
from ..together import Together
from .nodes import Address, Nodes, NodesOfClient, NodesOfUri
from .slots import Slots, redirection_of

REFUSES = Rule.model_construct(time=1, count=0, algorithm="fixed_window")
"""Stands for a rule of another slot that refuses."""
MOST_SERVERS = 8
"""The most servers that one question is redirected to."""

T = TypeVar("T")
Question = Callable[[RedisStorage, "UUID | None"], T]
"""What to ask a server, given the id under which another server may have answered it before."""


@dataclass(frozen=True, slots=True)
class Group:
    """Hits of a plan that are checked in one command."""

    slot: int
    hits: tuple[Hit, ...]
    places: tuple[int, ...]
    """The place of each hit in the check."""
    recognised: bool
    """Whether a repeated check is charged only once."""
    has_bans: bool

    @classmethod
    def of(cls, slot: int, plan: Sequence[Hit], places: Sequence[int]) -> Group:
        hits = Hits(plan[place] for place in places)
        return cls(slot, hits, tuple(places), remembers_ids(hits), bool(bans_among(hits)))

    def apart(self, plan: Sequence[Hit]) -> list[Group]:
        """Each hit as a group of its own."""
        return [Group.of(self.slot, plan, [place]) for place in self.places]


Answer = tuple[Group, Decision]


class ClusterStorage:
    """Quotas in the primaries of a cluster. ``clock`` is for tests, as in :class:`RedisStorage`."""

    shared = True

    def __init__(self, nodes: Nodes, *, clock: Callable[[], int] | None = None) -> None:
        self._nodes = nodes
        self._clock = clock
        self._deadline = nodes.deadline
        self._clients: dict[Address, Any] = {}
        self._servers: dict[Address, RedisStorage] = {}
        self._together = Together()
        self._slots = Slots(nodes.start, self._ask_for_slots, nodes.deadline)

    @classmethod
    def from_uri(cls, uri: str, *, timeout: float) -> ClusterStorage:
        """At ``redis+cluster://[user:password@]host:port[,host:port...]`` or ``rediss+cluster://``.

        A check answers within ``timeout`` seconds. If it fails after some groups were charged, it may take the same
        time again to refund them. Does not connect yet. Raises :class:`ConfigurationError`.
        """
        if not isinstance(uri, str):
            raise ConfigurationError(f"uri={brief(uri)}: give text, such as redis+cluster://localhost:6379")
        check_timeout(timeout)
        return cls(NodesOfUri(uri, timeout=timeout))

    @classmethod
    def from_client(cls, client: RedisCluster, *, clock: Callable[[], int] | None = None) -> ClusterStorage:
        """Use the connections of ``client``, with its options and timeouts but without its retries. The caller remains
        responsible for closing it."""
        if not isinstance(client, RedisCluster):
            raise ConfigurationError(f"client={brief(client, without_secrets=redacted)}: give a RedisCluster of redis")
        if clock is not None:
            check_clock(clock)
        return cls(NodesOfClient(client), clock=clock)

    @property
    def clock(self) -> Callable[[], int] | None:
        return self._clock

    @clock.setter
    def clock(self, clock: Callable[[], int] | None) -> None:
        self._clock = clock
        for server in self._servers.values():
            server.clock = clock

    @property
    def clients(self) -> list[Any]:
        """A client object of ``redis`` for each primary. Raises :class:`StorageError`."""
        return [self._client_at(address) for address in self._primaries()]

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self._deadline.begin()
        groups = memoized(hits, groups_of)
        if len(groups) > 1:
            return self._check_groups(hits, groups, check_id)
        try:
            return self._check(groups[0], check_id)
        except StorageError as error:
            if not _must_be_taken_apart(groups[0], error):
                raise
        return self._check_groups(hits, groups[0].apart(hits), check_id)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        self._deadline.begin()
        return _joined(hits, list(self._answers(hits, memoized(hits, groups_of), self._peek)))

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        """One check after the other, each within the deadline: a slot may move between two of them."""
        each_id: Sequence[UUID | None] = ids or [None] * len(many)
        return [self.check(hits, id_) for hits, id_ in zip(many, each_id, strict=True)]

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._deadline.begin()
        self._refund(check_id, charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        if lost is None:
            self._release(slots)
        else:
            self._together.release(slots, lost, self._release)

    def _release(self, slots: Sequence[Slot]) -> None:
        self._deadline.begin()
        self._each(slots, RedisStorage.release)

    def renew(self, slots: Sequence[Slot]) -> None:
        self._deadline.begin()
        self._each(slots, RedisStorage.renew)

    def _each(self, slots: Sequence[Slot], do: Callable[[RedisStorage, Sequence[Slot]], None]) -> None:
        def ask(slot: int, together: Sequence[Slot]) -> None:
            self._ask(slot, lambda server, _: do(server, together))

        _each_slot(slots, lambda slot: slot.hit.key, ask)

    def reset(self, keys: Sequence[str]) -> None:
        self._deadline.begin()
        _each_slot(keys, lambda key: key, self._forget)

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        """The keys of all primaries, in the order in which each lists them."""
        found = {
            stored.key: stored
            for address in self._primaries()
            for stored in self._at(address).keys(prefix, limit, containing=containing)
        }
        return [found[key] for key in sorted(found)][:limit]

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        self._deadline.begin()
        return self._ask(
            key_slot(source.encode()), lambda server, _: server.tally(tallies, source=source, number=number)
        )

    def tallies(self, keys: Sequence[str]) -> Tallies:
        self._deadline.begin()
        return self._ask(key_slot(keys[0].encode()), lambda server, _: server.tallies(keys))

    def run_script(self, script: str, keys: Sequence[str], arguments: Sequence[bytes]) -> Any:
        self._deadline.begin()
        slot = key_slot(keys[0].encode())
        return self._ask(slot, lambda server, _: server.run_script(script, keys, arguments), again=False)

    def close(self) -> None:
        while self._servers:
            self._servers.popitem()[1].close()
        self._clients.clear()
        self._nodes.close()

    # Group by group

    def _check_groups(self, hits: tuple[Hit, ...], groups: Sequence[Group], check_id: UUID | None) -> Decision:
        answers: list[Answer] = []
        charged: list[Decision] = []

        def ask(group: Group) -> Decision:
            if not all(answer.allowed for _, answer in answers):
                return self._strike(group, check_id or answers[0][1].id) if group.has_bans else self._peek(group)
            return self._check(group, check_id or (answers[0][1].id if answers else None))

        try:
            for group, answer in self._answers(hits, groups, ask):
                answers.append((group, answer))
                charged += [answer] if answer.charges else []
            if len(charged) > 0 and not all(answer.allowed for _, answer in answers):
                answers = self._without_charges(hits, answers, charged)
            if memoized(hits, bans_among) and not all(answer.allowed for _, answer in answers):
                answers += self._struck_from_elsewhere(hits, answers, check_id or answers[0][1].id)
        except StorageError as error:
            error.check_id = error.check_id or (answers[0][1].id if answers else check_id)
            self._deadline.begin()  # the refund has its own deadline
            with suppress(StorageError):
                self._take_back(charged)
            raise error
        return _joined(hits, answers)

    def _without_charges(
        self, hits: tuple[Hit, ...], answers: Sequence[Answer], charged: list[Decision]
    ) -> list[Answer]:
        """The answers as they are once ``charged`` has been refunded."""
        given_back = [group for group, answer in answers if answer.charges]
        self._take_back(charged)
        others = [(group, answer) for group, answer in answers if not answer.charges]
        return [*others, *self._answers(hits, given_back, self._peek)]

    def _struck_from_elsewhere(self, hits: tuple[Hit, ...], answers: Sequence[Answer], check_id: UUID) -> list[Answer]:
        """The answers of the bans that only rules of other slots have struck, after the strike."""
        slots = {place: group.slot for group, _ in answers for place in group.places}
        refusing = {place for group, answer in answers for place in _refusing(group, answer)}
        struck = []
        for place, ban, watched in memoized(hits, bans_among):
            guilty = {slots[other] for other in watched if other in refusing}
            if guilty and slots[place] not in guilty and place not in refusing:
                struck.append(self._struck(Group.of(slots[place], hits, [place]), ban, check_id))
        return struck

    def _struck(self, group: Group, ban: BanHit, check_id: UUID) -> Answer:
        refuses = Hit(f"{ban.key}:refused", REFUSES)
        both = Group.of(group.slot, [replace(ban, watches=(refuses.key,)), refuses], (0, 1))
        try:
            answer = self._strike(both, check_id)
        except StorageError as error:
            if not _must_be_taken_apart(both, error):
                raise
            return group, self._peek(group)  # while a slot moves, no refusal is a strike
        alone = joined(answer.at, 0, [(standing_of(answer.reply, 0), ban.shadow)])
        return group, answer._replace(hits=group.hits, reply=alone)

    def _take_back(self, charged: list[Decision]) -> None:
        """Refund each. There is no second attempt: it might refund more than was charged."""
        while charged:
            answer = charged.pop()
            self._refund(answer.id, answer.charges)

    def _answers(
        self, hits: tuple[Hit, ...], groups: Iterable[Group], ask: Callable[[Group], Decision]
    ) -> Iterator[Answer]:
        """The answer of each group, the last first. Limits that many subjects share come first in a check, those of a
        single subject last: a request that the latter refuse takes nothing from the former, not even for a moment."""
        waiting = list(groups)
        while waiting:
            group = waiting.pop()
            try:
                answer = ask(group)
            except StorageError as error:
                if not _must_be_taken_apart(group, error):
                    raise
                waiting += group.apart(hits)
            else:
                yield group, answer

    def _check(self, group: Group, check_id: UUID | None) -> Decision:
        return self._ask(
            group.slot, lambda server, tried: server.check(group.hits, tried or check_id), again=group.recognised
        )

    def _peek(self, group: Group) -> Decision:
        return self._ask(group.slot, lambda server, _: server.peek(group.hits))

    def _strike(self, group: Group, check_id: UUID) -> Decision:
        return self._ask(group.slot, lambda server, _: server.strike(group.hits, check_id))

    def _refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        def refund(slot: int, together: Sequence[Charge]) -> None:
            self._ask(slot, lambda server, _: server.refund(check_id, together), again=False)

        _each_slot(charges, lambda charge: charge.hit.key, refund)

    def _forget(self, slot: int, keys: Sequence[str]) -> None:
        self._ask(slot, lambda server, _: server.reset(keys))

    # From server to server

    def _ask(self, slot: int, question: Question[T], *, again: bool = True) -> T:
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

    def _successor(self, slot: int, address: Address, failure: StorageError, *, again: bool) -> Address:
        """The owner of ``slot`` after ``address`` has failed. Raises ``failure`` if there is no other, or it must not
        be asked."""
        if failure.key_specific or _code_of(failure) in {"TRYAGAIN", "NOPERM"}:
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
        return RedisStorage(client, clock=self._clock, deadline=self._deadline)

    def _client_at(self, address: Address) -> Any:
        client = self._clients.get(address)
        if client is None:
            client = self._clients.setdefault(address, self._nodes.client_at(address))
        return client

    def _ask_for_slots(self, address: Address) -> Any:
        return self._client_at(address).execute_command("CLUSTER", "SLOTS")

    def _primaries(self) -> list[Address]:
        self._deadline.begin()
        primaries = self._slots.primaries()
        self._deadline.stop()
        return primaries


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


def groups_of(hits: tuple[Hit, ...]) -> tuple[Group, ...]:
    """One group per slot, in the order of their first hits."""
    places: dict[int, list[int]] = {}
    for place, hit in enumerate(hits):
        places.setdefault(key_slot(hit.key.encode()), []).append(place)
    return tuple(Group.of(slot, hits, of_slot) for slot, of_slot in places.items())


def _each_slot(items: Iterable[T], key_of: Callable[[T], str], ask: Callable[[int, Sequence[T]], None]) -> None:
    """Ask once per slot, with all its items. Every slot is asked; then the first failure is raised."""
    by_slot: dict[int, list[T]] = {}
    for item in items:
        by_slot.setdefault(key_slot(key_of(item).encode()), []).append(item)
    waiting, failures = list(by_slot.items()), []
    while waiting:
        slot, together = waiting.pop()
        try:
            ask(slot, together)
        except StorageError as error:
            if _code_of(error) == "TRYAGAIN" and len(together) > 1:
                waiting += [(slot, [item]) for item in together]
            else:
                failures.append(error)
    if failures:
        raise failures[0]


def _code_of(error: StorageError) -> str:
    return code_of(error.__cause__) if isinstance(error.__cause__, Exception) else ""


def _must_be_taken_apart(group: Group, error: StorageError) -> bool:
    return len(group.hits) > 1 and _code_of(error) == "TRYAGAIN"


def _refusing(group: Group, answer: Decision) -> list[int]:
    """The places of the hits that refuse."""
    return [place for place, wait in zip(group.places, retry_afters(answer.reply), strict=True) if wait]


def _joined(hits: tuple[Hit, ...], answers: Sequence[Answer]) -> Decision:
    """One decision from the answers of all groups, at the instant of the answer for the first hit."""
    if len(answers) == 1:
        return answers[0][1]
    standings: dict[int, Standing] = {}
    instants: dict[int, int] = {}
    for group, answer in answers:
        for i, place in enumerate(group.places):
            standings[place] = standing_of(answer.reply, i)
            instants[place] = answer.at
    delay = max(answer.reply[DELAY] for _, answer in answers)
    reply = joined(instants[0], delay, [(standings[place], hit.shadow) for place, hit in enumerate(hits)])
    ahead = tuple(instants[place] - instants[0] for place in range(len(hits)))
    return Decision(answers[0][1].check_id, hits, reply, ahead=ahead)
