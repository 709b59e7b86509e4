"""What a process that serves requests imports, and what it reads before the first."""

import subprocess
import sys
from pathlib import Path

import pytest

import flask_multilimit

OURS = """
from flask_multilimit import MultiLimit, rate_limiter

MultiLimit(app)
app.get("/")(rate_limiter(rules="10/minute")(lambda: "ok"))
"""

BRIDGE = """
from flask_multilimit.compat.flask_limiter import Limiter, get_remote_address

limiter = Limiter(get_remote_address, app=app, storage_uri="memory://", meta_limits=["1/hour"])
app.get("/")(limiter.limit("10/minute")(lambda: "ok"))
"""

PROGRAM = """
import sys
from flask import Flask
app = Flask("app")
{}
assert app.test_client().get("/").status_code == 200
print(*sys.modules)
"""


@pytest.mark.parametrize("declarations", [OURS, BRIDGE], ids=["ours", "bridge"])
def test_app_with_memory_storage_imports_neither_redis_nor_commands(declarations: str) -> None:
    program = PROGRAM.format(declarations)

    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    loaded = set(printed.split())

    assert "flask_multilimit.engine.storage.memory" in loaded
    assert not {"redis", "flask_multilimit.testing", "flask_multilimit.operate.cli"} & loaded


READS = """
import sys
read = []
sys.addaudithook(lambda event, arguments: event == "open" and read.append(str(arguments[0])))
from flask import Flask
from flask_multilimit import MultiLimit
app = Flask("app")
app.config["MULTILIMIT_STORAGE_URI"] = sys.argv[1]
MultiLimit(app)
print(*read, sep="\\n")
"""


@pytest.mark.parametrize("uri", ["redis://localhost:1", "redis+cluster://localhost:1", "local://"])
def test_scripts_are_read_before_requests(uri: str) -> None:
    """Later, there may be another version of the package, or no file can be opened: a request would fail."""
    package = Path(flask_multilimit.__file__).parent
    command = [sys.executable, "-c", READS, uri]
    read = subprocess.run(command, cwd=package.parent, check=True, capture_output=True, text=True).stdout.splitlines()

    assert {str(path) for path in package.rglob("*.lua")} <= set(read)
