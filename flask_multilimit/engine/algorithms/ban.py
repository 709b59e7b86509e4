"""Ban: after ``count`` refusals within ``window``, the subject is refused for a time. Each ban has one key.

A ban is a hit of the check, and watches other hits. It never charges. A refusal by a hit that it watches is a strike
(:func:`strike`), the only thing that a refused check writes. The strike that completes ``count`` begins the ban. While
a ban holds, nothing is a strike, so further requests do not lengthen it.

The first ban lasts ``time``. Each repetition lasts ``factor`` times as long as the ban before, at most ``most``. A ban
is a repetition if it begins within ``memory`` after the last one has ended.

The state says when a ban began, not when it ends, so changed parameters apply at once. A state whose latest instant
is more than ``AHEAD`` in the future (the clock stepped back) is dropped. Twin of ``ban.lua``.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import floor
from operator import itemgetter
from typing import NamedTuple

from .base import AHEAD, NO_PARAMETERS, Outcome, Quota, encode_ban, plain_quota

PARAMETERS: frozenset[str] = NO_PARAMETERS
MAX_COST = 0
INCLUDES = ()

MOST_LEVEL = 100
"""The largest level: further repetitions do not lengthen a ban."""
NO_BAN = -1
"""The level of a state with strikes and without a ban."""
NO_ID = bytes(16)
"""Stands for the id of the check that began a ban, without a ban."""

quota = plain_quota
recognise = None


class State(NamedTuple):
    """The last ban, and the strikes since."""

    began: int
    level: int
    """How many bans this one repeats; :data:`NO_BAN` if there is no ban."""
    by: bytes
    """The id of the check that began it."""
    strikes: tuple[tuple[int, bytes], ...]
    """The strikes since then, in order: the instant, and the id of the check."""


class Seen(NamedTuple):
    """What a state means at one instant."""

    level: int
    """The level of the ban that holds or is remembered; else :data:`NO_BAN`."""
    remembered: int
    """Microseconds until that ban is forgotten."""
    strikes: tuple[tuple[int, bytes], ...]
    """The strikes that count."""


NOTHING_SEEN = Seen(NO_BAN, 0, ())


@lru_cache(maxsize=1024)
def length(quota: Quota, level: int) -> int:
    """How long a ban of ``level`` lasts, in microseconds. Calculated in doubles as in Lua, one level after another."""
    duration = quota.time
    for _ in range(level):
        if duration < quota.most:
            duration = floor(duration * float(quota.factor))
    return min(duration, quota.most)


def evaluate(state: State | None, quota: Quota, cost: int, now: int) -> Outcome:
    """``remaining`` is the number of strikes until the ban, or while a ban holds, the number of :func:`.encode_ban`."""
    if state is None or _is_future(state, now):
        return quota.count, 0, 0, NOTHING_SEEN
    left = remembered = 0
    if state.level > NO_BAN:
        left = state.began + length(quota, state.level) - now
        remembered = left + quota.memory
    strikes = state.strikes[bisect_right(state.strikes, now - quota.window, key=itemgetter(0)) :]
    seen = Seen(state.level if remembered > 0 else NO_BAN, max(remembered, 0), strikes)
    if left > 0:
        return encode_ban(state.level, begun=False), left, 0, seen
    return max(quota.count - len(strikes), 0), 0, 0, seen


def strike(state: State | None, quota: Quota, now: int, check_id: bytes) -> State | None:
    """Add a strike, unless a ban holds or ``check_id`` is among the strikes. Return the new state."""
    _, holds, _, seen = evaluate(state, quota, 0, now)
    if holds or any(id_ == check_id for _, id_ in seen.strikes):
        return state
    if len(seen.strikes) + 1 >= quota.count:
        return State(now, min(seen.level + 1, MOST_LEVEL), check_id, ())
    latest = max(now, seen.strikes[-1][0]) if seen.strikes else now
    began, by = (state.began, state.by) if state is not None and seen.level > NO_BAN else (0, NO_ID)
    return State(began, seen.level, by, (*seen.strikes, (latest, check_id)))


def evaluate_after_strike(state: State | None, quota: Quota, now: int, check_id: bytes) -> Outcome:
    """:func:`evaluate`, after :func:`strike`. Also says whether this check began the ban."""
    remaining, left, delay, seen = evaluate(state, quota, 0, now)
    if left and state is not None and state.by == check_id:
        remaining = encode_ban(seen.level, begun=True)
    return remaining, left, delay, seen


def charge(
    state: State | None, quota: Quota, cost: int, now: int, seen: Seen, check_id: bytes
) -> tuple[State | None, int]:
    """Drop what lies in the future. An allowed check does nothing else."""
    return drop_future(state, quota, now), reset_after(state, quota, now, seen)


def reset_after(state: State | None, quota: Quota, now: int, seen: Seen) -> int:
    """Microseconds until neither a strike nor a ban is remembered."""
    of_strikes = seen.strikes[-1][0] + quota.window - now if seen.strikes else 0
    return max(seen.remembered, of_strikes)


def drop_future(state: State | None, quota: Quota, now: int) -> State | None:
    return None if state is not None and _is_future(state, now) else state


def settle(
    state: State | None, quota: Quota, cost: int, units: int, until: int, now: int, check_id: bytes
) -> State | None:
    """Do nothing, because a ban charges nothing."""
    return state


def _is_future(state: State, now: int) -> bool:
    return (state.strikes[-1][0] if state.strikes else state.began) > now + AHEAD
