"""How fast a log is replayed, and what memory that takes. Run ``python -m benchmarks.simulate``.

Lines in the format ``combined`` go through three rules, in one process. So many ``--clients`` are active at once, and
every ``--stay`` requests a new client replaces one of them. Each length of log is replayed by a process of its own,
whose CPU time and largest memory are printed; writing the log does not count.

    python -m benchmarks.simulate --lines 100000 1000000 10000000
    python -m benchmarks.simulate --clients 500 --stay 1000
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from flask import Flask

from flask_multilimit import IP, MultiLimit, rate_limiter
from flask_multilimit.simulation import read_logs, simulate

START = datetime(2026, 11, 22, tzinfo=timezone.utc)
PER_SECOND = 500
CHUNK = 10_000


def app() -> Flask:
    """Three rules, in one check."""
    app = Flask("benchmark")
    MultiLimit(app)

    @app.get("/items/<int:number>")
    @rate_limiter(rules="1000000/hour")
    @rate_limiter(type=IP, rules=["20 per 10 seconds", "100/minute"])
    def item(number: int) -> str:
        return f"{number}\n"

    return app


def lines(many: int, clients: int, stay: int) -> Iterator[str]:
    draw = random.Random(1)
    for number in range(many):
        client = number // stay + draw.randrange(clients)
        address = f"10.{client >> 16 & 255}.{client >> 8 & 255}.{client & 255}"
        when = START + timedelta(seconds=number // PER_SECOND)
        yield (
            f'{address} - - [{when:%d/%b/%Y:%H:%M:%S} +0000] "GET /items/{draw.randrange(10_000)}?page=2 HTTP/1.1" '
            f'200 612 "https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"\n'
        )


def write(path: Path, many: int, clients: int = 5000, stay: int = 50) -> None:
    with path.open("w") as file:
        file.writelines(lines(many, clients, stay))


def replay(path: Path) -> None:
    """Replay the log, and print a row."""
    before = time.process_time()
    report = simulate(app(), read_logs(path))
    seconds = time.process_time() - before
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)
    print(
        f"{report.requests:>12,} lines {report.clients:>10,} clients {report.refused:>10,} refused "
        f"{report.requests / seconds:>10,.0f} lines a second {megabytes:>8,.0f} MB at most",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, nargs="+", default=[100_000, 400_000], metavar="COUNT")
    parser.add_argument("--clients", type=int, default=5000, metavar="COUNT")
    parser.add_argument("--stay", type=int, default=50, metavar="REQUESTS")
    parser.add_argument("--replay", type=Path, metavar="LOG", help="replay this log here, and make none")
    given = parser.parse_args()
    if given.replay is not None:
        replay(given.replay)
        return
    for many in given.lines:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "access.log")
            write(log, many, given.clients, given.stay)
            subprocess.run([sys.executable, "-m", "benchmarks.simulate", "--replay", str(log)], check=True)


if __name__ == "__main__":
    main()
