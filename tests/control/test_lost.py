"""A server that restarts without its data gets the changes back from a process that still has them."""

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from control.conftest import Shop, make_last_answer_older, shop_on
from flask_multilimit.control import document, watch
from flask_multilimit.control.store import StoreInStorage, version_of, written_at
from flask_multilimit.engine import ConfigurationError, StorageError
from flask_multilimit.insight.changes import document_in_force
from flask_multilimit.serve.gate import gate_of
from flask_multilimit.signals import control_changed
from support.asking import heard
from support.doubles import raising
from support.servers import Binary, Server
from support.waiting import until

CLIENT = "198.51.100.7"
DOCUMENT = "rate_limit:{control}:document"


def serving(server: Server) -> Shop:
    """A worker that has served a request, and so follows changes."""
    shop = shop_on(server.tcp_url)
    shop.statuses(1, "/open")
    return shop


@pytest.fixture
def shop(own_server: Server) -> Shop:
    return serving(own_server)


def document_in(server: Server) -> Any:
    return server.client().hgetall(DOCUMENT)


def restart(server: Server, document: Any = None) -> None:
    """Restart the server without its data, or with a ``document`` of a snapshot."""
    server.kill()
    server.restart()
    if document:
        server.client().hset(DOCUMENT, mapping=document)


def stamp_in(shop: Shop) -> str:
    return shop.follower.known.stamp


def denied(shop: Shop) -> set[str]:
    return {str(each.who) for each in shop.control.entries()}


def ask_twice(shop: Shop) -> None:
    """The first answer shows the loss, and the second one what was put back."""
    for _ in range(2):
        shop.follower.ask()


def put_back(shop: Shop) -> list[Any]:
    return [each for each in shop.control.history() if each["what"] == "put back"]


def test_denial_is_put_back_after_a_restart_that_lost_it(
    shop: Shop, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shop.control.deny(CLIENT, lasting=True)
    shop.control.ban("203.0.113.1", for_="2h")
    before = shop.control.entries()

    restart(own_server)

    until(lambda: put_back(shop) != [])
    assert shop.control.entries() == before
    assert shop.denies()
    assert shop_on(own_server.tcp_url).denies()
    assert [each["entry"] for each in put_back(shop)] == ["changes that the server had lost: 2"]
    assert sum("put back changes that the server had lost: 2" in each for each in caplog.messages) == 1


def test_version_continues_after_a_loss_and_workers_see_the_next_change(own_server: Server) -> None:
    one, other = serving(own_server), serving(own_server)
    for n in range(3):
        one.control.deny(f"10.0.0.{n}", lasting=True)
    until(lambda: stamp_in(other) == stamp_in(one))

    restart(own_server)
    until(lambda: put_back(one) != [])
    one.control.deny(CLIENT, lasting=True)

    assert version_of(stamp_in(one)) == 5
    until(other.denies)
    assert len(put_back(one)) == 1


def test_change_made_right_after_the_loss_is_kept_if_it_and_the_lost_ones_are_too_many(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = serving(own_server)
    worker.control.deny("10.0.0.1", lasting=True)
    worker.control.deny("10.0.0.2", lasting=True)
    worker.follower.close()

    restart(own_server)
    shop_on(own_server.tcp_url).control.allow("10.0.0.3", lasting=True, author="first")
    monkeypatch.setattr(document, "MOST_ENTRIES", 2)
    ask_twice(worker)

    assert denied(worker) == {"10.0.0.3"}


def test_change_made_right_after_the_loss_is_not_said_to_be_put_back(own_server: Server) -> None:
    worker = serving(own_server)
    worker.control.undo(worker.control.deny("10.0.0.1", lasting=True).id)
    worker.follower.close()

    restart(own_server)
    shop_on(own_server.tcp_url).control.deny("10.0.0.2", lasting=True, author="first")
    ask_twice(worker)

    assert denied(worker) == {"10.0.0.2"}
    assert [each["entry"] for each in put_back(worker)] == ["the end of all earlier changes"]


def test_deleted_document_stays_deleted_and_is_logged(
    shop: Shop, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shop.control.deny(CLIENT, lasting=True)

    own_server.client().flushall()

    until(lambda: not shop.denies())
    deleted = "the control document was deleted: no change is in force any more (there were: 1)"
    assert f"Rate limits: worker {os.getpid()}: {deleted}" in caplog.text
    restart(own_server)
    shop.follower.ask()
    assert shop.control.entries() == ()


def test_undo_and_deletion_of_a_document_without_entries_are_not_logged_as_a_loss_of_changes(
    shop: Shop, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shop.control.undo(shop.control.deny(CLIENT, lasting=True).id)

    own_server.client().flushall()
    shop.follower.ask()

    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_expired_entry_is_not_put_back(shop: Shop, own_server: Server) -> None:
    shop.control.deny(CLIENT, for_=1)
    until(lambda: shop.control.entries() == ())

    restart(own_server)
    ask_twice(shop)

    assert shop.control.entries() == ()
    assert [each["entry"] for each in put_back(shop)] == ["the end of all earlier changes"]


def allow_reader(server: Server, *lacking: str) -> None:
    """Let a user read changes who lacks these rights: if none are given, who may neither write nor inspect."""
    client: Any = server.client()
    rights = lacking or ("-xadd", "-info")
    client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">secret", "~*", "+@all", *rights)


@pytest.fixture
def reader(own_server: Server) -> Shop:
    """A worker of such a user, which knows a denial."""
    other = serving(own_server)
    for who in ("10.0.0.1", "10.0.0.2", CLIENT):
        other.control.deny(who, lasting=True)
    other.follower.close()
    allow_reader(own_server)
    shop = shop_on(own_server.tcp_url.replace("://", "://reader:secret@", 1))
    assert shop.denies()
    return shop


def test_worker_without_permission_to_write_or_inspect_keeps_its_copy_in_force_and_logs_it(
    reader: Shop, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    restart(own_server)
    allow_reader(own_server)
    until(lambda: "xadd" in caplog.text)  # the worker may have asked first while the server was down

    assert reader.control.problem is not None
    assert reader.denies()


def test_worker_without_permission_to_read_the_history_puts_changes_back(reader: Shop, own_server: Server) -> None:
    operator = operator_after_a_loss(reader, own_server, "-xrevrange")
    operator.control.deny("10.0.0.9", lasting=True)

    reader.follower.ask()

    assert denied(operator) == {"10.0.0.1", "10.0.0.2", "10.0.0.9", CLIENT}


def operator_after_a_loss(reader: Shop, server: Server, *lacking: str) -> Shop:
    """Restart the server without its data, while the ``reader`` asks only when told to. Returns who may write."""
    reader.follower.close()
    restart(server)
    allow_reader(server, *lacking)
    return shop_on(server.tcp_url)


def test_worker_without_permission_to_write_applies_changes_made_after_the_loss(
    reader: Shop, own_server: Server
) -> None:
    operator = operator_after_a_loss(reader, own_server)

    made = operator.control.allow("198.51.100.0/24", for_="1h")
    reader.follower.ask()
    assert not reader.denies()
    assert made in document_in_force(gate_of(reader.app)).entries

    operator.control.undo(made.id)
    reader.follower.ask()
    assert reader.denies()  # by the denial that the server has lost


def test_changes_made_after_the_loss_stay_in_force_in_an_outage_without_permission_to_write(
    reader: Shop, own_server: Server
) -> None:
    operator = operator_after_a_loss(reader, own_server)
    operator.control.allow(CLIENT, lasting=True)
    operator.control.ban("10.0.0.9", for_=3600)

    with heard(reader.app, control_changed) as signals:
        ask_twice(reader)
        own_server.kill()

        def ban_has_ended() -> bool:
            reader.follower.ask()
            return len(signals) == 2

        make_last_answer_older(reader.follower, 3600)
        until(ban_has_ended)

    assert [len(told["entries"]) for _, told in signals] == [4, 3]
    assert not reader.denies()


def test_lifted_denial_stays_lifted_after_a_restart_from_a_snapshot(shop: Shop, own_server: Server) -> None:
    lifted = shop.control.deny(CLIENT, lasting=True)
    snapshot = document_in(own_server)
    shop.control.undo(lifted.id)
    shop.follower.close()  # a look at the server before the snapshot is there would take the snapshot for new

    restart(own_server, snapshot)
    ask_twice(shop)

    assert len(put_back(shop)) == 1
    assert not shop.denies()
    assert not shop_on(own_server.tcp_url).denies()


@pytest.fixture
def other_server(server_binaries: dict[str, Binary]) -> Iterator[Server]:
    """A server that may be a replica, or have one."""
    with Server(next(iter(server_binaries.values())), tcp=True) as server:
        yield server


def take_data(server: Server, other: Server) -> None:
    """Let a server be the replica of the ``other`` until it has its data."""
    client: Any = server.client()
    client.replicaof("127.0.0.1", other.port)
    until(lambda: document_in(server) == document_in(other))
    client.replicaof("NO", "ONE")


def test_lost_import_of_an_entry_that_was_undone_before_is_put_back(
    shop: Shop, own_server: Server, other_server: Server
) -> None:
    shop.control.deny(CLIENT, lasting=True)
    exported = shop.control.export_entries()
    shop.control.undo(shop.control.entries()[0].id)
    take_data(other_server, own_server)
    shop.control.import_entries(exported)
    shop.follower.close()

    take_data(own_server, other_server)
    shop_on(own_server.tcp_url).control.deny("10.0.0.1", lasting=True)
    ask_twice(shop)

    assert denied(shop) == {"10.0.0.1", CLIENT}


def test_nothing_is_put_back_beside_newer_changes_while_the_history_does_not_answer(
    shop: Shop, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.control.deny(CLIENT, lasting=True)
    shop.follower.close()
    restart(own_server)
    shop_on(own_server.tcp_url).control.deny("10.0.0.1", lasting=True)

    with monkeypatch.context() as patched:
        patched.setattr(StoreInStorage, "history", raising(StorageError("no answer", no_reply=True)))
        ask_twice(shop)
        assert denied(shop) == {"10.0.0.1"}
    ask_twice(shop)

    assert denied(shop) == {"10.0.0.1", CLIENT}


def test_import_after_the_loss_is_kept(shop: Shop, own_server: Server) -> None:
    shop.control.deny(CLIENT, lasting=True)
    exported = shop.control.export_entries()
    shop.control.undo(shop.control.entries()[0].id)
    shop.follower.close()

    restart(own_server)
    shop_on(own_server.tcp_url).control.import_entries(exported)
    ask_twice(shop)

    assert denied(shop) == {CLIENT}


def test_worker_that_cannot_read_the_newest_document_does_not_undo_it_after_a_restart(
    shop: Shop, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = serving(own_server)
    shop.control.deny("10.0.0.1", lasting=True)
    until(lambda: stamp_in(older) == stamp_in(shop))
    for each in (older, shop):
        each.follower.close()
    shop.control.deny(CLIENT, lasting=True)
    shop.follower.close()
    with monkeypatch.context() as patched:
        patched.setattr(watch, "document_from", raising(ConfigurationError("a newer version has written it")))
        older.follower.ask()

    restart(own_server)
    for each in (older, shop) * 2:
        each.follower.ask()

    assert denied(shop) == {"10.0.0.1", CLIENT}


def test_denial_is_put_back_when_a_full_server_evicts_it(shop: Shop, own_server: Server) -> None:
    shop.control.deny(CLIENT, lasting=True)
    client: Any = own_server.client()
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
    shop.follower.close()

    n = 0
    while client.exists(DOCUMENT):
        client.set(n, bytes(1000))
        n += 1
    client.config_set("maxmemory", 0)
    ask_twice(shop)

    assert shop.denies()
    assert shop_on(own_server.tcp_url).denies()


def test_denial_is_put_back_when_a_server_was_the_replica_of_one_without_it(
    shop: Shop, own_server: Server, other_server: Server
) -> None:
    shop.control.deny(CLIENT, lasting=True)
    shop.follower.close()
    client: Any = own_server.client()

    client.replicaof("127.0.0.1", other_server.port)
    until(lambda: not client.exists(DOCUMENT))
    shop.follower.ask()
    assert shop.denies()  # nothing can be written to a replica
    client.replicaof("NO", "ONE")
    ask_twice(shop)

    assert shop.denies()
    assert shop_on(own_server.tcp_url).denies()


def test_change_is_newer_than_the_one_before_although_the_clock_went_back(shop: Shop, own_server: Server) -> None:
    lifted = shop.control.deny(CLIENT, lasting=True)
    shop.follower.close()
    own_server.client().hset(DOCUMENT, "stamp", f"1-{written_at(stamp_in(shop)) + 300_000}-clock")
    snapshot = document_in(own_server)
    shop.follower.ask()
    shop.control.undo(lifted.id)
    shop.follower.ask()

    restart(own_server, snapshot)
    ask_twice(shop)

    assert not shop.denies()


def test_server_is_not_inspected_at_each_look_while_nothing_was_changed(shop: Shop, own_server: Server) -> None:
    with own_server.client() as client:

        def inspected() -> int:
            """How often a script has asked for INFO since the last time."""
            calls = client.info("commandstats").get("cmdstat_info", {"calls": 0})["calls"]
            client.config_resetstat()
            return int(calls)

        inspected()
        for _ in range(5):
            gate_of(shop.app).applier.look()
        assert inspected() == 0

        shop.control.deny(CLIENT, lasting=True)
        gate_of(shop.app).applier.look()
        assert inspected() > 0


def test_error_of_a_change_whose_reply_is_lost_says_that_it_may_have_been_made(
    shop: Shop, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.control.deny("203.0.113.1", lasting=True)  # the server knows the script from now on
    write = StoreInStorage.write

    def write_while_the_server_hangs(*arguments: Any, **options: Any) -> str | None:
        own_server.suspend()
        return write(*arguments, **options)

    monkeypatch.setattr(StoreInStorage, "write", write_while_the_server_hangs)
    with pytest.raises(StorageError, match="the change may have been made, or may still be: look at the history"):
        shop.control.deny(CLIENT, lasting=True)
    own_server.resume()

    until(lambda: len(shop.control.entries()) == 2)
