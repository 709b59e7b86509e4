"""What an import adds to the start of a process that imports Flask and redis-py anyway, by whole processes in turn."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from .contenders import OURS
from .results import Figure, median_of
from .setting import Setting

PART = "startup"
CASE = "import"
BASE = "flask and redis alone"
PROGRAMS = {
    BASE: "import flask, redis",
    OURS: "import flask, redis, flask_multilimit\nfrom flask_multilimit.engine import GuardedStorage, RedisStorage",
    "pydantic, with one model of one field": (
        "import flask, redis, pydantic\nclass Model(pydantic.BaseModel): field: int"
    ),
    "Flask-Limiter": "import flask, redis, flask_limiter",
    "the bridge from it": "import flask, redis, flask_multilimit.compat.flask_limiter",
    "throttled-py": "import flask, redis, throttled",
    "pyrate-limiter": "import flask, redis, pyrate_limiter",
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Otherwise each process would compile packages that pip did not install again, but not the others."""


class Process(NamedTuple):
    """Milliseconds of one process."""

    wall: float
    cpu: float


def measure(setting: Setting) -> Iterator[Figure]:
    taken: dict[str, list[Process]] = {who: [] for who in PROGRAMS}
    order = list(PROGRAMS)
    draw = random.Random(1)
    for number in range(setting.rounds(30) + 1):
        draw.shuffle(order)
        for who in order:
            process = _run(PROGRAMS[who])
            if number:  # the first round writes the compiled files
                taken[who].append(process)
    for who, each in taken.items():
        yield median_of(PART, who, CASE, "ms", (process.wall for process in each))
        if who != BASE:
            both = list(zip(each, taken[BASE], strict=True))
            yield median_of(PART, who, CASE, "ms more", (process.wall - base.wall for process, base in both))
            yield median_of(PART, who, CASE, "CPU ms more", (process.cpu - base.cpu for process, base in both))


def _run(program: str) -> Process:
    wall, cpu = time.perf_counter(), _cpu_of_children()
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT)
    return Process(1000 * (time.perf_counter() - wall), 1000 * (_cpu_of_children() - cpu))


def _cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system
