"""The hits of a check by slot, and one decision from what was answered for each slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis.crc import key_slot

from ...decision import Decision
from ...errors import StorageError
from ...hits import Hit, Hits, bans_among
from ...reply import DELAY, Standing, joined, retry_afters, standing_of
from ..redis.storage import remembers_ids
from .slots import is_moving


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

    def must_be_taken_apart(self, error: StorageError) -> bool:
        """Whether ``error`` was the answer because the slot is being moved, so that each hit may get another answer."""
        return len(self.hits) > 1 and is_moving(error)

    def refusing(self, answer: Decision) -> list[int]:
        """The places of the hits that refuse."""
        return [place for place, wait in zip(self.places, retry_afters(answer.reply), strict=True) if wait]


Answer = tuple[Group, Decision]


def groups_of(hits: tuple[Hit, ...]) -> tuple[Group, ...]:
    """One group per slot, in the order of their first hits."""
    places: dict[int, list[int]] = {}
    for place, hit in enumerate(hits):
        places.setdefault(key_slot(hit.key.encode()), []).append(place)
    return tuple(Group.of(slot, hits, of_slot) for slot, of_slot in places.items())


def decision_from(hits: tuple[Hit, ...], answers: Sequence[Answer]) -> Decision:
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
