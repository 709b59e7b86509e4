"""flask multilimit set, unset, allow, deny, ban, entries, history: on an app whose workers run elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from operate.cli.conftest import Command

ADDRESS = {"REMOTE_ADDR": "203.0.113.7"}


def soon_answers(shop: FlaskClient, path: str, status: int) -> None:
    deadline = time.monotonic() + 20
    while shop.get(path, environ_base=ADDRESS).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_limit_is_changed_and_taken_back(on_server: Command, shop: FlaskClient) -> None:
    assert [shop.get("/update", environ_base=ADDRESS).status_code for _ in range(4)] == [200, 200, 200, 429]

    run = on_server(
        "set", "update", "ip-20s", "50 per 20 seconds", "--for", "2h", "--reason", "night", "--yes", "--json"
    )
    soon_answers(shop, "/update", 200)
    (entry,) = on_server("entries", "--json").json["entries"]
    assert (run.json["changed"], entry["id"], entry["reason"]) == (True, run.json["entry"]["id"], "night")
    assert "50 per 20s" in str(run.json["endpoints"][0]["after"])

    assert on_server("unset", entry["id"], "--yes").code == 0
    soon_answers(shop, "/update", 429)
    assert [each["what"] for each in on_server("history", "--json").json["changes"]] == ["undo", "set"]


def test_a_dry_run_shows_and_changes_nothing(on_server: Command) -> None:
    run = on_server("set", "update", "ip-20s", "50 per 20 seconds", "--lasting", "--dry-run")

    assert run.code == 0
    assert "    + ip-20s: 50 per 20s" in run.out
    assert on_server("entries").out.startswith("Nothing is changed")


def test_asks_before_it_changes_anything(on_server: Command) -> None:
    assert on_server("deny", "203.0.113.9", "--lasting", answer="n\n").code == 1
    assert on_server("entries", "--json").json["entries"] == []


def test_asks_twice_before_it_locks_everyone_out_and_scripts_force_it(on_server: Command) -> None:
    assert on_server("deny", "0.0.0.0/0", "--lasting", answer="y\nn\n").code == 1
    assert "--force" in on_server("deny", "0.0.0.0/0", "--lasting", "--yes").err
    assert on_server("entries", "--json").json["entries"] == []

    assert on_server("deny", "0.0.0.0/0", "--lasting", "--yes", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", "update", "ip-20s", "50/mnute", "--lasting", "--yes"], "did you mean 'minute'"),
        (["set", "update", "ip-20s", "50/minute", "--yes"], "--for 2h, or --lasting"),
        (["set", "nowhere", "ip-20s", "50/minute", "--lasting", "--yes"], "no endpoint has that"),
        (["ban", "203.0.113.9", "--lasting", "--yes"], "a ban ends"),
        (["deny", "nobody", "--lasting", "--yes"], "give a network"),
        (["unset", "12345678", "--yes"], "no entry has the id"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_stored(on_server: Command, arguments: list[str], message: str) -> None:
    run = on_server(*arguments)

    assert run.code in {1, 2}
    assert message in " ".join(run.err.split())
    assert on_server("entries", "--json").json["entries"] == []


def test_on_memory_it_says_that_it_would_reach_nobody(on_memory: Command) -> None:
    run = on_memory("ban", "203.0.113.9", "--for", "1h", "--yes")

    assert run.code == 1
    assert "is in each process by itself" in " ".join(run.err.split())
