"""One request of a log, whatever the format, and what all formats share: names, request lines, instants."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from ...serve.access import Action

MICROSECONDS = 1_000_000

NO_FIELDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recorded:
    """What only our own recorder writes about a request."""

    endpoint: str | None
    """``None`` if no route matched."""
    subjects: Mapping[str, str]
    """By type, hashed with a key."""
    admitted: bool | None
    """The verdict of the limits in force; ``None`` if no limit was checked."""
    costs: Mapping[str, int] = field(default_factory=dict)
    """The units that it was settled at, by the name of the limiter."""
    listed: Action | None = None
    """The list that the client was on."""


class LoggedRequest(NamedTuple):  # a frozen dataclass takes three times as long to make
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
    fields: Mapping[str, str] = NO_FIELDS
    """The further fields that were wanted, by the names in which they were wanted."""
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
        fields: Mapping[str, str] = NO_FIELDS,
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


MISSING = frozenset({"", "-", None})
"""What servers write in place of a missing value."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The usual methods, which need no :func:`checked_method`."""

_STATUSES = {f"{status:03}": status for status in range(1000)}
"""The statuses of responses, as servers write them."""

_METHOD = re.compile(r"[A-Za-z][A-Za-z_-]{0,31}")
_DURATION = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_ESCAPED = re.compile(r'\\(?:x([0-9A-Fa-f]{2})|(["\\]))')


class NoRequestError(ValueError):
    """A valid line about a connection without a request, such as a time-out, or a scanner that speaks TLS."""


Role = Literal["at", "address", "user", "request", "method", "target", "path", "query", "status", "host", "took"]
"""What a field of a log says about a request."""
ROLES: tuple[Role, ...] = get_args(Role)

Make = Callable[[Iterable[str], Mapping[str, str]], "LoggedRequest | None"]
"""Makes a request of the texts of all :data:`ROLES`, in order, and the further fields; ``None`` if its time is none."""


def maker(zone: tzinfo, *, at_end: bool = True, unit: float = MICROSECONDS, no_query: str = "") -> Make:
    """A function that makes the requests of one log.

    :param at_end: whether a time says when the request ended.
    :param unit: that of durations, in microseconds.
    :param no_query: what the server writes behind the path if there is no query.
    """
    instant, new = Times(zone).__call__, tuple.__new__  # as fast as can be: a log has millions of lines

    def make(texts: Iterable[str], fields: Mapping[str, str]) -> LoggedRequest | None:
        at, address, user, request, method, target, path, query, status, host, took = texts
        try:
            arrived = instant(at)
        except (ValueError, OverflowError):
            return None
        length = duration(took, unit) if took else None
        if length and at_end:
            arrived -= length
        if request:
            method, target = request_line(request)
        elif not target:
            target = f"{path}?{query.lstrip('?')}" if query and query != "-" else path.removesuffix(no_query)
        if method not in METHODS:
            method = checked_method(method)
        code, who = _STATUSES.get(status, 0), None if user in MISSING else user
        made = (arrived, method, target, address, code, who, "" if host == "-" else host, fields, None, length)
        return new(LoggedRequest, made)

    return make


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


def duration(text: str, unit: float = MICROSECONDS) -> int | None:
    """The microseconds of a number of units; ``None`` if it is no number."""
    return round(float(text) * unit) if _DURATION.fullmatch(text) else None


def unescaped(text: str) -> str:
    r"""``text`` with the server's escapes ``\"``, ``\\`` and ``\x22`` undone."""
    return _ESCAPED.sub(lambda match: match[2] or chr(int(match[1], 16)), text) if "\\" in text else text


def unescaped_url(text: str) -> str:
    """The same for a part of a URL: bytes of UTF-8 are the characters that the app sees there."""
    plain = unescaped(text)
    try:
        return plain.encode("latin-1").decode()
    except UnicodeError:
        return plain


# Instants, however they are written

MINUTES_REMEMBERED = 4096

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = {name: number for number, name in enumerate(_MONTHS, 1)}
_CLF = re.compile(r"(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}):([0-5]\d|60)(?:[.,](\d{1,9}))?(?: ([+-]\d{4}))?")
_ISO = re.compile(
    r"(\d{4}[-/]\d{2}[-/]\d{2}[T ]\d{2}:\d{2}):([0-5]\d|60)(?:[.,](\d{1,12}))?"
    r"(?: ?(Z|UTC|[+-]\d{2}:?\d{2}(?::?\d{2})?))?"
)
_NUMBER = re.compile(r"(\d{1,19})(?:\.(\d{1,12}))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LIKELY_SECONDS = 10**11
"""As seconds, this is in 3,000 years. So a larger number counts milliseconds, microseconds or nanoseconds."""


class Times:
    """Reads the instants of one log. Those without an offset are local times of ``zone``.

    If a local time occurs twice because clocks were put back, the first one counts, unless it lies before the previous
    instant of the log.
    """

    def __init__(self, zone: tzinfo = timezone.utc) -> None:
        self._zone = zone
        self._of_minute = lru_cache(MINUTES_REMEMBERED)(self._instants_of_minute)
        self._text: str | None = None
        self._last = 0

    def __call__(self, text: str) -> int:
        """Microseconds since 1970. Raises ValueError."""
        if text != self._text:  # a second often has many requests
            self._last, self._text = self._instant(text), text
        return self._last

    def _instant(self, text: str) -> int:
        match = _CLF.fullmatch(text) or _ISO.fullmatch(text)
        if match is None:
            return from_number(text)
        minute, second, fraction, offset = match.groups()
        first, again = self._of_minute(minute, offset)
        at = again if self._last - first > (again - first) // 2 else first
        return at + int(second) * MICROSECONDS + int((fraction or "")[:6].ljust(6, "0"))

    def _instants_of_minute(self, text: str, offset: str | None) -> tuple[int, int]:
        """When a minute begins; and when it begins again, if clocks are put back, or else the same."""
        naive = _minute_of(text)
        if offset is not None:
            known = datetime.strptime(offset.replace("UTC", "Z"), "%z").tzinfo
            at = _microseconds(naive.replace(tzinfo=known))
            return at, at
        first = _microseconds(naive.replace(tzinfo=self._zone))
        again = _microseconds(naive.replace(tzinfo=self._zone, fold=1))
        return first, max(first, again)  # it is less for a time that is skipped


def from_number(text: str) -> int:
    """The instant of a number since 1970. Its size shows whether it counts seconds or smaller units."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"no time: {text[:40]!r}")
    whole = int(match[1])
    if whole < _LIKELY_SECONDS:
        return whole * MICROSECONDS + int((match[2] or "")[:6].ljust(6, "0"))
    if whole < _LIKELY_SECONDS * 1000:
        return whole * 1000 + int((match[2] or "")[:3].ljust(3, "0"))
    return whole if whole < _LIKELY_SECONDS * MICROSECONDS else whole // 1000


def moment(text: str, zone: tzinfo) -> int:
    """An instant as people write it, in ISO 8601: with or without seconds, or only a day. Raises ValueError."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return _microseconds(when if when.tzinfo else when.replace(tzinfo=zone))


def _minute_of(text: str) -> datetime:
    if text[2] == "/":
        month = _MONTH.get(text[3:6])
        if month is None:
            raise ValueError(f"no month: {text[3:6]!r}")
        return datetime(int(text[7:11]), month, int(text[:2]), int(text[12:14]), int(text[15:17]))
    return datetime.fromisoformat(text.replace("/", "-"))


def _microseconds(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(microseconds=1)
