"""What a newcomer types into the search of the documentation leads to the right page, in a real browser."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from support.browser import chromium
from support.folders import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("furo") is None, reason="the extra [docs] is not installed"),
]

QUESTIONS = {
    "X-Forwarded-For": "how-to/proxies",
    "429": "how-to/responses",
    "flask-login": "how-to/users",
    "turn off": "how-to/change-at-night",
    "redis": "how-to/redis",
    "rate limit by user": "how-to/users",
    "Retry-After": "how-to/responses",
    "whitelist": "how-to/ban-and-allow",
    "blueprint": "how-to/many-endpoints",
    "disable in tests": "how-to/testing",
    "nginx": "how-to/proxies",
    "flask-limiter": "how-to/migrate-from-flask-limiter",
    "celery": "how-to/without-flask",
    "brute force": "how-to/login-protection",
    "503": "how-to/outages",
    "openai": "how-to/real-cost",
    "login attempts": "how-to/login-protection",
    "blocked": "how-to/runbook",
    "unban": "reference/cli-changes",
    "compare": "explanation/which-limiter",
    "record traffic": "how-to/record-traffic",
    "how fast": "explanation/fast-enough",
    "load shedding": "how-to/concurrency",
    "monthly quota": "how-to/calendar",
    "upgrade": "upgrading",
    "websocket": "how-to/concurrency",
}
"""What is typed, and the page that answers it."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    built = tmp_path_factory.mktemp("html")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-b",
        "html",
        "-d",
        str(built / ".doctrees"),
        str(DOCS),
        str(built),
    ]
    subprocess.run(command, check=True, capture_output=True)
    with chromium() as browser:
        tab = browser.new_page()
        tab.built = built  # type: ignore[attr-defined]
        yield tab


def found(page: Page, words: str) -> list[str]:
    """The pages that the search shows, best first."""
    built: Path = page.built  # type: ignore[attr-defined]
    page.goto(f"{built.as_uri()}/search.html?q={words.replace(' ', '+')}")
    page.wait_for_selector("#search-results .search-summary:not(:empty) ~ ul.search", state="attached")
    page.wait_for_function("!document.querySelector('#search-results h2').textContent.startsWith('Searching')")
    links = page.eval_on_selector_all("#search-results ul.search > li > a", "each => each.map(link => link.href)")
    pages = [link.partition("#")[0].partition("?")[0].rpartition(".html")[0] for link in links]
    return list(dict.fromkeys(name.removeprefix(f"{built.as_uri()}/") for name in pages))


@pytest.mark.parametrize("words", QUESTIONS)
def test_the_search_shows_the_right_page_among_the_first_three(page: Page, words: str) -> None:
    assert QUESTIONS[words] in found(page, words)[:3]
