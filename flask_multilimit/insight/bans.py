"""Which bans hold, by hand or automatic; and what an operator can do: lift them, and reset quotas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..control.entries import Listing, Override
from ..declare.addresses import usual_network
from ..declare.subjects import LimitType, Subject
from ..engine import Ban, BanStatus, ConfigurationError, StorageError
from ..engine.algorithms import BAN
from ..engine.algorithms.ban import length
from ..engine.bans import BanRule
from ..engine.hits import BanHit, Hit
from ..engine.keys import escape_subject, is_digest, parts_of_key
from ..engine.rules import LONGEST
from ..engine.storage import Inspectable
from ..engine.text import Phrase, quoted
from ..observe.traffic import RecentBans, reader_of
from ..observe.traffic.counts import CountedBan, encodable
from ..serve.gate import AppGate
from .clients import Client, hits_of_client
from .keys import declared_for, keys_of, peek_many, prefixes_of, rules_by_keys, stored_keys, subject_in
from .limits import ListedLimiter
from .text import shown_subject
from .traffic import TrafficMemory, memory_of, refusing_bans, why_not_counted
from .values import Described

MOST_BAN_KEYS = 10_000
"""The most keys of bans and strikes to look at if the app counts no traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanInForce(Described):
    """A client that is banned."""

    who: str
    """As `unban` takes it; for a long subject that traffic does not know, its digest."""
    shown: str
    """For people."""
    by: str
    """The name of the ban in header fields; or the person who made it."""
    endpoint: str
    """Where its limiter counts: an endpoint, a function, the scope of a check; ``*`` for one that somebody made."""
    since: float
    ends_in: float | None
    level: int = 0
    """How many bans it repeats; 0 also where this is not known, as in functions and checks."""
    id: str = ""
    """The id of the entry, if somebody made it."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BegunBan(Described):
    """A ban that a limiter started, according to traffic."""

    endpoint: str
    """The endpoint, the function, or the scope of the check."""
    by: str
    """The name of the ban."""
    began: float
    ended: float
    """When it ended or was lifted; if it holds, when it ends."""

    @classmethod
    def of(cls, ban: CountedBan) -> BegunBan:
        return cls(ban.endpoint, ban.rule, ban.began, ban.until)


@dataclass(frozen=True, slots=True)
class Lifted(Described):
    """What was lifted."""

    who: str
    entries: tuple[str, ...]
    """Bans that people had made, as text."""
    keys: tuple[str, ...]
    """The keys of bans that limiters began."""


def bans(gate: AppGate) -> list[BanInForce]:
    """Every ban in force: first those that people made, then those that limiters began. Raises :class:`StorageError`
    and :class:`ConfigurationError`."""
    return [*_by_hand(gate), *_by_limiters(gate)]


def _by_hand(gate: AppGate) -> Iterator[BanInForce]:
    applier = gate.applier
    now = applier.time()
    for each in applier.control.entries() if applier.enabled else ():
        if each.kind == "ban":
            yield BanInForce(
                who=str(each.who),
                shown=quoted(str(each.who)),
                by=each.author,
                endpoint="*",
                since=each.since,
                ends_in=None if each.until is None else max(each.until - now, 0.0),
                id=each.id,
                reason=each.reason,
            )


class _Held(NamedTuple):
    """A ban in force by a limiter."""

    key: str
    endpoint: str
    name: str
    since: float
    ends_in: float
    level: int = 0


def _by_limiters(gate: AppGate) -> list[BanInForce]:
    recent = _recent_bans(gate)
    held = list(_declared(gate, recent))
    if recent is not None:
        elsewhere = _elsewhere(gate, recent)
        held += [_Held(ban.key, ban.endpoint, ban.rule, ban.began, ban.until - recent.at) for ban in elsewhere]
    subjects = _subjects_of(gate, [each.key for each in held])
    in_force = [_ban_in_force(gate, each, subjects[each.key]) for each in held]
    return sorted(in_force, key=lambda each: each.ends_in or 0.0)


def _declared(gate: AppGate, recent: RecentBans | None) -> Iterator[_Held]:
    """The bans in force by limiters of endpoints, as the storage has them. Without traffic, a scan finds their keys."""
    if recent is None:
        keys = [each.key for each in stored_keys(gate, prefixes_of(gate), MOST_BAN_KEYS, containing=f":{BAN}:")]
    else:
        keys = list(recent.latest)
    declared, limiters, hits = rules_by_keys(gate), dict[str, ListedLimiter](), list[Hit]()
    for key in keys:
        rule, limiter = declared_for(key, declared)
        if limiter and isinstance(rule, BanRule) and not limiter.planned.declaration.shadow:
            limiters[key] = limiter
            hits.append(BanHit(key, rule, cost=0))
    decisions, unreadable = peek_many(gate, hits)
    if unreadable and len(unreadable) == len(hits):
        raise next(iter(unreadable.values()))
    for decision in decisions:
        for ban in decision.bans:
            if ban.holds:
                key, limiter = ban.hit.key, limiters[ban.hit.key]
                since = began(ban, decision.at / 1_000_000)
                yield _Held(key, limiter.scope, limiter.planned.ban_name, since, ban.retry_after, ban.level)


def _elsewhere(gate: AppGate, recent: RecentBans) -> Iterator[CountedBan]:
    """The bans in force by limiters of functions, checks and other extensions. They come from traffic, because no plan
    knows these limiters."""
    declared = rules_by_keys(gate)
    for ban in refusing_bans(gate, recent).latest.values():
        parts = parts_of_key(ban.key)
        if ban.until > recent.at and parts is not None and parts.keys_of_rule not in declared:
            yield ban  # a function may share the ban of an endpoint, which is declared


def bans_begun(memory: TrafficMemory, client: Client) -> Iterator[BegunBan]:
    """All bans of ``client`` by limiters that traffic still has."""
    begun = () if memory.bans is None else memory.bans.begun
    return (BegunBan.of(ban) for ban in begun if _is_counted_in(ban.key, client))


def bans_elsewhere(gate: AppGate, client: Client) -> tuple[BegunBan, ...]:
    """The bans of ``client`` in force by limiters of functions and checks, the one that ends last first. Raises
    :class:`StorageError`."""
    recent = _recent_bans(gate)
    elsewhere = () if recent is None else _elsewhere(gate, recent)
    bans = (BegunBan.of(ban) for ban in elsewhere if _is_counted_in(ban.key, client))
    return tuple(sorted(bans, key=lambda each: -each.ended))


def _is_counted_in(key: str, client: Client) -> bool:
    parts = parts_of_key(key)
    subjects = ((name, escape_subject(value)) for name, value in client.given.items())
    return parts is not None and (parts.type, parts.subject) in subjects


def _subjects_of(gate: AppGate, keys: Iterable[str]) -> dict[str, Subject]:
    """The subject that each key counts. The key of a long one has only its digest; traffic may know the subject."""
    parts_of = {key: parts for key in keys if (parts := parts_of_key(key)) is not None}
    found = {key: subject_in(parts) for key, parts in parts_of.items()}
    hidden = {(parts.type, parts.subject) for parts in parts_of.values() if is_digest(parts.subject)}
    if hidden and gate.settings.traffic_subjects == "plain" and (memory := memory_of(gate)) is not None:
        with memory.looking(patient=True):
            known = memory.refusals.by_client(
                len(hidden), lambda who: (who.type, escape_subject(who.subject)) in hidden
            )
        subjects = {(who.type, escape_subject(who.subject)): Subject(who.type, who.subject) for ((who, _), *_) in known}
        for key, parts in parts_of.items():
            found[key] = subjects.get((parts.type, parts.subject), found[key])
    return found


def _recent_bans(gate: AppGate) -> RecentBans | None:
    """The bans that traffic has; ``None`` if it is not counted."""
    return None if why_not_counted(gate) else reader_of(gate.limiter.storage, gate.settings.key_prefix).bans()


def began(ban: BanStatus, now: float) -> float:
    """When a ban that holds ``now`` began: POSIX times."""
    return now + ban.retry_after - length(ban.hit.rule.quota, ban.level) / 1_000_000


def _ban_in_force(gate: AppGate, held: _Held, subject: Subject) -> BanInForce:
    is_address = subject.type == LimitType.IP.value and usual_network(subject.value)
    who = subject.value if is_address else ":".join(subject)
    return BanInForce(
        who=who,
        shown=shown_subject(gate.plans, *subject) if gate.plans.parts_of(subject) else quoted(who),
        by=held.name,
        endpoint=held.endpoint,
        since=held.since,
        ends_in=held.ends_in,
        level=held.level,
    )


def unban(gate: AppGate, client: Client, *, reason: str = "", author: str = "", dry_run: bool = False) -> Lifted:
    """Lift every ban of ``client``: those that people made about it (not about networks that contain it), and those
    that limiters began, at endpoints, in functions and in checks. Raises :class:`StorageError` and
    :class:`ConfigurationError`."""
    applier = gate.applier
    entries: list[Override | Listing] = []
    if applier.enabled and client.who is not None:
        known = applier.control.entries()
        about = (each for each in known if each.who == client.who or (each.who and client.is_called(each.who)))
        entries = [each for each in about if each.kind == "ban"]
    keys = _ban_keys(gate, client)
    if not dry_run:
        for each in entries:
            applier.control.undo(each.id, reason=reason, author=author)
        gate.reset(keys)
    return Lifted(client.text or client.shown, tuple(map(str, entries)), tuple(keys))


def _ban_keys(gate: AppGate, client: Client) -> list[str]:
    """The keys of its bans, and of what cannot be read in place of one. Those of functions and checks include bans that
    have ended, but would make the next one longer."""
    hits = {hit.key: hit for hit in hits_of_client(gate, client) if isinstance(hit, BanHit)}
    if client.given and isinstance(gate.limiter.storage, Inspectable):
        elsewhere = keys_of(gate, client.given, containing=f":{BAN}:", is_digest=client.is_digest)
        hits = {key: BanHit(key, _LONGEST.rule, cost=0, name="elsewhere") for key in elsewhere} | hits
    decisions, unreadable = peek_many(gate, hits.values())
    bans = [ban for decision in decisions for ban in decision.bans]
    return [*unreadable, *(ban.hit.key for ban in bans if ban.holds and not ban.hit.shadow)]


_LONGEST = Ban(time=LONGEST, factor=1, most=LONGEST)
"""In place of a ban whose declaration is not known: it holds as long as the storage remembers that one began."""


def reset(gate: AppGate, client: Client, endpoint: str | None = None) -> int:
    """Reset the quotas of ``client`` at ``endpoint``, or at all endpoints; return how many were used. Raises
    :class:`StorageError`, and :class:`ConfigurationError` if no limit counts this client."""
    hits: list[Hit] = hits_of_client(gate, client, endpoint)
    if not hits:
        raise ConfigurationError(Phrase("no limit counts {who}, so nothing was reset", who=client.shown))
    used = used_keys(gate, hits)
    gate.reset(hits)
    return len(used)


def used_keys(gate: AppGate, hits: Iterable[Hit]) -> set[str]:
    """The keys of ``hits`` that have something to reset, or cannot be read. Raises :class:`StorageError`."""
    decisions, unreadable = peek_many(gate, hits)
    used = set(unreadable)
    for decision in decisions:
        used |= {each.hit.key for each in decision.bans if each.reset_after}
        used |= {
            each.hit.key for each in decision.statuses if each.reset_after or each.remaining < each.rule.quota.full
        }
    return used


def add_to_history(gate: AppGate, what: str, entry: str, *, reason: str = "", author: str = "") -> str:
    """Add a line to the history about something that was done. Return why that failed; empty if it did not."""
    applier = gate.applier
    if not applier.enabled:
        return ""
    try:
        applier.control.note(what, encodable(entry), reason=reason, author=author)
    except (ConfigurationError, StorageError) as error:
        return str(error)
    return ""
