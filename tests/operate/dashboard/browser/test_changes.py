"""Each change that the dashboard makes, and what the next request in each worker gets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from .conftest import WORKERS

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from support.servers import Server

    from .conftest import Shop, Visit

PATIENCE = 20.0
"""Seconds; a change is in force within one, but not on a machine that has more to do."""


@pytest.fixture(autouse=True)
def _nothing_used(server: Server, shop: Shop) -> None:  # noqa: ARG001
    """What one test has used up is not missing in the next; changes stay."""
    client = server.client()
    for key in client.scan_iter("rate_limit:{*"):
        client.delete(key)


def in_each_worker(shop: Shop, path: str, expected: int, **who: str) -> None:
    """Each worker answers so, soon; a worker that does not is asked again."""
    deadline = time.monotonic() + PATIENCE
    right: set[str] = set()
    while len(right) < WORKERS:
        assert time.monotonic() < deadline, f"{path}: {expected} came from {len(right)} of {WORKERS} workers"
        answer = shop.ask(path, **who)
        if answer.status == expected:
            right.add(answer.worker)
        else:
            right.discard(answer.worker)


def confirm(page: Page, reason: str = "a test") -> None:
    """Fill in what every change needs, look at what it would do, and make it."""
    page.get_by_label("Why").fill(reason)
    page.get_by_role("button", name="Show what it would do").click()
    if page.get_by_label("I am sure").count():
        page.get_by_label("I am sure").check()
    page.get_by_role("button", name="Change it").click()
    page.get_by_text("In force within a second").wait_for()


def undo_all(page: Page, shop: Shop) -> None:
    page.goto(shop.url + "lists")
    while (buttons := page.locator("td form.inline button")).count():
        buttons.first.click()
        page.get_by_text("Undone in all workers").wait_for()
        page.goto(shop.url + "lists")


def test_a_limit_gets_another_count_and_then_its_own_again(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + "limits?q=search")
        page.get_by_role("link", name=re.compile("^Change ip-60s search")).click()
        page.get_by_label("another count").last.fill("1/minute")
        page.get_by_role("radio", name=re.compile("another count")).check()
        confirm(page, "attack")

        shop.ask("/search", address="192.0.2.1")
        in_each_worker(shop, "/search", 429, address="192.0.2.1")
        page.goto(shop.url + "limits?show=changed")
        assert page.get_by_text("attack").count() == 1

        undo_all(page, shop)
        page.goto(shop.url + "history")
        assert page.locator("tbody tr").first.inner_text().count("ada") == 1
    wait_until(lambda: shop.ask("/search", address="192.0.2.2").status == 200)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
