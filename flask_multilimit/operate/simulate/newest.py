"""The newest of what recorders wrote: all requests since an instant, as many as a reader has time for."""

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
"""A file that was written to so shortly before the newest one may be another process's, which serves beside it."""


def newest_requests(folders: Iterable[Path], into: Path, most_bytes: int) -> Logs:
    """The requests that were recorded last, of at most ``most_bytes``. What is needed is copied to ``into``.

    Processes write files of their own, side by side. So it takes the end of each, and leaves out what came before the
    latest instant from which on it has all of them.
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
    """Each file, after the instant at which it was last written to."""
    for path in (path for folder in folders for path in folder.glob(recorded.FILES)):
        with suppress(FileNotFoundError):  # its recorder has just made room
            yield path.stat().st_mtime_ns // 1000, path


def _end_of(path: Path, most_bytes: int) -> tuple[bytes, bool]:
    """The last lines, and whether they are all that there are."""
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
