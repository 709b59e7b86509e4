"""The newest requests that recorders wrote: all since some instant, as many as a reader has time for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from os import SEEK_END
from pathlib import Path

from .logs import recorded
from .logs.formats import format_of
from .logs.logged import MICROSECONDS
from .logs.reading import Logs

ACTIVE = 60 * MICROSECONDS
"""If a file was written to at most this long before the newest one, another process may still be writing to it."""


def newest_requests(folders: Iterable[Path], into: Path, most_bytes: int) -> Logs:
    """The requests that were recorded last, at most ``most_bytes`` of them. What is needed is copied to ``into``.

    Each process writes its own file. So this takes the end of each file, and leaves out all requests before the
    instant from which on the ends are complete.
    """
    written = sorted(_written(folders), reverse=True)
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
    return Logs(paths, format_of(recorded.NAME), since=since)


def _written(folders: Iterable[Path]) -> Iterator[tuple[int, Path]]:
    """The instant at which each file was last written to, and its path."""
    for path in (path for folder in folders for path in folder.glob(recorded.FILES)):
        with suppress(FileNotFoundError):  # its recorder has just made room
            yield path.stat().st_mtime_ns // 1000, path


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
    read = (recorded.read(line.decode("utf-8", "replace")) for line in lines.splitlines())
    return next((request.at for request in read if request), None)
