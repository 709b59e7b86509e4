"""What the pages hold: looked at as text here, and in a browser where there is one."""

from __future__ import annotations

import json
import re
from datetime import timezone
from fractions import Fraction
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from flask import Flask

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.operate.simulate.arrivals import Arrivals
from flask_multilimit.operate.simulate.page.document import data_element, document, part
from flask_multilimit.operate.simulate.page.peaks import NAMED, page_of, peaks_data, slider_element
from flask_multilimit.operate.simulate.page.replayed import report_page
from flask_multilimit.operate.simulate.suggest import Traffic, suggest_for
from flask_multilimit.simulation import LoggedRequest, simulate
from support.browser import NARROW, WIDE, chromium, tab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

SECOND = 1_000_000
EVIL = "</script><script>alert(1)</script><b>"


class Elements(HTMLParser):
    """All elements, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.found:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def of(self, tag: str) -> list[str]:
        return [text for each, _, text in self.found if each == tag]


def traffic(*windows: float, calm: int = 9, **others: int) -> Traffic:
    """So many clients make one request; the others make theirs at once."""
    arrivals = Arrivals()
    for number in range(calm):
        arrivals.add(f"calm {number}", 0)
    for name, requests in others.items():
        for _ in range(requests):
            arrivals.add(name, SECOND)
    return Traffic(arrivals, windows or (60,))


def page(of: Traffic, share: Fraction = Fraction(0)) -> str:
    return page_of(suggest_for(of, type="ip", share=share), of)


def assert_alone_and_separate(text: str) -> None:
    """Nothing is fetched; style and script are each in an element of their own, never in an attribute."""
    elements = Elements(text)
    assert len(elements.of("style")) == 1
    for tag, attributes, _ in elements.found:
        assert tag not in {"link", "img", "iframe", "base", "form"}
        for name in attributes:
            assert name not in {"style", "src", "href", "srcset"}
            assert not name.startswith("on")


def test_the_page_is_one_file_with_script_and_style_apart() -> None:
    text = page(traffic(10, 60, busy=30))

    assert_alone_and_separate(text)
    assert text.count(f"<script>{part('slider.js')}</script>") == 1
    assert "style" not in re.sub(r"/\*.*?\*/", "", part("slider.js")), "the script sets no style"


def test_each_window_has_its_data() -> None:
    text = page(traffic(10, 60, busy=30))

    data = [json.loads(each) for each in Elements(text).of("script")[:-1]]
    assert [each["window"] for each in data] == ["10", "60"]
    assert data[0]["peaks"] == [[1, 9], [30, 1]]
    assert data[0]["names"][0] == ["busy", 30, 30]
    assert (data[0]["requests"], data[0]["clients"], data[0]["chosen"]) == (39, 10, 30)


def test_another_page_can_hold_a_slider() -> None:
    data = peaks_data(traffic(busy=30), 3)

    (element, script) = Elements(slider_element(data)).found

    assert element[:2] == ("div", {"class": "peaks"})
    assert script[:2] == ("script", {"type": "application/json"})
    assert json.loads(script[2]) == data


def test_what_the_slider_stands_at_is_known_exactly() -> None:
    of = traffic(busy=1000, calm=99)

    for chosen in (1, 7, 123, 999, 1000):
        assert [chosen, 1000 - chosen] in peaks_data(of, chosen)["curve"]


def test_a_page_names_the_busiest_only() -> None:
    data = peaks_data(traffic(calm=3 * NAMED, busy=5), 1)

    assert len(data["names"]) == NAMED
    assert data["names"][0][0] == "busy"


def test_the_data_cannot_end_its_element() -> None:
    assert json.loads(Elements(data_element([EVIL])).of("script")[0]) == [EVIL]


def test_bytes_that_are_no_text_can_be_written(tmp_path: Path) -> None:
    arrivals = Arrivals()
    arrivals.add("\udcff", 0)

    (tmp_path / "page.html").write_text(page(Traffic(arrivals, [60])), encoding="utf-8")

    assert "\\\\udcff" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_policy_names_what_runs() -> None:
    """A script from elsewhere has another hash."""
    policy = re.compile("script-src ('sha256-[^']+')")
    one = document("title", "", styles=("page.css",), script="slider.js")
    other = document("title", "", styles=("page.css",))

    assert policy.search(one)
    assert policy.findall(one) != policy.findall(other)
    assert "default-src 'none'" in one


@pytest.fixture
def app() -> Flask:
    app = Flask("shop")
    MultiLimit(app)

    @app.get("/update")
    @rate_limiter(type=IP, rules="3/minute")
    def update() -> str:
        return "ok"

    return app


def requests(many: int, address: str) -> Iterator[LoggedRequest]:
    for number in range(many):
        yield LoggedRequest(number * SECOND, "GET", "/update", address=address, status=200)


def test_the_report_as_a_page(app: Flask) -> None:
    report = simulate(app, requests(5, "203.0.113.7"))

    text = report_page([("in force", report), ("strict.json", report)], timezone.utc)

    assert_alone_and_separate(text)
    elements = Elements(text)
    assert elements.of("h2").count("By endpoint\n") == 2
    assert "Limits: strict.json\n" in elements.of("h2")
    assert {"update", "3 per 60s", "203.0.113.7", "200: 2", "1970-01-01 00:00:03"} <= set(elements.of("td"))
    assert "2 (40.00%)" in elements.of("meter")
    assert "script" not in {tag for tag, _, _ in elements.found}


def test_a_rule_that_no_request_asks_is_told() -> None:
    """As rules about requests at once are, if the log does not say how long requests take."""
    app = Flask("shop")
    MultiLimit(app)
    app.add_url_rule("/update", "update", rate_limiter(rules=["9/minute", "2 at once"])(lambda: "ok"))
    report = simulate(app, requests(5, "203.0.113.7"))

    cells = Elements(report_page([("in force", report)], timezone.utc)).of("td")

    assert cells[cells.index("9 per 60s") + 4] == "never refuses: at least 4 left\n"
    assert cells[cells.index("2 at once") + 4].strip() == "never asked"


def test_what_a_log_says_is_text_in_the_page(app: Flask) -> None:
    report = simulate(app, requests(5, EVIL))

    text = report_page([(EVIL, report)], timezone.utc)

    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_a_report_of_nothing_is_a_page(app: Flask) -> None:
    assert "No requests" in report_page([("in force", simulate(app, []))], timezone.utc)


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.slow
def test_the_slider_says_what_a_count_refuses(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(traffic(busy=30, other=20), Fraction(1, 2)), encoding="utf-8")

    with tab(browser) as opened:
        shown = opened.page
        shown.goto(path.as_uri())
        first = shown.locator("dd").all_inner_texts()
        shown.locator("input[type=range]").press("End")
        last = shown.locator("dd").all_inner_texts()
        shown.locator("input[type=number]").fill("25")
        typed, who = shown.locator("dd").all_inner_texts(), shown.locator("tbody td").all_inner_texts()

    assert first == ["28 of 59 (47.5 %)", "2 of 11 (18.2 %)"]
    assert last == ["0 of 59 (0.00 %)", "0 of 11 (0.00 %)"]
    assert typed[1] == "1 of 11 (9.09 %)"
    assert who == ["busy", "30", "30"]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_everyone_can_use_the_pages(
    browser: Browser, tmp_path: Path, app: Flask, size: tuple[int, int], dark: bool
) -> None:
    report = simulate(app, requests(5, "203.0.113.7"))
    pages = [page(traffic(busy=30, other=20), Fraction(1, 2)), report_page([("in force", report)], timezone.utc)]

    for number, text in enumerate(pages):
        path = tmp_path / f"{number}.html"
        path.write_text(text, encoding="utf-8")
        with tab(browser, size=size, dark=dark) as opened:
            opened.page.goto(path.as_uri())

            assert opened.barriers() == []
            assert opened.overflow() == 0
