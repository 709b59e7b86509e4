"""Which client somebody asks about: reads the text that names it, and finds the limiters that count it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address
from uuid import UUID

from ..declare.addresses import Who, client_in, network_of
from ..declare.subjects import (
    ANONYMOUS,
    EVERYONE,
    LimitType,
    Named,
    Subject,
    forms_of,
    parts_with_names,
    spellings,
    subjects_from,
    subjects_given,
    value_of,
)
from ..engine import ConfigurationError, Hit
from ..engine.errors import brief
from ..engine.forks import cached_property
from ..engine.keys import is_digest
from ..engine.text import LONGEST_SUBJECT, Phrase, unquoted
from ..observe.traffic.counts import encodable, short
from ..plan.applied import hits_of
from ..plan.lookups import AppliedAt, about_given, applied_for, applied_given, require_types
from ..plan.plans import Plans
from ..serve.access import AccessLists, Listed
from ..serve.gate import AppGate
from .limits import places_of
from .text import subject_text
from .traffic import looking

ALL_ANONYMOUS = Subject(ANONYMOUS, "")
"""Stands for all clients that are not logged in, if ``MULTILIMIT_ANONYMOUS_USER`` is ``shared``."""


@dataclass(frozen=True)
class Client:
    """A subject, a network of them, or several subjects that a request has together."""

    given: Mapping[str, str]
    """Its subjects by type, as limits count them; none for a network of many clients."""
    who: Who | None = None
    """As lists name it; ``None`` if no list can."""
    parts: tuple[Subject, ...] = ()
    """The parts of a subject of several types."""
    address: str = ""
    """The address, as lists look it up; of a network that counts as one client, its first; empty if it is not known."""

    @property
    def subject(self) -> Subject | None:
        """The subject; of several, the first. ``None`` for a network of many clients."""
        return next((Subject(*each) for each in self.given.items()), None)

    @property
    def text(self) -> str:
        """As lists and forms take it; empty if they cannot name it."""
        return "" if self.who is None else str(self.who)

    @property
    def command_text(self) -> str:
        """As `why` and `unban` take it, which also know subjects of several types, and peers without an address."""
        is_one = len(self.given.keys() - {ANONYMOUS}) == 1
        return self.text or (":".join(self.subject) if is_one and self.subject else "")

    @property
    def is_digest(self) -> bool:
        """Whether a digest stands for it, as in keys of long subjects: its bans can be lifted, and no more is known."""
        return any(map(is_digest, self.given.values()))

    @cached_property
    def listed_as(self) -> tuple[Subject, ...]:
        """How lists may name it: each subject, or a part that its type tells apart, in each spelling."""
        subjects = [*map(Subject._make, self.given.items()), *parts_with_names(value_of(self.parts))]
        return tuple(each for one in subjects for each in spellings(one))

    def is_called(self, who: Who) -> bool:
        """Whether ``who`` names one of its subjects."""
        return (who.type_name, who.value) in self.listed_as

    @property
    def shown(self) -> str:
        """For people."""
        several = {name: value for name, value in self.given.items() if name != ANONYMOUS or len(self.given) == 1}
        named = self.parts or several.items()
        return " + ".join(subject_text(*each) for each in named) if named else self.text


def client_from(gate: AppGate, text: str) -> Client:
    """The client that ``text`` names: ``203.0.113.7``, ``2001:db8::/64``, ``user:42``, ``api_key:key-0``; a value alone
    where it can be of one type only; a subject of several types, or the digest of a long one, as `bans` lists it:
    ``user+ip:[["user", "ada"], ["ip", "203.0.113.7"]]``. Raises :class:`ConfigurationError`, which names the
    choices."""
    given, text = text, unquoted(text)
    type_name, _, value = text.partition(":")
    gate.plans.ensure()
    if gate.plans.parts_of(Subject(type_name, value)) or is_digest(value):
        return client_of(gate, type_name, value)
    try:
        who = Who.parse(given)  # which reads what is quoted, too: once
    except ConfigurationError:
        if text.startswith("ip:") and len(value) <= LONGEST_SUBJECT:  # a peer without an address, such as "unix:"
            gate.subjects.require_clients({type_name: value})
            return client_of(gate, type_name, value)
        types = _types_for(gate, text)
        if len(types) != 1:
            if types:
                choices = ", ".join(f"{name}:{text}" for name in types)
                several = "{given} may be of several types; say which: {choices}"
                raise ConfigurationError(Phrase(several, given=brief(text), choices=choices)) from None
            raise
        return client_of(gate, types[0], text)
    if who.network is None or (type_name in gate.plans.types and type_name != LimitType.IP.value):
        return client_of(gate, type_name, value)  # a type may be called "feed", as an IPv6 address begins
    return client_of(gate, LimitType.IP.value, str(who))


def client_named(
    gate: AppGate,
    *,
    user: str | int | UUID | None = None,
    ip: str | IPv4Address | IPv6Address | None = None,
    subject: Named | None = None,
) -> Client:
    """The client that has these subjects. Raises :class:`ConfigurationError`, also if nobody is named and for a type
    that no limit has."""
    named = {} if subject is None else subjects_from(subject)
    given = forms_of(subjects_given(user=user, ip=ip, subjects=named))
    if not given:
        raise ConfigurationError('standing: whose? Give user="42", ip="203.0.113.7" or subject="api_key:key-0"')
    require_types(gate.plans, given)
    gate.subjects.require_clients(given)
    if len(given) == 1:
        return client_of(gate, *next(iter(given.items())))
    client = client_with(gate, given)
    if client.address and given.keys().isdisjoint({LimitType.USER.value, ANONYMOUS}):
        client = replace(client, given={**client.given, ANONYMOUS: client.given[LimitType.IP.value]})
    return client


def client_with(gate: AppGate, given: Mapping[str, str]) -> Client:
    """The client whose requests have the ``given`` subjects, by type, together."""
    counted = {name: gate.subjects.counted(Subject(name, value)).value for name, value in given.items()}
    return Client(counted, address=_address_in(given))


def _address_in(given: Mapping[str, str]) -> str:
    return (given.get(LimitType.IP.value) or given.get(ANONYMOUS, "")).partition("/")[0]


def client_of(gate: AppGate, type_name: str, value: str) -> Client:
    """A subject by its type, or a network of many clients. An address also counts as a user who is not logged in."""
    who = None
    with suppress(ConfigurationError):
        who = Who.parse(f"{type_name}:{value}")
    if parts := gate.plans.parts_of(Subject(type_name, value)):
        return Client({type_name: value_of(parts)}, None, parts, address=_address_in(dict(parts)))
    if type_name == LimitType.IP.value:
        if who is not None and who.network is not None and client_in(who.network, gate.settings.ipv6_prefix) is None:
            return Client({}, who)
        counted = network_of(value, gate.settings.ipv6_prefix)
        return Client({type_name: counted, ANONYMOUS: counted}, who, address=value.partition("/")[0])
    named = Client({type_name: value}, None if who is None or who.network else who)
    return named if named.is_digest else replace(client_with(gate, named.given), who=named.who)


def _types_for(gate: AppGate, value: str) -> list[str]:
    """The types that a bare ``value`` may have: the only one under which it was refused lately, otherwise all."""
    gate.plans.ensure()
    if not value or _NOT_BARE.search(value) or value in gate.plans.types:
        return []
    types = [name for name in gate.plans.types if name not in _NEVER_BARE and "+" not in name]
    with looking(gate, patient=True) as memory:
        found = [] if memory is None else memory.refusals.by_client(len(types) + 2, lambda who: who.subject == value)
    seen = {rules[0][0].type for rules in found} & {*types, LimitType.IP.value}  # a peer may have no address
    return sorted(seen) if len(seen) == 1 else sorted({*types, *seen})


_NOT_BARE = re.compile(r":|\s|^[\d/]*\.[\d./]*$")
"""Text that is no value without a type: an address with a mistake in it, several words."""
_NEVER_BARE = {LimitType.IP.value, EVERYONE.type, ANONYMOUS}


# The limiters that count it


def applied_at(
    gate: AppGate, endpoint: str, method: str | None, given: Mapping[str, str], *, declared: bool = False
) -> list[AppliedAt]:
    """The limiters that apply to the ``given`` subjects at ``endpoint`` (``unmatched``: without a route); without a
    ``method``, for each of its methods. With ``declared``, also those that would apply without the changes in force:
    their quotas count again when these end. Raises :class:`ConfigurationError` if there is no such endpoint, or it does
    not take the method."""
    several = _several_plans(gate, declared=declared)
    return [each for plans in several for each in applied_given(plans, endpoint, method, given)]


def _several_plans(gate: AppGate, *, declared: bool) -> list[Plans]:
    """The plans in force; with ``declared``, also those without changes, if there are any."""
    return list(dict.fromkeys([gate.plans, gate.plans.declared] if declared else [gate.plans]))


def applied_to(
    gate: AppGate, client: Client, endpoint: str | None, method: str | None = None, *, declared: bool = False
) -> list[AppliedAt]:
    """The same for ``client``; without an ``endpoint``, wherever a limiter may count it, and for requests without a
    route. Then its type may be one that functions and checks alone have."""
    if client.is_digest:
        return []
    if endpoint is None:
        return list(_everywhere(gate, client, declared=declared))
    return applied_at(gate, endpoint, method, client.given, declared=declared)


def _everywhere(gate: AppGate, client: Client, *, declared: bool) -> Iterator[AppliedAt]:
    if not client.given:
        return
    types = {*client.given, *([LimitType.USER.value] if ANONYMOUS in client.given else ())}
    several = _several_plans(gate, declared=declared)
    for place in places_of(gate):
        names = [each.planned.declaration.type_name for each in place.limiters]
        counted = {part for name in names for part in (name, *name.split("+"))}
        if types & counted or len(several) > 1:
            for plans in several:
                resolve = plans.subjects.given(client.given)
                yield from applied_for(plans, place.name, None, resolve, about_given(plans))


def is_own(given: Mapping[str, str], subject: Subject) -> bool:
    """Whether ``subject`` belongs to a client with the ``given`` subjects alone. All clients share that of everyone;
    those that are not logged in may share one, too."""
    return subject != EVERYONE and (subject != ALL_ANONYMOUS or given.get(ANONYMOUS) == ALL_ANONYMOUS.value)


def hits_of_client(gate: AppGate, client: Client, endpoint: str | None = None) -> list[Hit]:
    """The quotas of ``client`` alone, not shared ones, at ``endpoint`` or everywhere; those of declared limits, too."""
    places = applied_to(gate, client, endpoint, declared=True)
    limiters = (limiter for each in places for limiter in each.applied.limiters)
    return list(hits_of(limiter for limiter in limiters if is_own(client.given, limiter.subject)))


def require_limiters(
    what: str,
    endpoint: str,
    found: list[AppliedAt],
    given: Mapping[str, str],
    method: str | None,
    *,
    spelled: Callable[[tuple[str, ...]], str],
) -> None:
    """Raise :class:`ConfigurationError` unless a limiter at ``endpoint`` counts one of the ``given`` subjects.

    ``spelled`` writes how a caller gives a subject of these parts.
    """
    if any(each.applied.limiters for each in found):
        return
    place = f'"{endpoint}"' if method is None else f'"{endpoint}" ({method.upper()})'
    types = {name: parts for each in found for name, parts in each.types.items()}
    if not types:
        raise ConfigurationError(f"{what}: no limit applies to {place}; `flask multilimit limits` lists them")
    limited_by = ", ".join(f"{name} ({spelled(parts)})" for name, parts in types.items())
    raise ConfigurationError(f"{what}: no limit at {place} counts {' and '.join(given)}; it is limited by {limited_by}")


def listed_of(gate: AppGate, client: Client, lists: AccessLists | None) -> Listed | None:
    """The entry of ``lists`` that decides about its requests, before any limit."""
    if lists is None or not client.given:
        return None
    resolve = gate.subjects.given(client.given)

    def subjects_of(type_name: str) -> Iterator[Subject]:
        yield from (each for each in client.listed_as if each.type == type_name)
        yield from gate.plans.subjects_called(type_name, resolve)

    return lists.of_client(client.address, subjects_of)


def in_traffic(client: Client) -> dict[str, str]:
    """Its subjects by type, as traffic keeps them."""
    return {type_name: encodable(short(value)) for type_name, value in client.given.items()}
