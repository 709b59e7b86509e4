"""A real Prometheus scrapes gunicorn: its answers are what was sent, to the unit. And so is the traffic in storage."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import RedisStorage
from flask_multilimit.observe.boards import PANELS, alerts
from flask_multilimit.observe.traffic import TrafficReader
from support.processes import Program
from support.programs import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from support.servers import Server

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PATIENCE = 60.0
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - {{job_name: service, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}
"""


def until(found: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not wanted(last := found()):
        assert time.monotonic() < deadline, last
        time.sleep(0.2)
    return last


class Prometheus:
    """Debian's, on a free port, over `program`."""

    def __init__(self, served: Program, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(CONFIG.format(port=served.port))
        (folder / "alerts.yml").write_text(re.sub(r"for: \d+m", "for: 1s", alerts()).replace("[10m]", "[10s]"))
        options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [program("prometheus"), *options, f"--web.listen-address={self.address}"], stdout=log, stderr=log
            )

    def query(self, expression: str) -> list[Any]:
        told = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        result: list[Any] = told["data"]["result"]
        return result

    def firing(self) -> set[str]:
        alerts = self._get("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def is_ready(self) -> bool:
        try:
            return not self.query("up")[:0] and bool(self.query("up"))
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as reply:
            told = json.load(reply)
        assert told["status"] == "success"
        return told


@pytest.fixture(params=["sync", "gevent"])
def served(
    request: pytest.FixtureRequest, server: Server, redis_client: redis.Redis, tmp_path: Path
) -> Iterator[Program]:
    del redis_client
    (tmp_path / "metrics").mkdir()
    arguments = ("--bind", "127.0.0.1:0", "--workers", "3", "--worker-class", request.param, "--chdir", str(HERE))
    environment = {"STORAGE_URI": server.url, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")}
    with Program("gunicorn", *arguments, "service:app", environment=environment) as program:
        until(lambda: {reply.text for reply in program.get_all(["/pid"] * 12)}, lambda pids: len(pids) >= 2)
        yield program


def send(served: Program, *, requests: int, clients: int) -> Counter[int]:
    replies = served.get_all([f"/search?who=client-{number % clients}" for number in range(requests)])
    return Counter(reply.status for reply in replies)


def test_its_answers_are_what_was_sent(served: Program, redis_client: redis.Redis, tmp_path: Path) -> None:
    prometheus = Prometheus(served, tmp_path)
    try:
        until(prometheus.is_ready, bool)
        sent = send(served, requests=900, clients=10) + send(served, requests=300, clients=3)
        assert sent == {200: 200, 429: 1000}

        passed = until(lambda: _sum(prometheus, 'multilimit_checks_total{outcome="allowed"}'), lambda n: n >= 200)
        refused = until(lambda: _sum(prometheus, 'multilimit_checks_total{outcome="refused"}'), lambda n: n >= 1000)
        assert (passed, refused) == (200, 1000)
        assert _sum(prometheus, "multilimit_refusals_total") == 1000
        assert _sum(prometheus, "multilimit_near_limit_total") == 40
        assert _sum(prometheus, "multilimit_check_seconds_count") == 1200
        assert _sum(prometheus, "multilimit_storage_up") == 1
        _check_bans(served, prometheus)

        recent = until(lambda: _traffic(redis_client), lambda counts: sum(counts.values()) >= 1250)
        assert recent == {"allowed": 210, "refused": 1010, "banned": 30}

        until(prometheus.firing, lambda firing: "MultiLimitEndpointRefuses" in firing)
        for query in (query for panel in PANELS for query in panel.queries):
            ready = query.expression.replace("$endpoint", ".*").replace("$__rate_interval", "1m")
            assert "shadow" in ready or until(partial(prometheus.query, ready), bool)
        _check_the_page(served)
    finally:
        prometheus.process.terminate()
        prometheus.process.wait(20)


def _check_bans(served: Program, prometheus: Prometheus) -> None:
    """Of ten logins of each of five clients, two pass, and the third refusal is the first of the ban."""
    replies = served.get_all([f"/login?who=client-{number % 5}" for number in range(50)])
    assert Counter(reply.status for reply in replies) == {200: 10, 429: 40}
    assert until(lambda: _sum(prometheus, 'multilimit_checks_total{outcome="banned"}'), lambda n: n >= 30) == 30
    assert _sum(prometheus, "multilimit_bans_total") == 5


def _check_the_page(served: Program) -> None:
    run = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=served.get("/metrics").text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def _sum(prometheus: Prometheus, series: str) -> float:
    return sum(float(each["value"][1]) for each in prometheus.query(series))


def _traffic(client: redis.Redis) -> dict[str, int]:
    total: Counter[str] = Counter()
    for check, amount in TrafficReader(RedisStorage(client), "rate_limit:").read(300).total.checks.items():
        total[check.outcome] += amount
    return dict(total)
