"""The browser of the tests finds what is wrong with a page."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from support.browser import NARROW, tab

pytestmark = pytest.mark.slow

STRICT = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
PAGE = '<!doctype html><html lang="en"><title>page</title>{}<main><h1>page</h1>{}</main>'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def shown(path: Path, body: str, head: str = "") -> str:
    path.write_text(PAGE.format(head, body), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        (STRICT, "<p style='color: red'>", "Content Security Policy"),
        (STRICT, "<script>1</script>", "Content Security Policy"),
        ("", "<script>nothing.there</script>", "nothing is not defined"),
        ("", "<script>console.error('oh')</script>", "console: oh"),
        ("", "<img alt='' src='http://host.invalid/'>", "request: http://host.invalid/"),
    ],
)
def test_browser_finds_errors_foreign_requests_and_policy_violations(
    browser: Browser, place: Path, head: str, body: str, told: str
) -> None:
    with tab(browser) as opened:
        opened.page.goto(shown(place, body, head))
        assert told in "\n".join(opened.wrong)
        opened.wrong.clear()


def test_browser_finds_accessibility_barriers_and_overflow(browser: Browser, place: Path) -> None:
    faint = "<style>p { color: #ccc; background: #fff; width: 900px }</style>"
    with tab(browser, size=NARROW) as opened:
        opened.page.goto(shown(place, "<p>faint</p><img src='data:,'>", faint))

        assert {each.partition(":")[0] for each in opened.barriers()} == {"color-contrast", "image-alt"}
        assert opened.overflow() > 500
