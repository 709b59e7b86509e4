"""Reads the extended log file format of the W3C, as IIS and CloudFront write it: ``#Fields`` names the columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timezone

from .logged import NOTHING, LoggedRequest, field_name
from .times import Times
from .words import NOBODY, checked_method, duration

NAME = "w3c"
MILLISECOND = 1000
"""Microseconds."""

_ROLES: Mapping[str, str] = {
    "date": "date",
    "time": "time",
    "c-ip": "address",
    "cs-username": "user",
    "cs-method": "method",
    "cs-uri": "target",
    "cs-uri-stem": "stem",
    "cs-uri-query": "query",
    "cs-host": "host",
    "cs(host)": "host",
    "x-host-header": "host",
    "sc-status": "status",
    "time-taken": "took",
}
_TOKEN = re.compile(r'"[^"]*"|[^\s"]\S*')
_IN_PARENTHESES = re.compile(r"\w+\(([^)]+)\)")


class W3cReader:
    """Reads lines. A directive changes how the following lines are read. Times are UTC, as the format requires."""

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        self._times = Times(timezone.utc)
        self._wanted = {field_name(name): name for name in wanted}
        self._columns: list[str] = []
        self._fields: dict[str, str] = {}
        self._date = ""

    def __call__(self, line: str) -> LoggedRequest | None:
        if line.startswith("#"):
            self._directive(line)
            return None
        values = _TOKEN.findall(line)
        if not self._columns or len(values) != len(self._columns):
            return None
        row = dict(zip(self._columns, values, strict=True))
        try:
            at = self._times(f"{row.get('date', self._date)} {row.get('time', '')}")
        except (ValueError, OverflowError):
            return None
        status, user, took = row.get("status", ""), row.get("user"), _took(row.get("took", ""))
        return LoggedRequest(
            at - (took or 0),
            checked_method(row.get("method", "")),
            row.get("target") or _target(row),
            row.get("address", ""),
            int(status) if len(status) == 3 and status.isdecimal() else 0,
            None if user in NOBODY else user,
            "" if row.get("host") in NOBODY else row["host"],
            {name: row[column] for column, name in self._fields.items() if row[column] not in NOBODY}
            if self._fields
            else NOTHING,
            took=took,
        )

    def _directive(self, line: str) -> None:
        name, _, value = line[1:].partition(":")
        if name == "Date":
            self._date = value.split()[0] if value.split() else ""
        if name == "Fields":
            names = value.split()
            self._columns = [_ROLES.get(name.lower(), name) for name in names]
            known = {column: _plain(name) for column, name in zip(self._columns, names, strict=True)}
            self._fields = {column: self._wanted[name] for column, name in known.items() if name in self._wanted}


def _took(text: str) -> int | None:
    """IIS counts whole milliseconds, CloudFront seconds with a fraction."""
    return duration(text) if "." in text else duration(text, MILLISECOND)


def _plain(name: str) -> str:
    match = _IN_PARENTHESES.fullmatch(name)
    return field_name(match[1] if match else name)


def _target(row: Mapping[str, str]) -> str:
    query = row.get("query", "-")
    return row.get("stem", "") + ("" if query in NOBODY else f"?{query}")
