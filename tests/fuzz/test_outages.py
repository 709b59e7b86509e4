"""Random faults between random checks, settlements and releases: no unit is admitted twice, lost or charged twice."""

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest

from flask_multilimit.engine import Concurrent, Decision, GuardedStorage, Hit, Limiter, MemoryStorage, StorageError
from flask_multilimit.engine.hits import new_id
from flask_multilimit.engine.slots import slots_of
from support.bench import hits
from support.clock import Clock

RATES = [hits("20/hour", cost=cost) for cost in (1, 2)]
SLOTS = [hits(Concurrent(4, 3600), cost=cost) for cost in (1, 2)]
FAULTS = [None, None, "error", "no reply", "lost reply"]
STEPS = 400


class Faulty(MemoryStorage):
    """A server with a fault, which it has for all commands until it gets another one, or for each by chance."""

    shared = True

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        super().__init__(clock)
        self.chance = chance
        self.fault: str | None = None

    def _ask(self, ask: Callable[..., Any], *arguments: Any, **ids: Any) -> Any:
        fault = self.chance.choice(FAULTS) if self.fault == "by chance" else self.fault
        if fault == "error":
            raise StorageError("LOADING")
        answer = None if fault == "no reply" else ask(*arguments)
        if fault in {"no reply", "lost reply"}:
            raise StorageError(fault, no_reply=True, **ids)
        return answer

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        check_id = check_id or UUID(bytes=new_id())
        decision: Decision = self._ask(super().check, hits, check_id, check_id=check_id)
        return decision

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        decision: Decision = self._ask(super().peek, hits)
        return decision

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        assert ids is not None, "the guard alone asks so"
        return [self.check(hits, check_id) for hits, check_id in zip(many, ids, strict=True)]

    def settle(self, *arguments: Any) -> None:
        self._ask(super().settle, *arguments)

    def release(self, *arguments: Any) -> None:
        self._ask(super().release, *arguments)


class World:
    """One worker, and what it has admitted."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance, self.clock = random.Random(seed), Clock()
        self.storage, self.changes = Faulty(self.clock, self.chance), list[str]()
        self.guard = GuardedStorage(
            self.storage, workers=1, clock=self.clock, on_change=lambda health: self.changes.append(health.state)
        )
        monkeypatch.setattr(self.guard._outage.beat, "wake", lambda at=0.0: at)  # pass_time() does its work
        self.limiter = Limiter(self.guard)
        self.units: dict[Decision, int] = {}
        self.unsettled: list[Decision] = []
        self.doubtful = 0
        """Units of settlements that failed: they were made, or not."""
        self.held: dict[Decision, int] = {}
        self.ended: list[Decision] = []
        """Those whose release has failed."""

    def check(self) -> None:
        decision = self.limiter.check(self.chance.choice(RATES))
        if decision.allowed:
            self.units[decision] = decision.hits[0].cost
            self.unsettled.append(decision)
            assert sum(self.units.values()) <= 20

    def take_slots(self) -> None:
        decision = self.limiter.check(self.chance.choice(SLOTS))
        if decision.allowed:
            self.held[decision] = decision.hits[0].cost
            assert sum(self.held.values()) <= 4

    def settle(self) -> None:
        if not self.unsettled:
            return
        decision = self.unsettled.pop(self.chance.randrange(len(self.unsettled)))
        units = self.chance.choice([0, 0, 0, 3])
        before, self.units[decision] = self.units[decision], units
        try:
            self.limiter.settle(decision, units)
        except StorageError:
            self.units[decision] = min(before, units)
            self.doubtful += abs(before - units)

    def release(self) -> None:
        if self.held:
            decision = self.chance.choice(list(self.held))
            del self.held[decision]
            self.ended.append(decision)
            self.release_again()

    def release_again(self) -> None:
        for decision in list(self.ended):
            with contextlib.suppress(StorageError):
                self.guard.release(slots_of(decision))
                self.ended.remove(decision)

    def pass_time(self) -> None:
        self.clock.advance(0.3)
        self.release_again()
        self.guard._outage._probe()

    def change_fault(self) -> None:
        self.storage.fault = self.chance.choice(["by chance", *FAULTS])

    def end(self) -> None:
        self.storage.fault = None
        self.pass_time()


@pytest.mark.parametrize("seed", range(50))
def test_random_faults_neither_lose_nor_double_a_unit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed, monkeypatch)
    steps = [world.check, world.take_slots, world.settle, world.release, world.pass_time, world.change_fault]

    for _ in range(STEPS):
        world.chance.choices(steps, [4, 4, 3, 4, 2, 1])[0]()
        world.clock.advance(0.001)
    world.end()

    (rate,) = world.storage.peek(RATES[0]).statuses
    used = 20 - rate.remaining + rate.debt
    assert sum(world.units.values()) <= used <= sum(world.units.values()) + world.doubtful
    assert world.storage.peek(SLOTS[0]).remaining == 4 - sum(world.held.values())
    assert world.changes == ["failed", "working"] * (len(world.changes) // 2)
    assert (world.guard.health().pending, world.limiter.peek(SLOTS[0]).remaining) == (0, 4 - sum(world.held.values()))
