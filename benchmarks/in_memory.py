"""One admitted decision in the memory of the process."""

from __future__ import annotations

from collections.abc import Iterator

from .contenders import NUMBERS, OURS, case_of, in_memory
from .measure import Variant, figures_of, in_turn, pinned
from .results import Figure, median_of
from .setting import Setting

PART = "memory"
LIMITS = "limits moving window"


def measure(setting: Setting) -> Iterator[Figure]:
    with pinned():
        samples = in_turn(in_memory(), rounds=setting.rounds(1000))
    yield from figures_of(PART, samples)
    for case in map(case_of, NUMBERS):
        both = zip(samples[Variant(LIMITS, case)], samples[Variant(OURS, case)], strict=True)
        ratios = [(theirs.wall / ours.wall, theirs.cpu / ours.cpu) for theirs, ours in both]
        yield median_of(PART, OURS, case, "times faster", (wall for wall, _ in ratios))
        yield median_of(PART, OURS, case, "times faster, CPU", (cpu for _, cpu in ratios))
