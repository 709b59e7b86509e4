"""Keeps a process informed of the bans in force, whichever process they began in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ...engine import StorageError
from .reading import BansBegun, TrafficReader

SECONDS = 5.0
"""The time between two looks."""


class BanWatch:
    """Asks ``reader`` for the bans of all processes: a task of the beat. In between, those that end are left out."""

    def __init__(self, reader: TrafficReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._known: tuple[float, BansBegun] | None = None
        """This process's clock when the storage was asked, and the answer."""
        self._next = -float("inf")

    def look(self, *, ending: bool = False) -> bool:
        """Ask if it is time to; return whether a ban is known to end later."""
        now = self._clock()
        if now >= self._next and not ending:
            self._next = now + SECONDS
            with suppress(StorageError):  # the guard and the outbox report it; the known bans count meanwhile
                self._known = now, self._reader.bans()
        return bool(self.in_force())

    def in_force(self) -> Mapping[tuple[str, str], int]:
        """How many hold now, by endpoint and name of the ban, without asking the storage."""
        if self._known is None:
            return {}
        asked, bans = self._known
        return bans.in_force(bans.at + self._clock() - asked)
