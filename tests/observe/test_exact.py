"""Every sent request is counted exactly once, also by leases, and by several processes while the storage is down.

Other deciders are counted in `traffic/test_in_flask.py`, forks in `traffic/test_counting.py`, and gevent in
`test_real_prometheus.py`.
"""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from flask import Flask

from flask_multilimit import LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import RedisStorage
from flask_multilimit.observe.traffic import Counts, TrafficReader
from flask_multilimit.serve.gate import gate_of
from support.forks import FORKS
from support.processes import Program
from support.servers import Server
from support.waiting import PATIENCE, until

HERE = Path(__file__).parent


def counted(client: redis.Redis, *, most: int) -> Counts:
    """The counts in storage, as soon as there are ``most`` checks."""

    def found() -> Counts:
        total = TrafficReader(RedisStorage(client), "rate_limit:").read(600).total
        return total if sum(total.checks.values()) >= most else Counts()

    return until(found, PATIENCE, every=0.1)


def by(counts: Counts, label: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for check, amount in counts.checks.items():
        found[getattr(check, label)] += amount
    return dict(found)


def test_decisions_of_leases_are_counted(server: Server, redis_client: redis.Redis) -> None:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    multilimit = MultiLimit(app)
    rule = Rule(3600, 300, lease=20)
    app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules=rule)(lambda: "ok"))

    with ThreadPoolExecutor(4) as pool:
        sent = Counter(pool.map(lambda _: app.test_client().get("/").status_code, range(500)))
    traffic = gate_of(app).audience.traffic
    assert traffic is not None
    traffic.flush()

    total = counted(redis_client, most=500)
    assert by(total, "outcome") == {"allowed": sent[200], "refused": sent[429]}
    assert by(total, "decided_by")["lease"] > 0
    assert sum(amount for each, amount in total.rules.items() if each.did == "refuses") == sent[429]
    multilimit.close()


def test_counts_of_a_multiprocessing_child_are_sent_when_it_ends(server: Server, redis_client: redis.Redis) -> None:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "view", rate_limiter(rules="3/hour")(lambda: "ok"))

    child = FORKS.Process(target=lambda: [app.test_client().get("/") for _ in range(5)])
    child.start()
    child.join(PATIENCE)

    assert by(counted(redis_client, most=5), "outcome") == {"allowed": 3, "refused": 2}
    multilimit.close()


@pytest.mark.slow
def test_gunicorn_workers_count_every_request_through_an_outage(own_server: Server, tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    arguments = ("--bind", "127.0.0.1:0", "--workers", "3", "--chdir", str(HERE))
    environment = {
        "STORAGE_URI": own_server.url,
        "STORAGE_TIMEOUT": "2",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
    }
    with (
        Program("gunicorn", *arguments, "service:app", environment=environment) as served,
        own_server.client() as client,
    ):
        sent = send(served, "before")
        own_server.suspend()
        sent += send(served, "during")
        own_server.resume()
        sent += send(served, "after")

        total = counted(client, most=sum(sent.values()))

    assert by(total, "outcome") == {"allowed": sent[200], "refused": sent[429]}
    assert sent[200] + sent[429] == 450, "no request failed"
    assert by(total, "decided_by")["local"] > 0


def send(served: Program, who: str) -> Counter[int]:
    replies = served.get_all([f"/search?who={who}-{number % 3}" for number in range(150)])
    return Counter(reply.status for reply in replies)


ON_UWSGI = """
from flask import Flask
from flask_multilimit import MultiLimit, rate_limiter
from flask_multilimit.engine import hits_for

app = Flask("shop")
app.config.from_prefixed_env()
multilimit = MultiLimit(app)
app.add_url_rule("/", "view", rate_limiter(rules="100/hour")(lambda: "ok"))
with app.app_context():
    multilimit.limiter.check(hits_for("100/hour", scope="view"))  # so the workers inherit a connection, and ids
"""


@pytest.mark.slow
def test_uwsgi_workers_count_every_request(server: Server, redis_client: redis.Redis, tmp_path: Path) -> None:
    (tmp_path / "on_uwsgi.py").write_text(ON_UWSGI)
    program = ("uwsgi", "--http-socket", "127.0.0.1:0", "--module", "on_uwsgi:app", "--master", "--die-on-term")
    paths = [part for path in (str(tmp_path), *filter(None, sys.path)) for part in ("--pythonpath", path)]
    environment = {"FLASK_MULTILIMIT_STORAGE_URI": server.url, "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10"}

    with Program(*program, *paths, "--processes", "3", "--threads", "4", environment=environment) as running:
        sent = Counter(reply.status for reply in running.get_all(["/"] * 300))

        assert sent == {200: 99, 429: 201}
        assert by(counted(redis_client, most=300), "outcome") == {"allowed": 99, "refused": 201}
