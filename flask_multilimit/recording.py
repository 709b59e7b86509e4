"""Records requests, to replay them through other limits later: ``flask multilimit simulate FOLDER/*``.

A line holds the time of a request, its method, endpoint and status, how long it took from the check until its response
was sent, who was counted, whether limits admitted it, and what it really cost where a limiter settles. It holds no
path, address or name: subjects are hashed with a key. Requests only append to a queue; a thread writes the lines.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import NoneType

from flask import Flask, Response, request
from werkzeug.exceptions import BadRequest, MethodNotAllowed, NotFound

from .declare.addresses import network_of
from .declare.subjects import EVERYONE, LimitType, Subject, address_of
from .engine import ConfigurationError, Decision
from .engine.errors import brief, check_bool, check_path
from .engine.forks import notify_child
from .engine.text import SafeLogger
from .engine.threads import Beat
from .operate.simulate.logged import LoggedRequest, Recorded
from .operate.simulate.recorded import Recording, Segments, line_of, recordings_of
from .plan.sources import UNMATCHED_SCOPE
from .serve.access import Action
from .serve.gate import gate_of
from .serve.slots import holder_of_request, release_when_requests_end
from .serve.state import Record, Records
from .signals import limits_checked, request_denied

PAUSE = 0.5
"""Seconds between two writes, and between two looks whether requests are wanted."""
MOST_WAITING = 100_000
"""The most requests that wait to be written; further ones are dropped, and counted."""
SHORT_WAIT, LONG_WAIT = 2 * PAUSE, 55.0
"""Seconds for which a line waits for the real cost and the end of a request: if the response is complete, and if it is
a stream or a file. Readers put lines in order that are up to 60 s late."""
DAY = 86_400_000_000
"""Microseconds."""

__all__ = ["Recorder"]


@dataclass(slots=True)
class _PendingLine:
    """A request that waits for its line, with what its thread knows about it."""

    at: int
    method: str
    endpoint: str | None
    status: int
    subjects: Mapping[str, str]
    admitted: bool | None
    began: int | None
    """When limits were checked: nanoseconds of the monotonic clock; ``None`` if none was."""
    record: Record | None
    """Shows what the request was settled at; ``None`` if nothing settles it."""
    listed: Action | None
    """The list that the client is on, so that no limit was checked."""
    waits_until: float
    """When the line is written, whatever is missing: seconds of the monotonic clock."""
    ended: int | None = None
    """When the response was complete, in the same unit as ``began``; ``None`` while it is being sent."""

    def end(self) -> None:
        self.ended = time.monotonic_ns()

    def took(self) -> int | None:
        """Microseconds from the check to the end of the response, or until now."""
        if self.began is None:
            return None
        return ((self.ended or time.monotonic_ns()) - self.began) // 1000

    def costs(self) -> dict[str, int | None]:
        """The units that it was settled at, by the name of the limiter; ``None``: not yet."""
        return {} if self.record is None else _settled(self.record)

    def is_complete(self) -> bool:
        """Whether nothing is missing, or waiting for it has ended."""
        if time.monotonic() >= self.waits_until:
            return True
        return self.ended is not None and None not in self.costs().values()


class Recorder:
    """Records the requests of ``app`` from now on: ``Recorder(app, "/var/log/shop")``, after ``MultiLimit(app)``.

    :param folder: created if it is missing; all processes of the app share it.
    :param key: hashes the subjects; by default the app's ``SECRET_KEY``. All processes need the same one.
    :param max_bytes: the most that all files take together; the oldest are deleted.
    :param on_demand: record only while ``flask multilimit record`` asks for it.
    """

    def __init__(
        self,
        app: Flask,
        folder: str | Path,
        *,
        key: str | bytes | None = None,
        max_bytes: int = 256_000_000,
        on_demand: bool = False,
    ) -> None:
        gate = gate_of(app)
        secret = app.secret_key if key is None else key
        if not secret:
            raise ConfigurationError("Recorder: subjects are hashed with a key; give key=..., or the app a SECRET_KEY")
        if not isinstance(secret, (str, bytes)):
            raise ConfigurationError(f"Recorder: key={type(secret).__name__}: give str or bytes")
        if type(max_bytes) is not int or max_bytes < 100_000:
            raise ConfigurationError(f"Recorder: max_bytes={brief(max_bytes)}: give a whole number, at least 100,000")
        check_path("Recorder: folder", folder)
        check_bool("Recorder: on_demand", on_demand)
        self.folder: Path = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.dropped: int = 0
        """Requests of this process that were not written, because too many waited or the disk failed."""
        self._recording = Recording(self.folder, self._hashed, on_demand)
        self._record_until = self._next_look = 0.0
        recordings_of(app).append(self._recording)
        self._gate = gate
        self._key = blake2b(secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret).digest()
        self._max_bytes = max_bytes
        self._attribute = f"flask_multilimit_recorded_{id(app)}"
        self._denied = f"flask_multilimit_denied_{id(app)}"
        self._failing = self._closed = False
        self._beat = Beat(self._turn, name="multilimit-recorder", logger=app.logger, last=self.close)
        self._begin()
        limits_checked.connect(self._remember_check, app)
        request_denied.connect(self._remember_denial, app)
        release_when_requests_end(app)
        app.after_request(self._record_response)
        notify_child(self)

    def flush(self) -> None:
        """Write the requests that wait, except those whose real cost will be known soon."""
        with self._writing:
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            complete, incomplete = list[_PendingLine](), list[_PendingLine]()
            for each in waiting:
                (complete if self._closed or each.is_complete() else incomplete).append(each)
            self._waiting.extendleft(reversed(incomplete))
            lines = [self._line_of(each) for each in complete]
            if lines:
                self._write("".join(lines).encode())

    def close(self) -> None:
        """Write the requests that wait, and record no more."""
        limits_checked.disconnect(self._remember_check, self._gate.app)
        request_denied.disconnect(self._remember_denial, self._gate.app)
        self._closed = True
        self._beat.close()
        self.flush()

    # In the thread of a request

    def _remember_check(self, app: Flask, decision: Decision, endpoint: str, subjects: Mapping[str, str]) -> None:  # noqa: ARG002
        with suppress(RuntimeError):  # outside of a request
            if endpoint == (request.endpoint or UNMATCHED_SCOPE):
                request.__dict__.setdefault(self._attribute, (decision, subjects, time.monotonic_ns()))

    def _remember_denial(self, app: Flask, **_: object) -> None:  # noqa: ARG002
        with suppress(RuntimeError):  # outside of a request
            request.__dict__[self._denied] = True

    def _record_response(self, response: Response) -> Response:
        is_limited = isinstance(request.routing_exception, (NoneType, NotFound, MethodNotAllowed))  # no redirect
        if self._closed or not self._is_wanted() or not is_limited:
            return response
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return response
        try:
            address = network_of(address_of(request), self._gate.settings.ipv6_prefix)
        except BadRequest:  # it was refused for that
            return response
        decision, subjects, began = request.__dict__.get(self._attribute, (None, {}, None))
        record, now = Records(self._gate.app).current(), time.monotonic()
        pending = _PendingLine(
            at=_time_of(decision),
            method=request.method,
            endpoint=request.endpoint,
            status=response.status_code,
            subjects={**subjects, LimitType.IP.value: address},
            admitted=None if decision is None else decision.allowed,
            began=began,
            record=record if record is not None and record.open_charges else None,
            listed=self._list_of(record) if decision is None else None,
            waits_until=now + (SHORT_WAIT if response.is_sequence else LONG_WAIT),
        )
        holder = None if began is None or response.is_sequence else holder_of_request()
        if holder is None:
            pending.end()
        else:
            holder.at_end.append(pending.end)
        self._waiting.append(pending)
        self._beat.wake(now + PAUSE)
        return response

    def _list_of(self, record: Record | None) -> Action | None:
        """The list that the client of the request is on."""
        if self._denied in request.__dict__:
            return "deny"
        return "allow" if record is not None and record.access[1] else None

    def _is_wanted(self) -> bool:
        if not self._recording.on_demand:
            return True
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + PAUSE
            try:
                self._record_until = self._recording.record_until
            except OSError as error:  # until this is corrected, what was asked before holds
                self._report(error)
        return time.time() < self._record_until

    # In the thread that writes

    def _begin(self) -> None:
        self._waiting: deque[_PendingLine] = deque()
        self._writing = threading.Lock()
        self._segments = Segments(self.folder, self._max_bytes)

    def _after_fork_in_child(self) -> None:
        """Start empty: the parent writes the requests that are waiting."""
        self._begin()

    def _turn(self) -> float | None:
        self.flush()
        return None if self._closed else PAUSE  # a request that began before close() may wake it after

    def _line_of(self, line: _PendingLine) -> str:
        subjects = {type_: self._hashed(value) for type_, value in self._split(line.subjects).items()}
        costs = {name: units for name, units in line.costs().items() if units is not None}
        recorded = Recorded(line.endpoint, subjects, line.admitted, costs, line.listed)
        request = LoggedRequest(line.at, line.method, "", status=line.status, recorded=recorded, took=line.took())
        return f"{line_of(request)}\n"

    def _split(self, subjects: Mapping[str, str]) -> dict[str, str]:
        """One subject per type: that of several types is taken apart, but not one that merely looks like it, because a
        client may have chosen it."""
        found: dict[str, str] = {}
        for type_, value in subjects.items():
            parts = self._gate.plans.parts_of(Subject(type_, value))
            one = self._gate.subjects.counted(Subject(type_, value))  # as a part has it
            found = {**dict(parts), **found} if parts else {**found, type_: one.value}
        found.pop(EVERYONE.type, None)
        return found

    def _hashed(self, subject: str) -> str:
        return blake2b(subject.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).hexdigest()

    def _write(self, data: bytes) -> None:
        try:
            self._segments.write(data)
            self._failing = False
        except OSError as error:
            self.dropped += data.count(b"\n")
            self._report(error)

    def _report(self, error: OSError) -> None:
        """Log, once until a write succeeds, that the folder cannot be used."""
        if not self._failing:
            self._failing = True
            SafeLogger(self._gate.app.logger).error("Rate limits: requests could not be recorded: %s", error)


def _time_of(decision: Decision | None) -> int:
    """Microseconds since 1970: by the clock of the storage, which all processes share, unless it is wrong or that of a
    test."""
    now = time.time_ns() // 1000
    return now if decision is None or abs(decision.at - now) >= DAY else decision.at


def _settled(record: Record) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    latest = {each.check_id: each.settled for each in record.decisions}
    for decision, limiters in record.open_charges:
        settled = latest.get(decision.check_id, {})
        for declaration, _, hits, _ in limiters:
            if declaration.settle is not None:
                name, units = declaration.shown_name, [settled[hit.key] for hit in hits if hit.key in settled]
                found[name] = max(units, default=found.get(name))
    return found
