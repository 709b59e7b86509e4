"""The quotas in storage: which keys there are, whom they count, how much of each is used. This scans all keys, so it is
for people, never for checks."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes

from ..control.store import is_control
from ..declare.subjects import EVERYONE, Subject, parts_in
from ..engine import ConfigurationError, Decision, Hit, Limiter, Rule, StorageError
from ..engine.bans import BanRule
from ..engine.errors import with_remedy
from ..engine.hits import BanHit
from ..engine.keys import KeyParts, KeysOfRule, escape_subject, is_probe, parts_of_key, scope_of_stem
from ..engine.rules import CONCURRENCY, MAX_COUNT
from ..engine.storage import Inspectable, StoredKey
from ..observe.traffic.counts import encodable, is_traffic
from ..serve.gate import AppGate
from .clients import is_own
from .health import storage_state
from .limits import ListedLimiter, RuleFields, limiters_of, rule_fields
from .text import shown_subject
from .values import Described

PEEKED_TOGETHER = 50
"""The most keys to peek at in one round trip."""
MOST_OTHER_KEYS = 1000
"""The most keys that are not quotas: for traffic, two for each ten seconds of an hour and one per process; for
control, two."""
MOST_SLOT_KEYS = 1000
"""The most keys to look at for slots in use."""
MOST_SLOTS_SHOWN = 20
SLOTS_SECONDS = 5.0
"""The time between two looks for slots in use."""
PAUSE_FACTOR = 20
"""The time between two looks is at least this many times as long as a look takes."""
_SLOTS = "multilimit_slots"
"""Where ``app.extensions`` has the time of the next look, and the slots in use."""

Declared = Mapping[KeysOfRule, tuple[Rule, ListedLimiter]]
_COUNT_UNITS = ("sliding_window", "fixed_window", "sliding_window_counter", CONCURRENCY)
"""Algorithms whose state shows the units used, whatever the count of the rule."""


@dataclass(frozen=True, slots=True)
class Key(Described):
    """A key in storage, and what can be known about it."""

    key: str
    ttl: float | None
    """Seconds until it expires; ``null``: never, so it is not ours."""
    used: int | None
    """Units used now, or refusals for a ban; ``null``: not known without the rule."""
    quota: int | None
    """Units that may be used, or the refusals with which the ban begins."""
    rule: RuleFields | None
    """The rule that an endpoint declares for it; ``null`` if no endpoint does, or no longer."""


@dataclass(frozen=True, slots=True)
class SlotsInUse(Described):
    """A subject of a Concurrent rule."""

    endpoint: str
    """The endpoint, or the scope of a check or of a function."""
    used: int
    limit: int | None
    """``null`` if it is not known here, because code or the request determines it."""
    type: str
    subject: str
    shown: str
    """The subject for people."""


@dataclass(frozen=True, slots=True)
class SlotsNow(Described):
    """The subjects that hold slots."""

    slots: tuple[SlotsInUse, ...]
    """Those that hold the largest part of theirs first."""
    at: float | None
    """When the storage said so: POSIX time."""
    problem: str
    """Why it is not known, or not any more."""


def prefixes_of(gate: AppGate) -> tuple[str, ...]:
    """The prefixes of the app's keys. One that begins with another is left out."""
    prefixes = {gate.settings.key_prefix}
    for listed in limiters_of(gate):
        prefixes.add(listed.planned.declaration.key or gate.settings.key_prefix)
    return tuple(sorted(each for each in prefixes if not any(each.startswith(other) for other in prefixes - {each})))


def stored_keys(
    gate: AppGate, prefixes: Iterable[str], limit: int | None = None, *, containing: str = ""
) -> list[StoredKey]:
    """The quotas in storage under ``prefixes`` whose keys contain ``containing``, at most ``limit``. Raises
    :class:`StorageError`."""
    storage = gate.limiter.storage
    if not isinstance(storage, Inspectable):
        raise StorageError(f"a {type(storage).__name__} cannot list its keys: it has no keys(prefix, limit)")
    found: list[StoredKey] = []
    for prefix in prefixes:
        keys = storage.keys(prefix, None if limit is None else limit + MOST_OTHER_KEYS, containing=containing)
        found += [each for each in keys if not (is_traffic(each.key) or is_control(each.key) or is_probe(each.key))]
    return found[:limit]


def keys(gate: AppGate, stored: Sequence[StoredKey]) -> list[Key]:
    """The rule of each key, and how much of it is used, by what the storage says now."""
    declared = rules_by_keys(gate)
    rules = {each.key: rule for each in stored if (rule := declared_for(each.key, declared)[0]) is not None}
    hits = (_hit_of(each.key, rules.get(each.key)) for each in stored)
    used = dict(_used(gate, [hit for hit in hits if hit is not None]))
    return [_key_of(each, used.get(each.key), rules.get(each.key)) for each in stored]


def _key_of(stored: StoredKey, used: int | None, rule: Rule | None) -> Key:
    if rule is None:
        return Key(stored.key, stored.ttl, used, None, None)
    quota = rule.quota.count if isinstance(rule, BanRule) else rule.quota.full
    return Key(stored.key, stored.ttl, used, quota, RuleFields(**rule_fields(rule)))


def slots_in_use(gate: AppGate) -> list[SlotsInUse]:
    """The subjects that hold the largest part of their slots, including those taken in checks, in functions and by
    rules that depend on the request. Empty if the storage cannot list keys. Raises :class:`StorageError`."""
    if not isinstance(gate.limiter.storage, Inspectable):
        return []
    return heapq.nlargest(MOST_SLOTS_SHOWN, _slots(gate), key=_share_in_use)


def slots_now(gate: AppGate) -> SlotsNow:
    """:func:`slots_in_use` as this process saw them a few seconds ago, or longer if a look takes long: SCAN goes
    through all keys of the server."""
    due: float
    seen: SlotsNow
    due, seen = gate.app.extensions.get(_SLOTS, (0.0, SlotsNow((), None, "")))
    begin = time.monotonic()
    if begin >= due and storage_state(gate).state != "failed":
        try:
            seen = SlotsNow(tuple(slots_in_use(gate)), time.time(), "")
        except StorageError as error:
            seen = replace(seen, problem=with_remedy(error))
        end = time.monotonic()
        gate.app.extensions[_SLOTS] = (end + max(SLOTS_SECONDS, PAUSE_FACTOR * (end - begin)), seen)
    return seen


def _share_in_use(found: SlotsInUse) -> tuple[float, int]:
    """The used part of the limit. An unknown limit may be used up."""
    return 1 if found.limit is None else found.used / found.limit, found.used


def _slots(gate: AppGate) -> Iterator[SlotsInUse]:
    scopes = {listed.planned.stem: listed.scope for listed in limiters_of(gate)}
    for prefix in prefixes_of(gate):
        for key in keys(gate, stored_keys(gate, [prefix], MOST_SLOT_KEYS, containing=f":{CONCURRENCY}:")):
            parts = parts_of_key(key.key)
            if parts is None or parts.algorithm != CONCURRENCY or not key.used:
                continue
            scope = scopes.get(parts.stem) or scope_of_stem(parts.stem, prefix)
            limit = None if key.rule is None else key.rule.count
            subject = subject_in(parts)
            yield SlotsInUse(scope, key.used, limit, *subject, shown_subject(gate.plans, *subject))


def subject_in(parts: KeyParts) -> Subject:
    """The subject that a key counts, as traffic has it; of a long one, the digest."""
    given = unquote_to_bytes(parts.subject)
    try:
        return Subject(parts.type, encodable(given.decode("utf-8", "surrogatepass")))
    except UnicodeDecodeError:  # something else has written the key
        return Subject(parts.type, given.decode(errors="replace"))


def all_keys(gate: AppGate) -> list[str]:
    """All quotas of the app. Raises :class:`StorageError`."""
    return [stored.key for stored in stored_keys(gate, prefixes_of(gate))]


def keys_of(gate: AppGate, given: Mapping[str, str], *, containing: str = "", is_digest: bool = False) -> list[str]:
    """The keys in storage that count the ``given`` subjects, at all endpoints, in functions, and in checks that no
    plan knows; with ``is_digest``, those that have what is given in place of a long subject.

    Raises :class:`ConfigurationError` if no subject is given, and :class:`StorageError`.
    """
    if not given:
        raise ConfigurationError('reset: say whose quotas: "user:42", "ip:203.0.113.7" or "everyone"')
    wanted = set(given.items()) if is_digest else _as_in_keys(gate, given)
    stored = stored_keys(gate, prefixes_of(gate), containing=containing)
    return [each.key for each in stored if (parts := parts_of_key(each.key)) and (parts.type, parts.subject) in wanted]


def _as_in_keys(gate: AppGate, given: Mapping[str, str]) -> set[tuple[str, str]]:
    """The type and the text of each subject that the ``given`` ones are, as keys have them."""
    found = {(subject.type, escape_subject(subject.value)) for subject in _subjects(gate, given)}
    found |= {(name, escape_subject(_with_surrogates(value))) for name, value in given.items()}
    if len(given.keys() - {EVERYONE.type}) > 1:  # a client may choose a part that looks like a whole subject
        found -= {(name, escape_subject(value)) for name, value in given.items() if parts_in(value)}
    return found


def _with_surrogates(value: str) -> str:
    """``value`` with the lone surrogates that are escaped where it is shown: nobody can type them."""
    return re.sub(r"\\u(d[89a-f][0-9a-f]{2})", lambda match: chr(int(match[1], 16)), value)


def _subjects(gate: AppGate, given: Mapping[str, str]) -> Iterator[Subject]:
    """The ``given`` subjects, each by itself and several as one, for the types of plans and of checks."""
    gate.plans.ensure()
    resolve = gate.subjects.given(given)
    for name, type_ in gate.plans.types.items():
        subject = resolve(type_, name)
        if subject is not None and is_own(given, subject):
            yield subject
    for name, value in given.items():
        yield gate.subjects.counted(Subject(name, value))


def rules_by_keys(gate: AppGate) -> Declared:
    """Each rule that endpoints declare, with its limiter, by what its keys have in common. Of limiters that share keys,
    one that is no shadow comes first."""
    limiters = sorted(limiters_of(gate), key=lambda each: not each.planned.declaration.shadow)  # later ones replace
    return {keys: (rule, listed) for listed in limiters for keys, rule in listed.planned.rules_by_keys.items()}


def declared_for(key: str, declared: Declared) -> tuple[Rule, ListedLimiter] | tuple[None, None]:
    """The rule of ``key`` and its limiter, if they are ``declared``."""
    parts = parts_of_key(key)
    return (None, None) if parts is None else declared.get(parts.keys_of_rule, (None, None))


def _hit_of(key: str, rule: Rule | None) -> Hit | None:
    """A hit that peeks at ``key``; ``None`` if that shows nothing without its ``rule``."""
    if isinstance(rule, BanRule):
        return BanHit(key, rule, cost=0)
    if rule is not None:
        return Hit(key, rule, cost=0)
    parts = parts_of_key(key)
    if parts is None or parts.algorithm not in _COUNT_UNITS:
        return None
    try:
        return Hit(key, Rule(int(parts.window) / 1000, MAX_COUNT, algorithm=parts.algorithm), cost=0)
    except ConfigurationError:
        return None  # it is not a key of ours, after all


def _used(gate: AppGate, hits: list[Hit]) -> Iterator[tuple[str, int]]:
    decisions, _ = peek_many(gate, hits)
    for decision in decisions:
        for status in decision.statuses:
            yield status.hit.key, max(status.rule.quota.full - status.remaining, 0) + status.debt
        for ban in decision.bans:
            yield ban.hit.key, ban.hit.rule.quota.count - ban.strikes_left


def peek_many(gate: AppGate, hits: Iterable[Hit]) -> tuple[list[Decision], dict[str, StorageError]]:
    """Peek at ``hits``, many in one round trip: the decisions, and the keys that cannot be read, each with its error.
    Raises any other :class:`StorageError`."""
    limiter, wanted = Limiter(gate.limiter.storage), list(hits)
    decisions, unreadable = list[Decision](), dict[str, StorageError]()
    batches = [wanted[at : at + PEEKED_TOGETHER] for at in range(0, len(wanted), PEEKED_TOGETHER)]
    for batch in batches:
        try:
            decisions.append(limiter.peek(batch))
        except StorageError as failure:  # noqa: PERF203 - one failure must not hide the others
            if not failure.key_specific:
                raise
            if len(batch) == 1:
                unreadable[batch[0].key] = failure
            else:
                batches += [[hit] for hit in batch]
    return decisions, unreadable
