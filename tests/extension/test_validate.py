"""`validate` finds mistakes before the app serves, among them names that no endpoint has."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from flask import Blueprint, Flask
from werkzeug.routing import Rule as Route

from flask_multilimit import ConfigurationError, ConfigurationWarning, LimitType, MultiLimit, rate_limiter
from flask_multilimit.compat.flask_limiter import Limiter
from flask_multilimit.compat.flask_limiter.util import get_remote_address
from flask_multilimit.testing import enabled
from support.asking import ask, statuses, view
from support.doubles import RecordingStorage

STALE = 'MULTILIMIT_LIMITS["old_name"]: no endpoint or blueprint is called "old_name" or matches it'


@pytest.fixture
def multilimit(app: Flask, storage: RecordingStorage) -> MultiLimit:
    """It has a limit for an endpoint that does not exist any more."""
    app.testing = False
    app.config["MULTILIMIT_LIMITS"] = {"old_name": "5/minute", "health": "2/minute"}
    app.get("/health", endpoint="health")(view())
    return MultiLimit(app, storage=storage)


def test_app_without_mistakes_is_valid(app: Flask, storage: RecordingStorage) -> None:
    multilimit = MultiLimit(app, storage=storage)
    app.get("/", endpoint="view")(rate_limiter(rules="5/minute")(view()))

    multilimit.validate(app)
    with app.app_context():
        multilimit.validate()

    assert storage.checks == []


def test_limit_by_user_without_a_user_loader_is_an_error(app: Flask, storage: RecordingStorage) -> None:
    multilimit = MultiLimit(app, storage=storage)
    app.get("/", endpoint="view")(rate_limiter(type=LimitType.USER, rules="5/minute")(view()))

    with pytest.raises(ConfigurationError, match=r'limiter on "view": type=LimitType\.USER needs to know the user'):
        multilimit.validate(app)


@pytest.mark.parametrize("early", ["a function", "a check"])
def test_mistake_fails_the_first_request_although_a_check_came_before(
    app: Flask, storage: RecordingStorage, early: str
) -> None:
    """A limiter above the route would limit no request, so no request is served."""
    multilimit = MultiLimit(app, storage=storage)
    rate_limiter(rules="5/minute")(app.get("/")(view()))
    with app.app_context():
        if early == "a function":
            rate_limiter(rules="5/minute")(view())()
        else:
            multilimit.check("5/minute", scope="task")

    with pytest.raises(ConfigurationError, match=r"stands above @app\.route"):
        ask(app)


class TestLateSettings:
    """A setting that is changed too late would have no effect, and leave an endpoint without a limit."""

    @pytest.mark.parametrize(
        "late", [{"DEFAULT_LIMITS": "1/minute"}, {"LIMITS": {"view": "1/minute"}}, {"ENABLED": False}]
    )
    def test_setting_changed_after_multilimit_is_an_error(
        self, app: Flask, storage: RecordingStorage, late: dict[str, Any]
    ) -> None:
        multilimit = MultiLimit(app, storage=storage)
        app.get("/", endpoint="view")(view())
        app.config.update({f"MULTILIMIT_{name}": value for name, value in late.items()})

        (name,) = late
        for find in (lambda: multilimit.validate(app), lambda: app.test_client().get("/")):
            with pytest.raises(ConfigurationError, match=f"^MULTILIMIT_{name} changed in app.config after MultiLimit"):
                find()

    def test_error_about_enabled_names_the_test_kit(self, app: Flask, storage: RecordingStorage) -> None:
        multilimit = MultiLimit(app, storage=storage)
        app.config["MULTILIMIT_ENABLED"] = False

        with pytest.raises(ConfigurationError, match=r"flask_multilimit\.testing\.enabled"):
            multilimit.validate(app)

    def test_setting_changed_in_place_is_an_error(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_LIMITS"] = {}
        multilimit = MultiLimit(app, storage=storage)
        app.get("/", endpoint="view")(view())
        app.config["MULTILIMIT_LIMITS"]["view"] = "1/minute"

        with pytest.raises(ConfigurationError, match=r"^MULTILIMIT_LIMITS changed"):
            multilimit.validate(app)

    def test_setting_changed_by_the_test_kit_is_no_error(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_ENABLED"] = False
        multilimit = MultiLimit(app, storage=storage)

        with enabled(app):
            multilimit.validate(app)

    def test_setting_assigned_the_same_value_is_no_error(self, app: Flask, storage: RecordingStorage) -> None:
        limits = rate_limiter(rules="1/minute")
        app.config["MULTILIMIT_DEFAULT_LIMITS"] = [limits]
        multilimit = MultiLimit(app, storage=storage)
        app.config.update(MULTILIMIT_DEFAULT_LIMITS=[limits], MULTILIMIT_ENABLED=True)

        multilimit.validate(app)


class TestUnknownNames:
    def test_unknown_name_is_an_error(self, app: Flask, multilimit: MultiLimit) -> None:
        with pytest.raises(ConfigurationError) as caught:
            multilimit.validate(app)

        assert STALE in str(caught.value)

    def test_unknown_name_is_a_warning_when_configured(self, app: Flask, storage: RecordingStorage) -> None:
        app.config.update(MULTILIMIT_EXEMPT=["gone.*"], MULTILIMIT_UNKNOWN_NAMES="warn")
        multilimit = MultiLimit(app, storage=storage)

        with pytest.warns(ConfigurationWarning, match=r'MULTILIMIT_EXEMPT: no endpoint or blueprint is called "gone'):
            multilimit.validate(app)

    @pytest.mark.parametrize("name", ["health", "heal*"])
    def test_methods_that_no_route_of_a_name_takes_are_errors(
        self, app: Flask, storage: RecordingStorage, name: str
    ) -> None:
        app.config["MULTILIMIT_LIMITS"] = {name: {"rules": "2/minute", "methods": ["POST", "PUT"]}}
        app.get("/health", endpoint="health")(view())
        multilimit = MultiLimit(app, storage=storage)

        told = (
            rf"""MULTILIMIT_LIMITS\["{re.escape(name)}"\]: methods=\['POST', 'PUT'\]: its routes take only GET, HEAD"""
        )
        with pytest.raises(ConfigurationError, match=told):
            multilimit.validate(app)

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET"])
    def test_methods_that_a_route_of_a_name_takes_are_no_error(
        self, app: Flask, storage: RecordingStorage, method: str
    ) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"health": {"rules": "2/minute", "methods": [method]}}
        app.get("/health", endpoint="health")(view())

        MultiLimit(app, storage=storage).validate(app)

    def test_methods_that_no_route_of_a_limited_blueprint_takes_are_errors(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        for name, methods in {"api": ["PSOT"], "shop": ["POST", "GET"], "empty": ["PUT"]}.items():
            blueprint = rate_limiter("1/minute", methods=methods)(Blueprint(name, __name__, url_prefix=f"/{name}"))
            if name != "empty":
                blueprint.add_url_rule("/", "show", view())
            app.register_blueprint(blueprint)
        multilimit = MultiLimit(app, storage=storage)

        with pytest.raises(ConfigurationError) as caught:
            multilimit.validate(app)
        assert str(caught.value).startswith("""blueprint "api": methods=['PSOT']: its routes take only GET, HEAD""")
        assert ";" not in str(caught.value).partition("; give it a method that they take")[2]

    @pytest.mark.parametrize("setting", ["APPLICATION_LIMITS", "DEFAULT_LIMITS"])
    def test_misspelled_method_of_a_limit_of_the_app_is_an_error(
        self, app: Flask, storage: RecordingStorage, setting: str
    ) -> None:
        app.config[f"MULTILIMIT_{setting}"] = [
            {"rules": "2/minute", "methods": ["PSOT"]},
            {"rules": "3/minute", "methods": ["POST"]},  # no route takes it yet
            {"rules": "4/minute", "methods": ["PURGE", "POST"]},
        ]
        app.get("/health", endpoint="health")(view())
        multilimit = MultiLimit(app, storage=storage)

        with pytest.raises(ConfigurationError) as caught:
            multilimit.validate(app)
        told = f"MULTILIMIT_{setting}: methods=['PSOT']: its routes take only GET, HEAD, OPTIONS; give it a method"
        assert str(caught.value).startswith(told)
        assert str(caught.value).count("methods=") == 1

    def test_unusual_method_is_no_error_if_unmatched_requests_are_limited(
        self, app: Flask, storage: RecordingStorage
    ) -> None:
        app.config["MULTILIMIT_APPLICATION_LIMITS"] = {"rules": "2/minute", "methods": ["PROPFIND"]}
        app.config["MULTILIMIT_UNMATCHED_LIMITS"] = "9/minute"
        MultiLimit(app, storage=storage).validate(app)

        assert [ask(app, "/nowhere", method="PROPFIND").status_code for _ in range(3)] == [404, 404, 429]

    def test_method_of_a_route_that_takes_any_method_is_no_error(self, app: Flask, storage: RecordingStorage) -> None:
        app.config["MULTILIMIT_LIMITS"] = {"dav": {"rules": "1/minute", "methods": ["PROPFIND"]}}
        app.url_map.add(Route("/dav", endpoint="dav"))
        app.url_map.add(Route("/files", endpoint="dav", methods=["GET"]))
        app.endpoint("dav")(view())
        MultiLimit(app, storage=storage).validate(app)

        assert [ask(app, "/dav", method="PROPFIND").status_code for _ in range(2)] == [200, 429]
        assert ask(app, "/dav").status_code == 200

    @pytest.mark.usefixtures("multilimit")
    def test_unknown_name_fails_every_request_and_is_logged_once(
        self, app: Flask, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert statuses(app, "/health", "/health", "/nowhere") == [500] * 3

        (logged,) = (record for record in caplog.records if record.levelno == logging.CRITICAL)
        assert f"no request is served until this is corrected: {STALE}" in logged.getMessage()

    def test_unknown_name_as_a_warning_fails_no_request(
        self, app: Flask, storage: RecordingStorage, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = {"old_name": "5/minute", "health": "2/minute"}
        app.config.update(MULTILIMIT_LIMITS=limits, MULTILIMIT_UNKNOWN_NAMES="warn")
        app.get("/health", endpoint="health")(view())
        MultiLimit(app, storage=storage)

        assert statuses(app, "/health", "/health", "/health") == [200, 200, 429]
        assert [record.levelno for record in caplog.records if STALE in record.getMessage()] == [logging.WARNING]

    @pytest.mark.usefixtures("multilimit")
    def test_doctor_reports_an_unknown_name_and_limits_are_still_listed(self, app: Flask) -> None:
        commands = app.test_cli_runner()

        doctor = commands.invoke(args=["multilimit", "doctor"], env={"COLUMNS": "200"})
        listed = commands.invoke(args=["multilimit", "limits"])

        assert doctor.exit_code == 1
        assert f"A limit applies to nothing. {STALE}" in doctor.output
        assert listed.exit_code == 0
        assert "health  GET /health" in listed.output


class TestDevelopmentServer:
    """A mistake is found when the development server starts: then the app is complete."""

    @pytest.mark.usefixtures("multilimit")
    def test_development_server_refuses_to_start_with_a_mistake(
        self, app: Flask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("werkzeug.serving.run_simple", lambda *_, **__: pytest.fail("it serves"))

        with pytest.raises(ConfigurationError, match="old_name"):
            app.run()

    def test_development_server_starts_without_mistakes(
        self, app: Flask, storage: RecordingStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        served: list[Any] = []
        monkeypatch.setattr("werkzeug.serving.run_simple", lambda *given, **_: served.append(given))
        MultiLimit(app, storage=storage)

        app.run(port=5001)

        assert [port for _, port, *_ in served] == [5001]


@pytest.mark.parametrize("setting", ["ALLOW", "DENY"])
def test_list_entry_with_an_unknown_type_is_an_error(app: Flask, storage: RecordingStorage, setting: str) -> None:
    app.config[f"MULTILIMIT_{setting}"] = ["10.0.0.0/8", "usr:x"]
    multilimit = MultiLimit(app, storage=storage)

    with pytest.raises(ConfigurationError, match=rf'MULTILIMIT_{setting}: "usr:x": no limiter of this app has a type'):
        multilimit.validate(app)


@pytest.mark.parametrize("listed", ["user:x", "tenant:x"])
def test_list_entry_with_a_type_of_the_app_is_no_error(app: Flask, storage: RecordingStorage, listed: str) -> None:
    app.config["MULTILIMIT_DENY"] = [listed]
    multilimit = MultiLimit(app, storage=storage, user_loader=lambda: None)
    app.get("/", endpoint="view")(rate_limiter("5/minute", type=lambda: "x", name="tenant")(view()))

    multilimit.validate(app)


def test_setting_of_flask_limiter_without_the_bridge_is_a_warning(app: Flask, storage: RecordingStorage) -> None:
    app.config["RATELIMIT_STORAGE_URI"] = "redis://localhost"
    multilimit = MultiLimit(app, storage=storage)

    with pytest.warns(ConfigurationWarning, match="RATELIMIT_STORAGE_URI is a setting of Flask-Limiter, which"):
        multilimit.validate(app)


@pytest.mark.filterwarnings("error")
def test_setting_of_flask_limiter_with_the_bridge_gives_no_warning(app: Flask) -> None:
    app.config["RATELIMIT_STORAGE_URI"] = "memory://"
    Limiter(get_remote_address, app=app)

    app.extensions["multilimit"].validate(app)
