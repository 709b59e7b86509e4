"""Takes a key of the storage apart: for commands and reports; no check needs this."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from .keys import NOTHING, hash_tag_of

_RULE = r"(?P<algorithm>[^:{}]+):(?P<window>\d+)"
_TAGGED_BY_SCOPE = re.compile(
    r"(?P<stem>[^{}]+\{[^{}]*\}:(?:[^:{}]+:)?)(?P<type>[^:{}]+):(?P<subject>[^:{}]*):" + _RULE
)
_TAGGED_BY_SUBJECT = re.compile(r"(?P<stem>[^{}]+:)(?P<type>[^:{}]+):\{(?P<subject>[^{}]*)\}:" + _RULE)


class KeyParts(NamedTuple):
    """The parts of a key."""

    stem: str
    """The part before the type."""
    type: str
    subject: str
    """Escaped."""
    algorithm: str
    window: str
    """Milliseconds."""


def parts_of_key(key: str) -> KeyParts | None:
    """The parts of ``key``; ``None`` if it is not the key of a limit."""
    match = _TAGGED_BY_SCOPE.fullmatch(key) or _TAGGED_BY_SUBJECT.fullmatch(key)
    if match is None:
        return None
    return KeyParts(**{**match.groupdict(), "subject": "" if match["subject"] == NOTHING else match["subject"]})


def scope_of_stem(stem: str, prefix: str) -> str:
    """The scope in ``stem``, which begins with ``prefix``; the digest of a long scope."""
    return unquote(hash_tag_of(stem) or stem.removeprefix(prefix).partition(":")[0])
