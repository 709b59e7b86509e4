"""The tables of the documentation, made from the figures alone; they are also printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from . import (
    capacity,
    connections,
    footprint,
    growth,
    in_flask,
    in_memory,
    leases,
    local,
    memory_per_subject,
    observation,
    refusals,
    server,
    startup,
    threads,
    web,
)
from .contenders import OURS, case_of
from .results import Figure


class Cell(NamedTuple):
    """The figure in a column."""

    case: str
    quantity: str
    spread: bool = False
    """Whether it shows the middle 80 %, too."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a row for everyone who has a figure for one of the columns."""

    name: str
    part: str
    title: str
    columns: Mapping[str, Cell]
    best: str = "least"
    """Or "most", or "" where nobody competes."""
    corner: str = ""
    """What is true of all cells, above the names of the rows."""


YARDSTICKS = ("PING", "our script", "bare view", "pydantic", "ZREMRANGEBYSCORE")
"""Names that begin with these decide nothing, or are there for comparison."""

RULES = ("1 rule", "3 rules", "10 rules")

TABLES = (
    Table(
        "server",
        server.PART,
        "One admitted decision on a server, as a multiple of a `PING` through redis-py",
        {case: Cell(case, "times a PING") for case in ("no rule", *RULES)},
    ),
    Table(
        "server-3-rules",
        server.PART,
        "The same decision under three rules, in detail",
        {
            "times a PING, middle 80 %": Cell("3 rules", "times a PING", spread=True),
            "of CPU time": Cell("3 rules", "times a PING, CPU"),
            "µs": Cell("3 rules", "µs"),
            "CPU µs of the server": Cell("3 rules", "server CPU µs"),
            "commands": Cell("3 rules", "commands"),
            "bytes on the wire": Cell("3 rules", "bytes"),
        },
        best="",
    ),
    Table(
        "capacity",
        capacity.PART,
        "Decisions a second that keep one core of the server busy",
        {
            case: Cell(case, "decisions a second")
            for case in (capacity.case_on(kind, rules) for kind in capacity.SERVERS for rules in RULES)
        },
        best="most",
    ),
    Table(
        "server-time",
        capacity.PART,
        "Microseconds that the server spends in the commands of one decision",
        {
            case: Cell(case, "server µs")
            for case in (capacity.case_on(kind, rules) for kind in capacity.SERVERS for rules in ("no rule", *RULES))
        },
    ),
    Table(
        "round-trip",
        capacity.PART,
        "The same as the client sees it, microseconds",
        {
            case: Cell(case, "µs")
            for case in (capacity.case_on(kind, rules) for kind in capacity.SERVERS for rules in ("no rule", *RULES))
        },
    ),
    Table(
        "leases",
        leases.PART,
        "A check under rules with a lease, as a part of the same check without one",
        {
            f"{measured}{case}": Cell(case, f"times no lease{quantity}", spread=not quantity)
            for measured, quantity in (("", ""), ("CPU, ", ", CPU"))
            for case in map(case_of, leases.NUMBERS)
        }
        | {
            f"commands for {leases.COMMANDS:,} checks": Cell(
                case_of(leases.NUMBERS[0]), f"commands for {leases.COMMANDS:,} checks"
            )
        },
        best="",
    ),
    Table(
        "left-over",
        leases.PART,
        f"Units at the first refusal: {leases.SHARED_CASE}",
        {
            "admitted": Cell(leases.SHARED_CASE, "admitted"),
            "left over": Cell(leases.SHARED_CASE, "left over"),
            "(workers - 1) * lease": Cell(leases.SHARED_CASE, "at most"),
        },
        best="",
    ),
    Table(
        "memory",
        in_memory.PART,
        "One admitted decision in `memory://`, microseconds",
        {case: Cell(case, "µs") for case in RULES} | {f"CPU, {case}": Cell(case, "client CPU µs") for case in RULES},
        corner=in_memory.window_of(in_memory.MANY),
    ),
    Table(
        "memory-few",
        in_memory.PART,
        "How many times as long limits takes for it, with few units in the window",
        {case: Cell(in_memory.few(case), "times faster", spread=True) for case in RULES}
        | {f"CPU, {case}": Cell(in_memory.few(case), "times faster, CPU") for case in RULES},
        best="",
        corner=in_memory.window_of(in_memory.FEW),
    ),
    Table(
        "flask",
        in_flask.PART,
        "Microseconds that three limits add to a request in Flask",
        {
            "admitted": Cell("admitted", "µs added", spread=True),
            "times ours": Cell("admitted", "times ours", spread=True),
            "CPU": Cell("admitted", "CPU µs added"),
            "refused": Cell("refused", "µs added", spread=True),
            "refused, CPU": Cell("refused", "CPU µs added"),
        },
    ),
    Table(
        "web",
        web.PART,
        "Requests a second through gunicorn, and as a share of the bare view's in the same round",
        {
            "requests a second": Cell("admitted", "requests a second"),
            "share": Cell("admitted", "share of the bare view", spread=True),
            "refused: requests a second": Cell("refused", "requests a second"),
            "refused: share": Cell("refused", "share of the bare view", spread=True),
        },
        best="most",
    ),
    Table(
        "threads",
        threads.PART,
        "Decisions a second of one process, under three rules",
        {case: Cell(case, "decisions a second") for case in map(threads.case_of, threads.THREADS)}
        | {
            f"times register_script, {case}": Cell(case, "times register_script", spread=True)
            for case in map(threads.case_of, threads.THREADS[1:])
        },
        best="most",
    ),
    Table(
        "startup",
        startup.PART,
        "Milliseconds that an import adds to a process that imports Flask and redis-py anyway",
        {
            "ms more": Cell(startup.CASE, "ms more", spread=True),
            "CPU ms more": Cell(startup.CASE, "CPU ms more"),
        },
    ),
    Table(
        "growth",
        growth.PART,
        "Microseconds of one decision under one rule, by units in the window",
        {f"{size:,}": Cell(growth.case_with(size), "µs") for size in growth.SIZES}
        | {"most to least": Cell(growth.case_with(growth.SIZES[-1]), f"times that of {growth.SIZES[0]}", spread=True)},
    ),
    Table(
        "scripts",
        growth.PART,
        "Microseconds that the server spends in the scripts of one decision",
        {case: Cell(case, "script µs") for case in (*RULES, "one rule more")},
    ),
    Table(
        "expired",
        growth.PART,
        "Milliseconds of the server for a decision that finds a whole window expired",
        {f"{size:,} expired": Cell(f"{size:,} expired", "server ms", spread=True) for size in growth.SIZES[2:]},
        best="",
    ),
    Table(
        "footprint",
        footprint.PART,
        "Bytes for each unit in a sliding window, by units in the window",
        {
            f"server, {units:,}": Cell(footprint.case_with(units), "bytes a unit on a server")
            for units in footprint.UNITS
        }
        | {
            f"memory, {units:,}": Cell(footprint.case_with(units), "bytes a unit in memory")
            for units in footprint.UNITS[1:]
        },
    ),
    Table(
        "subject",
        footprint.PART,
        "Bytes of all that one rule keeps for one subject, by units used",
        {
            f"{where}, {units:,}": Cell(footprint.case_used(units), quantity)
            for where, quantity in (("server", "bytes on a server"), ("memory", "bytes in memory"))
            for units in memory_per_subject.UNITS
        },
        best="",
    ),
    Table(
        "sockets",
        connections.PART,
        "Microseconds by TCP and by unix socket, to a server on the same machine, three rules",
        {
            "TCP": Cell(connections.TCP, "µs"),
            "unix socket": Cell(connections.UNIX, "µs"),
            "unix to TCP": Cell(connections.UNIX, "times TCP", spread=True),
        },
        best="",
    ),
    Table(
        "pool",
        connections.PART,
        f"Decisions a second of {connections.THREADS} threads, by what the client's pool allows",
        {
            "decisions a second": Cell(f"{connections.THREADS} threads", "decisions a second"),
            "% of the checks that failed": Cell(f"{connections.THREADS} threads", "% failed"),
        },
        best="",
    ),
    Table(
        "local",
        local.PART,
        "The server of `local://`: milliseconds until it answers, and megabytes of it and its supervisor",
        {
            "ms of the first check": Cell(local.CASE, "ms of the first check", spread=True),
            "ms after it was killed": Cell(local.CASE, "ms without a server", spread=True),
            "MB": Cell(local.CASE, "MB"),
        },
        best="",
    ),
    Table(
        "refusals",
        refusals.PART,
        "One refused decision, as a multiple of a `PING` through redis-py",
        {case: Cell(case, "times a PING", spread=True) for case in RULES}
        | {f"µs, {case}": Cell(case, "µs") for case in RULES},
    ),
    Table(
        "kept",
        refusals.PART,
        "Bytes that a process keeps for each refusal",
        {case: Cell(case, "bytes kept") for case in RULES},
        best="",
    ),
    Table(
        "observation",
        observation.PART,
        "Microseconds that observing adds to a request",
        {case: Cell(case, "µs added") for case in observation.CASES}
        | {f"CPU, {case}": Cell(case, "CPU µs added", spread=True) for case in observation.CASES},
        best="",
    ),
    Table(
        "observation-beside",
        observation.PART,
        "What traffic takes beside the requests",
        {
            "a flush: CPU ms of the process": Cell(observation.FLUSH, "CPU ms", spread=True),
            "of the server": Cell(observation.FLUSH, "server CPU ms", spread=True),
            f"MB, {observation.MEMORY}": Cell(observation.MEMORY, "MB"),
        }
        | {
            f"found of the 20 refused most, Zipf {exponent}": Cell(observation.RECALL, observation.of_zipf(exponent))
            for exponent in observation.EXPONENTS
        },
        best="",
    ),
)


def markdown(table: Table, figures: Iterable[Figure]) -> str:
    """The table with the best of each column in bold, and below it who is ahead of us where."""
    found = _found(table, figures)
    rows = dict.fromkeys(who for who, _ in found)
    columns = [column for column in table.columns if any((who, column) in found for who in rows)]
    best = {column: _best(table, found, column) for column in columns}
    lines = [[table.corner, *columns], ["---"] * (len(columns) + 1)]
    for who in rows:
        cells = [_text(table.columns[column], found.get((who, column)), best[column]) for column in columns]
        lines.append([f"**{who}**" if who == OURS else who, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + _ahead(table, found, columns)


_Found = dict[tuple[str, str], Figure]
"""The figures by row and column."""


def _found(table: Table, figures: Iterable[Figure]) -> _Found:
    columns = {(cell.case, cell.quantity): column for column, cell in table.columns.items()}
    return {
        (figure.who, columns[figure.case, figure.quantity]): figure
        for figure in figures
        if figure.part == table.part and (figure.case, figure.quantity) in columns
    }


def _contenders(found: _Found, column: str) -> dict[str, float]:
    return {
        who: figure.value
        for (who, where), figure in found.items()
        if where == column and not who.startswith(YARDSTICKS) and (who == OURS or not who.startswith(OURS))
    }


def _best(table: Table, found: _Found, column: str) -> float | None:
    values = _contenders(found, column).values()
    if not table.best or not values:
        return None
    return min(values) if table.best == "least" else max(values)


def _ahead(table: Table, found: _Found, columns: Iterable[str]) -> str:
    """A sentence; empty if nobody competes."""
    if not table.best:
        return ""
    ahead: dict[str, list[str]] = {}
    for column in columns:
        values = _contenders(found, column)
        ours = values.get(OURS)
        for who, value in values.items():
            if ours is not None and (value < ours if table.best == "least" else value > ours):
                ahead.setdefault(who, []).append(f"{column}: {number(value)} to our {number(ours)}")
    if not ahead:
        return "\nNone of them is ahead of us.\n"
    text = "; ".join(f"{who} ({', '.join(where)})" for who, where in ahead.items())
    return f"\nAhead of us: {text}.\n"


def _text(cell: Cell, figure: Figure | None, best: float | None) -> str:
    if figure is None:
        return ""
    text = number(figure.value)
    text = f"**{text}**" if figure.value == best and not figure.who.startswith(YARDSTICKS) else text
    if cell.spread and figure.low is not None and figure.high is not None:
        text += f" ({number(figure.low)} to {number(figure.high)})"
    return text


def number(value: float) -> str:
    """``value`` with three significant digits, or all digits of a large one."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"
