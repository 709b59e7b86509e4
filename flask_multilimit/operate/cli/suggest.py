"""``flask multilimit suggest``: finds the smallest counts that refuse at most a given part of a log."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path

import click

from ...declare.advice import app_in_force
from ...insight.text import plural, rule_text
from .. import console
from ..dashboard.whatif import file_of, what_if
from ..simulate.picture import draw
from ..simulate.questions import arrivals_of, share_from
from ..simulate.suggest import Choice, Gap, Suggestion, Traffic, declaration, suggest_for, toml, traffic_of, windows_of
from ..simulate.suggest import command as command_to_try
from . import command, show
from .logs import (
    FILE,
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
    logs = log.open_logs(cost_field)
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
        lambda: [*stopped_lines(complete=logs.complete), *_screen(found, log.zone), *file_lines(logs.files)],
        suggestion=found.as_json(),
        paste={
            "decorator": declaration(found, found.proposed),
            "toml": toml(found),
            "command": command_to_try(found),
        },
        complete=logs.complete,
    )


def _page(found: Suggestion, traffic: Traffic, source: str, refuse_at_most: str) -> str:
    """The page What if of the dashboard, with a part for each window."""
    windows = range(len(found.peaks))
    return file_of([what_if(traffic, found, each, source=source, refuse_at_most=refuse_at_most) for each in windows])


def _screen(found: Suggestion, zone: tzinfo) -> list[str]:
    span = f"{local_time(found.first, zone)} to {local_time(found.last, zone)} {zone}"
    about = f"{found.requests:,} requests of {plural(found.subjects, 'subject')} ({found.type}) from {span}"
    lines = [*console.paragraph(about), ""]
    rows = [
        (each.in_words, *(f"{value:,}" for value in (each.p50, each.p90, each.p99, each.p999, each.max)))
        for each in found.peaks
    ]
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
    for text in (declaration(found, found.proposed), toml(found)):
        lines += ["", *(f"    {line}" for line in text.split("\n"))]
    if found.estimate is not None:
        lines += ["", *console.paragraph(_ABOUT_UNITS)]
    trial = command_to_try(found)
    if trial is None:
        return [*lines, "", "To try it without refusing anybody, make it a shadow."]
    return [*lines, "", "To try it for a day, without refusing anybody:", "", f"    {trial}"]


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
