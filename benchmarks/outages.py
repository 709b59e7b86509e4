"""What users see while the storage fails: every fault of the test suite under load, through gunicorn with two workers.

    python benchmarks/outages.py --write                         # the tables of docs/explanation/outages-measured.md
    python benchmarks/outages.py --settings local --faults SIGSTOP --seconds 40

Besides the four policies, there are three settings of Flask-Limiter (flask_limiter_app.py), which must be installed.
The script prints one line after each fault, and at the end the four tables of TABLES.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
SUITE = HERE.parent / "tests" / "faults"
PAGE = HERE.parent / "docs" / "explanation" / "outages-measured.md"
BEGIN, END = "% written by benchmarks/outages.py: begin\n", "% written by benchmarks/outages.py: end\n"
sys.path[:0] = [str(SUITE.parent)]

from faults.serving import FAULT_SECONDS, LIMIT, Seen, serving  # noqa: E402
from faults.world import FAULTS  # noqa: E402
from support.servers import find_binaries  # noqa: E402

OURS = ("local", "allow", "deny", "raise")
THEIRS = {"FL, default": "raise", "FL swallow_errors": "allow", "FL in-memory fallback": "local"}
"""The settings of Flask-Limiter, and their names in flask_limiter_app.py."""
GOOD = {200, 429}

Results = dict[str, dict[str, Seen]]
"""The results by fault and setting."""


def errors(seen: Seen) -> str:
    wrong = [each.status for each in seen.all if each.status not in GOOD]
    return ", ".join(f"{wrong.count(status)} x {status}" for status in sorted(set(wrong))) or "-"


def longest(seen: Seen) -> str:
    return f"{1000 * seen.slowest[0]:.0f}"


def admitted(seen: Seen) -> str:
    return f"{seen.admitted / LIMIT:.2f}"


def back(seen: Seen) -> str:
    return f"{seen.recovery:.1f}" if seen.recovered else f"> {seen.recovery:.0f}"


TABLES: dict[str, Callable[[Seen], str]] = {
    "Errors that users saw (neither 200 nor 429)": errors,
    "The longest that any request took, in milliseconds": longest,
    "Admitted, as a multiple of the limit": admitted,
    "From the end of the fault until the storage decides every request again, in seconds": back,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=[*OURS, *THEIRS], choices=[*OURS, *THEIRS], metavar="NAME")
    parser.add_argument("--faults", nargs="+", default=[fault.name for fault in FAULTS], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=FAULT_SECONDS, help="how long each fault lasts")
    parser.add_argument("--write", action="store_true", help="put the tables into the documentation")
    given = parser.parse_args()
    tables = "\n".join(tables_of(measure(given.settings, given.faults, given.seconds), given.settings))
    print(tables)
    if given.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}")


def measure(settings: list[str], faults: list[str], seconds: float) -> Results:
    binary = next(iter(find_binaries().values()))
    theirs = f", Flask-Limiter {version('flask-limiter')}" if set(settings) & {*THEIRS} else ""
    print(f"{binary.name}{theirs}; each fault lasts {seconds:g} s", flush=True)
    results: Results = {fault: {} for fault in faults}
    for setting in settings:
        app, folder = ("app:app", SUITE) if setting in OURS else ("flask_limiter_app:app", HERE)
        with serving(binary, app=app, folder=folder, policy=THEIRS.get(setting, setting)) as service:
            for fault in FAULTS:
                if fault.name in faults:
                    seen = results[fault.name][setting] = service.suffer(fault, seconds)
                    print(f"{setting}: {fault.name}: {' | '.join(tell(seen) for tell in TABLES.values())}", flush=True)
    return results


def tables_of(results: Results, settings: list[str]) -> list[str]:
    lines = []
    for title, tell in TABLES.items():
        lines += [f"{title}:", "", f"| fault | {' | '.join(settings)} |", "| --- |" + " --- |" * len(settings)]
        lines += [
            f"| {fault} | {' | '.join(tell(by_setting[setting]) for setting in settings)} |"
            for fault, by_setting in results.items()
        ]
        lines.append("")
    return lines


if __name__ == "__main__":
    main()
