"""Redis Cluster as a storage: one command for each hash slot with keys of a check, and all or nothing over all of them.

A check whose keys lie in one hash slot, as nearly always, is one question to one server (:mod:`.servers`). Any other
check is split, and yet charges all of its hits or none.

A server is atomic only for keys of one hash slot. So the hits of each hash slot form a *group*, and the groups are
checked one after another under one id. If a group refuses, the charges of the groups before it are refunded exactly, by
that id, and the groups after it are only peeked; a refusal there is still a strike. A ban that watches rules of other
hash slots gets its strike in a command of its own. A rule never admits more than it allows. For a moment, other
requests may see charges that are about to be refunded.

While a hash slot moves from one server to another, the servers may answer TRYAGAIN to commands with several keys. Then
each hit is a group of its own. A ban that holds still refuses, but no refusal is a strike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any
from uuid import UUID, uuid4

from redis.cluster import RedisCluster
from redis.crc import key_slot

from ...decision import Charge, Decision
from ...errors import ConfigurationError, StorageError
from ...hits import BanHit, Hit, Hits, bans_of, memoized
from ...reply import DELAY, RETRY_AFTERS, Standing, joined, standing_of
from ...rules import Rule
from ..addresses import Address, shown_storage
from ..base import Lost, Slot, StoredKey, check_clock, check_timeout
from ..redis.storage import RedisStorage, remembers_ids
from ..redis.uri import check_client
from ..tallies import Tallies, Tally
from .servers import Nodes, NodesOfClient, NodesOfUri, Servers


@dataclass(frozen=True, slots=True)
class Group:
    """Hits of a check that are checked in one command."""

    hash_slot: int
    hits: tuple[Hit, ...]
    places: tuple[int, ...]
    """The place of each hit in the check."""
    is_recognised: bool
    """Whether a repeated check is charged only once."""

    @classmethod
    def of(cls, hash_slot: int, plan: Sequence[Hit], places: Sequence[int]) -> Group:
        hits = Hits([plan[place] for place in places])
        return cls(hash_slot, hits, tuple(places), remembers_ids(hits))

    def split(self, plan: Sequence[Hit]) -> list[Group]:
        """Each hit as a group of its own."""
        return [Group.of(self.hash_slot, plan, [place]) for place in self.places]

    def must_be_split(self, error: StorageError) -> bool:
        """Whether ``error`` says that the hash slot is moving: then each hit may get an answer by itself."""
        return len(self.hits) > 1 and error.server_code == "TRYAGAIN"

    def refusing_places(self, answer: Decision) -> list[int]:
        """The places of the hits that refuse."""
        return [place for place, wait in zip(self.places, answer.reply[RETRY_AFTERS], strict=True) if wait]


GroupDecision = tuple[Group, Decision]

REFUSES = Rule.refusing(1, algorithm="fixed_window")
"""In place of a rule of another hash slot that refuses."""


class ClusterStorage:
    """Quotas in the primaries of a cluster. ``clock`` is for tests, as in :class:`RedisStorage`."""

    shared = True

    def __init__(self, nodes: Nodes, *, clock: Callable[[], int] | None = None) -> None:
        self._servers = Servers(nodes, clock=clock)
        self._deadline = nodes.deadline

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
        check_client(client)
        if clock is not None:
            check_clock(clock)
        return cls(NodesOfClient(client), clock=clock)

    @property
    def clock(self) -> Callable[[], int] | None:
        return self._servers.clock

    @clock.setter
    def clock(self, clock: Callable[[], int] | None) -> None:
        self._servers.use_clock(clock)

    @property
    def clients(self) -> list[Any]:
        """A client object of ``redis`` for each primary. Raises :class:`StorageError`."""
        return [server.client for server in self._servers.primaries()]

    def owner_of(self, key: str) -> Address:
        """The server that keeps ``key``, as far as is known. Raises :class:`StorageError` if there is none."""
        self._deadline.begin()
        return self._servers.hash_slots.owner(key_slot(key.encode()))

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self._deadline.begin()
        groups = memoized(hits, groups_of)
        if len(groups) > 1:
            return self._check_groups(hits, groups, check_id)
        try:
            return decision_from(hits, [(groups[0], self._check_one(groups[0], check_id))])
        except StorageError as error:
            if not groups[0].must_be_split(error):
                raise
        return self._check_groups(hits, groups[0].split(hits), check_id)

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        self._deadline.begin()
        return decision_from(hits, list(self._answers(hits, memoized(hits, groups_of), self._peek)))

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        """One check after another, each with its own deadline: a hash slot may move between two of them."""
        each_id: Sequence[UUID | None] = ids or [None] * len(many)
        decisions, known, failed = list[Decision](), list[UUID | None](), None
        for hits, id_ in zip(many, each_id, strict=True):
            try:
                decisions.append(self.check(hits, id_))
                known.append(decisions[-1].id)
            except StorageError as failure:  # noqa: PERF203 - that of one key must not stop the others
                failed = failure
                known.append(failure.check_id)
                if not failure.key_specific:
                    break
        if failed is None:
            return decisions
        failed.check_ids = [id_ or uuid4() for id_, _ in zip_longest(known, many)]
        failed.decisions = {decision.id: decision for decision in decisions}
        raise failed

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._deadline.begin()
        self._settle(check_id, charges)

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:  # noqa: ARG002 - it waits for the answer
        self._deadline.begin()
        self._servers.ask_each(slots, lambda slot: slot.hit.key, RedisStorage.release)

    def renew(self, slots: Sequence[Slot]) -> None:
        self._deadline.begin()
        self._servers.ask_each(slots, lambda slot: slot.hit.key, RedisStorage.renew)

    def reset(self, keys: Sequence[str]) -> None:
        self._deadline.begin()
        self._servers.ask_each(keys, str, RedisStorage.reset)

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        """The keys of all primaries, sorted."""
        by_key = {
            stored.key: stored
            for server in self._servers.primaries()
            for stored in server.keys(prefix, limit, containing=containing)
        }
        return [by_key[key] for key in sorted(by_key)][:limit]

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
        return self._servers.ask(
            hash_slot, lambda server, _: server.run_script(script, keys, arguments), may_repeat=False
        )

    def close(self) -> None:
        self._servers.close()

    # All or nothing

    def _check_groups(self, hits: tuple[Hit, ...], groups: Sequence[Group], check_id: UUID | None) -> Decision:
        answers: list[GroupDecision] = []
        charged: list[Decision] = []

        def ask(group: Group) -> Decision:
            if not _all_allow(answers):
                return self._refused(group, answers[0][1].id)
            return self._check_one(group, answers[0][1].id if answers else check_id)

        try:
            for group, answer in self._answers(hits, groups, ask):
                answers.append((group, answer))
                charged.append(answer)
            if not _all_allow(answers):
                answers = self._after_refund(hits, answers, charged)
                answers += self._strike_across_slots(hits, answers, answers[0][1].id)
        except StorageError as error:
            error.check_id = error.check_id or (answers[0][1].id if answers else check_id)
            self._deadline.begin()  # the refund has its own deadline
            while charged:
                with suppress(StorageError):  # one failure must not stop the others
                    self._refund(charged)
            raise error
        return decision_from(hits, answers)

    def _check_one(self, group: Group, check_id: UUID | None) -> Decision:
        """Check the hits of ``group`` alone, in one command."""
        return self._servers.ask(
            group.hash_slot,
            lambda server, failed_id: server.check(group.hits, failed_id or check_id),
            may_repeat=group.is_recognised,
        )

    def _settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """Settle once: a second attempt might refund more than was charged."""
        self._servers.ask_each(
            charges, lambda charge: charge.hit.key, lambda server, some: server.settle(check_id, some), may_repeat=False
        )

    def _answers(
        self, hits: tuple[Hit, ...], groups: Iterable[Group], ask: Callable[[Group], Decision]
    ) -> Iterator[GroupDecision]:
        """The answer of each group, the last group first. Limits that many subjects share come first in a check, those
        of a single subject last: a request that the latter refuse takes nothing from the former, not even for a
        moment."""
        waiting = list(groups)
        while waiting:
            group = waiting.pop()
            try:
                answer = ask(group)
            except StorageError as error:
                if not group.must_be_split(error):
                    raise
                waiting += group.split(hits)
            else:
                yield group, answer

    def _peek(self, group: Group) -> Decision:
        return self._servers.ask(group.hash_slot, lambda server, _: server.peek(group.hits))

    # When a group refuses

    def _refused(self, group: Group, check_id: UUID) -> Decision:
        """The answer of ``group`` when another one refuses the check. If ``group`` refuses, too, that is a strike, but
        only once in a check."""
        return self._strike(group, check_id) if bans_of(group.hits) else self._peek(group)

    def _after_refund(
        self, hits: tuple[Hit, ...], answers: Sequence[GroupDecision], charged: list[Decision]
    ) -> list[GroupDecision]:
        """Refund ``charged``, and return the answers after that."""
        refunded = [group for group, answer in answers if answer.charges]
        self._refund(charged)
        others = [(group, answer) for group, answer in answers if not answer.charges]
        return [*others, *self._answers(hits, refunded, lambda group: self._refused(group, answers[0][1].id))]

    def _refund(self, charged: list[Decision]) -> None:
        while charged:
            answer = charged.pop()
            self._settle(answer.id, answer.charges)

    def _strike_across_slots(
        self, hits: tuple[Hit, ...], answers: Sequence[GroupDecision], check_id: UUID
    ) -> list[GroupDecision]:
        """Strike the bans for which only rules of other hash slots refuse. Return the answers of these bans."""
        hash_slots = {place: group.hash_slot for group, _ in answers for place in group.places}
        refusing_places = {place for group, answer in answers for place in group.refusing_places(answer)}
        struck = []
        for place, ban, watched in bans_of(hits):
            refusing_slots = {hash_slots[other] for other in watched if other in refusing_places}
            if refusing_slots and hash_slots[place] not in refusing_slots and place not in refusing_places:
                struck.append(self._strike_ban(Group.of(hash_slots[place], hits, [place]), ban, check_id))
        return struck

    def _strike_ban(self, group: Group, ban: BanHit, check_id: UUID) -> GroupDecision:
        refuses = Hit(f"{ban.key}:refused", REFUSES)
        both = Group.of(group.hash_slot, (replace(ban, watches=(refuses.key,)), refuses), (0, 1))
        try:
            answer = self._strike(both, check_id)
        except StorageError as error:
            if not both.must_be_split(error):
                raise
            return group, self._peek(group)  # while a hash slot moves, no refusal is a strike
        reply_of_ban = joined(answer.at, 0, [(standing_of(answer.reply, 0), ban.shadow)])
        return group, Decision(answer.check_id, group.hits, reply_of_ban, answer.decided_by)

    def _strike(self, group: Group, check_id: UUID) -> Decision:
        return self._servers.ask(group.hash_slot, lambda server, _: server.strike(group.hits, check_id))


def _all_allow(answers: Iterable[GroupDecision]) -> bool:
    return all(answer.allowed for _, answer in answers)


def groups_of(hits: tuple[Hit, ...]) -> tuple[Group, ...]:
    """One group per hash slot, in the order of their first hits."""
    places: dict[int, list[int]] = {}
    for place, hit in enumerate(hits):
        places.setdefault(key_slot(hit.key.encode()), []).append(place)
    return tuple(Group.of(hash_slot, hits, of_hash_slot) for hash_slot, of_hash_slot in places.items())


def decision_from(hits: tuple[Hit, ...], answers: Sequence[GroupDecision]) -> Decision:
    """One decision made of the answers of all groups, at the instant of the answer for the first hit."""
    if len(answers) == 1:
        return Decision(answers[0][1].check_id, hits, answers[0][1].reply)
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
