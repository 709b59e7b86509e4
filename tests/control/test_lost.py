"""A server that restarts without its data gets the changes back from a process that still has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from control.conftest import Shop, shop_on, soon
from flask_multilimit.control.store import version_of, written_at
from flask_multilimit.serve.gate import gate_of
from support.servers import Binary, Server

CLIENT = "198.51.100.7"
DOCUMENT = "rate_limit:{control}:document"


@pytest.fixture
def lossy(server_binaries: dict[str, Binary]) -> Iterator[Server]:
    """A server that keeps nothing through a restart."""
    with Server(next(iter(server_binaries.values())), tcp=True) as server:
        yield server


def serving(server: Server) -> Shop:
    """A worker that has served a request, and so follows changes."""
    shop = shop_on(server.tcp_url)
    shop.statuses(1, "/open")
    return shop


def restart(server: Server) -> None:
    server.kill()
    server.restart()


def stamp_in(shop: Shop) -> str:
    return gate_of(shop.app).applier.follower.in_force.stamp


def knows(shop: Shop, stamp: str) -> None:
    soon(lambda: stamp_in(shop) == stamp)


def denied(shop: Shop) -> set[str]:
    return {str(each.who) for each in shop.control.entries()}


def put_back(shop: Shop) -> list[Any]:
    return [each for each in shop.control.history() if each["what"] == "put back"]


def test_denial_is_put_back_after_a_restart_that_lost_it(lossy: Server, caplog: pytest.LogCaptureFixture) -> None:
    shop = serving(lossy)
    shop.control.deny(CLIENT, lasting=True)
    shop.control.ban("203.0.113.1", for_="2h")
    before = shop.control.entries()

    restart(lossy)

    soon(lambda: put_back(shop) != [])
    assert shop.control.entries() == before
    assert shop.statuses(1, "/open") == [403]
    assert shop_on(lossy.tcp_url).statuses(1, "/open") == [403]
    assert [each["entry"] for each in put_back(shop)] == ["changes that the server had lost: 2"]
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert sum("put back changes that the server had lost: 2" in each for each in warnings) == 1


def test_version_continues_after_a_loss_and_workers_see_the_next_change(lossy: Server) -> None:
    one, other = serving(lossy), serving(lossy)
    for n in range(3):
        one.control.deny(f"10.0.0.{n}", lasting=True)
    knows(other, stamp_in(one))

    restart(lossy)
    soon(lambda: put_back(one) != [])
    one.control.deny(CLIENT, lasting=True)

    assert version_of(stamp_in(one)) == 5
    soon(lambda: other.statuses(1, "/open") == [403])
    assert len(put_back(one)) == 1


def test_newer_copy_of_two_workers_wins(lossy: Server) -> None:
    newer, older = serving(lossy), serving(lossy)
    newer.control.deny("10.0.0.1", lasting=True)
    knows(older, stamp_in(newer))
    gate_of(older.app).applier.follower.close()
    gate_of(newer.app).applier.follower.close()
    newer.control.deny("10.0.0.2", lasting=True)
    gate_of(newer.app).applier.follower.close()

    restart(lossy)
    followers = [gate_of(each.app).applier.follower for each in (older, newer)]
    for _ in range(3):
        for each in followers:
            each.ask()

    assert denied(older) == denied(newer) == {"10.0.0.1", "10.0.0.2"}
    assert stamp_in(older) == stamp_in(newer)


def test_change_made_right_after_the_loss_is_kept(lossy: Server) -> None:
    worker = serving(lossy)
    worker.control.deny("10.0.0.1", lasting=True)
    worker.control.deny("10.0.0.2", lasting=True)
    follower = gate_of(worker.app).applier.follower
    follower.close()

    restart(lossy)
    shop_on(lossy.tcp_url).control.allow("10.0.0.2", lasting=True, author="first")
    follower.ask()
    follower.ask()

    assert {str(each) for each in worker.control.entries()} == {"deny 10.0.0.1", "allow 10.0.0.2"}


def test_older_snapshot_is_replaced_by_the_copy_of_a_worker(lossy: Server) -> None:
    shop = serving(lossy)
    shop.control.deny("10.0.0.1", lasting=True)
    undone = shop.control.deny("10.0.0.2", lasting=True)
    client: Any = lossy.client()
    snapshot = client.hgetall(DOCUMENT)
    shop.control.undo(undone.id)

    lossy.kill()
    lossy.restart()
    client.hset(DOCUMENT, mapping=snapshot)

    soon(lambda: put_back(shop) != [])
    assert denied(shop) == {"10.0.0.1"}


def test_deleted_document_stays_deleted_and_is_logged(lossy: Server, caplog: pytest.LogCaptureFixture) -> None:
    shop = serving(lossy)
    shop.control.deny(CLIENT, lasting=True)

    lossy.client().flushall()

    soon(lambda: shop.statuses(1, "/open") == [200])
    assert "the control document was deleted: no change is in force any more (there were: 1)" in caplog.text
    restart(lossy)
    gate_of(shop.app).applier.follower.ask()
    assert shop.control.entries() == ()


def test_expired_entry_is_not_put_back(lossy: Server) -> None:
    shop = serving(lossy)
    shop.control.deny(CLIENT, for_=1)
    soon(lambda: shop.control.entries() == ())

    restart(lossy)
    gate_of(shop.app).applier.follower.ask()

    assert shop.control.history() == []


def test_worker_without_write_permission_keeps_its_copy_in_force_and_logs_it(
    lossy: Server, caplog: pytest.LogCaptureFixture
) -> None:
    other = serving(lossy)
    other.control.deny(CLIENT, lasting=True)
    gate_of(other.app).applier.follower.close()
    client: Any = lossy.client()
    rights = ["on", ">secret", "~*", "+@all", "-xadd"]
    client.execute_command("ACL", "SETUSER", "reader", *rights)
    shop = shop_on(lossy.tcp_url.replace("://", "://reader:secret@", 1))
    assert shop.statuses(1, "/open") == [403]

    restart(lossy)
    client = lossy.client()
    client.execute_command("ACL", "SETUSER", "reader", *rights)
    soon(lambda: "xadd" in caplog.text)  # the worker may have asked first while the server was down

    assert shop.control.problem is not None
    assert shop.statuses(1, "/open") == [403]


def test_lifted_denial_stays_lifted_after_a_restart_from_a_snapshot(lossy: Server) -> None:
    shop = serving(lossy)
    lifted = shop.control.deny(CLIENT, lasting=True)
    client: Any = lossy.client()
    snapshot = client.hgetall(DOCUMENT)
    shop.control.undo(lifted.id)
    follower = gate_of(shop.app).applier.follower
    follower.close()  # a look at the server before the snapshot is there would take the snapshot for new

    restart(lossy)
    client.hset(DOCUMENT, mapping=snapshot)
    follower.ask()
    follower.ask()

    assert len(put_back(shop)) == 1
    assert shop.statuses(1, "/open") == [200]
    assert shop_on(lossy.tcp_url).statuses(1, "/open") == [200]


def test_document_deleted_after_a_restart_stays_deleted(lossy: Server, caplog: pytest.LogCaptureFixture) -> None:
    shop = serving(lossy)
    shop.control.deny(CLIENT, lasting=True)
    client: Any = lossy.client()
    kept = client.hgetall(DOCUMENT)
    follower = gate_of(shop.app).applier.follower
    follower.close()
    restart(lossy)
    client.hset(DOCUMENT, mapping=kept)
    follower.ask()

    client.delete(DOCUMENT)
    follower.ask()

    assert "the control document was deleted" in caplog.text
    assert shop.control.entries() == ()


def test_denial_is_put_back_when_a_full_server_evicts_it(lossy: Server) -> None:
    shop = serving(lossy)
    shop.control.deny(CLIENT, lasting=True)
    client: Any = lossy.client()
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 500_000)
    follower = gate_of(shop.app).applier.follower
    follower.close()

    n = 0
    while client.exists(DOCUMENT):
        client.set(n, bytes(1000))
        n += 1
    client.config_set("maxmemory", 0)
    follower.ask()
    follower.ask()

    assert shop.statuses(1, "/open") == [403]
    assert shop_on(lossy.tcp_url).statuses(1, "/open") == [403]


def test_change_is_newer_than_the_one_before_although_the_clock_went_back(lossy: Server) -> None:
    shop = serving(lossy)
    lifted = shop.control.deny(CLIENT, lasting=True)
    follower = gate_of(shop.app).applier.follower
    follower.close()
    client: Any = lossy.client()
    client.hset(DOCUMENT, "stamp", f"1-{written_at(stamp_in(shop)) + 300_000}-clock")
    snapshot = client.hgetall(DOCUMENT)
    follower.ask()
    shop.control.undo(lifted.id)
    follower.ask()

    restart(lossy)
    client.hset(DOCUMENT, mapping=snapshot)
    follower.ask()
    follower.ask()

    assert shop.statuses(1, "/open") == [200]


def test_server_is_not_inspected_at_each_look_while_nothing_was_changed(lossy: Server) -> None:
    shop = serving(lossy)
    with lossy.client() as client:

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
