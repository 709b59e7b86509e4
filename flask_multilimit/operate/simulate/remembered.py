"""What the clients that came lately are asked; who has not come for long is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .asking import Asked

REMEMBERED = 10_000
"""Clients at one place: twice as many for a moment."""


class Remembered:
    """By client and place.

    :param forget: called with what is dropped.
    """

    def __init__(self, forget: Callable[[Asked], None]) -> None:
        self._forget = forget
        self._young: dict[object, Asked] = {}
        self._old: dict[object, Asked] = {}
        self.get: Callable[[object], Asked | None] = self._young.get
        """Of those who came lately; of all: :meth:`find`."""

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
