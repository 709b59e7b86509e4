"""The entries of the control document: what is changed while the app runs, by whom, why, and until when.

Most processes never have an entry, so :mod:`.document` imports this module only when there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from ..declare.addresses import Network, Who, addresses_in, mistaken_client
from ..declare.data import NO_IMPORTS, Text, Written, WrittenLimiter, WrittenRules, rules_of, validated
from ..engine import ConfigurationError, Rule
from ..engine.text import LONGEST_NAME, Phrase, is_storable, quoted
from .store import FORMAT, MOST_ENTRIES, MOST_OVERRIDES, ListingKind

MOST_TIMES = 1000

_WIDEST = {4: 8, 6: 16}
"""By IP version: a network with a shorter prefix is a large part of the internet."""
_COUNTED = {4: 24, 6: 48}
"""By IP version: networks with longer prefixes are a small part of the internet, however many there are."""
_MOST_LISTED = {4: 1 << 31, 6: 1 << 124}
"""By IP version: half of all addresses; for IPv6, half of those that are assigned (2000::/3)."""

Moment = Annotated[float, Field(allow_inf_nan=False)]
Note = Annotated[str, Field(max_length=LONGEST_NAME)]


def _client(given: object) -> Who:
    """The client that ``given`` names. Raises :class:`ConfigurationError`, also if it cannot be stored."""
    who = Who.parse(given)
    if not is_storable(who.value):
        raise mistaken_client(given, Phrase("this is not valid Unicode, so it cannot be stored"))
    return who


Client = Annotated[Who, PlainValidator(_client), PlainSerializer(str)]
"""Parsed once, with the document: the lists may have thousands of clients."""


class _Entry(Written):
    id: Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
    """The id that :meth:`Control.undo` takes."""
    author: Note = ""
    """Who made it."""
    reason: Note = ""
    since: Moment
    """When it was made: POSIX time, by the clock of the server that keeps the document."""
    until: Moment | None = None
    """When it ends: POSIX time; ``None``: it lasts."""

    @property
    def signed(self) -> str:
        """The entry and its author, as the history names what was replaced."""
        return f"{self} by {self.author}" if self.author else str(self)


class Override(_Entry):
    """A change of a rule, a limiter, all limits of an endpoint, or the limits of a subject; or an additional limit."""

    kind: Literal["override"]
    endpoint: Text | None = None
    """Where: an endpoint, a blueprint, a pattern such as ``api.*``, or the scope of a check; ``None``: everywhere."""
    rule: Text | None = None
    """Only the rule with this name in header fields."""
    limiter: Text | None = None
    """Only limiters with this name, or with this type: ``ip``."""
    who: Client | None = None
    """Only for this subject, or for addresses of this network."""
    rules: WrittenRules | None = None
    """The new rules."""
    times: float | None = Field(None, gt=0, le=MOST_TIMES)
    """Factor for the count and the burst."""
    shadow: bool | None = None
    off: bool = False
    limit: WrittenLimiter | None = None
    """An additional limiter."""

    @model_validator(mode="after")
    def _check_override(self) -> Override:
        what = [name for name in ("rules", "times", "shadow", "limit") if getattr(self, name) is not None]
        what += ["off"] if self.off else []
        if len(what) != 1:
            raise ValueError(f"{' and '.join(what) or 'nothing'} given; give one of rules, times, shadow, off, limit")
        takers = {
            "rule": {"rules", "times", "off"},
            "limiter": {"rules", "times", "off", "shadow"},
            "who": {"rules", "times"},
        }
        named = [name for name in takers if getattr(self, name) is not None]
        if len(named) > 1:
            own = "; for one client, give all its rules there, or times" if "who" in named else ""
            raise ValueError(f"{' and '.join(named)}: give only one of them{own}")
        if named and what[0] not in takers[named[0]]:
            choices = " or ".join(sorted(takers[named[0]]))
            values = {"change": what[0], "named": named[0], "choices": choices}
            raise ValueError(Phrase("{change} does not apply to a {named}: give {choices}", **values))
        if named == ["rule"] and self.rules is not None and len(rules_of(self.rules)) > 1:
            raise ValueError(Phrase("rules: one rule replaces a rule; to give several, name its limiter"))
        if not named and what == ["rules"]:
            raise ValueError(Phrase("rules: name what they replace: rule, limiter or who; to add a limit, use limit"))
        if self.endpoint is None and "who" not in named:
            raise ValueError(Phrase('endpoint: give one, or a pattern ("*" for all)'))
        return self

    @property
    def target(self) -> tuple[object, ...]:
        """Identifies what it changes: a later override with the same target replaces it."""
        return self.endpoint or "*", self.rule, self.limiter, self.who, self.limit is not None

    def __str__(self) -> str:
        where: str = Phrase("at {endpoint}", endpoint=self.endpoint) if self.endpoint else ""
        where = Phrase("everywhere") if self.endpoint == "*" else where
        which: str = quoted(str(self.who or ""))
        if self.rule or self.limiter:
            named = self.rule or self.limiter
            which = Phrase("rule {name}", name=named) if self.rule else Phrase("limiter {name}", name=named)
        target = Phrase("{which} {where}", which=which, where=where) if which and where else which or where
        return Phrase("{of}: {change}", of=target, change=self.change)

    @property
    def written_rules(self) -> tuple[Rule, ...]:
        """The rules in :attr:`rules`."""
        return () if self.rules is None else rules_of(self.rules)

    @property
    def new_rules(self) -> tuple[Rule, ...]:
        """Those that it writes: :attr:`written_rules`, or the rules of :attr:`limit`."""
        return self.written_rules if self.limit is None else self.limit.options.get("rules", ())

    @property
    def change(self) -> str:
        if self.off:
            return Phrase("off")
        if self.shadow is not None:
            return Phrase("shadow") if self.shadow else Phrase("no shadow")
        if self.times is not None:
            return Phrase("{n} times the count", n=f"{self.times:g}")
        if self.limit is not None:
            return _in_words(self.limit)
        return self.rules if isinstance(self.rules, str) else _as_json(self.rules)


class Listing(_Entry):
    """Somebody who is allowed, denied or banned."""

    kind: ListingKind
    who: Client
    status: Literal[403, 429] | None = None
    """The status of a refusal; ``None``: ``MULTILIMIT_DENY_STATUS``, and 429 for a ban."""

    @model_validator(mode="after")
    def _check_listing(self) -> Listing:
        if self.kind == "ban" and self.until is None:
            raise ValueError(Phrase("a ban needs an end, such as 1h; to refuse permanently, use deny"))
        if self.kind != "deny" and self.status is not None:
            raise ValueError(Phrase("status is for deny"))
        return self

    @property
    def target(self) -> tuple[object, ...]:
        return (self.who,)

    def __str__(self) -> str:
        return Phrase("{kind} {who}", kind=_KINDS.get(self.kind, self.kind), who=quoted(str(self.who)))


_KINDS = {"ban": Phrase("ban"), "deny": Phrase("deny"), "allow": Phrase("allow")}
_AnyEntry = Annotated[Override | Listing, Field(discriminator="kind")]


class _WrittenDocument(Written):
    """The document as it is stored."""

    format: Annotated[int, Field(le=FORMAT)] = FORMAT
    entries: Annotated[tuple[_AnyEntry, ...], Field(max_length=MOST_ENTRIES, strict=False)] = ()

    @field_validator("entries")
    @classmethod
    def _check_overrides(cls, value: tuple[_AnyEntry, ...]) -> tuple[_AnyEntry, ...]:
        if sum(each.kind == "override" for each in value) > MOST_OVERRIDES:
            raise ValueError(f"more than {MOST_OVERRIDES} overrides")
        return value


def entry_from(given: dict[str, Any]) -> Override | Listing:
    """The entry that ``given`` describes. Raises :class:`ConfigurationError`, as for a declaration."""
    model: type[Override] | type[Listing] = Override if given.get("kind") == "override" else Listing
    return validated(model, str(given.get("kind")), given, imports=False)


def entries_from(text: str | bytes) -> tuple[Override | Listing, ...]:
    """The entries of the document in ``text``. Raises as :func:`.document_from`."""
    try:
        read = _WrittenDocument.model_validate_json(text, context=NO_IMPORTS)
    except ValueError:  # a ValidationError is one
        read = _read_for_error(text)
    return read.entries


def _read_for_error(text: str | bytes) -> _WrittenDocument:
    """Read the document again, to raise an error that says what is wrong with it."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the control document is not JSON: {error}") from error
    if isinstance(given, dict) and isinstance(given.get("format"), int) and given["format"] > FORMAT:
        raise ConfigurationError(
            f"the control document has format {given['format']}, and this process knows {FORMAT}: it was written "
            "by a newer version of flask-multilimit; update this process"
        )
    return validated(_WrittenDocument, "the control document", given, imports=False)


def too_many_listed(listings: Iterable[Listing], entry: Listing) -> str:
    """Why ``entry``, one of ``listings``, would refuse or exempt (nearly) everyone; empty if it would not."""
    allows = entry.kind == "allow"
    network = entry.who.network
    if network is None or network.prefixlen > _COUNTED[network.version]:
        return ""
    if network.prefixlen < _WIDEST[network.version]:
        exempts, refuses = "{entry} would exempt {n} addresses from all limits", "{entry} would refuse {n} addresses"
        return Phrase(exempts if allows else refuses, entry=entry, n=network.num_addresses)
    networks = (each.who.network for each in listings if (each.kind == "allow") == allows)
    if not are_half(filter(None, networks), network.version):
        return ""
    exempts = "{entry}: together with the other entries, it would exempt half of all {ip} addresses from all limits"
    refuses = "{entry}: together with the other entries, it would refuse half of all {ip} addresses"
    return Phrase(exempts if allows else refuses, entry=entry, ip=f"IPv{network.version}")


def are_half(networks: Iterable[Network], version: int) -> bool:
    """Whether ``networks`` contain half of all addresses of this IP version, or more."""
    counted = (each for each in networks if each.version == version and each.prefixlen <= _COUNTED[version])
    return addresses_in(counted) >= _MOST_LISTED[version]


def is_wide(who: Who) -> bool:
    """Whether ``who`` is a large part of the internet."""
    return who.network is not None and who.network.prefixlen < _WIDEST[who.network.version]


def _in_words(limit: WrittenLimiter) -> str:
    """``new ip limit 10/second``; with more options, all of them."""
    options = limit.model_dump(exclude_unset=True)
    type_, rules = options.pop("type", "default"), options.pop("rules", None)
    if isinstance(type_, str) and isinstance(rules, str) and not options:
        return Phrase("new {type} limit {rules}", type=type_, rules=rules)
    return Phrase("new limit {limit}", limit=_as_json(limit))


def _as_json(written: Any) -> str:
    return json.dumps(_plain(written), ensure_ascii=False)


def _plain(written: Any) -> Any:
    """``written`` for JSON, without the options that were not given."""
    if isinstance(written, Written):
        return written.model_dump(mode="json", exclude_unset=True)
    return [_plain(each) for each in written] if isinstance(written, tuple) else written
