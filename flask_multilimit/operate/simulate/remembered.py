"""Remembers what is asked for the clients that were seen lately, and forgets the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .asking import Asked

REMEMBERED = 10_000
"""The number of clients at one place. For a moment, there may be twice as many."""


class Remembered:
    """The :class:`Asked` of each client at each place.

    :param forget: called with what is dropped.
    """

    def __init__(self, forget: Callable[[Asked], None]) -> None:
        self._forget = forget
        self._young: dict[object, Asked] = {}
        self._old: dict[object, Asked] = {}
        self.get: Callable[[object], Asked | None] = self._young.get
        """Looks only among the clients of the current half; :meth:`find` looks among all."""

    def find(self, who: object) -> Asked | None:
        found = self._old.pop(who, None)
        if found is not None:
            self.put(who, found)
        return found

    def put(self, who: object, asked: Asked) -> None:
        if len(self._young) >= REMEMBERED:
            for dropped in self._old.values():
                self._forget(dropped)
            self._old, self._young = self._young, {}
            self.get = self._young.get
        self._young[who] = asked

    def __iter__(self) -> Iterator[Asked]:
        yield from self._young.values()
        yield from self._old.values()
