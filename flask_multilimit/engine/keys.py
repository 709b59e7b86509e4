"""The key of a hit: ``<prefix>{<scope>}:<type>:<subject>:<algorithm>:<window ms>``.

A limiter of only some methods has these after the scope: ``<prefix>{<scope>}:POST:<type>:...``.

The braces are the hash tag of Redis Cluster: all keys of one scope lie in one slot. If the subject is the tag, all keys
of one subject do: ``<prefix><scope>:<type>:{<subject>}:<algorithm>:<window ms>``.

Two different (scope, type, subject) never give the same key, whatever their content and tag. Everything outside a plain
alphabet is percent-encoded, so no brace or colon comes from a subject. A part that is longer than its share of the 200
bytes is replaced by a ``*``, which encoded text never contains, and a digest.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from socket import AF_INET6, inet_pton
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from .errors import ConfigurationError, brief

MAX_KEY = 200
MAX_PREFIX = 32
MAX_SCOPE = 56
MAX_TYPE = 20
MAX_SUBJECT = 48

_LONGEST_REST = len("::{}::sliding_window_counter:34560000000") + MAX_TYPE + MAX_SUBJECT
"""The length of a key after its stem."""
_PLAIN_METHODS = r"[A-Z+]+"

DEFAULT_PREFIX = "rate_limit:"

HashTag = Literal["scope", "subject"]
"""Which part of a key determines its slot."""

PREFIX_PATTERN = re.compile(rf"[!-z|~]{{1,{MAX_PREFIX}}}")
"""Printable ASCII without blanks and braces."""

TYPE_PATTERN = re.compile(rf"[A-Za-z][A-Za-z0-9_+-]{{0,{MAX_TYPE - 1}}}")
"""A ``+`` joins several types that are one subject."""

NAME_PATTERN = rf"[A-Za-z][A-Za-z0-9_-]{{0,{MAX_TYPE - 1}}}"
"""Patterns that few processes need, as this one and those for parsing keys, are text, which ``re`` compiles when it is
first used."""

EMPTY = "*"
"""Stands for an empty text in a hash tag: with an empty tag, the whole key would determine the slot."""

_DIGEST = r"\*[0-9a-f]{40}"

_PLAIN = re.compile(r"[A-Za-z0-9._~@/-]*")
_PLAIN_SIGNS = "._~@/-"


def escape(text: str, longest: int) -> str:
    """``text`` in the plain alphabet and at most ``longest`` characters; different texts stay different."""
    if len(text) <= longest:  # clients choose it: escaping a megabyte would take a fifth of a second
        plain = _PLAIN.fullmatch(text)  # its group is text alone: a member of an Enum would be formatted as its name
        escaped = plain[0] if plain else quote(text.encode("utf-8", "surrogatepass"), safe=_PLAIN_SIGNS)
        if len(escaped) <= longest:
            return escaped
    return "*" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def is_digest(subject: str) -> bool:
    """Whether ``subject`` looks like what a key has in place of a long one."""
    return subject.startswith("*") and re.fullmatch(_DIGEST, subject) is not None


def pairs_in(value: str) -> list[list[str]]:
    """The types and values of the parts of a subject of several types, from its ``value``; none if that is something
    else."""
    if not value.startswith("[["):
        return []
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # a client may have chosen the value
        return []
    is_whole = all(isinstance(each, list) and list(map(type, each)) == [str, str] for each in found)
    return found if is_whole else []


TEXT = "text:"
"""Begins the form of an id that looks like something else (:func:`own_form`)."""


def own_form(type_name: str, value: str) -> str:
    """``value``, an id that a client may have chosen, in a form that names no other client. What looks like several
    parts, like a digest, or like this form of these, gets another one: a subject with these may have the same key, or
    the same name."""
    if not value.startswith(("[[", "*", TEXT)) or type_name in _WITHOUT_IDS or "+" in type_name:
        return value
    start = 0
    while value.startswith(TEXT, start):
        start += len(TEXT)
    plain = value[start:]
    return f"{TEXT}{value}" if len(pairs_in(plain)) > 1 or is_digest(plain) else value


def known_form(type_name: str, value: str) -> str:
    """The id of which ``value`` is the :func:`own_form`; ``value`` if it is none that differs from its id."""
    known = value.removeprefix(TEXT)
    return known if known != value and own_form(type_name, known) == value else value


def name_of_id(type_name: str, value: str) -> str:
    """How entries, signals and events name the id of which ``value`` is the form: as the app knows it, unless that is
    the form of another id. Of a type of one's own, what looks like several parts names a subject that has them."""
    known = known_form(type_name, value)
    if known == value:
        return value
    is_of_parts = type_name != "user" and pairs_in(known)
    return value if is_of_parts or known_form(type_name, known) != known else known


def escape_scope(scope: str) -> str:
    return escape(scope, MAX_SCOPE) or EMPTY


def escape_subject(subject: str) -> str:
    return escape(subject, MAX_SUBJECT)


EVERYONE = "everyone"
"""Names the one subject of the type ``default``."""
NAMES = 'give TYPE:VALUE, such as "user:42", "ip:203.0.113.7" or "api_key:key-0", or "everyone"'
"""How to name a subject."""


_USUAL_TYPES = {"ip", "user", "anonymous"}
_WITHOUT_IDS = {"ip", "anonymous", "default"}
"""Types whose subjects have no id."""
RESERVED_TYPES = frozenset({*_USUAL_TYPES, "default", "global"})
"""Names that a type of one's own must not have."""


def type_and_value(name: object) -> tuple[str, str]:
    """The type and the value in the ``name`` of a subject. The type ends at the first colon, so a client that chooses
    the value cannot choose the type. Raises :class:`ConfigurationError` for text without a type, such as an IPv6
    address, and for a type that no limiter has, such as ``User``."""
    if name == EVERYONE:
        return "default", ""
    type_, colon, value = name.partition(":") if isinstance(name, str) else ("", "", "")
    has_type = bool(colon and type_) and not type_[0].isdigit() and not is_misspelled(type_)
    is_address = _is_ipv6(f"{type_}:{value}")
    if not has_type or name == f"{EVERYONE}:" or is_address:
        why = "this is an IPv6 address; " if is_address else ""
        raise ConfigurationError(f"subject {brief(name)}: {why}{NAMES}")
    return type_, value


def is_misspelled(type_name: str) -> bool:
    """Whether no limiter has a type of this name, because it is another spelling of one that every app has."""
    return type_name not in _USUAL_TYPES and type_name.lower() in RESERVED_TYPES


def _is_ipv6(text: str) -> bool:
    """Whether it is an IPv6 address, perhaps with a zone or a prefix length."""
    match = _LIKE_IPV6.fullmatch(text)
    try:
        return match is not None and bool(inet_pton(AF_INET6, match[1]))
    except OSError:
        return False


_LIKE_IPV6 = re.compile(r"([0-9A-Fa-f]{1,4}:[0-9A-Fa-f:.]{1,40})(?:[%/].*)?")


def checked_prefix(value: object) -> str:
    """``value``, of a member of an ``Enum`` as plain text. Raises :class:`ConfigurationError` unless it can begin a
    key."""
    found = PREFIX_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ConfigurationError(f"key prefix {brief(value)}: 1 to 32 printable ASCII characters, no spaces or braces")
    return found[0]


def stem_of(prefix: str, scope: str, hash_tag: HashTag, methods: str = "") -> str:
    """The part of a key before the type."""
    escaped = escape_scope(scope)
    stem = f"{prefix}{escaped}:" if hash_tag == "subject" else f"{prefix}{{{escaped}}}:"
    return f"{stem}{_methods_in_stem(methods, MAX_KEY - len(stem) - _LONGEST_REST)}:" if methods else stem


def _methods_in_stem(methods: str, room: int) -> str:
    if re.fullmatch(_PLAIN_METHODS, methods) and len(methods) <= room:
        return methods
    return "*" + blake2b(methods.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()[:3]


def stem_of_subject(stem: str, type_: str, subject: str, hash_tag: HashTag) -> str:
    """The part of a key before that of the rule (:attr:`.Rule.key_part`); ``subject`` is already escaped."""
    return f"{stem}{type_}:{{{subject or EMPTY}}}:" if hash_tag == "subject" else f"{stem}{type_}:{subject}:"


def stem_of_key(key: str) -> str:
    """The part of ``key`` before the algorithm: the stem of its subject."""
    return key.rsplit(":", 2)[0] + ":"


def hash_tag_of(key: str) -> str:
    """The part of ``key`` that determines its slot in a cluster."""
    return key.partition("{")[2].partition("}")[0]


def without_subject(key: str) -> str:
    """``key`` up to its scope, for logs: the subject is personal data."""
    before, brace, after = key.partition("}")
    if after.count(":") == 2:  # algorithm and window: the braces hold the subject
        return before.partition("{")[0].rstrip(":")
    return before + brace


def probe_key(key: str, algorithm: str) -> str:
    """A key that belongs to no limit, with the prefix of ``key`` and in its slot."""
    before, brace, _ = key.partition("}")
    return f"{before}{brace}:probe::{algorithm}:1000"


def is_probe(key: str) -> bool:
    """Whether ``key`` is one that :func:`probe_key` makes."""
    return key == probe_key(key, key.rpartition(":")[0].rpartition(":")[2])


# Parsing keys, for commands and reports

_RULE = r"(?P<algorithm>[^:{}]+):(?P<window>\d+|[hdwmy][^:{}]+)"
_TAGGED_BY_SCOPE = r"(?P<stem>[^{}]+\{[^{}]*\}:(?:[^:{}]+:)?)(?P<type>[^:{}]+):(?P<subject>[^:{}]*):" + _RULE
_TAGGED_BY_SUBJECT = r"(?P<stem>[^{}]+:)(?P<type>[^:{}]+):\{(?P<subject>[^{}]*)\}:" + _RULE


KeysOfRule = tuple[str, str, str]
"""What all keys of a rule have in common: the stem, the type, and the :attr:`.Rule.key_part`."""


class KeyParts(NamedTuple):
    """The parts of a key."""

    stem: str
    """The part before the type."""
    type: str
    subject: str
    """Escaped."""
    algorithm: str
    window: str
    """Milliseconds, or the period of a calendar."""

    @property
    def rule(self) -> str:
        """The :attr:`.Rule.key_part`."""
        return f"{self.algorithm}:{self.window}"

    @property
    def keys_of_rule(self) -> KeysOfRule:
        return self.stem, self.type, self.rule


def parts_of_key(key: str) -> KeyParts | None:
    """The parts of ``key``; ``None`` if it is not the key of a limit."""
    match = re.fullmatch(_TAGGED_BY_SCOPE, key) or re.fullmatch(_TAGGED_BY_SUBJECT, key)
    if match is None:
        return None
    return KeyParts(**{**match.groupdict(), "subject": "" if match["subject"] == EMPTY else match["subject"]})


def scope_of_stem(stem: str, prefix: str) -> str:
    """The scope in ``stem``, which begins with ``prefix``; the digest of a long scope."""
    return unquote(hash_tag_of(stem) or stem.removeprefix(prefix).partition(":")[0])
