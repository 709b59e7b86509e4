"""Storages answer checks: the protocol, its implementations, and the layers around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import (
    DENY_SECONDS,
    LOADED_WHEN_USED,
    LONGEST_DENY_SECONDS,
    Clocked,
    Confirms,
    HoldsUnits,
    Inspectable,
    KeepsSlots,
    Lost,
    Scripted,
    Slot,
    Storage,
    StoredKey,
    is_storage,
    layers_of,
    load,
)
from .evaluate import decide, settle
from .layers import Layers, with_leases
from .layers.health import Health
from .memory import MemoryStorage
from .schemes import DEFAULT_TIMEOUT, SCHEMES, Scheme, storage_from, storage_from_uri
from .tallies import KeepsTallies, Tallies, Tally

if TYPE_CHECKING:
    from .cluster import ClusterStorage
    from .layers.deny_cache import DenyCache
    from .layers.guard import GuardedStorage
    from .layers.leases import LeasingStorage
    from .local import LocalStorage
    from .redis.storage import RedisStorage

__all__ = [
    "DEFAULT_TIMEOUT",
    "DENY_SECONDS",
    "LONGEST_DENY_SECONDS",
    "SCHEMES",
    "Clocked",
    "ClusterStorage",
    "Confirms",
    "DenyCache",
    "GuardedStorage",
    "Health",
    "HoldsUnits",
    "Inspectable",
    "KeepsSlots",
    "KeepsTallies",
    "Layers",
    "LeasingStorage",
    "LocalStorage",
    "Lost",
    "MemoryStorage",
    "RedisStorage",
    "Scheme",
    "Scripted",
    "Slot",
    "Storage",
    "StoredKey",
    "Tallies",
    "Tally",
    "decide",
    "is_storage",
    "layers_of",
    "settle",
    "storage_from",
    "storage_from_uri",
    "with_leases",
]


def __getattr__(name: str) -> Any:
    if name in LOADED_WHEN_USED:
        return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
