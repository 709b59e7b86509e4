"""Which workers have the newest changes in force, and which declare the same limits."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask

from control.conftest import Shop, on_server, shop_on
from control.test_watch import GUNICORN, path_with, served
from flask_multilimit import MultiLimit
from flask_multilimit.control import watch
from flask_multilimit.control.store import StoreInStorage
from flask_multilimit.insight.doctor import examine
from flask_multilimit.insight.health import known_worker_count, workers
from flask_multilimit.serve.gate import gate_of
from support.asking import ask
from support.forks import forked
from support.waiting import until

__all__ = ["on_server"]


def line(shop: Shop | Flask) -> str:
    return str(workers(gate_of(shop if isinstance(shop, Flask) else shop.app)))


def test_worker_is_listed_with_its_version_after_serving(on_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANNOUNCE_SECONDS", 3600)  # but it announces a change at once
    shop = shop_on(on_server)
    assert workers(gate_of(shop.app)) is None

    shop.statuses(1)
    until(lambda: line(shop) == "1 of 1 worker at version 0; limits as in this checkout: yes")
    shop.control.deny("10.0.0.1", lasting=True)

    until(lambda: line(shop) == "1 of 1 worker at version 1; limits as in this checkout: yes")
    assert [each.level for each in examine(gate_of(shop.app)) if each.name == "workers"] == ["ok"]


def test_forked_child_does_not_take_its_parent_off_the_list(on_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_on(on_server)
    shop.statuses(1)
    until(lambda: line(shop).startswith("1 of 1 worker"))

    def replaced() -> list[Any]:
        found = list[Any]()
        monkeypatch.setattr(StoreInStorage, "announce", lambda *given: found.append(given[-1]))
        shop.statuses(1)
        until(lambda: found)
        return found

    assert forked(replaced)()[0] is None


def test_worker_with_other_limits_is_counted_apart(on_server: str) -> None:
    first = shop_on(on_server)
    first.statuses(1)
    app = Flask("shop")
    app.config.update(
        MULTILIMIT_STORAGE_URI=on_server, MULTILIMIT_STORAGE_TIMEOUT=10, MULTILIMIT_DEFAULT_LIMITS="3/minute"
    )
    MultiLimit(app)
    app.add_url_rule("/", "show", lambda: "ok")
    assert ask(app, "/").status_code == 200

    told = "2 of 2 workers at version 0; limits as in this checkout: only 1"
    until(lambda: line(first) == line(app) == told)
    (finding,) = (each for each in examine(gate_of(app)) if each.name == "workers")
    assert "MULTILIMIT_KEY_PREFIX" in str(finding.remedy)  # it may be another app, which shares quotas by mistake


def test_worker_that_stopped_following_is_behind_and_says_so_itself(on_server: str) -> None:
    shop = shop_on(on_server)
    shop.statuses(1)
    until(lambda: workers(gate_of(shop.app)) is not None)
    gate_of(shop.app).applier.follower.close()

    other = shop_on(on_server)
    other.control.deny("10.0.0.1", lasting=True)
    gate_of(other.app).applier.follower.close()

    assert line(other).startswith("0 of 1 worker at version 1;")
    assert line(shop).startswith("0 of 1 worker at version 1;")


def test_override_does_not_change_the_declared_limits(on_server: str) -> None:
    shop = shop_on(on_server)
    shop.statuses(1)
    shop.control.override("show", rule="ip-60s", rules="9/minute", lasting=True)
    until(lambda: "version 1; limits as in this checkout: yes" in line(shop_on(on_server)))


@pytest.mark.parametrize(
    ("announced", "told"),
    [
        ({"host:1 3 aa": -21, "host:2 4 bb": 0, "host:3 5 cc": 3600}, "1 of 1 worker at version 4"),
        ({"host:1 3 aa": -2, "host:1 10 aa": 0, "host:2 10 aa": 0}, "2 of 2 workers at version 10"),
    ],
    ids=["ended, also if the clock was put back", "a snapshot has an older announcement"],
)
def test_each_worker_that_has_not_ended_is_listed_once(
    on_server: str, redis_client: redis.Redis, announced: dict[str, int], told: str
) -> None:
    client: Any = redis_client
    now = client.time()[0]
    client.zadd("rate_limit:{control}:workers", {name: now + seconds for name, seconds in announced.items()})

    assert line(shop_on(on_server)) == f"{told}; limits as in this checkout: only 0"


@pytest.mark.parametrize(
    ("member", "named"),
    [
        (b"", "''"),
        (b"x", "'x'"),
        (b"a b", "'a b'"),
        (b"x" * 10_000, "'xxx"),
        (b"\xff \n c", "'\ufffd"),
    ],
    ids=["empty", "one word", "two words", "long", "no version"],
)
def test_malformed_worker_in_storage_is_named_and_hides_no_other(
    on_server: str, redis_client: redis.Redis, member: bytes, named: str
) -> None:
    client: Any = redis_client
    shop = shop_on(on_server)
    other = f"host:2 0 {gate_of(shop.app).applier.declared_limits()}"
    client.zadd("rate_limit:{control}:workers", {member: client.time()[0], other: client.time()[0]})

    told = line(shop)
    assert told.startswith("1 of 1 worker at version 0; limits as in this checkout: yes; not readable: ")
    assert named in told
    (finding,) = (each for each in examine(gate_of(shop.app)) if each.name == "workers")
    assert finding.level == "warning"
    assert "not readable" in finding.text
    assert "{control}:workers" in str(finding.remedy)


def test_malformed_workers_alone_are_named_and_not_counted(on_server: str, redis_client: redis.Redis) -> None:
    client: Any = redis_client
    client.zadd("rate_limit:{control}:workers", {b"x": client.time()[0]})
    shop = shop_on(on_server)

    assert line(shop).endswith("; not readable: 'x'")
    assert known_worker_count(gate_of(shop.app)) != 0


@pytest.mark.slow
def test_gunicorn_workers_reach_the_version_of_a_change(on_server: str, tmp_path: Path) -> None:
    with served(on_server, tmp_path, (*GUNICORN, "sync", "-w", "3")) as running:
        until(lambda: len({reply.text for reply in running.get_all(["/"] * 24)}) == 3)
        shop_on(on_server).control.deny("192.0.2.1", lasting=True)

        def told() -> str:
            doctor = (sys.executable, "-m", "flask", "--app", "watched", "multilimit", "doctor")
            environment = {"STORAGE_URI": on_server, "PYTHONPATH": path_with(tmp_path)}
            ran = subprocess.run(doctor, check=False, env=environment, capture_output=True, text=True)
            return re.sub(r"\s+", " ", ran.stdout)

        until(lambda: "3 of 3 workers at version 1; limits as in this checkout: yes." in told())
