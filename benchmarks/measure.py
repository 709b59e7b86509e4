"""Variants side by side in one run: short blocks in turn, so that what disturbs one disturbs all."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Call = Callable[[], object]

BLOCK = 20
"""Calls in a row before it is the next one's turn."""


@dataclass(frozen=True)
class Figures:
    """Of one variant, microseconds a call. Ratios are taken block by block against the yardstick, then their median."""

    wall: float
    ratio: float
    low: float
    high: float
    client_cpu: float
    server_cpu: float
    cpu_ratio: float


def measure(
    variants: Mapping[str, Call], yardstick: str, *, blocks: int, server: int | None = None
) -> dict[str, Figures]:
    """Take ``blocks`` blocks of each; ``server`` is the process that works for them."""
    for call in variants.values():
        for _ in range(BLOCK):
            call()
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in variants}
    for _ in range(blocks):
        for name, call in variants.items():
            taken[name].append(_block(call, server))
    return {name: _figures(times, taken[yardstick]) for name, times in taken.items()}


def pin(server: int | None = None) -> bool:
    """Put this process, and the server, on one core; whether the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    core = {max(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, core)
    for task in Path(f"/proc/{server}/task").iterdir() if server else ():
        os.sched_setaffinity(int(task.name), core)
    return True


def _block(call: Call, server: int | None) -> tuple[float, float, float]:
    server_before = _cpu_of(server)
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(BLOCK):
        call()
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    scale = BLOCK * 1000
    return wall / scale, cpu / scale, (_cpu_of(server) - server_before) / scale


def _cpu_of(process: int | None) -> int:
    """Nanoseconds; 0 where the system does not tell."""
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    except OSError:
        return 0


def _figures(times: list[tuple[float, float, float]], yardstick: list[tuple[float, float, float]]) -> Figures:
    ratios = [ours[0] / base[0] for ours, base in zip(times, yardstick, strict=True)]
    cpu_ratios = [sum(ours[1:]) / max(sum(base[1:]), 1e-9) for ours, base in zip(times, yardstick, strict=True)]
    tenths = statistics.quantiles(ratios, n=10)
    median = statistics.median
    return Figures(
        wall=median(each[0] for each in times),
        ratio=median(ratios),
        low=tenths[0],
        high=tenths[-1],
        client_cpu=median(each[1] for each in times),
        server_cpu=median(each[2] for each in times),
        cpu_ratio=median(cpu_ratios),
    )
