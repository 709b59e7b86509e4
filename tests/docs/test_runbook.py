"""The runbook, line by line, after a few seconds of traffic: several workers of gunicorn and a real server.

``tests/apps/test_night.py`` compares the numbers with the sent requests.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask

from support.folders import ROOT
from support.processes import Program
from support.servers import Server
from support.waiting import until

pytestmark = pytest.mark.slow

SHOP = """
from flask import Flask, request
from werkzeug.middleware.proxy_fix import ProxyFix
from flask_multilimit import IP, Ban, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard

app = Flask(__name__)
app.config.from_prefixed_env()
app.secret_key = "the same in all workers"
app.wsgi_app = ProxyFix(app.wsgi_app)
BAN = Ban(after=5, within=600, time=1200)
limits = MultiLimit(app, unmatched_limits=rate_limiter(type=IP, rules="5/hour", ban=BAN))
app.register_blueprint(Dashboard(limits, authorize=lambda: "ada"))

def key():
    return request.headers.get("X-Key")

@app.get("/get")
@rate_limiter(type=key, name="api_key", rules="10/hour")
def view_get():
    return ""

@app.get("/basic-auth")
@rate_limiter(type=IP, rules="3/hour", ban=BAN)
def basic_auth():
    return ""

@app.get("/home")
@rate_limiter(type=IP, rules="100/hour")
def home():
    return ""
"""
GUESSER, SCANNER = "203.0.113.9", "198.51.100.4"
SECONDS = 5.0


class Night:
    """The sent requests and their statuses."""

    def __init__(self, served: Program) -> None:
        self.served = served
        self.begin = time.time()
        self.statuses: dict[str, list[int]] = {"key-0": [], GUESSER: [], SCANNER: [], "others": []}
        for number in range(40):
            self._ask("key-0", "/get", {"X-Key": "key-0", "X-Forwarded-For": "192.0.2.7"})
            self._ask(GUESSER, "/basic-auth", {"X-Forwarded-For": GUESSER})
            self._ask(SCANNER, f"/wp-{number}.php", {"X-Forwarded-For": SCANNER})
            self._ask("others", "/home", {"X-Forwarded-For": f"192.0.2.{number % 12}"})
            time.sleep(max(self.begin + SECONDS * (number + 1) / 40 - time.time(), 0))

    def _ask(self, who: str, path: str, headers: dict[str, str]) -> None:
        self.statuses[who].append(self.served.get(path, headers).status)

    def count(self, who: str, *statuses: int) -> int:
        return sum(status in statuses for status in self.statuses[who])


@pytest.fixture(scope="module")
def shop(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Night, Flask]]:
    folder: Path = tmp_path_factory.mktemp("night")
    (folder / "night_shop.py").write_text(SHOP, encoding="utf-8")
    with server.client() as client:
        _empty(client)
    settings = {"FLASK_MULTILIMIT_STORAGE_URI": server.tcp_url, "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name, value in settings.items():
            patch.setenv(name, value)
        with Program("gunicorn", "-b", "127.0.0.1:0", "-w", "3", "night_shop:app", environment=settings) as served:
            until(lambda: served.get("/multilimit/").status == 200)
            night = Night(served)
            time.sleep(1.5)  # each worker sends its counts once a second
            from night_shop import app  # type: ignore[import-not-found]  # written above

            yield night, app
        del sys.modules["night_shop"]


def _empty(client: redis.Redis) -> None:
    client.flushall()


def command_output(app: Flask, line: str) -> Any:
    result = app.test_cli_runner().invoke(args=["multilimit", *shlex.split(line)])
    assert result.exit_code == 0, f"{line}: {result.output}"
    return json.loads(result.output) if "--json" in line else result.output


def without_wait(verdict: str) -> str:
    """The verdict without the time to wait, which passes between two questions."""
    return re.sub(r"for [\d.]+ \w+", "for a while", verdict)


def test_workers_and_top_show_the_same_traffic(shop: tuple[Night, Flask]) -> None:
    night, app = shop
    top = command_output(app, "top --minutes 60 --once --json")
    for _ in range(12):
        now = json.loads(night.served.get("/multilimit/api/now").text)
        assert [(each["shown"], each["refused"], each["since"]) for each in now["subjects"]] == [
            (each["shown"], each["refused"], each["since"]) for each in top["subjects"]
        ]
        assert {name: each["amount"] for name, each in now["totals"].items()} == {
            name: each["amount"] for name, each in top["totals"].items()
        }


def test_why_and_client_page_give_the_same_verdict(shop: tuple[Night, Flask]) -> None:
    night, app = shop
    for who, named in ((GUESSER, GUESSER), (SCANNER, SCANNER), ("key-0", "api_key:key-0")):
        why = command_output(app, f"why {named} --json")
        page = json.loads(night.served.get(f"/multilimit/api/subject?who={named}").text)["found"]

        assert sum(each["refused"] for each in why["refusals"]) == night.count(who, 429)
        assert re.search(rf"; refusals since .*: {night.count(who, 429)}$", why["verdict"]["text"])
        assert without_wait(page["verdict"]["text"]) == without_wait(why["verdict"]["text"])
        assert page["lift"] == why["lift"]
    assert command_output(app, "why key-0").startswith("api_key:key-0 ")
    assert {each["who"] for each in command_output(app, "bans --json")["bans"]} == {GUESSER, SCANNER}


PAGES = {"Now": "", "Subject": "subject?who=203.0.113.9", "Lists": "lists", "Limits": "limits", "History": "history"}


def lines() -> list[tuple[str, str]]:
    """Each command of the runbook, with the page beside it."""
    text = (ROOT / "docs" / "how-to" / "runbook.md").read_text(encoding="utf-8")
    return re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([A-Z]\w+)", text, re.MULTILINE)


def test_runbook_commands_work_and_admit_the_client_again(shop: tuple[Night, Flask]) -> None:
    night, app = shop

    for line, page in lines():
        assert command_output(
            app, line.replace("top", "top --once") if line == "top" else line.replace(" 10m", " 1s")
        ).strip()
        shown = night.served.get(f"/multilimit/{PAGES[page]}")
        assert (shown.status, f"<title>{page}" in shown.text or page == "Subject") == (200, True), line

    until(lambda: night.served.get("/basic-auth", {"X-Forwarded-For": GUESSER}).status == 200)
    until(lambda: night.served.get("/home", {"X-Forwarded-For": SCANNER}).status == 429)
