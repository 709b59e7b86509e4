"""Reads the instants of logs, however they are written, as microseconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo

MICROSECONDS = 1_000_000
MINUTES_REMEMBERED = 4096

Instant = Callable[[str], int]
"""Reads an instant. Raises ValueError if it is none."""

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
"""As seconds, this is 3,000 years ahead. So a larger number counts milliseconds, microseconds or nanoseconds."""


class Times:
    """Reads the instants of one log. Those without an offset are local times of ``zone``.

    If a local time occurs twice because clocks were put back, the first one counts, unless it lies before the previous
    instant of the log.
    """

    def __init__(self, zone: tzinfo = timezone.utc) -> None:
        self._zone = zone
        self._minutes: dict[tuple[str, str | None], int] = {}
        self._text: str | None = None
        self._last = 0

    def __call__(self, text: str) -> int:
        """Microseconds since 1970. Raises ValueError."""
        if text == self._text:  # as nearly always where a second has many requests
            return self._last
        match = _CLF.fullmatch(text) or _ISO.fullmatch(text)
        if match is None:
            return self._keep(text, from_number(text))
        minute, second, fraction, offset = match.groups()
        at = self._minute(minute, offset) + int(second) * MICROSECONDS
        if fraction:
            at += int(fraction[:6].ljust(6, "0"))
        return self._keep(text, at)

    def _keep(self, text: str, at: int) -> int:
        self._text, self._last = text, at
        return at

    def _minute(self, text: str, offset: str | None) -> int:
        minute = (text, offset)
        at = self._minutes.get(minute)
        if at is None:
            naive = _minute_of(text)
            if offset is None:
                return self._local(naive, minute)
            at = _microseconds(naive.replace(tzinfo=timezone(_offset(offset))))
            self._remember(minute, at)
        return at

    def _local(self, naive: datetime, minute: tuple[str, str | None]) -> int:
        first = _microseconds(naive.replace(tzinfo=self._zone))
        second = _microseconds(naive.replace(tzinfo=self._zone, fold=1))
        if first >= second:  # a time that occurs once, or was skipped
            self._remember(minute, first)
            return first
        return second if self._last - first > (second - first) // 2 else first

    def _remember(self, minute: tuple[str, str | None], at: int) -> None:
        if len(self._minutes) >= MINUTES_REMEMBERED:
            self._minutes.clear()
        self._minutes[minute] = at


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


def moment(text: str, zone: tzinfo = timezone.utc) -> int:
    """An instant as people write it: with or without seconds, or only a day. Raises ValueError."""
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        text += "T00:00"
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}", text):
        text += ":00"
    return Times(zone)(text)


def _minute_of(text: str) -> datetime:
    if text[2] == "/":
        month = _MONTH.get(text[3:6])
        if month is None:
            raise ValueError(f"no month: {text[3:6]!r}")
        return datetime(int(text[7:11]), month, int(text[:2]), int(text[12:14]), int(text[15:17]))
    return datetime(int(text[:4]), int(text[5:7]), int(text[8:10]), int(text[11:13]), int(text[14:16]))


def _offset(text: str) -> timedelta:
    if text in {"Z", "UTC"}:
        return timedelta(0)
    digits = text[1:].replace(":", "").ljust(6, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:6]))
    return -offset if text[0] == "-" else offset


def _microseconds(when: datetime) -> int:
    return (when - _EPOCH) // timedelta(microseconds=1)
