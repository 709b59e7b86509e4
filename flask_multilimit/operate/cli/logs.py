"""The parts that commands for logs share; and ``flask multilimit record``, which asks the app's recorders for a log."""

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
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from ...control.control import seconds_of
from ...declare.advice import app_in_force
from ...insight import text
from .. import console
from ..simulate.formats import expression, format_of
from ..simulate.logged import MICROSECONDS, LoggedRequest, moment
from ..simulate.reading import STANDARD_INPUT, LogFile, Logs
from ..simulate.recorded import FILES, folders_of, recordings_of
from . import command, gathered, pairs_option

C = TypeVar("C", bound=Callable[..., Any])


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

    def open_logs(self, *fields: str) -> StoppableLogs:
        """The logs that were named, or else what the app's recorders wrote, with the fields that subjects need, and
        these ``fields``. Raises :class:`ConfigurationError`."""
        if self.format_ and self.regex:
            raise click.UsageError("--format and --regex: give only one of them")
        make_reader = expression(self.regex) if self.regex else format_of(self.format_) if self.format_ else None
        first, last = _moment("--since", self.since, self.zone), _moment("--until", self.until, self.zone)
        wanted = tuple(filter(None, (*self.subject.values(), *fields)))
        return StoppableLogs(self.logs or _recorded(), make_reader, self.zone, wanted, since=first, until=last)


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
        "--timezone", "zone", callback=_zone, metavar="NAME", help="The time zone of times without an offset."
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
    folders = folders_of(app_in_force())
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
        if any(file.lines for file in self.files) and not any(file.requests or file.outside for file in self.files):
            names = ", ".join(file.name for file in self.files)
            raise click.ClickException(
                f"{names}: no line could be read; name the format: --format combined, or the server's own format string"
            )

    def _progress(self) -> Any:
        is_known = all(map(os.path.isfile, self.paths))  # no error for a file in a folder that this user may not enter
        if not sys.stderr.isatty() or not is_known or STANDARD_INPUT in map(str, self.paths):
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


def local_time(at: int, zone: tzinfo) -> str:
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
            lines += console.paragraph(f"{file.name}: of {file.lines:,} lines, {'; '.join(problems)}", indent=2)
    return ["", "Problems in the log:", *lines] if lines else []


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
        console.echo(f"{recording.folder}: " + ("stopped" if stop else f"records until {text.local_time(until)}"))
