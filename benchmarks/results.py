"""The figures that every part of the benchmarks returns, all in one form."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """The ``value`` of a ``quantity`` for ``who`` in a ``case``: a median, with the middle 80 % of the rounds between
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
    """The figures of one run."""

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
        """These figures, and those of other parts in ``earlier``, with the later day and the larger load. The machines
        must not :func:`differ <differing>` in anything else."""
        others = [figure for figure in earlier.figures if figure.part not in self.parts]
        load = max(self.machine["load"], earlier.machine["load"])
        return Results({**self.machine, "load": load}, [*self.figures, *others])

    @property
    def parts(self) -> set[str]:
        return {figure.part for figure in self.figures}


def differing(machine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The differences between the machines of two runs, except day and load."""
    return [name for name in machine if name not in {"date", "load"} and machine[name] != other.get(name)]


def median_of(part: str, who: str, case: str, quantity: str, values: Iterable[float]) -> Figure:
    """The figure for one value per round."""
    numbers = list(values)
    tenths = statistics.quantiles(numbers, n=10, method="inclusive")
    median, low, high = map(_short, (statistics.median(numbers), tenths[0], tenths[-1]))
    return Figure(part, who, case, quantity, median, low, high)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
