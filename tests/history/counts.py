"""One process that asks for what others raise and lower meanwhile, and the checker of what all have written down.

All processes of a machine share one monotonic clock. A unit is charged at some instant between the call of its check
and its return. A count is in force from the call that writes it until the call that writes the next one has returned
and every process has learned of that. So units of which both instants lie within one window are at most as many as the
largest count in force during that window: the larger one while processes learn of the smaller, and the smaller one as
soon as a whole window has passed since then.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from flask_multilimit.control import follow_control
from flask_multilimit.engine import Limiter, Rule, hits_for, storage_from_uri
from flask_multilimit.engine.hits import Hits
from history.broken import scripts_of_this_process
from history.processes import by_threads, until_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.synchronize import Event

    from history.broken import Defect

    Revise = Callable[[Hits], Hits | None]

SCOPE, WINDOW, DECLARED = "counts", 0.5, 12
LONGEST_PAUSE = 0.03
LEARNED = 1.0
"""Seconds until every process knows of a change, as promised."""
CLOCKS = 0.01
"""Seconds by which a window of the server's clock may be shorter than one of the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One check; nanoseconds."""

    before: int
    after: int
    allowed: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """A count that was written; nanoseconds."""

    count: int
    before: int
    after: int


def run(
    url: str, seed: int, threads: int, defect: Defect | None, follows: str | None, *, are_compiled: bool
) -> list[list[Asked]]:
    """What each thread has asked until it is told to stop. The first process breaks the contract as the one of
    ``BROKEN`` that ``follows`` names."""
    over = until_over()
    with scripts_of_this_process(are_compiled=are_compiled, defect=defect):
        limiter = Limiter(storage_from_uri(url, timeout=30))
        follow_control(limiter)
        if follows is not None and seed == 0:
            following, limiter = limiter, Limiter(limiter.outermost)
            limiter.follow(BROKEN[follows](following.with_overrides))
        plan = hits_for(Rule(WINDOW, DECLARED), scope=SCOPE)
        limiter.peek(plan)
        asked = by_threads(seed, threads, lambda dice, _: _ask(limiter, plan, dice, over))
        limiter.close()
    return asked


def _ask(limiter: Limiter, plan: Hits, dice: random.Random, over: Event) -> list[Asked]:
    asked = []
    while not over.is_set():
        before = time.monotonic_ns()
        allowed = limiter.check(plan).allowed
        asked.append(Asked(before, time.monotonic_ns(), allowed))
        time.sleep(dice.random() * LONGEST_PAUSE)
    return asked


# The checker


def violations(history: Sequence[Asked], changes: Sequence[Changed], learned: float = LEARNED) -> set[str]:
    """What of the contract is broken, if ``changes``, in order, are known everywhere ``learned`` seconds later."""
    charged = sorted((each for each in history if each.allowed), key=lambda each: each.before)
    starts = [each.before for each in charged]
    found = set()
    for last in charged:
        start = last.after - _nanoseconds(WINDOW - CLOCKS)
        begun = charged[bisect_right(starts, start) : bisect_right(starts, last.after)]
        units = sum(each.after <= last.after for each in begun)
        if units > largest_in_force(changes, start, last.after, learned):
            found.add("too many")
    return found


def largest_in_force(changes: Sequence[Changed], start: int, end: int, learned: float) -> int:
    """At any instant from ``start`` to ``end``."""
    declared = Changed(DECLARED, 0, 0)
    never = Changed(0, 2**63, 2**63)
    return max(
        each.count
        for each, following in pairwise([declared, *changes, never])
        if each.before <= end and following.after + _nanoseconds(learned) >= start
    )


def longest_stall(asked: Sequence[Sequence[Asked]]) -> float:
    """Seconds that a thread has been kept waiting by the machine, at most."""
    waited = [later.before - each.before for thread in asked for each, later in pairwise(thread)]
    return max(waited, default=0) / 10**9


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 10**9)


# Processes that break the contract


def _never_lowers(revise: Revise) -> Revise:
    """Keeps the largest count that it has heard of."""
    largest: list[Hits] = []

    def revised(hits: Hits) -> Hits | None:
        found = revise(hits) or hits
        if not largest or found[0].rule.count > largest[0][0].rule.count:
            largest[:] = [found]
        return largest[0]

    return revised


def _begins_anew(revise: Revise) -> Revise:
    """Forgets what is used when a count changes."""

    def revised(hits: Hits) -> Hits | None:
        found = revise(hits) or hits
        return Hits(replace(hit, key=f"{hit.key}:{hit.rule.count}") for hit in found)

    return revised


BROKEN: dict[str, Callable[[Revise], Revise]] = {
    "never takes a lowered count": _never_lowers,
    "begins anew when a count changes": _begins_anew,
}
