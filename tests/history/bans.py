"""One process of a run that asks a limiter with a ban, and the checker of what all have written down.

Checks take effect one after the other at the instants that their replies tell. So whoever goes through them in this
order, keeps every refusal for ever and counts anew each time, knows of each reply what it says of the ban: how many
strikes are left, whether the ban holds, for how long, which repetition it is, and whether it began with this check.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

from flask_multilimit.engine import Ban, Limiter, Rule, hits_for, storage_from_uri
from history.broken import scripts_of_this_process
from history.processes import by_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flask_multilimit.engine import Decision
    from flask_multilimit.engine.hits import Hits
    from history.broken import Defect

BAN = Ban(after=4, within=0.03, time=0.02, factor=1.5, most=0.05)
LONGEST_PAUSE = 0.004
SUBJECTS = {"ada": 8, "bo": 8, "cy": 2, "di": 1}
"""How often each asks, compared with the others: bans of the first follow on each other, strikes of the last pass."""


class Asked(NamedTuple):
    """One check or peek, and what it was told; microseconds of the server's clock."""

    subject: str
    at: int
    id: bytes
    charging: bool
    refused: bool
    """Whether a rule of the limiter refuses."""
    strikes_left: int
    holds: bool
    begun: bool
    level: int
    retry_after: int
    """Of the ban."""


def plan(subject: str) -> Hits:
    return hits_for([Rule(0.03, 2), Rule(0.05, 4, algorithm="fixed_window")], scope="bans", subject=subject, ban=BAN)


def run(url: str, seed: int, threads: int, times: int, defect: Defect | None, *, are_compiled: bool) -> list[Asked]:
    with scripts_of_this_process(are_compiled=are_compiled, defect=defect):
        limiter = Limiter(storage_from_uri(url, timeout=30))
        plans = {subject: plan(subject) for subject in SUBJECTS}
        limiter.peek(plans["ada"])
        done = by_threads(seed, threads, lambda dice, _: _ask(limiter, plans, dice, times))
        limiter.close()
    return [each for together in done for each in together]


def _ask(limiter: Limiter, plans: dict[str, Hits], dice: random.Random, times: int) -> list[Asked]:
    asked: list[Asked] = []
    refused: dict[str, UUID] = {}
    for _ in range(times):
        (subject,), kind = dice.choices(tuple(SUBJECTS), tuple(SUBJECTS.values())), dice.random()
        if kind < 0.1:
            asked.append(_told(subject, limiter.peek(plans[subject]), charging=False))
        elif kind < 0.4 and subject in refused:  # as if its reply had been lost
            asked.append(_told(subject, limiter.check(plans[subject], check_id=refused.pop(subject)), charging=True))
        elif kind < 0.5:
            decision = limiter.check(plans[subject], check_id=uuid4())
            asked.append(_told(subject, decision, charging=True))
        else:
            decision = limiter.check(plans[subject])
            asked.append(_told(subject, decision, charging=True))
            if not decision.allowed:
                refused[subject] = decision.id
        time.sleep(dice.random() * LONGEST_PAUSE)
    return asked


def _told(subject: str, decision: Decision, *, charging: bool) -> Asked:
    [ban] = decision.bans
    refused = any(status.hit is not ban.hit and not status.allowed for status in decision.statuses)
    wait = round(ban.retry_after * 1_000_000)
    told = (ban.strikes_left, ban.holds, ban.begun, ban.level, wait)
    return Asked(subject, decision.at, decision.check_id, charging, refused, *told)


# The checker


class Held(NamedTuple):
    began: int
    level: int

    @property
    def ends(self) -> int:
        lasts = round(BAN.time * 1_000_000)
        for _ in range(self.level):
            lasts = int(lasts * BAN.factor)
        return self.began + min(lasts, round(BAN.most * 1_000_000))


def violations(history: Sequence[Asked]) -> list[str]:
    """The replies that the ban does not explain."""
    in_order = sorted(history, key=lambda each: each.at)
    by_subject = [[each for each in in_order if each.subject == subject] for subject in SUBJECTS]
    return [wrong for of_subject in by_subject for wrong in _of_subject(of_subject)]


def _of_subject(history: Sequence[Asked]) -> list[str]:
    strikes: list[tuple[int, bytes]] = []
    bans: list[Held] = []
    by: bytes = b""
    charged: set[bytes] = set()
    found = []
    for each in history:
        if each.id in charged:  # recognised, so allowed whatever holds now
            continue
        last = bans[-1] if bans else None
        holds = last is not None and each.at < last.ends
        begins = False
        if each.charging and each.refused and not holds:
            counted = _since(strikes, last, each.at)
            if each.id not in [id_ for _, id_ in counted]:
                strikes.append((each.at, each.id))
                begins = len(counted) + 1 >= BAN.after
        if begins:
            repeats = last is not None and each.at < last.ends + round(BAN.most * 1_000_000)
            last, by, holds = Held(each.at, last.level + 1 if last is not None and repeats else 0), each.id, True
            bans.append(last)
        if holds and last is not None:
            told = (0, True, each.charging and each.refused and each.id == by, last.level, last.ends - each.at)
        else:
            told = (BAN.after - len(_since(strikes, last, each.at)), False, False, 0, 0)
        if each.charging and not each.refused and not holds:
            charged.add(each.id)
        if each[5:] != told:
            found.append(f"{each} should have told {told}")
    return found


def _since(strikes: Sequence[tuple[int, bytes]], last: Held | None, now: int) -> list[tuple[int, bytes]]:
    window = round(BAN.within * 1_000_000)
    return [each for each in strikes if now - window < each[0] <= now and (last is None or each[0] > last.began)]
