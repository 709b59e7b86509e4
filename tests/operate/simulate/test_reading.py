"""Files of every kind and state: read in order of time, and lines that cannot be read are counted."""

import gzip
import io
import json
import random
import sys
from datetime import timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from flask_multilimit import ConfigurationError
from flask_multilimit.operate.simulate import reading
from flask_multilimit.operate.simulate.reading import Logs, read_logs

from .lines import SECOND, START_AT, line, written

UTC = timezone.utc
DAY = 86_400


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def seconds(logs: Logs) -> list[int]:
    return [(request.at - START_AT) // SECOND for request in logs]


def test_log_can_be_read_twice_and_counts_its_lines(log: Path) -> None:
    logs = read_logs(written(log, [line(1), line(2)]))
    assert seconds(logs) == seconds(logs) == [1, 2]
    (file,) = logs.files
    assert (file.format, file.lines, file.requests, file.malformed) == ("combined", 2, 2, 0)


def test_several_files_are_merged_by_time(tmp_path: Path) -> None:
    even = written(tmp_path / "a.log", [line(second) for second in range(0, 100, 2)])
    odd = written(tmp_path / "b.log", [line(second) for second in range(1, 100, 2)])
    assert seconds(read_logs(even, odd)) == list(range(100))


@pytest.mark.parametrize("shuffled_within", [1, 59])
def test_lines_out_of_order_are_put_in_order(log: Path, shuffled_within: int) -> None:
    rng = random.Random(7)
    order = sorted(range(20_000), key=lambda second: second + rng.uniform(0, shuffled_within))

    logs = read_logs(written(log, [line(second) for second in order]))

    assert seconds(logs) == list(range(20_000))
    assert logs.files[0].late == 0


def test_lines_at_one_instant_keep_their_order(log: Path) -> None:
    logs = read_logs(written(log, [line(second // 50, f"/{second}") for second in range(10_000)]))
    assert [request.target for request in logs] == [f"/{second}" for second in range(10_000)]


def test_late_line_is_counted_and_moved_to_the_earliest_possible_time(log: Path) -> None:
    logs = read_logs(written(log, [line(1000), line(10), line(1001)]))
    assert seconds(logs) == [1000 - reading.HOLD, 1000, 1001]
    assert logs.files[0].late == 1


@pytest.mark.parametrize("format_", ['%h %l %u %t "%r" %>s %b', None])
def test_times_without_an_offset_use_the_given_zone(log: Path, format_: str | None) -> None:
    local = '203.0.113.7 - - [22/Nov/2026:01:00:01] "GET / HTTP/1.1" 200 5'
    assert seconds(read_logs(written(log, [local]), format=format_, zone=ZoneInfo("Europe/Berlin"))) == [1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_of_every_kind_are_read(log: Path, end: str, last: bool) -> None:
    log.write_bytes((end.join(map(line, range(3))) + (end if last else "")).encode())
    logs = read_logs(log)
    assert seconds(logs) == [0, 1, 2]
    assert (logs.files[0].lines, logs.files[0].malformed) == (3, 0)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = "".join(f"{line(second)}\n" for second in range(1000)).encode()
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(text[:40_000]) + gzip.compress(text[40_000:]))
    zstd = tmp_path / "b.log.zst"
    zstd.write_bytes(zstandard.compress(text[:40_000]) + zstandard.compress(text[40_000:]))

    read = list[int]()
    logs = read_logs(packed, zstd)
    logs.on_read = read.append

    assert seconds(logs) == [second for each in range(1000) for second in (each, each)]
    assert sum(read) == packed.stat().st_size + zstd.stat().st_size


def test_damaged_compressed_file_is_read_as_far_as_possible(tmp_path: Path) -> None:
    rng = random.Random(7)
    whole = gzip.compress("\n".join(line(second, f"/{rng.random()}") for second in range(40_000)).encode())
    short, damaged = tmp_path / "short.log.gz", tmp_path / "damaged.log.gz"
    short.write_bytes(whole[: len(whole) // 2])
    damaged.write_bytes(b"\x1f\x8b" + b"no more gzip than this" * 100)

    logs = read_logs(short, damaged)

    assert 10_000 < len(list(logs)) < 30_000
    assert all(file.broken for file in logs.files)
    assert logs.files[0].malformed <= 1
    assert logs.files[1].requests == 0


def test_truncated_zstd_file_is_told_and_read_as_far_as_possible(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    rng = random.Random(7)
    whole = zstandard.compress("\n".join(line(second, f"/{rng.random()}") for second in range(40_000)).encode())
    short = tmp_path / "short.log.zst"
    short.write_bytes(whole[: len(whole) // 2])

    logs = read_logs(short)

    assert 10_000 < len(list(logs)) < 30_000
    assert "Compressed file ended before" in logs.files[0].broken


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO("\n".join(map(line, range(3))).encode())

    monkeypatch.setattr(sys, "stdin", Input)
    logs = read_logs("-")

    assert seconds(logs) == [0, 1, 2]


def test_standard_input_that_was_closed_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^-: "):
        seconds(read_logs("-"))


def test_malformed_lines_are_counted_by_kind(log: Path) -> None:
    handshake = '203.0.113.7 - - [22/Nov/2026:00:00:03 +0000] "\\x16\\x03\\x01" 400 0 "-" "-"'
    no_time = line(1).replace("22/Nov", "99/Nov")
    logs = read_logs(written(log, [line(1), "", "# a comment", "nonsense", no_time, handshake, line(2)]))

    assert seconds(logs) == [1, 2]
    (file,) = logs.files
    assert (file.lines, file.requests, file.malformed, file.not_requests) == (7, 2, 2, 1)


@pytest.mark.parametrize("at", [-1, 10**17, 10**30])
def test_impossible_instant_is_a_malformed_line(log: Path, at: int) -> None:
    recorded = [f'{{"at":{each},"m":"GET","e":"index","s":200}}' for each in (START_AT, at)]
    logs = read_logs(written(log, recorded))
    assert seconds(logs) == [0]
    assert logs.files[0].malformed == 1


@pytest.mark.parametrize("nanoseconds", [-1_000_000, 10**18])
def test_impossible_duration_is_not_known(log: Path, nanoseconds: int) -> None:
    one = {"StartUTC": "2026-11-22T00:00:00Z", "RequestMethod": "GET", "RequestPath": "/", "Duration": nanoseconds}
    written(log, map(json.dumps, [one, {**one, "Duration": 2_000_000}]))
    assert [request.took for request in read_logs(log)] == [None, 2000]


@pytest.mark.parametrize("size", [70_000, 1_000_000, 3_000_000])
def test_too_long_line_is_counted_and_left_out(log: Path, size: int) -> None:
    logs = read_logs(written(log, [line(1), line(2, "/" + "a" * size), line(3)]))
    assert seconds(logs) == [1, 3]
    (file,) = logs.files
    assert (file.lines, file.too_long, file.malformed) == (3, 1, 0)


def test_file_without_line_ends_is_one_too_long_line(log: Path) -> None:
    log.write_bytes(b"\xff" * 2_000_000)
    logs = read_logs(log)
    assert not list(logs)
    assert (logs.files[0].lines, logs.files[0].too_long, logs.files[0].format) == (1, 1, None)


def test_invalid_utf_8_is_kept_and_byte_order_mark_is_dropped(log: Path) -> None:
    log.write_bytes("\ufeff".encode() + b"\n".join(line(1, f"/{e}").encode("latin-1") for e in ("\xe9", "\xe8")))
    first, second = read_logs(log)
    assert first.address == second.address
    assert first.target.encode("utf-8", "surrogateescape") == b"/\xe9" != second.target.encode(errors="surrogateescape")


def test_file_of_unknown_format_is_reported_and_others_are_read(tmp_path: Path) -> None:
    good = written(tmp_path / "good.log", [line(1)])
    bad = tmp_path / "bad.log"
    bad.write_bytes(random.Random(7).randbytes(100_000))

    logs = read_logs(bad, good)

    assert seconds(logs) == [1]
    assert (logs.files[0].format, logs.files[0].requests) == (None, 0)
    assert logs.files[0].malformed == logs.files[0].lines > 10


def test_missing_file_is_an_error_and_an_empty_one_is_not(log: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        list(read_logs(log))
    log.touch()
    assert not list(read_logs(log))


def test_number_of_held_lines_is_bounded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_HELD", 1000)
    monkeypatch.setattr(reading, "LEAST_HELD", 10)
    logs = read_logs(written(log, [line(second // 1000) for second in range(20_000)]))

    stream = iter(logs)
    next(stream)

    assert logs.files[0].lines < 3000
    assert len(list(stream)) == 19_999


def test_requests_are_in_order_when_more_come_in_a_minute_than_are_held(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_HELD", 10)
    monkeypatch.setattr(reading, "LEAST_HELD", 10)
    logs = read_logs(written(log, [*(line(second) for second in range(50)), line(5), line(49)]))

    instants = [request.at for request in logs]

    assert instants == sorted(instants)
    assert len(instants) == 52
    assert logs.files[0].late == 1


@pytest.mark.parametrize("lines", [[line(1) + "\n"], ["x" * 1000]], ids=["requests", "one line"])
def test_unpacked_bytes_are_read_up_to_a_maximum(tmp_path: Path, lines: list[str]) -> None:
    """Also if the compressed file is small."""
    packed = tmp_path / "access.log.gz"
    packed.write_bytes(40 * gzip.compress("".join(lines * (20_000_000 // len(lines[0]))).encode()))

    read = [0]
    logs = Logs([packed], most_bytes=10 * len(lines[0]), on_read=lambda size: read.append(read.pop() + size))

    assert len(list(logs)) == (10 if lines[0].startswith("2") else 0)
    assert logs.files[0].lines <= 10
    assert logs.files[0].broken == f"only its first {10 * len(lines[0]):,} bytes are read"
    assert 0 < read[0] < packed.stat().st_size


def test_requests_that_were_read_before_a_stop_are_passed_on(log: Path) -> None:
    logs = Logs([written(log, map(line, range(9)))])
    logs.on_read = lambda _: setattr(logs, "complete", False)
    assert seconds(logs) == [0]


def test_stop_ends_a_log_without_wanted_requests(log: Path) -> None:
    logs = Logs([written(log, map(line, range(9)))], since=2 * START_AT)
    logs.on_read = lambda _: setattr(logs, "complete", False)
    assert (seconds(logs), logs.files[0].outside) == ([], 1)


def test_file_of_exactly_the_maximum_size_is_read_whole(log: Path) -> None:
    logs = Logs([written(log, [line(1), line(2)])], most_bytes=2 * (len(line(1)) + 1))
    assert seconds(logs) == [1, 2]
    assert not logs.files[0].broken
