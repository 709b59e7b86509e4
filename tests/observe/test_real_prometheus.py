"""A real Prometheus scrapes gunicorn: its numbers, and those of traffic in storage, are those of the sent requests."""

import itertools
import json
import os
import re
import signal
import subprocess
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from flask_multilimit.engine import RedisStorage
from flask_multilimit.observe.boards import PANELS, alerts
from flask_multilimit.observe.traffic import TrafficReader
from support import waiting
from support.processes import Program, program
from support.servers import Server

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent

EVERY = 0.2
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - {{job_name: service, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}
"""


SEARCHED = {
    'multilimit_checks_total{endpoint="search",outcome="allowed"}': 200,
    'multilimit_checks_total{endpoint="search",outcome="refused"}': 1000,
    'multilimit_refusals_total{endpoint="search"}': 1000,
    'multilimit_near_limit_total{endpoint="search"}': 40,
    "multilimit_storage_up": 1,
}
"""The values that Prometheus must have for the sent requests."""


STORMS = {"MultiLimitEndpointRefuses", "MultiLimitBanStorm"}
"""The alerts of many clients that each ask too often."""


class Prometheus(Program):
    """Scrapes ``served``."""

    def __init__(self, served: Program, folder: Path) -> None:
        (folder / "prometheus.yml").write_text(CONFIG.format(port=served.port))
        (folder / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 1s", alerts()).replace("[3m]", "[10s]"))
        options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        super().__init__("prometheus", *options, "--web.listen-address=127.0.0.1:0")

    def query(self, expression: str) -> list[Any]:
        told = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        result: list[Any] = told["data"]["result"]
        return result

    def sum(self, series: str) -> float | None:
        """``None`` if there is no such series."""
        found = self.query(series)
        return sum(float(each["value"][1]) for each in found) if found else None

    def sums_up(self, series: str, amount: float) -> None:
        """Wait until they do: a scrape may come while a process writes what it has counted."""
        waiting.until(lambda: self.sum(series) == amount, waiting.PATIENCE, every=EVERY)

    def firing(self) -> set[str]:
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def has_scraped(self) -> bool:
        return self.get("/-/ready").status == 200 and bool(self.query("up"))

    def _get(self, path: str) -> Any:
        told = json.loads(self.get(path).text)
        assert told["status"] == "success"
        return told


@pytest.fixture(params=["sync", "gevent"])
def served(
    request: pytest.FixtureRequest, server: Server, redis_client: redis.Redis, tmp_path: Path
) -> Iterator[Program]:
    del redis_client
    (tmp_path / "metrics").mkdir()
    where = ("--bind", "127.0.0.1:0", "--chdir", str(HERE), "--config", str(HERE / "gunicorn_config.py"))
    arguments = (*where, "--workers", "3", "--worker-class", request.param)
    environment = {"STORAGE_URI": server.url, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    with Program("gunicorn", *arguments, "service:app", environment=environment) as program:
        waiting.until(lambda: len(_pids(program)) >= 2, waiting.PATIENCE)
        yield program


def _pids(served: Program) -> set[int]:
    return {int(reply.text) for reply in served.get_all(["/pid"] * 12)}


def send(served: Program, *, requests: int, clients: int) -> Counter[int]:
    replies = served.get_all([f"/search?who=client-{number % clients}" for number in range(requests)])
    return Counter(reply.status for reply in replies)


def test_prometheus_shows_exactly_the_sent_requests(served: Program, redis_client: redis.Redis, tmp_path: Path) -> None:
    with Prometheus(served, tmp_path) as prometheus:
        waiting.until(prometheus.has_scraped, waiting.PATIENCE, every=EVERY)
        sent = send(served, requests=900, clients=10) + send(served, requests=300, clients=3)
        assert sent == {200: 200, 429: 1000}

        for series, amount in SEARCHED.items():
            prometheus.sums_up(series, amount)
        prometheus.sums_up("multilimit_check_seconds_count", 1200)
        _check_bans(served, prometheus)

        recent = waiting.until(partial(_traffic, redis_client, least=1260), waiting.PATIENCE, every=EVERY)
        assert recent == {"allowed": 215, "refused": 1010, "banned": 35}

        names = (f"storm-{number}" for number in itertools.count())
        waiting.until(
            lambda: _storm(served, next(names)) and prometheus.firing() >= STORMS, waiting.PATIENCE, every=EVERY
        )
        for query in (query for queries in PANELS.values() for query in queries):
            ready = query.expression.replace("$endpoint", ".*").replace("$__rate_interval", "1m")
            assert (
                "shadow" in ready
                or "settled" in ready
                or waiting.until(partial(prometheus.query, ready), waiting.PATIENCE, every=EVERY)
            )
        prometheus.sums_up('multilimit_bans_in_force{endpoint="signup"}', 0)
        assert {series: prometheus.sum(series) for series in SEARCHED} == SEARCHED, "the numbers have not changed since"
        _check_the_scraped_page(served)


def _check_bans(served: Program, prometheus: Prometheus) -> None:
    """Of ten logins of each of five clients, two pass, and the third refusal begins the ban. The bans are in
    force until they end, also if the process in which they began is killed."""
    replies = served.get_all([f"/login?who=client-{number % 5}" for number in range(50)])
    assert Counter(reply.status for reply in replies) == {200: 10, 429: 40}
    prometheus.sums_up('multilimit_checks_total{outcome="banned"}', 30)
    prometheus.sums_up("multilimit_bans_total", 5)
    prometheus.sums_up('multilimit_bans_in_force{endpoint="login"}', 5)

    before = _pids(served)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    waiting.until(lambda: not before & _pids(served), waiting.PATIENCE)
    prometheus.sums_up('multilimit_bans_in_force{endpoint="login"}', 5)

    replies = served.get_all([f"/signup?who=client-{number % 5}" for number in range(10)])
    assert Counter(reply.status for reply in replies) == {200: 5, 429: 5}
    prometheus.sums_up('multilimit_bans_in_force{endpoint="signup"}', 5)


def _storm(served: Program, who: str) -> bool:
    """One more client passes once, is refused, and is banned."""
    statuses = [served.get(f"/storm?who={who}").status for _ in range(3)]
    return statuses == [200, 429, 429]


def _check_the_scraped_page(served: Program) -> None:
    run = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=served.get("/metrics").text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def _traffic(client: redis.Redis, *, least: int) -> dict[str, int]:
    """The checks by outcome, as soon as there are ``least``."""
    total: Counter[str] = Counter()
    for check, amount in TrafficReader(RedisStorage(client), "rate_limit:").read(300).total.checks.items():
        total[check.outcome] += amount
    return dict(total) if total.total() >= least else {}
