"""Where the server lets no thread run, traffic is flushed late and changes are not noticed: the log warns of both."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.serve.applier import applier_of


@pytest.mark.parametrize(
    ("options", "settings", "warnings"),
    [
        ({b"master": True}, {}, (True, True)),
        ({b"enable-threads": True}, {}, (False, False)),
        ({"enable-threads": b"false"}, {}, (True, True)),
        ({b"threads": b"4"}, {}, (False, False)),
        ({}, {"MULTILIMIT_TRAFFIC": False}, (False, True)),
    ],
)
def test_uwsgi_without_threads_is_warned_of(
    app: Flask,
    options: dict[Any, Any],
    settings: dict[str, Any],
    warnings: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options, numproc=2))
    app.config.update(settings)
    MultiLimit(app)
    app.add_url_rule("/", "view", lambda: "ok")

    app.test_client().get("/")
    app.test_client().get("/")
    with app.app_context():
        applier_of(app).control.deny("203.0.113.7", for_=60)

    told = ("so traffic is flushed only while requests are served", "so changes are not noticed")
    assert tuple(caplog.text.count(each) for each in told) == warnings
