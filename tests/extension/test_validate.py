"""`validate` finds mistakes before the app serves, among them names that no endpoint has."""

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from flask import Blueprint, Flask
from werkzeug.routing import Rule as Route

from flask_multilimit import ConfigurationError, ConfigurationWarning, MultiLimit, rate_limiter
from flask_multilimit.compat.flask_limiter import Limiter
from flask_multilimit.compat.flask_limiter.util import get_remote_address
from flask_multilimit.testing import enabled
from support.asking import ask, statuses, view
from support.doubles import RecordingStorage

STALE = 'MULTILIMIT_LIMITS["old_name"]: no endpoint or blueprint is called "old_name" or matches it'


Make = Callable[..., MultiLimit]


@pytest.fixture
def make(app: Flask, storage: RecordingStorage) -> Make:
    """Makes the extension of an app with a page without limits, and one with a type of its own."""

    def made(**settings: Any) -> MultiLimit:
        app.config.update({f"MULTILIMIT_{name}": value for name, value in settings.items()})
        multilimit = MultiLimit(app, storage=storage, user_loader=lambda: None)
        app.get("/health", endpoint="health")(view())
        app.get("/mine", endpoint="mine")(rate_limiter("5/minute", type=lambda: "x", name="tenant")(view()))
        return multilimit

    return made


@pytest.fixture
def multilimit(app: Flask, make: Make) -> MultiLimit:
    """It has a limit for an endpoint that does not exist any more."""
    app.testing = False
    return make(LIMITS={"old_name": "5/minute", "health": "2/minute"})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *({"LIMITS": {"health": {"rules": "2/minute", "methods": [method]}}} for method in ("HEAD", "OPTIONS", "GET")),
        *({"DENY": [listed]} for listed in ("user:x", "tenant:x")),
    ],
    ids=str,
)
def test_app_without_mistakes_is_valid(
    app: Flask, storage: RecordingStorage, make: Make, settings: dict[str, Any]
) -> None:
    multilimit = make(**settings)

    multilimit.validate(app)
    with app.app_context():
        multilimit.validate()

    assert storage.checks == []


NO_ROUTE = "methods=['POST', 'PUT']: its routes take only GET, HEAD"
MISSPELLED = [
    {"rules": "2/minute", "methods": ["PSOT"]},
    {"rules": "3/minute", "methods": ["POST"]},  # no route takes it yet
    {"rules": "4/minute", "methods": ["PURGE", "POST"]},
]
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"LIMITS": {"old_name": "5/minute"}}, STALE),
    *(
        (
            {"LIMITS": {name: {"rules": "2/minute", "methods": ["POST", "PUT"]}}},
            f'MULTILIMIT_LIMITS["{name}"]: {NO_ROUTE}',
        )
        for name in ("health", "heal*")
    ),
    *(
        ({f"{name}_LIMITS": MISSPELLED}, f"MULTILIMIT_{name}_LIMITS: methods=['PSOT']: its routes take only GET, HEAD")
        for name in ("APPLICATION", "DEFAULT")
    ),
    *(
        ({name: ["10.0.0.0/8", "usr:x"]}, f'MULTILIMIT_{name}: "usr:x": no limiter of this app has a type')
        for name in ("ALLOW", "DENY")
    ),
]


@pytest.mark.parametrize(("settings", "message"), MISTAKES, ids=str)
def test_mistake_in_a_setting_is_an_error(app: Flask, make: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**settings).validate(app)
    assert str(caught.value).startswith(message)
    assert str(caught.value).count("methods=") <= 1


def test_error_about_an_unknown_name_says_how_to_list_the_names_meanwhile(app: Flask, make: Make) -> None:
    """`flask routes` fails with this error where the module of the app calls `validate`."""
    with pytest.raises(ConfigurationError, match=r'"gone" or matches it; `flask routes`.*UNKNOWN_NAMES="warn"'):
        make(EXEMPT=["gone"]).validate(app)


@pytest.mark.parametrize("name", ["APPLICATION_LIMITS", "DEFAULT_LIMITS", "UNMATCHED_LIMITS"])
def test_limit_of_users_whom_the_app_does_not_know_is_an_error_that_names_its_setting(app: Flask, name: str) -> None:
    app.config[f"MULTILIMIT_{name}"] = {"type": "user", "rules": "5/minute"}
    app.get("/", endpoint="home")(view())
    with pytest.raises(ConfigurationError, match=f'limiter on "MULTILIMIT_{name}": .* needs to know the user'):
        MultiLimit(app).validate(app)


def test_unknown_name_is_a_warning_when_configured(app: Flask, make: Make) -> None:
    multilimit = make(EXEMPT=["gone.*"], UNKNOWN_NAMES="warn")
    with pytest.warns(ConfigurationWarning, match=r'MULTILIMIT_EXEMPT: no endpoint or blueprint is called "gone'):
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


LATE = [
    ({"DEFAULT_LIMITS": "1/minute"}, "changed in app.config after MultiLimit"),
    ({"LIMITS": {"health": "1/minute"}}, "changed in app.config after MultiLimit"),
    ({"ENABLED": False}, r"changed in app.config after MultiLimit.*flask_multilimit\.testing\.enabled"),
]


@pytest.mark.parametrize(("late", "message"), LATE, ids=str)
def test_setting_changed_after_multilimit_is_an_error(
    app: Flask, make: Make, late: dict[str, Any], message: str
) -> None:
    """It would have no effect, and leave an endpoint without a limit."""
    multilimit = make()
    app.config.update({f"MULTILIMIT_{name}": value for name, value in late.items()})

    for find in (lambda: multilimit.validate(app), lambda: ask(app, "/health")):
        with pytest.raises(ConfigurationError, match=f"^MULTILIMIT_{next(iter(late))} {message}"):
            find()


def test_setting_changed_in_place_is_an_error(app: Flask, make: Make) -> None:
    multilimit = make(LIMITS={})
    app.config["MULTILIMIT_LIMITS"]["health"] = "1/minute"
    with pytest.raises(ConfigurationError, match=r"^MULTILIMIT_LIMITS changed"):
        multilimit.validate(app)


def test_setting_changed_by_the_test_kit_or_to_the_same_value_is_no_error(app: Flask, make: Make) -> None:
    limits = rate_limiter(rules="1/minute")
    multilimit = make(DEFAULT_LIMITS=[limits], ENABLED=False)
    app.config.update(MULTILIMIT_DEFAULT_LIMITS=[limits], MULTILIMIT_HEADERS="draft-11")

    with enabled(app):
        multilimit.validate(app)


def test_methods_that_no_route_of_a_limited_blueprint_takes_are_errors(app: Flask, make: Make) -> None:
    for name, methods in {"api": ["PSOT"], "shop": ["POST", "GET"], "empty": ["PUT"]}.items():
        blueprint = rate_limiter("1/minute", methods=methods)(Blueprint(name, __name__, url_prefix=f"/{name}"))
        if name != "empty":
            blueprint.add_url_rule("/", "show", view())
        app.register_blueprint(blueprint)

    with pytest.raises(ConfigurationError) as caught:
        make().validate(app)
    assert str(caught.value).startswith("""blueprint "api": methods=['PSOT']: its routes take only GET, HEAD""")
    assert ";" not in str(caught.value).partition("; give it a method that they take")[2]


def test_unusual_method_is_no_error_if_unmatched_requests_are_limited(app: Flask, make: Make) -> None:
    only = {"rules": "2/minute", "methods": ["PROPFIND"]}
    make(APPLICATION_LIMITS=only, UNMATCHED_LIMITS="9/minute").validate(app)
    assert [ask(app, "/nowhere", method="PROPFIND").status_code for _ in range(3)] == [404, 404, 429]


def test_misspelled_method_is_an_error_if_limits_of_unmatched_requests_are_on_trial(app: Flask, make: Make) -> None:
    trial = {"rules": "9/minute", "shadow": True}
    with pytest.raises(ConfigurationError, match="PSOT"):
        make(APPLICATION_LIMITS={"rules": "2/minute", "methods": ["PSOT"]}, UNMATCHED_LIMITS=trial).validate(app)


def test_method_of_a_route_that_takes_any_method_is_no_error(app: Flask, make: Make) -> None:
    app.url_map.add(Route("/dav", endpoint="dav"))
    app.url_map.add(Route("/files", endpoint="dav", methods=["GET"]))
    app.endpoint("dav")(view())
    make(LIMITS={"dav": {"rules": "1/minute", "methods": ["PROPFIND"]}}).validate(app)

    assert [ask(app, "/dav", method="PROPFIND").status_code for _ in range(2)] == [200, 429]
    assert ask(app, "/dav").status_code == 200


@pytest.mark.usefixtures("multilimit")
def test_unknown_name_fails_every_request_and_is_logged_once(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    assert statuses(app, "/health", "/health", "/nowhere") == [500] * 3
    (logged,) = (record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert f"no request is served until this is corrected: {STALE}" in logged.getMessage()


def test_unknown_name_as_a_warning_fails_no_request(app: Flask, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    make(LIMITS={"old_name": "5/minute", "health": "2/minute"}, UNKNOWN_NAMES="warn")
    assert statuses(app, "/health", "/health", "/health") == [200, 200, 429]
    assert [record.levelno for record in caplog.records if STALE in record.getMessage()] == [logging.WARNING]


@pytest.mark.usefixtures("multilimit")
def test_doctor_reports_an_unknown_name_and_limits_are_still_listed(app: Flask) -> None:
    commands = app.test_cli_runner()

    doctor = commands.invoke(args=["multilimit", "doctor"], env={"COLUMNS": "200"})
    listed = commands.invoke(args=["multilimit", "limits"])

    assert doctor.exit_code == 1
    assert f"A limit applies to nothing. {STALE}" in doctor.output
    assert listed.exit_code == 0
    assert "health  GET /health" in listed.output


@pytest.mark.usefixtures("multilimit")
def test_development_server_refuses_to_start_with_a_mistake(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the app is complete."""
    monkeypatch.setattr("werkzeug.serving.run_simple", lambda *_, **__: pytest.fail("it serves"))
    with pytest.raises(ConfigurationError, match="old_name"):
        app.run()


def test_development_server_starts_without_mistakes(app: Flask, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("werkzeug.serving.run_simple", lambda *given, **_: served.append(given))
    make()

    app.run(port=5001)

    assert [port for _, port, *_ in served] == [5001]


@pytest.mark.parametrize(("setting", "is_imported"), [("RATELIMIT_ENABLED", False), ("RATELIMIT_DEFAULT", True)])
def test_setting_of_flask_limiter_without_the_bridge_is_a_warning(
    app: Flask, make: Make, monkeypatch: pytest.MonkeyPatch, setting: str, is_imported: bool
) -> None:
    """Also if a function of it is still imported, such as its key_func."""
    monkeypatch.delitem(sys.modules, "flask_limiter", raising=False)
    if is_imported:
        monkeypatch.setitem(sys.modules, "flask_limiter", ModuleType("flask_limiter"))
    app.config[setting] = False
    with pytest.warns(ConfigurationWarning, match=f"{setting} is a setting of Flask-Limiter, which"):
        make().validate(app)


@pytest.mark.filterwarnings("error")
def test_setting_of_flask_limiter_that_another_extension_brings_along_gives_no_warning(
    app: Flask, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flask-AppBuilder imports it, and switches it off by default."""
    monkeypatch.setitem(sys.modules, "flask_limiter", ModuleType("flask_limiter"))
    app.config["RATELIMIT_ENABLED"] = False
    make().validate(app)


@pytest.mark.filterwarnings("error")
def test_setting_of_flask_limiter_with_the_bridge_gives_no_warning(app: Flask) -> None:
    app.config["RATELIMIT_STORAGE_URI"] = "memory://"
    Limiter(get_remote_address, app=app)
    app.extensions["multilimit"].validate(app)
