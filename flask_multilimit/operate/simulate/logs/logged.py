"""One request as a log tells of it, whatever the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

MICROSECONDS = 1_000_000

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recorded:
    """What only our own recorder knows of a request."""

    endpoint: str | None
    """``None``: no route matched."""
    subjects: Mapping[str, str]
    """By type; hashed with a key."""
    admitted: bool | None
    """What the limits in force said; ``None`` when no limit was asked."""


class LoggedRequest(NamedTuple):  # a frozen dataclass takes three times as long to make, one a line
    """One request of a log."""

    at: int
    """When it came: microseconds since 1970 (UTC)."""
    method: str
    target: str
    """As in the request line: the path with the query, or a whole URL."""
    address: str = ""
    """Of the client."""
    status: int = 0
    """Of the response; 0 when the log does not tell."""
    user: str | None = None
    """The id of the user; ``None`` for nobody, or when the log does not tell."""
    host: str = ""
    """As in the field ``Host``; empty when the log does not tell."""
    fields: Mapping[str, str] = NOTHING
    """Whatever else was asked for, by the name it was asked for."""
    recorded: Recorded | None = None
    took: int | None = None
    """Microseconds until the response was there; ``None`` when the log does not tell."""

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
        """``when`` as a datetime with a time zone, or as seconds since 1970; ``took`` in seconds."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise ValueError(f"{when!r} has no time zone: give one, such as datetime.timezone.utc")
            when = when.timestamp()
        lasted = None if took is None else round(took * MICROSECONDS)
        return cls(round(when * MICROSECONDS), method, target, address, status, user, host, fields, took=lasted)


Read = Callable[[str], "LoggedRequest | None"]
"""Reads one line; ``None`` when it is none of the format."""


def field_name(name: str) -> str:
    """One spelling for the name of a header field, as nginx, Apache, gunicorn, W3C and people write it.

    ``X-Api-Key``, ``http_x_api_key``, ``%{X-Api-Key}i``, ``cs(X-Api-Key)`` are the same.
    """
    plain = name.lower().replace("-", "_")
    return plain.removeprefix("http_")
