"""Header fields that show a client what is left of its quotas, in one of several dialects.

A dialect is a function of hits and their standings (remaining, retry_after, reset_after; times in microseconds), which
returns fields. To add one, write it, and give it a name in :data:`DIALECTS` and in ``Settings.headers``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple

from werkzeug.datastructures import Headers
from werkzeug.http import http_date
from werkzeug.wrappers import Response

from ..config import Settings
from ..engine import Decision, Hit, RuleStatus
from ..engine.algorithms import BAN, NEVER
from ..engine.hits import memoized, part_of
from ..engine.reply import ALLOWED, REMAININGS, reset_afters, standings_of

Standing = tuple[int, int, int]
Fields = Iterable[tuple[str, str]]

CONCURRENT_REQUESTS: Final = "concurrent-requests"
"""Quota unit of draft-ietf-httpapi-ratelimit-headers for requests in progress."""

_NAMES = frozenset(
    ["cache-control", "retry-after", "ratelimit", "ratelimit-policy"]
    + [f"{prefix}-{what}" for prefix in ("ratelimit", "x-ratelimit") for what in ("limit", "remaining", "reset")]
)
"""The names of all fields that are set here, in lower case."""


def describe(response: Response, decisions: Sequence[Decision], settings: Settings) -> None:
    """Add the header fields for all limits that were checked for the request."""
    headers: object = response.headers
    if not isinstance(headers, Headers):  # apps may assign a dict, which werkzeug sends as well
        response.headers = Headers(response.headers)
    shortcut = SHORTCUTS.get(settings.headers) if len(decisions) == 1 else None
    fields = shortcut(decisions[0], settings) if shortcut is not None else None
    _put(response.headers, fields or _fields(decisions, settings, response))


def _fields(decisions: Sequence[Decision], settings: Settings, response: Response) -> Sequence[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    refusal = _latest_refusal(decisions)
    if refusal is not None and response.status_code == 429:
        found.append(("Cache-Control", "no-store"))
        _add_retry_after(found, refusal, settings)
    dialects = DIALECTS[settings.headers]
    if not dialects or (refusal is None and settings.headers_on != "always"):
        return found
    hits, standings = _shown(decisions, with_shadows=settings.shadow_headers)
    if hits:
        for dialect in dialects:
            found += dialect(hits, standings)
    return found


def _put(headers: Headers, fields: Sequence[tuple[str, str]]) -> None:
    """Set ``fields``. Hardly ever does one of them exist already, and adding takes a third of the time of setting."""
    put = headers.add
    for name, _ in headers:
        if name.lower() in _NAMES:
            put = headers.set
            break
    for name, value in fields:
        put(name, value)


def _latest_refusal(decisions: Sequence[Decision]) -> Decision | None:
    for decision in reversed(decisions):
        if not decision.reply[ALLOWED]:
            return decision
    return None


def _add_retry_after(fields: list[tuple[str, str]], decision: Decision, settings: Settings) -> None:
    """Add ``Retry-After`` (RFC 9110, 10.2.3), rounded up: if the time is known, it is never too early."""
    retry_after = decision.retry_after
    if math.isinf(retry_after) and decision.waits_for_slot:
        retry_after = max(decision.refused_for, settings.slot_retry_after)
    if math.isfinite(retry_after):
        seconds = math.ceil(retry_after)
        as_seconds = settings.retry_after == "seconds"
        fields.append(("Retry-After", str(seconds) if as_seconds else http_date(math.ceil(time.time()) + seconds)))


# What to show


def _shown(decisions: Sequence[Decision], *, with_shadows: bool) -> tuple[tuple[Hit, ...], Sequence[Standing]]:
    """The hits and their standings, one per name."""
    latest = decisions[-1]
    if len(decisions) == 1 and not latest.settled:  # usually
        hits, standings = latest.hits, list(standings_of(latest.reply))
    else:
        hits, standings = _merged(decisions)
    if not memoized(hits, _may_be_hidden):
        return hits, standings
    places = tuple(
        place
        for place, (hit, (_, retry_after, _)) in enumerate(zip(hits, standings, strict=True))
        if (with_shadows or not hit.shadow) and (retry_after or hit.rule.algorithm != BAN)
    )
    if not places:
        return (), ()
    return part_of(hits, places), [_until_its_end(hits[place], standings[place]) for place in places]


def _may_be_hidden(hits: tuple[Hit, ...]) -> bool:
    """Whether there are shadows among them, or bans, which are shown while they hold."""
    return any(hit.shadow or hit.rule.algorithm == BAN for hit in hits)


def _until_its_end(hit: Hit, standing: Standing) -> Standing:
    """The standing of a ban until its end, not until it is forgotten."""
    remaining, retry_after, _ = standing
    return (remaining, retry_after, retry_after) if hit.rule.algorithm == BAN else standing


def _standings(decision: Decision) -> tuple[tuple[Hit, ...], list[Standing]]:
    if decision.settled:
        statuses = decision.statuses
        return tuple([status.hit for status in statuses]), [_in_microseconds(status) for status in statuses]
    return decision.hits, list(standings_of(decision.reply))


def _in_microseconds(status: RuleStatus) -> Standing:
    retry_after = round(status.retry_after * 1_000_000) if math.isfinite(status.retry_after) else NEVER
    return status.remaining, retry_after, round(status.reset_after * 1_000_000)


def _merged(decisions: Sequence[Decision]) -> tuple[tuple[Hit, ...], list[Standing]]:
    """The latest standing of a quota that was checked several times; of several quotas with one name, the tightest."""
    shown: dict[str, tuple[Hit, Standing]] = {}
    for decision in decisions:
        for hit, standing in zip(*_standings(decision), strict=True):
            other = shown.get(hit.name)
            if other is None or other[0].key == hit.key or _tightness(standing) > _tightness(other[1]):
                shown[hit.name] = (hit, standing)
    return tuple([hit for hit, _ in shown.values()]), [standing for _, standing in shown.values()]


def _tightness(standing: Standing) -> tuple[float, int]:
    """A longer wait is tighter; of equal waits, less left."""
    remaining, retry_after, _ = standing
    return (math.inf if retry_after < 0 else retry_after), -remaining


# The dialects


def standard(hits: tuple[Hit, ...], standings: Sequence[Standing]) -> Fields:
    """draft-ietf-httpapi-ratelimit-headers, from 08 on. ``t`` is the time until this request would pass, if a rule
    refuses; otherwise until the quota is full again."""
    lasting = memoized(hits, _lasting)
    left = [max(remaining, 0) for remaining, _, _ in standings]
    waits = [retry_after or reset_after for _, retry_after, reset_after in standings]
    return ("RateLimit-Policy", lasting.policy), ("RateLimit", _items(lasting, left, waits))


def _items(lasting: _Lasting, left: Iterable[object], waits: Iterable[int]) -> str:
    """``RateLimit``, with times rounded up to whole seconds."""
    each = enumerate(zip(lasting.starts, left, waits, strict=True))
    return ", ".join(
        [
            f"{start}{units}" if wait < 0 or place in lasting.untimed else f"{start}{units};t={-(-wait // 1_000_000)}"
            for place, (start, units, wait) in each
        ]
    )


class _Lasting(NamedTuple):
    """The parts of :func:`standard` that do not depend on standings."""

    policy: str
    starts: tuple[str, ...]
    """The beginnings of the items of ``RateLimit``."""
    untimed: frozenset[int]
    """The places of rules for requests in progress: nobody knows when a slot becomes free."""


def _lasting(hits: tuple[Hit, ...]) -> _Lasting:
    policies = [f'"{hit.name}";q={_policy(hit)}' for hit in hits]
    untimed = frozenset(place for place, hit in enumerate(hits) if hit.rule.holds_slots)
    return _kept_once(_Lasting(", ".join(policies), tuple([f'"{hit.name}";r=' for hit in hits]), untimed))


def _policy(hit: Hit) -> str:
    """The count and its unit; 0 for a ban, which lets nothing pass."""
    if hit.rule.algorithm == BAN:
        return "0"
    unit = f'qu="{CONCURRENT_REQUESTS}"' if hit.rule.holds_slots else f"w={math.ceil(hit.rule.time)}"
    return f"{hit.rule.count};{unit}"


@lru_cache(maxsize=1024)
def _kept_once(lasting: _Lasting) -> _Lasting:
    """The same object for all subjects of a plan, because there may be thousands."""
    return lasting


class _Usual(NamedTuple):
    """The fields of :func:`standard` for a check that every rule admits, without the remaining units."""

    reset_afters: tuple[int, ...]
    """For sliding windows, they are the same at every request that passes."""
    policy: str
    items: str
    """With ``%d`` in place of the remaining units."""


def standard_as_usual(decision: Decision, settings: Settings) -> Sequence[tuple[str, str]] | None:
    """The fields of :func:`standard`, if only the remaining units differ from the first rendering for these hits, as in
    nearly every request; otherwise ``None``. With three rules in memory, it saves one twentieth of a request."""
    hits, reply = decision.hits, decision.reply
    if not reply[ALLOWED] or decision.settled or settings.headers_on != "always" or memoized(hits, _may_be_hidden):
        return None
    known = memoized(hits, _nothing_yet)
    if not known:
        known.append(_usual(memoized(hits, _lasting), tuple(reset_afters(reply))))
    usual, left = known[0], reply[REMAININGS]
    if tuple(reset_afters(reply)) != usual.reset_afters or min(left) < 0:
        return None
    return ("RateLimit-Policy", usual.policy), ("RateLimit", usual.items % tuple(left))


def _nothing_yet(_: tuple[Hit, ...]) -> list[_Usual]:
    return []


@lru_cache(maxsize=1024)
def _usual(lasting: _Lasting, reset_afters: tuple[int, ...]) -> _Usual:
    escaped = lasting._replace(starts=tuple([start.replace("%", "%%") for start in lasting.starts]))
    return _Usual(reset_afters, lasting.policy, _items(escaped, repeat("%d", len(reset_afters)), reset_afters))


def draft_06(hits: tuple[Hit, ...], standings: Sequence[Standing]) -> Fields:
    """The drafts up to 06: the tightest rule, and the policies of all."""
    policies = ", ".join([_policy(hit) for hit in hits])
    return *_tightest_rule("RateLimit", hits, standings, now=0), ("RateLimit-Policy", policies)


def legacy(hits: tuple[Hit, ...], standings: Sequence[Standing]) -> Fields:
    """``X-RateLimit-*``: the tightest rule, with the time of day of its reset."""
    return _tightest_rule("X-RateLimit", hits, standings, now=time.time())


def _tightest_rule(prefix: str, hits: tuple[Hit, ...], standings: Sequence[Standing], *, now: float) -> Fields:
    hit, (remaining, _, reset_after) = max(zip(hits, standings, strict=True), key=lambda each: _tightness(each[1]))
    return (
        (f"{prefix}-Limit", str(hit.rule.count)),
        (f"{prefix}-Remaining", str(max(remaining, 0))),
        (f"{prefix}-Reset", str(math.ceil(now + reset_after / 1_000_000))),
    )


DIALECTS = {
    "standard": (standard,),
    "draft-06": (draft_06,),
    "legacy": (legacy,),
    "both": (standard, legacy),
    "off": (),
}
"""The dialects, by the values of ``MULTILIMIT_HEADERS``."""

SHORTCUTS = {"standard": standard_as_usual}
"""Faster ways to the same fields, by the same values, for one decision."""
