"""Every page in a real browser: wide and narrow, light and dark, English and Chinese, with and without JavaScript."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Route

from support.browser import NARROW, WIDE

from .conftest import Shop, Visit
from .served import EVIL

PAGES = {
    "now": "",
    "now of an endpoint": "?endpoint=search",
    "limits": "limits",
    "limits found": "limits?q=item",
    "a change": "change?kind=override&endpoint=search",
    "a change as it would be": "change?endpoint=search&part=rule:ip-60s&what=rules&rules=9/minute&for=1h&reason=r",
    "a change everywhere": "change?endpoint=*&part=all&what=off&for=1h&reason=r",
    "a ban": "change?kind=ban&who=203.0.113.9&for=15m&reason=r",
    "no subject yet": "subject",
    "an address": "subject?who=203.0.113.1",
    "a network": "subject?who=203.0.113.0/24",
    "a user": f"subject?{urlencode({'type': 'user', 'value': EVIL})}",
    "lists": "lists",
    "lists, found nothing": "lists?q=nothing",
    "history": "history",
    "what if": "what-if",
    "what if of an endpoint": "what-if?endpoint=search&count=2",
}


@pytest.fixture(scope="module", autouse=True)
def _traffic(shop: Shop) -> None:
    for number in range(12):
        shop.ask("/search", address=f"203.0.113.{number % 2}")
        shop.ask("/mine", user=EVIL)
        shop.ask("/evil", user="ann", **{"User-Agent": EVIL})


@pytest.mark.parametrize(
    ("size", "dark", "language"),
    [(WIDE, False, "en"), (WIDE, True, "zh"), (NARROW, False, "zh"), (NARROW, True, "en")],
    ids=["wide light", "wide dark Chinese", "narrow light Chinese", "narrow dark"],
)
def test_every_page_is_accessible_and_fits_the_screen(
    visit: Visit, shop: Shop, size: tuple[int, int], dark: bool, language: str
) -> None:
    wrong: dict[str, list[str]] = {}
    with visit(size=size, dark=dark) as tab:
        for page, path in PAGES.items():
            tab.page.goto(f"{shop.url}{path}{'&' if '?' in path else '?'}lang={language}")

            assert tab.page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-Hans"}[language]
            found = [*tab.barriers(), *tab.wrong, *([f"{tab.overflow()} pixels too wide"] if tab.overflow() else [])]
            tab.wrong.clear()
            if found:
                wrong[page] = found

    assert wrong == {}


def test_client_rule_and_count_fit_a_phone_screen(visit: Visit, shop: Shop) -> None:
    parts = """[...document.querySelectorAll(".clients tbody tr")].map(row =>
        [...row.querySelectorAll("th .subject, .by > div, td:nth-of-type(1)")].map(e => e.getBoundingClientRect()))
        .map(boxes => [boxes.length, Math.min(...boxes.map(box => box.left)), Math.max(...boxes.map(box => box.right))])
    """
    with visit(size=NARROW) as tab:
        tab.page.goto(shop.url)
        rows = tab.page.evaluate(parts)

    assert rows
    assert all(found >= 3 and left >= 0 and right <= NARROW[0] for found, left, right in rows), rows


@pytest.mark.parametrize("width", [NARROW[0], WIDE[0] // 4], ids=["phone", "400 percent"])
def test_navigation_fits_a_narrow_screen(visit: Visit, shop: Shop, width: int) -> None:
    with visit(size=(width, NARROW[1])) as tab:
        tab.page.goto(shop.url)
        ends = tab.page.evaluate(
            "[...document.querySelectorAll('.top nav a')].map(e => e.getBoundingClientRect().right)"
        )

    assert ends
    assert max(ends) <= width


def test_forced_colours_keep_the_key_of_the_chart_and_the_mark_of_the_page(visit: Visit, shop: Shop) -> None:
    colours = """[[...document.querySelectorAll(".key:not(.near)")]
        .map(each => getComputedStyle(each, "::before").backgroundColor),
        [...document.querySelectorAll(".top nav a")].map(each => getComputedStyle(each).borderBottomColor)]"""
    with visit(forced_colors="active") as tab:
        tab.page.goto(shop.url)
        keys, (page, *others) = tab.page.evaluate(colours)

    assert len(set(keys)) == len(keys) == 3
    assert page not in others


def test_numbers_are_grey_only_while_storage_is_down(visit: Visit, shop: Shop) -> None:
    colors = (
        "[getComputedStyle(document.querySelector('.figures .number')).color, getComputedStyle(document.body).color]"
    )
    alert = """document.querySelector('[data-live="away"]').innerHTML = '<p class="alert">No answer.</p>'"""
    with visit() as tab:
        tab.page.goto(shop.url)
        number, text = tab.page.evaluate(colors)
        tab.page.evaluate(alert)
        old, _ = tab.page.evaluate(colors)

    assert number == text
    assert old != text


def test_every_page_works_without_javascript(visit: Visit, shop: Shop) -> None:
    with visit(java_script_enabled=False) as tab:
        for path in PAGES.values():
            tab.page.goto(shop.url + path)

            assert tab.page.locator("h1").inner_text()
            for time in tab.page.locator("time").all_inner_texts():
                assert time.endswith("UTC")


def test_mistakes_are_shown_beside_their_fields(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        tab.page.goto(shop.url + "change?kind=override&endpoint=serch&what=rules&rules=x&for=1h&reason=r")

        field = tab.page.locator("[aria-invalid=true]").first
        told = tab.page.locator(f"#{(field.get_attribute('aria-describedby') or '').split()[-1]}")
        assert told.is_visible()
        assert tab.barriers() == []
        assert all("400" in each for each in tab.wrong)
        tab.wrong.clear()


def test_preview_is_in_view_on_a_phone_and_one_key_from_its_button(visit: Visit, shop: Shop) -> None:
    with visit(size=NARROW, java_script_enabled=False) as tab:
        page = tab.page
        page.goto(f"{shop.url}change?endpoint=search&part=rule:ip-60s&what=rules&rules=9/minute")
        page.get_by_role("textbox", name="Why").fill("sale")
        page.get_by_role("button", name="Show what it would do").click()

        page.wait_for_url("**#preview")
        assert (page.locator("#preview").bounding_box() or {"y": NARROW[1]})["y"] < NARROW[1]
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "Change it"


def test_limit_can_be_changed_and_undone(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + "limits?q=search")
        page.get_by_role("link", name=re.compile("^Change ip-60s search")).click()
        page.get_by_label("another count").last.fill("9/minute")
        page.get_by_role("radio", name=re.compile("another count")).check()
        page.get_by_label("Why").fill("sale")
        page.get_by_role("button", name="Show what it would do").click()
        page.get_by_role("button", name="Change it").click()
        page.get_by_text("In force within a second").wait_for()
        assert page.get_by_text("sale").count()

        page.get_by_role("button", name="Undo", exact=True).first.click()
        page.get_by_text("Undone in all workers").wait_for()


def test_page_now_updates_without_a_reload(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        tab.page.goto(shop.url)
        tab.page.evaluate("window.stillHere = true")
        row = tab.page.locator("[data-live=endpoints] tr", has_text="item.7")
        assert row.count() == 0

        shop.ask("/item/7")

        row.wait_for()
        assert tab.page.evaluate("window.stillHere")


def test_focus_stays_on_a_client_when_rows_move(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        tab.page.goto(shop.url)
        tab.page.get_by_role("link", name="Why 203.0.113.1", exact=True).focus()
        for _ in range(30):
            shop.ask("/long", address="203.0.113.99")

        tab.page.locator("[data-live=subjects] tr", has_text="203.0.113.99").wait_for()
        assert tab.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Why 203.0.113.1"


def test_focus_leaves_a_button_that_gets_another_action(visit: Visit, shop: Shop) -> None:
    for _ in range(5):
        shop.ask("/long", address="203.0.113.98")

    def another(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("Reset all its quotas", "Lift"))

    with visit() as tab:
        tab.page.goto(f"{shop.url}subject?who=203.0.113.98")
        tab.page.get_by_role("button", name="Reset all its quotas").focus()
        tab.page.route("**/subject?*", another)

        tab.page.get_by_role("button", name="Lift").wait_for()
        assert not tab.page.evaluate("document.activeElement.matches('a, button')")


@pytest.mark.parametrize("answer", [{"status": 401}, {"status": 403}, {"status": 302, "headers": {"Location": "/"}}])
def test_page_now_says_that_the_visitor_is_logged_out_and_asks_no_more(
    visit: Visit, shop: Shop, answer: dict[str, Any]
) -> None:
    asked = []

    def refuse(route: Route) -> None:
        asked.append(route)
        route.fulfill(**answer)

    with visit() as tab:
        tab.expected = "Failed to load resource"
        tab.page.clock.install()
        tab.page.goto(shop.url)
        tab.page.route(shop.url, refuse)

        tab.page.get_by_text("You are no longer logged in").wait_for()
        tab.page.clock.run_for(60_000)
        tab.page.wait_for_timeout(500)  # in which a request would arrive
        assert len(asked) == 1

        tab.page.unroute(shop.url)
        tab.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        tab.page.get_by_text("You are no longer logged in").wait_for(state="hidden")


def test_keyboard_reaches_every_control(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        tab.page.goto(shop.url)
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent") == "Skip to content"
        tab.page.keyboard.press("Enter")
        assert tab.page.evaluate("document.activeElement.id") == "main"

        tab.page.goto(shop.url)
        tab.page.locator("#pause").press("Enter")  # otherwise rows would change
        wanted, found = tab.page.evaluate(f"{REACHABLE}.length"), set()
        tab.page.locator(".skip").focus()
        for _ in range(wanted):
            found.add(tab.page.evaluate(f"{REACHABLE}.indexOf(document.activeElement)"))
            assert tab.page.evaluate("document.activeElement.matches(':focus-visible')")
            tab.page.keyboard.press("Tab")

    assert found == set(range(wanted))


REACHABLE = """[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter(each => each.checkVisibility() && each.type !== "hidden")"""


def test_slider_moves_by_keys(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        tab.page.goto(shop.url + "what-if?endpoint=search&count=2")
        slider, said = tab.page.locator("input[type=range]"), tab.page.locator(".answer dd").first
        assert "of 12" in said.inner_text()

        slider.press("End")
        last = said.inner_text()
        slider.press("Home")

        assert last.startswith("0 of 12")
        assert said.inner_text() != last
        assert tab.page.locator(".peaks input[type=number]").input_value() == "1"


def test_uploaded_log_is_shown(visit: Visit, shop: Shop, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = '{} - - [22/Nov/2026:07:00:{:02} +0000] "GET /open HTTP/1.1" 200 5\n'
    log.write_text("".join(line.format("203.0.113.1", second) for second in range(30)))
    with visit() as tab:
        tab.page.goto(shop.url + "what-if")
        tab.page.locator("summary").click()
        tab.page.locator("input[type=file]").set_input_files(log)
        tab.page.get_by_role("button", name="Upload and show").click()

        tab.page.get_by_role("heading", name="Requests of one client: 30").wait_for()
        tab.page.locator(".peaks svg").wait_for()
        assert tab.barriers() == []
