"""The Chromium of Debian, driven by Playwright. It records everything that goes wrong on a page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from support.processes import program
from support.waiting import PATIENCE

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
WIDE, NARROW = (1280, 800), (360, 740)
LOCAL = ("127.0.0.1", "localhost")
TRIED = {"rules": {"target-size": {"enabled": True}}, "resultTypes": ["violations"]}
"""All that axe-core looks for by default, and the rule of WCAG 2.2 AA that it leaves out."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser for many tests. Without one, the tests are skipped; in CI they fail.

    Playwright keeps an event loop in this thread until the block is left, so asyncio's own tests must come after it.
    """
    path = program(*PROGRAMS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS, timeout=PATIENCE * 1000)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A window with its own cookies; it records what went wrong."""

    def __init__(
        self,
        browser: Browser,
        *,
        size: tuple[int, int] = WIDE,
        dark: bool = False,
        hosts: tuple[str, ...] = LOCAL,
        **options: Any,
    ) -> None:
        self._hosts = hosts
        self._context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", **options
        )
        self._context.set_default_timeout(PATIENCE * 1000)
        self._context.on("console", self._said)
        self._context.on("weberror", lambda each: self.wrong.append(f"error: {each.error}"))
        self._context.on("request", self._asked)
        self.expected: str = ""
        """Text of a console message that is allowed at any time, because a message about a response can be late."""
        self.wrong: list[str] = []
        """Errors and warnings in the console, among them violated policies, and requests to other hosts."""
        self.page: Page = self._context.new_page()

    def close(self) -> None:
        self._context.close()

    def barriers(self) -> list[str]:
        """What axe-core finds on the page as it is now."""
        self.page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
        found = self.page.evaluate("options => axe.run(options)", TRIED)
        return [
            f"{each['id']}: {each['help']}: {node['html']}" for each in found["violations"] for node in each["nodes"]
        ]

    def overflow(self) -> int:
        """The number of pixels by which the page is wider than the window."""
        width: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return width

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not (self.expected and self.expected in message.text):
            self.wrong.append(f"console: {message.text} ({message.location.get('url')})")

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.hostname not in self._hosts:
            self.wrong.append(f"request: {request.url}")


@contextmanager
def tab(browser: Browser, **options: Any) -> Iterator[Tab]:
    """A :class:`Tab`. It is an error if ``wrong`` is not empty at the end of the block."""
    opened = Tab(browser, **options)
    try:
        yield opened
        assert opened.wrong == [], opened.wrong
    finally:
        opened.close()
