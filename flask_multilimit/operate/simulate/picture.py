"""Draws what a log says, as a PNG. Needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...engine import ConfigurationError
from .report import Report
from .suggest import Suggestion, Traffic, curve

_PEAKS, _CLIENTS, _CHOSEN = "#0b6e6e", "#7a6a2f", "#b3261e"
_SUCCEEDED, _FAILED, _UNKNOWN = "#b3261e", "#7a9e9e", "#b8bcc2"
BARS = 20
"""The number of endpoints and rules that a picture shows, those that refuse most."""


def draw(found: Suggestion, traffic: Traffic, path: Path) -> None:
    """Write a row for each window."""
    figure, axes = _figure(len(found.peaks), 3.6)
    for number, peaks in enumerate(found.peaks):
        alone, chosen = traffic.parts[number], found.for_requests[number].rules[0].count
        _draw_peaks(axes[number][0], alone, chosen, peaks.in_words)
        _draw_refused(axes[number][1], alone, chosen, peaks.in_words)
    figure.savefig(path, format="png")


def draw_reports(reports: Sequence[tuple[str, Report]], path: Path) -> None:
    """Write a row for each set of limits."""
    most = max(len(rows) for _, report in reports for rows in (report.endpoints[:BARS], report.rules[:BARS], [None]))
    figure, axes = _figure(len(reports), 1.6 + 0.32 * most)
    for (name, report), (left, right) in zip(reports, axes, strict=True):
        _draw_endpoints(left, report, name)
        _draw_rules(right, report, name)
    figure.savefig(path, format="png")


def _figure(rows: int, height: float) -> tuple[Any, Any]:
    figure_class, canvas_class = _matplotlib()
    figure = figure_class(figsize=(11, height * rows), layout="constrained", dpi=130)
    canvas_class(figure)
    return figure, figure.subplots(rows, 2, squeeze=False)


def _draw_endpoints(axes: Any, report: Report, limits: str) -> None:
    shown = sorted(report.endpoints, key=lambda each: -each.refused)[:BARS][::-1]
    begin = [0] * len(shown)
    for label, colour, first, last in (
        ("really succeeded", _SUCCEEDED, 100, 399),
        ("really failed", _FAILED, 400, 999),
        ("status unknown", _UNKNOWN, 0, 99),
    ):
        sizes = [sum(number for status, number in each.statuses.items() if first <= status <= last) for each in shown]
        if any(sizes):
            axes.barh([each.name for each in shown], sizes, left=begin, color=colour, label=label)
        begin = [start + size for start, size in zip(begin, sizes, strict=True)]
    axes.set_yticks(range(len(shown)), [each.name for each in shown])
    _finish(axes, f"Refused by endpoint (limits: {limits})", begin)


def _draw_rules(axes: Any, report: Report, limits: str) -> None:
    shown = sorted(report.rules, key=lambda rule: -rule.refused)[:BARS][::-1]
    refused, places = [rule.refused for rule in shown], range(len(shown))
    axes.barh(places, refused, color=_FAILED, label="other rules did too")
    axes.barh(places, [rule.alone for rule in shown], color=_CHOSEN, label="no other rule did")
    axes.set_yticks(places, [f"{rule.limiter}: {rule.text}" for rule in shown])
    _finish(axes, f"Refused by rule (limits: {limits})", refused)


def _finish(axes: Any, title: str, sizes: Sequence[int]) -> None:
    axes.set(title=title, xlabel="requests refused", xlim=(0, max(*sizes, 1) * 1.12 if sizes else 1))
    for place, size in enumerate(sizes):
        axes.annotate(f"{size:,}", (size, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_peaks(axes: Any, traffic: Traffic, chosen: int, window: str) -> None:
    ordered = traffic.ordered(0)
    shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
    axes.step([0, *shares], [ordered[0], *ordered], where="pre", color=_PEAKS)
    axes.axhline(chosen, color=_CHOSEN, linewidth=1)
    axes.annotate(f"chosen: {chosen:,}", (1, chosen), xytext=(0, 4), textcoords="offset points", color=_CHOSEN)
    axes.set(
        yscale="log", xlim=(0, 100), xlabel="% of clients, sorted", ylabel=f"most requests in any {window}",
        title="What clients do",
    )  # fmt: skip
    axes.set_yticks(*_ticks(ordered[0], ordered[-1]))
    axes.minorticks_off()


def _ticks(first: int, last: int) -> tuple[list[int], list[str]]:
    """Round counts for an axis, and how they are written; both ends of the axis if no round count is on it."""
    powers = [10**exponent for exponent in range(len(str(last)))]
    ticks = [step * power for power in powers for step in (1, 2, 5) if first <= step * power <= last]
    shown = ticks if len(ticks) > 1 else sorted({first, last})
    return shown, [f"{tick:,}" for tick in shown]


def _draw_refused(axes: Any, traffic: Traffic, chosen: int, window: str) -> None:
    points = curve(traffic, {chosen: []})
    counts = [point.count for point in points]
    requests, subjects = traffic.arrivals.requests, len(traffic.arrivals)
    axes.plot(counts, [100 * point.requests / requests for point in points], color=_PEAKS, label="of the requests")
    axes.plot(counts, [100 * point.clients / subjects for point in points], color=_CLIENTS, label="of the clients")
    axes.axvline(chosen, color=_CHOSEN, linewidth=1)
    axes.set(xscale="log", xlabel=f"count per {window}", ylabel="% refused", title="What a count refuses")
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylim(bottom=0)
    axes.set_xticks(*_ticks(counts[0], counts[-1]))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - only who draws needs it
        from matplotlib.figure import Figure  # noqa: PLC0415 - as above
    except ImportError:
        raise ConfigurationError("pictures need matplotlib: pip install 'flask-multilimit[plot]'") from None
    return Figure, FigureCanvasAgg
