"""Served requests are recorded, and replayed with the same verdict for each."""

import http.client
import json
import os
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, Response, request, stream_with_context
from werkzeug.middleware.proxy_fix import ProxyFix

from flask_multilimit import IP, USER, ConfigurationError, MultiLimit, rate_limiter, recording, settle
from flask_multilimit.operate.simulate import recorded
from flask_multilimit.operate.simulate.recorded import SEGMENTS
from flask_multilimit.recording import Recorder
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import limits_checked
from flask_multilimit.simulation import Report, read_logs, simulate, suggest
from support.asking import statuses
from support.forks import forked
from support.processes import Program
from support.threads import interleaved
from support.waiting import until

from .recorded_app import make_app

THREADS = 4
EACH = 150
ASKED = ("GET /items", "GET /items", "POST /login", "GET /key", "GET /nowhere", "GET /free")


def asked(port: int, number: int) -> list[int]:
    """The statuses that one client gets, over one connection."""
    rng = random.Random(number)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    statuses = []
    for _ in range(EACH):
        method, path = rng.choice(ASKED).split()
        # Logins have an address of their own for each client: a replay applies refunds of a response at once.
        address = f"10.0.0.{number}" if path == "/login" else f"203.0.113.{rng.randrange(2)}"
        headers = {"X-Address": address, "X-User": rng.choice(["", "ann"]), "X-Key": rng.choice(["a", "b"])}
        if rng.random() < 0.5:
            headers["X-Wrong"] = "1"
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        response.read()
        statuses.append(response.status)
    connection.close()
    return statuses


def served(port: int) -> list[int]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [status for some in pool.map(asked, [port] * THREADS, range(THREADS)) for status in some]


def replayed(folder: Path) -> Report:
    return simulate(make_app(), read_logs(*sorted(folder.iterdir())))


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "workers"), [("memory", 1), ("server", 2)])
def test_recording_of_gunicorn_is_replayed_with_the_same_verdicts(
    storage: str, workers: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    uri = "memory://"
    if storage == "server":
        uri = request.getfixturevalue("server").url
    environment = {"RECORDED": str(tmp_path), "STORAGE": uri, "PYTHONPATH": f"tests{os.pathsep}."}
    program = Program(
        *("gunicorn", "--bind", "127.0.0.1:0", "--workers", str(workers), "--threads", str(THREADS)),
        "operate.simulate.recorded_app:app",
        environment=environment,
    )

    with program as running:
        statuses = served(running.port)

    report = replayed(tmp_path)
    assert report.requests == len(statuses) == THREADS * EACH
    assert report.really_refused == statuses.count(429) > 50
    assert report.differing == 0
    assert report.refused == statuses.count(429)
    assert 1 <= len(list(tmp_path.iterdir())) <= workers
    written = "".join(each.read_text() for each in tmp_path.iterdir())
    assert not re.search(r"203\.0\.113|10\.0\.0\.|ann", written), "subjects are hashed"


@pytest.fixture
def app() -> Flask:
    app = Flask("small")
    app.config["SECRET_KEY"] = "s"
    MultiLimit(app)
    app.add_url_rule("/", "index", rate_limiter(type=IP, rules="3/minute")(lambda: request.headers.get("X", "")))

    @app.get("/folder/")
    def folder() -> str:
        return ""

    return app


@pytest.fixture
def recorder(app: Flask, tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(app, tmp_path / "a" / "b", max_bytes=100_000)
    yield recorder
    recorder.close()


def entries(recorder: Recorder) -> list[dict[str, object]]:
    recorder.flush()
    return written(recorder)


def written(recorder: Recorder) -> list[dict[str, object]]:
    return [json.loads(line) for file in sorted(recorder.folder.iterdir()) for line in file.read_text().splitlines()]


def test_recorded_line_has_endpoint_hashed_subject_and_status(app: Flask, recorder: Recorder) -> None:
    client = app.test_client()
    for path in ("/", "/", "/", "/", "/nowhere", "/folder", "/folder/"):
        client.get(path, environ_base={"REMOTE_ADDR": "203.0.113.7"})
    client.put("/", environ_base={"REMOTE_ADDR": "203.0.113.7"})

    found = entries(recorder)

    assert [(each["e"], each["s"], each.get("ok")) for each in found] == [
        ("index", 200, 1),
        ("index", 200, 1),
        ("index", 200, 1),
        ("index", 429, 0),
        (None, 404, None),
        ("folder", 200, None),
        (None, 405, None),
    ], "a redirect of the router asks no limit"
    assert len({json.dumps(each["w"]) for each in found}) == 1
    assert "203.0.113" not in json.dumps(found)


def test_recorded_verdict_is_that_of_the_limits_of_the_endpoint(app: Flask, recorder: Recorder) -> None:
    @app.before_request
    def check_first() -> None:
        app.extensions["multilimit"].check("100/minute", scope="before")

    assert statuses(app, *["/"] * 4) == [200, 200, 200, 429]
    assert [each["ok"] for each in entries(recorder)] == [1, 1, 1, 0]


def test_request_for_an_unknown_path_is_recorded_with_its_verdict(tmp_path: Path) -> None:
    app = Flask("small")
    MultiLimit(app, unmatched_limits="1/minute")
    recorder = Recorder(app, tmp_path, key="k")

    assert statuses(app, "/nowhere", "/nowhere") == [404, 429]
    recorder.close()

    assert [each["ok"] for each in written(recorder)] == [1, 0]


def test_checks_outside_of_a_request_are_not_recorded(
    app: Flask, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with app.app_context():
        assert app.extensions["multilimit"].check("9/minute", scope="task").allowed
    assert (entries(recorder), caplog.messages) == ([], [])


def test_request_without_an_address_is_recorded(app: Flask, recorder: Recorder) -> None:
    response = app.test_client().get("/folder/", environ_overrides={"REMOTE_ADDR": None})
    assert (response.status_code, len(entries(recorder))) == (200, 1)


def test_request_that_may_have_chosen_its_address_is_not_recorded(app: Flask, recorder: Recorder) -> None:
    app.wsgi_app = ProxyFix(app.wsgi_app, x_for=2)  # type: ignore[method-assign]
    fields = ["198.51.100.1, 203.0.113.7", '198.51.100.1, ", 203.0.113.7, 192.0.2.1']

    answers = [app.test_client().get("/", headers={"X-Forwarded-For": field}).status_code for field in fields]

    assert answers == [200, 400]
    assert [each["s"] for each in entries(recorder)] == [200]


def test_suggest_and_simulate_read_the_recording_by_default(app: Flask, recorder: Recorder) -> None:
    run = app.test_cli_runner().invoke
    nothing = run(args=["multilimit", "suggest"])
    for _ in range(5):
        app.test_client().get("/")
    recorder.flush()

    suggested, replayed = (run(args=["multilimit", command]) for command in ("suggest", "simulate"))

    assert f"name a log: nothing is recorded yet in {recorder.folder}" in " ".join(nothing.output.split())
    assert suggested.output.startswith("5 requests of 1 subject (ip) from ")
    assert "refused           2 (40.0 %)" in replayed.output


def test_simulate_without_recorder_or_log_is_an_error(app: Flask) -> None:
    run = app.test_cli_runner().invoke(args=["multilimit", "simulate"])
    assert run.exit_code == 2
    assert "name a log: this app has no Recorder" in run.output


def settling(app: Flask) -> None:
    app.config["TESTING"] = True  # a stream is settled before it is closed

    @app.get("/chat")
    @rate_limiter(type=IP, rules="1000/minute", cost=5, settle=True, name="tokens")
    @rate_limiter(type=IP, rules="100/hour", cost=2, settle="header:X-Calls", name="calls")
    @rate_limiter(type=IP, rules="50/day", charge_when=[200], name="fine")
    def chat() -> Response:
        def words() -> Iterator[str]:
            yield "It "
            settle(42)
            yield "is"

        words_or_all = stream_with_context(words()) if "stream" in request.args else "".join(words())
        return Response(words_or_all, headers={"X-Calls": "3"})


@pytest.mark.parametrize("path", ["/chat", "/chat?stream"])
def test_recorded_line_has_the_real_cost_by_limiter(app: Flask, recorder: Recorder, path: str) -> None:
    def flush(response: Response) -> Response:
        """Before the settlement."""
        recorder.flush()
        return response

    settling(app)
    app.after_request_funcs[None].insert(0, flush)
    app.test_client().get(path, buffered=True)
    (found,) = entries(recorder)
    assert found["c"] == {"tokens": 42, "calls": 3}


def test_stream_is_recorded_when_settled_and_delays_no_other_request(app: Flask, recorder: Recorder) -> None:
    settling(app)
    client = app.test_client()
    stream = client.get("/chat?stream")
    client.get("/")

    before = [each["e"] for each in entries(recorder)]
    stream.get_data()
    stream.close()

    assert before == ["index"]
    assert [(each["e"], each.get("c")) for each in entries(recorder)] == [
        ("index", None),
        ("chat", {"tokens": 42, "calls": 3}),
    ]


def test_stream_of_an_app_without_slots_is_recorded_when_it_ends(app: Flask, recorder: Recorder) -> None:
    app.add_url_rule("/words", "words", rate_limiter("9/minute")(lambda: Response(iter(["x", "y"]))))
    stream = app.test_client().get("/words")
    assert entries(recorder) == []

    stream.close()

    (found,) = entries(recorder)
    assert found["e"] == "words"
    assert list(found["w"]) == ["ip"], "everybody is no subject"  # type: ignore[call-overload]


def test_stream_that_lasts_is_recorded_before_its_end(
    app: Flask, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "LONG_WAIT", 0)
    settling(app)

    stream = app.test_client().get("/chat?stream")

    assert [each["c"] for each in entries(recorder)] == [{"calls": 3}]
    stream.close()


def test_close_writes_requests_that_are_not_settled_yet(app: Flask, recorder: Recorder) -> None:
    settling(app)
    stream = app.test_client().get("/chat?stream")
    recorder.close()

    assert [each["c"] for each in entries(recorder)] == [{"calls": 3}]
    stream.close()


@pytest.mark.parametrize(("units", "statuses"), [(40, [200, 200, 429, 429]), (0, [200, 200, 200, 200])])
def test_recording_is_replayed_with_its_real_cost(
    app: Flask, recorder: Recorder, units: int, statuses: list[int]
) -> None:
    app.get("/tokens")(rate_limiter(type=IP, rules="90/minute", cost=30, settle=lambda _: units)(lambda: "ok"))
    client = app.test_client()
    assert [client.get("/tokens").status_code for _ in statuses] == statuses
    recorder.close()

    report = simulate(app, read_logs(*recorder.folder.iterdir()))

    assert (report.refused, report.differing) == (statuses.count(429), 0)


@pytest.mark.parametrize("behind", [recording.DAY // 2, 2 * recording.DAY], ids=["right", "wrong"])
def test_request_is_recorded_by_the_clock_of_the_storage_unless_it_is_wrong(
    app: Flask, recorder: Recorder, behind: int
) -> None:
    began = time.time_ns() // 1000
    gate_of(app).limiter.storage.clock = lambda: began - behind  # type: ignore[attr-defined]

    app.test_client().get("/")

    at: Any = entries(recorder)[0]["at"]
    assert at == began - behind if behind < recording.DAY else began <= at <= time.time_ns() // 1000


KEYS: list[tuple[str, str | bytes]] = [("text", "1"), ("bytes", b"1"), ("other", "2")]


def test_hash_of_a_subject_depends_on_the_key(app: Flask, tmp_path: Path) -> None:
    recorders = [Recorder(app, tmp_path / name, key=key) for name, key in KEYS]
    app.test_client().get("/")

    one, same, other = (entries(recorder)[0]["w"] for recorder in recorders)
    for recorder in recorders:
        recorder.close()

    assert one == same != other


def test_recording_uses_bounded_disk_space(app: Flask, recorder: Recorder) -> None:
    client = app.test_client()
    for _ in range(40):
        for _ in range(50):
            client.get("/folder/")
        recorder.flush()

    sizes = [file.stat().st_size for file in recorder.folder.iterdir()]
    assert 50_000 < sum(sizes) <= 100_000
    assert max(sizes) <= 100_000 // SEGMENTS
    assert len(entries(recorder)) < 2000


def test_requests_are_written_in_the_background(app: Flask, recorder: Recorder) -> None:
    app.test_client().get("/")
    assert len(until(lambda: written(recorder))) == 1
    recorder.close()
    assert not recorder._beat.running


def test_stream_is_written_in_the_background_when_it_ends(
    app: Flask, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, flushed = recorder.flush, list[int]()

    def count_and_flush() -> None:
        flushed.append(1)
        flush()

    monkeypatch.setattr(recording, "PAUSE", 0.01)
    monkeypatch.setattr(recorder, "flush", count_and_flush)
    settling(app)
    stream = app.test_client().get("/chat?stream")
    until(lambda: len(flushed) >= 2)

    stream.get_data()
    stream.close()

    assert len(until(lambda: written(recorder))) == 1


def test_requests_beyond_the_queue_are_dropped_and_counted(
    app: Flask, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_WAITING", 2)
    monkeypatch.setattr(recording, "PAUSE", 60)
    for _ in range(5):
        app.test_client().get("/")

    assert len(entries(recorder)) + recorder.dropped == 5
    assert recorder.dropped >= 1


def test_failing_disk_is_logged_once_and_fails_no_request(
    app: Flask, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.folder.rmdir()
    for _ in range(2):
        assert app.test_client().get("/").status_code == 200
        recorder.flush()

    assert recorder.dropped == 2
    assert [record.message for record in caplog.records if "recorded" in record.message] == [caplog.records[0].message]
    assert "Rate limits: requests could not be recorded: " in caplog.text


def lines_by_file(app: Flask, recorder: Recorder) -> list[int]:
    """The number of lines in each file, after a request in a child and one here."""

    def ask() -> None:
        app.test_client().get("/")
        recorder.flush()

    forked(ask)()
    ask()
    return [len(file.read_text().splitlines()) for file in recorder.folder.iterdir()]


def test_forked_child_writes_its_own_file(app: Flask, recorder: Recorder) -> None:
    app.test_client().get("/")
    assert sorted(lines_by_file(app, recorder)) == [1, 2]


def test_closed_recorder_records_nothing_also_in_forked_children(app: Flask, recorder: Recorder) -> None:
    recorder.close()
    assert lines_by_file(app, recorder) == []
    assert list(limits_checked.receivers_for(app)) == []


def test_thread_of_a_recorder_that_is_closed_amid_a_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PAUSE", 0.001)

    def recorder_of_an_app() -> Recorder:
        app = Flask("small")
        MultiLimit(app)
        return Recorder(app, tmp_path, key="k")

    def request_an_unknown_path(recorder: Recorder) -> None:
        recorder._gate.app.test_client().get("/")

    for recorder in interleaved(recorder_of_an_app, request_an_unknown_path, Recorder.close, of=recording):
        until(lambda recorder=recorder: not recorder._beat.running and not recorder._waiting)  # type: ignore[misc]


def test_recorder_needs_a_key_and_disk_space(app: Flask, tmp_path: Path) -> None:
    app.config["SECRET_KEY"] = None
    with pytest.raises(ConfigurationError, match="give key="):
        Recorder(app, tmp_path)
    key: Any = 5
    with pytest.raises(ConfigurationError, match="give str or bytes"):
        Recorder(app, tmp_path, key=key)
    with pytest.raises(ConfigurationError, match="at least 100,000"):
        Recorder(app, tmp_path, key="k", max_bytes=1)


def test_recording_can_be_replayed_through_other_limits(app: Flask, recorder: Recorder) -> None:
    for second in range(6):
        app.test_client().get("/", environ_base={"REMOTE_ADDR": f"203.0.113.{second % 2}"})
    recorder.flush()

    report = simulate(
        app, read_logs(*recorder.folder.iterdir()), limits={"limits": {"index": {"type": "ip", "rules": "1/hour"}}}
    )

    assert (report.refused, report.differing) == (4, 4)


def test_clients_that_were_on_a_list_are_neither_limited_nor_learned_from(app: Flask, recorder: Recorder) -> None:
    control = gate_of(app).applier.control
    control.allow("203.0.113.1", lasting=True)
    control.deny("203.0.113.2", lasting=True)
    for address in ["203.0.113.1"] * 5 + ["203.0.113.2"] * 6 + ["203.0.113.3"] * 2:
        app.test_client().get("/", environ_base={"REMOTE_ADDR": address})
    recorder.flush()
    logs = read_logs(*recorder.folder.iterdir())

    report = simulate(app, logs)

    assert (report.admitted, report.denied, report.refused) == (7, 6, 0)
    assert suggest(app, logs, endpoint="index").peaks[0].max == 2


def test_replay_of_a_recording_notes_that_it_does_not_use_the_lists_in_force(app: Flask, recorder: Recorder) -> None:
    app.test_client().get("/")
    recorder.flush()
    gate_of(app).applier.control.deny("127.0.0.1", lasting=True)

    report = simulate(app, read_logs(*recorder.folder.iterdir()))

    assert report.denied == 0
    assert [(note.text, note.requests) for note in report.notes] == [
        ("allow and deny lists: as they were when it was recorded, because its subjects are hashed", 1)
    ]


class TestOnDemand:
    """A recorder that ``flask multilimit record`` starts and stops."""

    @pytest.fixture(autouse=True)
    def _looking_always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recording, "PAUSE", 0.0)

    @pytest.fixture
    def asked_for(self, tmp_path: Path) -> Iterator[tuple[Flask, Recorder]]:
        app = make_app()
        recorder = Recorder(app, tmp_path, key="k", on_demand=True)
        yield app, recorder
        recorder.close()

    @staticmethod
    def lines_after_a_request(app: Flask, recorder: Recorder) -> int:
        app.test_client().get("/items")
        recorder.flush()
        return sum(len(file.read_text().splitlines()) for file in recorder.folder.glob("requests-*"))

    def test_user_whose_id_looks_like_a_digest_is_one_subject(self, tmp_path: Path) -> None:
        app = Flask("shop")
        MultiLimit(app, user_loader=lambda: f"*{'0a' * 20}")
        for name, type_ in (("mine", USER), ("both", (USER, IP))):
            app.add_url_rule(f"/{name}", name, rate_limiter(type=type_, rules="9/minute")(lambda: "ok"))
        recorder = Recorder(app, tmp_path, key="k")

        statuses(app, "/mine", "/both")
        recorder.close()

        (file,) = tmp_path.glob("requests-*")
        first, second = (json.loads(line)["w"] for line in file.read_text().splitlines())
        assert first["user"] == second["user"]

    def test_requests_are_recorded_only_between_start_and_stop(self, asked_for: tuple[Flask, Recorder]) -> None:
        app, recorder = asked_for
        runner = app.test_cli_runner()

        assert self.lines_after_a_request(*asked_for) == 0
        told = runner.invoke(args=["multilimit", "record", "--for", "1h"]).output
        assert told.startswith(f"{recorder.folder}: records until ")
        assert self.lines_after_a_request(*asked_for) == 1
        assert runner.invoke(args=["multilimit", "record", "--stop"]).output == f"{recorder.folder}: stopped\n"
        assert self.lines_after_a_request(*asked_for) == 1

    def test_recording_ends_after_its_time(self, asked_for: tuple[Flask, Recorder]) -> None:
        app, recorder = asked_for
        app.test_cli_runner().invoke(args=["multilimit", "record", "--for", "1h"])
        past = time.time() - 1
        os.utime(recorder.folder / "record-until", (past, past))

        assert self.lines_after_a_request(*asked_for) == 0

    def test_folder_that_cannot_be_read_is_logged_once_and_fails_no_request(
        self, asked_for: tuple[Flask, Recorder], caplog: pytest.LogCaptureFixture
    ) -> None:
        app, recorder = asked_for
        recorder.folder.rmdir()
        recorder.folder.write_text("a file in its place")

        assert [app.test_client().get("/items").status_code for _ in range(2)] == [200, 200]
        assert [record.message.partition(":")[0] for record in caplog.records] == ["Rate limits"]

    def test_record_without_a_recorder_on_demand_says_what_to_do(self, app: Flask, recorder: Recorder) -> None:
        told = app.test_cli_runner().invoke(args=["multilimit", "record"])
        none = make_app().test_cli_runner().invoke(args=["multilimit", "record"])
        wrong = app.test_cli_runner().invoke(args=["multilimit", "record", "--for", "soon"])

        only = f"{recorder.folder}: records all the time; for a time only: Recorder(..., on_demand=True)\n"
        assert told.output == only
        assert (none.exit_code, "this app has no Recorder" in none.output) == (1, True)
        assert (wrong.exit_code, "for" in wrong.output) == (1, True)


@pytest.mark.parametrize(("written", "took"), [(0, 0), (7, 7), (-1, None), ("7", None), (1.5, None), (None, None)])
def test_recorded_duration_is_read_if_it_is_one(written: object, took: int | None) -> None:
    request_ = recorded.read(json.dumps({"at": 1, "m": "GET", "e": "index", "s": 200, "d": written}))
    assert request_ is not None
    assert request_.took == took


@pytest.mark.parametrize("damage", [{"at": "1"}, {"m": 1}, {"e": 1}, {"s": "200"}, {"w": []}, {"c": 1}, {"ok": []}])
def test_damaged_line_of_a_recording_is_no_request(damage: dict[str, object]) -> None:
    assert recorded.read(json.dumps({"at": 1, "m": "GET", "e": "index", "s": 200} | damage)) is None


@pytest.mark.parametrize("value", ["[[", '[["a"]]', "[[1,2]]" * 3, '[["user","bob"]]', '[["ip","x"],["user","y"]]'])
def test_subject_that_looks_like_a_combined_one_is_recorded_as_one(tmp_path: Path, value: str) -> None:
    """A client may have chosen it."""
    app = make_app()
    recorder = Recorder(app, tmp_path, key="k")

    app.test_client().get("/key", headers={"X-Key": value})
    recorder.close()

    (line,) = [json.loads(line) for file in tmp_path.glob("requests-*") for line in file.read_text().splitlines()]
    assert set(line["w"]) == {"api_key", "ip", "anonymous"}


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_recorded_duration_includes_sending_the_response(tmp_path: Path, kind: str) -> None:
    app = Flask(__name__, static_folder=str(tmp_path))
    MultiLimit(app)
    recorder = Recorder(app, tmp_path / "recorded", key="k")
    (tmp_path / "large").write_bytes(b"x" * 100_000)

    @app.get("/")
    @rate_limiter("1 at once")
    def index() -> Response:
        return app.send_static_file("large") if kind == "file" else Response(iter(["x", "y"]))

    client = app.test_client()
    asked_at = time.monotonic_ns()
    first = client.get("/")
    began = time.monotonic_ns()
    second = client.get("/")
    waiting = entries(recorder)
    ended = time.monotonic_ns()
    first.close()
    closed = time.monotonic_ns()
    until(lambda: time.monotonic_ns() > closed + (closed - asked_at))
    recorder.close()

    assert [each["s"] for each in waiting] == [second.status_code] == [429]
    took: Any = entries(recorder)[-1]["d"]
    assert (ended - began) // 1000 <= took <= (closed - asked_at) // 1000
    assert took in [each.took for each in read_logs(*recorder.folder.iterdir())]
