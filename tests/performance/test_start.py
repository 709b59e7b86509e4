"""Which modules a process that serves requests imports."""

import subprocess
import sys

import pytest

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
