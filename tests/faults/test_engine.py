"""Every fault against a guarded limiter: no error, no wait, no fresh quota, nothing forgotten, and back at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bench import hits
from faults.world import FAULTS, Fault, World, new_world
from flask_multilimit.engine import GuardedStorage, Health, Limiter, storage_from_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Binary

LIMIT = "10/minute"
FIRST = 2.0
"""Seconds the first check may take: twenty times the deadline, for machines that are busy."""
LATER = 0.25
RECOVERY = 8.0


@pytest.fixture(scope="module")
def shared_world(server_binaries: dict[str, Binary]) -> Iterator[World]:
    with new_world(next(iter(server_binaries.values()))) as world:
        yield world


@pytest.fixture
def world(shared_world: World) -> World:
    shared_world.admin.flushall()
    return shared_world


@pytest.fixture
def changes() -> list[Health]:
    return []


@pytest.fixture
def limiter(world: World, changes: list[Health]) -> Iterator[Limiter]:
    storage = storage_from_uri(world.proxy.url, timeout=0.1)
    limiter = Limiter(GuardedStorage(storage, workers=1, on_change=changes.append))
    yield limiter
    limiter.close()


def until(condition: Callable[[], bool], seconds: float = RECOVERY) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def is_working(limiter: Limiter) -> bool:
    return limiter.health().state == "working"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Fault, world: World, limiter: Limiter, changes: list[Health]) -> None:
    plan = hits(LIMIT)
    for _ in range(3):
        assert limiter.check(plan).allowed

    fault.begin(world)
    try:
        took, admitted = [], 0
        for _ in range(12):
            start = time.monotonic()
            decision = limiter.check(plan)
            took.append(time.monotonic() - start)
            admitted += decision.allowed
            assert (decision.degraded == "local") is fault.noticed
        failed = limiter.health()
    finally:
        fault.end(world)
    until(lambda: is_working(limiter) and len(changes) == 2 * fault.noticed)

    assert admitted == 7
    assert took[0] < FIRST
    assert sorted(took)[-2] < LATER
    assert failed.state == ("failed" if fault.noticed else "working")
    assert [change.state for change in changes] == (["failed", "working"] if fault.noticed else [])
    assert limiter.health().pending == limiter.health().given_up == 0
    left = 3 if fault.forgets else 0
    assert sum(limiter.check(plan).allowed for _ in range(5)) == left
    until(lambda: world.admin.keys() == [plan[0].key.encode()], 3)
    assert world.admin.pttl(plan[0].key) > 0
