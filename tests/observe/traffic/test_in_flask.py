"""Traffic of an app: counted by default, flushed in the background, read back."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis
from flask import Flask

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, current_decision, rate_limiter
from flask_multilimit.engine import MemoryStorage
from flask_multilimit.observe.traffic import Check, RecentTraffic, RuleCount, flushing, reader_of
from flask_multilimit.observe.traffic.flushing import Traffic
from flask_multilimit.serve.gate import gate_of
from support.doubles import RecordingStorage
from support.servers import Server
from support.waiting import until


def make(app: Flask, **options: Any) -> MultiLimit:
    multilimit = MultiLimit(app, **options)

    @app.get("/")
    @rate_limiter(type=LimitType.IP, rules="3/hour")
    def index() -> str:
        return str(current_decision.decided_by)

    return multilimit


def traffic_of(app: Flask) -> Traffic:
    traffic = gate_of(app).audience.traffic
    assert traffic is not None
    return traffic


def read(app: Flask) -> RecentTraffic:
    gate = gate_of(app)
    return reader_of(gate.limiter.storage, gate.settings.key_prefix).read(60)


def test_traffic_is_counted_by_default(app: Flask) -> None:
    make(app)
    client = app.test_client()
    for _ in range(10):
        client.get("/")

    traffic_of(app).flush()

    recent = read(app)
    assert recent.total.checks == {Check("index", "allowed", "memory"): 3, Check("index", "refused", "memory"): 7}
    assert recent.total.rules == {
        RuleCount("index", "ip-3600s", "refuses"): 7,
        RuleCount("index", "ip-3600s", "near"): 1,
    }
    assert recent.top_subjects()[0][:5] == ("index", "ip-3600s", "ip", "127.0.0.1", 7)


def test_traffic_is_flushed_in_the_background(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SECONDS", 0.01)
    make(app)
    app.test_client().get("/")

    until(lambda: read(app).total)

    assert read(app).total.checks == {Check("index", "allowed", "memory"): 1}


def test_traffic_is_not_counted_when_switched_off(app: Flask) -> None:
    app.config["MULTILIMIT_TRAFFIC"] = False
    make(app)

    assert gate_of(app).audience.traffic is None
    assert not gate_of(app).audience.present


def test_traffic_keys_have_the_prefix_and_a_ttl(app: Flask, server: Server, redis_client: redis.Redis) -> None:
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10, MULTILIMIT_KEY_PREFIX="shop:")
    make(app)
    client = app.test_client()
    for _ in range(5):
        client.get("/")

    traffic_of(app).flush()

    keys: list[bytes] = [key for key in redis_client.scan_iter("*") if b"{*traffic}" in key]
    assert len(keys) == 4
    assert all(key.startswith(b"shop:") and 3000 < redis_client.ttl(key) < 3700 for key in keys)
    assert sum(read(app).checks(outcomes=["refused"])) == 2
    assert {check.decided_by for check in read(app).total.checks} <= {"storage", "deny_cache"}


@pytest.mark.parametrize(
    ("policy", "statuses", "counted"),
    [
        ("deny", [503] * 4, {Check("index", "unanswered", "nobody"): 4}),
        ("allow", [200] * 4, {Check("index", "allowed", "allow"): 4}),
        ("local", [200] * 3 + [429], {Check("index", "allowed", "local"): 3, Check("index", "refused", "local"): 1}),
    ],
)
def test_requests_in_an_outage_are_counted(
    app: Flask, storage: RecordingStorage, policy: str, statuses: list[int], counted: dict[Check, int]
) -> None:
    app.config.update(MULTILIMIT_ON_STORAGE_ERROR=policy, MULTILIMIT_WORKERS=1)
    make(app, storage=storage)
    storage.broken = True

    assert [app.test_client().get("/").status_code for _ in range(4)] == statuses
    assert traffic_of(app).take().checks == counted


def test_waits_are_counted(app: Flask) -> None:
    MultiLimit(app)
    app.add_url_rule("/", "view", rate_limiter(rules=Rule(0.05, 1), wait=5)(lambda: "ok"))

    def waits() -> bool:
        """Whether this request had to wait; one that comes late does not."""
        app.test_client().get("/")
        return Check("view", "waited", "memory") in traffic_of(app).take().checks

    until(waits, every=0)


def test_traffic_is_logged_when_storage_keeps_none(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    class Own:
        shared = False

        def __init__(self) -> None:
            kept = MemoryStorage()
            for name in ("check", "peek", "check_many", "settle", "reset", "close"):
                setattr(self, name, getattr(kept, name))

    make(app, storage=Own())
    client = app.test_client()
    for _ in range(5):
        assert client.get("/").status_code in {200, 429}

    traffic_of(app).flush(ending=True)

    assert "2 refused in 1 s: index by ip-3600s 2" in caplog.text


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"TRAFFIC_SUBJECTS": "hashed"}, "SECRET_KEY"),
        ({"TRAFFIC_SUBJECTS": "md5"}, "MULTILIMIT_TRAFFIC_SUBJECTS='md5'"),
        ({"TRAFFIC": 1}, "MULTILIMIT_TRAFFIC=1"),
        ({"LOG": "debug"}, "MULTILIMIT_LOG='debug'"),
        ({"TRAFFIC": False, "LOG": "subjects"}, "MULTILIMIT_LOG='subjects' needs MULTILIMIT_TRAFFIC"),
        ({"TRAFFIC": False, "TRAFFIC_SUBJECTS": "plain"}, "MULTILIMIT_TRAFFIC_SUBJECTS='plain' needs"),
    ],
)
def test_wrong_traffic_setting_is_an_error(app: Flask, settings: dict[str, Any], what: str) -> None:
    app.config.update({f"MULTILIMIT_{name}": value for name, value in settings.items()})

    with pytest.raises(ConfigurationError, match=what):
        MultiLimit(app)


def test_subjects_are_plain_hashed_or_left_out_by_setting() -> None:
    found = {}
    for how in ("plain", "hashed", "none"):
        shop = Flask("shop")
        shop.config.update(MULTILIMIT_TRAFFIC_SUBJECTS=how, SECRET_KEY="s3cret")
        make(shop)
        client = shop.test_client()
        for _ in range(5):
            client.get("/")
        traffic_of(shop).flush()
        found[how] = [top.subject for top in read(shop).top_subjects()]

    assert found["plain"] == ["127.0.0.1"]
    assert found["none"] == []
    (hashed,) = found["hashed"]
    assert hashed != "127.0.0.1"
    assert len(hashed) == 16


def test_log_of_refusals_can_be_switched_off(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app.config["MULTILIMIT_LOG"] = "off"
    make(app)
    client = app.test_client()
    for _ in range(5):
        client.get("/")

    traffic_of(app).flush(ending=True)

    assert caplog.records == []
