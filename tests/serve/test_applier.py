"""Changes of control in a process: they are signalled, and logged if the process serves requests."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from flask_multilimit import IP, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.control.document import Document
from flask_multilimit.control.entries import Listing
from flask_multilimit.serve.applier import MOST_LOGGED, ControlApplier
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import control_changed
from support.asking import ask, view


def logged_changes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Rate limits" in record.getMessage()]


@pytest.fixture
def multilimit(app: Flask) -> MultiLimit:
    app.logger.setLevel("INFO")
    app.add_url_rule("/", "show", rate_limiter(type=IP, rules="2/minute")(view()))
    return MultiLimit(app)


@pytest.mark.parametrize("act", ["look", "start"])
@pytest.mark.parametrize(
    ("settings", "enabled"),
    [({}, True), ({"MULTILIMIT_CONTROL": False}, False), ({"MULTILIMIT_ENABLED": False}, False)],
    ids=["default", "control disabled", "limits disabled"],
)
def test_app_follows_changes_unless_control_or_limits_are_disabled(
    app: Flask, settings: dict[str, bool], enabled: bool, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.config.update(settings)
    MultiLimit(app)
    applier, asked = gate_of(app).applier, list[str]()
    read = applier.follower.store.read

    def record(known: str) -> Any:
        asked.append(known)
        return read(known)

    monkeypatch.setattr(applier.follower.store, "read", record)

    getattr(applier, act)()

    assert applier.enabled is enabled
    assert bool(asked) is enabled


def test_no_change_can_be_made_when_control_is_switched_off(app: Flask) -> None:
    app.config["MULTILIMIT_CONTROL"] = False
    multilimit = MultiLimit(app)
    with app.app_context(), pytest.raises(ConfigurationError, match="MULTILIMIT_CONTROL is False"):
        multilimit.control.deny("203.0.113.7", for_="1h")


def test_changes_are_signalled_and_logged(app: Flask, multilimit: MultiLimit, caplog: pytest.LogCaptureFixture) -> None:
    ask(app)
    numbers: list[int] = []
    with control_changed.connected_to(lambda _, entries: numbers.append(len(entries)), app), app.app_context():
        made = multilimit.control.override("show", off=True, lasting=True, author="eve", reason="sale")
        multilimit.control.undo(made.id)

    assert numbers == [1, 0]
    assert logged_changes(caplog) == [
        f"Rate limits: worker {os.getpid()}: now in force: at show: off ({made.id} by eve): sale",
        f"Rate limits: worker {os.getpid()}: no longer in force: at show: off ({made.id} by eve): sale",
    ]


def test_only_entries_that_begin_or_end_are_logged(
    app: Flask, multilimit: MultiLimit, caplog: pytest.LogCaptureFixture
) -> None:
    ask(app)
    with app.app_context():
        stays, ends = (multilimit.control.deny(f"203.0.113.{number}", lasting=True) for number in (7, 8))
        multilimit.control.undo(ends.id)

    assert [line.partition(": worker ")[2].partition(": ")[2] for line in logged_changes(caplog)] == [
        f"now in force: {stays} ({stays.id})",
        f"now in force: {ends} ({ends.id})",
        f"no longer in force: {ends} ({ends.id})",
    ]


def test_plans_are_those_asked_for_while_another_thread_previews_a_change(
    app: Flask, multilimit: MultiLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = gate_of(app).applier
    with app.app_context():
        mine, other = (multilimit.control.override(where, times=2, lasting=True) for where in ("show", "*"))
    previewed = applier.plans_with([other])
    monkeypatch.setattr(ControlApplier, "_latest", property(lambda _: previewed, lambda *_: None), raising=False)

    assert applier.plans_with([mine]).overrides.entries == (mine,)


def test_change_makes_no_new_plans_for_endpoints_that_it_does_not_name(app: Flask, multilimit: MultiLimit) -> None:
    app.add_url_rule("/other", "other", view())
    with app.app_context():
        change = multilimit.control.override("show", times=2, lasting=True)
    applier = gate_of(app).applier
    before, after = (applier.plans_with(entries).planned for entries in ((), (change,)))

    assert {place[0] for place, plan in after.items() if before[place] is not plan} == {"show"}


def test_process_follows_changes_if_its_first_try_failed(
    app: Flask, multilimit: MultiLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, asked = gate_of(app).applier.follower, list[str]()

    def fails(known: str) -> None:
        asked.append(known)
        monkeypatch.undo()
        raise ConfigurationError("the directory of the local server is not writable")

    monkeypatch.setattr(follower.store, "read", fails)
    with app.app_context():
        with pytest.raises(ConfigurationError):
            multilimit.check("1/minute", scope="mail")
        assert not gate_of(app).startup.keep_up.done
        assert multilimit.check("1/minute", scope="mail").allowed

    assert asked == [""]
    assert gate_of(app).startup.keep_up.done


@pytest.mark.usefixtures("multilimit")
def test_log_shows_only_the_first_of_many_changes(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    entries = [
        Listing.model_validate({"id": f"{number:08x}", "kind": "allow", "who": f"203.0.113.{number}", "since": 0})
        for number in range(MOST_LOGGED + 3)
    ]
    applier = gate_of(app).applier
    applier.start()

    applier.take(Document(entries=tuple(entries)))

    assert len(logged_changes(caplog)) == MOST_LOGGED + 1
    assert logged_changes(caplog)[-1] == f"Rate limits: worker {os.getpid()}: now in force: 3 more entries"


def test_process_that_serves_no_requests_logs_no_changes(
    app: Flask, multilimit: MultiLimit, caplog: pytest.LogCaptureFixture
) -> None:
    """A command prints what it does."""
    with app.app_context():
        multilimit.control.override("show", off=True, lasting=True)
    assert logged_changes(caplog) == []


@pytest.mark.parametrize(
    ("has_threads", "settings", "warnings"),
    [
        pytest.param(1, {}, (False, False), id="threads"),
        pytest.param(0, {}, (True, True), id="no threads"),
        pytest.param(0, {"MULTILIMIT_TRAFFIC": False}, (False, True), id="no traffic to flush"),
        pytest.param(0, {"MULTILIMIT_ENABLED": False}, (False, True), id="limits disabled"),
    ],
)
def test_log_warns_when_uwsgi_runs_without_threads(
    app: Flask,
    has_threads: int,
    settings: dict[str, Any],
    warnings: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(has_threads=has_threads, numproc=2, worker_id=lambda: 1))
    app.config.update(settings)
    MultiLimit(app)
    app.add_url_rule("/", "view", lambda: "ok")

    app.test_client().get("/")
    app.test_client().get("/")
    with app.app_context():
        gate_of(app).applier.control.deny("203.0.113.7", for_=60)

    messages = ("so traffic is flushed only while requests are served", "so changes are noticed late")
    assert tuple(caplog.text.count(each) for each in messages) == warnings
