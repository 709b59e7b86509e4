"""Processes that lease units of one storage, under one clock of the test, and what they have admitted."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from flask_multilimit.engine import Decision, Hit, LeasingStorage, Limiter, MemoryStorage, Rule, StorageError
from flask_multilimit.engine.decision import Charge
from support.clock import Clock, microseconds

ORIGIN = 77_000_000_000
"""How far the clock of a process is from that of the storage: neither knows the other's."""


@dataclass(eq=False)
class Wire:
    """The connection of one process to the storage. It takes time, in which other processes may act."""

    storage: MemoryStorage
    clock: Clock
    shared: bool = True
    delays: deque[float] = field(default_factory=deque)
    """Seconds that the next ways take, there and back."""
    meanwhile: Callable[[], object] = lambda: None
    error: BaseException | None = None
    asked: list[tuple[Hit, ...]] = field(default_factory=list)
    answered: dict[bytes, tuple[Hit, ...]] = field(default_factory=dict)
    """What was asked, by the id of the check."""
    refunds: int = 0
    batches: int = 0
    """Commands of several checks."""

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        self._travel()
        self.asked.append(hits)
        decision = self.storage.check(hits, check_id)
        self.answered[decision.check_id] = hits
        self._travel()
        return decision

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        return self.storage.peek(hits)

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        self.asked += many
        self.batches += 1
        return self.storage.check_many(many, ids)

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        self._travel()
        self.refunds += 1
        self.storage.settle(check_id, charges)

    def reset(self, keys: Sequence[str]) -> None:
        self.storage.reset(keys)

    def close(self) -> None:
        """Nothing to give back."""

    def _travel(self) -> None:
        if self.error is not None:
            raise self.error
        self.clock.advance(self.delays.popleft() if self.delays else 0)
        self.meanwhile()


class Process:
    """A process that takes leases."""

    def __init__(self, storage: MemoryStorage, clock: Clock) -> None:
        self.wire = Wire(storage, clock)
        self.leases = LeasingStorage(self.wire, clock=lambda: clock.now - ORIGIN)
        self.limiter = Limiter(self.leases)


class Fleet:
    """Processes around one storage."""

    def __init__(self, many: int) -> None:
        self.clock = Clock()
        self.storage = MemoryStorage(self.clock)
        self.local_clock = lambda: self.clock.now - ORIGIN
        self.processes = [Process(self.storage, self.clock) for _ in range(many)]

    def break_down(self) -> None:
        """The storage fails for all processes."""
        for process in self.processes:
            process.wire.error = StorageError("gone")

    def mend(self) -> None:
        for process in self.processes:
            process.wire.error = None


def most_in_any_window(admitted: Sequence[tuple[int, int]], rule: Rule) -> int:
    """The most units in any window, of instants with their costs. The fullest window ends with one of the instants."""
    window = microseconds(rule.time)
    return max(sum(cost for at, cost in admitted if end - window < at <= end) for end, _ in admitted)
