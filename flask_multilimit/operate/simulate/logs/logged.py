"""One request of a log, whatever the format, and what all formats share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

MICROSECONDS = 1_000_000

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recorded:
    """What only our own recorder knows about a request."""

    endpoint: str | None
    """``None`` if no route matched."""
    subjects: Mapping[str, str]
    """By type, hashed with a key."""
    admitted: bool | None
    """The verdict of the limits in force; ``None`` if no limit was checked."""
    costs: Mapping[str, int] = field(default_factory=dict)
    """The units that it was settled at, by the name of the limiter."""


class LoggedRequest(NamedTuple):  # a frozen dataclass takes three times as long to make, one a line
    """One request of a log."""

    at: int
    """When it arrived, in microseconds since 1970 (UTC)."""
    method: str
    target: str
    """As in the request line: the path with the query, or a whole URL."""
    address: str = ""
    """The address of the client."""
    status: int = 0
    """The status of the response; 0 if the log does not contain it."""
    user: str | None = None
    """The id of the user; ``None`` if nobody is logged in, or the log does not contain it."""
    host: str = ""
    """As in the field ``Host``; empty if the log does not contain it."""
    fields: Mapping[str, str] = NOTHING
    """The further fields that were asked for, by the names that were used."""
    recorded: Recorded | None = None
    took: int | None = None
    """Microseconds until the response was complete; ``None`` if the log does not contain it."""

    @classmethod
    def of(
        cls,
        when: datetime | float,
        method: str,
        target: str,
        *,
        address: str = "",
        status: int = 0,
        user: str | None = None,
        host: str = "",
        fields: Mapping[str, str] = NOTHING,
        took: float | None = None,
    ) -> LoggedRequest:
        """A request. ``when`` is a datetime with a time zone, or seconds since 1970; ``took`` is in seconds."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise ValueError(f"{when!r} has no time zone: give one, such as datetime.timezone.utc")
            when = when.timestamp()
        lasted = None if took is None else round(took * MICROSECONDS)
        return cls(round(when * MICROSECONDS), method, target, address, status, user, host, fields, took=lasted)


Read = Callable[[str], "LoggedRequest | None"]
"""Reads one line; ``None`` if it is not in the format."""


def field_name(name: str) -> str:
    """One spelling for the name of a header field, however nginx, Apache, gunicorn and people write it.

    ``X-Api-Key``, ``http_x_api_key`` and ``%{X-Api-Key}i`` are the same.
    """
    plain = name.lower().replace("-", "_")
    return plain.removeprefix("http_")


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
