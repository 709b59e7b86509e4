"""The screen of top: what is on it, and that it fits."""

from __future__ import annotations

import click
import pytest

from flask_multilimit.observe.traffic import BansBegun, Check, Counts, RecentTraffic, Refused, RuleCount
from flask_multilimit.operate.top import (
    SlotsInUse,
    Storage,
    as_json,
    bans_of,
    endpoints_of,
    rules_of,
    screen,
    sparkline,
)

STORAGE = Storage("redis://localhost:6379/0", 0.42)


def recent() -> RecentTraffic:
    busy = Counts(
        {
            Check("search", "allowed", "storage"): 50,
            Check("search", "refused", "deny_cache"): 150,
            Check("login", "denied", "list"): 20,
            Check("quote", "allowed", "storage"): 900,
        },
        {
            RuleCount("search", "ip-60s", "refuses"): 150,
            RuleCount("search", "ip-60s", "near"): 10,
            RuleCount("quote", "default-60s", "shadows"): 5,
        },
        {Refused("search", "ip-60s", "ip", "203.0.113.7"): 100, Refused("search", "ip-60s", "user", "a" * 60): 50},
    )
    return RecentTraffic(1_700_000_020.0, 1_700_000_000.0, (Counts(), busy))


def lines(columns: int, rows: int = 40, storage: Storage = STORAGE) -> list[str]:
    return [click.unstyle(line) for line in screen(recent(), storage, app="shop", columns=columns, rows=rows)]


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("rows", [5, 12, 24, 60])
def test_it_fits(columns: int, rows: int) -> None:
    shown = lines(columns, rows)

    assert len(shown) <= rows
    assert max(map(len, shown)) <= columns


def test_a_narrow_screen_still_says_who() -> None:
    shown = [line for line in lines(44) if "203.0" in line]

    assert shown == ["100     203.0.113.7   ip-60s  search  10 s …"]


def test_what_is_on_it() -> None:
    text = "\n".join(lines(120))

    assert "47.5 passed, 7.50 refused a second (13.4%)" in text
    assert "storage answers in 0.4 ms, redis://localhost:6379/0" in text
    assert "search    7.50       2.50      0        ▁█" in text
    assert "203.0.113.7" in text
    assert f"user {'a' * 60}" in text
    assert "10 s ago" in text


def test_who_refuses_most_comes_first() -> None:
    assert [each.endpoint for each in endpoints_of(recent())] == ["search", "login", "quote"]
    assert [(rule.rule, rule.refuses, rule.near, rule.shadows) for rule in rules_of(recent())] == [
        ("ip-60s", 7.5, 0.5, 0),
        ("default-60s", 0, 0, 0.25),
    ]


def test_what_is_rare_is_not_shown_as_nothing() -> None:
    rare = Counts({Check("login", "refused", "storage"): 1}, {RuleCount("login", "ip-60s", "refuses"): 1})
    text = screen(RecentTraffic(1_700_000_300.0, 1_700_000_000.0, (rare,)), STORAGE, app="shop", columns=90, rows=40)

    assert ["login", "<0.01", "0", "0"] in [line.split() for line in map(click.unstyle, text)]


def test_bans_have_columns_where_there_are_any() -> None:
    banning = Counts(
        {Check("login", "banned", "deny_cache"): 30},
        {RuleCount("login", "ip-ban", "refuses"): 30, RuleCount("login", "ip-ban", "bans"): 2},
    )
    text = screen(RecentTraffic(1_700_000_010.0, 1_700_000_000.0, (banning,)), STORAGE, app="shop", columns=90, rows=40)

    shown = [line.split() for line in map(click.unstyle, text)]
    assert ["ENDPOINT", "REFUSED/s", "PASSED/s", "BANNED/s", "OTHER/s"] in shown
    assert ["login", "0", "0", "3.00", "0"] in shown
    assert ["ip-ban", "login", "3.00", "0", "0", "2"] in shown
    assert "BANNED/s" not in "".join(lines(120))


def test_bans_in_force_have_a_line_where_there_are_any() -> None:
    now = 1_700_000_020.0
    ends = {("login", "ip-ban"): [now + 1, now + 9, now], ("signup", "ip-ban"): [now + 1], ("old", "ip-ban"): [now - 1]}
    bans = bans_of(BansBegun(now, ends))
    for columns in (120, 30):
        text = [
            click.unstyle(line) for line in screen(recent(), STORAGE, (), bans, app="shop", columns=columns, rows=40)
        ]
        line = "3 bans in force: login by ip-ban 2, signup by ip-ban 1"
        assert text[2] == (line if columns > 60 else f"{line[:29]}…")

    assert as_json(recent(), STORAGE, (), bans)["bans_in_force"] == [
        {"endpoint": "login", "rule": "ip-ban", "amount": 2},
        {"endpoint": "signup", "rule": "ip-ban", "amount": 1},
    ]
    assert "in force" not in "".join(lines(120))


def test_slots_in_use_have_a_table_where_there_are_any() -> None:
    slots = [SlotsInUse("report", 4, 5, "user", "ada"), SlotsInUse("export", 1, 2, "default", "")]
    slots.append(SlotsInUse("mail", 3, None, "default", ""))
    text = screen(recent(), STORAGE, slots, app="shop", columns=80, rows=40)

    shown = [line.split() for line in map(click.unstyle, text)]
    assert ["SLOTS", "SUBJECT", "ENDPOINT"] in shown
    assert ["4", "of", "5", "user", "ada", "report"] in shown
    assert ["1", "of", "2", "everyone", "export"] in shown
    assert ["3", "everyone", "mail"] in shown
    assert "SLOTS" not in "".join(lines(80))
    assert as_json(recent(), STORAGE, slots)["slots"][0]["used"] == 4


def test_nothing_is_said() -> None:
    nothing = RecentTraffic(1_700_000_010.0, 1_700_000_000.0, (Counts(),))

    assert "No checks in this time." in screen(nothing, STORAGE, app="shop", columns=80, rows=24)


def test_a_storage_that_is_away() -> None:
    assert "storage away: timed out" in lines(80, storage=Storage("redis", None, "timed out"))


@pytest.mark.parametrize(
    ("series", "bars"),
    [((), ""), ((0, 0), "▁▁"), ((0, 1, 100), "▁▂█"), ((7,) * 24, "█" * 12), ((0,) * 13 + (9,), "▁" * 6 + "█")],
)
def test_sparklines(series: tuple[int, ...], bars: str) -> None:
    assert sparkline(series) == bars


def test_json_has_the_same() -> None:
    told = as_json(recent(), STORAGE)

    assert told["endpoints"][0]["refused"] == 7.5
    assert told["subjects"][0]["subject"] == "203.0.113.7"
    assert told["storage"] == {"name": "redis://localhost:6379/0", "milliseconds": 0.42, "error": ""}
