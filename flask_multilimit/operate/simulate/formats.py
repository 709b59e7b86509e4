"""The formats of logs: those that have a name, format strings of nginx, Apache and gunicorn, regular expressions, and
lines of JSON; and how the format of a log is recognised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import pairwise
from math import isfinite
from operator import itemgetter
from typing import Any

from ...engine import ConfigurationError
from ...engine.errors import brief
from . import recorded
from .logged import (
    MICROSECONDS,
    MISSING,
    NO_FIELDS,
    ROLES,
    LoggedRequest,
    Make,
    NoRequestError,
    Read,
    Role,
    field_name,
    maker,
    unescaped,
    unescaped_url,
)

MakeReader = Callable[[tzinfo, Sequence[str]], Read]
"""Makes a reader for one file, given the zone of times without an offset and the names of the fields to read."""

# Lines of text
#
# A format becomes one regular expression that never backtracks: each field ends at the first character that can follow
# it in the format. So the time to read a line is linear in its length, whatever it contains.


def _by_name(names: Mapping[Role, str]) -> Mapping[str, Role]:
    return {name: role for role, several in names.items() for name in several.split()}


_NGINX = _by_name(
    {
        "at": "time_local time_iso8601 msec",
        "address": "remote_addr",
        "user": "remote_user",
        "request": "request",
        "method": "request_method",
        "target": "request_uri",
        "path": "uri document_uri",
        "query": "args query_string",
        "status": "status",
        "host": "host http_host server_name",
        "took": "request_time",
    }
)
_LETTERS: Mapping[Role, str] = {"user": "u", "request": "r", "method": "m", "path": "U", "query": "q", "status": "s"}
_APACHE = _by_name(
    {
        **_LETTERS,
        "at": "t",
        "address": "h a {c}a",
        "host": "v V {host}i",
        "took": "D T {ms}T {us}T {s}T",
    }
)
_GUNICORN = _by_name({**_LETTERS, "at": "t", "address": "h", "host": "{host}i", "took": "D T L M"})
_UNITS = {"D": 1, "{us}T": 1, "M": 1000, "{ms}T": 1000}
"""The unit, in microseconds, of variables that do not count seconds."""

_VARIABLE = {
    "nginx": re.compile(r"\$(?:\{(\w+)\}|(\w+))"),
    "Apache": re.compile(r"%(?:!?\d{3}(?:,\d{3})*)?[<>]?((?:\{[^{}]*\})?(?:\^[A-Za-z]{2}|[A-Za-z%]))"),
    "gunicorn": re.compile(r"%\(([^()]*)\)s"),
}
_STATUS = r"[\d-]"
_IN_BRACES = re.compile(r"\{(?P<name>[^}]*)\}(?P<kind>.*)")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a format."""

    before: str
    """The text between the previous variable and this one."""
    role: Role | None
    name: str
    """The name by which people may ask for it; see :func:`field_name`."""
    unit: int = MICROSECONDS
    """The unit of a duration, in microseconds."""

    @property
    def is_port(self) -> bool:
        return self.name in {"p", "remote_port", "server_port"}


def format_string(text: str, *, name: str | None = None, open_end: bool = False) -> MakeReader:
    """The format of a ``log_format`` of nginx, ``LogFormat`` of Apache or ``access_log_format`` of gunicorn. Their
    variables show which one it is. Raises :class:`ConfigurationError`.

    :param open_end: whether further fields may follow at the end of a line.
    """
    where = f"log format {brief(name or text)}"
    server = "gunicorn" if "%(" in text else "nginx" if "$" in text else "Apache"
    variables, end = _variables(text.replace('\\"', '"').replace("\\t", "\t"), server)
    for one, other in pairwise(variables):
        if not other.before and (one.role, other.role) != ("path", "query"):
            raise ConfigurationError(f"{where}: nothing between {one.name} and {other.name}")
    follows_path = any(not other.before for _, other in pairwise(variables))
    no_query = "-" if follows_path and server == "nginx" else ""
    units = {each.role: each.unit for each in reversed(variables)}
    if "at" not in units:
        raise ConfigurationError(f"{where}: no time in it, so nothing could be replayed")
    if not ("request" in units or {"method", "target"} <= units.keys() or {"method", "path"} <= units.keys()):
        raise ConfigurationError(f"{where}: neither the request line nor method and path")

    def reader(zone: tzinfo, wanted: Iterable[str]) -> Read:
        pattern, fields = _pattern(variables, end, {field_name(each): each for each in wanted}, open_end)
        at_end = server != "Apache"  # Apache logs the time at which a request begins
        unit = units.get("took", MICROSECONDS)
        return _reader(pattern, fields, maker(zone, at_end=at_end, unit=unit, no_query=no_query))

    return reader


def expression(text: str) -> MakeReader:
    """The format of a regular expression whose groups are named after the roles and the wanted fields. Raises
    :class:`ConfigurationError`."""
    try:
        own = re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"regular expression {brief(text)}: {error}") from None
    groups = {*own.groupindex}
    if "at" not in groups or not ("request" in groups or ("method" in groups and groups & {"target", "path"})):
        raise ConfigurationError(
            f"regular expression {brief(text)}: name its groups (?P<at>...) and (?P<request>...), or (?P<method>...) "
            f"and (?P<target>...), and what else it has of {', '.join(ROLES)}"
        )

    def reader(zone: tzinfo, wanted: Iterable[str]) -> Read:
        known = {field_name(name): name for name in wanted}
        fields = {group: known[field_name(group)] for group in groups if field_name(group) in known}
        return _reader(own, fields, maker(zone))

    return reader


def _variables(text: str, server: str) -> tuple[list[Variable], str]:
    """The variables, and the text behind the last one."""
    roles = {"nginx": _NGINX, "Apache": _APACHE, "gunicorn": _GUNICORN}[server]
    found, before, end = list[Variable](), "", 0
    for match in _VARIABLE[server].finditer(text):
        before, end = before + text[end : match.start()], match.end()
        directive = match[match.lastindex or 0]
        if directive == "%":
            before += "%"
        elif directive == "t" and server != "nginx":
            found.append(Variable(f"{before}[", "at", "t"))
            before = "]"
        elif directive != "is_args" or before:  # behind a variable, $is_args of nginx is the "?" in the target
            found.append(_variable(before, directive, roles))
            before = ""
    return found, before + text[end:]


def _variable(before: str, directive: str, roles: Mapping[str, Role]) -> Variable:
    braces, unit = _IN_BRACES.fullmatch(directive), _UNITS.get(directive, MICROSECONDS)
    if braces is None:
        return Variable(before, roles.get(directive), field_name(directive), unit)
    name, kind = braces["name"], braces["kind"]
    role = roles.get(f"{{{name.lower()}}}{kind}")
    if kind == "t" and not name.endswith("_frac"):
        role = "at"  # strftime: as far as it is written like ISO 8601 or like %t
    return Variable(before, role, f"cookie_{name.lower()}" if kind == "C" else field_name(name), unit)


def _pattern(
    variables: Sequence[Variable], end: str, wanted: Mapping[str, str], open_end: bool
) -> tuple[re.Pattern[str], dict[str, str]]:
    """The expression, and the wanted name of the field in each of its groups. With an open end, it ends behind the last
    field that is needed: gunicorn does not escape a backslash, so any client can break the quotation of its agent."""
    found, taken, fields = "", set[str](), dict[str, str]()
    needed = [number for number, each in enumerate(variables) if not open_end or each.role or each.name in wanted]
    for number, each in enumerate(variables[: needed[-1] + 1]):
        content = _content(variables, end, number)
        if each.role and each.role not in taken:
            taken.add(each.role)
            content = f"(?P<{each.role}>{content})"
        if each.name in wanted and wanted[each.name] not in fields.values():
            fields[f"field_{number}"] = wanted[each.name]
            content = f"(?P<field_{number}>{content})"
        found += re.escape(each.before) + content
    return re.compile(found if open_end else rf"{found}{re.escape(end)}\Z"), fields


def _content(variables: Sequence[Variable], end: str, number: int) -> str:
    """An expression for the content of a field: all characters until the text that follows."""
    this, following = variables[number], variables[number + 1 :]
    after, behind = [*(each.before for each in following), end, ""][:2]
    if this.is_port:
        return r"<?\d*>?"  # %(p)s of gunicorn is the number of its process, as <4711>
    if this.role == "address" and after == ":" and following and following[0].is_port:
        return rf"[^{_end_marker(behind)}]*"  # an IPv6 address has colons, too
    if following and not after:  # a query, behind its path
        return rf"[^?{_end_marker(behind)}]*"
    if number and not this.before:  # the query, which may be quoted together with its path
        query = _quoted(after[1:]) if variables[number - 1].before.endswith('"') else rf"[^{_end_marker(after)}]*"
        return rf"(?:\?{query})?"
    return _single_content(this, after, behind, is_before_status=bool(following) and following[0].role == "status")


def _single_content(this: Variable, after: str, behind: str, *, is_before_status: bool) -> str:
    """The same for a field with text before and ``after`` it. ``behind`` is the text after the next one."""
    if this.before.endswith('"') and after.startswith('"'):
        return _quoted(after[1:], _STATUS if is_before_status else "")
    if this.role == "status":
        return rf"{_STATUS}+"
    if this.role == "at" and this.before.endswith("[") and after.startswith("]"):
        return r"[^\[\]]*"
    if this.role == "user" and after == " [":  # clients choose it, even where nobody logs in
        return rf"[^\[]*(?:\[(?![^\[\]]*{re.escape(behind)})[^\[]*)*"
    return rf"[^{_end_marker(after)}]*"


def _quoted(behind: str, first: str = "") -> str:
    """All characters until the quotation mark that is followed by the text ``behind``, and a ``first`` character of the
    next field. Other quotation marks may be content: gunicorn escapes them, but not the backslashes before them."""
    what_follows = re.escape(behind) + first
    content = rf'\\.|"(?!{what_follows})' if what_follows else r"\\."
    return rf'[^"\\]*(?:(?:{content})[^"\\]*)*'


def _end_marker(text: str) -> str:
    """The character that best marks where ``text`` begins, so where the field before it ends; a blank for no text."""
    return re.escape(next((character for character in text if character != " "), " "))


_UNESCAPE = [unescaped_url if role in {"request", "target", "path", "query"} else unescaped for role in ROLES]


def _reader(pattern: re.Pattern[str], fields: Mapping[str, str], make: Make) -> Read:
    # The last of the texts, which is empty, stands for the roles that a format does not have.
    matches, roles = pattern.match, itemgetter(*(pattern.groupindex.get(role, 0) - 1 for role in ROLES))

    def read(line: str) -> LoggedRequest | None:
        match = matches(line)
        if match is None:
            return None
        found = roles((*match.groups(""), ""))
        if "\\" in line:
            found = (undo(text) for undo, text in zip(_UNESCAPE, found, strict=True))
        further = NO_FIELDS
        if fields:
            further = {name: unescaped(match[group]) for group, name in fields.items() if match[group] not in MISSING}
        return make(found, further)

    return read


# Lines of JSON, from Caddy, Traefik, nginx, and other servers that use the usual names of fields

Path = Sequence[str]
"""Names of nested fields, the outermost first."""


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The names that each field may have, separated by blanks; of a nested one, with a dot. The first one that is
    present counts."""

    names: Mapping[str, str]
    headers: str = ""
    """The object that contains the header fields, each a list."""
    begins: bool = False
    """Whether the time is the beginning of the request. If so, the duration is in nanoseconds."""

    def reader(self, zone: tzinfo, wanted: Sequence[str]) -> Read:
        """A reader of lines. ``wanted`` are header fields, or paths such as ``request.tls.server_name``."""
        make = maker(zone, at_end=not self.begins, unit=0.001 if self.begins else MICROSECONDS)
        places = {role: [name.split(".") for name in self.names.get(role, "").split()] for role in ROLES}

        def read(line: str) -> LoggedRequest | None:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                return None
            values = {role: _find(entry, paths) for role, paths in places.items()}
            if not self.begins and not _are_seconds(values["took"]):
                values["took"] = None
            found = {role: _text(value) for role, value in values.items()}
            if found["method"] and " " not in found["request"]:  # as Logstash calls the target
                found["request"], found["target"] = "", found["target"] or found["request"]
            if not (found["request"] or (found["method"] and found["target"])):
                return None
            return make(found.values(), _fields(entry, self.headers.split("."), wanted) if wanted else NO_FIELDS)

        return read


CADDY = JsonFormat(
    {
        "at": "ts",
        "took": "duration",
        "address": "request.client_ip request.remote_ip",
        "user": "user_id",
        "method": "request.method",
        "target": "request.uri",
        "host": "request.host",
        "status": "status",
    },
    headers="request.headers",
)
TRAEFIK = JsonFormat(
    {
        "at": "StartUTC StartLocal time",
        "took": "Duration",
        "address": "ClientHost",
        "user": "ClientUsername",
        "method": "RequestMethod",
        "target": "RequestPath",
        "host": "RequestHost RequestAddr",
        "status": "DownstreamStatus OriginStatus",
    },
    begins=True,
)
PLAIN = JsonFormat(
    {
        "at": "msec time_iso8601 time_local ts timestamp @timestamp time date",
        "took": "request_time",
        "address": "remote_addr client_ip remote_ip clientip ip address remote_host client",
        "user": "remote_user user_id user",
        "request": "request",
        "method": "request_method method verb http_method",
        "target": "request_uri uri target path url",
        "host": "http_host host server_name vhost",
        "status": "status status_code response code",
    },
)


def _value_at(entry: Mapping[str, Any], path: Path) -> Any:
    found: Any = entry
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _find(entry: Mapping[str, Any], paths: Iterable[Path]) -> Any:
    for path in paths:
        found = _value_at(entry, path)
        if found is not None and not isinstance(found, dict):
            return found
    return None


def _fields(entry: Mapping[str, Any], headers: Path, wanted: Iterable[str]) -> dict[str, str]:
    """The values of ``wanted``: each found by its path, or as a header field among ``headers`` or at the top."""
    fields = {field_name(name.removeprefix("request_")): value for name, value in entry.items()}
    own = _value_at(entry, headers)
    fields |= {field_name(name): value for name, value in own.items()} if isinstance(own, dict) else {}
    found = {}
    for name in wanted:
        value = _find(entry, [name.split(".")])
        value = fields.get(field_name(name)) if value is None else value
        text = _text(value[0] if isinstance(value, list) and value else value)
        if text not in MISSING:
            found[name] = text
    return found


def _text(value: object) -> str:
    """A value as other servers write it: some programs make 429.0 of a status, and NaN of what is missing."""
    if isinstance(value, float):
        return f"{value:.6f}".removesuffix(".000000") if isfinite(value) else ""
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""


def _are_seconds(value: object) -> bool:
    """Whether a duration looks like seconds: no field name says that a server uses another unit."""
    return isinstance(value, str) or (isinstance(value, float) and 0 <= value < 86_400)


# The formats that have a name

_COMMON = '%h %l %u %t "%r" %>s %b'
_COMBINED = f'{_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"'

FORMATS: Mapping[str, MakeReader] = {
    recorded.NAME: lambda zone, wanted: recorded.read,  # noqa: ARG005
    "caddy": CADDY.reader,
    "traefik": TRAEFIK.reader,
    "json": PLAIN.reader,
    "vhost_combined": format_string(f"%v:%p {_COMBINED}", name="vhost_combined", open_end=True),
    "combined": format_string(_COMBINED, name="combined", open_end=True),
    "common": format_string(_COMMON, name="common", open_end=True),
}
"""By name. If several can read a line, the first one counts. nginx and gunicorn write ``combined`` by default."""

TOLD_APART_BY = ("User-Agent",)
"""The further fields by which formats are recognised: of ``combined`` and ``common``, one alone has it."""
SAMPLE_LINES = 200
"""The number of first lines by which a format is recognised."""


def format_of(text: str) -> MakeReader:
    """The format of this name, or of this format string of a server. Raises :class:`ConfigurationError`."""
    if text in FORMATS:
        return FORMATS[text]
    if "%" in text or "$" in text:
        return format_string(text)
    raise ConfigurationError(
        f"log format {brief(text)}: give one of {', '.join(FORMATS)}, or the format string of nginx, Apache or gunicorn"
    )


def recognised(lines: Iterable[str], zone: tzinfo) -> str | None:
    """The name of the format that reads most of ``lines``; ``None`` if none reads any."""
    sample = list(lines)
    best, most = None, 0
    for name, make_reader in FORMATS.items():
        read = make_reader(zone, TOLD_APART_BY)
        count = sum(_reads(read, line) for line in sample)
        if count > most:
            best, most = name, count
    return best


def _reads(read: Read, line: str) -> bool:
    try:
        return read(line) is not None
    except NoRequestError:
        return True
