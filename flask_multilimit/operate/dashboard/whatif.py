"""What counts would have done to recorded traffic, or to a log that somebody uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from werkzeug.datastructures import FileStorage

from ...declare.subjects import LimitType, type_name_of
from ...engine import ConfigurationError, Rule
from ...serve.gate import gate_in_force
from ..simulate.logs.logged import MICROSECONDS
from ..simulate.logs.reading import LogFile, Logs
from ..simulate.logs.recorded import folders_of
from ..simulate.newest import newest_requests
from ..simulate.page.peaks import Slider, peaks_data
from ..simulate.suggest import Peaks, Suggestion, Traffic, declaration, suggest_for, traffic_of
from ..simulate.whatif import arrivals_of, share_from

MOST_UPLOADED = 5_000_000
"""The most bytes of an uploaded log."""
MOST_UNPACKED = 10_000_000
"""The most bytes that are read of it; a packed log may contain more."""
MOST_RECORDED = 8_000_000
"""The most bytes that are read of what was recorded."""
TYPES = tuple(dict.fromkeys(each.value for each in LimitType))

TOO_LARGE = "This is more than 5 MB. Upload a part of the log, or pack it: gzip access.log"

ASKED, IN_FORCE, FEW_REQUESTS, FEW_CLIENTS = "asked", "in force", "few requests", "few clients"
REMARKS = {
    ASKED: "asked for",
    IN_FORCE: "in force now",
    FEW_REQUESTS: "the smallest that refuses at most {share} of the requests",
    FEW_CLIENTS: "the smallest that refuses at most {share} of the clients",
}
"""Why a count is in the table."""


@dataclass(frozen=True)
class Counted:
    """One count, and what it would have refused."""

    count: int
    requests: int
    clients: int
    """The clients that would have been refused."""
    why: list[str]
    """``asked`` for; ``in force`` at this endpoint; the smallest that refuses ``few requests``, or ``few clients``."""


@dataclass(frozen=True)
class Client:
    """One of the busiest clients."""

    name: str
    most: int
    """Requests in any window."""
    requests: int


@dataclass(frozen=True)
class LeftOut:
    """Lines that were not read, or not exactly."""

    why: str
    lines: int


@dataclass(frozen=True)
class Answer:
    """What the traffic says about counts."""

    source: str
    """``recorded``, or the name of a file."""
    requests: int
    clients: int
    first: float
    """Seconds since 1970, as ``last``."""
    last: float
    peaks: Peaks
    """The most requests of a client in any window, over all clients."""
    counts: list[Counted]
    """From the smallest."""
    distribution: list[list[int]]
    """``[most requests in any window, clients with so many]``, from the smallest."""
    busiest: list[Client]
    declaration: str
    """The decorator to paste."""
    chosen: int
    """The count that was asked for, or else the smallest that refuses at most the given share of requests."""
    left_out: list[LeftOut]

    def slider(self) -> Slider:
        """The same data for ``slider.js``."""
        return {
            "window": f"{self.peaks.window:g}",
            "requests": self.requests,
            "clients": self.clients,
            "chosen": self.chosen,
            "peaks": self.distribution,
            "curve": [[each.count, each.requests] for each in self.counts],
            "names": [[each.name, each.most, each.requests] for each in self.busiest],
        }


@dataclass(frozen=True, slots=True)
class Question:
    """Which requests to look at, and how."""

    endpoint: str = ""
    """Empty for the whole app."""
    type: str = LimitType.IP.value
    window: str = "60"
    """Seconds."""
    refuse_at_most: str = "0.1%"
    """The share of requests, and of clients, that may be refused."""
    count: str = ""
    """Empty: the smallest that refuses at most the given share."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Question:
        """The question of a form. Fields that it does not send have their defaults."""
        return cls(**{name: given[name].strip() for name in cls.__slots__ if given.get(name, "").strip()})

    def rule(self) -> Rule:
        """The rule with the count, or with 1. Raises :class:`ConfigurationError`."""
        try:
            window = int(self.window) if self.window.isdecimal() else float(self.window)
            count = int(self.count or 1)
        except ValueError:
            raise ConfigurationError("give the window in seconds, and the count as a number") from None
        return Rule(window, count)


def records() -> bool:
    """Whether this process records requests."""
    return bool(folders_of(gate_in_force().app))


def of_recorded(question: Question) -> Answer | None:
    """The answer for recorded requests; ``None`` if nothing records. Raises :class:`ConfigurationError`."""
    folders = folders_of(gate_in_force().app)
    if not folders:
        return None
    with TemporaryDirectory(prefix="multilimit-") as folder:
        return _answer(question, newest_requests(folders, Path(folder), MOST_RECORDED), "recorded")


def of_upload(question: Question, log: FileStorage) -> Answer:
    """The answer for a log in any format that is recognised, packed or not. Raises :class:`ConfigurationError`."""
    with TemporaryDirectory(prefix="multilimit-") as folder:
        path = Path(folder) / "log"
        log.save(path)
        return _answer(question, Logs([path], most_bytes=MOST_UNPACKED), log.filename or "")


def _answer(question: Question, logs: Logs, source: str) -> Answer:
    if question.type not in TYPES:
        raise ConfigurationError(f"type={question.type!r}: give one of {', '.join(TYPES)}")
    share, rule = share_from(question.refuse_at_most), question.rule()
    arrivals = arrivals_of(gate_in_force().app, logs, type=question.type, endpoint=question.endpoint or None)
    traffic = traffic_of(arrivals, [rule.time])
    found = suggest_for(traffic, type=question.type, share=share)
    chosen = rule.count if question.count else found.for_requests[0].rules[0].count
    marked = _marked(question, rule, found)
    shown = peaks_data(traffic, chosen, *marked)
    return Answer(
        source=source,
        requests=found.requests,
        clients=found.subjects,
        first=found.first / MICROSECONDS,
        last=found.last / MICROSECONDS,
        peaks=found.peaks[0],
        counts=_counts(shown, traffic, marked),
        distribution=shown["peaks"],
        busiest=[Client(str(name), int(most), int(requests)) for name, most, requests in shown["names"]],
        declaration=declaration(question.type, [Rule(rule.time, chosen)]),
        left_out=[each for file in logs.files for each in _left_out(file)],
        chosen=chosen,
    )


def _marked(question: Question, rule: Rule, found: Suggestion) -> dict[int, list[str]]:
    """The counts of interest, and why."""
    marked: dict[int, list[str]] = {}
    for count, why in (
        *([(rule.count, ASKED)] if question.count else []),
        *((count, IN_FORCE) for count in _in_force(question, rule)),
        (found.for_requests[0].rules[0].count, FEW_REQUESTS),
        (found.for_subjects[0].rules[0].count, FEW_CLIENTS),
    ):
        marked.setdefault(count, []).append(why)
    return marked


def _in_force(question: Question, asked: Rule) -> set[int]:
    """The counts of rules of this type and window that apply to the endpoint now."""
    plans = gate_in_force().plans
    methods = plans.methods_of(question.endpoint) if question.endpoint else ()
    return {
        rule.count
        for method in methods
        for limiter in plans.of_endpoint(question.endpoint, method).limiters
        for _, rule in limiter.rules
        if type_name_of(limiter.declaration.type, limiter.declaration.name) == question.type
        and rule.window_ms == asked.window_ms
        and not rule.holds_slots
    }


def _counts(shown: Slider, traffic: Traffic, marked: Mapping[int, list[str]]) -> list[Counted]:
    return [
        Counted(count, requests, traffic.refused_subjects((count,)), marked.get(count, []))
        for count, requests in shown["curve"]
    ]


def _left_out(file: LogFile) -> Iterator[LeftOut]:
    for lines, why in (
        (file.malformed, "not in the format"),
        (file.not_requests, "without a request"),
        (file.too_long, "too long"),
        (file.late, "out of order by more than a minute"),
    ):
        if lines:
            yield LeftOut(why, lines)
    if file.broken:
        yield LeftOut(f"not read to its end: {file.broken}", 0)
