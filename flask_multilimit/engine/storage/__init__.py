"""What answers a check: the Storage protocol, its implementations, and the layers around them."""

from __future__ import annotations

from .base import Clocked, Inspectable, KeepsSlots, Scripted, Slot, Storage, StoredKey, layers_of
from .cluster.storage import ClusterStorage
from .evaluate import decide, take_back
from .layers.deny_cache import DENY_SECONDS, LONGEST_DENY_SECONDS, DenyCache
from .layers.guard.guard import GuardedStorage
from .layers.guard.health import Health
from .layers.leases import LeasingStorage
from .layers.stack import Layers, rebuilt, with_leases
from .local.storage import LocalStorage
from .memory import MemoryStorage
from .redis.storage import RedisStorage
from .schemes import DEFAULT_TIMEOUT, SCHEMES, Scheme, is_storage, storage_from, storage_from_uri
from .tallies import KeepsTallies, Tallies, Tally

__all__ = [
    "DEFAULT_TIMEOUT",
    "DENY_SECONDS",
    "LONGEST_DENY_SECONDS",
    "SCHEMES",
    "Clocked",
    "ClusterStorage",
    "DenyCache",
    "GuardedStorage",
    "Health",
    "Inspectable",
    "KeepsSlots",
    "KeepsTallies",
    "Layers",
    "LeasingStorage",
    "LocalStorage",
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
    "rebuilt",
    "storage_from",
    "storage_from_uri",
    "take_back",
    "with_leases",
]
