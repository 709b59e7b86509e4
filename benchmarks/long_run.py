"""An app behind gunicorn under load for a while, disturbed now and then: what grows, and what is left behind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from soak.soak import MEGABYTE, Soaked, soak  # noqa: E402
from support.servers import find_binaries  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long; ten minutes if left out")
    show(soak(next(iter(find_binaries().values())), parser.parse_args().seconds))


def show(seen: Soaked) -> None:
    """Print the results. The two halves are those of the time after the warm-up."""
    requests = sum(seen.statuses.values()) + seen.abandoned
    print(f"{requests} requests, {seen.abandoned} abandoned; {dict(seen.statuses)}; {dict(seen.disturbances)}")
    for what in ("process", "server"):
        first, second = (half / MEGABYTE for half in seen.halves(what))
        print(f"memory of {what}: {first:.1f} MB, then {second:.1f} MB; {seen.growth(what):+.1f} bytes a request")
    for what in ("files", "threads", "connections"):
        first, second = seen.halves(what)
        print(f"{what}: {first:.0f}, then {second:.0f}; at most {seen.most(what)}")
    print(f"keys left two windows later: {seen.keys_left}")


if __name__ == "__main__":
    main()
