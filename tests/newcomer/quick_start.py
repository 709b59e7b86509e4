"""Types the first command of README, and asks as its `curl` does, in an empty environment: ``quick_start.py``."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

from newcomer.walk import free_port, listens
from support.folders import ROOT

INSTALL_SECONDS = 300.0
PASSING = re.compile(r"^(?:Server|Date): .*\n", re.MULTILINE)


def main() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (pip install \. && .*)$", readme, re.MULTILINE)
    shown = re.search(r"^\$ curl -i http://127\.0\.0\.1:5000(/\w+)\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert shown is not None
    with tempfile.TemporaryDirectory(prefix="multilimit-") as folder:
        checkout, environment, port = Path(folder, "checkout"), Path(folder, "venv"), free_port()
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, files.split("\0")):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
        venv.create(environment, with_pip=True)
        answer = _answer(f"{command} --port {port}", checkout, environment, port, shown[1])
    if PASSING.sub("", answer) != PASSING.sub("", shown[2]):
        sys.exit(f"error: shown is\n{shown[2]}but this came\n{answer}")


def _answer(command: str, checkout: Path, environment: Path, port: int, path: str) -> str:
    """What the app answers that ``command`` serves, as `curl -i` prints it."""
    programs = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("FLASK_", "PYTHON"))}
    print(f"README.md: $ {command}", flush=True)  # noqa: T201
    shell = subprocess.Popen(
        command, shell=True, cwd=checkout, env={**inherited, "PATH": programs}, start_new_session=True
    )
    try:
        deadline = time.monotonic() + INSTALL_SECONDS
        while not listens(port):
            if shell.poll() is not None or time.monotonic() > deadline:
                sys.exit("error: the app is not served")
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
            return f"HTTP/1.1 {response.status} {response.reason}\n{response.headers}{response.read().decode()}"
    finally:
        os.killpg(shell.pid, 15)
        shell.wait()


if __name__ == "__main__":
    main()
