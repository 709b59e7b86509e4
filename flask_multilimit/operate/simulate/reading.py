"""Turns files into requests in order of time: opens, unpacks, cuts into lines, reads, sorts and merges them."""

from __future__ import annotations

import codecs
import gzip
import heapq
import importlib
import io
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...engine import ConfigurationError
from ...engine.errors import brief, check_path, check_several, check_text
from ...engine.text import LONGEST_LINE
from .formats import LOOKED_AT, MakeReader, format_of, recognised
from .logged import MICROSECONDS, LoggedRequest, NoRequestError, Read

STANDARD_INPUT = "-"
BLOCK = 1 << 18
"""The number of bytes to read at once."""
HOLD = 60
"""Lines may be out of order by up to this many seconds, because servers write a line when a request ends."""
LEAST_HELD = 5_000
MOST_HELD = 100_000
"""The most lines that wait to be sorted. For a moment, there may be twice as many."""
LATEST = 10**17
"""Microseconds since 1970. No calendar and no screen has to show an instant from then on, in the year 5138."""
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
    """Requests more than :data:`HOLD` seconds behind others. They are replayed as early as possible."""
    outside: int = 0
    """Requests before ``since`` or after ``until``."""
    broken: str = ""
    """Why the file could not be read to its end."""

    def problems(self) -> list[LeftOut]:
        counted = [
            LeftOut("not in the format", self.malformed),
            LeftOut("without a request", self.not_requests),
            LeftOut("too long", self.too_long),
            LeftOut("out of order by more than a minute", self.late),
        ]
        broken = [LeftOut(f"not read to its end: {self.broken}", 0)] if self.broken else []
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

    def __iter__(self) -> Iterator[LoggedRequest]:
        self.files = [LogFile(str(path)) for path in self.paths]
        with ExitStack() as stack:
            opened = [stack.enter_context(self._opened(path)) for path in self.paths]
            streams = [_InOrder(file, self).requests(source) for file, source in zip(self.files, opened, strict=True)]
            yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=_at)

    @contextmanager
    def _opened(self, path: str | Path) -> Iterator[io.BufferedReader]:
        if str(path) == STANDARD_INPUT:
            given: Any = sys.stdin.buffer
            file = io.BufferedReader(getattr(given, "raw", given))
        else:
            try:
                file = Path(path).open("rb")  # noqa: SIM115 - closed below
            except OSError as error:
                raise ConfigurationError(f"{path}: {error.strerror}") from error
        try:
            yield file
        finally:
            if str(path) == STANDARD_INPUT:
                file.detach()
            else:
                file.close()


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
    :param fields: the names of further fields that have a subject, such as ``X-Api-Key``.
    """
    for path in paths:
        check_path("read_logs: path", path)
    if format is not None:
        check_text("format", format)
    if not isinstance(zone, tzinfo):
        raise ConfigurationError(f"zone={brief(zone)}: give a tzinfo, such as ZoneInfo('Europe/Berlin')")
    check_several("fields", fields)
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
            return module.ZstdDecompressor().stream_reader(source, read_across_frames=True, closefd=False)
        return module.ZstdFile(source)
    raise ConfigurationError(
        "a log compressed by zstd: pip install 'flask-multilimit[zstd]', or unpack it: zstd -dc FILE |"
    )


class _InOrder:
    """The requests of one file, in order of time."""

    def __init__(self, file: LogFile, logs: Logs) -> None:
        self._file = file
        self._logs = logs
        self._held: list[LoggedRequest] = []
        self._enough = 0
        """The number of held requests from which on sorting pays."""
        self._newest = 0

    def requests(self, source: io.BufferedReader) -> Iterator[LoggedRequest]:
        read: Read | None = None
        blocks = _blocks(source, self._file, self._logs.on_read)
        for lines in _blocks_of_lines(blocks, self._file, self._logs.most_bytes):
            read = read or self._reader(lines)
            if read is None:
                self._file.malformed += len(lines)
                return
            self._hold(lines, read)
            yield from self._due()
        self._held.sort(key=_at)
        yield from self._held

    def _reader(self, lines: list[str]) -> Read | None:
        logs, file = self._logs, self._file
        if logs.make_reader is not None:
            file.format = "as given"
            return logs.make_reader(logs.zone, logs.wanted)
        file.format = recognised((line for line in lines[:LOOKED_AT] if line), logs.zone)
        return None if file.format is None else format_of(file.format)(logs.zone, logs.wanted)

    def _hold(self, lines: list[str], read: Read) -> None:
        """Read ``lines``, and hold their requests until no earlier one can follow."""
        file, hold, held = self._file, HOLD * MICROSECONDS, self._held.append
        since, until, newest = self._logs.since, self._logs.until, self._newest
        read_before = len(self._held)
        for line in lines:
            try:
                request = read(line)
            except NoRequestError:
                file.not_requests += 1
                continue
            if request is None or not 0 <= request[0] < LATEST:
                file.malformed += bool(line.strip()) and not line.startswith("#")
                continue
            at = request[0]
            if (since is not None and at < since) or (until is not None and at >= until):
                file.outside += 1
                continue
            if at > newest:
                newest = at
            elif at < newest - hold:
                file.late += 1
                request = request._replace(at=newest - hold)
            held(request)
        self._newest = newest
        file.requests += len(self._held) - read_before

    def _due(self) -> Iterator[LoggedRequest]:
        held = self._held
        if len(held) < self._enough:
            return
        held.sort(key=_at)
        due = bisect_left(held, self._newest - HOLD * MICROSECONDS, key=_at)
        due = max(due, len(held) - MOST_HELD)
        yield from islice(held, due)
        del held[:due]
        self._enough = min(2 * len(held) + LEAST_HELD, 2 * MOST_HELD)


def _blocks(source: io.BufferedReader, file: LogFile, on_read: Callable[[int], object] | None) -> Iterator[bytes]:
    """Unpacked blocks, each as soon as it has arrived: a pipe may be slow. Ends before what cannot be read."""
    raw, before = _unpacked(source), 0
    while True:
        try:
            data = raw.read1(BLOCK)
        except Exception as error:
            if not isinstance(error, _DAMAGED) and type(error).__name__ != "ZstdError":  # either module has its own
                raise
            file.broken = str(error) or type(error).__name__
            data = b""
        if on_read is not None:
            on_read(source.tell() - before)
            before = source.tell()
        if not data:
            return
        yield data


def _blocks_of_lines(blocks: Iterator[bytes], file: LogFile, most_bytes: int | None) -> Iterator[list[str]]:
    """Lines without line ends, many at once. Lines that are too long are counted and dropped, never held in memory."""
    cut, left = _Lines(file), most_bytes
    for data in blocks:
        if lines := cut.lines_of(data[:left]):
            yield lines
        if left is not None:
            left -= len(data)
            if left < 0:
                file.broken = f"only its first {most_bytes:,} bytes are read"
                return
    if lines := cut.last():
        yield lines


class _Lines:
    """Cuts blocks of text into lines."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        # Bytes that are not UTF-8 stay distinct and raise no error.
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._rest = ""
        self._skipping = False

    def lines_of(self, data: bytes) -> list[str]:
        return self._cut(self._decoder.decode(data))

    def last(self) -> list[str]:
        """The last line, if no line end follows it."""
        text = self._decoder.decode(b"", final=True)
        return self._cut(f"{text}\n") if self._rest or text or self._skipping else []

    def _cut(self, text: str) -> list[str]:
        lines = (self._rest + text).split("\n")
        self._rest = lines.pop()
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        if len(self._rest) > LONGEST_LINE:
            self._file.too_long += not self._skipping
            self._file.lines += not self._skipping
            self._rest, self._skipping = "", True
        self._file.lines += len(lines)
        if max(map(len, lines), default=0) > LONGEST_LINE:
            short = [line for line in lines if len(line) <= LONGEST_LINE]
            self._file.too_long += len(lines) - len(short)
            lines = short
        return [line.rstrip("\r") for line in lines] if "\r" in text else lines
