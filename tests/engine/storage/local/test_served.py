"""local:// in use: workers that need only the URI, and commands beside them."""

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from engine.storage.local.places import Place, kill, suspend
from flask_multilimit.engine.storage.local.server import LocalServer
from flask_multilimit.engine.storage.local.supervisor import LINGERS
from operate.cli.conftest import Command
from support.processes import Program
from support.waiting import until

APP = Path(__file__).with_name("app.py")
WORKERS = 8


def settings_of(place: Place) -> dict[str, str]:
    # A busy machine may answer late.
    return {"FLASK_MULTILIMIT_STORAGE_URI": place.uri, "FLASK_MULTILIMIT_STORAGE_TIMEOUT": "10"}


def gunicorn(place: Place, *options: str) -> Program:
    arguments = ("--chdir", str(APP.parent), "--bind", "127.0.0.1:0", "--workers", str(WORKERS))
    return Program("gunicorn", *arguments, *options, "app:app", environment=settings_of(place))


def wait_for_all_workers(program: Program) -> None:
    met = set[str | None]()

    def meets_all() -> bool:
        met.update(reply.headers["Worker"] for reply in program.get_all(["/hello"] * 2 * WORKERS))
        return len(met) == WORKERS

    until(meets_all)


@pytest.mark.parametrize("kind", ["sync", "gevent"])
def test_eight_workers_together_admit_exactly_the_limit(place: Place, kind: str) -> None:
    with gunicorn(place, "--preload", "--worker-class", kind) as program:
        wait_for_all_workers(program)

        statuses = Counter(reply.status for reply in program.get_all(["/"] * 200))

        assert statuses == {200: 50, 429: 150}
        assert len(place.supervisors()) == 1
        assert "Rate limits:" not in program.log
    until(place.is_deserted)


GUNICORN = ("gunicorn", "--bind", "127.0.0.1:0", "app:app")
UWSGI = (
    *("uwsgi", "--http-socket", "127.0.0.1:0", "--module", "app:app", "--master", "--die-on-term"),
    *("--min-worker-lifetime", "0"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [GUNICORN, (*GUNICORN, "--preload"), UWSGI, (*UWSGI, "--lazy-apps")],
    ids=["gunicorn", "gunicorn, preloaded", "uwsgi", "uwsgi, lazy"],
)
def test_quotas_outlive_workers_that_a_master_replaces_long_before_the_next_request(
    place: Place, command: tuple[str, ...]
) -> None:
    one_worker = ("--chdir", str(APP.parent), "--workers", "1", "--max-requests", "60")
    with Program(*command, *one_worker, environment=settings_of(place)) as program:
        before = program.get_all(["/"] * 60)
        time.sleep(2 * LINGERS)
        assert LocalServer(place.directory).is_used()
        after = program.get("/")

        assert Counter(reply.status for reply in before) == {200: 50, 429: 10}
        assert after.status == 429
        assert after.headers["Worker"] not in {reply.headers["Worker"] for reply in before}
    until(place.is_deserted)


@pytest.fixture
def flask(place: Place) -> Command:
    command = Command(APP, place.uri)
    command.environment["FLASK_MULTILIMIT_STORAGE_TIMEOUT"] = "10"
    return command


def test_command_lists_keys_of_the_workers_and_leaves_their_counts(place: Place, flask: Command) -> None:
    user = place.user()
    user("check", 20)
    assert "rate_limit:{all}" in flask("keys").out
    assert user("check", 40) == 30


@pytest.mark.parametrize(
    "change", [("ban", "203.0.113.7", "--for", "1h"), ("set", "index", "--limit", "1/hour", "--lasting")]
)
def test_command_changes_nothing_on_a_server_that_is_about_to_end(
    place: Place, flask: Command, change: tuple[str, ...]
) -> None:
    user = place.user()
    user("check")
    supervisor = place.supervisor
    suspend(supervisor)  # otherwise the server might end before the command looks for it
    user.kill()

    run = flask(*change, "--yes")

    kill(supervisor, signal.SIGCONT)
    assert run.code == 1
    assert "no process uses the server" in run.err_on_one_line
    assert "In force" not in run.out


def test_command_changes_a_server_that_a_worker_uses(place: Place, flask: Command) -> None:
    place.user()("check")
    assert "In force within a second" in flask.alone("ban", "203.0.113.7", "--for", "1h", "--yes").out


def test_doctor_names_the_directory_of_the_local_server_and_when_it_ends(place: Place, flask: Command) -> None:
    findings = {found["name"]: found for found in flask("doctor", "--json").json["findings"]}

    assert {found["level"] for found in findings.values()} <= {"ok", "hint"}
    assert str(place.directory) in findings["sharing"]["text"]
    assert "with the last of them" in findings["sharing"]["text"]
    assert "persistence" not in findings, "the local server has no such setting"


def test_doctor_says_why_the_local_server_does_not_start(place: Place, flask: Command) -> None:
    place.directory.mkdir(mode=0o700)
    place.directory.joinpath("election").mkdir()

    run = flask("doctor", "--json")

    (found,) = (found for found in run.json["findings"] if found["name"] == "storage")
    assert run.code == 1
    assert found["level"] == "wrong"
    assert f"local storage in {place.directory}" in found["text"]
    place.directory.joinpath("election").rmdir()
