"""What a request through the bridge from Flask-Limiter does in Python, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from flask_multilimit.compat.flask_limiter import Limiter, get_remote_address
from support.calls import calls_during


def bridge(**options: Any) -> Flask:
    app = Flask("bridge")
    limiter = Limiter(get_remote_address, app=app, storage_uri="memory://", strategy="moving-window", **options)
    each = limiter.limit("1000/minute; 2000/hour")
    app.get("/")(each(limiter.limit("9000/day", key_func=lambda: "everyone")(lambda: "ok")))
    return app


def calls_of(app: Flask) -> list[str]:
    """Of the third request: before it, plans are made, and hits are remembered."""
    client = app.test_client()
    for _ in range(2):
        assert client.get("/").status_code == 200
    return calls_during(lambda: client.get("/"))


@pytest.mark.parametrize("meta_limits", [None, ["5/hour; 20/day"]])
def test_what_nobody_asks_for_is_not_made(meta_limits: list[str] | None) -> None:
    called = calls_of(bridge(meta_limits=meta_limits))

    for made_once in ("checks.of", "hits.hits_for", "hits.of_hits"):
        assert made_once in calls_during(lambda: bridge(meta_limits=meta_limits).test_client().get("/")), made_once
    assert not {"checks.of", "hits.hits_for", "checks.standing", "checks.view_rate_limits"} & set(called)


def test_a_key_is_asked_for_once_a_request() -> None:
    assert calls_of(bridge()).count("util.get_remote_address") == 1
