"""The page of a replay: what limits would have done to a log, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo

from ...console import duration
from ..logs.logged import MICROSECONDS
from ..report import Report, RuleReport
from .document import document, text

Cells = Sequence[str]
"""HTML."""


def report_page(reports: Sequence[tuple[str, Report]], zone: tzinfo) -> str:
    """The whole page, with one part for each set of limits."""
    body = "".join(report_part(name, report, zone) for name, report in reports)
    return document("What limits would have done", body, styles=("page.css",))


def report_part(name: str, report: Report, zone: tzinfo) -> str:
    """One report, as HTML for another page to contain: its headings begin with ``<h2>``; it has no style or script."""
    if report.first is None or report.last is None:
        return "<p>No requests.</p>\n"
    span = f"{_told(report.first, zone)} to {_told(report.last, zone)} {zone}"
    lines = [f"<h2>Limits: {text(name)}</h2>", f"<p>{report.requests:,} requests from {text(span)}</p>"]
    if not report.complete:
        lines.append('<p class="over">Stopped: this covers the requests until then.</p>')
    refused, clients = report.refused, report.clients_refused
    lines += [
        f"<p>Refused: {_share(refused, report.requests)}, of {clients:,} of {report.clients:,} clients. "
        f"{_share(report.succeeded_before, refused)} of the refused really succeeded (status below 400). "
        f"The longest lock-out: {duration(report.longest_lockout)}.</p>",
        f"<p>Denied by lists: {_share(report.denied, report.requests)}.</p>" if report.denied else "",
        _endpoints(report),
        _rules(report),
        _bans(report),
        _worst(report, zone),
        _notes(report),
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _endpoints(report: Report) -> str:
    rows = [
        (
            text(each.name),
            f"{each.requests:,}",
            _meter(each.refused, each.requests),
            text(", ".join(f"{status or 'unknown'}: {number:,}" for status, number in each.statuses.items())),
            f"{each.shadowed:,}" if each.shadowed else "",
            f"{each.allowed:,}" if each.allowed else "",
            f"{each.denied:,}" if each.denied else "",
        )
        for each in report.endpoints
    ]
    return _table(
        "By endpoint",
        ("endpoint", "#requests", "refused", "their real status", "#by shadows", "#allowed by lists", "#denied"),
        rows,
    )


def _rules(report: Report) -> str:
    rows = [
        (
            text(rule.name),
            text(rule.limiter),
            text(rule.text),
            f"{rule.asked:,}",
            f"{rule.refused:,}",
            f"{rule.alone:,}",
            text(_remark(rule)),
        )
        for rule in report.rules
        if not rule.is_ban
    ]
    return _table("By rule", ("rule", "from", "at most", "#asked", "#refused", "#alone", "remark"), rows)


def _bans(report: Report) -> str:
    rows = [
        (
            text(ban.name),
            text(ban.limiter),
            text(ban.text),
            f"{ban.begun:,}",
            f"{ban.clients:,}",
            f"{ban.repeated:,}",
            f"{ban.refused:,}",
            "shadow" if ban.shadow else "",
        )
        for ban in report.bans
    ]
    return _table(
        "Bans", ("ban", "from", "", "#begun", "#clients", "#repeated at most", "#refused meanwhile", ""), rows
    )


def _remark(rule: RuleReport) -> str:
    if not rule.asked:
        told = "never asked"
    elif rule.never_refuses:
        told = f"never refuses: at least {rule.least_remaining:,} left"
    else:
        told = f"refuses only when {rule.pre_empted_by} does" if rule.pre_empted_by else ""
    return "; ".join(filter(None, ("shadow" if rule.shadow else "", told)))


def _worst(report: Report, zone: tzinfo) -> str:
    rows = [
        (
            text(each.name),
            f"{each.requests:,}",
            _meter(each.refused, each.requests),
            _told(each.first_refused, zone),
            duration(each.longest_lockout),
        )
        for each in report.worst
    ]
    return _table("Refused most", ("client", "#requests", "refused", "first", "longest lock-out"), rows)


def _notes(report: Report) -> str:
    rows = [(text(note.text), f"{note.requests:,}") for note in report.notes]
    return _table("Replayed differently", ("what", "#requests"), rows)


def _table(title: str, headings: Sequence[str], rows: Sequence[Cells]) -> str:
    """A table, or nothing if it has no rows. A ``#`` at the beginning of a heading marks a column of numbers."""
    if not rows:
        return ""
    numbers = [heading.startswith("#") for heading in headings]
    head = _row("th", [heading.removeprefix("#") for heading in headings], numbers)
    body = "\n".join(_row("td", row, numbers) for row in rows)
    scrolls = f'<div class="wide" role="group" aria-label="{title}" tabindex="0">'
    return f"<h2>{title}</h2>\n{scrolls}<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"


def _row(element: str, cells: Iterable[str], numbers: Iterable[bool]) -> str:
    written = (
        f'<{element} class="number">{cell}</{element}>' if number else f"<{element}>{cell}</{element}>"
        for cell, number in zip(cells, numbers, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"


def _meter(part: int, whole: int) -> str:
    return f'<meter value="{part}" max="{whole}"></meter>{_share(part, whole)}' if part else ""


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole if whole else 0:.2%})"


def _told(at: int, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(at / MICROSECONDS, zone):%Y-%m-%d %H:%M:%S}"
