"""One admitted decision in the memory of the process, with few units in the window and with many."""

from __future__ import annotations

from collections.abc import Iterator

from .contenders import NUMBERS, OURS, case_of, in_memory
from .measure import BLOCK, WARM, Samples, Variant, figures_of, in_turn, pinned
from .results import Figure, median_of
from .setting import Setting

PART = "memory"
LIMITS = "limits moving window"
FEW, MANY = 150, 1000
"""Rounds."""


def window_of(rounds: int) -> str:
    """How many units are in each window, from the first round to the last: none expires meanwhile."""
    return f"0 to {rounds * (WARM + BLOCK):,} units"


def few(case: str) -> str:
    return f"{case}, few units"


def measure(setting: Setting) -> Iterator[Figure]:
    with pinned():
        samples = in_turn(in_memory(), rounds=setting.rounds(MANY))
        begun = in_turn(in_memory(), rounds=setting.rounds(FEW))
    begun = {Variant(who, few(case)): taken for (who, case), taken in begun.items()}
    yield from figures_of(PART, samples)
    yield from _ratios(samples | begun)


def _ratios(samples: Samples) -> Iterator[Figure]:
    for case in [*map(case_of, NUMBERS), *(few(case_of(number)) for number in NUMBERS)]:
        both = zip(samples[Variant(LIMITS, case)], samples[Variant(OURS, case)], strict=True)
        ratios = [(theirs.wall / ours.wall, theirs.cpu / ours.cpu) for theirs, ours in both]
        yield median_of(PART, OURS, case, "times faster", (wall for wall, _ in ratios))
        yield median_of(PART, OURS, case, "times faster, CPU", (cpu for _, cpu in ratios))
