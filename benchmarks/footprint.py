"""The bytes that a unit in a sliding window takes, on a server and in memory, and the bytes of everything that is kept
for a subject, by algorithm."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

from flask_multilimit.engine.algorithms import ALGORITHMS

from . import memory_per_subject
from .contenders import OURS, case_of, in_memory, on_a_server
from .measure import Call, Variant
from .results import Figure
from .setting import Setting

PART = "footprint"
UNITS = (128, 10_000)
EXACT = (
    OURS,
    "limits moving window",
    "pyrate-limiter (all rates of one key)",
    "four redis-py calls a rule, not atomic",
)
"""The contenders that keep every unit."""


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server() as server, on_a_server(server.tcp_url) as calls:
        client = server.client()
        for who in EXACT:
            for units in UNITS:
                client.flushall()
                _fill(calls[Variant(who, case_of(1))], units)
                yield Figure(PART, who, case_with(units), "bytes a unit on a server", round(_bytes(client) / units, 1))
        client.flushall()
        for algorithm in ALGORITHMS:
            for units in memory_per_subject.UNITS:
                on_server = memory_per_subject.on_server(client, algorithm, units)
                yield Figure(PART, algorithm, case_used(units), "bytes on a server", on_server)
                here = memory_per_subject.in_memory(algorithm, units)
                yield Figure(PART, algorithm, case_used(units), "bytes in memory", here)
    few, many = UNITS
    ours = memory_per_subject.in_memory("sliding_window", many) - memory_per_subject.in_memory("sliding_window", few)
    yield Figure(PART, OURS, case_with(many), "bytes a unit in memory", round(ours / (many - few), 1))
    theirs = _traced(few, many)
    yield Figure(PART, "limits moving window", case_with(many), "bytes a unit in memory", round(theirs, 1))


def _fill(call: Call, units: int) -> None:
    for _ in range(units):
        call()


def _bytes(client: Any) -> int:
    return sum(int(client.memory_usage(key, samples=0) or 0) for key in client.scan_iter())


def _traced(few: int, many: int) -> float:
    tracemalloc.start()
    call = in_memory()[Variant("limits moving window", case_of(1))]
    _fill(call, few)
    before = memory_per_subject.traced()
    _fill(call, many - few)
    used = memory_per_subject.traced() - before
    tracemalloc.stop()
    return used / (many - few)


def case_used(units: int) -> str:
    return "1 unit used" if units == 1 else f"{units:,} units used"


def case_with(units: int) -> str:
    return f"{units:,} units in the window"
