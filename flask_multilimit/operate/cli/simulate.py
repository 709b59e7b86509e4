"""``flask multilimit simulate``: shows what limits would have done to the requests of a log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from pathlib import Path

import click

from ...declare.advice import app_in_force
from ...insight.text import duration, plural
from ...plan.standings import require_endpoint
from .. import console
from ..simulate.picture import draw_reports
from ..simulate.questions import header_fields, limits_of, replay_of, run
from ..simulate.replay_plan import Replacements
from ..simulate.report import Report, RuleReport
from . import command, current_gate, pairs_option, show
from .logs import (
    LogOptions,
    cost_field_option,
    file_lines,
    local_time,
    log_options,
    percent,
    png_option,
    share,
    stopped_lines,
    writing,
)

IN_FORCE = "in force"


def _units(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise click.BadParameter(f"{value!r}: give a whole number", param_hint="'--cost'")
    return int(value)


@command("simulate", short_help="Replay a log: who would have been refused?")
@log_options
@click.option(
    "--limits", "limits", type=click.Path(path_type=Path), metavar="FILE", help="Replay with these limits instead."
)
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE", help="Compare with these limits.")
@pairs_option("--cost", "NAME=UNITS", "The cost in place of a callable, by endpoint or limiter.")
@pairs_option("--rules", "NAME=RULES", "The rules in place of a callable, by endpoint or limiter.")
@pairs_option(
    "--priority", "NAME=PRIORITY", "The priority of requests where units are reserved, by endpoint or limiter."
)
@cost_field_option("The log field that holds the real cost, where limiters settle.")
@png_option
def simulate_command(
    log: LogOptions,
    limits: Path | None,
    against: Path | None,
    cost: dict[str, str],
    rules: dict[str, str],
    priority: dict[str, str],
    cost_field: str,
    png: Path | None,
) -> None:
    """Replay the requests of access logs through the limits of the app, by the times in the log.

    LOG is a file, compressed (.gz, .zst) or not, or - for standard input; by default, what the
    app's Recorder has written. Nothing is charged, and no view is called.
    """
    app = app_in_force()
    costs = {name: _units(units) for name, units in cost.items()}
    replacements = Replacements(costs, rules, priority, cost_field)
    current_gate()  # applies the changes made while the app runs
    sets = [(str(limits) if limits else IN_FORCE, limits_of(app, limits))]
    if against is not None:
        sets.append((str(against), limits_of(app, against)))
    if log.endpoint is not None:
        require_endpoint(sets[0][1].plans, log.endpoint)
    replays = [
        replay_of(
            app,
            limits=each,
            subjects=log.subject,
            replacements=replacements,
            script_name=log.script_name,
            endpoint=log.endpoint,
        )
        for _, each in sets
    ]
    logs = log.open_logs(*header_fields(each.plans for _, each in sets).values(), cost_field)
    run(logs, replays)
    reports = [replay.report(complete=logs.complete, files=logs.files) for replay in replays]
    named = [(name, report) for (name, _), report in zip(sets, reports, strict=True)]
    if png is not None:
        part = "" if log.endpoint is None else f"; requests to {log.endpoint!r}"
        with writing():
            draw_reports([(f"{name}{part}", report) for name, report in named], png)
    show(
        lambda: _screens(named, log.zone, part=log.endpoint is not None),
        reports=[{"limits": name, **report.as_json()} for name, report in named],
    )


def _screens(named: Sequence[tuple[str, Report]], zone: tzinfo, *, part: bool) -> list[str]:
    """One report, or two and their comparison. ``part``: they are about one endpoint."""
    lines = _screen(named[0][1], zone)
    if part:
        lines += ["", *console.paragraph(_WHOLE_APP)]
    return lines if len(named) == 1 else lines + _comparison(named)


_WHOLE_APP = "Clients and storage commands are those of the whole app: limits may be shared."


def _screen(report: Report, zone: tzinfo) -> list[str]:
    stopped = stopped_lines(complete=report.complete)
    if report.first is None or report.last is None:
        return ["No requests.", *stopped, *file_lines(report.files)]
    span = f"from {local_time(report.first, zone)} to {local_time(report.last, zone)} {zone}"
    lines = [*console.paragraph(f"{report.requests:,} requests {span}"), *stopped]
    lines += [*_summary(report), *_endpoints(report), *_rules(report), *_bans(report), *_worst(report, zone)]
    lines += ["", f"Commands to a storage: {report.commands:,}"]
    if report.notes:
        lines += ["", "Replayed differently:"]
        for note in report.notes:
            lines += console.paragraph(f"{note.text} ({plural(note.requests, 'request')})", indent=2)
    return [*lines, *file_lines(report.files)]


def _summary(report: Report) -> list[str]:
    lines = ["", f"refused           {share(report.refused, report.requests)}"]
    if report.refused:
        lines += [
            f"really succeeded  {share(report.succeeded_before, report.refused)} of the refused (status below 400)",
            f"clients refused   {share(report.clients_refused, report.clients)}",
            f"longest lock-out  {duration(report.longest_lockout)}",
        ]
    if report.denied:
        lines.append(f"denied by lists   {share(report.denied, report.requests)}")
    if report.really_refused:
        lines.append(
            f"status 429        {report.really_refused:,} in the log, {report.now_admitted:,} of them now admitted"
        )
    if report.differing is not None:
        lines.append(f"differing         {report.differing:,} verdicts differ from those on record")
    if report.outside:
        lines.append(f"not limited       {report.outside:,} redirects by the router, or paths outside of the app")
    return lines


def _endpoints(report: Report) -> list[str]:
    rows = [
        (
            each.name,
            f"{each.requests:,}",
            share(each.refused, each.requests) if each.refused else "",
            ", ".join(f"{status or 'unknown'}: {number:,}" for status, number in each.statuses.items()),
            "; ".join(
                filter(
                    None,
                    (
                        "" if each.unlimited < each.requests else "without limits",
                        f"{each.allowed:,} allowed by lists" if each.allowed else "",
                        f"{each.denied:,} denied by lists" if each.denied else "",
                        f"{each.shadowed:,} by shadows" if each.shadowed else "",
                        f"{each.delayed:,} delayed" if each.delayed else "",
                    ),
                )
            ),
        )
        for each in report.endpoints
    ]
    return console.table(rows, ("ENDPOINT", "REQUESTS", "REFUSED", "THEIR REAL STATUS", ""))


def _rules(report: Report) -> list[str]:
    rows = [
        (rule.name, rule.limiter, rule.text, f"{rule.asked:,}", f"{rule.refused:,}", f"{rule.alone:,}", _remark(rule))
        for rule in report.rules
        if not rule.is_ban
    ]
    return console.table(rows, ("RULE", "FROM", "AT MOST", "ASKED", "REFUSED", "ALONE", ""))


def _bans(report: Report) -> list[str]:
    rows = [
        (
            *(ban.name, ban.limiter, ban.text),
            *(f"{each:,}" for each in (ban.begun, ban.clients, ban.refused)),
            "shadow" if ban.shadow else "",
        )
        for ban in report.bans
    ]
    return console.table(rows, ("BAN", "FROM", "", "BANS", "CLIENTS", "REFUSED MEANWHILE", ""))


def _remark(rule: RuleReport) -> str:
    shadow = "shadow; " if rule.shadow else ""
    if not rule.asked:
        return f"{shadow}never asked"
    return shadow.rstrip("; ") if rule.refused else f"{shadow}never refuses: at least {rule.least_remaining:,} left"


def _worst(report: Report, zone: tzinfo) -> list[str]:
    rows = [
        (
            each.name,
            f"{each.requests:,}",
            share(each.refused, each.requests),
            local_time(each.first_refused, zone),
            duration(each.longest_lockout),
        )
        for each in report.worst
    ]
    return console.table(rows, ("CLIENT", "REQUESTS", "REFUSED", "FIRST", "LONGEST LOCK-OUT"))


def _comparison(named: Sequence[tuple[str, Report]]) -> list[str]:
    """The reports side by side."""
    names, reports = zip(*named, strict=True)
    refused = {each.name: each.refused for each in reports[1].endpoints}
    rows = [
        (each.name, f"{each.requests:,}", f"{each.refused:,}", f"{refused.get(each.name, 0):,}")
        for each in reports[0].endpoints
    ]
    totals = [
        ("all", f"{reports[0].requests:,}", *(share(each.refused, each.requests) for each in reports)),
        ("clients refused", f"{reports[0].clients:,}", *(f"{each.clients_refused:,}" for each in reports)),
        ("longest lock-out", "", *(duration(each.longest_lockout) for each in reports)),
        ("share refused", "", *(percent(each.share_refused) for each in reports)),
    ]
    headings = ("REFUSED", "OF", *(name.upper() if name == IN_FORCE else name for name in names))
    return [*console.table([*rows, *totals], headings), *_rules(reports[1]), *_bans(reports[1])]
