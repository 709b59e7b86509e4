"""Which keys are forgotten: those whose quota is whole again, and some of the others if there are too many.

Clients can invent keys (user names, addresses), so a process that counts by itself keeps a bounded number. Beyond that:

- The key whose quota is whole again soonest is forgotten first, for it has the least to lose.
- A key that refuses now is forgotten last: nobody gets rid of his own refusal by inventing others. Of these, the first
  to go is the one that admits again soonest.
- Windows of one magnitude keep a part of the room whatever else is counted: many keys of a day leave room for those of
  a minute. They keep it for keys that admit and for keys that refuse: however many refuse, those of new clients stay
  until they may refuse, too.

All of it is O(log n): each key is looked at again only if it was written since, and only a few at each check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from ..errors import ConfigurationError, brief

MOST_KEYS = 100_000
"""The most keys that a process counts by itself, by default."""
FEWEST_KEYS = 1000
UNBOUNDED = sys.maxsize
"""For calculations, whose clients are known."""
MOST_LOOKS = 8
"""The most keys that are looked at to find one to forget."""
LOOKS_ASIDE = 4
"""The most keys that are looked at besides, whose turn is far off."""
RESERVED = 4
"""One part in so many of the room is divided equally between the magnitudes of windows, for keys that admit and once
more for keys that refuse."""
NOTHING_DUE = sys.maxsize
"""The instant of the next due key, if there are no keys."""


class Asked(Protocol):
    """What is asked about a key at one instant. Answers are microseconds from then."""

    def reset_after(self, key: str, now: int, /) -> int:
        """When its quota is whole again."""

    def refuses_for(self, key: str, now: int, /) -> int:
        """When it admits again; 0 if it does now."""


class _Windows:
    """Keys with windows of one magnitude, in two heaps of an instant and the key."""

    __slots__ = ("refusing", "whole")

    def __init__(self) -> None:
        self.whole: list[tuple[int, str]] = []
        """The quota is whole again then, or later if it was charged since."""
        self.refusing: list[tuple[int, str]] = []
        """Set aside when it was their turn to go, because they refuse until then."""


class Forgetting:
    """Says which keys to forget. Not thread-safe."""

    def __init__(self, most: int) -> None:
        check_memory_keys(most)
        self.most: int = most
        self.first_due: int = NOTHING_DUE
        """There is nothing to :meth:`sweep` before."""
        self._windows: dict[int, _Windows] = {}
        self._amount = 0
        self._looked = 0

    def add(self, key: str, window: int, due: int) -> bool:
        """A new key, whose quota is whole again at ``due`` if nothing else is charged. Return whether there are too
        many."""
        magnitude = window.bit_length()
        windows = self._windows.get(magnitude)
        if windows is None:
            windows = self._windows[magnitude] = _Windows()
        heappush(windows.whole, (due, key))
        if due < self.first_due:  # noqa: PLR1730 - `min` would take longer than the rest
            self.first_due = due
        self._amount += 1
        return self._amount > self.most

    def sweep(self, asked: Asked, now: int, most: int) -> list[str]:
        """Keys whose quota is whole again, found with ``most`` looks. They are no longer known here."""
        gone = list[str]()
        for windows in self._windows.values():
            while most and windows.refusing and windows.refusing[0][0] <= now:
                most -= 1
                _, key = heappop(windows.refusing)
                heappush(windows.whole, (now + asked.reset_after(key, now), key))
            whole = windows.whole
            while most and whole and whole[0][0] <= now:
                most -= 1
                key = whole[0][1]
                reset_after = asked.reset_after(key, now)
                if reset_after > 0:
                    heapreplace(whole, (now + reset_after, key))
                else:
                    heappop(whole)
                    gone.append(key)
        self._forgot(len(gone))
        return gone

    def surplus(self, asked: Asked, now: int) -> list[str]:
        """Keys to forget because there are too many. They are no longer known here."""
        gone = list[str]()
        if self._amount > self.most:
            self._set_aside(asked, now)
        looks = MOST_LOOKS
        while self._amount > self.most and looks > 0:
            looks, key = self._soonest(asked, now, looks)
            if key is None:
                break
            gone.append(key)
            self._forgot(1)
        return gone

    def _set_aside(self, asked: Asked, now: int) -> None:
        """Look at a few keys whose turn is far off, always others. Those that refuse take no room from keys that admit,
        whose turn may come sooner."""
        windows = max(self._windows.values(), key=lambda each: len(each.whole))
        whole = windows.whole
        for _ in range(min(LOOKS_ASIDE, len(whole))):
            self._looked += 1
            middle = len(whole) // 2
            place = middle + self._looked % (len(whole) - middle)
            key = whole[place][1]
            if refuses_for := asked.refuses_for(key, now):
                _remove_leaf(whole, place)
                heappush(windows.refusing, (now + refuses_for, key))

    def _soonest(self, asked: Asked, now: int, looks: int) -> tuple[int, str | None]:
        """The next key to forget, and how many looks are left. None is found while all that were looked at refuse:
        then the next check goes on."""
        found = list[tuple[int, str, _Windows]]()
        while looks > 0 and (windows := self._next(lambda each: each.whole)) is not None:
            looks -= 1
            due, key = heappop(windows.whole)
            if refuses_for := asked.refuses_for(key, now):
                heappush(windows.refusing, (now + refuses_for, key))
                continue
            whole_at = now + asked.reset_after(key, now)
            found.append((whole_at, key, windows))
            if whole_at <= due:  # none that follows is sooner
                break
        if found:
            found.sort(key=lambda each: each[0])
            for whole_at, key, windows in found[1:]:
                heappush(windows.whole, (whole_at, key))
            return looks, found[0][1]
        if looks > 0 and (windows := self._next(lambda each: each.refusing)) is not None:
            return looks - 1, heappop(windows.refusing)[1]
        return looks, None

    def _next(self, heap_of: Callable[[_Windows], list[tuple[int, str]]]) -> _Windows | None:
        """The windows whose next key is the soonest of all that have more of these keys than their reserve. Some have
        more: all reserves together are half of the room."""
        reserve = self.most // (RESERVED * len(self._windows))
        some = [each for each in self._windows.values() if len(heap_of(each)) > reserve]
        return min(some, key=lambda each: heap_of(each)[0], default=None)

    def _forgot(self, many: int) -> None:
        self._amount -= many
        self.first_due = min(
            (heap[0][0] for each in self._windows.values() for heap in (each.whole, each.refusing) if heap),
            default=NOTHING_DUE,
        )


def _remove_leaf(heap: list[tuple[int, str]], place: int) -> None:
    """Remove the entry at ``place``, in the second half of ``heap``, in O(log n)."""
    last = heap.pop()
    if place == len(heap):
        return
    while place and last < heap[above := (place - 1) // 2]:
        heap[place] = heap[above]
        place = above
    heap[place] = last


def check_memory_keys(most: object) -> None:
    """Raise :class:`ConfigurationError` unless ``most`` is a sensible number of keys."""
    if type(most) is not int or most < FEWEST_KEYS:
        raise ConfigurationError(f"memory_keys={brief(most)}: give a whole number, {FEWEST_KEYS} or more")
