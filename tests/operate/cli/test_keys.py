"""flask multilimit keys: what lies in storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from operate.cli.conftest import Command
    from support.servers import Server


def test_each_key_with_its_use_and_its_time(on_server: Command, shop: FlaskClient) -> None:
    for _ in range(2):
        shop.get("/update", environ_base={"REMOTE_ADDR": "203.0.113.7"})

    lines = on_server("keys").out.splitlines()

    assert lines[0].split() == ["USED", "EXPIRES", "IN", "KEY"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["2 of 5000", "2 of 1000", "2 of 3", "2 of 10"]
    assert lines[3].endswith(" s        rate_limit:{update}:ip:203.0.113.7:sliding_window:20000")
    assert lines[-1] == "4 keys."


def test_the_use_is_known_for_every_algorithm(on_server: Command, shop: FlaskClient) -> None:
    shop.get("/api/search/x", headers={"X-User": "ann", "X-Api-Key": "abc"})

    keys = {key["key"]: key for key in on_server("keys", "--json").json["keys"]}

    (bucket,) = (key for name, key in keys.items() if ":token_bucket:" in name)
    assert bucket["used"] == 1
    assert bucket["rule"]["burst"] == 5
    by_request = keys["rate_limit:{api.search}:api_key:abc:sliding_window:3600000"]
    assert by_request["used"] == 1
    assert by_request["rule"] is None


def test_prefix_and_limit(on_server: Command, shop: FlaskClient, server: Server) -> None:
    shop.get("/update")
    server.client().set("rate*other", "not ours")

    some = on_server("keys", "--json", "--limit", "2").json
    other = on_server("keys", "--prefix", "rate*").out

    assert len(some["keys"]) == 2
    assert some["truncated"]
    assert other.splitlines()[1].split() == ["?", "never", "rate*other"]
    assert "1 without a TTL: these are not ours" in other


def test_an_empty_storage(on_server: Command) -> None:
    assert on_server("keys").out == "No key begins with rate_limit:\n"


def test_memory_of_other_processes_is_an_error(on_memory: Command) -> None:
    run = on_memory("keys")

    assert run.code == 1
    assert "memory:// keeps quotas in the memory of each worker process" in run.err
