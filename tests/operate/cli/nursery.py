"""Runs `flask` commands in children of a process that has imported Flask and the extension.

So what takes longest is done once. A child ends as every interpreter does, which tells what was left open.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Mapping

FORKS = Path(__file__).with_name("forks.py")
# Before 5.1, redis-py leaves the socket open when it cannot connect to a unix socket.
WARNINGS = "error" if redis.VERSION >= (5, 1) else "error,ignore::ResourceWarning"


def run(arguments: list[str], environment: Mapping[str, str], typed: str = "") -> tuple[int, str, str]:
    """The exit code of ``python -m flask`` with these arguments, and what it has written to either stream."""
    with tempfile.TemporaryDirectory(prefix="multilimit-") as folder:
        streams = [Path(folder, name) for name in ("in", "out", "err")]
        for stream in streams:
            stream.write_text(typed if stream.name == "in" else "")
        code = _ask([arguments, dict(environment), [str(stream) for stream in streams]])
        return code, streams[1].read_text(), streams[2].read_text()


def _ask(command: list[object]) -> int:
    forks: Any = _forks()
    forks.stdin.write(f"{json.dumps(command)}\n")
    forks.stdin.flush()
    return int(forks.stdout.readline())


@functools.cache
def _forks() -> subprocess.Popen[str]:
    """Which ends when its input does: with the tests, however they end."""
    environment = {**os.environ, "PYTHONWARNINGS": WARNINGS}
    command = [sys.executable, str(FORKS)]
    forks = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(forks.communicate)
    return forks
