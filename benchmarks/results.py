"""What every part of the benchmarks gives: figures, one like the other."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """So much of a ``quantity`` that ``who`` takes in a ``case``: a median, with the middle 80 % of the rounds between
    ``low`` and ``high``, or a count, which has no spread."""

    part: str
    who: str
    case: str
    quantity: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """Of one run."""

    machine: Mapping[str, Any]
    figures: list[Figure]

    def to_json(self) -> str:
        figures = ",\n  ".join(json.dumps(asdict(figure)) for figure in self.figures)
        return f'{{\n "machine": {json.dumps(self.machine, indent=2)},\n "figures": [\n  {figures}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Results:
        read = json.loads(text)
        return cls(read["machine"], [Figure(**figure) for figure in read["figures"]])

    def with_other_parts_of(self, earlier: Results) -> Results:
        """What was measured now, and beside it what ``earlier`` has of other parts; said to be of the later day and of
        the larger load. The machines must not :func:`differ <differing>` in anything else."""
        others = [figure for figure in earlier.figures if figure.part not in self.parts]
        load = max(self.machine["load"], earlier.machine["load"])
        return Results({**self.machine, "load": load}, [*self.figures, *others])

    @property
    def parts(self) -> set[str]:
        return {figure.part for figure in self.figures}


def differing(machine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What is not the same of two runs, but for day and load."""
    return [name for name in machine if name not in {"date", "load"} and machine[name] != other.get(name)]


def median_of(part: str, who: str, case: str, quantity: str, values: Iterable[float]) -> Figure:
    """Of one value a round."""
    numbers = list(values)
    tenths = statistics.quantiles(numbers, n=10, method="inclusive")
    median, low, high = map(_short, (statistics.median(numbers), tenths[0], tenths[-1]))
    return Figure(part, who, case, quantity, median, low, high)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
