"""Turns files into requests in order of time: opens, unpacks, cuts into lines, reads, sorts and merges them."""

from __future__ import annotations

import gzip
import heapq
import importlib
import io
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...engine import ConfigurationError
from ...engine.errors import brief, check_iterable, check_path, check_text
from ...engine.text import LONGEST_LINE, Phrase
from .formats import SAMPLE_LINES, MakeReader, format_of, recognised
from .logged import MICROSECONDS, LoggedRequest, NoRequestError, Read

STANDARD_INPUT = "-"
HOLD = 60
"""Lines may be out of order by up to this many seconds, because servers write a line when a request ends."""
LEAST_HELD = 500
MOST_HELD = 100_000
"""The most lines that wait to be sorted. For a moment, there may be twice as many."""
LATEST = 10**17
"""Microseconds since 1970, in the year 5138. Lines with later instants are malformed, so no screen has to show them."""
LONGEST = 7 * 86_400 * MICROSECONDS
"""The longest time that a request can have taken. A replay would renew the slots of others for years."""
PACKED_AT_ONCE = 256
"""The bytes of zstd that are unpacked at once: at most to 8 MB."""
_DAMAGED = (OSError, EOFError, zlib.error)
_at = itemgetter(0)


@dataclass(frozen=True)
class LeftOut:
    """Lines that were not read, or not exactly."""

    why: str
    lines: int
    """0: it is not known how many."""


@dataclass(slots=True)
class LogFile:
    """What was found in one file."""

    name: str
    format: str | None = None
    """``None`` if no format reads any of the first lines."""
    lines: int = 0
    requests: int = 0
    not_requests: int = 0
    """Connections on which no request came."""
    malformed: int = 0
    """Lines that are not in the format."""
    too_long: int = 0
    late: int = 0
    """Requests more than :data:`HOLD` seconds, or :data:`MOST_HELD` requests, behind others. They are replayed as early
    as possible."""
    outside: int = 0
    """Requests before ``since`` or after ``until``."""
    broken: str = ""
    """Why the file could not be read to its end."""

    def problems(self) -> list[LeftOut]:
        counted = [
            LeftOut(Phrase("not in the format"), self.malformed),
            LeftOut(Phrase("without a request"), self.not_requests),
            LeftOut(Phrase("too long"), self.too_long),
            LeftOut(Phrase("out of order by more than a minute"), self.late),
        ]
        broken = [LeftOut(Phrase("not read to its end: {why}", why=self.broken), 0)] if self.broken else []
        return [*(each for each in counted if each.lines), *broken]


@dataclass
class Logs:
    """The requests of some files, in order of time. Each iteration reads the files again, except standard input."""

    paths: Sequence[str | Path]
    make_reader: MakeReader | None = None
    """``None`` to recognise the format of each file."""
    zone: tzinfo = timezone.utc
    """The zone of times without an offset."""
    wanted: Sequence[str] = ()
    """The names of further fields to read."""
    since: int | None = None
    until: int | None = None
    most_bytes: int | None = None
    """The most bytes to read from each file after unpacking. The rest is left out."""
    files: list[LogFile] = field(default_factory=list)
    """What was found in each file, after reading."""
    on_read: Callable[[int], object] | None = None
    """Called with the number of bytes of each block that is read from disk."""
    complete: bool = True
    """Set to ``False``, no further line is read. Requests that were read are still passed on."""

    def __iter__(self) -> Iterator[LoggedRequest]:
        self.files = [LogFile(str(path)) for path in self.paths]
        with ExitStack() as stack:
            opened = [stack.enter_context(_opened(path)) for path in self.paths]
            streams = [
                _in_order(_requests(source, file, self), file) for file, source in zip(self.files, opened, strict=True)
            ]
            yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_at)


def _opened(path: str | Path) -> AbstractContextManager[io.BufferedReader]:
    if str(path) == STANDARD_INPUT and sys.stdin is not None:  # it may have been closed
        given: Any = sys.stdin.buffer
        return nullcontext(given if isinstance(given, io.BufferedReader) else io.BufferedReader(given))
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def read_logs(
    *paths: str | Path,
    format: str | None = None,  # noqa: A002 - the word of all servers
    zone: tzinfo = timezone.utc,
    fields: Sequence[str] = (),
) -> Logs:
    """The requests of access logs, in order of time.

    :param paths: files, which may be packed (``.gz``, ``.zst``); ``-`` is the standard input.
    :param format: a name in :data:`.FORMATS`, or a format string of nginx, Apache or gunicorn. By default, the format
        is recognised.
    :param zone: the zone of times without an offset.
    :param fields: the names of further fields to read. Those that :func:`simulate` and :func:`suggest` are given are
        read in any case.
    """
    for path in paths:
        check_path("read_logs: path", path)
    if format is not None:
        check_text("format", format)
    if not isinstance(zone, tzinfo):
        raise ConfigurationError(f"zone={brief(zone)}: give a tzinfo, such as ZoneInfo('Europe/Berlin')")
    check_iterable("fields", fields)
    fields = tuple(fields)
    for each in fields:
        check_text("fields", each)
    return Logs(paths, None if format is None else format_of(format), zone, fields)


def _unpacked(source: io.BufferedReader) -> Any:
    magic = source.peek(4)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=source)
    if not magic.startswith(b"\x28\xb5\x2f\xfd"):
        return source
    for name in ("compression.zstd", "zstandard"):  # of Python 3.14; of PyPI
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        if name == "zstandard":
            return _ZstdFrames(source, module.ZstdDecompressor().decompressobj)
        return module.ZstdFile(source)
    unpack = "a log compressed by zstd: pip install 'flask-multilimit[zstd]', or unpack it: zstd -dc FILE |"
    raise ConfigurationError(Phrase(unpack))


class _ZstdFrames:
    """Unpacks frames of zstd. The reader of PyPI's module takes the end of a truncated file for its end."""

    def __init__(self, source: io.BufferedReader, new_frame: Callable[[], Any]) -> None:
        self._source = source
        self._new_frame = new_frame
        self._frame: Any = None
        self._packed = b""

    def read1(self, size: int = -1, /) -> bytes:  # noqa: ARG002 - nobody knows how much a part unpacks to
        data = b""
        while not data:
            self._packed = self._packed or self._source.read1(PACKED_AT_ONCE)
            if self._frame is None:
                if not self._packed:
                    break
                self._frame = self._new_frame()
            elif not self._packed:
                raise EOFError("Compressed file ended before the end of a frame")
            data = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        return data


class _Unpacking(io.BufferedIOBase):
    """Unpacks a file, each block as soon as it arrives, because a pipe may be slow. Ends before what cannot be read."""

    def __init__(self, source: io.BufferedReader, file: LogFile, logs: Logs) -> None:
        self._source, self._raw, self._file = source, _unpacked(source), file
        self._on_read, self._most, self._left = logs.on_read, logs.most_bytes, logs.most_bytes

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        before = 0 if self._on_read is None else self._source.tell()
        try:
            data: bytes = self._raw.read1(size)
        except Exception as error:
            if not isinstance(error, _DAMAGED) and type(error).__name__ != "ZstdError":  # either module has its own
                raise
            self._file.broken, data = str(error) or type(error).__name__, b""
        if self._on_read is not None:
            self._on_read(self._source.tell() - before)
        if self._left is not None:
            if len(data) > self._left:
                self._file.broken, data = f"only its first {self._most:,} bytes are read", data[: self._left]
            self._left -= len(data)
        return data


def _lines(source: io.BufferedReader, file: LogFile, logs: Logs) -> Iterator[str]:
    """Lines without line ends. Those that are too long are counted and dropped, never held in memory."""
    # Bytes that are not UTF-8 stay distinct and raise no error.
    unpacked: Any = _Unpacking(source, file, logs)
    text = io.TextIOWrapper(unpacked, "utf-8-sig", "surrogateescape", newline="\n")
    while logs.complete and (line := text.readline(LONGEST_LINE + 1)):
        is_too_long = len(line) > LONGEST_LINE and not line.endswith("\n")
        while is_too_long and line and not line.endswith("\n"):
            line = text.readline(LONGEST_LINE)
        if file.broken and not line.endswith("\n"):
            return
        file.lines += 1
        if is_too_long:
            file.too_long += 1
        else:
            yield line.rstrip("\r\n")


def _requests(source: io.BufferedReader, file: LogFile, logs: Logs) -> Iterator[LoggedRequest]:
    """The requests that are wanted, in the order of their lines."""
    lines, since, until = _lines(source, file, logs), logs.since, logs.until
    first = list(islice(lines, SAMPLE_LINES))
    read = _reader(first, file, logs)
    if read is None:
        file.malformed += len(first)
        return
    for line in chain(first, lines):
        try:
            request = read(line)
        except NoRequestError:
            file.not_requests += 1
            continue
        if request is None or not 0 <= request.at < LATEST:
            file.malformed += bool(line.strip()) and not line.startswith("#")
        elif (since is not None and request.at < since) or (until is not None and request.at >= until):
            file.outside += 1
        elif request.took is None or 0 <= request.took <= LONGEST:
            yield request
        else:
            yield request._replace(took=None)


def _reader(lines: list[str], file: LogFile, logs: Logs) -> Read | None:
    if logs.make_reader is not None:
        file.format = "as given"
        return logs.make_reader(logs.zone, logs.wanted)
    file.format = recognised(filter(None, lines), logs.zone)
    return None if file.format is None else format_of(file.format)(logs.zone, logs.wanted)


def _in_order(requests: Iterable[LoggedRequest], file: LogFile) -> Iterator[LoggedRequest]:
    """The requests of one file, in order of time. One that comes too late gets the earliest possible time."""
    held, enough = list[LoggedRequest](), LEAST_HELD  # so many make sorting worthwhile
    newest = passed_on = 0
    for request in requests:
        at, oldest = request.at, max(newest - HOLD * MICROSECONDS, passed_on)
        if at < oldest:
            file.late += 1
            request = request._replace(at=oldest)  # noqa: PLW2901
        newest = max(newest, at)
        file.requests += 1
        held.append(request)
        if len(held) >= enough:
            held.sort(key=_at)
            due = max(bisect_left(held, newest - HOLD * MICROSECONDS, key=_at), len(held) - MOST_HELD)
            if due:  # no earlier one can come any more
                passed_on = held[due - 1].at
            yield from islice(held, due)
            del held[:due]
            enough = min(2 * len(held) + LEAST_HELD, 2 * MOST_HELD)
    held.sort(key=_at)
    yield from held
