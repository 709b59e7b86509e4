"""Measures variants side by side in one run: short blocks in turn, so that a disturbance affects all alike.

A round has one block of each variant, in random order. A block begins with `WARM` calls that do not count, after which
the caches are as this variant leaves them, and not its neighbour. Then come `BLOCK` calls that count: their mean,
including slow ones. A ratio compares two blocks of the same round; the figure is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .results import Figure, median_of

Call = Callable[[], object]

WARM = 10
BLOCK = 20


class Variant(NamedTuple):
    who: str
    case: str


class Sample(NamedTuple):
    """Microseconds per call in one block."""

    wall: float
    client_cpu: float
    server_cpu: float
    """0 if the system does not report it."""

    @property
    def cpu(self) -> float:
        return self.client_cpu + self.server_cpu


Samples = dict[Variant, list[Sample]]


def in_turn(
    variants: Mapping[Variant, Call], *, rounds: int, server: int | None = None, warm: int = WARM, block: int = BLOCK
) -> Samples:
    """The samples of so many ``rounds``; ``server`` is the process that serves all variants."""
    taken: Samples = {variant: [] for variant in variants}
    order = list(variants.items())
    draw = random.Random(1)
    for _ in range(rounds):
        draw.shuffle(order)
        for variant, call in order:
            for _ in range(warm):
                call()
            taken[variant].append(_block(call, block, server))
    return taken


def figures_of(part: str, samples: Samples) -> Iterator[Figure]:
    """How long each variant takes."""
    for (who, case), taken in samples.items():
        yield median_of(part, who, case, "µs", (each.wall for each in taken))
        yield median_of(part, who, case, "client CPU µs", (each.client_cpu for each in taken))
        if any(each.server_cpu for each in taken):
            yield median_of(part, who, case, "server CPU µs", (each.server_cpu for each in taken))


def ratios_of(part: str, samples: Samples, base: Variant, quantity: str) -> Iterator[Figure]:
    """The time and the CPU time of each variant, as multiples of those of ``base``."""
    for (who, case), taken in samples.items():
        both = list(zip(taken, samples[base], strict=True))
        yield median_of(part, who, case, quantity, (ours.wall / theirs.wall for ours, theirs in both))
        yield median_of(part, who, case, f"{quantity}, CPU", (ours.cpu / theirs.cpu for ours, theirs in both))


@contextlib.contextmanager
def pinned(server: int | None = None, *, apart: bool = False) -> Iterator[bool]:
    """Put this process and the server on one core meanwhile, so that no variant gains or loses by a move. Yields
    whether the system can. With ``apart``, each has a core of its own if there are two."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    everywhere = os.sched_getaffinity(0)
    of_server = _threads_of(server)
    _move([0], {max(everywhere)})
    _move(of_server, {min(everywhere) if apart else max(everywhere)})
    try:
        yield True
    finally:
        _move([0, *of_server], everywhere)


def _move(threads: Sequence[int], cores: set[int]) -> None:
    for thread in threads:
        os.sched_setaffinity(thread, cores)


def _threads_of(process: int | None) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()] if process else []


def _block(call: Call, calls: int, server: int | None) -> Sample:
    server_before = cpu_of(server)
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(calls):
        call()
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    scale = calls * 1000
    return Sample(wall / scale, cpu / scale, (cpu_of(server) - server_before) / scale)


def cpu_of(process: int | None) -> int:
    """Nanoseconds of CPU time that ``process`` has taken; 0 if the system does not report it."""
    try:
        times = [Path(f"/proc/{process}/task/{each}/schedstat").read_text() for each in _threads_of(process)]
        return sum(int(text.split()[0]) for text in times)
    except OSError:
        return 0
