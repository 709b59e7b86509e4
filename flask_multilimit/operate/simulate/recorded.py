"""What recorders write, one line of JSON for each request: how a line is written and read, and which are the newest."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from os import SEEK_END
from pathlib import Path
from typing import NamedTuple

from flask import Flask

from ...engine.algorithms.base import COUNTED
from ...serve.access import Action
from .logged import MICROSECONDS, LoggedRequest, Recorded, checked_method

NAME = "recorded"
RECORDINGS = "multilimit_recorded"
"""Where ``app.extensions`` has what :func:`recordings_of` returns."""
FILES = "requests-*.jsonl"
"""The files that recorders write into their folder."""
SEGMENTS = 8
"""Files that share the allowed bytes."""
RECORD_UNTIL = "record-until"
"""The file in that folder whose time of modification says until when requests are wanted."""

_VERDICTS = {1: True, 0: False}
_LISTS: Mapping[object, Action] = {"allow": "allow", "deny": "deny"}


class Recording(NamedTuple):
    """What a recorder writes, in any process of the app."""

    folder: Path
    hashed: Callable[[str], str]
    """Returns what a line has in place of a subject."""
    on_demand: bool = False
    """Whether requests are recorded only while somebody wants them."""

    @property
    def record_until(self) -> float:
        """Until when requests are wanted: POSIX time; 0 if they never were. Raises OSError."""
        try:
            return (self.folder / RECORD_UNTIL).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def ask(self, until: float) -> None:
        """Ask all processes to record requests until then. Raises OSError."""
        marker = self.folder / RECORD_UNTIL
        marker.touch()
        os.utime(marker, (until, until))


def recordings_of(app: Flask) -> list[Recording]:
    """What the recorders of ``app`` write."""
    recordings: list[Recording] = app.extensions.setdefault(RECORDINGS, [])
    return recordings


class Segments:
    """The files that one process writes into a folder. The oldest of all files there is deleted to make room."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._last: Path | None = None

    def write(self, lines: bytes) -> None:
        """Append to the last file, or begin another. Raises OSError."""
        self._make_room(len(lines))
        path = self._last
        if path is None or not path.exists() or path.stat().st_size + len(lines) > self._max_bytes // SEGMENTS:
            path = self._last = self._folder / f"requests-{time.time_ns() // 1000:016d}-{os.getpid()}.jsonl"
        with path.open("ab") as file:
            file.write(lines)

    def _make_room(self, size: int) -> None:
        files = sorted(_files_in([self._folder]))
        used = sum(found.st_size for _, found in files)
        for path, found in files:
            if used + size <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            used -= found.st_size


def line_of(request: LoggedRequest) -> str:
    """One line, without a line end. Raises ValueError for a request that was not recorded."""
    recorded = request.recorded
    if recorded is None:
        raise ValueError(f"not recorded: {request!r}")
    entry = {"at": request.at, "m": request.method, "e": recorded.endpoint, "s": request.status}
    if request.took is not None:
        entry["d"] = request.took
    if recorded.subjects:
        entry["w"] = dict(recorded.subjects)
    if recorded.admitted is not None:
        entry["ok"] = int(recorded.admitted)
    if recorded.costs:
        entry["c"] = dict(recorded.costs)
    if recorded.listed:
        entry["l"] = recorded.listed
    return json.dumps(entry, separators=(",", ":"))


def read(line: str) -> LoggedRequest | None:
    """The request in one line; ``None`` if the line is something else."""
    try:
        entry = json.loads(line)
        at, method, endpoint, status = entry["at"], entry["m"], entry["e"], entry["s"]
        subjects, admitted, took = entry.get("w", {}), _VERDICTS.get(entry.get("ok", -1)), entry.get("d")
        costs, listed = entry.get("c", {}), _LISTS.get(entry.get("l"))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    valid = isinstance(at, int) and isinstance(method, str) and isinstance(status, int) and isinstance(subjects, dict)
    if not (valid and isinstance(costs, dict) and (endpoint is None or isinstance(endpoint, str))):
        return None
    duration = took if isinstance(took, int) and took >= 0 else None
    known = {name: units for name, units in costs.items() if type(units) is int and 0 <= units <= COUNTED}
    named = {str(type_): str(value) for type_, value in subjects.items()}
    recorded = Recorded(endpoint, named, admitted, known, listed)
    return LoggedRequest(at, checked_method(method), "", status=status, recorded=recorded, took=duration)


# The newest

ACTIVE = 60 * MICROSECONDS
"""If a file was written to at most this long before the newest one, another process may still be writing to it."""


def newest_files(folders: Iterable[Path], into: Path, most_bytes: int) -> tuple[list[Path], int]:
    """Copies, in the folder ``into``, of the requests that were recorded last, at most ``most_bytes``; and the instant
    since which they are complete. Each process writes its own file, so this takes the end of each file."""
    written = sorted(((found.st_mtime_ns // 1000, path) for path, found in _files_in(folders)), reverse=True)
    active = sum(at >= written[0][0] - ACTIVE for at, _ in written) if written else 1
    share, left, since, paths = most_bytes // active, most_bytes, 0, list[Path]()
    for at, path in written:
        if at <= since:
            break
        if not left:
            since = max(since, at)
            break
        end, is_whole = _end_of(path, min(share, left))
        left -= len(end)
        if not is_whole:
            since = max(since, _first_instant(end) or at)
        paths.append(into / f"{len(paths)}.jsonl")
        paths[-1].write_bytes(end)
    return paths, since


def _files_in(folders: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in (path for folder in folders for path in folder.glob(FILES)):
        with suppress(FileNotFoundError):  # its recorder has just deleted it, to make room
            yield path, path.stat()


def _end_of(path: Path, most_bytes: int) -> tuple[bytes, bool]:
    """The last lines, and whether they are the whole file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            file.seek(max(size - most_bytes, 0))
            if size > most_bytes:
                file.readline()
            return file.read(most_bytes), size <= most_bytes
    except FileNotFoundError:
        return b"", True


def _first_instant(lines: bytes) -> int | None:
    requests = (read(line.decode("utf-8", "replace")) for line in lines.splitlines())
    return next((request.at for request in requests if request), None)
