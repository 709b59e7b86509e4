"""The key of a hit: ``<prefix>{<scope>}:<type>:<subject>:<algorithm>:<window ms>``.

The braces are the hash tag of Redis Cluster: all keys of one scope lie in one slot. No two different (scope,
type, subject) give one key, whatever their content: everything outside a plain alphabet is percent-encoded (so
neither braces nor colons are ever a subject's own), and what would be longer than its share of the 200 bytes is
replaced by a digest behind a ``*``, which no encoded text contains.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import quote

MAX_PREFIX = 32
MAX_SCOPE = 56
MAX_TYPE = 20
MAX_SUBJECT = 48

DEFAULT_PREFIX = "rate_limit:"

PREFIX_PATTERN = re.compile(rf"[!-z|~]{{1,{MAX_PREFIX}}}")
"""Printable ASCII without blanks and braces."""

TYPE_PATTERN = re.compile(rf"[A-Za-z][A-Za-z0-9_+-]{{0,{MAX_TYPE - 1}}}")
"""A ``+`` joins several types that are one subject."""

NAME_PATTERN = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{MAX_TYPE - 1}}}")

_PLAIN = re.compile(r"[A-Za-z0-9._~@/-]*")
_SAFE = "._~@/-"


def escape(text: str, longest: int) -> str:
    """``text`` in the plain alphabet and at most ``longest`` characters; different texts stay different."""
    escaped = text if _PLAIN.fullmatch(text) else quote(text.encode("utf-8", "surrogatepass"), safe=_SAFE)
    if len(escaped) <= longest:
        return escaped
    return "*" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def escape_scope(scope: str) -> str:
    # An empty hash tag would be none: then the whole key decides about its slot.
    return escape(scope, MAX_SCOPE) or "*"


def escape_subject(subject: str) -> str:
    return escape(subject, MAX_SUBJECT)
