"""Take the pictures of pages that the documentation shows: `nox -s pictures`.

It serves `examples/dashboard.py`, lets its visitors come for a while (the argument: minutes), changes something, and
opens each page. Then it serves `examples/plans.py`, and opens the page of a customer.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser

from support.browser import NARROW, Tab, chromium, tab
from support.processes import flask_run

TO = Path(__file__).parent / "_static"
WIDE = (1180, 760)
MOST = 1100
"""Pixels down to which a page is shown, at most."""
LAST = """most => Math.max(...[...document.querySelectorAll('footer, tr, p, form, dl, .chart')]
  .map(each => each.getBoundingClientRect().bottom).filter(bottom => bottom <= most))"""
"""The end of the last thing that is shown as a whole."""
CHANGES = (
    {"endpoint": "search", "part": "rule:ip-60s", "what": "rules", "rules": "40/minute", "for": "2h", "reason": "sale"},
    {"endpoint": "item", "part": "limiter:ip", "what": "shadow", "for": "1d", "reason": "too strict? watch it first"},
    {"kind": "ban", "who": "203.0.113.66", "for": "15m", "reason": "copies the catalogue"},
    {"kind": "allow", "who": "user:partner-2", "lasting": "1", "reason": "contract of March"},
)
PREVIEW = {
    "endpoint": "login",
    "part": "rule:ip-60s",
    "what": "rules",
    "rules": "3/minute",
    "for": "8h",
    "reason": "attack",
}
NOW = "?minutes=15"
PAGES = {
    "now": NOW,
    "limits": "limits",
    "change": f"change?{urlencode(PREVIEW)}",
    "subject": "subject?who=203.0.113.66",
    "lists": "lists",
    "history": "history",
    "what-if": "what-if?endpoint=search&refuse_at_most=2%25",
}


def main(minutes: float) -> None:
    with chromium() as browser, flask_run("dashboard") as served:
        address = f"http://127.0.0.1:{served.port}/multilimit/"
        with tab(browser, size=WIDE) as opened:
            opened.page.goto(address)
            time.sleep(60 * minutes)
            for change in CHANGES:
                opened.page.goto(f"{address}change?{urlencode(change)}")
                opened.page.get_by_role("button", name="Change it").click()
            time.sleep(5)
            for name, path in PAGES.items():
                take(opened, address + path, name)
        with tab(browser, size=WIDE, dark=True) as opened:
            take(opened, address + NOW, "now-dark")
        with tab(browser, size=NARROW, dark=True) as opened:
            take(opened, address + NOW, "now-narrow")
        with tab(browser, size=WIDE) as opened:
            take(opened, f"{address}{NOW}&lang=zh", "now-zh")
        take_usage(browser)


def take_usage(browser: Browser) -> None:
    key = {"X-Api-Key": "k-ada"}
    with flask_run("plans") as served, tab(browser, size=NARROW, extra_http_headers=key) as opened:
        address = f"http://127.0.0.1:{served.port}"
        for words in (90, 120):
            opened.page.request.post(f"{address}/chat", data="word " * words)
        opened.page.goto(f"{address}/rate_limit")
        opened.page.locator("main").screenshot(path=TO / "usage.png")


def take(opened: Tab, address: str, name: str) -> None:
    size = opened.page.viewport_size
    assert size is not None
    opened.page.goto(address)
    opened.page.wait_for_load_state("networkidle")
    height = opened.page.evaluate(LAST, MOST) + 1
    opened.page.screenshot(
        path=TO / f"dashboard-{name}.png",
        full_page=True,
        clip={"x": 0, "y": 0, "width": size["width"], "height": height},
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 14)
