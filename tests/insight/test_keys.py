"""Slots in use, as `flask multilimit top` looks for them."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from flask import Flask

from flask_multilimit import IP, USER, MultiLimit, Rule, rate_limiter
from flask_multilimit.engine import hits_for
from flask_multilimit.engine.storage.layers.outage import probes_like
from flask_multilimit.insight import keys as keys_room
from flask_multilimit.insight.keys import SlotsInUse, keys, slots_in_use, stored_keys
from flask_multilimit.serve.gate import gate_of
from support.calls import calls_during
from support.servers import Server


def app_on(storage: str) -> Flask:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=storage, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app)
    app.add_url_rule("/report", "report", rate_limiter(type=IP, rules=["9/minute", "2 at once"])(lambda: "report"))
    app.add_url_rule("/export", "export", rate_limiter(rules="5 at once")(lambda: "export"))
    app.add_url_rule("/quote", "quote", rate_limiter(rules="9/minute")(lambda: "quote"))
    return app


def test_slots_name_clients_as_other_faces_do(server: Server) -> None:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app, user_loader=lambda: "ann\n")
    for name, type_ in (("report", IP), ("export", USER)):
        app.add_url_rule(f"/{name}", name, rate_limiter(type=type_, rules="2 at once")(lambda: iter("abc")))
    client = app.test_client()

    held = [client.get(each, environ_base={"REMOTE_ADDR": "2001:db8::7"}) for each in ("/report", "/export")]

    found = {each.endpoint: (each.subject, each.shown) for each in slots_in_use(gate_of(app))}
    assert found == {"report": ("2001:db8::/64", "2001:db8::/64"), "export": ("ann\n", '"ann\\n"')}
    for response in held:
        response.close()
    gate_of(app).limiter.close()


def test_slots_of_views_functions_and_checks_are_listed(server: Server) -> None:
    app = app_on(server.url)
    multilimit: MultiLimit = app.extensions["multilimit"]
    rules = rate_limiter(type=IP, rules=lambda: "7 at once", hash_tag="subject", methods=["GET"])
    app.add_url_rule("/dynamic", "by_request", rules(lambda: iter("abc")))

    @rate_limiter(rules="7 at once", scope="a service")
    def service() -> Iterator[str]:
        yield from "abc"

    def checks() -> Iterator[str]:
        multilimit.check("7 at once; 9/minute", scope="checked")
        return service()

    app.add_url_rule("/checks", "checks", checks)
    client = app.test_client()

    held = [client.get(path) for path in ("/dynamic", "/checks", "/checks", "/report")]

    found = slots_in_use(gate_of(app))
    assert sorted(found, key=lambda each: each.endpoint) == [
        SlotsInUse("a service", 2, None, "default", "", "everyone"),
        SlotsInUse("by_request", 1, None, "ip", "127.0.0.1", "127.0.0.1"),
        SlotsInUse("checked", 2, None, "default", "", "everyone"),
        SlotsInUse("report", 1, 2, "ip", "127.0.0.1", "127.0.0.1"),
    ]
    assert [each.endpoint for each in found[2:]] == ["by_request", "report"], "an unknown limit may be used up"
    found_keys = keys(gate_of(app), stored_keys(gate_of(app), ["rate_limit:"], containing=":concurrency:"))
    assert sorted(key.used or 0 for key in found_keys) == [1, 1, 2, 2]
    for response in held:
        response.close()
    assert slots_in_use(gate_of(app)) == []
    gate_of(app).limiter.close()


def test_slots_are_found_among_many_other_keys(
    server: Server, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_room, "MOST_OTHER_KEYS", 0)
    monkeypatch.setattr(keys_room, "MOST_SLOT_KEYS", 1)
    app = app_on(server.url)
    for number in range(20):
        redis_client.set(f"rate_limit:{{many}}:ip:{number}:fixed_window:60000", 1, ex=60)

    response = app.test_client().get("/export")

    assert slots_in_use(gate_of(app)) == [SlotsInUse("export", 1, 5, "default", "", "everyone")]
    response.close()
    gate_of(app).limiter.close()


def test_no_slots_are_listed_when_keys_cannot_be() -> None:
    assert slots_in_use(gate_of(app_on("memory://"))) == []


def test_keys_of_many_endpoints_are_peeked_at_together(app: Flask) -> None:
    MultiLimit(app, default_limits={"type": IP, "rules": "9/minute"})
    for number in range(120):
        app.add_url_rule(f"/{number}", f"view_{number}", lambda: "ok")
    for number in range(120):
        app.test_client().get(f"/{number}")
    gate, found = gate_of(app), list[Any]()

    called = calls_during(lambda: found.extend(keys(gate, stored_keys(gate, ["rate_limit:"]))))

    assert [each.used for each in found] == [1] * 120
    assert called.count("engine/limiter.py:peek") == 3


def test_probes_of_the_storage_are_not_listed(server: Server, redis_client: redis.Redis) -> None:
    app = app_on(server.url)
    rules = [Rule(60, 9, algorithm="fixed_window"), Rule(60, 9)]
    gate_of(app).limiter.storage.check(hits := hits_for(rules, scope="quote", subject="ip:a"))
    for probe in probes_like(hits):
        redis_client.set(probe.key, 1)

    assert len(probes_like(hits)) == 2
    assert [each.key for each in stored_keys(gate_of(app), ["rate_limit:"])] == [each.key for each in hits]


def test_quota_of_a_key_is_all_that_a_bucket_holds(app: Flask, server: Server) -> None:
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    MultiLimit(app, application_limits=Rule(60, 5, algorithm="token_bucket", burst=20))
    app.add_url_rule("/", "show", lambda: "ok")
    app.test_client().get("/")
    gate = gate_of(app)

    (found,) = keys(gate, stored_keys(gate, ["rate_limit:"]))

    assert (found.used, found.quota) == (1, 20)
    gate.limiter.close()
