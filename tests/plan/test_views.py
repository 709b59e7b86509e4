"""Limited views at several endpoints, in several apps, and in apps of a factory."""

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_multilimit import ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.engine import MemoryStorage
from support.asking import statuses
from support.clock import Clock
from support.doubles import RecordingStorage


def test_view_with_two_endpoints_has_a_quota_for_each(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    @limited_app.get("/old", endpoint="old")
    @limited_app.get("/new", endpoint="new")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        return "ok"

    assert [client.get(path).status_code for path in ("/old", "/new", "/old", "/new")] == [200, 200, 429, 429]
    assert [keys[0].split(":default")[0] for keys in storage.keys_asked[:2]] == ["rate_limit:{old}", "rate_limit:{new}"]


def test_two_paths_of_one_endpoint_share_its_quota(limited_app: Flask, client: FlaskClient) -> None:
    @limited_app.get("/old")
    @limited_app.get("/new")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        return "ok"

    assert [client.get("/old").status_code, client.get("/new").status_code] == [200, 429]


def test_requests_without_limits_do_not_ask_storage(
    limited_app: Flask, client: FlaskClient, storage: RecordingStorage
) -> None:
    limited_app.add_url_rule("/free", "free", lambda: "ok")
    response = client.get("/free")

    assert "RateLimit" not in response.headers
    assert [client.get("/nowhere").status_code, client.post("/free").status_code] == [404, 405]
    assert storage.checks == []


class TestApps:
    def test_apps_that_share_a_storage_share_quotas(self, clock: Clock) -> None:
        storage = MemoryStorage(clock=clock)
        for status in (200, 429):
            app = Flask("app")
            MultiLimit(app, storage=storage)
            app.add_url_rule("/", "view", rate_limiter(rules="1/minute")(lambda: "ok"))
            assert statuses(app, "/") == [status]

    def test_second_multilimit_for_an_app_is_an_error(self, limited_app: Flask) -> None:
        with pytest.raises(ConfigurationError, match=r"'shop' has a MultiLimit already; use that one: app\.extensions"):
            MultiLimit(limited_app)


def test_view_that_fails_is_charged_and_keeps_its_header_fields(limited_app: Flask, client: FlaskClient) -> None:
    limited_app.testing = False

    @limited_app.get("/")
    @rate_limiter(rules="1/minute")
    def view() -> str:
        raise ZeroDivisionError

    first, second = client.get("/"), client.get("/")

    assert (first.status_code, first.headers["RateLimit"]) == (500, '"default-60s";r=0;t=60')
    assert second.status_code == 429
