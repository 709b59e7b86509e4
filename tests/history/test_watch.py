"""A step back of the clock is seen, and nothing else taken for one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from history.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

MILLISECOND = 1_000_000


def never(started: int) -> int:  # noqa: ARG001
    return 0


def once(started: int) -> int:
    return -MILLISECOND if time.monotonic_ns() - started > 50 * MILLISECOND else 0


def forward(started: int) -> int:
    return -once(started)


def slowly(started: int) -> int:
    """As fast as Linux puts a clock right."""
    return (started - time.monotonic_ns()) // 2000


@pytest.mark.parametrize(("step", "least"), [(never, 0), (once, MILLISECOND * 9 // 10), (forward, 0), (slowly, 0)])
def test_a_clock_set_back_is_seen(step: Callable[[int], int], least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic_ns()
    monkeypatch.setattr(time, "time_ns", lambda: time.monotonic_ns() + step(started))

    with Watch() as watch:
        time.sleep(0.1)

    assert least <= watch.set_back <= least * 10 // 9
