"""What all formats share: the request line, durations, marks for missing values, escapes."""

from __future__ import annotations

import re

from .logged import MICROSECONDS

NOBODY = frozenset({"", "-", None})
"""What servers write if a value is missing."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The usual methods, which :func:`checked_method` need not look at."""

STATUSES = {f"{status:03}": status for status in range(1000)}
"""The statuses of responses, as servers write them."""

_METHOD = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")
_DURATION = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_ESCAPED = re.compile(r'\\(?:x([0-9A-Fa-f]{2})|(["\\]))')


class NoRequestError(ValueError):
    """A valid line about a connection without a request, such as a time-out, or a scanner that speaks TLS."""


def request_line(text: str) -> tuple[str, str]:
    """The method and target of a line such as ``GET /path HTTP/1.1``."""
    words = text.split(" ")
    if len(words) == 3:
        return words[0], words[1]
    # A target should have no blanks, but servers log what they received.
    last = len(words) - 1 if words[-1].startswith("HTTP/") else len(words)
    return words[0], " ".join(words[1:last])


def checked_method(method: str) -> str:
    """``method``. Raises :class:`NoRequestError` if it is none."""
    if method in METHODS or _METHOD.fullmatch(method):
        return method
    raise NoRequestError


def duration(text: str, unit: int = MICROSECONDS) -> int | None:
    """The microseconds of a number of units; ``None`` if it is no number."""
    return round(float(text) * unit) if _DURATION.fullmatch(text) else None


def unescaped(text: str) -> str:
    r"""``text`` with the server's escapes ``\"``, ``\\`` and ``\x22`` undone."""
    return _ESCAPED.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    return match[2] or chr(int(match[1], 16))
