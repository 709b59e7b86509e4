"""Tallies: amounts by name that expire, kept beside the quotas, in memory or on a server. They are for people: no check
reads them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..errors import StorageError
from ..forks import lock_for_forks

SOURCE_SECONDS = 3600
"""How long a storage remembers the last number of a source."""


class Tally(NamedTuple):
    """Amounts to add under one key."""

    key: str
    amounts: Mapping[str, int]
    """What to add, by name. Each is above 0."""
    seconds: int
    """The key is forgotten this long after the last addition."""
    most: int
    """The number of names to keep under the key, those with the largest amounts."""
    instants: bool = False
    """Whether the amounts are instants, in POSIX milliseconds. Each replaces that of its name, and is forgotten
    ``seconds`` after the instant."""


class Tallies(NamedTuple):
    """Tallies read from a storage."""

    at: float
    """POSIX time by the clock of the storage."""
    amounts: list[dict[str, int]]
    """The amounts by name, for each key that was asked for; empty for a missing key."""


@runtime_checkable
class KeepsTallies(Protocol):
    """A storage that keeps tallies. Each method raises :class:`StorageError` if it gets no answer."""

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        """Add ``tallies`` in one command; return the POSIX time by the clock of the storage.

        ``source`` is a key of the sender, and ``number`` counts what it has sent. Tallies with a number that has
        already arrived change nothing, so a sender that got no answer can send them again. All keys have the same hash
        tag.
        """

    def tallies(self, keys: Sequence[str]) -> Tallies:
        """The tallies under ``keys``, which have the same hash tag, in one command."""


class TalliesInMemory:
    """Tallies of this process. Thread-safe, fork-safe. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[str, dict[str, int]] = {}
        self._ends: dict[str, float] = {}
        """The instant at which each key is forgotten."""
        self._numbers: dict[str, int] = {}
        lock_for_forks(self, inner=True)

    def tally(self, tallies: Sequence[Tally], *, source: str, number: int) -> float:
        with self._lock:
            now = self._clock()
            self._forget(now)
            if number > self._numbers.get(source, -1):
                self._numbers[source] = number
                self._ends[source] = now + SOURCE_SECONDS
                for each in tallies:
                    self._add(each, now)
            return now

    def tallies(self, keys: Sequence[str]) -> Tallies:
        with self._lock:
            now = self._clock()
            self._forget(now)
            return Tallies(now, [dict(self._kept.get(key, ())) for key in keys])

    def _add(self, tally: Tally, now: float) -> None:
        kept = self._kept.setdefault(tally.key, {})
        for name, amount in tally.amounts.items():
            kept[name] = amount if tally.instants else kept.get(name, 0) + amount
        if tally.instants:
            past = (now - tally.seconds) * 1000
            kept = self._kept[tally.key] = {name: instant for name, instant in kept.items() if instant > past}
            now = max(kept.values(), default=0) / 1000
        if len(kept) > tally.most:
            self._kept[tally.key] = dict(heapq.nlargest(tally.most, kept.items(), key=lambda named: named[1]))
        self._ends[tally.key] = now + tally.seconds

    def _forget(self, now: float) -> None:
        for key in [key for key, end in self._ends.items() if end <= now]:
            del self._ends[key]
            self._kept.pop(key, None)
            self._numbers.pop(key, None)

    def _after_fork_in_child(self) -> None:
        self._lock = Lock()


def arguments_of(tallies: Sequence[Tally], source: str, number: int) -> list[bytes]:
    """The arguments of ``tally.lua``: the number of keys, the keys, and the rest."""
    keys = [source.encode(), *[tally.key.encode() for tally in tallies]]
    arguments = [b"%d" % number, b"%d" % SOURCE_SECONDS]
    for tally in tallies:
        mode = b"instants" if tally.instants else b""
        arguments += (b"%d" % tally.seconds, b"%d" % tally.most, mode, b"%d" % len(tally.amounts))
        for name, amount in tally.amounts.items():
            arguments += (name.encode(), b"%d" % amount)
    return [b"%d" % len(keys), *keys, *arguments]


def tallies_of(reply: Any, keys: int) -> Tallies:
    """The tallies in a ``reply`` of ``tallies.lua`` for this number of keys. Raises :class:`StorageError`."""
    try:
        amounts = [_amounts(each) for each in reply[2:]]
        if len(amounts) == keys:
            return Tallies(seconds_of(reply), amounts)
    except (TypeError, ValueError, IndexError, OverflowError):
        pass
    raise StorageError(f"the reply about {keys} tallies has the wrong shape: {reply!r:.80}")


def seconds_of(reply: Any) -> float:
    """The server's time, with which the replies of both scripts begin. Raises :class:`StorageError`."""
    try:
        return float(reply[0] + reply[1] / 1_000_000)
    except (TypeError, IndexError, OverflowError):
        raise StorageError(f"the reply to a tally has the wrong shape: {reply!r:.80}") from None


def _amounts(flat: Sequence[bytes | str]) -> dict[str, int]:
    return {_text(name): int(float(amount)) for name, amount in zip(flat[::2], flat[1::2], strict=True)}


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")
