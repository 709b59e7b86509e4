"""Lines of access logs, and files of them."""

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

START = datetime(2026, 11, 22, tzinfo=timezone.utc)
START_AT = int(START.timestamp()) * 1_000_000
SECOND = 1_000_000


def line(
    second: float,
    target: str = "/",
    *,
    address: str = "203.0.113.7",
    method: str = "GET",
    status: int = 200,
    user: str = "-",
) -> str:
    when = START + timedelta(seconds=second)
    return f'{address} - {user} [{when:%d/%b/%Y:%H:%M:%S} +0000] "{method} {target} HTTP/1.1" {status} 12 "-" "agent"'


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines))
    return path
