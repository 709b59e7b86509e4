"""Each change that the dashboard makes, and what the next request in each worker gets."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from .conftest import WORKERS
from .served import EVIL

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


@pytest.mark.parametrize("what", ["off", "shadow"])
def test_a_limit_is_switched_off_or_only_watched(visit: Visit, shop: Shop, what: str) -> None:
    in_each_worker(shop, "/search", 429, address="192.0.2.10")
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + "change?endpoint=search&part=limiter:ip")
        page.get_by_role("radio", name=re.compile(f"^{what}")).check()
        confirm(page)

        in_each_worker(shop, "/search", 200, address="192.0.2.10")

        undo_all(page, shop)
    in_each_worker(shop, "/search", 429, address="192.0.2.10")


def test_a_limit_is_added(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + "change?endpoint=open&part=more")
        page.get_by_label("At most").fill("1/minute")
        confirm(page)

        shop.ask("/open", address="192.0.2.20")
        in_each_worker(shop, "/open", 429, address="192.0.2.20")

        undo_all(page, shop)


@pytest.mark.parametrize(("kind", "who"), [("ban", "203.0.113.99"), ("deny", "203.0.113.0/24")])
def test_somebody_is_kept_out_and_let_in_again(visit: Visit, shop: Shop, kind: str, who: str) -> None:
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + f"change?kind={kind}")
        page.get_by_label("Who").fill(who)
        confirm(page)

        in_each_worker(shop, "/open", 403 if kind == "deny" else 429, address="203.0.113.99")
        assert shop.ask("/open", address="198.51.100.1").status == 200

        page.get_by_role("button", name="Undo", exact=True).first.click()
        page.get_by_text("Undone in all workers").wait_for()
        in_each_worker(shop, "/open", 200, address="203.0.113.99")


def test_somebody_is_not_limited_any_more(visit: Visit, shop: Shop) -> None:
    for _ in range(5):
        shop.ask("/search", address="192.0.2.30")
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + "change?kind=allow")
        page.get_by_label("Who").fill("192.0.2.30")
        confirm(page)

        in_each_worker(shop, "/search", 200, address="192.0.2.30")

        undo_all(page, shop)


def test_quotas_are_reset(visit: Visit, shop: Shop) -> None:
    for _ in range(5):
        shop.ask("/search", address="192.0.2.40")
    assert shop.ask("/search", address="192.0.2.40").status == 429
    with visit() as tab:
        tab.page.goto(shop.url + "subject?who=192.0.2.40")
        tab.page.get_by_role("button", name="Reset all its quotas").click()
        tab.page.wait_for_load_state()

    wait_until(lambda: shop.ask("/search", address="192.0.2.40").status == 200)


def test_an_author_without_the_right_to_change_has_no_forms(visit: Visit, shop: Shop) -> None:
    with visit("eve") as tab:
        page = tab.page
        page.goto(shop.url + "change?kind=ban&who=203.0.113.9&for=15m&reason=r")
        assert page.get_by_role("button", name="Change it").count() == 0
        page.goto(shop.url + "what-if")
        token = page.locator("input[name=token]").get_attribute("value") or ""

        answer = page.request.post(shop.url + "change", form={"token": token, **BAN}, headers={"Referer": shop.url})

        assert answer.status == 403
        page.goto(shop.url + "lists")
        assert page.get_by_text("203.0.113.9").count() == 0


BAN = {"kind": "ban", "who": "203.0.113.9", "for": "15m", "reason": "forged"}


def test_reasons_are_text(visit: Visit, shop: Shop) -> None:
    with visit() as tab:
        page = tab.page
        page.goto(shop.url + "change?kind=ban&who=203.0.113.77")
        confirm(page, EVIL)
        for where in ("lists", "history", "limits"):
            page.goto(shop.url + where)
            assert page.locator("main img, main script").count() == 0

        undo_all(page, shop)
