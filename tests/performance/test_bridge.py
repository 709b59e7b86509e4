"""How often the bridge from Flask-Limiter calls the functions of the app."""

from __future__ import annotations

from flask import Flask

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
