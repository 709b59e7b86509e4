"""`local://`: how long its server takes to start, and to come back after it was killed; and the memory of server and
supervisor."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flask_multilimit.engine import Limiter, StorageError, hits_for, storage_from_uri

from .contenders import OURS, PATIENCE
from .results import Figure, median_of
from .setting import Setting

PART = "local"
CASE = "one machine"
HITS = hits_for("1000000/hour", scope="local")


def measure(setting: Setting) -> Iterator[Figure]:
    first, again, memory = zip(*(_life() for _ in range(setting.rounds(20))), strict=True)
    yield median_of(PART, OURS, CASE, "ms of the first check", first)
    yield median_of(PART, OURS, CASE, "ms without a server", again)
    if all(memory):
        yield median_of(PART, OURS, CASE, "MB", memory)


def _life() -> tuple[float, float, float]:
    """For one server: milliseconds of the first check, milliseconds from the kill until a check is answered again, and
    megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        storage: Any = storage_from_uri(f"local://{folder}/shared", timeout=PATIENCE)
        limiter = Limiter(storage)
        try:
            first = _milliseconds_until_answered(limiter)
            server = int(storage.client.info("server")["process_id"])
            memory = sum(map(_megabytes, (server, _parent_of(server))))
            os.kill(server, signal.SIGKILL)
            return first, _milliseconds_until_answered(limiter), memory
        finally:
            limiter.close()


def _milliseconds_until_answered(limiter: Limiter) -> float:
    start = time.perf_counter()
    while time.perf_counter() < start + PATIENCE:
        with suppress(StorageError):
            limiter.check(HITS)
            return 1000 * (time.perf_counter() - start)
    raise RuntimeError(f"no check was answered within {PATIENCE:g} s")


def _parent_of(process: int) -> int:
    return int(_told(process, "status", "PPid"))


def _megabytes(process: int) -> float:
    """Its own memory, and its part of what it shares with others; 0 if the system does not report it."""
    return int(_told(process, "smaps_rollup", "Pss")) / 1024


def _told(process: int, file: str, name: str) -> str:
    """A number; "0" if there is no /proc."""
    try:
        text = Path(f"/proc/{process}/{file}").read_text()
    except OSError:
        return "0"
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return found[1] if found else "0"
