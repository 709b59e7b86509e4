"""Each command of the runbook works while clients are refused, and the page beside it exists.

``tests/apps/test_night.py`` compares the numbers of commands, pages and several workers with the sent requests.
"""

import re
import shlex
from collections.abc import Iterator

import pytest
from flask import Flask, request
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import IP, Ban, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from support.asking import pass_a_second, view
from support.folders import ROOT
from support.servers import Server
from support.waiting import until

BAN = Ban(after=5, within=600, time=1200)
GUESSER, SCANNER = "203.0.113.9", "198.51.100.4"
PAGES = {"Now": "", "Subject": f"subject?who={GUESSER}", "Lists": "lists", "Limits": "limits", "History": "history"}


def status_of(app: Flask, path: str, address: str, **headers: str) -> int:
    return app.test_client().get(path, headers={"X-Forwarded-For": address, **headers}).status_code


@pytest.fixture
def shop(server: Server) -> Iterator[Flask]:
    """An app in which a key, a guesser and a scanner are refused."""
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10, SECRET_KEY="of the shop")
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]
    multilimit = MultiLimit(app, unmatched_limits=rate_limiter(type=IP, rules="5/hour", ban=BAN))
    app.register_blueprint(Dashboard(multilimit, authorize=lambda: "ada"))
    by_key = rate_limiter(type=lambda: request.headers.get("X-Key"), name="api_key", rules="10/hour")
    app.add_url_rule("/get", "view_get", by_key(view()))
    app.add_url_rule("/basic-auth", "basic_auth", rate_limiter(type=IP, rules="3/hour", ban=BAN)(view()))
    app.add_url_rule("/home", "home", rate_limiter(type=IP, rules="100/hour")(view()))
    for number in range(40):
        status_of(app, "/get", "192.0.2.7", **{"X-Key": "key-0"})
        status_of(app, "/basic-auth", GUESSER)
        status_of(app, f"/wp-{number}.php", SCANNER)
        status_of(app, "/home", f"192.0.2.{number % 12}")
    pass_a_second(app)
    yield app
    multilimit.close()


def commands() -> list[tuple[str, str]]:
    """Each command of the runbook, with the page beside it."""
    text = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")
    return re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([A-Z]\w+)", text, re.MULTILINE)


def test_runbook_commands_work_and_admit_the_client_again(shop: Flask) -> None:
    assert [status_of(shop, path, GUESSER) for path in ("/basic-auth", "/home")] == [429, 200]
    for command, page in commands():
        line = "top --once" if command == "top" else command.replace(" 10m", " 1s")
        result = shop.test_cli_runner().invoke(args=["multilimit", *shlex.split(line)])
        shown = shop.test_client().get(f"/multilimit/{PAGES[page]}")

        assert (result.exit_code, result.output.strip() != "") == (0, True), f"{line}: {result.output}"
        assert (shown.status_code, f"<title>{page}" in shown.text or page == "Subject") == (200, True), line

    until(lambda: status_of(shop, "/basic-auth", GUESSER) == 200)
    until(lambda: status_of(shop, "/home", SCANNER) == 429)
