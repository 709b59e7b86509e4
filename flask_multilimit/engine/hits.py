"""What a check asks: a hit is one rule for one subject, and a check has several."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MethodType
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from .algorithms import ALGORITHMS
from .algorithms.base import COUNTED
from .bans import Ban
from .errors import ConfigurationError, brief, check_bool, check_iterable
from .forks import notify_child
from .keys import (
    DEFAULT_PREFIX,
    PREFIX_PATTERN,
    TYPE_PATTERN,
    HashTag,
    escape_subject,
    stem_of,
    stem_of_subject,
)
from .periods import Periods
from .rules import Rule, Rules, rules_from

T = TypeVar("T")


OnStorageError = Literal["local", "allow", "deny", "raise"]
"""How a check is decided when the storage fails: within this process's share of the limit, allowed, refused, or not at
all (:class:`StorageError` is raised)."""


class Origin(NamedTuple):
    """What was given to :func:`hits_for`: scope, type and subject, by which overrides find the hits."""

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
    """Units to charge, 0 or more; 0 asks without charging, and more than the rule ever admits are refused."""
    name: str = ""
    """The name of the rule in header fields; unique within a plan."""
    shadow: bool = False
    """Whether it is evaluated and counted, but never refuses."""
    on_storage_error: OnStorageError | None = None
    """How to decide when the storage fails; ``None``: by the setting of the storage's guard."""
    unit: str = field(default="", compare=False, kw_only=True)
    """What its rule counts, in header fields; empty: requests."""
    origin: Origin | None = field(default=None, compare=False, repr=False, kw_only=True)
    """Its scope and subject, if :func:`hits_for` has made it."""
    watches: tuple[str, ...] = field(default=(), compare=False, repr=False, kw_only=True)
    """For a ban: the keys whose refusals are its strikes; those of a shadow only if it is one itself."""

    def __post_init__(self) -> None:
        _check_texts(self.key, self.name)
        try:
            _check_asked(self.cost, self.rule)
        except AttributeError:
            raise ConfigurationError(f"rule={brief(self.rule)}: give a Rule") from None
        if self.shadow is not False:
            check_bool("shadow", self.shadow)
        if self.on_storage_error is not None:
            check_policy(self.on_storage_error)

    @property
    def asks(self) -> int:
        """Units that must be free."""
        return self.cost

    @property
    def packed(self) -> bytes:
        """Quota, cost and algorithm in the form that scripts read."""
        return _pack(self.rule, self.cost, self.shadow)


class BanHit(Hit):
    """A ban of one subject: refuses while it holds, and otherwise only counts refusals of the hits that it watches. Its
    cost is 0: it charges nothing."""

    __slots__ = ()

    def joined_by(self, other: BanHit) -> BanHit:
        """One ban that watches for both: a shadow only if both are."""
        watches = tuple(dict.fromkeys((*self.watches, *other.watches)))
        return replace(self, shadow=self.shadow and other.shadow, watches=watches)


class OpenHit(Hit):
    """A hit that is settled later, perhaps without an estimate: with a cost of 0 it is admitted while one unit is free,
    and charges nothing until then."""

    __slots__ = ()

    @property
    def asks(self) -> int:
        return self.cost or 1

    @property
    def packed(self) -> bytes:
        """As of any hit, with a cost of -1 in place of 0."""
        return _pack(self.rule, self.cost or -1, self.shadow)


def settled_hit(key: str, rule: Rule, cost: int, *others: Any, **more: Any) -> Hit:
    """A hit that is settled later. A :class:`.Concurrent` rule takes one slot, whatever the estimate."""
    return Hit(key, rule, 1, *others, **more) if rule.holds_slots else OpenHit(key, rule, cost, *others, **more)


class Hits(tuple[Hit, ...]):
    """The hits of one check: at least one, no two with the same key. Raises :class:`ConfigurationError`.

    Reuse it for repeated checks of the same hits: storages cache in it what they compute from it (:func:`memoized`).
    """

    def __new__(cls, hits: Iterable[Hit], *, scope: str | None = None) -> Hits:
        made = super().__new__(cls, hits if type(hits) in _USUAL else several_hits(hits))
        if not made:
            raise ConfigurationError("no hits: a check of nothing would let everything pass")
        try:
            keys = [hit.key for hit in made]
        except AttributeError:
            several_hits(tuple(made))
            raise
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ConfigurationError(f"two hits have the key {twice!r}: give one rule, or different scopes or types")
        made.cache = {}
        made.scope = scope
        made.bans = bans_among(made)
        made.leased = any(hit.rule.lease for hit in made)
        made.revisable = any(hit.origin is not None for hit in made)
        return made

    leased: bool
    """Whether a rule has a lease."""
    revisable: bool
    """Whether :func:`hits_for` has made any of them."""
    bans: tuple[PlacedBan, ...]
    """The bans among them."""
    scope: str | None
    """What the plan that made them limits; ``None`` if no plan did."""
    cache: dict[Any, Any]
    """What :func:`memoized` has computed, by the function that did."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _hits_again, (tuple(self), self.scope)


def _hits_again(hits: tuple[Hit, ...], scope: str | None) -> Hits:
    return Hits(hits, scope=scope)


_USUAL = {tuple, list}


def several_hits(given: object) -> tuple[Hit, ...]:
    """The hits that are ``given``, perhaps none. Raises :class:`ConfigurationError` for anything else."""
    if isinstance(given, Hits):
        return given
    check_iterable("hits", given, _HITS)
    found = tuple(cast("Iterable[Hit]", given))
    for each in found:
        if not isinstance(each, Hit):
            raise ConfigurationError(f"hits={brief(each)}: give {_HITS}")
    return found


_HITS = "what hits_for(...) returns, or a list of Hit"


def _check_texts(key: object, name: object) -> None:
    if not isinstance(key, str):
        raise ConfigurationError(f"key={brief(key)}: give text; hits_for(...) makes keys of a scope and a subject")
    if not isinstance(name, str) or not (name.isascii() and name.isprintable()) or '"' in name or "\\" in name:
        raise ConfigurationError(f"name={brief(name)}: give printable ASCII without quotes and backslashes")


def memoized(hits: tuple[Hit, ...], work: Callable[[tuple[Hit, ...]], T]) -> T:
    """``work(hits)``, done once for each :class:`Hits`."""
    try:
        return hits.cache[work]  # type: ignore[attr-defined,no-any-return]  # usually
    except KeyError:
        kept: dict[Any, Any] = hits.cache  # type: ignore[attr-defined]
    except AttributeError:  # a plain tuple keeps nothing
        kept = {}
    done = kept[work] = work(hits)
    return done


def memorize(hits: tuple[Hit, ...], work: Callable[[tuple[Hit, ...]], T], done: T) -> None:
    """Let :func:`memoized` return ``done`` from now on."""
    if isinstance(hits, Hits):
        hits.cache[work] = done


def from_fields(made: type[T]) -> Callable[[Any], T]:
    """A function that makes a named tuple of the tuple of its fields, in half the time that ``made(...)`` takes.

    Annotate what it is assigned to, such as ``Callable[[tuple[bytes, Hit]], Slot]``, so that the fields are checked.
    """
    return cast("Callable[[Any], T]", MethodType(tuple.__new__, made))


def part_of(hits: tuple[Hit, ...], places: tuple[int, ...]) -> tuple[Hit, ...]:
    """The hits at ``places``; remembered in ``hits``, because the same ones are asked again and again."""
    if len(places) == len(hits):
        return hits
    parts = memoized(hits, _no_parts)
    if places not in parts:
        parts[places] = Hits(hits[place] for place in places)
    return parts[places]


def _no_parts(_: tuple[Hit, ...]) -> dict[tuple[int, ...], Hits]:
    return {}


class PlacedBan(NamedTuple):
    """A ban among hits."""

    place: int
    hit: BanHit
    watched: tuple[int, ...]
    """The places of what it watches."""


def bans_among(hits: tuple[Hit, ...]) -> tuple[PlacedBan, ...]:
    """The bans, in order."""
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
    """The bans, which :class:`Hits` have found already."""
    return hits.bans if isinstance(hits, Hits) else bans_among(hits)


def calendars_of(hits: tuple[Hit, ...]) -> tuple[Periods, ...]:
    """The periods of each :class:`.Calendar` among the hits, in order."""
    return memoized(hits, _calendars_among)


def _calendars_among(hits: tuple[Hit, ...]) -> tuple[Periods, ...]:
    return tuple([periods for hit in hits if (periods := hit.rule.quota.periods) is not None])


def packed_ban(ban: PlacedBan) -> bytes:
    """What else scripts read of a ban. There, places are counted from 1."""
    quota, places = ban.hit.rule.quota, [place + 1 for place in ban.watched]
    numbers = quota.time, quota.factor, quota.most, quota.memory, len(places), *places
    return struct.pack(f"<{len(numbers)}d", *numbers)


MOST_ASKED = COUNTED + 1
"""The largest cost of a hit: more units than any rule admits at once."""


def check_cost(cost: object, rule: Rule) -> None:
    """Raise :class:`ConfigurationError` unless ``cost`` is a number of units that ``rule`` can be asked for."""
    if type(cost) is not int or cost < 0:
        raise ConfigurationError(f"cost={brief(cost)}: must be a whole number, 0 or more")
    if cost > rule.implementation.MAX_COST:
        most = f"{rule.algorithm} takes at most {rule.implementation.MAX_COST} units in one check"
        others = ", ".join(name for name, by in ALGORITHMS.items() if cost <= by.MAX_COST)
        remedy = f"; take {others}" if others and not rule.holds_slots else ""
        raise ConfigurationError(f"cost={brief(cost)}: {most}{remedy}")


def _check_asked(cost: object, rule: Rule) -> None:
    """As :func:`check_cost`, but ``cost`` may be more than ``rule`` ever admits, which is refused: a client may have
    chosen it."""
    if type(cost) is not int or not rule.quota.burst < cost <= MOST_ASKED:
        check_cost(cost, rule)


def check_policy(policy: object, name: str = "on_storage_error") -> None:
    """Raise :class:`ConfigurationError` unless ``policy`` says how to decide when the storage fails."""
    known = get_args(OnStorageError)
    if not isinstance(policy, str) or policy not in known:
        raise ConfigurationError(f"{name}={brief(policy)}: give one of {', '.join(map(repr, known))}")


def check_hash_tag(hash_tag: object) -> None:
    """Raise :class:`ConfigurationError` unless ``hash_tag`` is one that a key can have."""
    known = get_args(HashTag)
    if hash_tag not in known:
        raise ConfigurationError(f"hash_tag={brief(hash_tag)}: give {' or '.join(map(repr, known))}")


@lru_cache(maxsize=1024)
def _pack(rule: Rule, cost: int, shadow: bool) -> bytes:
    quota = rule.quota
    numbers = struct.pack("<6d", quota.window, quota.count, cost, quota.burst, quota.max_delay, shadow)
    return numbers + rule.algorithm.encode() + b"\0"


def hits_for(
    rules: Rules,
    *,
    scope: str,
    subject: str = "",
    type: str = "default",  # noqa: A002 - the field's word, as in rate_limiter
    cost: int = 1,
    settle: bool = False,
    shadow: bool = False,
    prefix: str = DEFAULT_PREFIX,
    on_storage_error: OnStorageError | None = None,
    hash_tag: HashTag = "scope",
    ban: Ban | None = None,
) -> Hits:
    """One hit per rule, for use without Flask, and one more for a ``ban``.

    ``scope`` names what is limited, ``subject`` who is limited, and ``type`` what kind of subject that is. Scope and
    subject may be any text; ``type`` is a short identifier. ``hash_tag`` says which of them determines the slot in
    a cluster. With ``settle``, :meth:`Limiter.settle` will say what the check really cost: a ``cost`` of 0, which only
    asks otherwise, is admitted while one unit is free, and a :class:`.Concurrent` rule takes one slot, whatever the
    cost.
    """
    check_bool("settle", settle)
    for name, text in (("scope", scope), ("subject", subject)):
        if not isinstance(text, str):
            raise ConfigurationError(f"{name}={brief(text)}: must be text; {name}=str(...) for a number")
    check_match("prefix", prefix, PREFIX_PATTERN)
    check_match("type", type, TYPE_PATTERN)
    check_hash_tag(hash_tag)
    stem = stem_of_subject(stem_of(prefix, scope, hash_tag), type, escape_subject(subject), hash_tag)
    origin = Origin(scope, type, subject, settle)
    make = settled_hit if settle else Hit
    hits = [
        make(
            stem + rule.key_part,
            rule,
            cost,
            rule.name or f"{type}-{rule.window}",
            shadow,
            on_storage_error,
            origin=origin,
        )
        for rule in rules_from(rules)
    ]
    if ban is not None:
        check_ban(ban)
        hits.append(ban_hit(ban, stem, hits, f"{type}-ban"))
    return Hits(hits)


def check_match(name: str, text: object, pattern: re.Pattern[str]) -> None:
    """Raise :class:`ConfigurationError` unless ``text`` is text, and matches as a whole."""
    if not isinstance(text, str) or pattern.fullmatch(text) is None:
        raise ConfigurationError(f"{name}={brief(text)}: must match {pattern.pattern}")


def check_ban(ban: object) -> None:
    """Raise :class:`ConfigurationError` for anything but a :class:`Ban`."""
    if not isinstance(ban, Ban):
        raise ConfigurationError(f"ban={brief(ban)}: give a Ban, such as ban=Ban(after=3, within=600, time=3600)")


def ban_hit(ban: Ban, stem: str, watched: Sequence[Hit], name: str) -> BanHit:
    """The hit of ``ban``, which follows the hits of its limiter: these are ``watched``, at least one.

    Refusals by a rule with count 0 are not strikes.
    """
    first, rule = watched[0], ban.rule
    keys = tuple([hit.key for hit in watched if hit.rule.count])
    return BanHit(
        stem + rule.key_part,
        rule,
        cost=0,
        name=name,
        shadow=first.shadow,
        on_storage_error=first.on_storage_error,
        watches=keys,
        origin=first.origin,
    )


_ID_BYTES = 16
_IDS_AT_ONCE = 256
_split = struct.Struct(f"{_ID_BYTES}s" * _IDS_AT_ONCE).unpack
_OF_VERSION_4 = bytes(0x40 | byte & 0x0F for byte in range(256))
_OF_VARIANT_1 = bytes(0x80 | byte & 0x3F for byte in range(256))
"""Translate a random byte to one that has the bits of the version, or of the variant."""


class _Ids(list[bytes]):
    """Ids that are not used yet."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def _after_fork_in_child(self) -> None:
        """Parent and child would use the same ids."""
        self.clear()


_ids = _Ids()
notify_child(_ids)


def new_id() -> bytes:
    """A random UUID (version 4, RFC 9562), as ``uuid4`` makes it, but many at once: one system call for 256 of them."""
    try:
        return _ids.pop()
    except IndexError:
        block = bytearray(os.urandom(_ID_BYTES * _IDS_AT_ONCE))
        block[6::_ID_BYTES] = block[6::_ID_BYTES].translate(_OF_VERSION_4)
        block[8::_ID_BYTES] = block[8::_ID_BYTES].translate(_OF_VARIANT_1)
        first, *others = _split(block)
        _ids.extend(others)
        return cast("bytes", first)


PEEKED = bytes(_ID_BYTES)
"""The nil UUID: the id of a check that charges nothing."""
