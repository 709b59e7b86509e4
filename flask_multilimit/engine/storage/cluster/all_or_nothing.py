"""Checks group by group, so that a check charges all of its hits or none, although they lie in several slots.

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
from dataclasses import replace
from uuid import UUID

from ...decision import Charge, Decision
from ...errors import StorageError
from ...hits import BanHit, Hit, bans_among, memoized
from ...reply import joined, standing_of
from ...rules import Rule
from .groups import Answer, Group, decision_from, groups_of
from .servers import Servers

REFUSES = Rule.refusing(1, algorithm="fixed_window")
"""Stands for a rule of another slot that refuses."""


class AllOrNothing:
    """Asks ``servers`` about each group of a check, within their deadline, which the caller begins."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def check(self, hits: tuple[Hit, ...], groups: Sequence[Group], check_id: UUID | None) -> Decision:
        answers: list[Answer] = []
        charged: list[Decision] = []

        def ask(group: Group) -> Decision:
            if not _all_allow(answers):
                return self._strike(group, check_id or answers[0][1].id) if group.has_bans else self._peek(group)
            return self.check_one(group, check_id or (answers[0][1].id if answers else None))

        try:
            for group, answer in self._answers(hits, groups, ask):
                answers.append((group, answer))
                charged += [answer] if answer.charges else []
            if len(charged) > 0 and not _all_allow(answers):
                answers = self._without_charges(hits, answers, charged)
            if memoized(hits, bans_among) and not _all_allow(answers):
                answers += self._struck_from_elsewhere(hits, answers, check_id or answers[0][1].id)
        except StorageError as error:
            error.check_id = error.check_id or (answers[0][1].id if answers else check_id)
            self._servers.deadline.begin()  # the refund has its own deadline
            with suppress(StorageError):
                self._take_back(charged)
            raise error
        return decision_from(hits, answers)

    def check_one(self, group: Group, check_id: UUID | None) -> Decision:
        """Check the hits of ``group`` alone, in one command."""
        return self._servers.ask(
            group.slot, lambda server, tried: server.check(group.hits, tried or check_id), again=group.recognised
        )

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        return decision_from(hits, list(self._answers(hits, memoized(hits, groups_of), self._peek)))

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """Refund once: a second attempt might refund more than was charged."""
        self._servers.ask_each(
            charges,
            lambda charge: charge.hit.key,
            lambda server, together: server.settle(check_id, together),
            again=False,
        )

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
                if not group.must_be_taken_apart(error):
                    raise
                waiting += group.apart(hits)
            else:
                yield group, answer

    def _peek(self, group: Group) -> Decision:
        return self._servers.ask(group.slot, lambda server, _: server.peek(group.hits))

    # When a group refuses

    def _without_charges(
        self, hits: tuple[Hit, ...], answers: Sequence[Answer], charged: list[Decision]
    ) -> list[Answer]:
        """The answers as they are once ``charged`` has been refunded."""
        given_back = [group for group, answer in answers if answer.charges]
        self._take_back(charged)
        others = [(group, answer) for group, answer in answers if not answer.charges]
        return [*others, *self._answers(hits, given_back, self._peek)]

    def _take_back(self, charged: list[Decision]) -> None:
        while charged:
            answer = charged.pop()
            self.settle(answer.id, answer.charges)

    def _struck_from_elsewhere(self, hits: tuple[Hit, ...], answers: Sequence[Answer], check_id: UUID) -> list[Answer]:
        """The answers of the bans that only rules of other slots have struck, after the strike."""
        slots = {place: group.slot for group, _ in answers for place in group.places}
        refusing = {place for group, answer in answers for place in group.refusing(answer)}
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
            if not both.must_be_taken_apart(error):
                raise
            return group, self._peek(group)  # while a slot moves, no refusal is a strike
        alone = joined(answer.at, 0, [(standing_of(answer.reply, 0), ban.shadow)])
        return group, answer._replace(hits=group.hits, reply=alone)

    def _strike(self, group: Group, check_id: UUID) -> Decision:
        return self._servers.ask(group.slot, lambda server, _: server.strike(group.hits, check_id))


def _all_allow(answers: Iterable[Answer]) -> bool:
    return all(answer.allowed for _, answer in answers)
