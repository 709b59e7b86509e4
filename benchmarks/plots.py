"""The plots of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from . import growth, server, threads, web
from .contenders import OURS
from .results import Figure, Results
from .tables import YARDSTICKS, number

OURS_COLOR, OTHER_COLOR, YARDSTICK_COLOR = "#0b6e6e", "#8c8c8c", "#d9a520"
DETAILS = (f"{OURS}, ",)
"""Names that begin with these are only in the table."""


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw one file for each part that was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    plots: dict[str, tuple[str, Callable[[list[Figure]], Canvas]]] = {
        "performance-server": (server.PART, _server),
        "performance-web": (web.PART, _web),
        "performance-threads": (threads.PART, _threads),
        "performance-growth": (growth.PART, _growth),
    }
    drawn = []
    # Text stays text, and the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 10}):
        for name, (part, plot) in plots.items():
            if part in results.parts:
                file = folder / f"{name}.svg"
                canvas = plot([figure for figure in results.figures if figure.part == part])
                canvas.savefig(file, metadata={"Date": None}, bbox_inches="tight")
                drawn.append(file)
    return drawn


def _server(figures: list[Figure]) -> Canvas:
    canvas = Canvas(figsize=(9, 6.5))
    axes = canvas.subplots(1, 3, sharey=True)
    wanted = [figure for figure in figures if figure.quantity == "times a PING" and not figure.who.startswith(DETAILS)]
    names = list(dict.fromkeys(figure.who for figure in wanted if figure.case == "3 rules"))
    for ax, case in zip(axes, ("1 rule", "3 rules", "10 rules"), strict=True):
        _points(ax, names, {figure.who: figure for figure in wanted if figure.case == case})
        ax.set_xscale("log")
        ax.set_xlim(0.3, 100)
        ax.set_xticks([1, 10, 100], ["1", "10", "100"])
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set_title(case)
    axes[1].set_xlabel("times a PING through redis-py (logarithmic; less is better)")
    return canvas


def _web(figures: list[Figure]) -> Canvas:
    canvas = Canvas(figsize=(8, 3.2))
    ax = canvas.subplots()
    shares = [figure for figure in figures if figure.quantity == "share of the bare view"]
    wanted = {f"{figure.who}, {figure.case}": figure for figure in shares if figure.who != "bare view"}
    _bars(ax, list(wanted), wanted)
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_xlabel("requests a second through gunicorn, as a share of the bare view's (more is better)")
    return canvas


def _threads(figures: list[Figure]) -> Canvas:
    canvas = Canvas(figsize=(8, 3.6))
    ax = canvas.subplots()
    rates = [figure for figure in figures if figure.quantity == "decisions a second"]
    rates.sort(key=lambda figure: int(figure.case.partition(" ")[0]))
    wanted = {f"{figure.who}, {figure.case}": figure for figure in rates}
    _bars(ax, list(wanted), wanted)
    ax.set_xlabel("decisions a second under three rules, one process (more is better)")
    return canvas


def _growth(figures: list[Figure]) -> Canvas:
    canvas = Canvas(figsize=(8, 3.8))
    ax = canvas.subplots()
    by_case = {growth.case_with(size): size for size in growth.SIZES}
    wanted = [figure for figure in figures if figure.quantity == "µs" and figure.case in by_case]
    for who in dict.fromkeys(figure.who for figure in wanted):
        points = [(by_case[figure.case], figure.value) for figure in wanted if figure.who == who]
        ax.plot(*zip(*points, strict=True), "o-", label=who, color=OURS_COLOR if who == OURS else None)
    ax.set_xscale("log")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("units in the window")
    ax.set_ylabel("µs a decision, one rule")
    ax.legend(frameon=False)
    return canvas


def _bars(ax: Axes, names: Sequence[str], by_name: Mapping[str, Figure]) -> None:
    """Draw bars from top to bottom, with the middle 80 % of the rounds as a line."""
    figures = [by_name[name] for name in names]
    values = [figure.value for figure in figures]
    ax.barh(names, values, xerr=_spread(figures), color=list(map(_color, figures)), error_kw={"linewidth": 0.8})
    _clean(ax)


def _points(ax: Axes, names: Sequence[str], by_name: Mapping[str, Figure]) -> None:
    """The same with points, for a logarithmic axis, on which the length of a bar means nothing."""
    for name in names:
        figure = by_name[name]
        ax.errorbar(figure.value, name, xerr=_spread([figure]), fmt="o", color=_color(figure), linewidth=1)
        ax.annotate(number(figure.value), (figure.value, name), (0, 6), textcoords="offset points", ha="center")
    _clean(ax)


def _spread(figures: Iterable[Figure]) -> list[list[float]]:
    """The distances of the middle 80 % below and above the value."""
    ends = [(f.value, f.value if f.low is None else f.low, f.value if f.high is None else f.high) for f in figures]
    return [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]


def _clean(ax: Axes) -> None:
    if not ax.yaxis_inverted():
        ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)


def _color(figure: Figure) -> str:
    if figure.who == OURS:
        return OURS_COLOR
    return YARDSTICK_COLOR if figure.who.startswith(YARDSTICKS) else OTHER_COLOR
