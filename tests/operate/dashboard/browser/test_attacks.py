"""Attacks of other sites on a browser whose user is logged in."""

import threading
from collections.abc import Iterator
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import Shop, Visit


class Elsewhere(NamedTuple):
    """Another site."""

    port: int
    pages: dict[str, str]

    def address(self, page: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{page}"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = pages.get(self.path, "").encode()
            self.send_response(200 if text else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Elsewhere(server.server_address[1], pages)
        server.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same site", "other site"])
def test_no_other_origin_can_frame_a_page(visit: Visit, shop: Shop, elsewhere: Elsewhere, host: str) -> None:
    elsewhere.pages["/frame"] = f'<!doctype html><title>win</title><iframe src="{shop.url}"></iframe>'
    with visit() as tab:
        tab.page.goto(shop.url)
        with tab.page.expect_event("console", lambda said: "frame" in said.text.lower()):
            tab.page.goto(elsewhere.address("/frame", host))

        (frame,) = tab.page.frames[1:]
        frame.wait_for_load_state()
        assert "shop" not in frame.content()
        assert any("frame-ancestors" in each or "X-Frame-Options" in each for each in tab.wrong)
        tab.wrong.clear()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same site", "other site"])
def test_no_other_origin_can_read_a_page(visit: Visit, shop: Shop, elsewhere: Elsewhere, host: str) -> None:
    elsewhere.pages["/read"] = "<!doctype html><title>win</title>"
    with visit() as tab:
        tab.page.goto(shop.url)
        tab.page.goto(elsewhere.address("/read", host))

        read = tab.page.evaluate(
            """async url => {
                const found = [];
                for (const mode of ["cors", "no-cors"]) {
                    try {
                        const answer = await fetch(url, { mode, credentials: "include" });
                        found.push(answer.type + (await answer.text()));
                    } catch (error) { found.push(error.name); }
                }
                return found;
            }""",
            shop.url + "api/now",
        )

        assert read == ["TypeError", "TypeError"], "not even an opaque answer is handed over"
        tab.wrong.clear()


BAN = {"kind": "ban", "who": "203.0.113.66", "for": "15m", "reason": "forged"}


def form_of(shop: Shop, token: str = "", *, path: str = "change") -> str:
    """A page of the attacker, which sends a form as soon as it is open."""
    fields = "".join(f'<input name="{name}" value="{escape(text)}">' for name, text in {**BAN, "token": token}.items())
    return (
        f'<!doctype html><title>win</title><form method="post" action="{shop.url}{path}">{fields}<button>win</button>'
        "</form><script>document.forms[0].submit()</script>"
    )


@pytest.mark.parametrize("path", ["change", "undo", "what-if"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["same site", "other site"])
def test_no_other_origin_can_send_a_form(visit: Visit, shop: Shop, elsewhere: Elsewhere, host: str, path: str) -> None:
    with visit("eve") as tab:  # a valid token of another author
        tab.page.goto(shop.url + "what-if")
        token = tab.page.locator("input[name=token]").get_attribute("value") or ""
        assert token
    elsewhere.pages["/form"] = form_of(shop, token, path=path)
    with visit() as tab:
        tab.expected = "403"
        tab.page.goto(shop.url + "change?kind=ban")
        with tab.page.expect_response(shop.url + path) as answered:
            tab.page.goto(elsewhere.address("/form", host))

        assert answered.value.status == 403
        tab.page.goto(shop.url + "lists")
        assert tab.page.get_by_text("203.0.113.66").count() == 0


@pytest.mark.parametrize("megabytes", [6, 10])
def test_too_large_upload_is_answered_by_a_page(visit: Visit, shop: Shop, tmp_path: Path, megabytes: int) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(b"x" * megabytes * 1_000_000)
    with visit() as tab:
        tab.page.goto(shop.url + "what-if")
        tab.page.locator("summary").click()
        tab.page.locator("input[type=file]").set_input_files(log)
        with tab.page.expect_navigation():
            tab.page.get_by_role("button", name="Upload and show").click()

        assert "more than 5 MB" in tab.page.locator("body").inner_text()
        assert [each for each in tab.wrong if "413" not in each] == []
        tab.wrong.clear()
