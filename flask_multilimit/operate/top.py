"""The screen of ``flask multilimit top``: recent refusals and admissions by endpoint, rule and subject."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..engine.text import visible
from ..observe.events import PASSED, TURNED_AWAY
from ..observe.traffic import BansBegun, RecentTraffic, TopSubject
from . import console

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 12
"""Columns of a sparkline."""
MOST_ROWS = 10
"""The most rows of each table."""
_SHORTEST = 6
"""The fewest columns of a cell."""
_WIDE = 100
"""The fewest columns of a screen with sparklines."""


class Storage(NamedTuple):
    """The state of the storage."""

    name: str
    """Its kind or its address."""
    milliseconds: float | None
    """The time of a round trip; ``None`` if it did not answer."""
    error: str = ""


class EndpointRates(NamedTuple):
    """One line of the first table. Rates are per second."""

    endpoint: str
    passed: float
    refused: float
    banned: float
    other: float
    """Denied and unanswered."""
    refused_series: tuple[int, ...]


class RuleRates(NamedTuple):
    """One line of the second table."""

    endpoint: str
    rule: str
    refuses: float
    near: float
    shadows: float
    bans: int
    """Bans that began in this time."""


class BansInForce(NamedTuple):
    """Bans of one limiter that hold now."""

    endpoint: str
    rule: str
    """The name of the ban."""
    amount: int


class SlotsInUse(NamedTuple):
    """One line of the last table: a subject of a Concurrent rule."""

    endpoint: str
    """The endpoint, or the scope of a check or of a function."""
    used: int
    limit: int | None
    """``None`` if it is not known here, because code or the request determines it."""
    type: str
    subject: str


def endpoints_of(recent: RecentTraffic) -> list[EndpointRates]:
    """The endpoints: first those with the most refusals, then those with the most requests."""
    seconds, total = recent.seconds, recent.total
    sums: dict[str, list[int]] = {}
    for check, amount in total.checks.items():
        passed, refused, banned, other = sums.setdefault(check.endpoint, [0, 0, 0, 0])
        passed += amount * (check.outcome in PASSED)
        refused += amount * (check.outcome == "refused")
        banned += amount * (check.outcome == "banned")
        other += amount * (check.outcome in TURNED_AWAY - {"refused", "banned"})
        sums[check.endpoint] = [passed, refused, banned, other]
    ranked = sorted(sums.items(), key=lambda each: (-each[1][1], -each[1][2], -each[1][3], -each[1][0], each[0]))
    return [
        EndpointRates(
            endpoint,
            passed / seconds,
            refused / seconds,
            banned / seconds,
            other / seconds,
            recent.checks(endpoint=endpoint, outcomes=["refused"]) if place < MOST_ROWS else (),
        )
        for place, (endpoint, (passed, refused, banned, other)) in enumerate(ranked)
    ]


def bans_of(begun: BansBegun) -> list[BansInForce]:
    """The bans that hold, by limiter, the most frequent first."""
    held = [BansInForce(*name, amount) for name, amount in begun.in_force().items()]
    return sorted(held, key=lambda each: (-each.amount, each))


def rules_of(recent: RecentTraffic) -> list[RuleRates]:
    """The rules: first those that refuse most, then those that come nearest to it."""
    seconds = recent.seconds
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for each, amount in recent.total.rules.items():
        of_rule = sums.setdefault((each.endpoint, each.rule), {})
        of_rule[each.did] = of_rule.get(each.did, 0) + amount
    rates = [
        RuleRates(
            endpoint,
            rule,
            refuses=amounts.get("refuses", 0) / seconds,
            near=amounts.get("near", 0) / seconds,
            shadows=amounts.get("shadows", 0) / seconds,
            bans=amounts.get("bans", 0),
        )
        for (endpoint, rule), amounts in sums.items()
    ]
    return sorted(rates, key=lambda rule: (-rule.refuses, -rule.near, -rule.shadows, rule))


def screen(
    recent: RecentTraffic,
    storage: Storage,
    slots: Sequence[SlotsInUse] = (),
    bans: Sequence[BansInForce] = (),
    *,
    app: str,
    columns: int,
    rows: int,
) -> list[str]:
    """Lines that fit ``columns`` and ``rows``."""
    endpoints, rules, subjects = endpoints_of(recent), rules_of(recent), recent.top_subjects(MOST_ROWS)
    lines = [_title(app, recent, columns), _totals(endpoints, columns), *_bans_line(bans, columns)]
    lines += [_storage_line(storage, columns), ""]
    if not endpoints:
        return [*lines, "No checks in this time."][:rows]
    tables = 4 if slots else 3
    room = max((rows - len(lines) - 2 * tables - 2) // tables, 1)
    spark = columns >= _WIDE
    banned = any(each.banned for each in endpoints)
    lines += _table(
        ("ENDPOINT", "REFUSED/s", "PASSED/s", *(["BANNED/s"] * banned), "OTHER/s", *(["REFUSED"] * spark)),
        [_endpoint_row(each, spark=spark, bans=banned) for each in endpoints],
        room,
        columns,
    )
    lines += _table(
        ("RULE", "ENDPOINT", "REFUSES/s", "NEAR/s", "SHADOW/s", *(["BANS"] * banned)),
        [_rule_row(each, bans=banned) for each in rules],
        room,
        columns,
    )
    lines += _table(
        ("REFUSED", "SUBJECT", "RULE", "ENDPOINT", "SINCE"),
        [_subject_row(each, recent.at) for each in subjects],
        room,
        columns,
        keep=1,
    )
    lines += _table(
        ("SLOTS", "SUBJECT", "ENDPOINT"),
        [(_slots_used(each), _who(each.type, each.subject), each.endpoint) for each in slots],
        room,
        columns,
    )
    return lines[:rows]


def sparkline(series: Sequence[int]) -> str:
    """The series as bars, the oldest first; slices are joined if there are more than :data:`SPARKS`."""
    if not series:
        return ""
    size = -(-len(series) // SPARKS)
    start = len(series) % size and size - len(series) % size
    padded = [0] * start + list(series)
    sums = [sum(padded[place : place + size]) for place in range(0, len(padded), size)]
    most = max(sums)
    return "".join(BARS[-(-amount * (len(BARS) - 1) // most)] if most else BARS[0] for amount in sums)


def as_json(
    recent: RecentTraffic, storage: Storage, slots: Sequence[SlotsInUse] = (), bans: Sequence[BansInForce] = ()
) -> dict[str, Any]:
    """The same for programs."""
    return {
        "at": recent.at,
        "seconds": recent.seconds,
        "storage": storage._asdict(),
        "endpoints": [each._asdict() for each in endpoints_of(recent)],
        "rules": [each._asdict() for each in rules_of(recent)],
        "subjects": [each._asdict() for each in recent.top_subjects()],
        "bans_in_force": [each._asdict() for each in bans],
        "slots": [each._asdict() for each in slots],
    }


def _title(app: str, recent: RecentTraffic, columns: int) -> str:
    minutes = console.duration(round(recent.seconds))
    left, right = f"{app}, the last {minutes}", time.strftime("%H:%M:%S", time.localtime(recent.at))
    return console.style(f"{left}{right:>{max(columns - len(left), len(right) + 1)}}"[:columns], bold=True)


def _totals(endpoints: Iterable[EndpointRates], columns: int) -> str:
    endpoints = list(endpoints)
    passed, refused = sum(each.passed for each in endpoints), sum(each.refused for each in endpoints)
    banned, other = sum(each.banned for each in endpoints), sum(each.other for each in endpoints)
    share = f" ({refused / (passed + refused + banned + other):.1%})" if refused else ""
    away = f", {_rate(banned)} banned" if banned else ""
    text = _cell(f"{_rate(passed)} passed, {_rate(refused)} refused a second{share}{away}", columns).rstrip()
    return console.style(text, fg="red") if refused or banned else text


def _bans_line(bans: Sequence[BansInForce], columns: int) -> list[str]:
    if not bans:
        return []
    by_limiter = ", ".join(f"{each.endpoint} by {each.rule} {each.amount}" for each in bans)
    total = sum(each.amount for each in bans)
    return [_cell(f"{total} {'ban' if total == 1 else 'bans'} in force: {by_limiter}", columns).rstrip()]


def _storage_line(storage: Storage, columns: int) -> str:
    if storage.milliseconds is None:
        return console.style(_cell(f"storage away: {storage.error}", columns).rstrip(), fg="red")
    return _cell(f"storage answers in {storage.milliseconds:.1f} ms, {storage.name}", columns).rstrip()


def _endpoint_row(each: EndpointRates, *, spark: bool, bans: bool) -> tuple[str, ...]:
    cells = (each.endpoint, _rate(each.refused), _rate(each.passed), *([_rate(each.banned)] * bans), _rate(each.other))
    return (*cells, sparkline(each.refused_series)) if spark else cells


def _rule_row(each: RuleRates, *, bans: bool) -> tuple[str, ...]:
    cells = (each.rule, each.endpoint, _rate(each.refuses), _rate(each.near), _rate(each.shadows))
    return (*cells, str(each.bans)) if bans else cells


def _subject_row(each: TopSubject, at: float) -> tuple[str, ...]:
    return (
        str(each.refused),
        _who(each.type, each.subject),
        each.rule,
        each.endpoint,
        f"{console.duration(max(round(at - each.since), 1))} ago",
    )


def _slots_used(each: SlotsInUse) -> str:
    return str(each.used) if each.limit is None else f"{each.used} of {each.limit}"


def _who(type_name: str, subject: str) -> str:
    who = subject or "everyone"
    return who if type_name in {"ip", "default"} else f"{type_name} {who}"


def _rate(rate: float) -> str:
    if rate < 0.005:
        return "<0.01" if rate else "0"
    return f"{rate:.2f}" if rate < 10 else f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], room: int, columns: int, *, keep: int | None = None
) -> list[str]:
    """At most ``room`` rows, one line each; nothing if there are none. ``keep`` is the place of a column that is
    shortened only when the others cannot be any shorter."""
    if not rows:
        return []
    shown = [headings, *([visible(cell) for cell in row] for row in rows[: min(room, MOST_ROWS)])]
    sizes = [max(len(row[place]) for row in shown) for place in range(len(headings))]
    while sum(sizes) + console.GAP * (len(sizes) - 1) > columns:
        others = [place for place, size in enumerate(sizes) if place != keep and size > _SHORTEST]
        widest = max(others if keep is not None and others else range(len(sizes)), key=lambda place: sizes[place])
        sizes[widest] -= 1
    lines = [
        (" " * console.GAP).join(_cell(cell, size) for cell, size in zip(row, sizes, strict=True)) for row in shown
    ]
    return [console.style(lines[0].rstrip(), dim=True), *(line.rstrip() for line in lines[1:]), ""]


def _cell(text: str, size: int) -> str:
    text = visible(text)
    return text.ljust(size) if len(text) <= size else f"{text[: max(size - 1, 0)]}…"[:size]
