"""The page "Write your own storage", followed to the letter. (The contract suite runs over its class, too.)"""

import importlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flask_multilimit.dashboard import Dashboard
from flask_multilimit.engine import Limiter, StorageError, hits_for, storage_from_uri
from flask_multilimit.engine.storage import SCHEMES
from support.pages import files_on

FILES = files_on("how-to/own-storage.md")


@pytest.fixture(autouse=True)
def _page_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = dict(SCHEMES)
    yield
    SCHEMES.clear()
    SCHEMES.update(before)
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def module_of_page(name: str) -> Any:
    return importlib.import_module(name)


def keys_in(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return [key for (key,) in database.execute("SELECT key FROM quotas")]


def test_own_storage_on_the_page_has_fewer_than_60_lines() -> None:
    lines = [line for line in FILES["sqlite_storage.py"].splitlines() if line.strip()]
    assert len(lines) < 60


def test_app_on_the_page_enforces_its_limit_with_the_own_storage() -> None:
    client = module_of_page("app").app.test_client()
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_own_storage_can_be_opened_by_its_uri_scheme(tmp_path: Path) -> None:
    module_of_page("schemes")
    limiter = Limiter(storage_from_uri(f"sqlite://{tmp_path}/quotas.db"))
    assert [limiter.check(hits_for("1/minute", scope="x")).allowed for _ in range(2)] == [True, False]


def test_two_storages_share_the_file_and_expired_rows_are_deleted(tmp_path: Path) -> None:
    now = 1_000_000
    make = module_of_page("sqlite_storage").SqliteStorage
    one, other = (Limiter(make(tmp_path / "quotas.db", lambda: now)) for _ in range(2))
    hits = hits_for("1/minute", scope="x")

    assert [one.check(hits).allowed, other.check(hits).allowed] == [True, False]
    now += 120_000_000
    assert other.check(hits_for("1/minute", scope="y")).allowed
    assert keys_in(tmp_path / "quotas.db") == ["rate_limit:{y}:default::sliding_window:60000"]


@pytest.mark.parametrize("units", [0, 2, 9])
@pytest.mark.parametrize("is_reset", [False, True])
def test_row_of_a_settled_charge_is_deleted_when_it_no_longer_counts(
    tmp_path: Path, units: int, *, is_reset: bool
) -> None:
    now = 1_000_000
    limiter = Limiter(module_of_page("sqlite_storage").SqliteStorage(tmp_path / "quotas.db", lambda: now))
    hits = hits_for("5/minute", scope="x", cost=5)

    decision = limiter.check(hits)
    if is_reset:
        limiter.reset(hits)
    now += 30_000_000
    limiter.settle(decision, units)

    now += 31_000_000
    assert limiter.peek(hits).remaining == (5 - max(units - 5, 0))
    now += 60_000_000
    limiter.check(hits_for("1/minute", scope="y"))
    assert keys_in(tmp_path / "quotas.db") == ["rate_limit:{y}:default::sliding_window:60000"]


def test_locked_database_is_a_storage_error_without_a_reply(tmp_path: Path) -> None:
    waiting = module_of_page("sqlite_storage").SqliteStorage(tmp_path / "quotas.db")

    with closing(sqlite3.connect(tmp_path / "quotas.db")) as holding:
        holding.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError) as caught:
            waiting.check(hits_for("1/minute", scope="x"))

    assert caught.value.no_reply


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("keys", "a SqliteStorage cannot list its keys"),
        ("bans", "a SqliteStorage cannot list its keys"),
        ("ban 203.0.113.9 --for 1h --yes", "a SqliteStorage cannot keep changes made while the app runs"),
    ],
)
def test_command_says_that_an_own_storage_cannot_list_keys_or_keep_changes(command: str, told: str) -> None:
    run = module_of_page("app").app.test_cli_runner().invoke(args=["multilimit", *command.split()])
    assert run.exit_code == 1
    assert told in run.output


def test_dashboard_says_that_an_own_storage_cannot_list_bans() -> None:
    page = module_of_page("app")
    page.app.register_blueprint(Dashboard(page.app.extensions["multilimit"], authorize=lambda: "ada"))

    text = page.app.test_client().get("/multilimit/lists").text

    assert "a SqliteStorage cannot list its keys" in text
    assert "Changes are in the memory of each process" in text
