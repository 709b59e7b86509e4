"""The customer's page in a real browser: wide and narrow, light and dark, English and Chinese."""

from collections.abc import Iterator
from threading import Thread

import pytest
from flask import Flask
from playwright.sync_api import Browser
from werkzeug.serving import make_server

from flask_multilimit import IP, Ban, MultiLimit, rate_limiter
from flask_multilimit.usage import Usage
from support.asking import statuses, view
from support.browser import WIDE, tab

pytestmark = pytest.mark.slow
PHONE = (390, 844)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An app where this machine is banned from one endpoint, refused at another, and has used something."""
    app = Flask("shop")
    multilimit = MultiLimit(app, application_limits="1000000/day")
    app.add_url_rule("/search", "api.search", rate_limiter(type=IP, rules="2/hour; 3 at once")(view()))
    app.add_url_rule("/login", "login", rate_limiter(type=IP, rules="1/minute", ban=Ban(after=1, time=300))(view()))
    long = "a.very.long.endpoint.name.that.no.phone.has.the.width.for." * 3
    app.add_url_rule("/long", long, rate_limiter(type=IP, rules="9/hour")(view()))
    app.register_blueprint(Usage(multilimit, limits={"ip-3600s": "Calls", "application": "All", "ip-60s": "Log in"}))
    statuses(app, *["/search"] * 3, *["/login"] * 2, "/long")
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/rate_limit"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("size", "dark", "language"),
    [(WIDE, False, "en"), (WIDE, True, "zh"), (PHONE, False, "zh"), (PHONE, True, "en")],
    ids=["wide light", "wide dark Chinese", "phone light Chinese", "phone dark"],
)
def test_page_is_accessible_and_fits_the_screen(
    browser: Browser, url: str, size: tuple[int, int], dark: bool, language: str
) -> None:
    with tab(browser, size=size, dark=dark) as opened:
        opened.page.goto(f"{url}?lang={language}")

        assert opened.page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-Hans"}[language]
        assert opened.barriers() == []
        assert opened.overflow() == 0
        assert opened.page.locator("meter").count() == 4


def test_styles_of_the_page_pass_its_security_policy(browser: Browser, url: str) -> None:
    with tab(browser, dark=True, java_script_enabled=False) as opened:
        opened.page.goto(url)

        assert opened.page.locator("li").first.evaluate("each => getComputedStyle(each).borderRadius") == "8px"
        assert (
            opened.page.locator("body").evaluate("each => getComputedStyle(each).backgroundColor") == "rgb(17, 20, 23)"
        )


def test_link_switches_to_the_other_language(browser: Browser, url: str) -> None:
    with tab(browser, locale="zh-CN") as opened:
        opened.page.goto(url)
        assert opened.page.title() == "您的限额"

        opened.page.get_by_role("link", name="English").click()

        assert opened.page.title() == "Your limits"
