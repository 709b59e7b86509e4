"""Processes learn of changes in the background: through outages, after forks, and with every kind of server."""

import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from control.conftest import Shop, SkewedStore, SlowStart, make_last_answer_older, shop_on
from flask_multilimit.control import Control, ControlConflict, watch
from flask_multilimit.control.control import MOST_TRIES
from flask_multilimit.control.document import Document
from flask_multilimit.control.store import StoreInStorage
from flask_multilimit.control.watch import ControlFollower, _generator
from flask_multilimit.engine import RedisStorage, StorageError
from flask_multilimit.engine.storage.redis.failures import RIGHTS, RIGHTS_OF_OPERATORS, RIGHTS_OF_WORKERS
from flask_multilimit.plan.changes import ChangeValidator
from flask_multilimit.signals import control_changed
from support.asking import commands
from support.cluster import Cluster
from support.doubles import raising
from support.folders import DOCS
from support.forks import FORKS, forked
from support.processes import Program
from support.servers import Server
from support.waiting import PATIENCE, until


def test_other_process_applies_a_change_and_its_end(on_server: str) -> None:
    one, other = shop_on(on_server), shop_on(on_server)
    assert not other.denies()

    one.control.deny("198.51.100.7", lasting=True)

    until(other.denies)
    one.control.deny("198.51.100.7", for_=1, force=True)
    until(lambda: not other.denies())
    until(lambda: not one.denies())


def test_no_request_of_a_new_process_passes_before_it_knows_the_changes(
    on_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop_on(on_server).control.deny("198.51.100.7", lasting=True)
    new = shop_on(on_server)
    assert SlowStart(monkeypatch).two(new.denies) == [True, True]


def test_receiver_of_the_first_changes_may_check_limits(on_server: str) -> None:
    shop_on(on_server).control.deny("203.0.113.9", lasting=True)
    new, checked = shop_on(on_server), list[bool]()

    def check(*_: Any, **__: Any) -> None:
        checked.append(new.multilimit.check("1/minute", scope="mail").allowed)

    with control_changed.connected_to(check, new.app):
        assert new.statuses(1) == [200]
    assert checked == [True]


def test_receiver_of_a_change_may_check_limits_while_another_thread_serves_the_first_request(on_server: str) -> None:
    new, checked = shop_on(on_server), list[bool]()
    request = threading.Thread(target=new.denies, daemon=True)

    def check(*_: Any, **__: Any) -> None:
        request.start()
        checked.append(new.multilimit.check("1/minute", scope="mail").allowed)

    def deny() -> None:
        with new.app.app_context(), control_changed.connected_to(check, new.app):
            new.control.deny("203.0.113.9", lasting=True)

    change = threading.Thread(target=deny, daemon=True)
    change.start()
    change.join(PATIENCE)
    request.join(PATIENCE)

    assert checked == [True]
    assert not request.is_alive()


def test_requests_send_no_command_for_changes(on_server: str, redis_client: redis.Redis) -> None:
    shop = shop_on(on_server)
    shop.control.override("show", rule="ip-60s", rules="9/minute", lasting=True)
    shop.control.allow("203.0.113.0/24", lasting=True)
    shop.control.deny("192.0.2.0/24", lasting=True)
    shop.statuses(1)

    with commands(redis_client) as seen:
        assert shop.statuses(1) == [200]
        assert shop.statuses(1, ip="203.0.113.7") == [200]
        assert shop.statuses(1, ip="192.0.2.7") == [403]

    assert seen == ["EVALSHA"]


DOCUMENT = "rate_limit:{control}:document"


class FailsTwice:
    """In place of what applies a document: code of the app raises twice."""

    def __init__(self) -> None:
        self.taken: list[Document] = []

    def __call__(self, document: Document) -> None:
        self.taken.append(document)
        if len(self.taken) <= 2:
            raise RuntimeError("an own algorithm has failed")


def test_change_that_code_of_the_app_refuses_is_reported_once_and_tried_again(
    on_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop_on(on_server).control.deny("198.51.100.7", lasting=True)
    shop, take = shop_on(on_server), FailsTwice()
    follower = ControlFollower(shop.follower.store, take=take, report=print, logger=shop.app.logger)

    seen = []
    for _ in range(4):
        follower.look()
        seen.append((follower.version, str(follower.problem)))

    assert seen == [(0, "an own algorithm has failed")] * 2 + [(1, "None")] * 2
    assert len(take.taken) == 3
    assert [each.exc_info is not None for each in caplog.records if "own algorithm" in each.getMessage()] == [True]


def test_error_in_the_thread_that_follows_changes_is_logged_by_the_app(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.control.deny("::1", for_="1h")
    monkeypatch.setattr(shop.follower, "ask", raising(RuntimeError))
    until(lambda: "raised in the background" in caplog.text)
    assert {each.name for each in caplog.records if each.exc_info} == {shop.app.logger.name}


def test_worker_announces_the_version_in_force_while_code_of_the_app_refuses_a_newer_one(on_server: str) -> None:
    shop_on(on_server).control.deny("198.51.100.7", lasting=True)
    store = shop_on(on_server).follower.store
    assert isinstance(store, StoreInStorage)
    follower = ControlFollower(store, take=raising(RuntimeError), report=print, logger=None)

    follower.start(limits=lambda: "limits")

    assert [each.version for each in until(lambda: store.workers().workers)] == [0]


@pytest.fixture
def skewed() -> SkewedStore:
    """A store in which a client is denied for an hour."""
    shop, store = shop_on("memory://"), SkewedStore()
    shop.follower.store = store
    shop.control.deny("198.51.100.7", for_="1h")
    return store


def test_entry_whose_end_code_of_the_app_refuses_ends_at_the_next_look(
    skewed: SkewedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PRUNING_PAUSE", 0)
    take = FailsTwice()
    follower = ControlFollower(skewed, take=take, report=print, logger=None)
    for _ in range(3):
        follower.look()
    take.taken.clear()
    skewed.ahead = 3601

    for _ in range(4):
        follower.look()

    assert [len(each.entries) for each in take.taken] == [0, 0, 0]


def test_entry_ends_soon_also_where_putting_changes_in_force_takes_long(
    skewed: SkewedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PRUNING_PAUSE", 10**9)
    monkeypatch.setattr(watch, "LONGEST_PAUSE", 0)
    taken = list[Document]()
    follower = ControlFollower(skewed, take=taken.append, report=print, logger=None)
    follower.look()
    skewed.ahead = 3601

    follower.look()

    assert [len(each.entries) for each in taken] == [1, 0]


def test_process_that_could_start_no_thread_at_its_first_request_follows_changes_later(
    on_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_on(on_server)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        assert not shop.denies()
    assert not shop.denies()
    shop_on(on_server).control.deny("198.51.100.7", lasting=True)

    until(shop.denies)


@pytest.mark.slow
def test_last_document_stays_in_force_in_an_outage_then_the_newest(own_server: Server) -> None:
    shop = shop_on(own_server.tcp_url)
    shop.control.deny("198.51.100.7", lasting=True)
    text: Any = own_server.client().hget(DOCUMENT, "document")
    own_server.stop()
    assert all(shop.denies() for _ in range(3))
    time.sleep(1)
    assert shop.denies()
    assert shop.control.problem is None

    own_server.restart()
    own_server.client().hset(DOCUMENT, mapping={"stamp": "2-new", "document": text})
    until(lambda: shop.follower.known.stamp == "2-new")
    assert shop.denies()
    own_server.client().delete(DOCUMENT)
    until(lambda: not shop.denies())


@pytest.mark.slow
def test_change_ends_on_time_in_an_outage(own_server: Server) -> None:
    shop = shop_on(own_server.tcp_url)
    shop.control.override("show", off=True, for_=3600, force=True)
    shop.control.ban("198.51.100.8", for_=3600)
    shop.control.deny("198.51.100.0/24", lasting=True)
    own_server.stop()
    assert shop.statuses(4, ip="203.0.113.7") == [200] * 4

    make_last_answer_older(shop.follower, 3600)
    until(lambda: 429 in shop.statuses(4, ip="203.0.113.7"))
    assert shop.statuses(2, ip="198.51.100.8") == [403, 403]


def test_known_document_is_not_sent_again(on_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_on(on_server)
    shop.control.deny("198.51.100.7", lasting=True)
    run, sent = RedisStorage.run_script, list[Any]()

    def record(*call: Any) -> Any:
        sent.append(run(*call))
        return sent[-1]

    monkeypatch.setattr(RedisStorage, "run_script", record)
    shop.follower.ask()

    assert sent
    assert "198.51.100.7" not in str(sent)


def test_forked_child_follows_changes(on_server: str) -> None:
    parent = shop_on(on_server)
    parent.statuses(1)
    has_served = FORKS.Event()

    def serve() -> None:
        parent.statuses(1, "/open")
        has_served.set()
        until(parent.denies)

    of_child = forked(serve)
    assert has_served.wait(PATIENCE)
    shop_on(on_server).control.deny("198.51.100.7", lasting=True)

    of_child()


def test_forked_workers_look_for_changes_at_different_times() -> None:
    first, second = forked(_generator.random), forked(_generator.random)
    assert first() != second()


def test_child_forked_while_a_long_document_is_read_collects_garbage(
    on_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LONG_TEXT", 1)
    shop, seen = shop_on(on_server), list[tuple[bool, bool]]()

    def fork(*_: Any, **__: Any) -> None:
        seen.append((gc.isenabled(), forked(gc.isenabled)()))

    with control_changed.connected_to(fork, shop.app):
        shop.control.deny("198.51.100.7", lasting=True)

    assert seen == [(False, True)]
    assert gc.isenabled()


class TestConcurrentWriters:
    def test_concurrent_changes_of_different_clients_are_all_stored(self, on_server: str) -> None:
        shops = [shop_on(on_server) for _ in range(4)]

        def write(number: int) -> None:
            for n in range(5):
                shops[number].control.deny(f"10.{number}.{n}.1", lasting=True)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))

        assert len(shops[0].control.entries()) == 20
        assert len(shops[0].control.history()) == 20

    def test_change_that_a_client_sends_again_for_its_lost_reply_is_made_once(
        self, on_server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        control = shop_on(on_server).control
        run = RedisStorage.run_script

        def run_twice(*call: Any) -> Any:
            run(*call)
            return run(*call)

        monkeypatch.setattr(RedisStorage, "run_script", run_twice)
        entry = control.deny("198.51.100.7", lasting=True)
        assert control.entries() == (entry,)
        control.undo(entry.id)

        assert [each["what"] for each in control.history()] == ["undo", "set"]

    def test_concurrent_change_of_the_same_client_is_a_conflict(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        control = shop.control
        validate = ChangeValidator.validate
        raced: list[bool] = []

        def race(*arguments: Any) -> None:
            if not raced:
                raced.append(True)
                shop.control.deny("10.0.0.1", lasting=True, author="first")
            validate(*arguments)

        monkeypatch.setattr(ChangeValidator, "validate", race)
        with pytest.raises(
            ControlConflict, match=r"changed since you looked at it\. Now in force: first set deny 10\.0\.0\.1"
        ):
            control.allow("10.0.0.1", lasting=True, author="second")

        assert [(each.kind, each.author) for each in control.entries()] == [("deny", "first")]

    def test_undoing_what_somebody_has_replaced_or_undone_names_them(self, shop: Shop) -> None:
        control = shop.control
        first = control.override("show", rule="ip-60s", rules="5/minute", lasting=True, author="ann")
        second = control.override("show", rule="ip-60s", rules="6/minute", lasting=True, author="ben")
        with pytest.raises(ControlConflict, match=r"show: 5/minute: changed .*ben set rule ip-60s at show: 6"):
            control.preview_undo(first.id)
        control.undo(second.id, author="cy")
        control.override("show", rule="ip-60s", rules="7/minute", lasting=True, author="di")

        with pytest.raises(ControlConflict, match=r"show: 6/minute: changed .*cy undo rule ip-60s at show: 6"):
            control.undo(second.id)

    def test_change_is_a_conflict_if_others_are_first_at_every_try(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(type(shop.follower.store), "write", write := Mock(return_value=None))

        with pytest.raises(ControlConflict, match="others keep changing limits: try again"):
            shop.control.deny("10.0.0.1", lasting=True)

        assert write.call_count == MOST_TRIES

    def test_entry_that_two_operators_undo_at_once_is_undone_once(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        control = shop.control
        made, entry = control.deny("10.0.0.1", lasting=True), control.entry

        def race(control: Control, id_: str) -> Any:
            found = entry(id_)
            monkeypatch.undo()
            control.undo(id_)
            return found

        monkeypatch.setattr(Control, "entry", race)
        with pytest.raises(ControlConflict, match=r"deny 10\.0\.0\.1: changed since .* undo deny 10\.0\.0\.1 at"):
            control.undo(made.id, author="second")

        assert [(each["what"], each["author"], each["reason"]) for each in control.history()] == [
            ("undo", "", ""),
            ("set", "", ""),
        ]


def test_other_process_applies_a_change_on_a_cluster(cluster: Cluster) -> None:
    one, other = shop_on(cluster.uri), shop_on(cluster.uri)
    other.statuses(1, "/open")

    one.control.deny("198.51.100.7", lasting=True)

    until(other.denies)
    assert len(one.control.history()) == 1


class TestServerPermissions:
    @pytest.fixture
    def as_user(self, on_server: str, redis_client: redis.Redis) -> Iterator[Callable[[str], Shop]]:
        """The shop, as a user of the server with ``rights`` in addition to those that limits need."""
        client: Any = redis_client
        names: list[str] = []

        def as_user(rights: str) -> Shop:
            names.append(f"user{len(names)}")
            every = ["on", ">secret", "~rate_limit:*", *RIGHTS.split(), *rights.split()]
            client.execute_command("ACL", "SETUSER", names[-1], *every)
            return shop_on(on_server.replace("://", f"://{names[-1]}:secret@", 1), MULTILIMIT_TRAFFIC=False)

        yield as_user
        client.execute_command("ACL", "DELUSER", *names)

    def test_worker_without_read_permission_still_limits_and_reports_it(
        self, as_user: Callable[[str], Shop], caplog: pytest.LogCaptureFixture
    ) -> None:
        shop = as_user("")

        assert shop.statuses(3) == [200, 200, 429]
        assert "storage is down" not in caplog.text
        assert "NOPERM" in str(shop.control.problem).upper() or "permission" in str(shop.control.problem)
        with pytest.raises(StorageError):
            shop.control.deny("198.51.100.7", lasting=True)

    def test_worker_with_read_permission_follows_but_cannot_change(
        self, as_user: Callable[[str], Shop], on_server: str
    ) -> None:
        worker = as_user("+hget")
        assert not worker.denies()

        with pytest.raises(StorageError):
            worker.control.deny("198.51.100.7", lasting=True)
        shop_on(on_server).control.deny("198.51.100.7", lasting=True)

        until(worker.denies)

    def test_change_needs_each_documented_permission(self, as_user: Callable[[str], Shop]) -> None:
        control = as_user(f"{RIGHTS_OF_WORKERS} {RIGHTS_OF_OPERATORS}").control
        control.undo(control.deny("198.51.100.7", lasting=True).id)
        assert len(control.history()) == 2

        for right in ("+hset", "+xadd"):
            lacking = as_user(f"{RIGHTS_OF_WORKERS} {RIGHTS_OF_OPERATORS} -{right[1:]}").control
            with pytest.raises(StorageError):
                lacking.deny("198.51.100.7", lasting=True)
            assert control.entries() == ()
        with pytest.raises(StorageError):
            as_user(f"{RIGHTS_OF_WORKERS} {RIGHTS_OF_OPERATORS} -xrevrange").control.history()

    def test_documentation_names_the_permissions(self) -> None:
        page = (DOCS / "how-to" / "redis-access.md").read_text()
        assert RIGHTS_OF_WORKERS in page
        assert RIGHTS_OF_OPERATORS in page


APP = """
import os, time
from flask import Flask, jsonify
from flask_multilimit import MultiLimit
app = Flask(__name__)
app.config.update(MULTILIMIT_STORAGE_URI=os.environ["STORAGE_URI"], MULTILIMIT_STORAGE_TIMEOUT=10)
multilimit = MultiLimit(app)

def show(status=200):
    time.sleep(0.01)  # so that another worker gets the next request
    return str(os.getpid()), status

app.get("/")(show)
app.errorhandler(403)(lambda error: show(403))
"""


GUNICORN = ("gunicorn", "-b", "127.0.0.1:0", "watched:app", "-k")
UWSGI = ("uwsgi", "--http-socket", "127.0.0.1:0", "--module", "watched:app", "--master", "--die-on-term")


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        (*GUNICORN, "sync", "-w", "8"),
        (*GUNICORN, "gthread", "--threads", "2", "-w", "8"),
        (*GUNICORN, "gevent", "-w", "8"),
        (*GUNICORN, "sync", "-w", "8", "--preload"),
        (*UWSGI, "--processes", "8"),
        (*UWSGI, "--processes", "8", "--threads", "2", "--lazy-apps"),
    ],
    ids=["sync", "gthread", "gevent", "preload", "uwsgi", "uwsgi-lazy"],
)
def test_all_workers_of_a_server_apply_a_change(on_server: str, tmp_path: Path, program: tuple[str, ...]) -> None:
    with served(on_server, tmp_path, program) as running:
        wait_for_workers(running, 8, 200)

        shop_on(on_server).control.deny("127.0.0.1", lasting=True)

        wait_for_workers(running, 8, 403)
        assert "uWSGI runs no threads" not in running.log


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="local:// needs Unix sockets")
def test_workers_on_a_local_server_apply_a_change_of_a_command(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="multilimit-") as folder:
        uri = f"local://{folder}/limits"
        with served(uri, tmp_path, (*GUNICORN, "sync", "-w", "2")) as running:
            refused = deny_by_command(uri, tmp_path)
            assert refused.returncode == 1
            assert "no process uses the server" in " ".join(refused.stderr.split())
            wait_for_workers(running, 2, 200)
            until(Path(folder, "limits", "socket").exists)  # without limits, workers start the server for changes

            done = deny_by_command(uri, tmp_path)

            assert done.returncode == 0, done.stderr
            wait_for_workers(running, 2, 403)


def deny_by_command(uri: str, folder: Path) -> subprocess.CompletedProcess[str]:
    deny = (sys.executable, "-m", "flask", "--app", "watched", "multilimit", "deny", "127.0.0.1", "--lasting", "--yes")
    environment = {**os.environ, "STORAGE_URI": uri, "PYTHONPATH": path_with(folder)}
    return subprocess.run(deny, check=False, env=environment, capture_output=True, text=True)


def path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, sys.path)])


def served(uri: str, folder: Path, program: tuple[str, ...]) -> Program:
    (folder / "watched.py").write_text(APP)
    path = path_with(folder)
    if program[0] == "uwsgi":
        program = (*program, *(part for each in path.split(os.pathsep) for part in ("--pythonpath", each)))
    return Program(*program, environment={"STORAGE_URI": uri, "PYTHONPATH": path})


def wait_for_workers(running: Program, workers: int, status: int) -> None:
    """Wait until ``workers`` processes have answered with ``status``. Pauses let those that are starting import."""
    answered: set[str] = set()

    def all_answered() -> bool:
        replies = running.get_all(["/"] * 4 * workers)
        answered.update(reply.text for reply in replies if reply.status == status)
        return len(answered) >= workers

    until(all_answered, PATIENCE, every=0.2)
