"""Reads lines of JSON from Caddy, Traefik, nginx, and other servers that use the usual names of fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from .logged import NOBODY, NOTHING, LoggedRequest, Read, checked_method, duration, field_name, request_line
from .times import MICROSECONDS, Times, from_number

Path = tuple[str, ...]
"""Names of nested fields, the outermost first."""


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The names that each field may have. The first one that is present counts."""

    name: str
    places: Mapping[str, tuple[Path, ...]]
    headers: Path = ()
    """The object that contains the header fields, each a list."""
    begins: bool = False
    """Whether the time is the beginning of the request. If so, the duration is in nanoseconds."""

    def reader(self, zone: tzinfo, wanted: Iterable[str]) -> Read:
        """A reader of lines. ``wanted`` are header fields, or paths such as ``request.tls.server_name``."""
        return _reader(self, Times(zone), tuple(wanted))


def _flat(*names: str) -> tuple[Path, ...]:
    return tuple((name,) for name in names)


CADDY = JsonFormat(
    "caddy",
    {
        "at": _flat("ts"),
        "took": _flat("duration"),
        "address": (("request", "client_ip"), ("request", "remote_ip")),
        "user": _flat("user_id"),
        "method": (("request", "method"),),
        "target": (("request", "uri"),),
        "host": (("request", "host"),),
        "status": _flat("status"),
    },
    headers=("request", "headers"),
)
TRAEFIK = JsonFormat(
    "traefik",
    {
        "at": _flat("StartUTC", "StartLocal", "time"),
        "took": _flat("Duration"),
        "address": _flat("ClientHost"),
        "user": _flat("ClientUsername"),
        "method": _flat("RequestMethod"),
        "target": _flat("RequestPath"),
        "host": _flat("RequestHost", "RequestAddr"),
        "status": _flat("DownstreamStatus", "OriginStatus"),
    },
    begins=True,
)
PLAIN = JsonFormat(
    "json",
    {
        "at": _flat("msec", "time_iso8601", "time_local", "ts", "timestamp", "@timestamp", "time", "date"),
        "took": _flat("request_time"),
        "address": _flat("remote_addr", "client_ip", "remote_ip", "clientip", "ip", "address", "remote_host", "client"),
        "user": _flat("remote_user", "user_id", "user"),
        "request": _flat("request"),
        "method": _flat("request_method", "method", "verb", "http_method"),
        "target": _flat("request_uri", "uri", "target", "path", "url"),
        "host": _flat("http_host", "host", "server_name", "vhost"),
        "status": _flat("status", "status_code", "response", "code"),
    },
)


def _reader(format_: JsonFormat, times: Times, wanted: tuple[str, ...]) -> Read:
    places = [
        format_.places.get(role, ())
        for role in ("at", "took", "address", "user", "request", "method", "target", "host", "status")
    ]

    def read(line: str) -> LoggedRequest | None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(entry, dict):
            return None
        at, took, address, user, request, method, target, host, status = [_find(entry, paths) for paths in places]
        if request:
            method, target = request_line(_text(request))
        try:
            came = _instant(at, times)
        except (ValueError, OverflowError):
            return None
        if not (isinstance(method, str) and isinstance(target, str)):
            return None
        if format_.begins:
            lasted = took // 1000 if isinstance(took, int) else None
        else:
            lasted = _took(took)
            came -= lasted or 0
        return LoggedRequest(
            came,
            checked_method(method),
            target,
            _text(address),
            _status(status),
            None if _text(user) in NOBODY else _text(user),
            _text(host),
            _fields(entry, format_.headers, wanted) if wanted else NOTHING,
            took=lasted,
        )

    return read


def _find(entry: Mapping[str, Any], paths: tuple[Path, ...]) -> Any:
    for path in paths:
        found: Any = entry
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None and not isinstance(found, dict):
            return found
    return None


def _fields(entry: Mapping[str, Any], headers: Path, wanted: Iterable[str]) -> dict[str, str]:
    """The values of ``wanted``: each found by its path, or as a header field among ``headers`` or at the top."""
    fields = {field_name(name.removeprefix("request_")): value for name, value in entry.items()}
    fields |= {field_name(name): value for name, value in _object(entry, headers).items()} if headers else {}
    found = {}
    for name in wanted:
        value = _find(entry, (tuple(name.split(".")),))
        value = fields.get(field_name(name)) if value is None else value
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, (str, int)) and value not in NOBODY:
            found[name] = str(value)
    return found


def _object(entry: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    found: Any = entry
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


def _status(value: object) -> int:
    text = str(value)
    return int(text) if len(text) == 3 and text.isdecimal() else 0


def _instant(value: object, times: Times) -> int:
    if isinstance(value, str):
        return times(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return from_number(f"{value:.6f}" if isinstance(value, float) else str(value))
    raise ValueError("no time")


def _took(value: object) -> int | None:
    """The duration, if it is in seconds: no name says that a server uses another unit."""
    if isinstance(value, float) and 0 <= value < 86_400:
        return round(value * MICROSECONDS)
    return duration(value) if isinstance(value, str) else None
