"""How often the bridge from Flask-Limiter calls the functions of the app, and makes what takes long."""

import sys
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import Decision
from flask_multilimit.compat.flask_limiter import Limiter


def test_key_function_is_called_once_per_request() -> None:
    app, asked = Flask("bridge"), list[str]()

    def key_func() -> str:
        asked.append("ann")
        return asked[-1]

    limiter = Limiter(key_func, app=app, storage_uri="memory://", strategy="moving-window")
    each = limiter.limit("1000/minute; 2000/hour")
    app.get("/")(each(limiter.limit("9000/day", key_func=lambda: "everyone")(lambda: "ok")))
    client = app.test_client()
    for _ in range(3):
        asked.clear()
        assert client.get("/").status_code == 200

    assert asked == ["ann"]


def test_statuses_of_a_refusal_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app, statuses, askers = Flask("bridge"), Decision.statuses.fget, list[str]()  # type: ignore[attr-defined]

    def make(decision: Decision) -> Any:
        askers.append(sys._getframe(1).f_globals["__name__"])
        return statuses(decision)

    limiter = Limiter(lambda: "ann", app=app, storage_uri="memory://", headers_enabled=True)
    app.get("/")(limiter.limit("1/minute; 2/hour; 3/day")(lambda: "ok"))
    client = app.test_client()
    assert client.get("/").status_code == 200
    monkeypatch.setattr(Decision, "statuses", property(make))
    response = client.get("/")

    assert (response.status_code, response.headers["X-RateLimit-Remaining"]) == (429, "0")
    ours = [name for name in askers if name.startswith("flask_multilimit.compat")]  # receivers may ask, too
    assert ours == ["flask_multilimit.compat.flask_limiter.checks"]
