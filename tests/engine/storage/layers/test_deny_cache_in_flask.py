"""The deny cache in Flask: a refused client gets the same response again, without a command to the server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from flask import Flask
from werkzeug.test import TestResponse

from flask_multilimit import ConfigurationError, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import DenyCache, GuardedStorage, RedisStorage
from flask_multilimit.engine.storage import layers_of
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import limits_checked, request_rejected, shadow_rejected
from flask_multilimit.testing import freeze, reset
from support.asking import ask, commands, heard, statuses, view
from support.clock import Clock
from support.servers import Server

BOUND = 10.0
"""Seconds: long enough for the slowest machine."""


@pytest.fixture
def limited(app: Flask, server: Server, redis_client: redis.Redis) -> Iterator[Flask]:
    """An app with limits on an empty server, by the server's own clock."""
    assert redis_client.dbsize() == 0
    app.config |= {
        "MULTILIMIT_DENY_CACHE": BOUND,
        "MULTILIMIT_STORAGE_URI": server.url,
        "MULTILIMIT_STORAGE_TIMEOUT": 10,
    }
    MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(rules="2/hour")(view()))
    yield app
    gate_of(app).limiter.close()


@pytest.fixture
def timed(app: Flask, server_storage: RedisStorage, clock: Clock) -> Flask:
    """An app on a server, with server and cache by the clock of the test."""
    MultiLimit(app, storage=DenyCache(GuardedStorage(server_storage, workers=1), seconds=BOUND, clock=clock))
    app.add_url_rule("/", "index", rate_limiter(rules=[Rule(8, 2), Rule(50, 9)])(view()))
    return app


def seen_by_client(response: TestResponse) -> tuple[Any, ...]:
    fields = {name: value for name, value in response.headers if name != "Date"}
    return response.status_code, fields, response.get_data()


def test_cached_refusal_gives_the_same_response_as_the_first(timed: Flask, redis_client: redis.Redis) -> None:
    accept = {"Accept": "application/json"}
    statuses(timed, "/", "/")
    first = ask(timed, "/", headers=accept)

    with commands(redis_client) as seen:
        again = ask(timed, "/", headers=accept)

    assert seen == []
    assert seen_by_client(again) == seen_by_client(first)
    assert again.status_code == 429
    assert again.headers["Content-Type"] == "application/problem+json"


def test_cached_refusal_sends_the_same_signals_as_any_refusal(limited: Flask, redis_client: redis.Redis) -> None:
    limited.add_url_rule(
        "/trial", "trial", rate_limiter(rules="1/hour", shadow=True)(rate_limiter(rules="1/day")(view()))
    )
    statuses(limited, "/trial", "/trial")

    with heard(limited, limits_checked, request_rejected, shadow_rejected) as told, commands(redis_client) as sent:
        statuses(limited, "/trial")

    assert sent == []
    assert [name for name, _ in told] == ["limits-checked", "shadow-rejected", "request-rejected"]
    assert {(each["decision"].allowed, each["endpoint"]) for _, each in told} == {(False, "trial")}


# The test kit


def test_reset_by_the_test_kit_ends_cached_refusals_at_once(limited: Flask) -> None:
    assert statuses(limited, "/", "/", "/") == [200, 200, 429]
    reset(limited)
    assert statuses(limited, "/", "/", "/") == [200, 200, 429]
    reset(limited, "index")
    assert statuses(limited, "/", "/", "/") == [200, 200, 429]
    with freeze(limited):
        reset(limited)
    assert statuses(limited, "/") == [200]


def test_advancing_a_frozen_clock_ends_cached_refusals(limited: Flask) -> None:
    assert statuses(limited, "/", "/", "/") == [200, 200, 429]
    with freeze(limited) as clock:
        assert statuses(limited, "/") == [429]
        clock.advance(3600)
        assert statuses(limited, "/", "/", "/") == [200, 200, 429]


# The setting


@pytest.mark.parametrize(
    ("around", "seconds", "expected"),
    [
        (lambda client: client, 2.5, ["DenyCache", "GuardedStorage", "RedisStorage"]),
        (lambda client: client, 0, ["GuardedStorage", "RedisStorage"]),
        (
            lambda client: GuardedStorage(RedisStorage(client), workers=1),
            2.5,
            ["DenyCache", "GuardedStorage", "RedisStorage"],
        ),
        (lambda _: "memory://", 2.5, ["MemoryStorage"]),
    ],
    ids=["server", "off", "own guard", "memory"],
)
def test_setting_puts_a_deny_cache_around_any_shared_storage(
    app: Flask, redis_client: redis.Redis, around: Callable[[redis.Redis], Any], seconds: float, expected: list[str]
) -> None:
    app.config["MULTILIMIT_DENY_CACHE"] = seconds
    MultiLimit(app, storage=around(redis_client))

    layers = list(layers_of(gate_of(app).limiter.outermost))

    assert [type(layer).__name__ for layer in layers] == expected
    assert [layer.seconds for layer in layers if isinstance(layer, DenyCache)] == [2.5] * ("DenyCache" in expected)


@pytest.mark.parametrize("value", [-1, 60.1, float("nan"), "soon", None])
def test_invalid_deny_cache_setting_is_an_error(app: Flask, value: object) -> None:
    app.config["MULTILIMIT_DENY_CACHE"] = value
    with pytest.raises(ConfigurationError, match="MULTILIMIT_DENY_CACHE="):
        MultiLimit(app)
