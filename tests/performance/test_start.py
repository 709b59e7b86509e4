"""What a process that serves requests loads to begin with."""

from __future__ import annotations

import subprocess
import sys

SERVES = """
import sys
from flask import Flask
from flask_multilimit import MultiLimit, rate_limiter

app = Flask("app")
MultiLimit(app)
app.get("/")(rate_limiter(rules="10/minute")(lambda: "ok"))
assert app.test_client().get("/").status_code == 200
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("flask_multilimit.")))
"""


def test_what_only_the_command_line_and_tests_need_is_not_loaded() -> None:
    loaded = subprocess.run([sys.executable, "-c", SERVES], check=True, capture_output=True, text=True).stdout.split()

    assert {"extension", "limiter", "memory"} <= set(loaded)
    assert not {"cli", "doctor", "listing", "console", "standing", "testing"} & set(loaded)
