from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient
from guestbook import create_app

from flask_multilimit.testing import Clock, enabled, exhaust, reset


@pytest.fixture(autouse=True)
def full_quotas(app: Flask) -> Iterator[None]:
    reset(app)
    yield
    reset(app)


def test_login_is_limited_to_three_a_minute(client: FlaskClient, multilimit_clock: Clock) -> None:
    assert [client.post("/login").status_code for _ in range(4)] == [200, 200, 200, 429]
    multilimit_clock.advance(59.999)
    assert client.post("/login").status_code == 429
    multilimit_clock.advance(0.001)
    assert client.post("/login").status_code == 200


def test_login_is_limited_to_twenty_a_day(client: FlaskClient, multilimit_clock: Clock) -> None:
    for _ in range(20):
        assert client.post("/login").status_code == 200
        multilimit_clock.advance(60)

    refused = client.post("/login")

    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == str(24 * 3600 - 20 * 60)


def test_refused_login_names_the_violated_policy(client: FlaskClient) -> None:
    refusal = exhaust(client, "login")

    response = client.post("/login")

    assert response.status_code == 429
    assert refusal.violated[0].name == "ip-60s"
    assert response.json is not None
    assert response.json["violated-policies"] == ["ip-60s"]


def test_each_user_has_its_own_quota(client: FlaskClient) -> None:
    exhaust(client, "write", "user:ann")

    assert client.post("/entries", headers={"X-User": "ann"}).status_code == 429
    assert client.post("/entries", headers={"X-User": "bob"}).status_code == 201

    reset(client, "write", "user:ann")
    assert client.post("/entries", headers={"X-User": "ann"}).status_code == 201


def test_quota_of_everyone_refuses_each_user(client: FlaskClient) -> None:
    exhaust(client, "write", "everyone")
    assert client.post("/entries", headers={"X-User": "bob"}).status_code == 429


def test_disabled_limits_can_be_enabled_in_a_test() -> None:
    app = create_app({"MULTILIMIT_ENABLED": False})
    client = app.test_client()

    assert {client.post("/login").status_code for _ in range(30)} == {200}
    with enabled(app):
        assert {client.post("/login").status_code for _ in range(4)} == {200, 429}
