"""Background threads end when the app is garbage collected, or with `close`."""

import gc
import threading
from collections.abc import Callable
from threading import Event, Timer
from typing import Any
from weakref import ref

import pytest
from flask import Blueprint, Flask, Response

from flask_multilimit import MultiLimit, Rule, rate_limiter
from flask_multilimit.control.store import StoredDocument
from flask_multilimit.engine import Limiter, MemoryStorage, hits_for, storage_from_uri
from flask_multilimit.engine.storage.schemes import SCHEMES, Scheme
from flask_multilimit.engine.threads import Beat
from flask_multilimit.observe.traffic.reading import reader_of
from flask_multilimit.serve.gate import gate_of
from support.asking import statuses, view
from support.clock import Clock
from support.doubles import RecordingStorage
from support.servers import Server
from support.waiting import PATIENCE, until

UNREACHABLE = "redis://127.0.0.1:1"


def probe_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "multilimit-probe"}


def app_without_storage(multilimit: MultiLimit) -> tuple[Flask, set[threading.Thread]]:
    """An app whose storage is down, and the thread that probes whether it is back."""
    before = probe_threads()
    app = Flask("shop")
    app.config["MULTILIMIT_STORAGE_URI"] = UNREACHABLE
    multilimit.init_app(app)
    app.add_url_rule("/", "view", rate_limiter(rules="1000/minute")(view()))
    assert statuses(app, "/") == [200]
    return app, probe_threads() - before


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_threads_of_an_app_end_when_it_is_garbage_collected() -> None:
    app, threads = app_without_storage(MultiLimit())
    assert len(threads) == 1
    kept = ref(app)

    del app
    gc.collect()

    until(lambda: not probe_threads() & threads)
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "options_for",
    [
        lambda app: {"exempt_when": lambda: app.testing},
        lambda app: {"type": lambda: app.name, "name": "app"},
        lambda app: {"message": lambda decision: f"{app.name} {decision.allowed}"},
        lambda app: {"rules": lambda: "5/minute" if app.name else None},
    ],
    ids=["exempt_when", "type", "message", "rules"],
)
@pytest.mark.parametrize("on", ["view", "blueprint"])
def test_app_is_garbage_collected_although_its_limiters_refer_to_it(
    options_for: Callable[[Flask], dict[str, Any]], on: str
) -> None:
    app, blueprint = Flask("shop"), Blueprint("pages", __name__)
    MultiLimit(app)
    limiter = rate_limiter(**{"rules": "5/minute", **options_for(app)})
    if on == "blueprint":
        limiter(blueprint)
    blueprint.add_url_rule("/", "view", limiter(view()) if on == "view" else view())
    app.register_blueprint(blueprint)
    assert statuses(app, "/", "/") == [200, 200]
    kept = ref(app)

    del app, blueprint, limiter
    gc.collect()

    until(lambda: gc.collect() >= 0 and kept() is None)


def test_close_closes_every_app_although_a_storage_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = set[str]()

    class OwnStorage(MemoryStorage):
        def __init__(self, uri: str) -> None:
            super().__init__()
            self.uri = uri

        def close(self) -> None:
            closed.add(self.uri)
            raise OSError(self.uri)

    monkeypatch.setitem(SCHEMES, "own", Scheme(lambda uri, _: OwnStorage(uri)))
    multilimit = MultiLimit()
    apps = [Flask(str(i)) for i in range(3)]
    for app in apps:
        app.config["MULTILIMIT_STORAGE_URI"] = f"own://{app.name}"
        multilimit.init_app(app)

    with pytest.raises(OSError, match="own://"):
        multilimit.close()

    assert closed == {"own://0", "own://1", "own://2"}


def test_close_ends_all_background_threads_of_all_apps() -> None:
    before = set(threading.enumerate())
    multilimit = MultiLimit()
    apps = [app_without_storage(multilimit)[0] for _ in range(2)]
    ours = set(threading.enumerate()) - before
    assert {thread.name for thread in ours} == {"multilimit-probe", "multilimit-control", "multilimit-beat"}

    multilimit.close()

    until(lambda: not any(thread.is_alive() for thread in ours))
    assert [statuses(app, "/") for app in apps] == [[200], [200]], "limits still work"


def app_on(server: Server) -> tuple[Flask, MultiLimit]:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    multilimit = MultiLimit(app, default_limits="9/minute")
    app.add_url_rule("/", "view", view())
    return app, multilimit


def test_close_flushes_counted_traffic(server: Server) -> None:
    app, multilimit = app_on(server)
    statuses(app, "/", "/")

    multilimit.close()

    limiter = Limiter(storage_from_uri(server.url, timeout=10))
    assert sum(reader_of(limiter.storage, "rate_limit:").read(60).checks(endpoint="view")) == 2
    limiter.close()


def test_close_returns_units_of_leases(server: Server) -> None:
    app = Flask("shop")
    app.config.update(MULTILIMIT_STORAGE_URI=server.url, MULTILIMIT_STORAGE_TIMEOUT=10)
    multilimit = MultiLimit(app)
    leased = Rule(60, 100, lease=50)
    app.add_url_rule("/", "view", rate_limiter(rules=leased)(view()))
    statuses(app, *["/"] * 6)
    other = Limiter(storage_from_uri(server.url, timeout=10))
    asked = hits_for(leased, scope="view")
    held = 100 - 6 - other.peek(asked).remaining

    multilimit.close()

    assert held > 0
    assert other.peek(asked).remaining == 94
    other.close()


def test_app_still_learns_of_a_denied_client_after_close(server: Server) -> None:
    app, multilimit = app_on(server)
    other, elsewhere = app_on(server)
    assert statuses(app, "/") == [200]

    multilimit.close()
    with other.app_context():
        elsewhere.control.deny("127.0.0.1", for_="1h")

    until(lambda: statuses(app, "/") == [403])


def test_app_that_is_closed_while_another_thread_starts_it_still_learns_of_a_denied_client(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, multilimit = app_on(server)
    other, elsewhere = app_on(server)
    follower, closing = gate_of(app).applier.follower, threading.Thread(target=multilimit.close)
    keep_following = follower.keep_following

    def keep_following_until_closed() -> bool:
        follows = keep_following()
        monkeypatch.undo()
        closing.start()
        until(lambda: not follower._beat.running)
        return follows

    gate_of(app).startup.keep_up()
    monkeypatch.setattr(follower, "keep_following", keep_following_until_closed)
    assert statuses(app, "/") == [200]
    closing.join()
    with other.app_context():
        elsewhere.control.deny("127.0.0.1", for_="1h")

    until(lambda: statuses(app, "/") == [403])


def test_close_waits_for_a_question_about_changes_that_is_under_way(server: Server) -> None:
    app, multilimit = app_on(server)
    store, asked, let_go, answers = gate_of(app).applier.follower.store, Event(), Event(), list[StoredDocument]()
    statuses(app, "/")
    read = store.read

    def read_slowly(known: str) -> StoredDocument:
        asked.set()
        let_go.wait(PATIENCE)
        answers.append(read(known))
        return answers[-1]

    store.read = read_slowly  # type: ignore[method-assign]
    assert asked.wait(PATIENCE)
    Timer(0.1, let_go.set).start()

    multilimit.close()

    assert len(answers) == 1, "otherwise, it would open a connection that nobody closes"


def test_close_settles_streams_that_have_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    app, multilimit = app_on(server)
    rule = Rule(60, 100)
    stream = rate_limiter(rules=rule, cost=10, settle=lambda _: 3)(lambda: Response(iter(["a", "b"])))
    app.add_url_rule("/stream", "stream", stream)
    monkeypatch.setattr(Beat, "wake", lambda *_: None)
    app.test_client().get("/stream").close()

    multilimit.close()

    limiter = Limiter(storage_from_uri(server.url, timeout=10))
    assert limiter.peek(hits_for(rule, scope="stream")).remaining == 97
    limiter.close()


def test_threads_of_a_limiter_end_when_it_is_garbage_collected() -> None:
    before = probe_threads()
    limiter = Limiter(UNREACHABLE)
    assert limiter.check(hits_for("5/minute", scope="mail")).allowed
    threads = probe_threads() - before
    assert len(threads) == 1

    del limiter
    gc.collect()

    until(lambda: not probe_threads() & threads)


def test_app_with_memory_storage_still_limits_after_close(clock: Clock) -> None:
    app = Flask("shop")
    multilimit = MultiLimit(app, storage=RecordingStorage(clock), default_limits="1/minute")
    app.add_url_rule("/", "view", view())

    multilimit.close()

    assert statuses(app, "/", "/") == [200, 429]
    assert gate_of(app).limiter.health().state == "working"
