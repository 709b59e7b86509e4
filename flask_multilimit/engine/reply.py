"""The layout of a reply. No other module knows it.

A reply is a flat list of integers, as the scripts return it; times are microseconds:

    now, allowed, delay, then for each hit: remaining, retry_after, reset_after

``allowed`` is 1 or 0. ``delay`` is how long the request waits in a queue; in a refusal, how long it would wait. A
``retry_after`` of 0 says that the hit allows, :data:`.NEVER` that waiting does not help, :data:`.UNKNOWN` that the time
is not known. A ``remaining`` below 0 is a debt, or the level of a ban (:func:`.encode_ban`), or the units for which a
queue had no place when it admitted this check, or, where a charge took the last unit of a sliding window, minus the
microseconds until the next unit comes back.

If a check is allowed, a script compiled for a plan may leave out what the plan determines. Its answer then has ``now``
and each ``remaining``, which are every third number; a *frame* has the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

Reply = Sequence[int]
Standing = Sequence[int]
"""One hit's part of a reply: remaining, retry_after, reset_after."""

NOW, ALLOWED, DELAY = range(3)
REMAINING, RETRY_AFTER, RESET_AFTER = range(3, 6)
"""The indices of the first hit."""
FIELDS_PER_HIT = 3
"""Numbers for each hit."""
REMAININGS = slice(REMAINING, None, FIELDS_PER_HIT)
RETRY_AFTERS = slice(RETRY_AFTER, None, FIELDS_PER_HIT)
RESET_AFTERS = slice(RESET_AFTER, None, FIELDS_PER_HIT)
"""These numbers of all hits: a slice saves a call on the path of each request."""


def head(now: int, delay: int = 0, *, allowed: bool = True) -> list[int]:
    """The beginning of a reply, to which the standings of the hits are appended."""
    return [now, int(allowed), delay]


def joined(now: int, delay: int, standings: Iterable[tuple[Standing, bool]]) -> list[int]:
    """A reply made of the standing of each hit, given with whether the hit is a shadow."""
    reply = head(now, delay)
    for standing, shadow in standings:
        reply += standing
        if standing[1] and not shadow:
            reply[ALLOWED] = 0
    return reply


def is_well_formed(reply: object, hits: int) -> bool:
    """Whether a server's answer is a reply for that many hits."""
    try:  # a sum is an int only if all numbers are
        return len(reply) == REMAINING + FIELDS_PER_HIT * hits and type(sum(reply)) is int  # type: ignore[arg-type,call-overload]
    except TypeError:
        return False


def frame_of(reset_afters: Sequence[int]) -> list[int]:
    """A reply that allows without delay, with 0 in the place of ``now`` and each ``remaining``."""
    return joined(0, 0, [((0, 0, reset_after), False) for reset_after in reset_afters])


def completed(answer: object, hits: int, frame: list[int] | None) -> Reply | None:
    """The reply for that many hits in a server's ``answer``, with what that leaves out taken from ``frame``; ``None``
    if the answer is malformed."""
    if frame is None or type(answer) is not list or len(answer) * FIELDS_PER_HIT != len(frame):
        return cast("Reply", answer) if is_well_formed(answer, hits) else None
    try:
        total = sum(answer)
    except TypeError:
        return None
    if type(total) is not int:  # a broken server may send a double, which can be infinite
        return None
    reply = frame.copy()
    reply[::FIELDS_PER_HIT] = answer
    return reply


def start_of(place: int) -> int:
    """The index at which the standing of the hit at ``place`` starts."""
    return REMAINING + FIELDS_PER_HIT * place


def standing_of(reply: Reply, place: int) -> Standing:
    start = REMAINING + FIELDS_PER_HIT * place
    return reply[start : start + FIELDS_PER_HIT]


def standings_of(reply: Reply) -> Iterable[tuple[int, int, int]]:
    """The standing of each hit, in order."""
    numbers = iter(reply[REMAINING:])
    return zip(numbers, numbers, numbers, strict=True)


def as_allowed(reply: Reply) -> list[int]:
    """``reply`` with every hit allowed and all else as it is."""
    standings = [((remaining, 0, reset_after), False) for remaining, _, reset_after in standings_of(reply)]
    return joined(reply[NOW], reply[DELAY], standings)


def passing_times(reply: Reply) -> tuple[int, ...]:
    """The indices of the times that shrink as time passes: those that are neither 0 nor unknown nor endless."""
    indices = range(REMAINING, len(reply))
    return tuple([i for i in indices if (i - REMAINING) % FIELDS_PER_HIT and reply[i] > 0])


def aged(reply: list[int], times: Iterable[int], elapsed: int) -> list[int]:
    """``reply`` as it is ``elapsed`` microseconds later. Each of its ``times`` stays above 0."""
    later = reply.copy()
    later[NOW] += elapsed
    for i in times:
        later[i] = later[i] - elapsed if later[i] > elapsed else 1
    return later
