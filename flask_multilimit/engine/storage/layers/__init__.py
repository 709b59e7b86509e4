"""The order of the layers around a shared storage.

From the outside in: the deny cache, leases, the guard. The deny cache is outside of the leases, because it must not
remember a refusal of units that a lease asked for in advance. The guard is next to the storage, because it decides when
that fails. A storage in this process needs no layers: it cannot fail, and refuses as fast as a cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ...errors import check_logger, is_number, require
from ...hits import OnStorageError, check_policy
from ..base import DENY_SECONDS, LONGEST_DENY_SECONDS, Clocked, Storage, layers_of, load, monotonic_microseconds
from ..forgetting import MOST_KEYS, check_memory_keys
from ..memory import MemoryStorage
from .health import Health, check_on_change, check_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers that a :class:`Limiter` puts around a shared storage, and their options.

    A layer that the storage has already is not added again. The first check of a rule with a ``lease`` adds the layer
    for leases. Raises :class:`ConfigurationError`.
    """

    on_storage_error: OnStorageError = "local"
    """How the guard decides when the storage fails; a hit's own ``on_storage_error`` comes first."""
    workers: int | None = None
    """The number of processes that share the storage; ``None``: count them (:func:`.count_workers`)."""
    memory_keys: int = MOST_KEYS
    """The most keys that this process counts by itself: with ``memory://``, and in an outage."""
    deny_cache: float = DENY_SECONDS
    """The longest time in seconds for which a refusal is remembered; 0: no deny cache."""
    logger: logging.Logger | None = None
    """Gets the log lines of the guard and of full memory; ``None``: the logger ``flask_multilimit``."""
    on_change: Callable[[Health], object] | None = None
    """Called once when the storage begins to fail, and once when it is back."""

    def __post_init__(self) -> None:
        check_policy(self.on_storage_error)
        check_workers(self.workers)
        check_memory_keys(self.memory_keys)
        check_logger(self.logger)
        check_on_change(self.on_change)
        seconds = self.deny_cache
        holds = is_number(seconds) and 0 <= seconds <= LONGEST_DENY_SECONDS
        require(holds, "deny_cache", seconds, f"seconds from 0, which is off, to {LONGEST_DENY_SECONDS:g}")

    def around(self, storage: Storage) -> Storage:
        """``storage`` with its layers, if it is shared."""
        if isinstance(storage, MemoryStorage):
            storage.keep_at_most(self.memory_keys, self.logger)
        if not storage.shared:
            return storage
        clock, guarded_storage, deny_cache = _clock_of(storage), load("GuardedStorage"), load("DenyCache")
        if not _has(guarded_storage, storage):
            storage = guarded_storage(
                storage,
                on_error=self.on_storage_error,
                workers=self.workers,
                logger=self.logger,
                on_change=self.on_change,
                memory_keys=self.memory_keys,
                clock=clock,
            )
        if self.deny_cache and not _has(deny_cache, storage):
            storage = deny_cache(storage, seconds=self.deny_cache, clock=clock)
        return storage


def with_leases(storage: Storage) -> Storage:
    """``storage`` with a :class:`LeasingStorage` in its place among the layers, unless it has one, or has a deny
    cache that is not the outermost layer."""
    leasing_storage, deny_cache = load("LeasingStorage"), load("DenyCache")
    outermost: Any = storage
    if _has(leasing_storage, storage):
        return storage
    clock = _clock_of(storage)
    if isinstance(storage, deny_cache):
        outermost.wrapped = leasing_storage(outermost.wrapped, clock=clock)
        outermost.wrapped.on_units(outermost.forget)
    elif not _has(deny_cache, storage):
        outermost = leasing_storage(storage, clock=clock)
    return cast("Storage", outermost)


def _has(kind: type, storage: Storage) -> bool:
    return any(isinstance(layer, kind) for layer in layers_of(storage))


def _clock_of(storage: Storage) -> Callable[[], int]:
    """The clock of a storage that a test has given one, so that its layers use the same; else that of the process."""
    *_, innermost = layers_of(storage)
    given: Callable[[], int] | None = innermost.clock if isinstance(innermost, Clocked) else None
    return given or monotonic_microseconds
