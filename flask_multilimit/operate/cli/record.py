"""``flask multilimit record``: asks the app's recorders to write requests for a time."""

from __future__ import annotations

import time
from typing import Any

import click
from flask import current_app

from ...control.control import seconds_of
from ...insight.text import local_time
from ..simulate.recorded import recordings_of
from .base import command, for_people, write


@command("record", short_help="Record requests for a time, for simulate and suggest.")
@click.option("--for", "for_", default="10m", show_default=True, metavar="TIME", help="How long: 90s, 15m, 2h.")
@click.option("--stop", is_flag=True, help="Stop now.")
def record_command(for_: str, stop: bool) -> None:
    """Let the app's Recorder(..., on_demand=True) write requests for a time, in all processes that share its folder.

    They begin within a second. `simulate` and `suggest` read what was written.
    """
    app: Any = current_app._get_current_object()  # type: ignore[attr-defined]
    recordings = recordings_of(app)
    if not recordings:
        raise click.ClickException('this app has no Recorder: add Recorder(app, "recorded", on_demand=True) to it')
    with for_people():
        until = time.time() if stop else time.time() + seconds_of(for_)
    for recording in recordings:
        if not recording.on_demand:
            write([f"{recording.folder}: records all the time; for a time only: Recorder(..., on_demand=True)"])
            continue
        try:
            recording.ask(until)
        except OSError as error:
            raise click.ClickException(f"{recording.folder}: {error.strerror}") from error
        write([f"{recording.folder}: " + ("stopped" if stop else f"records until {local_time(until)}")])
