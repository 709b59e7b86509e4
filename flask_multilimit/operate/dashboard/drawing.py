"""Turns numbers into text and into SVG: paths and labels of an axis. The templates draw the frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...engine.periods import instant
from ...observe.traffic.counts import BUCKET_SECONDS

PLANE = 600, 160
"""Width and height of the drawing; the browser stretches it."""
SPARK = 120, 24


class Drawing(NamedTuple):
    """A drawing of rates over the last hour."""

    width: int
    height: int
    passed: str
    """The path of an area, as are the next two."""
    refused: str
    """Refused requests, on top of those that passed."""
    other: str
    """On top of both: banned, denied, unanswered."""
    near: str
    """The path of a line."""
    top: float
    """The rate at the upper edge."""


def group_rates(series: Sequence[int], last: int, *, slices: int) -> list[float]:
    """Rates per second of groups of ``slices``, the oldest first. The last slice of the series, number ``last``, is not
    over and is left out. Groups begin at multiples of their size, so that they do not change as time goes on."""
    begin, end = 0, len(series) - 1
    found = []
    while begin < end:
        until = min(begin + slices - (last - len(series) + 1 + begin) % slices, end)
        found.append(sum(series[begin:until]) / ((until - begin) * BUCKET_SECONDS))
        begin = until
    return found


def draw(
    passed: Sequence[float],
    refused: Sequence[float],
    other: Sequence[float],
    near: Sequence[float],
    *,
    size: tuple[int, int] = PLANE,
) -> Drawing:
    """Areas on top of each other, and a line."""
    width, height = size
    first = list(passed)
    second = [a + b for a, b in zip(first, refused, strict=True)]
    third = [a + b for a, b in zip(second, other, strict=True)]
    top = axis_top(max([*third, *near], default=0))
    scale = height / top

    def area(below: Sequence[float], above: Sequence[float]) -> str:
        if not any(b > a for a, b in zip(below, above, strict=True)):
            return ""
        upper, lower = _points(above, width, height, scale), _points(below, width, height, scale)
        return f"M{' '.join(upper)} {' '.join(reversed(lower))}Z"

    line = f"M{' '.join(_points(near, width, height, scale))}" if any(near) else ""
    areas = area([0.0] * len(first), first), area(first, second), area(second, third)
    return Drawing(width, height, *areas, line, top)


def axis_top(most: float) -> float:
    """The next of 1, 2, 5, 10, 20 ... above ``most``."""
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(size * step for step in (1, 2, 5, 10, 20) if size * step >= most * 1.02)


def _points(rates: Sequence[float], width: int, height: int, scale: float) -> list[str]:
    step = width / max(len(rates) - 1, 1)
    return [f"{place * step:.1f},{height - rate * scale:.1f}" for place, rate in enumerate(rates)]


# As text, in every language


def number(value: float) -> str:
    return f"{value:,}"


def axis(value: float) -> str:
    """A round number for the axis of a drawing."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def share(part: float, whole: float) -> str:
    """``1.3 %``; empty for nothing."""
    if not part or not whole:
        return ""
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.1 else "< 0.1 %"


def iso(at: float) -> str:
    """For programs."""
    return instant(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc(at: float) -> str:
    """The time in UTC, for people without JavaScript. With it, they see their own zone."""
    return instant(at).strftime("%Y-%m-%d %H:%M:%S UTC")
