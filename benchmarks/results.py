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

    @property
    def parts(self) -> set[str]:
        return {figure.part for figure in self.figures}


def median_of(part: str, who: str, case: str, quantity: str, values: Iterable[float]) -> Figure:
    """Of one value a round."""
    numbers = list(values)
    tenths = statistics.quantiles(numbers, n=10, method="inclusive")
    median, low, high = map(_short, (statistics.median(numbers), tenths[0], tenths[-1]))
    return Figure(part, who, case, quantity, median, low, high)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
