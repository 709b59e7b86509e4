"""A night with httpbin, whose traffic is known: each number that a command or a page shows is what was sent.

httpbin pins packages that other tests need newer, so this runs in an environment of its own: ``nox -s night``.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask import Flask

from support.processes import Program
from support.servers import Server
from support.waiting import until

pytestmark = pytest.mark.slow

LIMITS = """
default_limits = { type = "ip", rules = "1000/hour" }

[limits]
view_get = { type = "header:X-Key", name = "api_key", rules = "20/hour" }
delay_response = { type = "ip", rules = { count = 2, timeout = 60 } }

[limits.basic_auth]
type = "ip"
rules = "3/hour"
ban = { after = 5, within = 600, time = 1200 }

[unmatched_limits]
type = "ip"
rules = "5/hour"
ban = { after = 5, within = 600, time = 1200 }
"""
APP = """
from httpbin import app
from werkzeug.middleware.proxy_fix import ProxyFix
from flask_multilimit import MultiLimit
from flask_multilimit.dashboard import Dashboard

app.config.from_prefixed_env()
app.secret_key = "the same in all workers"
app.wsgi_app = ProxyFix(app.wsgi_app)
limits = MultiLimit(app)
app.register_blueprint(Dashboard(limits, authorize=lambda: "ada"))
"""
SCRAPER, GUESSER, SCANNER, SLOW = "api_key:key-0", "203.0.113.9", "198.51.100.4", "192.0.2.77"
SECONDS = 20.0
"""How long the traffic goes on."""
DAWDLERS = 3
"""Requests that the slow client keeps open at once."""
LATE = 3
"""After so many seconds, a worker has reported what passed."""
PLACES = ["/user-agent", "/ip", "/html", "/uuid", "/headers", "/json", "/xml", "/base64/YWRh", "/links/3/1", "/cache"]
"""The pages that a dozen ordinary clients visit."""


class Sent(NamedTuple):
    """A request that was answered."""

    who: str
    begin: float
    end: float
    status: int


class Night:
    """The traffic, and what is true of it."""

    def __init__(self, served: Program) -> None:
        self.served = served
        self.sent: list[Sent] = []
        self._begin = time.time()

    def go_on(self) -> None:
        """Send what each client sends until the night is over."""
        often: list[Callable[[int], None]] = [self._scrape, self._guess, self._scan, self._visit]
        with ThreadPoolExecutor(len(often) + DAWDLERS) as clients:
            futures = [clients.submit(self._repeat, kind, 0.2) for kind in often]
            futures += [clients.submit(self._repeat, self._dawdle, 4.0) for _ in range(DAWDLERS)]
            for future in futures:
                future.result()

    def count(self, who: str, *statuses: int) -> int:
        return sum(each.who == who and each.status in statuses for each in self.sent)

    @property
    def first(self) -> float:
        return min(each.begin for each in self.sent)

    def passed(self) -> list[Sent]:
        return [each for each in self.sent if each.status != 429]

    def rates(self, at: float) -> tuple[float, float]:
        """The lowest and highest true rate: each worker reports once a second what passed, on a busy machine later. It
        counts a request before the client has the answer, and a slow one seconds before."""
        begin = max((at // 10 - 5) * 10, self.first)
        least = sum(begin + LATE * (begin != self.first) <= each.end <= at for each in self.passed())
        most = sum(begin - LATE <= each.end and each.begin <= at for each in self.passed())
        return least / (at - begin), most / (at - begin)

    def get(self, what: str) -> Any:
        return json.loads(self.served.get(f"/multilimit/api/{what}").text)

    def counted(self) -> int:
        """The requests that all workers have reported."""
        totals = self.get("now")["totals"]
        return sum(totals[name]["amount"] for name in ("passed", "refused", "banned"))

    def _repeat(self, kind: Callable[[int], None], every: float) -> None:
        for number in range(int(SECONDS / every)):
            time.sleep(max(self._begin + number * every - time.time(), 0))
            kind(number)

    def _scrape(self, number: int) -> None:
        self._ask(SCRAPER, f"/get?page={number}", {"X-Key": "key-0", "X-Forwarded-For": "192.0.2.7"})

    def _guess(self, number: int) -> None:
        self._ask(GUESSER, f"/basic-auth/ada/{number}", {"X-Forwarded-For": GUESSER})

    def _scan(self, number: int) -> None:
        self._ask(SCANNER, f"/wp-{number}.php", {"X-Forwarded-For": SCANNER})

    def _visit(self, number: int) -> None:
        who = f"192.0.2.{100 + number % 12}"
        self._ask(who, PLACES[number % len(PLACES)], {"X-Forwarded-For": who})

    def _dawdle(self, _: int) -> None:
        self._ask(SLOW, "/delay/3", {"X-Forwarded-For": SLOW})

    def _ask(self, who: str, path: str, headers: dict[str, str]) -> None:
        begin = time.time()
        status = self.served.get(path, headers).status
        self.sent.append(Sent(who, begin, time.time(), status))


class Httpbin(NamedTuple):
    """The served app after the night, and what was seen during it."""

    night: Night
    app: Flask
    """As commands load it."""
    slots: Any
    """Those in use while it went on."""


@pytest.fixture(scope="module")
def httpbin(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Httpbin]:
    folder: Path = tmp_path_factory.mktemp("night")
    (folder / "night_app.py").write_text(APP, encoding="utf-8")
    (folder / "limits.toml").write_text(LIMITS, encoding="utf-8")
    with shared_server.client() as client:
        client.flushall()
    settings = {
        "FLASK_MULTILIMIT_STORAGE_URI": shared_server.tcp_url,
        "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10",
        "FLASK_MULTILIMIT_FILE": str(folder / "limits.toml"),
    }
    gunicorn = ("gunicorn", "-b", "127.0.0.1:0", "-w", "3", "--worker-class", "gthread", "--threads", "8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name, value in settings.items():
            patch.setenv(name, value)
        with Program(*gunicorn, "night_app:app", environment=settings) as served, ThreadPoolExecutor() as beside:
            until(lambda: served.get("/multilimit/").status == 200)
            night = Night(served)
            going_on = beside.submit(night.go_on)
            slots = until(lambda: night.get("slots")["slots"])
            going_on.result()
            until(lambda: all(night.counted() == len(night.sent) for _ in range(12)))  # whichever worker answers
            from night_app import app  # type: ignore[import-not-found]  # written above

            yield Httpbin(night, app, slots)
        del sys.modules["night_app"]


def command_output(app: Flask, line: str) -> Any:
    result = app.test_cli_runner().invoke(args=["multilimit", *shlex.split(line)])
    assert result.exit_code == 0, f"{line}: {result.output}"
    return json.loads(result.output) if "--json" in line else result.output


def without_wait(verdict: str) -> str:
    """The verdict without the time to wait and the instant of its end: between two questions, a second may begin."""
    return re.sub(r"for [\d.]+ \w+|until [\d: -]+", "for a while", verdict)


def test_all_endpoints_of_httpbin_are_limited(httpbin: Httpbin) -> None:
    app = httpbin.app
    limits = command_output(app, "limits --json")

    limited = {each["endpoint"] for each in limits["endpoints"] if each["limits"]}
    assert limited >= set(app.view_functions) - {"static"} - {name for name in app.view_functions if "." in name}
    assert len(limited) > 50
    assert limits["unmatched"]


def test_top_shows_refused_clients_with_endpoint_and_rule(httpbin: Httpbin) -> None:
    night, app = httpbin.night, httpbin.app
    top = command_output(app, "top --minutes 60 --once --json")

    rules = {each["shown"]: Counter[Any]() for each in top["subjects"]}
    for each in top["subjects"]:
        for rule in each["rules"]:
            rules[each["shown"]][rule["endpoint"], rule["rule"]] += rule["refused"]
    assert rules == {
        GUESSER: {("basic_auth", "ip-3600s"): 4, ("basic_auth", "ip-ban"): night.count(GUESSER, 429) - 4},
        SCANNER: {("unmatched", "ip-3600s"): 4, ("unmatched", "ip-ban"): night.count(SCANNER, 429) - 4},
        "key-0": {("view_get", "api_key-3600s"): night.count(SCRAPER, 429)},
        SLOW: {("delay_response", "ip-at-once"): night.count(SLOW, 429)},
    }
    begun = {who: min(each.begin for each in night.sent if (each.who, each.status) == (who, 429)) for who in FOUND}
    for each in top["subjects"]:
        assert abs(each["since"] - begun[NAMES.get(each["shown"], each["shown"])]) < 10


NAMES = {"key-0": SCRAPER}
FOUND = (SCRAPER, GUESSER, SCANNER, SLOW)


def test_totals_and_rates_match_the_sent_requests(httpbin: Httpbin) -> None:
    night, app = httpbin.night, httpbin.app
    banned = night.count(GUESSER, 429) + night.count(SCANNER, 429) - 8
    for now in (command_output(app, "top --minutes 60 --once --json"), night.get("now?minutes=60")):
        assert {name: now["totals"][name]["amount"] for name in ("passed", "refused", "banned", "bans")} == {
            "passed": len(night.passed()),
            "refused": night.count(SCRAPER, 429) + night.count(SLOW, 429) + 8,
            "banned": banned,
            "bans": 2,
        }
        least, most = night.rates(now["at"])
        assert 0.95 * least <= now["totals"]["passed"]["rate"] <= 1.05 * most
    assert len(night.sent) == len(night.passed()) + banned + night.count(SCRAPER, 429) + night.count(SLOW, 429) + 8


def test_slots_in_use_are_those_of_the_slow_client(httpbin: Httpbin) -> None:
    (slot,) = httpbin.slots
    assert (slot["endpoint"], slot["shown"], slot["limit"]) == ("delay_response", SLOW, 2)
    assert 0 < slot["used"] <= 2


def test_workers_and_commands_show_the_same_numbers(httpbin: Httpbin) -> None:
    night, app = httpbin.night, httpbin.app
    top = command_output(app, "top --minutes 60 --once --json")

    for _ in range(12):
        now = night.get("now?minutes=60")
        assert [{**each, "until": None} for each in now["rules"]] == [{**each, "until": None} for each in top["rules"]]
        assert [(each["shown"], each["refused"], each["since"]) for each in now["subjects"]] == [
            (each["shown"], each["refused"], each["since"]) for each in top["subjects"]
        ]
        workers = now["workers"]
        assert (len(workers["workers"]), workers["current"], workers["same_limits"]) == (3, 3, 3)


def test_new_workers_after_hup_show_the_whole_hour(httpbin: Httpbin) -> None:
    night, before = httpbin.night, _workers(httpbin)
    amounts = _amounts(command_output(httpbin.app, "top --minutes 60 --once --json"))
    os.kill(night.served.pid, signal.SIGHUP)
    until(lambda: not before & _workers(httpbin))

    for _ in range(12):
        now = night.get("now?minutes=60")
        assert (now["complete"], _amounts(now)) == (True, amounts)


def _amounts(now: Any) -> dict[str, int]:
    return {name: each["amount"] for name, each in now["totals"].items()}


def _workers(httpbin: Httpbin) -> set[int]:
    listed = subprocess.run(
        ["ps", "--ppid", str(httpbin.night.served.pid), "-o", "pid="], capture_output=True, text=True, check=True
    )
    return set(map(int, listed.stdout.split()))


@pytest.mark.parametrize("who", FOUND)
def test_why_and_client_page_show_refusals_and_remedy(httpbin: Httpbin, who: str) -> None:
    night, app = httpbin.night, httpbin.app
    why, page = command_output(app, f"why {who} --json"), night.get(f"subject?who={who}")["found"]

    assert sum(each["refused"] for each in why["refusals"]) == night.count(who, 429)
    assert (without_wait(page["verdict"]["text"]), page["lift"]) == (without_wait(why["verdict"]["text"]), why["lift"])
    assert why["verdict"]["text"].startswith({SLOW: "passes"}.get(who, "refused"))


def test_bans_lists_bans_that_began_and_unban_lifts_one(httpbin: Httpbin) -> None:
    night, app = httpbin.night, httpbin.app
    assert {each["who"] for each in command_output(app, "bans --json")["bans"]} == {GUESSER, SCANNER}

    command_output(app, f"unban {SCANNER} --yes")

    assert {each["who"] for each in command_output(app, "bans --json")["bans"]} == {GUESSER}
    why = command_output(app, f"why {SCANNER} --json")  # the used quota stays used
    assert why["verdict"]["text"].startswith("refused")
    assert "banned" not in why["verdict"]["text"]

    command_output(app, f"reset unmatched --ip {SCANNER} --yes")

    until(lambda: night.served.get("/wp.php", {"X-Forwarded-For": SCANNER}).status == 404)


def test_inherited_limits_are_listed_once(httpbin: Httpbin) -> None:
    assert command_output(httpbin.app, "limits").count("1000 per hour") == 1


def test_change_is_in_force_in_all_workers(httpbin: Httpbin) -> None:
    night, app = httpbin.night, httpbin.app
    command_output(app, "set view_get api_key-3600s 2000/hour --for 2h --yes")

    # Asked of the process that made the change: the workers may not even know the changes before it. A worker follows
    # changes from its first request on.
    def in_force() -> bool:
        night.served.get("/ip")
        return bool(command_output(app, "top --once --json")["workers"]["current"] == 3)

    until(in_force)
    replies = [night.served.get("/get", {"X-Key": "key-0"}) for _ in range(12)]
    assert {reply.status for reply in replies} == {200}, replies[-1]
