"""The format of our own recorder, one line of JSON for each request: writes and reads it."""

from __future__ import annotations

import json
from pathlib import Path

from flask import Flask

from .logged import LoggedRequest, Recorded
from .words import checked_method

NAME = "recorded"
FOLDERS = "multilimit_recorded"
"""Where ``app.extensions`` has the folders in which requests of the app are recorded."""
FILES = "requests-*.jsonl"
"""The files in such a folder."""

_VERDICTS = {1: True, 0: False}


def folders_of(app: Flask) -> list[Path]:
    """The folders to which recorders of ``app`` write, in any of its processes."""
    folders: list[Path] = app.extensions.setdefault(FOLDERS, [])
    return folders


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
    return json.dumps(entry, separators=(",", ":"))


def read(line: str) -> LoggedRequest | None:
    """The request in one line; ``None`` if it is no such line."""
    try:
        entry = json.loads(line)
        at, method, endpoint, status = entry["at"], entry["m"], entry["e"], entry["s"]
        subjects, admitted, took = entry.get("w", {}), _VERDICTS.get(entry.get("ok", -1)), entry.get("d")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    well = isinstance(at, int) and isinstance(method, str) and isinstance(status, int) and isinstance(subjects, dict)
    if not (well and (endpoint is None or isinstance(endpoint, str))):
        return None
    lasted = took if isinstance(took, int) and took >= 0 else None
    recorded = Recorded(endpoint, {str(type_): str(value) for type_, value in subjects.items()}, admitted)
    return LoggedRequest(at, checked_method(method), "", status=status, recorded=recorded, took=lasted)
