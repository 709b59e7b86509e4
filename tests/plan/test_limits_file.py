"""The limits of MULTILIMIT_FILE hold beside those of the settings and of decorators."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from flask import Flask

from flask_multilimit import ConfigurationError, MultiLimit, rate_limiter
from support.asking import ask, policy, statuses, view

if TYPE_CHECKING:
    from pathlib import Path

    from support.doubles import RecordingStorage


@pytest.fixture
def file(app: Flask, tmp_path: Path) -> Path:
    app.root_path = str(tmp_path)
    app.config["MULTILIMIT_FILE"] = "limits.json"
    return tmp_path / "limits.json"


def test_limits_of_a_file_apply_beside_the_others(app: Flask, storage: RecordingStorage, file: Path) -> None:
    file.write_text('{"limits": {"sh*": {"type": "ip", "rules": "2/minute"}}, "application_limits": "9/hour"}')
    app.config["MULTILIMIT_APPLICATION_LIMITS"] = "8/second"
    MultiLimit(app, storage=storage)
    app.add_url_rule("/", "show", rate_limiter(rules="7/day")(view()))

    assert policy(ask(app)) == ["application-1s", "application-3600s", "ip-60s", "default-86400s"]


def test_off_in_a_file_exempts_an_endpoint(app: Flask, storage: RecordingStorage, file: Path) -> None:
    file.write_text('{"limits": {"health": "off"}, "default_limits": "1/minute"}')
    MultiLimit(app, storage=storage)
    app.add_url_rule("/health", "health", view())
    app.add_url_rule("/", "show", view())

    assert statuses(app, "/health", "/health", "/", "/") == [200, 200, 200, 429]


def test_a_file_has_statuses_networks_and_headers(app: Flask, storage: RecordingStorage, file: Path) -> None:
    show = {"rules": "1/minute", "charge_when": [401, "5xx"], "exempt": ["10.0.0.0/8"], "type": "header:X-Key"}
    file.write_text(json.dumps({"limits": {"show": show}}))
    MultiLimit(app, storage=storage)
    answers = iter([200, 404, 401, 401, 401, 401, 401])
    app.add_url_rule("/", "show", lambda: ("", next(answers)))

    assert statuses(app, "/", "/", "/", "/", headers={"X-Key": "a"}) == [200, 404, 401, 429]
    assert statuses(app, "/", headers={"X-Key": "b"}) == [401]
    assert statuses(app, "/", "/") == [401, 429]
    assert statuses(app, "/", headers={"X-Key": "a"}, environ_base={"REMOTE_ADDR": "10.1.2.3"}) == [401]


def test_a_name_in_a_file_that_no_endpoint_has_is_an_error_that_names_the_file(app: Flask, file: Path) -> None:
    file.write_text('{"limits": {"shwo": "1/minute"}}')
    MultiLimit(app)
    app.add_url_rule("/", "show", view())

    with pytest.raises(ConfigurationError, match=r'limits.json: limits\["shwo"\]: no endpoint'):
        ask(app)


def test_a_mistake_in_a_file_is_an_error_that_names_the_file(app: Flask, file: Path) -> None:
    file.write_text('{"limits": {"show": "1/mnute"}}')

    with pytest.raises(ConfigurationError, match=r"^limits.json: limits.show='1/mnute'"):
        MultiLimit(app)
