"""What a process that serves requests loads to begin with."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest

SERVES = """
import sys
from flask import Flask
from flask_multilimit import MultiLimit, rate_limiter

app = Flask("app")
MultiLimit(app)
app.get("/")(rate_limiter(rules="10/minute")(lambda: "ok"))
assert app.test_client().get("/").status_code == 200
ours = [name.partition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")]
print("redis" in sys.modules, *sorted(ours))
"""


BRIDGE = """
import sys
from flask import Flask
from flask_multilimit.compat.flask_limiter import Limiter, get_remote_address

app = Flask("app")
limiter = Limiter(get_remote_address, app=app, storage_uri="memory://", meta_limits=["1/hour"])
app.get("/")(limiter.limit("10/minute")(lambda: "ok"))
assert app.test_client().get("/").status_code == 200
ours = [name.partition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")]
print("redis" in sys.modules, *sorted(ours))
"""


STARTS_WITH_A_SERVER = """
import sys
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("app")
MultiLimit(app, storage="redis://localhost", default_limits="100/minute")
app.get("/")(rate_limiter(type=IP, rules="10/minute")(lambda: "ok"))
ours = [name.partition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")]
print("redis" in sys.modules, *sorted(ours))
"""


class Loaded(NamedTuple):
    """What a program has imported."""

    redis: bool
    """Whether the client of Redis."""
    paths: set[str]
    """Modules of ours, below the package."""

    @property
    def names(self) -> set[str]:
        return {path.rpartition(".")[2] for path in self.paths}


def loaded_by(program: str) -> Loaded:
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    redis, *paths = told.split()
    return Loaded(redis == "True", set(paths))


@pytest.fixture(scope="module", params=[SERVES, BRIDGE], ids=["ours", "bridge"])
def loaded(request: pytest.FixtureRequest) -> Loaded:
    return loaded_by(request.param)


COMMANDS_AND_TESTS = {"cli", "commands", "doctor", "listing", "console", "migrate", "testing"}
LIMITS_AS_DATA = {"callables", "data", "mistakes", "schema", "validation", "wording"}
CHANGES = {"controls", "preview", "trial"}
"""What changes limits while the app runs: its models take long to load."""


def test_what_few_processes_need_is_not_loaded(loaded: Loaded) -> None:
    assert {"extension", "limiter", "memory"} <= loaded.names
    assert not {*COMMANDS_AND_TESTS, *LIMITS_AS_DATA, *CHANGES, "leases"} & loaded.names


def test_nor_with_a_server() -> None:
    loaded = loaded_by(STARTS_WITH_A_SERVER)

    assert {"extension", "limiter", "wire"} <= loaded.names
    assert not {*COMMANDS_AND_TESTS, *LIMITS_AS_DATA, *CHANGES, "leases", "cluster", "local"} & loaded.names
    assert "engine.bans" not in loaded.paths


def test_an_app_in_memory_starts_without_the_client_of_redis(loaded: Loaded) -> None:
    assert not loaded.redis


def test_what_is_imported_when_asked_for_is_there_by_its_name() -> None:
    program = (
        "from flask_multilimit import ClusterStorage, LeasingStorage, RedisStorage; import flask_multilimit as m; "
    )
    program += "print([name for name in m.__all__ if not hasattr(m, name)], hasattr(m, 'Nothing'))"

    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    assert told.split() == ["[]", "False"]
