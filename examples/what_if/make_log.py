"""Makes the access log of the tutorial, six hours of a shop that nobody visited: ``python make_log.py access.log.gz``.

The traffic is invented, and the same each time: people who look for something and read what they find, an office that
shares one address, somebody's script that reads the whole catalogue, and somebody who tries passwords.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

START = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
HOURS = 6
PEOPLE = 800
COLLEAGUES = 40


class Request(NamedTuple):
    second: float
    address: str
    target: str
    method: str = "GET"
    status: int = 200


def visit(draw: random.Random, address: str) -> Iterator[Request]:
    """Somebody logs in perhaps, then searches as quickly as they type, and reads."""
    second = draw.uniform(0, HOURS * 3600 - 900)
    if draw.random() < 0.3:
        for status in [401] * draw.choice([0, 0, 0, 1, 2]) + [200]:
            yield Request(second, address, "/login", "POST", status)
            second += draw.uniform(4, 20)
    for _ in range(draw.randint(1, 4)):
        for _ in range(draw.choice([1, 1, 2, 3, 8, 14])):  # the shop searches while people type
            yield Request(second, address, f"/search?q={draw.randrange(500)}")
            second += draw.uniform(0.15, 1.2)
        for _ in range(draw.randint(0, 5)):
            second += draw.uniform(3, 40)
            yield Request(second, address, f"/items/{draw.randrange(1, 5000)}")


def traffic(draw: random.Random) -> Iterator[Request]:
    for number in range(PEOPLE):
        yield from visit(draw, f"198.51.{100 + number // 250}.{1 + number % 250}")
    for _ in range(COLLEAGUES):
        yield from visit(draw, "192.0.2.10")
    for number in range(3000):  # a script reads the catalogue
        yield Request(5400 + number / 8 + draw.uniform(0, 0.05), "203.0.113.66", f"/items/{number + 1}")
    for number in range(900):  # a script tries passwords
        yield Request(9000 + 2 * number + draw.random(), "203.0.113.99", "/login", "POST", 401)


def line(request: Request) -> str:
    when = START + timedelta(seconds=request.second)
    return (
        f'{request.address} - - [{when:%d/%b/%Y:%H:%M:%S} +0000] "{request.method} {request.target} HTTP/1.1" '
        f'{request.status} 64 "-" "made by make_log.py"\n'
    )


def log() -> str:
    """In the format that nginx and Apache call ``combined``."""
    return "".join(line(request) for request in sorted(traffic(random.Random(1))))


def main() -> None:
    Path(sys.argv[1]).write_bytes(gzip.compress(log().encode(), mtime=0))


if __name__ == "__main__":
    main()
