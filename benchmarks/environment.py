"""Installs the other libraries. Uses only the standard library, because it runs before anything is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / ".venv"
PEERS = ("flask-limiter", "throttled-py", "pyrate-limiter")
MODULES = ("flask_multilimit", "flask_limiter", "throttled", "pyrate_limiter", "gunicorn", "matplotlib")
"""If these are installed, all are."""


def go_where_the_peers_are() -> None:
    """If libraries are missing here, install them in an environment of their own, and run there with the same
    arguments."""
    missing = [module for module in MODULES if not importlib.util.find_spec(module)]
    if not missing:
        return
    if Path(sys.prefix) == FOLDER:
        raise SystemExit(f"{FOLDER} lacks {', '.join(missing)} although all was installed: remove it, and try again")
    python = FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER, with_pip=True)
    print(f"{', '.join(missing)} not found: installing the peers in {FOLDER} ...", file=sys.stderr)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-e", f"{ROOT}[plot,servers,test]", *PEERS], check=True)
    os.execv(python, [str(python), "-m", "benchmarks", *sys.argv[1:]])
