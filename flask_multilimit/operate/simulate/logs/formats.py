"""The formats that have a name, and how the format of a log is recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo

from ....engine import ConfigurationError
from ....engine.errors import brief
from . import recorded
from .json_lines import CADDY, PLAIN, TRAEFIK
from .logged import NoRequestError, Read
from .text import from_expression, from_format_string

MakeReader = Callable[[tzinfo, Sequence[str]], Read]
"""Makes a reader for one file, given the zone of times without an offset and the names of the fields to read."""

_COMMON = '%h %l %u %t "%r" %>s %b'
_COMBINED = f'{_COMMON} "%{{Referer}}i" "%{{User-Agent}}i"'

FORMATS: Mapping[str, MakeReader] = {
    recorded.NAME: lambda zone, wanted: recorded.read,  # noqa: ARG005
    "caddy": CADDY.reader,
    "traefik": TRAEFIK.reader,
    "json": PLAIN.reader,
    "vhost_combined": from_format_string(f"%v:%p {_COMBINED}", name="vhost_combined", open_end=True).reader,
    "combined": from_format_string(_COMBINED, name="combined", open_end=True).reader,
    "common": from_format_string(_COMMON, name="common", open_end=True).reader,
}
"""By name. If several can read a line, the first one counts. nginx and gunicorn write ``combined`` by default."""

LOOKED_AT = 200
"""The number of lines by which a format is recognised."""


def format_of(text: str) -> MakeReader:
    """The format of this name, or of this format string of a server. Raises :class:`ConfigurationError`."""
    if text in FORMATS:
        return FORMATS[text]
    if "%" in text or "$" in text:
        return from_format_string(text).reader
    raise ConfigurationError(
        f"log format {brief(text)}: give one of {', '.join(FORMATS)}, or the format string of nginx, Apache or gunicorn"
    )


def expression(text: str) -> MakeReader:
    """A format given as a regular expression."""
    return lambda zone, wanted: from_expression(text, zone, wanted)


def recognised(lines: Iterable[str], zone: tzinfo) -> str | None:
    """The name of the format that reads most of ``lines``; ``None`` if none reads any."""
    sample = list(lines)
    best, most = None, 0
    for name, make_reader in FORMATS.items():
        read = make_reader(zone, ())
        count = sum(_reads(read, line) for line in sample)
        if count > most:
            best, most = name, count
    return best


def _reads(read: Read, line: str) -> bool:
    try:
        return read(line) is not None
    except NoRequestError:
        return True
