"""Events of a test, and a storage that can be down."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from flask_multilimit.engine import Hit, Limiter, MemoryStorage, StorageError, hits_for
from flask_multilimit.engine.storage import KeepsTallies, Tallies, Tally
from flask_multilimit.engine.storage.tallies import TalliesInMemory
from flask_multilimit.observe.events import outcome_of
from flask_multilimit.observe.traffic import Counts, TrafficReader
from flask_multilimit.observe.traffic.flushing import Outbox
from flask_multilimit.signals import Event

PREFIX = "rate_limit:"


class Limiting:
    """Makes events of real decisions."""

    def __init__(self) -> None:
        self._limiter = Limiter(MemoryStorage())

    def __call__(
        self, endpoint: str = "view", *, subject: str = "a", rules: str = "1/hour", shadow: bool = False
    ) -> Event:
        hits = hits_for(rules, scope=endpoint, subject=f"ip:{subject}", shadow=shadow)
        decision = self._limiter.check(hits)
        applied = [Asked(("ip", subject), hits)]
        return Event(endpoint, outcome_of(decision, 0.0), decision.decided_by, decision, 0.001, 0.0, applied, None)


class Asked:
    def __init__(self, subject: tuple[str, str], hits: tuple[Hit, ...]) -> None:
        self.subject = subject
        self.hits = hits


class Keeper:
    """Keeps tallies under a clock of the test. `error` makes it fail; `loses_answers`, only after it has added."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.kept = TalliesInMemory(lambda: self.now)
        self.sent: list[tuple[str, int, list[str]]] = []
        self.error: StorageError | None = None
        self.loses_answers = False

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        if self.error is not None and not self.loses_answers:
            raise self.error
        self.sent.append((source, number, [tally.key for tally in tallies]))
        at = self.kept.tally(tallies, source=source, number=number)
        if self.error is not None:
            raise self.error
        return at

    def tallies(self, keys: Sequence[str]) -> Tallies:
        return self.kept.tallies(keys)


class Sender:
    """Sends counts at the instant of the test."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __call__(self, counts: Counts) -> None:
        self._outbox.put(counts)
        self._outbox.send()


def outbox_to(storage: KeepsTallies, **options: Any) -> Outbox:
    return Outbox(storage, PREFIX, logger=logging.getLogger("test"), **options)


@pytest.fixture
def event() -> Limiting:
    return Limiting()


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def outbox(keeper: Keeper) -> Outbox:
    return outbox_to(keeper, clock=lambda: keeper.now)


@pytest.fixture
def send(outbox: Outbox) -> Sender:
    return Sender(outbox)


@pytest.fixture
def reader(keeper: Keeper) -> TrafficReader:
    return TrafficReader(keeper, PREFIX)
