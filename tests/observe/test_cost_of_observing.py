"""A request without observers makes no Python call for observing."""

from collections import Counter
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import create_environ, run_wsgi_app

from flask_multilimit import LimitType, MultiLimit, rate_limiter
from flask_multilimit.engine import DenyCache, MemoryStorage
from flask_multilimit.signals import limit_event, limits_checked, request_rejected, shadow_rejected
from support.calls import calls_during


@pytest.fixture(autouse=True)
def _no_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disconnects receivers of earlier tests, too."""
    for signal in (limit_event, limits_checked, request_rejected, shadow_rejected):
        monkeypatch.setattr(signal, "receivers", {})


def calls_of(app: Flask, *, requests: int) -> Counter[str]:
    """Calls of our functions, by file and name, during the last of these requests of one client."""
    environ = create_environ(environ_base={"REMOTE_ADDR": "203.0.113.7"})
    for _ in range(requests - 1):
        run_wsgi_app(app, environ, buffered=True)
    return Counter(calls_during(lambda: run_wsgi_app(app, environ, buffered=True)))


def app_with(count: int, **settings: Any) -> Flask:
    app = Flask("shop")
    app.config.update(settings)
    MultiLimit(app, storage=DenyCache(MemoryStorage(), seconds=60))
    app.add_url_rule("/", "view", rate_limiter(type=LimitType.IP, rules=f"{count}/hour")(lambda: "ok"))
    return app


@pytest.mark.parametrize("count", [1, 1000], ids=["refused", "admitted"])
def test_request_without_observers_makes_no_observing_calls(count: int) -> None:
    calls = calls_of(app_with(count, MULTILIMIT_TRAFFIC=False), requests=3)
    assert not [name for name in calls if name.startswith("observe/") or name == "perf_counter"]
    assert not [name for name in calls if name.startswith("serve/audience.py")]


def test_traffic_costs_two_calls_for_each_request() -> None:
    off = calls_of(app_with(1000, MULTILIMIT_TRAFFIC=False), requests=3)
    on = calls_of(app_with(1000), requests=3)

    more = on - off
    less = off - on
    assert not less
    assert more == Counter(
        {
            "serve/audience.py:check_and_report": 1,
            "observe/traffic/counting.py:count_admitted": 1,
        }
    )
