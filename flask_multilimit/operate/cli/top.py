"""``flask multilimit top``: a live screen of what is refused."""

from __future__ import annotations

import contextlib
import select
import shutil
import sys
import time
from collections.abc import Iterator
from math import inf

import click

from ...engine import StorageError
from ...engine.errors import with_remedy
from ...engine.storage.redis.uri import address_of
from ...observe.traffic import RecentTraffic, TrafficReader, reader_of
from ...serve.gate import AppGate
from .. import console
from ..slots import slots_in_use
from ..top import Storage, bans_of, screen
from ..top import as_json as top_as_json
from .base import as_json, command, current_gate, for_people, require_shared_storage, write, write_json

REFRESH_SECONDS = 1.0
SECONDS = 5.0
"""The time between two looks for slots in use and bans. For slots, SCAN goes through all keys of the server."""
PAUSE = 20
"""The time between two looks is at least this many times as long as a look takes."""
_ALTERNATE, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@command("top", short_help="Show live who is refused, where, and by which rule.")
@click.option("--minutes", type=click.IntRange(1, 60), default=5, show_default=True, help="The time to look back.")
@click.option("--once", is_flag=True, help="Show one screen and exit.")
@as_json
def top_command(minutes: int, once: bool, as_json: bool) -> None:
    """Show live who is refused, where, and by which rule. Press q to quit.

    The screen shows what all processes have counted (MULTILIMIT_TRAFFIC): refusals a second by endpoint and rule,
    checks that left less than 20 % of a quota (NEAR), and the subjects that are refused most. It also shows the bans in
    force that limiters began (`flask multilimit entries` lists those made by hand), and the slots of Concurrent rules
    in use now, wherever they were taken: at an endpoint, in a function or by a check.
    """
    with for_people():
        gate = current_gate()
        if not gate.settings.traffic:
            raise click.ClickException("MULTILIMIT_TRAFFIC is False: nothing is counted.")
        require_shared_storage(gate)
        reader = reader_of(gate.limiter.storage, gate.settings.key_prefix)
        live = not (once or as_json) and sys.stdout.isatty() and sys.stdin.isatty()
        if live:
            _show_live(gate, reader, minutes)
            return
        recent, storage = _read(gate, reader, minutes)
        if recent is None:
            raise click.ClickException(storage.error)
        slots, bans = slots_in_use(gate), bans_of(reader.bans())
    if as_json:
        write_json(**top_as_json(recent, storage, slots, bans))
    else:
        size = shutil.get_terminal_size((80, 24))
        write(screen(recent, storage, slots, bans, app=gate.app.name, columns=size.columns, rows=60))


def _read(gate: AppGate, reader: TrafficReader, minutes: int) -> tuple[RecentTraffic | None, Storage]:
    name = address_of(getattr(gate.limiter.storage, "client", None)) or type(gate.limiter.storage).__name__
    begin = time.perf_counter()
    try:
        reader.read(1)
        milliseconds = (time.perf_counter() - begin) * 1000 / 2  # two round trips: the time, and one slice
        return reader.read(minutes * 60), Storage(name, milliseconds)
    except StorageError as error:
        return None, Storage(name, None, with_remedy(error))


def _show_live(gate: AppGate, reader: TrafficReader, minutes: int) -> None:
    """Refresh until q or Ctrl-C. While the storage is away, the last screen stays, with the error above it."""
    latest: RecentTraffic | None = None
    slots, bans, due = [], [], -inf
    with _raw_keys():
        while True:
            recent, storage = _read(gate, reader, minutes)
            latest = recent or latest
            begin = time.monotonic()
            if begin >= due and recent is not None:
                with contextlib.suppress(StorageError):  # the next look at the traffic reports it
                    slots, bans = slots_in_use(gate), bans_of(reader.bans())
                end = time.monotonic()
                due = end + max(SECONDS, PAUSE * (end - begin))
            size = shutil.get_terminal_size((80, 24))
            if latest is None:
                lines = [f"{gate.app.name}: {storage.error}"[: size.columns]]
            else:
                lines = screen(
                    latest, storage, slots, bans, app=gate.app.name, columns=size.columns, rows=size.lines - 1
                )
            drawn = "".join(f"{console.styled(line)}{_CLEAR_LINE}\r\n" for line in lines)
            sys.stdout.write(_HOME + drawn + _CLEAR_BELOW + console.styled(console.style("q: quit", dim=True)))
            sys.stdout.flush()
            if _pressed() in {"q", "Q", "\x03", "\x1b"}:
                return


def _pressed() -> str:
    """The key that is pressed before the next refresh, if any."""
    readable, _, _ = select.select([sys.stdin], [], [], REFRESH_SECONDS)
    return sys.stdin.read(1) if readable else ""


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Switch to a separate screen and read single keys; restore both at the end."""
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415 - as above

    before = termios.tcgetattr(sys.stdin)
    sys.stdout.write(_ALTERNATE)
    try:
        tty.setcbreak(sys.stdin)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_BACK)
        sys.stdout.flush()
