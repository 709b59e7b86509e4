"""The page What if as one file, which `suggest --html` writes: tested as text and in a browser."""

import json
import re
from fractions import Fraction
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from flask_multilimit.operate.dashboard.whatif import MOST_NAMED, WhatIf, file_of, what_if
from flask_multilimit.operate.simulate.suggest import Arrivals, suggest_for, traffic_of, windows_of
from support.browser import NARROW, WIDE, tab

SECOND = 1_000_000
EVIL = "</script><script>alert(1)</script><b>"


def answer(window: float = 60, *, calm: int = 9, share: Fraction = Fraction(0), **others: int) -> WhatIf:
    """``calm`` clients make one request each; the others make theirs at once."""
    arrivals = Arrivals("ip")
    for number in range(calm):
        arrivals.add(f"calm {number}", 0)
    for name, requests in others.items():
        for _ in range(requests):
            arrivals.add(name, SECOND)
    traffic = traffic_of(arrivals, windows_of([window]))
    return what_if(traffic, suggest_for(traffic, share), source="access.log", refuse_at_most="0%")


def data_of(page: str) -> list[dict[str, object]]:
    return [json.loads(each) for each in re.findall('<script type="application/json">(.*?)</script>', page)]


def test_page_is_one_file_that_loads_nothing_with_data_of_each_window() -> None:
    text = file_of([answer(10, busy=30), answer(60, busy=30)])

    assert text.count("<style>") == 1
    assert re.findall("<(?:link|img|iframe|base|form)|<[^>]*\\s(?:style|src|href|srcset|on[a-z]+)=", text) == []
    policy = re.search("default-src 'none'; style-src 'sha256-[^']+'; script-src 'sha256-[^']+'", unescape(text))
    assert policy is not None
    first, second = data_of(text)
    assert (first["window"], second["window"]) == ("10 s", "60 s")
    assert first["peaks"] == [[1, 9], [30, 1]]
    assert first["names"][0] == ["busy", 30, 30, ""]  # type: ignore[index]
    assert (first["requests"], first["clients"], first["chosen"]) == (39, 10, 1), "busy is above a gap"


def test_marked_counts_are_exact() -> None:
    counts = answer(busy=1000, calm=99, share=Fraction(1, 3)).counts
    assert {each.count: each.requests for each in counts if each.why} == {1: 999, 634: 366}


def test_page_names_only_the_busiest_clients() -> None:
    (data,) = data_of(file_of([answer(calm=3 * MOST_NAMED, busy=5)]))
    assert len(data["names"]) == MOST_NAMED  # type: ignore[arg-type]
    assert data["names"][0][0] == "busy"  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "shown"), [(EVIL, EVIL), ("\udcff", "\\udcff"), ("\x1b[2J\u202eexe.txt", "\\x1b[2J\\u202eexe.txt")]
)
def test_names_of_a_log_are_safe_to_show(tmp_path: Path, name: str, shown: str) -> None:
    page = file_of([answer(**{name: 30})])  # type: ignore[arg-type]

    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    (data,) = data_of(page)
    assert data["names"][0][0] == shown  # type: ignore[index]
    assert EVIL not in page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "page.html"
    made.write_text(file_of([answer(busy=30, other=20, share=Fraction(1, 2))]), encoding="utf-8")
    return made


@pytest.mark.slow
def test_slider_shows_refusals_of_a_count(browser: Browser, path: Path) -> None:
    with tab(browser) as opened:
        shown = opened.page
        shown.goto(path.as_uri())
        first = shown.locator("dd").all_inner_texts()
        shown.locator("input[type=range]").press("End")
        last = shown.locator("dd").all_inner_texts()
        shown.locator("input[type=number]").fill("25")
        typed, who = shown.locator("dd").all_inner_texts(), shown.locator(".peaks tbody td").all_inner_texts()

    assert first == ["28 of 59 (47.5 %)", "2 of 11 (18.2 %)"]
    assert last == ["0 of 59 (0.00 %)", "0 of 11 (0.00 %)"]
    assert typed[1] == "1 of 11 (9.09 %)"
    assert who == ["busy", "30", "30"]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_page_is_accessible_and_fits_the_screen(
    browser: Browser, path: Path, size: tuple[int, int], dark: bool
) -> None:
    with tab(browser, size=size, dark=dark) as opened:
        opened.page.goto(path.as_uri())
        assert opened.barriers() == []
        assert opened.overflow() == 0
