"""Counts for metrics: noted in a microsecond at each request, passed on in bulk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..engine.forks import tell_child
from .events import NOT_CHECKED, OTHERS, Event
from .traffic.counting import Counter
from .traffic.counts import Counts

MOST_NAMES = 5000
"""The most endpoints, or pairs of endpoint and rule, that are counted separately."""
MOST_TIMES = 20_000
"""The most times of checks that wait; the oldest are dropped first. A process makes fewer checks in a second."""


class Tallying:
    """Counts events, and keeps the time that each check took, by ``decided_by``. Thread-safe; a forked child starts
    with nothing."""

    def __init__(self) -> None:
        self._counter = Counter(subjects=False)
        self._times: dict[str, deque[float]] = {}
        tell_child(self)

    def note(self, event: Event) -> None:
        self._counter.count(*event[:4], event[6])
        if event[1] not in NOT_CHECKED:
            times = self._times.get(event[2])
            if times is None:
                times = self._times.setdefault(event[2], deque(maxlen=MOST_TIMES))
            times.append(event[4])

    def take(self) -> Counts:
        """What was counted since the last call."""
        return self._counter.take()

    def hand_on_times(self, record: Callable[[str, float], None]) -> None:
        """Call ``record`` with ``decided_by`` and the seconds of each check since the last call."""
        for decided_by, times in tuple(self._times.items()):
            for _ in range(len(times)):
                record(decided_by, times.popleft())

    def _after_fork_in_child(self) -> None:
        self._times = {}


class Labels:
    """The names of endpoints and rules, as metrics show them: after :data:`MOST_NAMES`, new ones are ``(others)``."""

    def __init__(self) -> None:
        self._known: set[tuple[str, ...]] = set()

    def __call__(self, *names: str) -> tuple[str, ...]:
        if names in self._known:
            return names
        if len(self._known) >= MOST_NAMES:
            return (OTHERS,) * len(names)
        self._known.add(names)
        return names
