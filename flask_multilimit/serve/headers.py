"""Header fields that show a client what is left of its quotas, in one of several dialects.

A dialect is a function that returns fields. It gets hits, their standings (remaining, retry_after, reset_after; times
in microseconds), the seconds in ``Retry-After`` if there is one, and the key for partition keys (empty: none are sent).
To add one, write it, give it a name in :data:`DIALECTS` and in ``Settings.headers``, and describe its fields in
:data:`FIELDS`.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from werkzeug.datastructures import Headers
from werkzeug.http import http_date
from werkzeug.wrappers import Response

from ..engine import Calendar, Decision, Hit, Rule
from ..engine.algorithms import BAN, EVENLY, SLIDING, Quota
from ..engine.decision import FALLBACKS
from ..engine.forks import LateLock
from ..engine.hits import Hits, memoized, part_of
from ..engine.periods import instant
from ..engine.reply import start_of
from .state import Record

if TYPE_CHECKING:
    from ..config import Settings

Standing = tuple[int, int, int]
Fields = Iterable[tuple[str, str]]
Dialect = Callable[[tuple[Hit, ...], Sequence[Standing], int | None, bytes], Fields]
R = TypeVar("R", bound=Response)

CONCURRENT_REQUESTS: Final = "concurrent-requests"
"""Quota unit of draft-ietf-httpapi-ratelimit-headers for requests in progress."""
NO_STORE = ("Cache-Control", "no-store")
_OF_CACHES = ("cache-control", "surrogate-control", "edge-control", "x-accel-expires")
"""How the names of their fields end."""
REQUESTS = "requests"
"""Quota unit of the same, for rules that say nothing else."""

PACED = EVENLY | SLIDING
"""Algorithms whose units come back little by little, at the rate of the rule, or as they were used."""


_lock = LateLock()
"""For what threads read and change in a response that several of them send. For ``__dict__``, too: CPython 3.11 may
crash if two threads are the first that need that of one object."""


def unshared(response: R, *, passed_on: bool = False) -> R:
    """``response``, or a copy without the fields of another request, if it has answered one: a view may return the same
    object again and again, also while another thread sends it. The headers say so, because a class of the app may
    compute attributes of the response. A refusal that is ``passed_on``, of a request that the view has dispatched,
    keeps its ``Retry-After``."""
    headers: object = response.headers
    if not isinstance(headers, Headers):  # apps may assign a dict, which werkzeug sends as well
        response.headers = headers = Headers(response.headers)
    with _lock():
        is_first = not hasattr(headers, "multilimit_added")
        if is_first:
            headers.multilimit_added = ()  # type: ignore[attr-defined]
    if not is_first:
        wait = response.headers.get("Retry-After") if passed_on else None
        response = own_copy(response)
        response.headers.multilimit_added = ()  # type: ignore[attr-defined]
        if wait is not None:
            response.headers.setdefault("Retry-After", wait)
    return response


def own_copy(response: R) -> R:
    """A copy whose fields can be changed, without those of another request: the app may send ``response`` again."""
    fields = [*Headers(response.headers)]  # first, because another thread names the fields that it adds before it adds
    added = getattr(response.headers, "multilimit_added", ())
    return _copy_with(response, [field for field in fields if field not in added])


def without_fields(response: R, names: Container[str]) -> R:
    """``response``, or a copy without fields, by their names in lower case: the view may return the same object again,
    and needs them then."""
    fields = [*Headers(response.headers)]
    kept = [field for field in fields if field[0].lower() not in names]
    return response if len(kept) == len(fields) else _copy_with(response, kept)


def _copy_with(response: R, fields: list[tuple[str, str]]) -> R:
    """A copy with these header fields. ``copy.copy`` may call a ``__getattr__`` of the app before its copy has
    attributes."""
    kind: type = type(response)  # mypy does not take a type[R] for hashable
    own: R = object.__new__(kind)
    with _lock():
        own.__dict__.update(response.__dict__)
    for slot in _slots_of(kind):
        with suppress(AttributeError):  # it has no value
            slot.__set__(own, slot.__get__(response))
    own.headers = headers_of(fields)
    return own


@lru_cache(maxsize=64)
def _slots_of(kind: type) -> tuple[MemberDescriptorType, ...]:
    """The ``__slots__`` of a class of responses and of its bases. Looking for them takes a fifth of a request."""
    found = [each for base in kind.__mro__ for each in vars(base).values()]
    return tuple([each for each in found if isinstance(each, MemberDescriptorType)])


def headers_of(fields: Fields) -> Headers:
    """As ``Headers(fields)``, in half the time."""
    headers = Headers()
    for name, value in fields:
        headers.add(name, value)
    return headers


def cache_fields(response: Response) -> dict[str, str]:
    """``Cache-Control``, and the fields that some shared caches obey in its place (RFC 9213), by name in lower case."""
    headers: object = response.headers  # apps may assign a dict
    fields = headers if isinstance(headers, Headers) else Headers(response.headers)
    return {lower: value for name, value in fields if (lower := name.lower()).endswith(_OF_CACHES)}


def describe(
    response: R, record: Record, settings: Settings, secret: bytes = b"", *, own: Mapping[str, str] | None = None
) -> R:
    """Add the header fields for all limits that were checked for the request. ``own`` are the :func:`cache_fields` that
    a refusal had before ``after_request`` functions, which may give them to every response. Returns the response to
    send."""
    fields, refused, decisions = None, record.refusal is not None or record.refused, record.decisions
    if not refused and settings.headers == "draft-11" and len(decisions) == 1 and not secret:
        fields = draft_11_fast(decisions[0], settings)
    fields = fields or _fields(record, settings, response, secret, own)
    forbids_storing = bool(fields) and fields[0] is NO_STORE
    for name, _ in response.headers:
        lower = name.lower()
        if lower in _NAMES or (forbids_storing and lower.endswith(_OF_CACHES)):
            if forbids_storing and (of_caches := cache_fields(response)):
                response = without_fields(response, of_caches)
            put = response.headers.set
            break
    else:  # as nearly always; adding takes a third of the time of setting
        put = response.headers.add
    # First, because another thread may copy the response meanwhile.
    response.headers.multilimit_added = fields  # type: ignore[attr-defined]
    for name, value in fields:
        put(name, value)
    return response


def _fields(
    record: Record, settings: Settings, response: Response, secret: bytes, own: Mapping[str, str] | None
) -> Sequence[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    wait, refusal, refused = None, record.refusal, record.refused
    if refusal is not None or refused:
        is_refusal = response.status_code in ({403, 429, 503} if refused else {429, 503})
        if is_refusal or "cache-control" not in (own or {}) or cache_fields(response) != own:
            found.append(NO_STORE)  # caches may store other statuses by default, for all clients
        wait = seconds_to_wait(refusal, refused, settings) if is_refusal else None
        if wait is not None and not (refused and "Retry-After" in response.headers):  # a handler's own
            in_seconds = settings.retry_after == "seconds"
            found.append(("Retry-After", str(wait) if in_seconds else _date_after(wait)))
    dialects = DIALECTS[settings.headers]
    if not dialects or (refusal is None and settings.headers_on != "always"):
        return found
    hits, standings = _shown(record.decisions, settings)
    if hits:
        for dialect in dialects:
            found += dialect(hits, standings, wait, secret)
    return found


def seconds_to_wait(refusal: Decision | None, refused: float, settings: Settings) -> int | None:
    """The seconds in ``Retry-After`` (RFC 9110, 10.2.3), rounded up, so that a time that is known is never too
    early."""
    retry_after = 0.0
    if refusal is not None:
        retry_after = refusal.retry_after
        if math.isinf(retry_after) and refusal.waits_for_slot:
            retry_after = max(refusal.refused_for, settings.slot_retry_after)
    retry_after = max(retry_after, refused)
    return math.ceil(retry_after) if math.isfinite(retry_after) else None


def _date_after(seconds: int) -> str:
    return http_date(instant(math.ceil(time.time()) + seconds))


# What to show


def _shown(decisions: Sequence[Decision], settings: Settings) -> tuple[tuple[Hit, ...], Sequence[Standing]]:
    """The hits and their standings, one per name. In an outage, nobody knows what is left where ``allow`` lets
    everything pass."""
    outage = any(each.decided_by in FALLBACKS for each in decisions)
    if len(decisions) == 1:  # as nearly always
        hits, standings = decisions[0].hits, decisions[0].standings
    else:
        hits, standings = _merged(decisions)
    if not outage and not memoized(hits, _may_be_hidden):
        return hits, standings
    places = tuple(
        place
        for place, (hit, (_, retry_after, _)) in enumerate(zip(hits, standings, strict=True))
        if (settings.shadow_headers or not hit.shadow) and (retry_after or hit.rule.algorithm != BAN)
        if not outage or (hit.on_storage_error or settings.on_storage_error) != "allow"
    )
    if not places:
        return (), ()
    # Merged hits are no Hits: two of them may have one key, that of a scope which a view shares with a function.
    shown = part_of(hits, places) if isinstance(hits, Hits) else tuple([hits[place] for place in places])
    return shown, [_ban_until_end(hits[place], standings[place]) for place in places]


def _may_be_hidden(hits: tuple[Hit, ...]) -> bool:
    """Whether there are shadows among them, or bans, which are shown only while they hold."""
    return any(hit.shadow or hit.rule.algorithm == BAN for hit in hits)


def _ban_until_end(hit: Hit, standing: Standing) -> Standing:
    """``standing``, but of a ban until its end: its own reset is when the ban is forgotten."""
    remaining, retry_after, _ = standing
    return (remaining, retry_after, retry_after) if hit.rule.algorithm == BAN else standing


def _merged(decisions: Sequence[Decision]) -> tuple[tuple[Hit, ...], list[Standing]]:
    """The latest standing of each quota; of several with one name, the tightest, and a shadow only without others."""
    shown: dict[str, tuple[Hit, Standing]] = {}
    for decision in decisions:
        for hit, standing in zip(decision.hits, decision.standings, strict=True):
            other, its = shown.get(hit.name, (hit, standing))
            if other.key == hit.key or (not hit.shadow, _tightness(standing)) > (not other.shadow, _tightness(its)):
                shown[hit.name] = (hit, standing)
    return tuple([hit for hit, _ in shown.values()]), [standing for _, standing in shown.values()]


def _tightness(standing: Standing) -> tuple[float, int, int]:
    """A longer wait is tighter; after equal waits, less left; after that, a later reset."""
    remaining, retry_after, reset_after = standing
    return (math.inf if retry_after < 0 else retry_after), -max(remaining, 0), reset_after


# The dialects


def draft_11(hits: tuple[Hit, ...], standings: Sequence[Standing], retry_after: int | None, secret: bytes) -> Fields:
    """draft-ietf-httpapi-ratelimit-headers-11. ``t`` is the effective window, within which the client may use at most
    ``r``; in a refusal it is never later than ``Retry-After``."""
    windows = list(map(_effective_window, hits, standings))
    if retry_after is not None:
        longest = retry_after * 1_000_000
        windows = [window if window < longest else longest for window in windows]
    return _policies_and_limits(hits, standings, windows, secret)


def _effective_window(hit: Hit, standing: Standing) -> int:
    """Microseconds; 0 or less if the time is not known.

    - A rule that refuses: until this request would pass.
    - Nothing is left: until the next unit comes back.
    - Units come back little by little: how long the rule's own rate takes for the units that are left, so a client that
      spreads them over this time is never refused.
    - Otherwise (a fixed window): until the quota is full again; a window that begins with the next request, if it is.
    - A period of the calendar: until it ends, if any of it was used.
    """
    remaining, retry_after, reset_after = standing
    if retry_after:
        return retry_after
    quota = hit.rule.quota
    if remaining > 0 and hit.rule.algorithm in PACED:
        return -(-remaining * quota.window // quota.count)
    if hit.rule.algorithm in EVENLY:
        return _next_after(quota, reset_after)
    if remaining < 0 and hit.needed:
        return -remaining
    return reset_after if isinstance(hit.rule, Calendar) else reset_after or quota.window


def _next_after(quota: Quota, reset_after: int) -> int:
    """Microseconds until a bucket has one unit; in a queue, until the delay of its last place is permitted."""
    next_after = reset_after - (quota.burst - 1) * quota.window // quota.count
    return max(next_after, reset_after - quota.max_delay) if quota.max_delay > 0 else next_after


def draft_10(hits: tuple[Hit, ...], standings: Sequence[Standing], _: int | None, secret: bytes) -> Fields:
    """The drafts 08 to 10. ``t`` is the time until this request would pass, if a rule refuses; otherwise until the
    quota is full again."""
    return _policies_and_limits(hits, standings, [wait or reset for _, wait, reset in standings], secret)


def _policies_and_limits(
    hits: tuple[Hit, ...], standings: Sequence[Standing], waits: Iterable[int], secret: bytes
) -> Fields:
    """``RateLimit-Policy`` and ``RateLimit``."""
    parts = _with_partition_keys(hits, secret) if secret else memoized(hits, _parts)
    items = []
    for start, hit, (left, _, _), wait in zip(parts.starts, hits, standings, waits, strict=True):
        item = f"{start}{left if left > 0 else 0}"
        if wait > 0 and not hit.rule.holds_slots:
            item += f";t={(wait + 999_999) // 1_000_000}"
        items.append(item)
    return ("RateLimit-Policy", parts.policy), ("RateLimit", ", ".join(items))


_Shown = tuple[str, Rule, str, bool]
"""What the fields show of a hit: its name as they write it, its rule, what that counts, and whether it is a shadow."""


class _Parts(NamedTuple):
    """The parts of the fields of :func:`draft_11` that are the same whatever the standings."""

    policy: str
    starts: tuple[str, ...]
    """The beginnings of the items of ``RateLimit``."""
    template: str
    """``RateLimit`` while every rule admits, with ``%d`` in place of each number; empty if a rule neither is paced nor
    holds slots, or may be hidden."""
    paces: tuple[tuple[int, int, int], ...]
    """For each rule: where its remaining units are in a reply, and its rate: how many units come back in how many
    seconds, as the smallest numbers, because these divide fastest; 0 for slots, whose time is not known."""


def _parts(hits: tuple[Hit, ...]) -> _Parts:
    return _known_parts(tuple([(f'"{hit.name}"', hit.rule, unit_of(hit), hit.shadow) for hit in hits]))


def _with_partition_keys(hits: tuple[Hit, ...], secret: bytes) -> _Parts:
    names = [f'"{hit.name}";pk=:{_partition_key(hit, secret)}:' for hit in hits]
    return _make_parts([(name, hit.rule, unit_of(hit), hit.shadow) for name, hit in zip(names, hits, strict=True)])


def _partition_key(hit: Hit, secret: bytes) -> str:
    """A digest that is the same for all requests that this quota counts. Without the secret, nobody can find out whose
    quota it is."""
    digest = blake2b(hit.key.encode(errors="surrogatepass"), key=secret, digest_size=9, person=b"partition key")
    return base64.b64encode(digest.digest()).decode()


def _make_parts(shown: Sequence[_Shown]) -> _Parts:
    fast = all((rule.algorithm in PACED or rule.holds_slots) and not shadow for _, rule, _, shadow in shown)
    items = [f"{name.replace('%', '%%')};r=%d{'' if rule.holds_slots else ';t=%d'}" for name, rule, _, _ in shown]
    return _Parts(
        ", ".join([f"{name};q={_policy(rule, unit)}" for name, rule, unit, _ in shown]),
        tuple([f"{name};r=" for name, _, _, _ in shown]),
        ", ".join(items) if fast else "",
        tuple([(start_of(place), *_pace(rule)) for place, (_, rule, _, _) in enumerate(shown)]),
    )


_known_parts = lru_cache(maxsize=1024)(_make_parts)
"""The same for all subjects of a plan, which may be thousands: each new client needs them."""


def _pace(rule: Rule) -> tuple[int, int]:
    if rule.holds_slots:
        return 0, 0
    units, seconds = rule.quota.count * 1_000_000, rule.quota.window
    divisor = math.gcd(units, seconds)
    return units // divisor, seconds // divisor


def _policy(rule: Rule, unit: str) -> str:
    """The count, and its unit or the window; 0 for a ban, which lets nothing pass. A calendar has no window, as its
    periods differ in length."""
    if rule.algorithm == BAN:
        return "0"
    window = "" if rule.holds_slots or isinstance(rule, Calendar) else f";w={math.ceil(rule.time)}"
    quota_unit = f';qu="{unit}"' if unit != REQUESTS else ""
    return f"{rule.count}{quota_unit}{window}"


def unit_of(hit: Hit) -> str:
    """What its rule counts."""
    return CONCURRENT_REQUESTS if hit.rule.holds_slots else hit.unit or REQUESTS


def draft_11_fast(decision: Decision, settings: Settings) -> Sequence[tuple[str, str]] | None:
    """The fields of :func:`draft_11` for a request that is admitted, if units are left of every quota, and are slots or
    come back little by little, as in nearly every request; otherwise ``None``. With three rules in memory, it saves one
    twentieth of a request."""
    hits, reply = decision.hits, decision.reply
    if decision.settled or decision.decided_by in FALLBACKS or settings.headers_on != "always":
        return None
    parts = memoized(hits, _parts)
    if not parts.template:
        return None
    numbers: list[int] = []
    for start, units, seconds in parts.paces:
        left = reply[start]
        if left <= 0:
            return None
        numbers.append(left)
        if units:
            numbers.append(-(-left * seconds // units))
    return ("RateLimit-Policy", parts.policy), ("RateLimit", parts.template % tuple(numbers))


def draft_06(hits: tuple[Hit, ...], standings: Sequence[Standing], *_: object) -> Fields:
    """The drafts up to 06: the tightest rule, and the policies of all."""
    policies = ", ".join([_policy(hit.rule, unit_of(hit)) for hit in hits])
    return *_tightest_rule("RateLimit", hits, standings, now=0), ("RateLimit-Policy", policies)


def legacy(hits: tuple[Hit, ...], standings: Sequence[Standing], *_: object) -> Fields:
    """``X-RateLimit-*``: the tightest rule, with the time of day of its reset."""
    return _tightest_rule("X-RateLimit", hits, standings, now=time.time())


def _tightest_rule(prefix: str, hits: tuple[Hit, ...], standings: Sequence[Standing], *, now: float) -> Fields:
    hit, (remaining, _, reset_after) = max(zip(hits, standings, strict=True), key=lambda each: _tightness(each[1]))
    return (
        (f"{prefix}-Limit", str(hit.rule.quota.full)),
        (f"{prefix}-Remaining", str(max(remaining, 0))),
        (f"{prefix}-Reset", str(math.ceil(now + reset_after / 1_000_000))),
    )


DIALECTS: dict[str, tuple[Dialect, ...]] = {
    "draft-11": (draft_11,),
    "draft-10": (draft_10,),
    "draft-06": (draft_06,),
    "legacy": (legacy,),
    "both": (draft_11, legacy),
    "off": (),
}
"""The dialects, by the values of ``MULTILIMIT_HEADERS``."""

_POLICY = ("RateLimit-Policy", "string", "All limits: q is the quota, qu what it counts, w its window in seconds.")
FIELDS: dict[object, tuple[tuple[str, str, str], ...]] = {
    draft_11: (_POLICY, ("RateLimit", "string", "Of each limit, at most r more can be used within t seconds.")),
    draft_10: (
        _POLICY,
        ("RateLimit", "string", "What is left of each limit: r now, and all of it again after t seconds."),
    ),
    draft_06: (
        ("RateLimit-Limit", "integer", "The quota of the tightest limit; of a bucket, what passes at once."),
        ("RateLimit-Remaining", "integer", "What is left of it."),
        ("RateLimit-Reset", "integer", "Seconds until all of it is free again."),
        ("RateLimit-Policy", "string", "The quotas of all limits, and w, their windows in seconds."),
    ),
    legacy: (
        ("X-RateLimit-Limit", "integer", "The quota of the tightest limit; of a bucket, what passes at once."),
        ("X-RateLimit-Remaining", "integer", "What is left of it."),
        ("X-RateLimit-Reset", "integer", "When all of it is free again: seconds since 1970."),
    ),
}
"""The fields of each dialect for descriptions of an API: name, type and meaning."""

_NAMES = {"cache-control", "retry-after"} | {name.lower() for fields in FIELDS.values() for name, _, _ in fields}
"""The names of all fields that this module sets, in lower case."""
