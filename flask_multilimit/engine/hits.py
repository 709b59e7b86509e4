"""Hits: what a check asks. A hit is one rule for one subject with a cost; a check has one or more."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from .algorithms import ALGORITHMS, BAN
from .algorithms.base import COUNTED
from .bans import Ban, BanRule
from .errors import ConfigurationError, brief, check_bool, check_iterable, require
from .forks import notify_child
from .keys import (
    DEFAULT_PREFIX,
    EVERYONE,
    TYPE_PATTERN,
    HashTag,
    checked_prefix,
    escape_subject,
    own_form,
    stem_of,
    stem_of_subject,
    type_and_value,
)
from .periods import Periods
from .rules import Rule, Rules, rules_from

T = TypeVar("T")


OnStorageError = Literal["local", "allow", "deny", "raise"]
"""How a check is decided when the storage fails: by this process within its share of the limit, allowed, refused, or
not at all (:class:`StorageError` is raised)."""


class Origin(NamedTuple):
    """The scope and the subject that :func:`hits_for` was given, by which overrides find its hits."""

    scope: str
    type: str
    subject: str
    settle: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """One rule for one subject, with a cost: one key in storage."""

    key: str
    rule: Rule
    cost: int = 1
    """Units to charge, 0 or more. 0 asks without charging. A cost that is more than the rule ever admits is refused."""
    name: str = ""
    """The name of the rule in header fields; unique within a plan."""
    shadow: bool = False
    """Whether it is evaluated and counted, but never refuses."""
    on_storage_error: OnStorageError | None = None
    """How to decide when the storage fails; ``None``: as the storage's guard is set."""
    unit: str = field(default="", compare=False, kw_only=True)
    """What its rule counts, as header fields say it; empty: requests."""
    origin: Origin | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Its scope and subject, if :func:`hits_for` made it."""
    watches: tuple[str, ...] = field(default=(), compare=False, repr=False, kw_only=True)
    """For a ban: the keys whose refusals are its strikes. Refusals of a shadow are strikes of shadow bans only."""

    def __post_init__(self) -> None:
        _check_texts(self.key, self.name)
        try:
            check_hit_cost(self.cost, self.rule)
        except (AttributeError, TypeError):
            raise ConfigurationError(f"rule={brief(self.rule)}: give a Rule") from None
        if self.shadow is not False:
            check_bool("shadow", self.shadow)
        if self.on_storage_error is not None:
            check_policy(self.on_storage_error)

    @property
    def needed(self) -> int:
        """Units that must be free."""
        return self.cost

    @property
    def packed(self) -> bytes:
        """Quota, cost, shadow and algorithm in the form that scripts read."""
        return _pack(self.rule, self.cost, self.shadow)


class BanHit(Hit):
    """A ban of one subject: refuses while it holds, and otherwise only counts refusals of the hits that it watches. Its
    cost is 0: it charges nothing."""

    __slots__ = ()
    rule: BanRule

    def merged_with(self, other: BanHit) -> BanHit:
        """One ban that watches the keys of both. It is a shadow only if both are."""
        watches = tuple(dict.fromkeys((*self.watches, *other.watches)))
        return replace(self, shadow=self.shadow and other.shadow, watches=watches)


class OpenHit(Hit):
    """A hit that is settled later. With a cost of 0, which is no estimate, it is admitted if one unit is free, and
    charges nothing until it is settled."""

    __slots__ = ()

    @property
    def needed(self) -> int:
        return self.cost or 1

    @property
    def packed(self) -> bytes:
        """As for any hit, but with a cost of -1 in place of 0 (``open.lua``)."""
        return _pack(self.rule, self.cost or -1, self.shadow)


def settled_hit(key: str, rule: Rule, cost: int, *others: Any, **more: Any) -> Hit:
    """A hit that is settled later: with an estimated ``cost``, or, for a :class:`.Concurrent` rule, with one slot."""
    return Hit(key, rule, 1, *others, **more) if rule.holds_slots else OpenHit(key, rule, cost, *others, **more)


class Hits(tuple[Hit, ...]):
    """The hits of one check: at least one, no two with the same key. Raises :class:`ConfigurationError`.

    Reuse it for repeated checks: storages cache in it what they compute from it (:func:`memoized`).
    """

    def __new__(cls, hits: Iterable[Hit], *, scope: str | None = None) -> Hits:
        made = super().__new__(cls, hits if type(hits) in _PLAIN_SEQUENCES else checked_hits(hits))
        if not made:
            raise ConfigurationError("no hits: a check of nothing would let everything pass")
        try:
            keys = [hit.key for hit in made]
        except AttributeError:
            checked_hits(tuple(made))  # raises a better error
            raise
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigurationError(
                f"two hits have the key {brief(twice)}: give one rule, or different scopes or types"
            )
        made.cache = {}
        made.scope = scope
        made.bans = _bans_among(made)
        made.leased = any(hit.rule.lease for hit in made)
        made.revisable = any(hit.origin is not None for hit in made)
        return made

    leased: bool
    """Whether a rule has a lease."""
    revisable: bool
    """Whether overrides may change them, because :func:`hits_for` made at least one."""
    bans: tuple[PlacedBan, ...]
    """The bans among them."""
    scope: str | None
    """What they limit, such as an endpoint, whose overrides apply to them beside those of their own scopes; ``None``
    if it is not known."""
    cache: dict[Any, Any]
    """Results of :func:`memoized`, by function."""
    apply_overrides: Callable[[Hits], Hits | None] | None = None
    """The overrides that made them of other hits, if any did; ``None``: they were not changed."""

    def at(self, scope: str) -> Hits:
        """The same hits, which limit ``scope``. Reuse ``self`` rather than the result: it keeps the latest."""
        if self.scope == scope:
            return self
        known = self.cache.get(Hits.at)
        if known is None or known.scope != scope:
            known = self.cache[Hits.at] = Hits(self, scope=scope)
        return cast("Hits", known)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Hits, scope=self.scope), (tuple(self),)


_PLAIN_SEQUENCES = {tuple, list}


def checked_hits(given: object) -> tuple[Hit, ...]:
    """``given`` as a tuple, perhaps empty. Raises :class:`ConfigurationError` unless it is an iterable of hits."""
    if isinstance(given, Hits):
        return given
    check_iterable("hits", given, _HITS)
    hits = tuple(cast("Iterable[Hit]", given))
    for each in hits:
        require(isinstance(each, Hit), "hits", each, _HITS)
    return hits


_HITS = "what hits_for(...) returns, or a list of Hit"


def _check_texts(key: object, name: object) -> None:
    if not isinstance(key, str):
        raise ConfigurationError(f"key={brief(key)}: give text; hits_for(...) makes keys of a scope and a subject")
    if not isinstance(name, str) or not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
        raise ConfigurationError(f"name={brief(name)}: give printable ASCII without quotes and backslashes")


def memoized(hits: tuple[Hit, ...], compute: Callable[[tuple[Hit, ...]], T]) -> T:
    """``compute(hits)``, called once for each :class:`Hits`."""
    try:
        return hits.cache[compute]  # type: ignore[attr-defined,no-any-return]  # usually
    except KeyError:
        cache: dict[Any, Any] = hits.cache  # type: ignore[attr-defined]
    except AttributeError:  # a plain tuple caches nothing
        cache = {}
    result = cache[compute] = compute(hits)
    return result


def joined_keys(hits: tuple[Hit, ...]) -> str:
    return "\n".join(hit.key for hit in hits)


def part_of(hits: tuple[Hit, ...], places: tuple[int, ...]) -> tuple[Hit, ...]:
    """The hits at ``places``. Cached in ``hits``, because the same parts are needed again and again."""
    if len(places) == len(hits):
        return hits
    parts = memoized(hits, _no_parts)
    if places not in parts:
        parts[places] = Hits([hits[place] for place in places])
    return parts[places]


def _no_parts(_: tuple[Hit, ...]) -> dict[tuple[int, ...], Hits]:
    return {}


class PlacedBan(NamedTuple):
    """A ban among hits."""

    place: int
    hit: BanHit
    watched: tuple[int, ...]
    """The places of the hits that it watches."""


def _bans_among(hits: tuple[Hit, ...]) -> tuple[PlacedBan, ...]:
    bans = [(place, hit) for place, hit in enumerate(hits) if isinstance(hit, BanHit)]
    if not bans:
        return ()
    places = {hit.key: place for place, hit in enumerate(hits)}
    return tuple(
        PlacedBan(
            place,
            ban,
            tuple(places[key] for key in ban.watches if key in places and (ban.shadow or not hits[places[key]].shadow)),
        )
        for place, ban in bans
    )


def bans_of(hits: tuple[Hit, ...]) -> tuple[PlacedBan, ...]:
    """The bans among ``hits``, in order. :class:`Hits` know them already."""
    return hits.bans if isinstance(hits, Hits) else _bans_among(hits)


def calendars_of(hits: tuple[Hit, ...]) -> tuple[Periods, ...]:
    """The periods of each :class:`.Calendar` among the hits, in order."""
    return memoized(hits, _calendars_among)


def _calendars_among(hits: tuple[Hit, ...]) -> tuple[Periods, ...]:
    return tuple([periods for hit in hits if (periods := hit.rule.quota.periods) is not None])


def packed_ban(ban: PlacedBan) -> bytes:
    """The further fields of a ban in the form that scripts read (``bans.lua``). There, places are counted from 1."""
    quota, places = ban.hit.rule.quota, [place + 1 for place in ban.watched]
    numbers = quota.time, quota.factor, quota.most, quota.memory, len(places), *places
    return struct.pack(f"<{len(numbers)}d", *numbers)


LARGEST_COST = COUNTED + 1
"""The largest cost of a hit: one more than any rule takes in a check."""


def check_cost(cost: object, rule: Rule) -> None:
    """Raise :class:`ConfigurationError` unless ``cost`` is a number of units that one check of ``rule`` can have."""
    if type(cost) is not int or cost < 0:
        raise ConfigurationError(f"cost={brief(cost)}: must be a whole number, 0 or more")
    if cost > rule.implementation.MAX_COST:
        most = f"{rule.algorithm} takes at most {rule.implementation.MAX_COST} units in one check"
        others = ", ".join(name for name, by in ALGORITHMS.items() if cost <= by.MAX_COST)
        remedy = f"; take {others}" if others and not rule.holds_slots else ""
        raise ConfigurationError(f"cost={brief(cost)}: {most}{remedy}")


def check_hit_cost(cost: object, rule: Rule) -> None:
    """As :func:`check_cost`, but ``cost`` may also be more than ``rule`` ever admits: a client may have chosen it, and
    its check is refused."""
    if type(cost) is not int or not rule.quota.burst < cost <= LARGEST_COST:
        check_cost(cost, rule)


def check_policy(policy: object, name: str = "on_storage_error") -> None:
    """Raise :class:`ConfigurationError` unless ``policy`` is one of :data:`OnStorageError`."""
    known = get_args(OnStorageError)
    require(isinstance(policy, str) and policy in known, name, policy, f"one of {', '.join(map(repr, known))}")


def check_hash_tag(hash_tag: object) -> None:
    """Raise :class:`ConfigurationError` unless ``hash_tag`` is one of :data:`.HashTag`."""
    holds = isinstance(hash_tag, str) and hash_tag in get_args(HashTag)
    require(holds, "hash_tag", hash_tag, " or ".join(map(repr, get_args(HashTag))))


@lru_cache(maxsize=1024)
def _pack(rule: Rule, cost: int, shadow: bool) -> bytes:
    quota = rule.quota
    numbers = struct.pack("<6d", quota.window, quota.count, cost, quota.burst, quota.max_delay, shadow)
    return numbers + rule.algorithm.encode() + b"\0"


def hits_for(
    rules: Rules,
    *,
    scope: str,
    subject: str = EVERYONE,
    cost: int = 1,
    settle: bool = False,
    shadow: bool = False,
    prefix: str = DEFAULT_PREFIX,
    on_storage_error: OnStorageError | None = None,
    hash_tag: HashTag = "scope",
    ban: Ban | None = None,
) -> Hits:
    """One hit per rule, for use without Flask, and one more for a ``ban``.

    ``scope`` names what is limited, and ``subject`` who is limited, by a type, a short identifier, and a value,
    which may be any text: ``f"user:{user_id}"``, ``"api_key:key-0"``. ``hash_tag`` says which of the two determines the
    slot in a cluster. With ``settle``, :meth:`Limiter.settle` will say what the check really cost: a ``cost`` of 0,
    which only asks otherwise, is admitted while one unit is free, and a :class:`.Concurrent` rule takes one slot,
    whatever the cost.
    """
    check_bool("settle", settle)
    if not isinstance(scope, str):
        raise ConfigurationError(f"scope={brief(scope)}: must be text; scope=str(...) for a number")
    prefix = checked_prefix(prefix)
    type_, value = type_and_value(subject)
    if not TYPE_PATTERN.fullmatch(type_):
        raise ConfigurationError(f"subject={brief(subject)}: its type must match {TYPE_PATTERN.pattern}")
    check_hash_tag(hash_tag)
    value = own_form(type_, value)
    stem = stem_of_subject(stem_of(prefix, scope, hash_tag), type_, escape_subject(value), hash_tag)
    origin = Origin(scope, type_, value, settle)
    make = settled_hit if settle else Hit
    hits = [
        make(
            stem + rule.key_part,
            rule,
            cost,
            rule.name or f"{type_}-{rule.window}",
            shadow,
            on_storage_error,
            origin=origin,
        )
        for rule in rules_from(rules)
    ]
    if ban is not None:
        check_ban(ban)
        hits.append(ban_hit(ban, stem, hits, f"{type_}-ban"))
    return Hits(hits)


def check_ban(ban: object) -> None:
    """Raise :class:`ConfigurationError` unless ``ban`` is a :class:`Ban`."""
    require(isinstance(ban, Ban), "ban", ban, "a Ban, such as ban=Ban(after=3, within=600, time=3600)")


def ban_hit(ban: Ban, stem: str, watched: Sequence[Hit], name: str) -> BanHit:
    """The hit of ``ban``, which follows the hits of its limiter: ``watched``, at least one.

    Refusals by a rule with a count of 0 are not strikes.
    """
    first, rule = watched[0], ban.rule
    keys = tuple([hit.key for hit in watched if hit.rule.count])
    return BanHit(
        stem + part_in_key(rule, shadow=first.shadow),
        rule,
        cost=0,
        name=name,
        shadow=first.shadow,
        on_storage_error=first.on_storage_error,
        watches=keys,
        origin=first.origin,
    )


def part_in_key(rule: Rule, *, shadow: bool) -> str:
    """The part of a key for its ``rule``. The ban of a shadow has its own: it must not refuse when the trial ends."""
    return f"shadow-{rule.key_part}" if shadow and rule.algorithm == BAN else rule.key_part


_ID_BYTES = 16
_IDS_AT_ONCE = 256
_split = struct.Struct(f"{_ID_BYTES}s" * _IDS_AT_ONCE).unpack
_WITH_VERSION_4 = bytes(0x40 | byte & 0x0F for byte in range(256))
_WITH_VARIANT_1 = bytes(0x80 | byte & 0x3F for byte in range(256))
"""Translate a random byte to one with the bits of the version, or of the variant."""


class _Ids:
    """Ids that no check has used yet."""

    def __init__(self) -> None:
        self.unused: list[bytes] = []

    def _after_fork_in_child(self) -> None:
        """Parent and child would use the same ids."""
        self.unused.clear()


_ids = _Ids()
notify_child(_ids)


def new_id() -> bytes:
    """A random UUID (version 4, RFC 9562), as ``uuid4`` makes it, but many at once: one system call for 256 of them."""
    try:
        return _ids.unused.pop()
    except IndexError:
        block = bytearray(os.urandom(_ID_BYTES * _IDS_AT_ONCE))
        block[6::_ID_BYTES] = block[6::_ID_BYTES].translate(_WITH_VERSION_4)
        block[8::_ID_BYTES] = block[8::_ID_BYTES].translate(_WITH_VARIANT_1)
        first, *others = _split(block)
        _ids.unused.extend(others)
        return cast("bytes", first)


PEEK_ID = bytes(_ID_BYTES)
"""The nil UUID: the id of a check that charges nothing."""
