"""Limits that are looked at before the app serves, and names that no endpoint has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from flask_multilimit import ConfigurationError, ConfigurationWarning, LimitType, MultiLimit, rate_limiter
from support.asking import statuses, view

if TYPE_CHECKING:
    from flask import Flask

    from support.doubles import RecordingStorage

STALE = 'MULTILIMIT_LIMITS["old_name"]: no endpoint or blueprint is called "old_name" or matches it'


@pytest.fixture
def multilimit(app: Flask, storage: RecordingStorage) -> MultiLimit:
    """With a limit for an endpoint that is no longer there."""
    app.testing = False
    app.config["MULTILIMIT_LIMITS"] = {"old_name": "5/minute", "health": "2/minute"}
    app.get("/health", endpoint="health")(view())
    return MultiLimit(app, storage=storage)


def test_what_is_right_is_right(app: Flask, storage: RecordingStorage) -> None:
    multilimit = MultiLimit(app, storage=storage)
    app.get("/", endpoint="view")(rate_limiter(rules="5/minute")(view()))

    multilimit.validate(app)
    with app.app_context():
        multilimit.validate()

    assert storage.checks == []


def test_what_is_wrong_with_an_endpoint_is_an_error(app: Flask, storage: RecordingStorage) -> None:
    multilimit = MultiLimit(app, storage=storage)
    app.get("/", endpoint="view")(rate_limiter(type=LimitType.USER, rules="5/minute")(view()))

    with pytest.raises(ConfigurationError, match=r'limiter on "view": type=LimitType\.USER needs to know the user'):
        multilimit.validate(app)


def test_an_app_without_the_extension_is_an_error(app: Flask) -> None:
    with pytest.raises(ConfigurationError, match="has no MultiLimit"):
        MultiLimit().validate(app)


class TestUnknownNames:
    def test_are_errors(self, app: Flask, multilimit: MultiLimit) -> None:
        with pytest.raises(ConfigurationError) as caught:
            multilimit.validate(app)

        assert STALE in str(caught.value)

    def test_or_warnings(self, app: Flask, storage: RecordingStorage) -> None:
        app.config.update(MULTILIMIT_EXEMPT=["gone.*"], MULTILIMIT_UNKNOWN_NAMES="warn")
        multilimit = MultiLimit(app, storage=storage)

        with pytest.warns(ConfigurationWarning, match=r'MULTILIMIT_EXEMPT: no endpoint or blueprint is called "gone'):
            multilimit.validate(app)

    @pytest.mark.usefixtures("multilimit")
    def test_in_production_stop_no_request(self, app: Flask, caplog: pytest.LogCaptureFixture) -> None:
        assert statuses(app, "/health", "/health", "/health") == [200, 200, 429]

        (logged,) = (record for record in caplog.records if STALE in record.getMessage())
        assert logged.levelno == logging.ERROR

    @pytest.mark.usefixtures("multilimit")
    @pytest.mark.parametrize("mode", ["testing", "debug"])
    def test_stop_the_first_request_where_a_developer_sees_it(self, app: Flask, mode: str) -> None:
        setattr(app, mode, True)
        app.config["PROPAGATE_EXCEPTIONS"] = True

        with pytest.raises(ConfigurationError, match="old_name"):
            statuses(app, "/health")

    @pytest.mark.usefixtures("multilimit")
    def test_are_found_by_the_doctor_and_do_not_stop_the_list(self, app: Flask) -> None:
        commands = app.test_cli_runner()

        doctor = commands.invoke(args=["multilimit", "doctor"], env={"COLUMNS": "200"})
        listed = commands.invoke(args=["multilimit", "limits"])

        assert doctor.exit_code == 1
        assert f"A limit applies to nothing. {STALE}" in doctor.output
        assert listed.exit_code == 0
        assert "health  GET /health" in listed.output
