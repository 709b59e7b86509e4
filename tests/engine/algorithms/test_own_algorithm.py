"""docs/how-to/own-algorithm.md, followed to the letter: its files work, and its algorithm keeps the contract."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import redis
from flask import Flask

from flask_multilimit import ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.engine import Rule
from flask_multilimit.engine.algorithms import ALGORITHMS
from flask_multilimit.engine.storage.redis import scripts
from flask_multilimit.engine.storage.redis.compiled import COMPILE_AFTER
from flask_multilimit.insight.doctor import examine
from flask_multilimit.serve.gate import gate_of
from support.asking import view
from support.bench import Bench, bare, hits
from support.folders import ROOT, TESTS
from support.pages import files_on
from support.servers import Server

MODULES = ["cooldown", "my_limits", "app", "test_cooldown"]


@pytest.fixture(autouse=True)
def _page_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in files_on("how-to/own-algorithm.md").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    scripts.script.cache_clear()
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with patch.dict(ALGORITHMS):  # the package itself may have an algorithm of this name
        importlib.import_module("my_limits")
        yield
    scripts.script.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def cooldown(time: float = 10, count: int = 3) -> Rule:
    return Rule(time, count, algorithm="cooldown")


def test_app_on_the_page_enforces_its_limit() -> None:
    app = importlib.import_module("app").app
    client = app.test_client()

    replies = [client.post("/reset-password") for _ in range(4)]

    assert [reply.status_code for reply in replies] == [200] * 3 + [429]
    assert replies[-1].headers["Retry-After"] == "600"


@pytest.mark.parametrize("missing", ["cooldown.lua", "the file of the module, as in a REPL"])
def test_missing_lua_is_an_error_at_start_up_if_the_storage_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "cooldown.lua":
        (tmp_path / missing).unlink()
    else:
        monkeypatch.delattr(ALGORITHMS["cooldown"], "__file__")

    def validate(storage: str) -> None:
        app = Flask("shop")
        app.get("/", endpoint="view")(rate_limiter(rules=cooldown())(view()))
        MultiLimit(app, storage=storage).validate(app)

    validate("memory://")
    with pytest.raises(ConfigurationError, match=r'limiter on ".*view.*": the Lua .*put cooldown.lua beside'):
        validate("redis://127.0.0.1:1")


def test_doctor_names_lua_that_the_server_cannot_run(app: Flask, tmp_path: Path, server: Server) -> None:
    lua = tmp_path / "cooldown.lua"
    lua.write_text(lua.read_text().replace("local last, used = in_force", "local last, used = in_farce"))
    MultiLimit(app, storage=server.url)

    (found,) = [each for each in examine(gate_of(app)) if each.name == "script"]

    assert (found.level, found.remedy) == ("wrong", "Correct cooldown.lua."), found


def test_example_test_of_the_page_passes(redis_client: redis.Redis) -> None:
    importlib.import_module("test_cooldown").test_the_twins_agree(redis_client)


@pytest.mark.slow
def test_tests_of_all_algorithms_include_an_own_algorithm_and_pass(tmp_path: Path) -> None:
    """`my_limits` is a plugin of pytest here: it registers the algorithm before tests look at the table."""
    folders = [str(TESTS / name) for name in ("contract", "engine", "operate/simulate")]
    of_all_at_once = ["test_scripts", "test_several_hash_slots"]
    command = [sys.executable, "-m", "pytest", "-p", "my_limits", "-p", "no:cacheprovider", "--ignore", __file__]
    run = subprocess.run(
        [*command, *folders, "-k", " or ".join(["cooldown", *of_all_at_once])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    assert int(passed[1]) > 300


def test_a_frequent_check_of_an_own_algorithm_is_not_compiled(redis_client: redis.Redis) -> None:
    redis_client.script_flush()
    limiter, plan = bare(redis_client), hits(cooldown(60, 3))
    allowed = [limiter.check(plan).allowed for _ in range(COMPILE_AFTER + 5)]
    assert allowed == [True] * 3 + [False] * (COMPILE_AFTER + 2)
    assert redis_client.info("memory")["number_of_cached_scripts"] == 1, "the generic one"


def test_cooldown_admits_as_described_on_the_page(bench: Bench) -> None:
    plan = hits(cooldown(10, 3))
    admitted = []
    for gap in (0, 6, 6, 6, 3.9, 0.1, 0):
        bench.clock.advance(gap)
        admitted.append(bench.limiter.check(plan).allowed)

    assert admitted == [True, True, True, False, False, True, True]
