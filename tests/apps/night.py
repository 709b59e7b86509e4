"""A night with httpbin: known traffic against three workers of gunicorn and a real server, and every question of the
runbook asked while it goes on. Needs httpbin, so its name is not that of a test that is always run:

    pytest --noconftest tests/apps/night.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.processes import Program
from support.servers import Server, find_binaries
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BIN = """
from flask import request
from flask_multilimit import IP, Ban, MultiLimit, rate_limiter
from flask_multilimit.dashboard import Dashboard
from httpbin import app
from werkzeug.middleware.proxy_fix import ProxyFix

def key():
    return request.headers.get("X-Key")

BAN = Ban(after=5, within=600, time=1200)
app.secret_key = "the same in all workers"
app.config.from_prefixed_env()
app.wsgi_app = ProxyFix(app.wsgi_app)
limits = MultiLimit(
    app,
    default_limits=[rate_limiter(type=key, name="api_key", rules="100/hour"), rate_limiter(type=IP, rules="5000/hour")],
    limits={
        "basic_auth": rate_limiter(type=IP, rules="3/hour", charge_when=[401], ban=BAN),
        "delay_response": rate_limiter(type=IP, rules="2 at once"),
    },
    unmatched_limits=rate_limiter(type=IP, rules="5/hour", ban=BAN),
)
app.register_blueprint(Dashboard(limits, authorize=lambda: "ada"))
"""
SCRAPER, GUESSER, SCANNER, SLOW = "api_key:key-0", "203.0.113.9", "198.51.100.4", "192.0.2.200"
PATHS = ("uuid", "headers", "ip", "user-agent", "json", "xml", "html", "robots.txt", "encoding/utf8", "anything")
SECONDS = 62.0
ENDPOINTS = 53
"""Those of httpbin."""


class Asked(NamedTuple):
    """A request: its path, and its header fields."""

    path: str
    headers: dict[str, str]


def scraper(number: int) -> Asked:
    del number
    return Asked("/get", {"X-Key": "key-0", "X-Forwarded-For": "192.0.2.7"})


def guesser(number: int) -> Asked:
    del number
    return Asked("/basic-auth/ada/secret", {"X-Forwarded-For": GUESSER})


def scanner(number: int) -> Asked:
    return Asked(f"/wp-{number}.php", {"X-Forwarded-For": SCANNER})


def visitor(number: int) -> Asked:
    return Asked(f"/{PATHS[number % len(PATHS)]}", {"X-Forwarded-For": f"192.0.2.{number % 12}"})


def slow_client(number: int) -> Asked:
    del number
    return Asked("/delay/1", {"X-Forwarded-For": SLOW})


PACES: dict[str, tuple[Callable[[int], Asked], float, int]] = {
    SCRAPER: (scraper, 8, 1),
    GUESSER: (guesser, 1, 1),
    SCANNER: (scanner, 2, 1),
    "visitors": (visitor, 10, 1),
    SLOW: (slow_client, 0.5, 4),
}
"""Who sends what, how many a second, and by how many threads."""


class Night:
    """What was sent, and what came back: by client, the time and the status of each reply."""

    def __init__(self, served: Program) -> None:
        self.served = served
        self.begin = time.time()
        self.replies: dict[str, list[tuple[float, int]]] = {who: [] for who in PACES}
        self._threads = [
            threading.Thread(target=self._send, args=(who, asked, pace))
            for who, (asked, pace, threads) in PACES.items()
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, who: str, asked: Callable[[int], Asked], pace: float) -> None:
        for number in range(int(SECONDS * pace)):
            time.sleep(max(self.begin + number / pace - time.time(), 0))
            reply = self.served.get(*asked(number))
            self.replies[who].append((time.time(), reply.status))

    def end(self) -> None:
        for thread in self._threads:
            thread.join()

    def count(self, who: str, *statuses: int) -> int:
        return sum(status in statuses for _, status in self.replies[who])

    def rate(self, begin: float, end: float, *, refused: bool) -> float:
        """Of all clients together, between two times."""
        times = [at for sent in self.replies.values() for at, status in sent if (status == 429) is refused]
        return sum(begin < at <= end for at in times) / (end - begin)


class World(NamedTuple):
    server: Server
    served: Program
    night: Night
    during: dict[str, Any]
    """What ``top`` showed in the middle of it."""
    ask: Callable[..., Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("night")
    (folder / "night_bin.py").write_text(BIN, encoding="utf-8")
    with Server(next(iter(find_binaries().values())), tcp=True) as server:
        environment = {"FLASK_MULTILIMIT_STORAGE_URI": server.tcp_url, "PYTHONPATH": str(folder)}
        sys.path.insert(0, str(folder))

        def ask(line: str) -> Any:
            command = [sys.executable, "-m", "flask", "--app", "night_bin", "multilimit", *line.split()]
            run = subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
            )
            assert run.returncode == 0, f"{line}: {run.stdout}{run.stderr}"
            return json.loads(run.stdout) if "--json" in line else run.stdout

        arguments = ("-b", "127.0.0.1:0", "-w", "3", "--threads", "16", "night_bin:app")
        with Program("gunicorn", *arguments, environment=environment) as served:
            until(lambda: served.get("/multilimit/").status == 200)
            night = Night(served)
            time.sleep(SECONDS - 6)
            during = ask("top --once --json")
            night.end()
            time.sleep(1.5)  # each worker writes what it has counted once a second
            yield World(server, served, night, during, ask)


def test_rates_in_the_middle_of_the_night_are_within_five_percent_of_what_was_sent(world: World) -> None:
    totals, begin, end = world.during["totals"], *minute_of(world.during)

    assert totals["passed"]["rate"] == pytest.approx(world.night.rate(begin, end, refused=False), rel=0.05)
    refused = totals["refused"]["rate"] + totals["banned"]["rate"]
    assert refused == pytest.approx(world.night.rate(begin, end, refused=True), rel=0.05)


def minute_of(top: dict[str, Any]) -> tuple[float, float]:
    """What "the last minute" was: the slice that had begun, and the five before it."""
    return (top["last"] - 5) * top["step"], top["at"]


def test_every_amount_is_what_was_sent(world: World) -> None:
    night, top = world.night, world.ask("top --minutes 60 --once --json")
    statuses = Counter(status for sent in night.replies.values() for _, status in sent)

    assert night.count(SCRAPER, 200) == 100
    assert (night.count(GUESSER, 401), night.count(SCANNER, 404)) == (3, 5)
    assert {each["shown"]: each["refused"] for each in top["subjects"]} == {
        who.partition(":")[2] or who: night.count(who, 429)
        for who in (SCRAPER, GUESSER, SCANNER, SLOW)
        if night.count(who, 429)
    }
    amounts = amounts_of(top)
    assert amounts["passed"] == statuses.total() - statuses[429]
    assert amounts["refused"] + amounts["banned"] == statuses[429]
    assert amounts["bans"] == 2


def amounts_of(shown: dict[str, Any]) -> dict[str, int]:
    return {name: each["amount"] for name, each in shown["totals"].items()}


def test_all_workers_show_the_same_as_the_command(world: World) -> None:
    top = world.ask("top --minutes 60 --once --json")
    for _ in range(12):
        now = json.loads(world.served.get("/multilimit/api/now").text)
        assert amounts_of(now) == amounts_of(top)
        assert [(each["shown"], each["refused"], each["since"]) for each in now["subjects"]] == [
            (each["shown"], each["refused"], each["since"]) for each in top["subjects"]
        ]


def test_one_command_says_why_each_client_is_refused(world: World) -> None:
    for who in (SCRAPER, GUESSER, SCANNER):
        why = world.ask(f"why {who} --json")

        assert sum(each["refused"] for each in why["refusals"]) == world.night.count(who, 429)
        assert f"; {world.night.count(who, 429)} refusals since " in why["verdict"]["text"]
    assert {each["who"] for each in world.ask("bans --json")["bans"]} == {GUESSER, SCANNER}
    assert world.ask("why 192.0.2.3").splitlines()[1].startswith("passes")


def test_limits_that_many_endpoints_inherit_are_listed_once(world: World) -> None:
    listed = world.ask("limits")

    assert listed.count("100 per hour") == 1
    assert len(listed.splitlines()) < 2 * ENDPOINTS
    assert max(map(len, listed.splitlines())) <= 80


def test_all_workers_are_at_the_newest_change_and_declare_what_this_checkout_does(world: World) -> None:
    world.ask("set view_get api_key-3600s 200/hour --for 2h --yes")

    newest = "3 of 3 workers at version 1; limits as in this checkout: yes"
    until(lambda: newest in " ".join(world.ask("doctor").split()))
    assert world.served.get(*scraper(0)).status == 200


def test_a_deploy_by_hup_shows_the_same_hour_in_all_new_workers(world: World) -> None:
    amounts, before = amounts_of(world.ask("top --minutes 60 --once --json")), _pids(world)
    os.kill(world.served.pid, signal.SIGHUP)
    until(lambda: not before & _pids(world))

    for _ in range(12):
        now = json.loads(world.served.get("/multilimit/api/now").text)
        assert now["complete"]
        assert amounts_of(now) == amounts


def _pids(world: World) -> set[int]:
    children = subprocess.run(
        ["ps", "--ppid", str(world.served.pid), "-o", "pid="], capture_output=True, text=True, check=True
    )
    return set(map(int, children.stdout.split()))


def test_while_the_storage_is_away_pages_say_from_when_their_numbers_are(world: World) -> None:
    world.server.suspend()
    try:
        until(lambda: "admits" in _page_in_the_outage(world))
    finally:
        world.server.resume()


def _page_in_the_outage(world: World) -> str:
    for number in range(20):
        world.served.get(*visitor(number))
    page = world.served.get("/multilimit/").text
    return page if "away" in page else ""


def test_a_ban_is_lifted_and_the_client_passes(world: World) -> None:
    until(lambda: world.served.get(*guesser(0)).status == 429)
    world.ask(f"unban {GUESSER} --yes")
    world.ask(f"reset basic_auth --ip {GUESSER} --yes")

    until(lambda: world.served.get(*guesser(0)).status == 401)
