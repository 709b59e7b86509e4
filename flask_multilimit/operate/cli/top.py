"""``flask multilimit top``: a live screen of what is refused."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import click

from ...engine.text import visible
from ...insight.keys import SlotsInUse, slots_now
from ...insight.text import duration, local_time, plural, rate
from ...insight.traffic import EndpointTraffic, Now, RefusedClient, RuleTraffic, now
from ...serve.gate import AppGate
from .. import console
from . import command, shared_gate, show, wants_json

REFRESH_SECONDS = 1.0
MOST_ROWS = 10
"""The most rows of each table."""
_SHORTEST = 6
_LONGEST_KEPT = 30
"""The fewest columns of a cell, and the most of a name that others make room for: an IPv6 network has at most 23."""
_QUIT = frozenset(b"qQ\x03\x1b")
_ALTERNATE, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@command("top", short_help="Show who is refused now, live.")
@click.option(
    "--minutes", type=click.IntRange(1, 60), default=5, show_default=True, help="The time to look back, in minutes."
)
@click.option("--once", is_flag=True, help="Show one screen and exit.")
def top_command(minutes: int, once: bool) -> None:
    """Show who is refused now, where, and by which rule. Press q to quit. If the output is not a terminal, this shows
    one screen and ends.

    The screen shows what all processes have counted (MULTILIMIT_TRAFFIC): rates of the last minute by endpoint; by
    rule the checks that it refused, that left less than 20 % of a quota (NEAR) and that it would have refused
    (SHADOW); and the subjects that are refused most. It also shows how many bans by limiters are in force
    (`flask multilimit bans` lists them), and the slots of Concurrent rules in use now, wherever they were taken.
    """
    gate = shared_gate()
    live = not (once or wants_json()) and console.is_screen(sys.stdin, sys.stdout)
    found = now(gate, minutes=minutes, patient=True)
    if not found.counted:
        raise click.ClickException(found.why_not)
    if live:
        _show_live(gate, found)
        return
    if found.storage.state == "failed":
        raise click.ClickException(found.storage.error)
    slots = slots_now(gate)
    if slots.problem:
        console.echo(f"Slots in use are not known: {slots.problem}", err=True)
    lines = partial(screen, found, slots.slots, app=gate.app.name, columns=console.width(), rows=60)
    show(lines, found, slots=slots.slots)


def _show_live(gate: AppGate, found: Now) -> None:
    """Refresh until q or Ctrl-C. While the storage is down, the last numbers stay, with the error above them."""
    with _raw_keys():
        while True:
            size = shutil.get_terminal_size((80, 24))
            lines = screen(found, slots_now(gate).slots, app=gate.app.name, columns=size.columns, rows=size.lines - 1)
            drawn = "".join(f"{console.styled(line)}{_CLEAR_LINE}\r\n" for line in lines)
            console.write_text(_HOME + drawn + _CLEAR_BELOW + console.styled(console.style("q: quit", dim=True)))
            if _wants_to_quit():
                return
            found = now(gate, minutes=found.minutes, patient=True)


def _wants_to_quit() -> bool:
    """Whether a key that quits is pressed before the next refresh, or the terminal is gone."""
    readable, _, _ = select.select([sys.stdin], [], [], REFRESH_SECONDS)
    if not readable:
        return False
    keys = os.read(sys.stdin.fileno(), 1024)  # stdin itself would keep further keys, which select() does not see
    return not keys or not _QUIT.isdisjoint(keys)


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Switch to a separate screen and read single keys; restore both at the end."""
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415 - as above

    before = termios.tcgetattr(sys.stdin)
    console.write_text(_ALTERNATE)
    try:
        tty.setcbreak(sys.stdin)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_BACK)
        sys.stdout.flush()


# The screen


def screen(found: Now, slots: Sequence[SlotsInUse] = (), *, app: str, columns: int, rows: int) -> list[str]:
    """Lines that fit ``columns`` and ``rows``."""
    lines = [_title(app, found, columns), _totals(found, columns), *_bans(found, columns), _storage(found, columns)]
    lines += [*_workers(found, columns), ""]
    if not found.endpoints:
        lines += ["No checks in this time.", ""]
    room = max((rows - len(lines) - 2 * (4 if slots else 3) - 2) // (4 if slots else 3), 1)
    table = partial(_table, room=room, columns=columns)
    endpoint_columns = ENDPOINT_COLUMNS if found.totals.banned.amount else ENDPOINT_COLUMNS[:-1]
    endpoints = [_endpoint_row(each)[: len(endpoint_columns)] for each in found.endpoints]
    lines += table(endpoint_columns, endpoints, total=found.paging.total)
    rule_columns = RULE_COLUMNS if found.totals.bans.amount else RULE_COLUMNS[:-1]
    lines += table(rule_columns, [_rule_row(each)[: len(rule_columns)] for each in found.rules])
    lines += table(("REFUSED", "WHO", "RULE", "ENDPOINT", "SINCE"), list(map(_subject_row, found.subjects)), keep=1)
    in_use = [(_slots_used(each), _who(each.type, each.shown), each.endpoint) for each in slots]
    return [*lines, *table(("SLOTS", "SUBJECT", "ENDPOINT"), in_use)][:rows]


def _title(app: str, found: Now, columns: int) -> str:
    left = f"{app}, the last {duration(round(found.seconds or found.minutes * 60))}"
    right = local_time(found.at)
    return console.style(f"{left}{right:>{max(columns - len(left), len(right) + 1)}}"[:columns], bold=True)


def _totals(found: Now, columns: int) -> str:
    passed, refused = found.totals.passed.rate, found.totals.refused.rate
    banned, unanswered = found.totals.banned.rate, found.totals.unanswered.rate
    share = f" ({refused / (passed + refused + banned + unanswered):.1%})" if refused else ""
    more = f", {rate(banned)} banned or denied" if banned else ""
    more += f", {rate(unanswered)} unanswered" if unanswered else ""
    text = _cell(f"{rate(passed)} passed, {rate(refused)} refused a second{share}{more}", columns).rstrip()
    return console.style(text, fg="red") if refused or banned or unanswered else text


def _bans(found: Now, columns: int) -> list[str]:
    if not found.bans_in_force:
        return []
    by_limiter = ", ".join(f"{each.endpoint} by {each.rule} {each.amount}" for each in found.bans_in_force)
    total = sum(each.amount for each in found.bans_in_force)
    return [_cell(f"{plural(total, 'ban')} by limiters in force: {by_limiter}", columns).rstrip()]


def _storage(found: Now, columns: int) -> str:
    storage = found.storage
    if storage.milliseconds is None:
        return console.style(_cell(f"storage down: {storage.error}", columns).rstrip(), fg="red")
    name = storage.address or storage.name
    return _cell(f"storage answers in {storage.milliseconds:.1f} ms, {name}", columns).rstrip()


def _workers(found: Now, columns: int) -> list[str]:
    if found.workers is None:
        return []
    return [console.style(_cell(str(found.workers), columns).rstrip(), fg=None if found.workers.agree else "yellow")]


ENDPOINT_COLUMNS = ("ENDPOINT", "REFUSED/s", "PASSED/s", "BANNED/s")
RULE_COLUMNS = ("RULE", "ENDPOINT", "REFUSES", "NEAR", "SHADOW", "BANS")
"""The last column of both is left out if nobody was banned."""


def _endpoint_row(each: EndpointTraffic) -> tuple[str, ...]:
    amounts = each.amounts
    return (each.endpoint, rate(amounts.refused.rate), rate(amounts.passed.rate), rate(amounts.banned.rate))


def _rule_row(each: RuleTraffic) -> tuple[str, ...]:
    return (each.rule, each.endpoint, str(each.refuses), str(each.near), str(each.shadows), str(each.bans))


def _subject_row(each: RefusedClient) -> tuple[str, ...]:
    rules = dict.fromkeys(rule.rule for rule in each.rules)
    endpoints = dict.fromkeys(rule.endpoint for rule in each.rules)
    since = time.strftime("%H:%M:%S", time.localtime(each.since))  # within the hour before the title's time
    return (str(each.refused), _who(each.type, each.shown), _first_and_more(rules), _first_and_more(endpoints), since)


def _first_and_more(names: Iterable[str]) -> str:
    first, *others = names
    return f"{first} +{len(others)}" if others else first


def _slots_used(each: SlotsInUse) -> str:
    return str(each.used) if each.limit is None else f"{each.used} of {each.limit}"


def _who(type_name: str, shown: str) -> str:
    return shown if type_name in {"ip", "default"} else f"{type_name} {shown}"


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    room: int,
    columns: int,
    total: int = 0,
    keep: int | None = None,
) -> list[str]:
    """At most ``room`` of the rows, one line each; nothing if there are none. There may be more rows in ``total``.
    ``keep`` is the place of a column of names, which is shortened only when the others cannot be any shorter."""
    if not rows:
        return []
    shown = [headings, *([visible(cell) for cell in row] for row in rows[: min(room, MOST_ROWS)])]
    sizes = [max(len(row[place]) for row in shown) for place in range(len(headings))]
    every, kept = range(len(sizes)), [] if keep is None else [keep]
    others, room_for_cells = [place for place in every if place != keep], columns - console.GAP * (len(sizes) - 1)
    for places, least in ((others, console.NARROWEST), (kept, _LONGEST_KEPT), (others, _SHORTEST), (every, 0)):
        while places and sum(sizes) > room_for_cells and sizes[widest := max(places, key=sizes.__getitem__)] > least:
            sizes[widest] -= 1
    lines = [
        (" " * console.GAP).join(_cell(cell, size) for cell, size in zip(row, sizes, strict=True)) for row in shown
    ]
    left = max(total, len(rows)) - len(shown) + 1
    more = [f"+{left} more"] if left else []
    return [console.style(lines[0].rstrip(), dim=True), *(line.rstrip() for line in lines[1:]), *more, ""]


def _cell(text: str, size: int) -> str:
    text = visible(text)
    return text.ljust(size) if len(text) <= size else f"{text[: max(size - 1, 0)]}…"[:size]
