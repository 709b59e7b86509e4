"""How long does this checkout take to import, beside another one and beside what both import from elsewhere?

    python benchmarks/start_up.py ../old-checkout [--rounds 20]

Whole processes, in random order: one that imports all modules of other packages and builds one model of pydantic, and
one for each checkout. The package's own share is the CPU time that an import takes more than the first. The output
shows the medians over the rounds, the least of each, and the ratio of the shares (after / before). Write the compiled
files first, or let the first round do so: ``PYTHONDONTWRITEBYTECODE`` is ignored.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
IMPORT = "import flask_multilimit"
LIST = f"""import json, sys
{IMPORT}
print(json.dumps([name for name in sys.modules if not name.startswith(("flask_multilimit", "__"))]))"""
ELSEWHERE = """import importlib
for name in {names}:
    try: importlib.import_module(name)
    except ImportError: pass
import pydantic
class Model(pydantic.BaseModel): field: int"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    taken = measured(given.before.resolve(), given.rounds)
    shares = {}
    for who in ("before", "after"):
        more = [one - other for one, other in zip(taken[who], taken["elsewhere"], strict=True)]
        shares[who] = statistics.median(more), min(taken[who]) - min(taken["elsewhere"])
        print(f"{who:8} {shares[who][0]:6.1f} ms of CPU by the median, {shares[who][1]:6.1f} by the least")
    medians, least = (shares["after"][each] / shares["before"][each] for each in (0, 1))
    print(f"ratio    {medians:6.3f} by the medians, {least:.3f} by the least")


def measured(before: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of CPU time by program, without those of a first round."""
    found = subprocess.run([sys.executable, "-c", LIST], env=environment(HERE), capture_output=True, check=True)
    elsewhere = ELSEWHERE.format(names=json.loads(found.stdout))
    programs = {"elsewhere": (elsewhere, before), "before": (IMPORT, before), "after": (IMPORT, HERE)}
    taken: dict[str, list[float]] = {who: [] for who in programs}
    for number in range(rounds + 1):
        for who in random.sample(list(programs), len(programs)):
            milliseconds = cpu_of(*programs[who])
            if number:
                taken[who].append(milliseconds)
    return taken


def cpu_of(program: str, checkout: Path) -> float:
    process = subprocess.Popen([sys.executable, "-c", program], env=environment(checkout))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{checkout}: the import failed")
    return 1000 * (used.ru_utime + used.ru_stime)


def environment(checkout: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}


if __name__ == "__main__":
    main()
