"""Slots in use, as `flask multilimit top` looks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask import Flask

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.operate.slots import slots_in_use
from flask_multilimit.operate.top import SlotsInUse
from flask_multilimit.serve.gate import gate_of

if TYPE_CHECKING:
    import redis

    from support.servers import Server


def app_on(storage: str) -> Flask:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=storage, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app)
    app.add_url_rule("/report", "report", rate_limiter(type=IP, rules=["9/minute", "2 at once"])(lambda: "report"))
    app.add_url_rule("/export", "export", rate_limiter(rules="5 at once")(lambda: "export"))
    app.add_url_rule("/quote", "quote", rate_limiter(rules="9/minute")(lambda: "quote"))
    return app


def test_those_who_hold_most_of_what_they_may_come_first(server: Server, redis_client: redis.Redis) -> None:
    del redis_client  # which empties the server
    app = app_on(server.url)
    assert slots_in_use(gate_of(app)) == []
    client = app.test_client()
    client.get("/quote")

    responses = [client.get("/export")]
    responses += [client.get("/report", environ_base={"REMOTE_ADDR": "203.0.113.7"}) for _ in range(2)]

    assert slots_in_use(gate_of(app)) == [
        SlotsInUse("report", 2, 2, "ip", "203.0.113.7"),
        SlotsInUse("export", 1, 5, "default", ""),
    ]
    for response in responses:
        response.close()
    assert slots_in_use(gate_of(app)) == []
    gate_of(app).limiter.close()


def test_where_keys_cannot_be_listed_there_are_none() -> None:
    assert slots_in_use(gate_of(app_on("memory://"))) == []
