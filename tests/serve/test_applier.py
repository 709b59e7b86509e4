"""What becomes of a change in a process: it is signalled, and logged where requests are served."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.control.document import Document
from flask_multilimit.control.entries import Listing
from flask_multilimit.serve.applier import MOST_LOGGED, applier_of
from flask_multilimit.signals import control_changed
from support.asking import ask, view

if TYPE_CHECKING:
    from flask import Flask


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Rate limits" in record.getMessage()]


@pytest.fixture
def multilimit(app: Flask) -> MultiLimit:
    app.logger.setLevel("INFO")
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute")(view()))
    return MultiLimit(app)


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [({}, True), ({"MULTILIMIT_CONTROL": False}, False), ({"MULTILIMIT_ENABLED": False}, False)],
    ids=["usual", "no control", "no limits"],
)
def test_an_app_follows_changes_unless_it_is_switched_off(app: Flask, settings: dict[str, bool], enabled: bool) -> None:
    app.config.update(settings)
    MultiLimit(app)

    assert applier_of(app).enabled is enabled


def test_changes_are_signalled_and_logged(app: Flask, multilimit: MultiLimit, caplog: pytest.LogCaptureFixture) -> None:
    ask(app)
    numbers: list[int] = []
    with control_changed.connected_to(lambda _, entries: numbers.append(len(entries)), app), app.app_context():
        made = multilimit.control.override("show", off=True, lasting=True, author="eve", reason="sale")
        multilimit.control.undo(made.id)

    assert numbers == [1, 0]
    assert told(caplog) == [
        f"Rate limits: worker {os.getpid()}: now in force: at show: off ({made.id} by eve): sale",
        f"Rate limits: worker {os.getpid()}: no longer in force: at show: off ({made.id} by eve): sale",
    ]


@pytest.mark.usefixtures("multilimit")
def test_of_many_changes_at_once_the_first_are_logged(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    entries = [
        Listing.model_validate({"id": f"{number:08x}", "kind": "allow", "who": f"203.0.113.{number}", "since": 0})
        for number in range(MOST_LOGGED + 3)
    ]
    applier = applier_of(app)
    applier.start()

    applier.take(Document(entries=tuple(entries)))

    assert len(told(caplog)) == MOST_LOGGED + 1
    assert told(caplog)[-1] == f"Rate limits: worker {os.getpid()}: now in force: 3 more entries"


def test_a_process_that_serves_no_requests_logs_no_changes(
    app: Flask, multilimit: MultiLimit, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a command, which prints what it does."""
    with app.app_context():
        multilimit.control.override("show", off=True, lasting=True)

    assert told(caplog) == []


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
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options, numproc=2, worker_id=lambda: 1))
    app.config.update(settings)
    MultiLimit(app)
    app.add_url_rule("/", "view", lambda: "ok")

    app.test_client().get("/")
    app.test_client().get("/")
    with app.app_context():
        applier_of(app).control.deny("203.0.113.7", for_=60)

    told = ("so traffic is flushed only while requests are served", "so changes are not noticed")
    assert tuple(caplog.text.count(each) for each in told) == warnings
