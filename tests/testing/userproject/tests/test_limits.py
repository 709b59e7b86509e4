from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient
from guestbook import create_app

from flask_multilimit.testing import Clock, enabled, exhaust, reset


@pytest.fixture(autouse=True)
def whole_quotas(app: Flask) -> Iterator[None]:
    reset(app)
    yield
    reset(app)


def test_three_logins_a_minute(client: FlaskClient, multilimit_clock: Clock) -> None:
    assert [client.post("/login").status_code for _ in range(4)] == [200, 200, 200, 429]
    multilimit_clock.advance(59.999)
    assert client.post("/login").status_code == 429
    multilimit_clock.advance(0.001)
    assert client.post("/login").status_code == 200


def test_twenty_logins_a_day(client: FlaskClient, multilimit_clock: Clock) -> None:
    for _ in range(20):
        assert client.post("/login").status_code == 200
        multilimit_clock.advance(60)

    refused = client.post("/login")

    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == str(24 * 3600 - 20 * 60)


def test_the_page_of_a_refusal(client: FlaskClient) -> None:
    refusal = exhaust(client, "login")

    response = client.post("/login")

    assert response.status_code == 429
    assert refusal.violated[0].name == "ip-60s"
    assert response.json is not None
    assert response.json["violated-policies"] == ["ip-60s"]


def test_users_have_quotas_of_their_own(client: FlaskClient) -> None:
    exhaust(client, "write", "user:ann")

    assert client.post("/entries", headers={"X-User": "ann"}).status_code == 429
    assert client.post("/entries", headers={"X-User": "bob"}).status_code == 201

    reset(client, "write", "user:ann")
    assert client.post("/entries", headers={"X-User": "ann"}).status_code == 201


def test_the_whole_book_is_full(client: FlaskClient) -> None:
    exhaust(client, "write", "everyone")

    assert client.post("/entries", headers={"X-User": "bob"}).status_code == 429


def test_without_limits() -> None:
    app = create_app({"MULTILIMIT_ENABLED": False})
    client = app.test_client()

    assert {client.post("/login").status_code for _ in range(30)} == {200}
    with enabled(app):
        assert {client.post("/login").status_code for _ in range(4)} == {200, 429}
