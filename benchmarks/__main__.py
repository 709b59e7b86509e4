"""How much does a limit cost, compared with other libraries? Run ``python -m benchmarks`` in the project's folder.

Installs the other libraries in an environment of its own (``benchmarks/.venv``) unless they are there, starts its own
servers, and prints tables; a full run takes a quarter of an hour. To make the tables and plots of the documentation:

    python -m benchmarks --json benchmarks/figures.json --page
    python -m benchmarks --from benchmarks/figures.json --page    # again, without measuring
    python -m benchmarks --only leases --json benchmarks/figures.json    # only that part; the others stay in the file
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .environment import go_where_the_peers_are

PARTS = (
    *("server", "capacity", "leases", "refusals", "memory", "flask", "web"),
    *("threads", "startup", "growth", "footprint", "connections", "local", "observation"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds, and of the trust")
    parser.add_argument("--unpinned", action="store_true", help="let the system choose the cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures; those of other parts stay in it")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="read", help="read the figures, and measure nothing")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw plots")
    parser.add_argument("--page", action="store_true", help="write the tables and plots of the documentation")
    given = parser.parse_args()
    go_where_the_peers_are()
    from .run import run  # noqa: PLC0415 - its imports may have been installed only now

    run(given)


if __name__ == "__main__":
    main()
