"""From the lines of a log to each verdict: held to the definitions of the algorithms, however untidy the log."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from flask import Flask

from engine.algorithms.oracles import DEFINED, Oracle, oracle_for
from flask_multilimit import IP, Decision, MultiLimit, Rule, rate_limiter
from flask_multilimit.simulation import LoggedRequest, read_logs, simulate

from .lines import written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SECOND = 1_000_000
UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 11, 22, tzinfo=UTC)
NIGHT_OF_TWO_HOURS = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
"""In Berlin it is half past two, and clocks are put back at three."""
OWN, SHARED = (20, 4), (30, 12)
"""Seconds and counts: of each address, and of all together."""
FORMAT = '$time_iso8601 $remote_addr "$request"'


class Came(NamedTuple):
    """A request, as it really came."""

    at: int
    """Seconds since the beginning."""
    address: str


def traffic(draw: random.Random, many: int = 300) -> list[Came]:
    """Whole seconds, so that many requests share one."""
    at, found = 0, []
    for _ in range(many):
        at += draw.choices([0, 1, 2, 7, 45], [6, 6, 3, 2, 1])[0]
        found.append(Came(at, f"203.0.113.{draw.randrange(4)}"))
    return found


def line(number: int, when: datetime, address: str) -> str:
    return f'{when:%Y-%m-%dT%H:%M:%S} {address} "GET /?{number} HTTP/1.1"'


def verdicts(path: Path, algorithm: str, *, zone: ZoneInfo | timezone = UTC, **cut: int) -> dict[int, bool]:
    """What the replay says of each request, by its number."""
    app = Flask("held to oracles")
    MultiLimit(app)
    rules = [Rule(*shape, algorithm=algorithm) for shape in (OWN, SHARED)]
    app.get("/")(rate_limiter(type=IP, rules=rules[0])(rate_limiter(rules=rules[1])(lambda: "")))
    logs = read_logs(path, format=FORMAT, zone=zone)
    logs.since, logs.until = cut.get("since"), cut.get("until")
    found = {}

    def tell(request: LoggedRequest, decision: Decision | None) -> None:
        assert decision is not None
        found[int(request.target.partition("?")[2])] = decision.allowed

    simulate(app, logs, on_decision=tell)
    return found


def oracle_verdicts(ordered: Iterable[tuple[int, Came]], algorithm: str, start: datetime = START) -> dict[int, bool]:
    """By the definitions: all or nothing, of the address and of all."""
    oracles: dict[str, Oracle] = {}
    origin, found = round(start.timestamp()), {}
    for number, (second, address) in ordered:
        now = (origin + second) * SECOND
        asked = [
            oracles.setdefault(name, oracle_for(algorithm, window * SECOND, count, None, None))
            for name, (window, count) in ((address, OWN), ("all", SHARED))
        ]
        found[number] = all(oracle.conforms(now, 1) for oracle in asked)
        if found[number]:
            for oracle in asked:
                oracle.charge(now, 1)
    assert {*found.values()} == {True, False}
    return found


def as_it_came(came: list[Came]) -> list[tuple[int, Came]]:
    return list(enumerate(came))


def tidy(path: Path, algorithm: str, draw: random.Random) -> None:
    came = traffic(draw)
    written(path, (line(n, START + timedelta(seconds=at), address) for n, (at, address) in enumerate(came)))

    assert verdicts(path, algorithm) == oracle_verdicts(as_it_came(came), algorithm)


def unsorted(path: Path, algorithm: str, draw: random.Random) -> None:
    """Lines are written when requests are over, up to a minute later. Those of one second keep the order of lines."""
    came = traffic(draw)
    as_logged = sorted(as_it_came(came), key=lambda each: each[1].at + draw.uniform(0, 59))
    written(path, (line(n, START + timedelta(seconds=at), address) for n, (at, address) in as_logged))

    in_order = sorted(as_logged, key=lambda each: each[1].at)
    assert verdicts(path, algorithm) == oracle_verdicts(in_order, algorithm)


def cut_out(path: Path, algorithm: str, draw: random.Random) -> None:
    """What came before ``since`` has charged nothing, and what came at ``until`` or later is not there."""
    came = traffic(draw)
    written(path, (line(n, START + timedelta(seconds=at), address) for n, (at, address) in enumerate(came)))
    first, last = came[100].at, came[250].at
    inside = [(n, each) for n, each in enumerate(came) if first <= each.at < last]

    origin = round(START.timestamp())
    found = verdicts(path, algorithm, since=(origin + first) * SECOND, until=(origin + last) * SECOND)

    assert found == oracle_verdicts(inside, algorithm)


def clocks_put_back(path: Path, algorithm: str, draw: random.Random) -> None:
    """Local times without an offset, in the night in which an hour comes twice."""
    came = traffic(draw, 1500)
    assert came[-1].at > 5400, "past the second three o'clock"
    local = [(NIGHT_OF_TWO_HOURS + timedelta(seconds=each.at)).astimezone(BERLIN) for each in came]
    written(path, (line(n, when, came[n].address) for n, when in enumerate(local)))

    found = verdicts(path, algorithm, zone=BERLIN)

    assert found == oracle_verdicts(as_it_came(came), algorithm, NIGHT_OF_TWO_HOURS)


@pytest.mark.parametrize("check", [tidy, unsorted, cut_out, clocks_put_back])
@pytest.mark.parametrize("algorithm", DEFINED)
def test_each_verdict_is_that_of_the_definition(
    algorithm: str, check: Callable[[Path, str, random.Random], None], tmp_path: Path
) -> None:
    check(tmp_path / "access.log", algorithm, random.Random(f"{algorithm} {check.__name__}"))
