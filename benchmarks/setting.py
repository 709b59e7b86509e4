"""The setting of the benchmarks: how long they run, on what server, on what machine."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .environment import ROOT
from .measure import pinned

sys.path.append(str(ROOT / "tests"))

from support.servers import Binary, Server, find_binaries

SHOWN = (
    *("flask", "redis", "hiredis", "pydantic", "gunicorn"),
    *("flask-limiter", "limits", "throttled-py", "pyrate-limiter"),
)
"""Packages whose versions the documentation shows."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How much time there is, and whether client and server are put on one core."""

    quick: bool = False
    pinned: bool = True

    def rounds(self, full: int) -> int:
        return max(full // 10, 4) if self.quick else full

    @contextlib.contextmanager
    def server(self) -> Iterator[Server]:
        """An empty server, with TCP and a unix socket."""
        with Server(next(iter(find_binaries().values())), tcp=True) as server:
            yield server

    @contextlib.contextmanager
    def server_on_one_core(self) -> Iterator[Server]:
        with self.server() as server, pinned(server.pid) if self.pinned else contextlib.nullcontext():
            yield server

    def machine(self) -> dict[str, Any]:
        return {
            "date": datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d"),
            "quick": self.quick,
            "pinned": self.pinned,
            "server": next(iter(find_binaries())),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
            "processor": _processor(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "versions": {name: _version(name) for name in SHOWN},
        }


def servers(kinds: Sequence[str]) -> dict[str, Server]:
    """One server of each of ``kinds``, such as "Redis 7", not started yet; kinds that this machine lacks are left
    out."""
    system = shutil.which("redis-server")
    there = [*find_binaries().values(), *([Binary.at(Path(system))] if system else [])]
    named = {_kind_of(binary.name): binary for binary in reversed(there)}
    return {kind: Server(named[kind], tcp=True) for kind in kinds if kind in named}


def _kind_of(name: str) -> str:
    kind, _, version = name.partition("-")
    return f"{kind.capitalize()} {version.partition('.')[0]}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    """The name of the processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
