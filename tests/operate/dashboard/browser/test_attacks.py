"""What an attacker would try, against a browser whose owner is logged in."""

from __future__ import annotations

import http.client
import threading
from contextlib import closing
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

from .served import EVIL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def asked(shop: Shop, target: str, *, host: str | None = None) -> tuple[int, str, http.client.HTTPMessage]:
    """As a program asks, which sends the target as it stands."""
    with closing(http.client.HTTPConnection("127.0.0.1", shop.port, timeout=20)) as connection:
        connection.putrequest("GET", target, skip_host=host is not None)
        if host is not None:
            connection.putheader("Host", host)
        connection.putheader("Authorization", "Basic YWRhOnNlY3JldA==")
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace"), response.headers


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
def test_no_other_origin_can_read_what_a_page_shows(visit: Visit, shop: Shop, elsewhere: Elsewhere, host: str) -> None:
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
    with visit("eve") as tab:  # a token that is good, but somebody else's
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


@pytest.mark.parametrize("stolen", ["", "forged", "eve's"])
def test_a_form_needs_the_token_of_who_sends_it(visit: Visit, shop: Shop, stolen: str) -> None:
    with visit("eve") as tab:
        tab.page.goto(shop.url + "what-if")
        token = tab.page.locator("input[name=token]").get_attribute("value")
    with visit() as tab:
        tab.page.goto(shop.url + "change?kind=ban&who=203.0.113.66&for=15m&reason=r")
        tab.page.locator("input[name=token]").evaluate(
            "(field, token) => { field.value = token }", token if stolen == "eve's" else stolen
        )
        with tab.page.expect_response(shop.url + "change") as answered:
            tab.page.get_by_role("button", name="Change it").click()

        assert answered.value.status == 403
        tab.page.goto(shop.url + "lists")
        assert tab.page.get_by_text("203.0.113.66").count() == 0
        tab.wrong.clear()


def test_names_of_users_endpoints_and_people_are_text(visit: Visit, shop: Shop) -> None:
    for _ in range(4):
        shop.ask("/mine", user=EVIL)
        shop.ask("/evil", **{"User-Agent": EVIL, "Referer": EVIL})
    with visit(EVIL) as tab:
        tab.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        for page in ("", "?q=" + EVIL, f"?endpoint={EVIL}", "what-if", f"what-if?endpoint={EVIL}&window={EVIL}"):
            tab.page.goto(shop.url + page)
            tab.wrong[:] = [each for each in tab.wrong if "400" not in each]  # the last one asks nonsense

            assert tab.page.locator("main img, main script:not([type='application/json'])").count() == 0
            assert EVIL in tab.page.locator("header").inner_text()
            assert "49" not in tab.page.locator("header").inner_text(), "no template is made of a name"


@pytest.mark.parametrize(
    "target",
    [
        "/multilimit/static/../served.py",
        "/multilimit/static/../../dashboard.py",
        "/multilimit/static/..%2f..%2fdashboard.py",
        "/multilimit/static/%2e%2e/%2e%2e/dashboard.py",
        "/multilimit/static/..%5c..%5cdashboard.py",
        "/multilimit/static//etc/passwd",
        "/multilimit/static/%2fetc%2fpasswd",
        "/multilimit/static/dashboard.css%00.svg",
        "/multilimit/static/",
        "/multilimit/static/slider.js/../../templates/base.html",
    ],
)
def test_nothing_but_our_files_is_served_as_a_file(shop: Shop, target: str) -> None:
    status, text, headers = asked(shop, target)

    if status == 308:  # without the empty parts of the path
        target = urlsplit(headers["Location"]).path
        status, text, _ = asked(shop, target)
    assert status in {400, 404}
    assert "root:" not in text
    assert "import" not in text


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example/multilimit/",
        "/multilimit//evil.example",
        "/multilimit/%2f%2fevil.example",
        "/multilimit?lang=zh&next=//evil.example",
        "/multilimit/?lang=//evil.example&next=https://evil.example",
        "/multilimit/what-if?endpoint=//evil.example",
    ],
)
@pytest.mark.parametrize("host", [None, "evil.example"], ids=["own host", "forged host"])
def test_no_answer_leads_to_another_site(shop: Shop, target: str, host: str | None) -> None:
    status, text, headers = asked(shop, target, host=host)

    location = headers.get("Location", "")
    assert "evil.example" not in location.removeprefix(f"http://{host}").partition("?")[0], (status, location)
    for attribute in ("href", "src", "action") if status == 200 else ():
        assert f'{attribute}="//' not in text
        assert f'{attribute}="http' not in text


@pytest.mark.parametrize("megabytes", [6, 10])
def test_an_upload_that_is_too_large_is_answered_by_a_page(
    visit: Visit, shop: Shop, tmp_path: Path, megabytes: int
) -> None:
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


def test_a_stranger_gets_no_page(shop: Shop) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", shop.port, timeout=20)) as connection:
        for page in ("", "what-if", "api/", "api/now", "api/what-if"):
            connection.request("GET", f"/multilimit/{page}")
            response = connection.getresponse()
            assert response.status == 401
            assert response.read() == b"Who are you?"
