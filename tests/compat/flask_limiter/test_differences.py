"""The warning at the first request: which differences affect an app."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask import Blueprint, Flask

from flask_multilimit.compat.flask_limiter import Limiter, get_remote_address


def named_at_start(caplog: pytest.LogCaptureFixture, declare: Callable[[Flask, Limiter], Any], **options: Any) -> str:
    """The differences that the only warning of three requests names."""
    app = Flask("shop")
    limiter = Limiter(get_remote_address, app=app, **{"headers_enabled": True, "storage_uri": "memory://", **options})
    declare(app, limiter)
    for _ in range(3):
        app.test_client().get("/")
    found = [re.search("differences in: ([^;]+)", record.getMessage()) for record in caplog.records]
    return " | ".join(match[1] for match in found if match)


def one_view(*limits: Any, **options: Any) -> Callable[[Flask, Limiter], Any]:
    def declare(app: Flask, limiter: Limiter) -> None:
        view = lambda: "ok"  # noqa: E731
        for limit in limits:
            view = limiter.limit(limit, **options)(view)
        app.get("/")(view)

    return declare


def one_blueprint(app: Flask, limiter: Limiter) -> None:
    shop = Blueprint("shop", __name__)
    shop.get("/")(lambda: "ok")
    limiter.limit("9/day", meta_limits=["5/hour"])(shop)
    app.register_blueprint(shop)


def one_function(app: Flask, limiter: Limiter) -> None:
    @limiter.limit(lambda: "9/day")
    def send() -> str:
        return "sent"

    app.get("/")(lambda: f"{send()}")


@pytest.mark.parametrize(
    ("declare", "options", "named"),
    [
        (one_view("9/day"), {}, "headers of the check"),
        (one_view("9/day"), {"headers_enabled": False}, "Retry-After"),
        (one_view("9/day", "5/hour"), {}, "all or nothing, headers of the check"),
        (one_view("9/day;5/hour"), {}, "all or nothing, headers of the check"),
        (one_view(), {"application_limits": ["9/day"]}, "all or nothing, headers of the check"),
        (one_view("9/day", cost=2), {}, "all or nothing, headers of the check"),
        (one_view("9/day"), {"in_memory_fallback": ["9/day"]}, "fallback limits, headers of the check"),
        (one_function, {}, "callables that fail, headers of the check"),
        (one_view("9/day", deduct_when=bool), {}, "charge first, headers of the check"),
        (one_view("9/day", meta_limits=["5/hour"]), {}, "headers of the check, end of a meta limit"),
        (one_view("9/day"), {"meta_limits": ["5/hour"]}, "headers of the check, end of a meta limit"),
        (one_blueprint, {}, "headers of the check, end of a meta limit, meta limits of a blueprint"),
        (one_view("9/day"), {"storage_uri": "redis://127.0.0.1:1"}, "outages, headers of the check"),
        (one_view("9/day"), {"storage_uri": "redis://127.0.0.1:1", "swallow_errors": True}, "headers of the check"),
        (one_view("9/day"), {"storage_uri": None}, "headers of the check, memory"),
        (
            one_view("9/day"),
            {"strategy": "moving-window"},
            "headers of the check, edge of a moving window, reset of a moving window",
        ),
        (
            one_view("9/day"),
            {"strategy": "sliding-window-counter"},
            "headers of the check, reset of a moving window, windows of the counter",
        ),
    ],
)
def test_first_request_warns_of_differences_that_affect_the_app(
    declare: Callable[[Flask, Limiter], Any], options: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert named_at_start(caplog, declare, **options) == named


def test_unknown_settings_are_logged_with_the_nearest_known_name(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    app.config.update(RATELIMIT_STORAGE_URL="memory://", RATELIMIT_GUEST_USER="60 per minute")  # the latter by Invenio
    Limiter(get_remote_address, app=app)

    app.test_client().get("/")

    assert (
        "RATELIMIT_STORAGE_URL is not a setting of Flask-Limiter; did you mean RATELIMIT_STORAGE_URI?"
        in caplog.messages
    )
    assert "RATELIMIT_GUEST_USER is not a setting of Flask-Limiter" in caplog.messages


@pytest.mark.parametrize(
    ("methods", "routed", "told"),
    [
        (["POST"], ["GET"], True),
        (["post", "put"], ["GET"], True),
        (["POST", "GET"], ["GET"], False),
        (["POST"], ["GET", "POST"], False),
        (["HEAD"], ["GET"], False),
        (None, ["GET"], False),
    ],
)
@pytest.mark.parametrize("target", ["view", "blueprint", "blueprint around it"])
def test_limit_for_methods_that_its_routes_do_not_take_is_logged(
    app: Flask, methods: list[str] | None, routed: list[str], told: bool, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Superset, whose limit of logins is on the route that shows the form."""
    limiter = Limiter(get_remote_address, storage_uri="memory://")
    limit = limiter.limit("5/minute", methods=methods)
    view = limit(one_page) if target == "view" else one_page
    inner, outer = Blueprint("auth", __name__), Blueprint("site", __name__)
    inner.add_url_rule("/login", "login", view, methods=routed)
    if target != "view":
        limit(inner if target == "blueprint" else outer)
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    limiter.init_app(app)
    for _ in range(2):
        app.test_client().get("/login")

    found = [each for each in caplog.messages if "never applies: its routes take only GET, HEAD, OPTIONS" in each]

    assert len(found) == told, caplog.messages


def one_page() -> str:
    return "page"
