"""What users see while storage fails: every fault of the test suite under load, through gunicorn with two workers.

    python benchmarks/outages.py                               # the table of the docs
    python benchmarks/outages.py --policies local allow deny raise --faults SIGSTOP blackhole
    python benchmarks/outages.py --app flask_limiter_app:app  # the same for Flask-Limiter, to be installed

"First" is the longest that any request took, "then" what nine of ten took at most, in milliseconds, and both count the
client's and gunicorn's share; "admitted" is of the limit, of which a third had been used before the fault; "back" is
from the fault's end until the storage decides again, in seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
SUITE = HERE.parent / "tests" / "faults"
sys.path[:0] = [str(SUITE.parent)]

from faults.serving import LIMIT, Seen, serving  # noqa: E402
from faults.world import FAULTS  # noqa: E402
from servers import find_binaries  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", default="app:app")
    parser.add_argument("--policies", nargs="+", default=["local"])
    parser.add_argument("--faults", nargs="+", default=[fault.name for fault in FAULTS])
    parser.add_argument("--seconds", type=float, default=2.0, help="that each fault lasts")
    given = parser.parse_args()
    folder = SUITE if given.app == "app:app" else HERE
    binary = next(iter(find_binaries().values()))
    print(f"{binary.name}\n\n| fault | policy | statuses | first | then | admitted | back |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for policy in given.policies:
        with serving(binary, app=given.app, folder=folder, policy=policy) as service:
            for fault in FAULTS:
                if fault.name in given.faults:
                    print(row(fault.name, policy, service.suffer(fault, given.seconds)), flush=True)


def row(fault: str, policy: str, seen: Seen) -> str:
    slowest = seen.slowest
    statuses = ", ".join(map(str, sorted(seen.statuses)))
    first, then = (round(1000 * seconds) for seconds in (slowest[0], slowest[len(slowest) // 10]))
    return f"| {fault} | {policy} | {statuses} | {first} | {then} | {seen.admitted / LIMIT:.2f} | {seen.recovery:.1f} |"


if __name__ == "__main__":
    main()
