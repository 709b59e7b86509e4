"""Traffic of an app: counted by default, flushed in the background, read back."""

import logging
from typing import Any

import pytest
import redis
from flask import Flask

from flask_multilimit import ConfigurationError, LimitType, MultiLimit, Rule, rate_limiter
from flask_multilimit.observe.traffic import Check, RecentTraffic, RuleCount, flushing, reader_of
from flask_multilimit.observe.traffic.flushing import Traffic
from flask_multilimit.serve.gate import gate_of
from support.asking import pass_a_second
from support.doubles import OwnStorage, RecordingStorage
from support.servers import Server
from support.waiting import until


class Shop:
    """An app whose index admits three requests of an address an hour."""

    def __init__(self, **settings: Any) -> None:
        self.app = Flask("shop")
        self.app.config.update({f"MULTILIMIT_{name}": value for name, value in settings.items()}, SECRET_KEY="s3cret")
        self.app.add_url_rule("/", "index", rate_limiter(type=LimitType.IP, rules="3/hour")(lambda: "ok"))

    def ask(self, times: int = 1, **options: Any) -> list[int]:
        """The statuses of requests of one client. The first call takes the options of the extension."""
        if "multilimit" not in self.app.extensions:
            MultiLimit(self.app, **options)
        client = self.app.test_client()
        return [client.get("/").status_code for _ in range(times)]

    @property
    def traffic(self) -> Traffic:
        traffic = gate_of(self.app).audience.traffic
        assert traffic is not None
        return traffic

    def read(self) -> RecentTraffic:
        gate = gate_of(self.app)
        return reader_of(gate.limiter.storage, gate.settings.key_prefix).read(60)


@pytest.fixture
def _no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that runs once a second takes nothing that the test counts."""
    monkeypatch.setattr(flushing, "SECONDS", 3600.0)


def test_traffic_is_counted_by_default() -> None:
    shop = Shop()
    shop.ask(10)

    pass_a_second(shop.app)

    recent = shop.read()
    assert recent.total.checks == {Check("index", "allowed", "memory"): 3, Check("index", "refused", "memory"): 7}
    assert recent.total.rules == {
        RuleCount("index", "ip-3600s", "refuses"): 7,
        RuleCount("index", "ip-3600s", "near"): 1,
    }
    assert recent.top_subjects()[0][:5] == ("index", "ip-3600s", "ip", "127.0.0.1", 7)


def test_traffic_is_flushed_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "SECONDS", 0.01)
    shop = Shop()
    shop.ask()

    until(lambda: shop.read().total)

    assert shop.read().total.checks == {Check("index", "allowed", "memory"): 1}


def test_traffic_is_not_counted_when_switched_off() -> None:
    shop = Shop(TRAFFIC=False)
    shop.ask()
    assert gate_of(shop.app).audience.traffic is None
    assert not gate_of(shop.app).audience.present


def test_traffic_keys_have_the_prefix_and_a_ttl(server: Server, redis_client: redis.Redis) -> None:
    shop = Shop(STORAGE_URI=server.url, STORAGE_TIMEOUT=10, KEY_PREFIX="shop:")
    shop.ask(5)

    pass_a_second(shop.app)

    keys: list[bytes] = [key for key in redis_client.scan_iter("*") if b"{*traffic}" in key]
    assert len(keys) == 4
    assert all(key.startswith(b"shop:") and 3000 < redis_client.ttl(key) < 3700 for key in keys)
    assert sum(shop.read().checks(outcomes=["refused"])) == 2
    assert {check.decided_by for check in shop.read().total.checks} <= {"storage", "deny_cache"}


@pytest.mark.parametrize(
    ("policy", "statuses", "counted"),
    [
        ("deny", [503] * 4, {Check("index", "unanswered", "nobody"): 4}),
        ("allow", [200] * 4, {Check("index", "allowed", "allow"): 4}),
        ("local", [200] * 3 + [429], {Check("index", "allowed", "local"): 3, Check("index", "refused", "local"): 1}),
    ],
)
@pytest.mark.usefixtures("_no_turn")
def test_requests_in_an_outage_are_counted(
    storage: RecordingStorage, policy: str, statuses: list[int], counted: dict[Check, int]
) -> None:
    shop = Shop(ON_STORAGE_ERROR=policy, WORKERS=1)
    storage.broken = True
    assert shop.ask(4, storage=storage) == statuses
    taken = shop.traffic.take()
    assert taken.checks == counted
    assert sum(taken.refused.values()) == statuses.count(429)


def test_waits_are_counted(app: Flask) -> None:
    MultiLimit(app)
    app.add_url_rule("/", "view", rate_limiter(rules=Rule(0.05, 1), wait=5)(lambda: "ok"))
    traffic = gate_of(app).audience.traffic
    assert traffic is not None

    def waits() -> bool:
        """Whether this request had to wait; one that comes late does not."""
        app.test_client().get("/")
        return Check("view", "waited", "memory") in traffic.take().checks

    until(waits, every=0)


@pytest.mark.parametrize("log", ["summary", "off"])
@pytest.mark.usefixtures("_no_turn")
def test_refusals_are_logged_unless_switched_off_even_when_storage_keeps_none(
    caplog: pytest.LogCaptureFixture, log: str
) -> None:
    caplog.set_level(logging.INFO)
    shop = Shop(LOG=log)
    assert shop.ask(5, storage=OwnStorage()) == [200] * 3 + [429] * 2

    shop.traffic.flush(ending=True)

    line = "Rate limits: 2 refused in 1 s: index by ip-3600s 2"
    assert caplog.messages == ([line] if log == "summary" else [])


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
        shop = Shop(TRAFFIC_SUBJECTS=how)
        shop.ask(5)
        pass_a_second(shop.app)
        found[how] = [top.subject for top in shop.read().top_subjects()]

    assert found["plain"] == ["127.0.0.1"]
    assert found["none"] == []
    (hashed,) = found["hashed"]
    assert hashed != "127.0.0.1"
    assert len(hashed) == 16
