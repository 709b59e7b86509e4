"""Where the server lets no thread run, traffic is flushed late, and somebody says so."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import MultiLimit


@pytest.mark.parametrize(
    ("options", "settings", "warns"),
    [
        ({b"master": True}, {}, True),
        ({b"enable-threads": True}, {}, False),
        ({"threads": "4"}, {}, False),
        ({}, {"MULTILIMIT_TRAFFIC": False}, False),
    ],
)
def test_uwsgi_without_threads_is_warned_of(
    app: Flask,
    options: dict[Any, Any],
    settings: dict[str, Any],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options, numproc=2))
    app.config.update(settings)
    MultiLimit(app)
    app.add_url_rule("/", "view", lambda: "ok")

    app.test_client().get("/")
    app.test_client().get("/")

    assert caplog.text.count("start it with enable-threads") == int(warns)
