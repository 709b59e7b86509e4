"""What a Flask app makes of storage that fails: statuses, signals, the log, and the settings for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask

from flask_multilimit import ConfigurationError, MultiLimit, current_decision, rate_limiter
from flask_multilimit.engine import Health, StorageError
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import storage_failed, storage_recovered
from support.clock import Clock
from support.doubles import RecordingStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def storage() -> RecordingStorage:
    return RecordingStorage(Clock())


@pytest.fixture
def make(storage: RecordingStorage) -> Iterator[Callable[..., Flask]]:
    """An app with two endpoints, the first with `options`, and settings."""
    made: list[Flask] = []

    def make(options: dict[str, Any] | None = None, **settings: object) -> Flask:
        app = Flask("shop")
        app.config.update(
            {"MULTILIMIT_WORKERS": 1}, **{f"MULTILIMIT_{name}": value for name, value in settings.items()}
        )
        MultiLimit(app, storage=storage)
        made.append(app)
        first = rate_limiter(rules="2/minute", **(options or {}))
        app.add_url_rule("/", "view", first(lambda: str(current_decision.decided_by)))
        app.add_url_rule("/other", "other", rate_limiter(rules="2/minute")(lambda: "ok"))
        return app

    yield make
    for app in made:
        gate_of(app).limiter.close()


def test_limits_stay_in_force_by_default(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    client = make().test_client()
    storage.broken = True

    responses = [client.get("/") for _ in range(3)]

    assert [response.status_code for response in responses] == [200, 200, 429]
    assert [response.text for response in responses[:2]] == ["local", "local"]
    assert responses[0].headers["RateLimit"] == '"default-60s";r=1;t=30'
    assert responses[2].headers["Retry-After"] == "60"


def test_each_policy_answers_a_failing_storage(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    storage.broken = True

    def statuses(setting: str) -> list[int]:
        client = make(ON_STORAGE_ERROR=setting).test_client()
        return [client.get("/").status_code for _ in range(4)]

    assert statuses("local") == [200, 200, 429, 429]
    assert statuses("allow") == [200] * 4
    assert statuses("deny") == [503] * 4
    assert statuses("raise") == [500] * 4


def test_a_503_says_when_to_come_back(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    client = make(ON_STORAGE_ERROR="deny").test_client()
    storage.broken = True

    assert client.get("/").headers["Retry-After"] == "1"


def test_raise_leaves_the_error_to_the_app(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    app = make(ON_STORAGE_ERROR="raise")
    app.register_error_handler(StorageError, lambda error: (f"{type(error).__name__}: {error}", 418))
    client = app.test_client()
    storage.broken = True

    assert [client.get("/").text for _ in range(2)] == [
        "StorageError: the rate limit storage gave no answer: it is broken"
    ] * 2


def test_a_limiter_may_have_its_own(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    client = make({"on_storage_error": "deny"}).test_client()
    storage.broken = True

    assert [client.get(path).status_code for path in ("/", "/other")] == [503, 200]


def test_workers_share_the_limits(make: Callable[..., Flask], storage: RecordingStorage) -> None:
    client = make(WORKERS=2).test_client()
    storage.broken = True

    assert [client.get("/").status_code for _ in range(3)] == [200, 429, 429]


def test_an_outage_is_logged_once(
    make: Callable[..., Flask], storage: RecordingStorage, caplog: pytest.LogCaptureFixture
) -> None:
    app = make()
    told: list[tuple[Flask, str]] = []

    def receiver(sender: Flask, health: Health) -> None:
        told.append((sender, str(health.error)))

    storage.broken = True
    with caplog.at_level(logging.INFO), storage_failed.connected_to(receiver):
        for _ in range(4):
            app.test_client().get("/")

    assert told == [(app, "the rate limit storage gave no answer: it is broken")]
    assert [record.name for record in caplog.records] == [app.logger.name]
    assert "storage failed (key rate_limit:{view}): " in caplog.text
    assert "it is broken; meanwhile: this process" in caplog.text


def test_the_end_of_an_outage_is_logged_and_charges_are_kept(
    make: Callable[..., Flask], storage: RecordingStorage
) -> None:
    client = make().test_client()
    back = threading.Event()

    def receiver(_: Flask, health: Health) -> None:
        assert (health.state, health.pending, health.given_up) == ("working", 0, 0)
        back.set()

    with storage_recovered.connected_to(receiver):
        storage.broken = True
        client.get("/")
        storage.broken = False
        assert back.wait(10)

    response = client.get("/")
    assert (response.text, response.headers["RateLimit"]) == ("memory", '"default-60s";r=0;t=60')


@pytest.mark.parametrize(
    ("name", "value"), [("ON_STORAGE_ERROR", "ignore"), ("ON_STORAGE_ERROR", None), ("WORKERS", 0), ("WORKERS", 1.5)]
)
def test_a_wrong_setting_is_an_error_at_start_up(make: Callable[..., Flask], name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"MULTILIMIT_{name}="):
        make(**{name: value})


def test_a_wrong_option_is_an_error_where_it_stands() -> None:
    with pytest.raises(ConfigurationError, match="on_storage_error='ignore': give one of 'local', 'allow'"):
        rate_limiter(on_storage_error="ignore")(lambda: None)  # type: ignore[arg-type]
