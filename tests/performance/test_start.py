"""What a process that serves requests loads to begin with."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVES = """
import sys
from flask import Flask
from flask_multilimit import MultiLimit, rate_limiter

app = Flask("app")
MultiLimit(app)
app.get("/")(rate_limiter(rules="10/minute")(lambda: "ok"))
assert app.test_client().get("/").status_code == 200
ours = [name.rpartition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")]
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
ours = [name.rpartition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")]
print("redis" in sys.modules, *sorted(ours))
"""


STARTS_WITH_A_SERVER = """
import sys
from flask import Flask
from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask("app")
MultiLimit(app, storage="redis://localhost", default_limits="100/minute")
app.get("/")(rate_limiter(type=IP, rules="10/minute")(lambda: "ok"))
ours = [name.rpartition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")]
print("redis" in sys.modules, *sorted(ours))
"""


def loaded_by(program: str) -> list[str]:
    """Whether the client of Redis was imported, and the names of our modules that were."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()


@pytest.fixture(scope="module", params=[SERVES, BRIDGE], ids=["ours", "bridge"])
def loaded(request: pytest.FixtureRequest) -> list[str]:
    return loaded_by(request.param)


COMMANDS_AND_TESTS = {"cli", "commands", "doctor", "listing", "console", "migrate", "testing"}
LIMITS_AS_DATA = {"data", "schema"}
CHANGES = {"controls", "preview", "trial"}
"""What changes limits while the app runs: its models take long to load."""


def test_what_few_processes_need_is_not_loaded(loaded: list[str]) -> None:
    assert {"extension", "limiter", "memory"} <= set(loaded)
    assert not COMMANDS_AND_TESTS & set(loaded)
    assert not {*LIMITS_AS_DATA, *CHANGES, "leases"} & set(loaded)


def test_nor_with_a_server() -> None:
    loaded = loaded_by(STARTS_WITH_A_SERVER)

    assert {"extension", "limiter", "wire"} <= set(loaded)
    assert not {*COMMANDS_AND_TESTS, *LIMITS_AS_DATA, *CHANGES, "leases", "cluster", "local"} & set(loaded)


def test_an_app_in_memory_starts_without_the_client_of_redis(loaded: list[str]) -> None:
    assert loaded[0] == "False"


def test_what_is_imported_when_asked_for_is_there_by_its_name() -> None:
    program = (
        "from flask_multilimit import ClusterStorage, LeasingStorage, RedisStorage; import flask_multilimit as m; "
    )
    program += "print([name for name in m.__all__ if not hasattr(m, name)], hasattr(m, 'Nothing'))"

    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    assert told.split() == ["[]", "False"]
