"""What README says about other libraries, measured on the version that is installed."""

import importlib.metadata
import re
import runpy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import redis
from flask import Flask, request
from flask_limiter import Limiter

from flask_multilimit import IP, MultiLimit, rate_limiter
from support.folders import ROOT
from support.servers import Binary, Server

MEASURING = runpy.run_path(str(ROOT / "benchmarks" / "all_or_nothing.py"))
CALLS, EACH, EVERYONE, EXPECTED = (MEASURING[name] for name in ("CALLS", "EACH", "EVERYONE", "EXPECTED"))
Limits, flask_limiter, multilimit = (MEASURING[name] for name in ("Limits", "flask_limiter", "multilimit"))
AT_ONCE = 8
VERSION = importlib.metadata.version("flask-limiter")
PAGES = ("README.md", "README.zh-CN.md")


def left(call: Callable[[str], int]) -> int:
    """The number of calls that a greedy client leaves for others."""
    assert sum(call("203.0.113.1") == 200 for _ in range(CALLS)) == EACH
    return sum(call(f"198.51.100.{number}") == 200 for number in range(EVERYONE))


def rows(page: str) -> dict[str, list[str]]:
    """The cells of the comparison, by the first cell of each row, without emphasis."""
    text = (ROOT / page).read_text().replace("**", "")
    return {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for cells in (line.strip("| ").split("|") for line in re.findall(r"^\|.*\|$", text, re.MULTILINE))
    }


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("row", "app_for", "deduct"),
    [
        ("flask-multilimit", multilimit, False),
        (f"Flask-Limiter {VERSION}", flask_limiter, False),
        (f"Flask-Limiter {VERSION}, `deduct_when`", flask_limiter, True),
    ],
)
def test_table_shows_calls_left_after_a_greedy_client(
    page: str, row: str, app_for: Callable[..., Any], deduct: bool
) -> None:
    options = {"deduct_when": lambda response: response.status_code != 429} if deduct else {}
    measured = [
        left(app_for("memory://", Limits(everyone, each, True), **options))
        for everyone, each in (("hour", "day"), ("day", "hour"))
    ]

    assert [str(number) for number in measured] == rows(page)[row][:2]


@pytest.mark.slow  # it asks a server some two thousand times
@pytest.mark.filterwarnings("default")  # those of other libraries
@pytest.mark.parametrize("library", MEASURING["LIBRARIES"])
def test_table_matches_measurements_on_a_server(server_binaries: dict[str, Binary], library: str) -> None:
    """``nox -s examples`` installs them all."""
    pytest.importorskip(MEASURING["MODULES"][library])
    app_for = MEASURING["LIBRARIES"][library]
    with Server(next(iter(server_binaries.values())), tcp=True) as own, redis.Redis.from_url(own.tcp_url) as client:
        left_over: dict[str, set[int]] = {}
        for limits in MEASURING["CASES"]:
            client.flushall()
            found = MEASURING["left_for_others"](app_for(own.tcp_url, limits))
            left_over.setdefault(limits.everyone, set()).add(found)
        client.flushall()
        commands = MEASURING["commands"](own.tcp_url, app_for(own.tcp_url, MEASURING["CASES"][0]))

    measured = [" or ".join(map(str, sorted(left_over[window]))) for window in ("hour", "day")]
    name, option, more = library.partition(", ")
    version = importlib.metadata.version(name)
    row = f"{name}{'' if name == 'flask-multilimit' else f' {version}'}{option}{more and f'`{more}`'}"
    assert [*measured, str(commands)] == rows("README.md")[row]


def test_flask_limiter_orders_limits_by_unit_and_not_by_length() -> None:
    assert left(flask_limiter("memory://", Limits("90 minutes", "hour", True))) == EVERYONE - CALLS
    assert left(multilimit("memory://", Limits("90 minutes", "hour", True))) == EXPECTED


def test_flask_limiter_uses_fixed_windows_by_default() -> None:
    assert type(Limiter(lambda: "x", app=Flask("shop"), storage_uri="memory://").limiter).__name__ == (
        "FixedWindowRateLimiter"
    )


def pass_at_once(app: Flask, limit: Callable[[Any], Any]) -> int:
    """How many concurrent requests of one client pass."""
    together = Barrier(AT_ONCE)

    def view() -> str:
        with suppress(BrokenBarrierError):  # the others were refused
            together.wait(2)
        return "ok"

    app.get("/")(limit(view))

    def ask(_: int) -> int:
        return app.test_client().get("/").status_code

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, range(AT_ONCE))).count(200)


def test_concurrent_requests_pass_a_limit_charged_after_the_view() -> None:
    theirs, ours = Flask("theirs"), Flask("ours")
    limiter = Limiter(lambda: str(request.remote_addr), app=theirs, storage_uri="memory://", strategy="moving-window")
    MultiLimit(ours)

    passed = pass_at_once(
        theirs, limiter.limit(f"{EACH}/hour", deduct_when=lambda response: response.status_code != 429)
    )
    assert passed == AT_ONCE
    assert pass_at_once(ours, rate_limiter(type=IP, rules=f"{EACH}/hour")) == EACH
