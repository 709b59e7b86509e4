"""The owners of the hash slots of a cluster: learned from its servers, and corrected by their redirections."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from ...errors import StorageError
from ...forks import LateLock
from ..addresses import Address
from ..redis.connections import Deadline
from ..redis.failures import REMEDIES, storage_error

HASH_SLOTS = 16_384

FRESH_SECONDS = 1.0
"""For this many seconds after the owners were learned, a redirection corrects one hash slot. Later, it suggests that
others have moved, too: all owners are learned again."""

_REDIRECTION = re.compile(r"(?:(?:MOVED|ASK) )?(\d+) (\S*):(\d+)")


@dataclass(frozen=True, slots=True)
class Redirection:
    """The answer of a server that does not own the hash slot: which server to ask."""

    address: Address
    only_once: bool
    """Whether the hash slot is still being moved there (ASK)."""


def redirection_of(error: StorageError, asked: Address) -> Redirection | None:
    """The redirection that the server at ``asked`` answered by ``error``, if it is one."""
    match = _REDIRECTION.match(str(error.__cause__)) if error.server_code in {"ASK", "MOVED"} else None
    if match is None:
        return None
    return Redirection((_host(match[2]) or asked[0], int(match[3])), error.server_code == "ASK")


class HashSlots:
    """The owner of each hash slot. ``ask`` returns the answer of the server at an address to CLUSTER SLOTS, or raises
    :class:`StorageError`. ``start`` are the servers to ask first.

    :meth:`owner` and :meth:`primaries` may ask servers, and raise :class:`StorageError` if none of them answers within
    ``deadline``. Thread-safe, fork-safe.
    """

    def __init__(self, start: Iterable[Address], ask: Callable[[Address], Any], deadline: Deadline) -> None:
        self._start = list(start)
        self.servers: list[Address] = list(start)
        """Those to ask about the hash slots, in this order: all that are known to be in the cluster, and ``start``."""
        self._ask = ask
        self._deadline = deadline
        self._owners: list[Address | None] | None = None
        self._learned_at = 0.0
        self._lock = LateLock()

    def owner(self, hash_slot: int) -> Address:
        """The server that owns ``hash_slot``."""
        owner = (self._owners or self._learn())[hash_slot]
        if owner is not None:
            return owner
        self._owners = None  # next time, the hash slot may have an owner
        raise StorageError(f"no server of the cluster owns slot {hash_slot}", remedy=REMEDIES["CLUSTERDOWN"])

    def primaries(self) -> list[Address]:
        """All servers that own hash slots. Asks the cluster."""
        self._owners = None
        return sorted({owner for owner in self._learn() if owner is not None})

    def record_move(self, hash_slot: int, to: Address) -> None:
        """Record a redirection. The new owner of a hash slot is the best server to ask about the other hash slots."""
        owners = self._owners
        if owners is None:
            return
        if time.monotonic() - self._learned_at < FRESH_SECONDS:
            owners[hash_slot] = to
        else:
            self.servers = [to, *(address for address in self.servers if address != to)]
            self._owners = None

    def record_failure(self, address: Address) -> None:
        """Record that the server at ``address`` has failed: before the next question, ask the others who owns its hash
        slots now."""
        self._ask_last(address)
        self._owners = None

    def _ask_last(self, address: Address) -> None:
        self.servers = [*(other for other in self.servers if other != address), address]

    def _learn(self) -> list[Address | None]:
        with self._exclusively():
            owners = self._owners
            if owners is None:
                owners = self._owners = self._ask_servers()
                self._learned_at = time.monotonic()
            return owners

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        lock, taken = self._lock(), [False]
        try:
            with suppress(TimeoutError):
                # In C, because a signal handler may raise between two steps in Python.
                taken[:] = map(lock.acquire, (True,), (min(self._deadline.left(), threading.TIMEOUT_MAX),))
            if not taken[0]:
                raise storage_error(
                    RedisTimeoutError("timed out while another thread was asking for the owners of the slots")
                )
            yield
        finally:
            if taken[0]:
                lock.release()

    def _ask_servers(self) -> list[Address | None]:
        failure = StorageError("no server of the cluster is known")
        for address in list(self.servers):
            try:
                return self._owners_in(self._ask(address), address)
            except (StorageError, ValueError, TypeError, LookupError, OverflowError) as error:  # noqa: PERF203 - to try the next
                self._ask_last(address)
                failure = error if isinstance(error, StorageError) else storage_error(error)
                if isinstance(failure.__cause__, (RedisTimeoutError, OSError)):
                    break  # no time is left; the next question starts with another server
        raise failure

    def _owners_in(self, reply: Any, asked: Address) -> list[Address | None]:
        owners: list[Address | None] = [None] * HASH_SLOTS
        known = {asked: None}
        for first, last, *nodes in reply:
            if not 0 <= first <= last < HASH_SLOTS:
                raise ValueError(f"these are no slots: {first!r:.20} to {last!r:.20}")
            addresses = [(_host(node[0]) or asked[0], int(node[1])) for node in nodes]
            owners[first : last + 1] = [addresses[0]] * (last + 1 - first)
            known |= dict.fromkeys(addresses)
        self.servers = list(known | dict.fromkeys(self._start))
        return owners


def _host(given: Any) -> str:
    """The host as text; empty if the server does not know or tell its name."""
    host = given.decode() if isinstance(given, bytes) else given or ""
    return "" if host == "?" else str(host)
