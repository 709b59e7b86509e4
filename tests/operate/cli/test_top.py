"""The screen of flask multilimit top: what it shows, and that it fits."""

import os
import pty
import time
import tty
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from typing import Any
from unittest.mock import Mock

import click
import pytest

from flask_multilimit.insight.changes import ChangesInForce
from flask_multilimit.insight.health import StorageState, WorkerInForce, Workers
from flask_multilimit.insight.keys import SlotsInUse
from flask_multilimit.insight.traffic import (
    CURVES,
    Amount,
    Amounts,
    BansBegunInForce,
    EndpointTraffic,
    Now,
    RefusedClient,
    RefusedSubject,
    RuleTraffic,
    Series,
)
from flask_multilimit.insight.values import Paging
from flask_multilimit.operate.cli import top
from flask_multilimit.operate.cli.top import _show_live, _wants_to_quit, screen

STORAGE = StorageState(
    name="RedisStorage", address="redis://localhost:6379/0", shared=True, guarded=True, milliseconds=0.42
)
AT = 1_700_000_020.0


def amounts(**rates: float) -> Amounts:
    """Rates, and their amounts in 20 seconds."""
    return Amounts(**{curve: Amount(rates.get(curve, 0.0), round(20 * rates.get(curve, 0))) for curve in CURVES})


def series(**lines: tuple[int, ...]) -> Series:
    return Series(**{curve: lines.get(curve, (0, 0)) for curve in CURVES})


def refused(type_: str, subject: str, times: int, rules: tuple[str, ...] = ("ip-60s",)) -> RefusedClient:
    by = [RefusedSubject(type_, subject, subject, True, "search", rule, times, times, AT - 10, AT) for rule in rules]
    return RefusedClient(type_, subject, subject, True, times, AT - 10, AT, tuple(by))


SINCE = time.strftime("%H:%M:%S", time.localtime(AT - 10))
SEARCH = EndpointTraffic("search", amounts(refused=7.5, passed=2.5), series(refused=(0, 150)))
BUSY = Now(
    at=AT,
    minutes=5,
    counted=True,
    why_not="",
    seconds=20.0,
    complete=True,
    endpoint=None,
    q="",
    sort="refused",
    totals=amounts(passed=47.5, refused=7.5, banned=1.0),
    series=series(),
    last=0,
    step=10,
    endpoints=(SEARCH, EndpointTraffic("quote", amounts(passed=45.0), series())),
    paging=Paging(1, 1, 2),
    rules=(RuleTraffic("search", "ip-60s", 150, 10, 0, 0), RuleTraffic("quote", "default-60s", 0, 0, 5, 0)),
    subjects=(refused("ip", "203.0.113.7", 100), refused("user", "a" * 60, 50)),
    bans_in_force=(),
    storage=STORAGE,
    changes=ChangesInForce(True, True, "", {}),
    workers=None,
)


def lines(columns: int, rows: int = 40, *slots: SlotsInUse, **changed: Any) -> list[str]:
    shown = screen(replace(BUSY, **changed), slots, app="shop", columns=columns, rows=rows)
    return [click.unstyle(line.replace("\x1b[2;", "\x1b[")) for line in shown]


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("rows", [5, 12, 24, 60])
def test_screen_fits_any_terminal_size(columns: int, rows: int) -> None:
    shown = [line for line in lines(columns, rows) if "\x1b" not in line]
    assert len(shown) <= rows
    assert max(map(len, shown)) <= columns


def test_narrow_screen_shows_refused_clients() -> None:
    shown = [line for line in lines(44) if "203.0" in line]
    assert shown == [f"100     203.0.113.7   ip-60s  search  {SINCE[:5]}…"]


@pytest.mark.parametrize("columns", [72, 80])
def test_long_name_leaves_room_for_the_rule_and_the_time(columns: int) -> None:
    (shown,) = (
        line for line in lines(columns, subjects=(refused("user", "a" * 60, 50, ("user-3600s",)),)) if "user-" in line
    )

    assert shown == f"50       user {'a' * (columns - 47)}…  user-3600s  search    {SINCE}"


def test_slots_in_use_are_shown_although_nothing_was_checked_in_this_time() -> None:
    shown = lines(80, 40, SlotsInUse("report", 4, 5, "user", "ada", "ada"), endpoints=(), rules=(), subjects=())

    assert "No checks in this time." in shown
    assert ["4", "of", "5", "user", "ada", "report"] in [line.split() for line in shown]


def test_wide_screen_shows_totals_storage_rates_and_subjects() -> None:
    text = "\n".join(lines(120))

    assert "47.5 passed, 7.50 refused a second (13.4%), 1.00 banned or denied" in text
    assert "storage answers in 0.4 ms, redis://localhost:6379/0" in text
    assert "search    7.50       2.50      0" in text
    assert "ip-60s       search    150      10    0" in text
    assert f"user {'a' * 60}" in text
    assert SINCE in text


def test_rate_of_rare_refusals_is_not_shown_as_zero() -> None:
    rare = EndpointTraffic("login", amounts(refused=0.003), series())
    assert ["login", "<0.01", "0"] in [line.split() for line in lines(90, endpoints=(rare,), totals=amounts())]


def test_rows_that_do_not_fit_are_counted() -> None:
    many = tuple(EndpointTraffic(f"view{number}", amounts(passed=1.0), series()) for number in range(30))
    assert "+24 more" in lines(80, 30, endpoints=many)
    assert "+324 more" in lines(80, 30, endpoints=many, paging=Paging(1, 14, 300 + len(many)))


def test_bans_in_force_are_shown_on_one_line() -> None:
    bans = (BansBegunInForce("login", "ip-ban", 2), BansBegunInForce("signup", "ip-ban", 1))
    assert lines(120, bans_in_force=bans)[2] == "3 bans by limiters in force: login by ip-ban 2, signup by ip-ban 1"
    assert lines(30, bans_in_force=bans)[2] == "3 bans by limiters in force: …"
    assert "in force" not in "".join(lines(120))


def test_slots_in_use_are_shown_in_a_table() -> None:
    slots = SlotsInUse("report", 4, 5, "user", "ada", "ada"), SlotsInUse("mail", 3, None, "default", "", "everyone")

    shown = [line.split() for line in lines(80, 40, *slots)]

    assert ["4", "of", "5", "user", "ada", "report"] in shown
    assert ["3", "everyone", "mail"] in shown
    assert "SLOTS" not in "".join(lines(80))


def test_storage_that_is_down_is_shown_with_its_error() -> None:
    away = replace(STORAGE, state="failed", error="timed out", milliseconds=None)
    assert "storage down: timed out" in "\n".join(lines(80, storage=away))


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_one_line_shows_how_many_workers_are_up_to_date(columns: int) -> None:
    both = tuple(WorkerInForce(f"host:{n}", n, n == 2, AT) for n in (1, 2))
    shown = lines(columns, workers=Workers(2, 1, 1, both))

    assert any(
        "1 of 2 workers at version 2; limits as in this checkout: only 1"[: columns - 1] in each for each in shown
    )


def test_key_that_quits_counts_also_behind_other_keys_and_when_the_terminal_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, end = pty.openpty()
    tty.setcbreak(end)
    with os.fdopen(end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        for keys, quits in ((b"x", False), (b"xq", True), (b"x", False), (b"\x1b", True)):
            os.write(terminal, keys)
            assert _wants_to_quit() is quits
        os.close(terminal)
        assert _wants_to_quit()


def test_live_screen_shows_characters_that_the_encoding_of_the_terminal_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setattr(top, "slots_now", lambda gate: Mock(slots=()))  # noqa: ARG005
    monkeypatch.setattr(top, "_wants_to_quit", lambda: True)
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written := BytesIO(), encoding="latin-1", write_through=True))
    terminal, end = pty.openpty()
    with os.fdopen(terminal), os.fdopen(end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        _show_live(Mock(**{"app.name": "shop"}), replace(BUSY, subjects=(refused("user", "\N{SNOWMAN}", 9),)))

    assert b"user \\u2603" in written.getvalue()
