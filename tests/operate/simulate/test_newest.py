"""The newest recorded requests: complete for all processes since an instant, in no more bytes than asked for."""

import os
import random
from pathlib import Path

import pytest

from flask_multilimit.operate.simulate.formats import format_of
from flask_multilimit.operate.simulate.logged import LoggedRequest, Recorded
from flask_multilimit.operate.simulate.reading import Logs
from flask_multilimit.operate.simulate.recorded import NAME, line_of, newest_files

from .lines import SECOND, START_AT


@pytest.fixture
def into(tmp_path: Path) -> Path:
    made = tmp_path / "copies"
    made.mkdir()
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recorded"
    made.mkdir()
    return made


def recorded_line(second: float) -> str:
    recorded = Recorded("search", {"ip": "a"}, True)
    return line_of(LoggedRequest(START_AT + round(second * SECOND), "GET", "", status=200, recorded=recorded)) + "\n"


LINE = len(recorded_line(0))


def write(folder: Path, name: str, seconds: list[float]) -> Path:
    """As a recorder does: the time of the file is that of its last request."""
    path = folder / f"requests-{name}.jsonl"
    path.write_text("".join(map(recorded_line, seconds)))
    last = (START_AT // SECOND + seconds[-1]) * 10**9
    os.utime(path, ns=(round(last), round(last)))
    return path


def newest_requests(folder: Path, into: Path, most_bytes: int) -> Logs:
    paths, since = newest_files([folder], into, most_bytes)
    return Logs(paths, format_of(NAME), since=since)


def seconds_of(folder: Path, into: Path, most_bytes: int) -> list[float]:
    return [(request.at - START_AT) / SECOND for request in newest_requests(folder, into, most_bytes)]


def test_everything_is_read_when_it_fits_exactly(folder: Path, into: Path) -> None:
    write(folder, "1-1", [1, 3])
    write(folder, "1-2", [2, 4])
    assert seconds_of(folder, into, 4 * LINE) == [1, 2, 3, 4]


def test_nothing_is_read_when_nothing_was_recorded(folder: Path, into: Path) -> None:
    assert seconds_of(folder, into, 1000) == []


@pytest.mark.parametrize("seed", range(20))
def test_requests_of_all_processes_are_complete_since_an_instant(folder: Path, into: Path, seed: int) -> None:
    """For random shares of the traffic and files of any length."""
    rng = random.Random(seed)
    shares, everything = (
        [rng.random() for _ in range(rng.randrange(1, 5))],
        sorted(rng.random() * 900 for _ in range(2000)),
    )
    parts: list[list[float]] = [[] for _ in shares]
    for second in everything:
        rng.choices(parts, shares)[0].append(second)
    for process, part in enumerate(parts):
        for number in range(0, len(part), 150):
            write(folder, f"{number:04}-{process}", part[number : number + 150])
    most = rng.randrange(LINE * 20, LINE * 2500)

    found = seconds_of(folder, into, most)

    whole = [round(second, 6) for second in everything]
    assert found == whole[len(whole) - len(found) :]
    assert len(found) >= min(most / LINE / len(parts) / 4 - 1, len(whole))
    assert sum(path.stat().st_size for path in into.iterdir()) <= most


def test_malformed_lines_are_left_out(folder: Path, into: Path) -> None:
    path = write(folder, "1-1", [1, 2])
    path.write_bytes(b"\xff\x00{}\n" * 50 + path.read_bytes())
    assert seconds_of(folder, into, 2 * LINE + 20) == [1, 2]
    assert seconds_of(folder, into, 10_000) == [1, 2]
