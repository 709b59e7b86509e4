"""``flask multilimit simulate``: what limits would have done to the requests of a log; ``suggest``: which counts fit
them; and ``record``, which asks the app's recorders for a log."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from ...control.control import seconds_of
from ...declare.advice import app_in_force
from ...insight.text import duration, local_time, plural, rule_text
from ...plan.lookups import require_endpoint
from .. import console
from ..dashboard.whatif import file_of, what_if
from ..simulate.formats import expression, format_of
from ..simulate.logged import MICROSECONDS, LoggedRequest, moment
from ..simulate.picture import draw, draw_reports
from ..simulate.questions import arrivals_of, limits_of, replay_of, run, share_from
from ..simulate.reading import STANDARD_INPUT, LogFile, Logs
from ..simulate.recorded import FILES, recordings_of
from ..simulate.replay_plan import Replacements
from ..simulate.report import EndpointReport, Report, RuleReport
from ..simulate.suggest import Choice, Gap, Suggestion, Traffic, suggest_for, texts_to_paste, traffic_of, windows_of
from . import C, command, current_gate, gathered, pairs_option, show


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which log to read, and how: the values of :func:`log_options`."""

    logs: tuple[str, ...]
    format_: str | None
    regex: str | None
    zone: tzinfo
    since: str | None
    until: str | None
    subject: dict[str, str]
    script_name: str
    endpoint: str | None

    def open_logs(self) -> StoppableLogs:
        """The logs that were named, or else what the app's recorders wrote. Raises :class:`ConfigurationError`."""
        if self.format_ and self.regex:
            raise click.UsageError("--format and --regex: give only one of them")
        make_reader = expression(self.regex) if self.regex else None
        if self.format_:
            make_reader = format_of(self.format_)
        first, last = _moment("--since", self.since, self.zone), _moment("--until", self.until, self.zone)
        return StoppableLogs(self.logs or _recorded(), make_reader, self.zone, since=first, until=last)


def _zone(context: click.Context, parameter: click.Parameter, value: str | None) -> tzinfo:
    try:
        return timezone.utc if value is None else ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError):
        raise click.BadParameter(f"{value!r}: give a name such as Europe/Berlin", context, parameter) from None


def cost_field_option(text: str) -> Callable[[C], C]:
    return click.option("--cost-field", default="", metavar="FIELD", help=text)


FILE: click.Path = click.Path(dir_okay=False, path_type=Path)
png_option: Callable[[C], C] = click.option(
    "--png", type=FILE, metavar="FILE", help="Draw a picture (needs the extra: plot)."
)


@contextmanager
def writing() -> Iterator[None]:
    """Report an error that names the file if it cannot be written."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error


log_options: Callable[[C], C] = gathered(
    "log",
    LogOptions,
    click.argument("logs", nargs=-1, metavar="[LOG]...", type=click.Path(allow_dash=True)),
    click.option(
        "--format", "format_", metavar="FORMAT", help="The name of a format, or a format string; default: detect it."
    ),
    click.option("--regex", metavar="PATTERN", help="The format as a regular expression with named groups."),
    click.option(
        "--timezone", "zone", callback=_zone, metavar="NAME", help="The zone of times without an offset; default: UTC."
    ),
    click.option("--since", metavar="TIME", help="Only requests at this time or later."),
    click.option("--until", metavar="TIME", help="Only requests before this time."),
    pairs_option("--subject", "TYPE=FIELD", "The log field that holds the subject of a type: api_key=X-Api-Key."),
    click.option("--script-name", default="", metavar="PATH", help="Where the app is mounted."),
    click.option("--endpoint", metavar="NAME", help="Only this endpoint."),
)
"""The options that say which log to read, and how: the command gets them as ``log``, a :class:`LogOptions`."""


def _recorded() -> list[Path]:
    """What recorders of the app wrote."""
    folders = [each.folder for each in recordings_of(app_in_force())]
    files = [file for folder in folders for file in sorted(folder.glob(FILES))]
    if not files:
        none = f"nothing is recorded yet in {', '.join(map(str, folders))}" if folders else "this app has no Recorder"
        raise click.UsageError(f"name a log: {none}")
    return files


class StoppableLogs(Logs):
    """Logs with a progress bar on a terminal. Ctrl-C ends them; a second one ends the program. If they are not empty,
    but nothing in them can be read, that is an error."""

    def __iter__(self) -> Iterator[LoggedRequest]:
        catches = threading.current_thread() is threading.main_thread()  # no other thread can
        before = signal.signal(signal.SIGINT, self._stop) if catches else None
        try:
            with self._progress() as bar:
                self.on_read: Callable[[int], object] | None = None if bar is None else bar.update
                yield from super().__iter__()
        finally:
            if catches:
                signal.signal(signal.SIGINT, before)
        if any(file.requests for file in self.files) or not any(file.lines for file in self.files):
            return
        if outside := sum(file.outside for file in self.files):
            left_out = f"All {plural(outside, 'request')} of the log came before --since, or not before --until"
            console.echo(f"{left_out}. Times without an offset are in {self.zone}: see --timezone.", err=True)
        else:
            names = ", ".join(file.name for file in self.files)
            raise click.ClickException(
                f"{names}: no line could be read; name the format: --format combined, or the server's own format string"
            )

    def _progress(self) -> Any:
        is_known = all(map(os.path.isfile, self.paths))  # no error for a file in a folder that this user may not enter
        if not console.is_screen(sys.stderr) or not is_known or STANDARD_INPUT in map(str, self.paths):
            return nullcontext()
        return click.progressbar(length=sum(map(os.path.getsize, self.paths)), file=sys.stderr)

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.complete:
            raise KeyboardInterrupt
        self.complete = False


def _moment(option: str, text: str | None, zone: tzinfo) -> int | None:
    try:
        return None if text is None else moment(text, zone)
    except ValueError:
        raise click.UsageError(f"{option} {text!r}: write 2026-11-22, or 2026-11-22T03:15") from None


def in_zone(at: int, zone: tzinfo) -> str:
    return f"{datetime.fromtimestamp(at / MICROSECONDS, zone):%Y-%m-%d %H:%M:%S}"


def share(part: int, whole: int) -> str:
    """``12 (0.3 %)``."""
    return f"{part:,} ({percent(part / whole if whole else 0)})"


def percent(share: float) -> str:
    if share and share < 0.0001:
        return "< 0.01 %"
    return f"{share:.2%}".replace("%", " %") if share < 0.1 else f"{share:.1%}".replace("%", " %")


def stopped_lines(*, complete: bool) -> list[str]:
    """A line if a log was not read to its end."""
    return [] if complete else [console.style("Stopped: this covers the requests until then.", fg="yellow", bold=True)]


def file_lines(files: Sequence[LogFile]) -> list[str]:
    """A line for each file with lines that could not be read, or not exactly; nothing if all is well."""
    lines = []
    for file in files:
        unknown = file.format is None and file.lines > 0
        problems = ["in no known format: name it with --format"] if unknown else []
        problems += [
            f"{each.lines:,} {each.why}" if each.lines else each.why
            for each in file.problems()
            if not (unknown and each.lines)
        ]
        if problems:
            lines += console.paragraph(f"{file.name}: of {plural(file.lines, 'line')}, {'; '.join(problems)}", indent=2)
    return ["", "Problems in the log:", *lines] if lines else []


# simulate


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
    current_gate(warn=True)
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
    logs = log.open_logs()
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
    lines = _report_lines(named[0][1], zone)
    if part:
        whole = "Clients and storage commands are those of the whole app: limits may be shared."
        lines += ["", *console.paragraph(whole)]
    return lines if len(named) == 1 else lines + _comparison(named)


def _report_lines(report: Report, zone: tzinfo) -> list[str]:
    stopped = stopped_lines(complete=report.complete)
    if report.first is None or report.last is None:
        return ["No requests.", *stopped, *file_lines(report.files)]
    span = f"from {in_zone(report.first, zone)} to {in_zone(report.last, zone)} {zone}"
    lines = [*console.paragraph(f"{plural(report.requests, 'request')} {span}"), *stopped]
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
        lines.append(f"differing         {report.differing:,} (verdicts that are not those on record)")
    if report.outside:
        lines.append(f"not limited       {report.outside:,} (redirects by the router, paths outside of the app)")
    return lines


def _endpoints(report: Report) -> list[str]:
    rows = []
    for each in report.endpoints:
        statuses = ", ".join(f"{status or 'unknown'}: {number:,}" for status, number in each.statuses.items())
        refused = share(each.refused, each.requests) if each.refused else ""
        rows.append((each.name, each.requests, refused, statuses, _remarks(each)))
    return console.table(rows, ("ENDPOINT", "REQUESTS", "REFUSED", "THEIR REAL STATUS", ""))


def _remarks(endpoint: EndpointReport) -> str:
    amounts = {
        "allowed by lists": endpoint.allowed,
        "denied by lists": endpoint.denied,
        "by shadows": endpoint.shadowed,
        "delayed": endpoint.delayed,
    }
    told = ["without limits"] if endpoint.unlimited == endpoint.requests else []
    return "; ".join(told + [f"{amount:,} {what}" for what, amount in amounts.items() if amount])


def _rules(report: Report) -> list[str]:
    rows = [
        (rule.name, rule.limiter, rule.text, rule.asked, rule.refused, rule.alone, _remark(rule))
        for rule in report.rules
        if not rule.is_ban
    ]
    return console.table(rows, ("RULE", "FROM", "AT MOST", "ASKED", "REFUSED", "ALONE", ""))


def _bans(report: Report) -> list[str]:
    rows = [
        (ban.name, ban.limiter, ban.text, ban.begun, ban.clients, ban.refused, "shadow" if ban.shadow else "")
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
            each.requests,
            share(each.refused, each.requests),
            in_zone(each.first_refused, zone),
            duration(each.longest_lockout),
        )
        for each in report.worst
    ]
    return console.table(rows, ("CLIENT", "REQUESTS", "REFUSED", "FIRST", "LONGEST LOCK-OUT"))


def _comparison(named: Sequence[tuple[str, Report]]) -> list[str]:
    """The reports side by side."""
    names, reports = zip(*named, strict=True)
    refused = {each.name: each.refused for each in reports[1].endpoints}
    rows = [(each.name, each.requests, each.refused, refused.get(each.name, 0)) for each in reports[0].endpoints]
    totals = [
        ("all", reports[0].requests, *(share(each.refused, each.requests) for each in reports)),
        ("clients refused", reports[0].clients, *(each.clients_refused for each in reports)),
        ("longest lock-out", "", *(duration(each.longest_lockout) for each in reports)),
        ("share refused", "", *(percent(each.share_refused) for each in reports)),
    ]
    headings = ("REFUSED", "OF", *(name.upper() if name == IN_FORCE else name for name in names))
    return [*console.table([*rows, *totals], headings), *_rules(reports[1]), *_bans(reports[1])]


# suggest


@command("suggest", short_help="Suggest the counts of limits from a log.")
@log_options
@click.option(
    "--type", "type_", default="ip", show_default=True, metavar="TYPE", help="Whose requests are counted together."
)
@click.option(
    "--window",
    "windows",
    multiple=True,
    default=("60",),
    show_default=True,
    metavar="WINDOW",
    help='Seconds, "minute", or a period: "calendar month". Give several to choose their counts together.',
)
@click.option(
    "--refuse-at-most",
    default="0.1%",
    show_default=True,
    metavar="SHARE",
    help="The share of requests, and of subjects, that may be refused.",
)
@cost_field_option("Count units, not requests: the log field that holds the real cost.")
@click.option("--html", type=FILE, metavar="FILE", help="Write a page with a slider, for any browser.")
@png_option
def suggest_command(
    log: LogOptions,
    type_: str,
    windows: tuple[str, ...],
    refuse_at_most: str,
    cost_field: str,
    html: Path | None,
    png: Path | None,
) -> None:
    """Find the most requests that each subject makes in any window, and the smallest counts that refuse at most the
    given share.

    LOG is a file, compressed (.gz, .zst) or not, or - for standard input; by default, what the
    app's Recorder has written.
    """
    app = app_in_force()
    if cost_field and (html or png):
        raise click.UsageError("--html and --png show requests, not units: leave out --cost-field")
    at_most, rules = share_from(refuse_at_most), windows_of(windows)
    current_gate(warn=True)
    logs = log.open_logs()
    arrivals = arrivals_of(
        app,
        logs,
        type=type_,
        endpoint=log.endpoint,
        subjects=log.subject,
        cost_field=cost_field,
        script_name=log.script_name,
    )
    traffic = traffic_of(arrivals, rules)
    found = suggest_for(traffic, at_most)
    with writing():
        if html is not None:
            source = ", ".join(map(str, logs.paths))
            html.write_text(_page(found, traffic, source, refuse_at_most), encoding="utf-8")
        if png is not None:
            draw(found, traffic, png)
    show(
        lambda: [*stopped_lines(complete=logs.complete), *suggestion_lines(found, log.zone), *file_lines(logs.files)],
        suggestion=found.as_json(),
        paste=texts_to_paste(found)._asdict(),
        complete=logs.complete,
    )


def _page(found: Suggestion, traffic: Traffic, source: str, refuse_at_most: str) -> str:
    """The page What if of the dashboard, with a part for each window."""
    windows = range(len(found.peaks))
    return file_of([what_if(traffic, found, each, source=source, refuse_at_most=refuse_at_most) for each in windows])


def suggestion_lines(found: Suggestion, zone: tzinfo) -> list[str]:
    span = f"{in_zone(found.first, zone)} to {in_zone(found.last, zone)} {zone}"
    about = f"{plural(found.requests, 'request')} of {plural(found.subjects, 'subject')} ({found.type}) from {span}"
    lines = [*console.paragraph(about), ""]
    rows = [(each.in_words, each.p50, each.p90, each.p99, each.p999, each.max) for each in found.peaks]
    if found.without_cost:
        left_out = plural(found.without_cost, "request")
        lines += [*console.paragraph(f"Left out: {left_out} without a cost in {found.cost_field}."), ""]
    counted = "requests" if found.estimate is None else "units"
    lines += [f"The most {counted} of a subject in any window, over all subjects:"]
    lines += console.columns(rows, headings=("WINDOW", "HALF", "90 %", "99 %", "99.9 %", "MAX"), indent=2)
    at_most = percent(float(found.share))
    for what, choices in (("requests", found.for_requests), ("subjects", found.for_subjects)):
        lines += ["", f"The smallest counts that refuse at most {at_most} of the {what}:"]
        lines += console.columns([_row(choice) for choice in choices], headings=_HEADINGS, indent=2)
    for peaks, gap in zip(found.peaks, found.gaps, strict=True):
        if gap is not None:
            lines += ["", *console.paragraph(_gap(peaks.in_words, gap))]
    why = f"for at most {at_most} of the requests" if not any(found.gaps) else "below the gap"
    lines += ["", f"To paste, {why}{f', to {found.endpoint!r}' if found.endpoint else ''}:"]
    paste = texts_to_paste(found)
    for text in (paste.decorator, paste.toml):
        lines += ["", *(f"    {line}" for line in text.split("\n"))]
    if found.estimate is not None:
        lines += ["", *console.paragraph(_ABOUT_UNITS)]
    if paste.command is None:
        return [*lines, "", "To try it without refusing anybody, make it a shadow."]
    return [*lines, "", "To try it for a day, without refusing anybody:", "", f"    {paste.command}"]


_ABOUT_UNITS = (
    "The cost is the median. It is charged first. Let settle name the field of your response that holds the real cost."
)


def _gap(window: str, gap: Gap) -> str:
    made = f"{gap.most:,}" if gap.least == gap.most else f"{gap.least:,} to {gap.most:,}"
    few = "one" if gap.above == 1 else f"{gap.above:,}"
    return (
        f"In any {window}, {gap.subjects:,} of {gap.subjects + gap.above:,} subjects need at most "
        f"{gap.at_most:,}; {few} made {made}."
    )


_HEADINGS = ("RULES", "REQUESTS REFUSED", "SUBJECTS", "2ND HALF, CHOSEN ON 1ST")


def _row(choice: Choice) -> tuple[str, str, str, str]:
    refused = choice.refused
    return (
        "; ".join(map(rule_text, choice.rules)),
        share(refused.requests, refused.of_requests),
        share(refused.subjects, refused.of_subjects),
        "" if choice.later is None else percent(choice.later.share_of_requests),
    )


# record


@command("record", short_help="Record requests for a time, for simulate and suggest.", json=False)
@click.option("--for", "for_", default="10m", show_default=True, metavar="TIME", help="How long: 90s, 15m, 2h.")
@click.option("--stop", is_flag=True, help="Stop now.")
def record_command(for_: str, stop: bool) -> None:
    """Let the app's Recorder(..., on_demand=True) write requests for a time, in all processes that share its folder.

    They begin within a second. `simulate` and `suggest` read what was written.
    """
    recordings = recordings_of(app_in_force())
    if not recordings:
        raise click.ClickException('this app has no Recorder: add Recorder(app, "recorded", on_demand=True) to it')
    until = time.time() if stop else time.time() + seconds_of(for_)
    for recording in recordings:
        if not recording.on_demand:
            console.echo(f"{recording.folder}: records all the time; for a time only: Recorder(..., on_demand=True)")
            continue
        try:
            recording.ask(until)
        except OSError as error:
            raise click.ClickException(f"{recording.folder}: {error.strerror}") from error
        console.echo(f"{recording.folder}: " + ("stopped" if stop else f"records until {local_time(until)}"))
