"""The protocol of a storage, which answers checks atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from time import monotonic_ns, time_ns
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from ..decision import Charge, Decision
from ..errors import ConfigurationError, StorageError, is_number, require
from ..hits import Hit

LONGEST_TIMEOUT = 60
"""The longest time that can be set for a server's answer, in seconds."""
DENY_SECONDS = 1.0
"""The longest time for which a deny cache remembers a refusal, by default."""
LONGEST_DENY_SECONDS = 60.0
"""The longest such time that can be set."""


class StoredKey(NamedTuple):
    """A key in the storage."""

    key: str
    ttl: float | None
    """Seconds until it expires if there are no requests; ``None`` if it never does."""


@runtime_checkable
class Storage(Protocol):
    """Keeps the state of every key, and answers each check atomically. Thread-safe.

    ``hits`` are never empty and have different keys; :class:`Limiter` makes sure of that.

    Every failure is a :class:`StorageError`, whatever the storage is made of, with the original error as its cause. Its
    attributes tell the guard what to do:

    - ``no_reply``: no answer came, or too late. The guard asks once more before it opens its breaker.
    - ``key_specific``: only checks of these keys fail. The breaker stays closed.
    - ``check_id``: the id of the check that may have been charged, if the storage has chosen it. The guard repeats the
      check with this id, so that it is charged once. ``check_ids``: the same for each check of a batch.
    - ``decisions``: the decisions, by these ids, of checks of a batch that did not fail.
    - ``remedy``: what the operator can do.

    A storage that wraps another one has it as its attribute ``wrapped``.
    """

    shared: bool
    """Whether all processes that use this address see the same quotas."""

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        """Evaluate all hits at one instant; charge all if all allow, otherwise none. One round trip.

        ``check_id`` is given if an earlier attempt may have been charged: then it is not charged again. Only algorithms
        that keep ids recognise it; one such hit is enough (in a cluster, one in each slot).
        """

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        """What :meth:`check` would answer, without charging."""

    def check_many(self, many: Sequence[tuple[Hit, ...]], ids: Sequence[UUID] | None = None) -> list[Decision]:
        """One check after another, each all or nothing, with as few round trips as possible.

        ``ids``, one per check, are given if the checks may have been charged already, as for :meth:`check`.
        """

    def settle(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        """Change each of the ``charges`` of the check ``check_id``, at least one, to its ``units``. Units that were
        charged too much are given back where they were charged, unless they no longer count; missing units are charged
        now, even beyond the count. The caller settles a charge once."""

    def reset(self, keys: Sequence[str]) -> None:
        """Forget ``keys``: their quotas are full again."""

    def close(self) -> None:
        """Close the connections that this storage has opened."""


class Slot(NamedTuple):
    """What a check has taken from a :class:`.Concurrent` rule: as many units as its hit costs."""

    check_id: bytes
    hit: Hit


@runtime_checkable
class KeepsSlots(Protocol):
    """A storage that can check :class:`.Concurrent` rules."""

    def release(self, slots: Sequence[Slot], lost: Lost | None = None) -> None:
        """Release slots of any number of checks in one round trip. Slots that are gone already are ignored. With
        ``lost``, the storage need not wait for the answer: it calls ``lost`` if the slots may still be in use."""

    def renew(self, slots: Sequence[Slot]) -> None:
        """Restart the timeout of slots whose work goes on, in one round trip. Slots that the storage has lost or let
        expire are taken again, even beyond the count. So if a slot is released while its renewal is under way, the
        caller must release it again afterwards."""


Lost = Callable[[StorageError], object]
"""Called, in any thread and at most once, with the reason why slots may not have been released."""


@runtime_checkable
class Confirms(Protocol):
    """A storage that releases slots without waiting for the answer."""

    def confirm(self) -> None:
        """Read the answers for which nobody has waited."""


@runtime_checkable
class Inspectable(Protocol):
    """A storage that can list its keys, for people and never for a check."""

    def keys(self, prefix: str, limit: int | None = None, *, containing: str = "") -> list[StoredKey]:
        """The keys that begin with ``prefix`` and have ``containing`` after it, in order, at most ``limit`` of them.
        Raises :class:`StorageError`."""


@runtime_checkable
class Scripted(Protocol):
    """A storage that runs scripts in the shared server, off the request path."""

    def run_script(self, script: str, keys: Sequence[str], arguments: Sequence[bytes]) -> Any:
        """The reply to a Lua ``script``, whose ``keys`` lie in one slot. Raises :class:`StorageError`."""


@runtime_checkable
class Clocked(Protocol):
    """A storage whose clock can be replaced, for tests."""

    clock: Any
    """Returns microseconds, from any origin; ``None``: the server's own clock."""


@runtime_checkable
class HoldsUnits(Protocol):
    """A layer that holds units, charged in advance, and reports when it has units again."""

    def on_units(self, call: Callable[[Sequence[str]], object]) -> None:
        """From now on, ``call``, too, with the keys of which this process has units again."""

    def __len__(self) -> int:
        """The number of quotas of which it has had units, spent or not."""


LOADED_WHEN_USED = {
    "ClusterStorage": "cluster",
    "DenyCache": "layers.deny_cache",
    "GuardedStorage": "layers.guard",
    "LeasingStorage": "layers.leases",
    "LocalStorage": "local",
    "RedisStorage": "redis.storage",
}
"""Storages and layers whose modules are imported when they are first used: a process that needs neither them nor
``redis`` starts faster."""


def load(name: str) -> Any:
    """A class of :data:`LOADED_WHEN_USED`."""
    return getattr(import_module(f".{LOADED_WHEN_USED[name]}", __package__), name)


def layers_of(storage: Storage) -> Iterator[Storage]:
    """``storage`` and all storages that it wraps (in the attribute ``wrapped``), down to the one that keeps the
    quotas."""
    layer: Storage | None = storage
    while layer is not None:
        yield layer
        layer = getattr(layer, "wrapped", None)


_MEMBERS = ("check", "peek", "check_many", "settle", "reset", "close", "shared")


def is_storage(given: object) -> bool:
    """Whether ``given`` is a :class:`Storage`. From Python 3.12 on, ``isinstance`` does not find attributes that come
    from ``__getattr__``."""
    has_members = not isinstance(given, type) and all(hasattr(given, name) for name in _MEMBERS)
    return has_members and isinstance(given.shared, bool)  # type: ignore[attr-defined] # a Mock has all attributes


ORIGIN = (time_ns() - monotonic_ns()) // 1000
"""Microseconds from 1970 to the origin of the clock of this process."""


def monotonic_microseconds() -> int:
    """The clock of this process: Unix time when it started, plus the time that has passed since. It never steps
    back."""
    return ORIGIN + monotonic_ns() // 1000


def check_clock(clock: object) -> None:
    """Raise :class:`ConfigurationError` unless ``clock`` is callable."""
    require(callable(clock), "clock", clock, "a callable that returns microseconds")


def check_timeout(timeout: object) -> None:
    """Raise :class:`ConfigurationError` unless ``timeout`` is a time-out for a server's answers, in seconds."""
    holds = is_number(timeout) and 0 < timeout <= LONGEST_TIMEOUT
    require(holds, "timeout", timeout, f"seconds above 0, at most {LONGEST_TIMEOUT}")


def check_storage(given: object, layer: str) -> None:
    """Raise :class:`ConfigurationError` unless ``given`` is a storage, which ``layer`` can wrap."""
    if not is_storage(given):
        shown = given.__name__ if isinstance(given, type) else f"a {type(given).__name__}"
        raise ConfigurationError(f"{layer} around {shown}: give a Storage, such as storage_from_uri(URI)")
