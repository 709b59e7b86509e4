"""Which keys to forget: those whose quota is full again, and some of the others if there are too many.

Clients can invent keys (user names, addresses), so a process that counts by itself keeps a bounded number. Beyond that:

- The key whose quota is full again soonest is forgotten first, because it has the least to lose.
- A key that refuses now is forgotten last: no client gets rid of its refusal by inventing keys. Of these keys, the one
  that admits again soonest is forgotten first.
- Keys are grouped by the magnitude of their windows, and a part of the room is reserved for each group: many keys with
  windows of a day leave room for keys with windows of a minute. Each group has one reserve for keys that admit and one
  for keys that refuse: however many refuse, the keys of new clients stay until these may be refused, too.

All of it is O(log n): a key is looked at again only if it was charged since, and each check looks at a few keys only.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple, Protocol

from ..errors import require

MOST_KEYS = 100_000
"""The most keys that a process counts by itself, by default."""
FEWEST_KEYS = 1000
UNBOUNDED = sys.maxsize
"""For simulations, in which nobody invents keys."""
MOST_LOOKS = 8
"""The most keys that are looked at to find one to forget."""
LOOKS_ASIDE = 4
"""The most keys that are looked at besides, whose turn is far off."""
RESERVED = 4
"""A quarter of the room is divided equally between the groups for keys that admit, and a quarter for keys that
refuse."""
NOTHING_DUE = 2**63 - 1
"""The instant of the next due key, if there are no keys."""


class QuotasOfKeys(Protocol):
    """Tells the state of a key. Answers are microseconds from ``now``."""

    def reset_after(self, key: str, now: int, /) -> int:
        """When its quota is full again."""

    def refuses_for(self, key: str, now: int, /) -> int:
        """When it admits again; 0 if it admits now."""


class _Group(NamedTuple):
    """Keys whose windows have one magnitude, in two heaps, each entry an instant and a key."""

    filling: list[tuple[int, str]]
    """The quota is full again at the instant, or later if it was charged since."""
    refusing: list[tuple[int, str]]
    """The key refuses until the instant, so it was not forgotten in its turn."""


class Forgetting:
    """Decides which keys to forget. Not thread-safe."""

    def __init__(self, most: int) -> None:
        check_memory_keys(most)
        self.most: int = most
        self.first_due: int = NOTHING_DUE
        """Before this instant, there is nothing to :meth:`sweep`."""
        self._groups: dict[int, _Group] = defaultdict(lambda: _Group([], []))  # by magnitude
        self._amount = 0
        self._looks_aside = 0

    def add(self, key: str, window: int, due: int) -> bool:
        """Add a new key, whose quota is full again at ``due`` if nothing else is charged. Return whether there are too
        many keys."""
        heappush(self._groups[window.bit_length()].filling, (due, key))
        if due < self.first_due:  # noqa: PLR1730 - `min` would take longer than the rest
            self.first_due = due
        self._amount += 1
        return self._amount > self.most

    def sweep(self, quotas: QuotasOfKeys, now: int, most: int) -> list[str]:
        """Remove and return keys whose quota is full again, with at most ``most`` looks."""
        forgotten = list[str]()
        for group in self._groups.values():
            while most and group.refusing and group.refusing[0][0] <= now:
                most -= 1
                _, key = heappop(group.refusing)
                heappush(group.filling, (now + quotas.reset_after(key, now), key))
            filling = group.filling
            while most and filling and filling[0][0] <= now:
                most -= 1
                key = filling[0][1]
                reset_after = quotas.reset_after(key, now)
                if reset_after > 0:
                    heapreplace(filling, (now + reset_after, key))
                else:
                    heappop(filling)
                    forgotten.append(key)
        self._count_forgotten(len(forgotten))
        return forgotten

    def surplus(self, quotas: QuotasOfKeys, now: int) -> list[str]:
        """Remove and return keys to forget because there are too many."""
        forgotten = list[str]()
        if self._amount > self.most:
            self._set_aside(quotas, now)
        looks = MOST_LOOKS
        while self._amount > self.most and looks > 0:
            looks, key = self._soonest(quotas, now, looks)
            if key is None:
                break
            forgotten.append(key)
            self._count_forgotten(1)
        return forgotten

    def _set_aside(self, quotas: QuotasOfKeys, now: int) -> None:
        """Look at a few keys whose turn is far off, each time at others, and set those aside that refuse: they must not
        take room from keys that admit and whose turn may come sooner."""
        group = max(self._groups.values(), key=lambda each: len(each.filling))
        filling = group.filling
        for _ in range(min(LOOKS_ASIDE, len(filling))):
            self._looks_aside += 1
            middle = len(filling) // 2
            place = middle + self._looks_aside % (len(filling) - middle)
            key = filling[place][1]
            if refuses_for := quotas.refuses_for(key, now):
                _remove_leaf(filling, place)
                heappush(group.refusing, (now + refuses_for, key))

    def _soonest(self, quotas: QuotasOfKeys, now: int, looks: int) -> tuple[int, str | None]:
        """The next key to forget, and how many looks are left. If all keys that were looked at refuse, the key is
        ``None``, and the next check continues the search."""
        candidates = list[tuple[int, str, _Group]]()
        while looks > 0 and (group := self._next(lambda each: each.filling)) is not None:
            looks -= 1
            due, key = heappop(group.filling)
            if refuses_for := quotas.refuses_for(key, now):
                heappush(group.refusing, (now + refuses_for, key))
                continue
            full_at = now + quotas.reset_after(key, now)
            candidates.append((full_at, key, group))
            if full_at <= due:  # no later key is due sooner
                break
        if candidates:
            candidates.sort(key=lambda each: each[0])
            for full_at, key, group in candidates[1:]:
                heappush(group.filling, (full_at, key))
            return looks, candidates[0][1]
        if looks > 0 and (group := self._next(lambda each: each.refusing)) is not None:
            return looks - 1, heappop(group.refusing)[1]
        return looks, None

    def _next(self, heap_of: Callable[[_Group], list[tuple[int, str]]]) -> _Group | None:
        """The group with the key that is due soonest, among the groups with more of these keys than their reserve. If
        memory is full, there is such a group for at least one of the two kinds of keys, because all reserves together
        are half of the room."""
        reserve = self.most // (RESERVED * len(self._groups))
        some = [each for each in self._groups.values() if len(heap_of(each)) > reserve]
        return min(some, key=lambda each: heap_of(each)[0], default=None)

    def _count_forgotten(self, number: int) -> None:
        self._amount -= number
        self.first_due = min(
            (heap[0][0] for each in self._groups.values() for heap in each if heap),
            default=NOTHING_DUE,
        )


def _remove_leaf(heap: list[tuple[int, str]], place: int) -> None:
    """Remove the entry at ``place``, in the second half of ``heap``, in O(log n). A signal handler may raise at each
    step, and no key may then be in the heap twice: the second turn of a forgotten key would fail each check."""
    last = heap.pop()
    if place == len(heap):
        return
    heap[place] = last
    while place and last < heap[above := (place - 1) // 2]:
        heap[place], heap[above] = heap[above], last
        place = above


def check_memory_keys(most: object) -> None:
    """Raise :class:`ConfigurationError` unless ``most`` is a sensible number of keys."""
    holds = type(most) is int and most >= FEWEST_KEYS
    require(holds, "memory_keys", most, f"a whole number, {FEWEST_KEYS} or more")
