"""What the installed package does on every system, with nothing else installed: run in an empty environment.

It counts in memory, its command line answers, and ``local://`` either works or is an error that says what to do.
"""

import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

from flask import Flask

from flask_multilimit import IP, ConfigurationError, MultiLimit, rate_limiter
from flask_multilimit.engine import StorageError

ADVICE = {
    "win32": "this system has no flock: use redis:// or memory://",
}
NOT_INSTALLED = "its server is not installed: pip install"
"""What ``local://`` says where the extra is missing."""


def main() -> None:
    app = Flask("shop")
    multilimit = MultiLimit(app)
    app.get("/")(rate_limiter(type=IP, rules="3/minute")(lambda: "ok"))
    multilimit.validate(app)
    asked = [app.test_client().get("/").status_code for _ in range(4)]
    _expect(asked == [200, 200, 200, 429], f"asked four times, the app answered {asked}")

    quickstart = Path(__file__).parents[2] / "examples" / "quickstart.py"
    command = [sys.executable, "-m", "flask", "--app", str(quickstart), "multilimit", "limits"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    _expect(listed.returncode == 0 and "ip-20s" in listed.stdout, f"limits: {listed.stdout}{listed.stderr}")

    said = _of_local()
    _expect(ADVICE.get(sys.platform, NOT_INSTALLED) in said, f"local:// said {said!r}")
    _expect(version("flask-multilimit") != "0.0.0", "the package has no version")
    _expect(bool(requires("flask-multilimit")), "the package names no dependencies")


def _of_local() -> str:
    try:
        MultiLimit(Flask("local"), storage="local://")
    except (ConfigurationError, StorageError) as error:
        return str(error)
    return "nothing"


def _expect(so: bool, otherwise: str) -> None:
    if not so:
        sys.exit(f"error: {otherwise}")


if __name__ == "__main__":
    main()
