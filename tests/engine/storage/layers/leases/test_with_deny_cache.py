"""The deny cache around leases: a refusal is cached only while the process has no leased units."""

from collections.abc import Callable
from uuid import UUID

import pytest

from flask_multilimit.engine import (
    Decision,
    DenyCache,
    GuardedStorage,
    Hit,
    Layers,
    LeasingStorage,
    Limiter,
    MemoryStorage,
    Rule,
    hits_for,
)
from flask_multilimit.engine.storage import layers, layers_of, with_leases
from flask_multilimit.engine.storage.base import monotonic_microseconds
from support.clock import Clock

LEASED = hits_for(Rule(60, 8, lease=8), scope="leased")
BOTH = hits_for([Rule(60, 8, lease=8), Rule(30, 4)], scope="both")


class Shared(MemoryStorage):
    """Says that it is shared. ``meanwhile`` runs once, after the storage has decided and before the reply is read."""

    shared = True
    meanwhile: Callable[[], object] | None = None

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        decision = super().check(hits, check_id)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return decision


@pytest.mark.parametrize("added_later", [False, True], ids=["leases below", "leases added later"])
def test_units_just_leased_by_another_thread_are_not_refused(added_later: bool) -> None:
    clock = Clock(1_700_000_000_000_000)
    server = Shared(clock=clock)
    inner = server if added_later else LeasingStorage(server, clock=clock)
    storage = with_leases(DenyCache(inner, clock=clock))
    admitted = [storage.check(LEASED).allowed for _ in range(1 + 2)]  # the next lease is of more than one unit
    meanwhile: list[bool] = []
    server.meanwhile = lambda: meanwhile.extend(storage.check(LEASED).allowed for _ in range(2))

    admitted += [storage.check(LEASED).allowed for _ in range(5)]

    assert meanwhile == [True, False], (
        "the second is refused: another thread has leased the rest, and its reply is not read yet"
    )
    assert admitted == [True] * 7 + [False]


@pytest.mark.parametrize("apps", [1, 2], ids=["one app", "apps that share the leases"])
def test_leased_units_that_another_thread_returns_are_not_refused(apps: int) -> None:
    clock = Clock(1_700_000_000_000_000)
    server = Shared(clock=clock)
    leases = LeasingStorage(server, clock=clock)
    storage, *_ = (DenyCache(leases, clock=clock) for _ in range(apps))
    for _ in range(4):
        assert storage.check(BOTH).allowed
    leased = BOTH[:1]
    assert [storage.check(leased).allowed for _ in range(2)] == [True, True]
    assert server.check(leased).allowed, (
        "another process takes the last unit of the storage; this one has one in its lease"
    )
    clock.advance(0.1)  # what was given back before does not keep the next refusal out of the cache
    answers: list[bool] = []
    server.meanwhile = lambda: answers.append(storage.check(leased).allowed)

    assert not storage.check(BOTH).allowed, "the other rule refuses: the unit returns to the lease"

    assert answers == [False]
    assert storage.check(leased).allowed


def test_threads_whose_first_checks_have_a_lease_add_one_layer_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With leases of leases, a unit could be spent after it has left the window in the storage."""
    limiter = Limiter(Shared(), layers=Layers())
    others = [limiter._add_leases]  # another thread, which has looked just before this one adds the layer

    def meanwhile(_: object) -> Callable[[], int]:
        while others:
            others.pop()()
        return monotonic_microseconds

    monkeypatch.setattr(layers, "_clock_of", meanwhile)
    limiter.check(LEASED)

    kinds = [type(layer) for layer in layers_of(limiter.outermost)]
    assert kinds == [DenyCache, LeasingStorage, GuardedStorage, Shared]
