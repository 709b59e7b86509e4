"""A request is one command to the server, counted on a real one, with every feature in use somewhere in the app."""

from typing import Any

import pytest
import redis
from flask import Blueprint, Flask

from flask_multilimit import Ban, LimitType, MultiLimit, exempt, rate_limiter
from flask_multilimit.engine import RedisStorage
from support.asking import ask, commands, statuses, view
from support.clock import Clock

ONE = ["EVALSHA"]


@pytest.fixture
def app(app: Flask, redis_client: redis.Redis, clock: Clock) -> Flask:
    """An app in which every feature is in use somewhere."""
    app.config |= {
        "MULTILIMIT_HEADERS": "both",
        "MULTILIMIT_SHADOW_HEADERS": True,
        "MULTILIMIT_LIMITS": {"api.*": "70/day"},
        "MULTILIMIT_EXEMPT": ["health"],
    }
    MultiLimit(
        app,
        storage=RedisStorage(redis_client, clock=clock),
        application_limits={"rules": "1000 per 2 days"},
        default_limits="90/hour",
        unmatched_limits="80/hour",
        user_loader=lambda: "ann",
        on_rejected=lambda _: None,
    )
    options: dict[str, Any] = {
        "plain": {},
        "cost": {"cost": lambda: 2},
        "free": {"cost": lambda: 0},
        "exempt": {"exempt_when": lambda: True},
        "dynamic": {"rules": lambda: "50/minute"},
        "kept": {"charge_when": lambda _: True},
        "refunded": {"charge_when": lambda _: False},
        "shadow": {"shadow": True, "rules": "1/minute"},
        "wait": {"wait": 5},
        "message": {"message": lambda _: "no", "on_rejected": lambda _: None},
        "pair": {"type": (LimitType.USER, LimitType.IP)},
        "ban": {"type": LimitType.IP, "ban": Ban(after=3)},
        "own": {"type": lambda: "k", "name": "api_key"},
        "scope": {"scope": "shared"},
        "with-defaults": {"with_defaults": True},
    }
    for name, given in options.items():
        app.add_url_rule(f"/{name}", name, rate_limiter(**{"rules": "60/minute", **given})(view()))
    app.add_url_rule("/refused", "refused", rate_limiter(rules="1 per 3 days")(view()))
    app.add_url_rule("/default", "default", view())
    app.add_url_rule("/health", "health", view())
    app.add_url_rule("/open", "open", exempt(view()))
    api = rate_limiter(rules="40/minute")(Blueprint("api", "api"))
    api.add_url_rule("/api", "view", view())
    app.register_blueprint(api)
    for path in (*(f"/{name}" for name in options), "/refused", "/default", "/api", "/no"):
        ask(app, path)  # loads every script
    return app


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *((f"/{name}", ONE) for name in ("plain", "cost", "free", "exempt", "dynamic", "kept", "shadow", "wait")),
        *((f"/{name}", ONE) for name in ("message", "pair", "own", "ban", "scope", "with-defaults", "default", "api")),
        ("/refused", ONE),
        ("/no", ONE),
        ("/refunded", ONE * 2),
        ("/health", []),
        ("/open", []),
    ],
)
def test_request_sends_one_command_and_another_only_for_a_refund(
    app: Flask, redis_client: redis.Redis, path: str, expected: list[str]
) -> None:
    with commands(redis_client) as seen:
        ask(app, path)
    assert seen == expected


def test_options_request_answered_by_flask_sends_no_command(app: Flask, redis_client: redis.Redis) -> None:
    with commands(redis_client) as seen:
        answered = statuses(app, "/plain", "/default", method="OPTIONS")
    assert (answered, seen) == ([200, 200], [])
