"""Storages answer checks: the protocol, its implementations, and the layers around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import DENY_SECONDS as DENY_SECONDS
from .base import LOADED_WHEN_USED, load
from .base import LONGEST_DENY_SECONDS as LONGEST_DENY_SECONDS
from .base import Clocked as Clocked
from .base import Confirms as Confirms
from .base import HoldsUnits as HoldsUnits
from .base import Inspectable as Inspectable
from .base import KeepsSlots as KeepsSlots
from .base import Lost as Lost
from .base import Scripted as Scripted
from .base import Slot as Slot
from .base import Storage as Storage
from .base import StoredKey as StoredKey
from .base import is_storage as is_storage
from .base import layers_of as layers_of
from .evaluate import decide as decide
from .evaluate import settle as settle
from .layers import Layers as Layers
from .layers import with_leases as with_leases
from .layers.health import Health as Health
from .memory import MemoryStorage as MemoryStorage
from .schemes import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from .schemes import SCHEMES as SCHEMES
from .schemes import Scheme as Scheme
from .schemes import storage_from as storage_from
from .schemes import storage_from_uri as storage_from_uri
from .tallies import KeepsTallies as KeepsTallies
from .tallies import Tallies as Tallies
from .tallies import Tally as Tally

if TYPE_CHECKING:
    from .cluster import ClusterStorage as ClusterStorage
    from .layers.deny_cache import DenyCache as DenyCache
    from .layers.guard import GuardedStorage as GuardedStorage
    from .layers.leases import LeasingStorage as LeasingStorage
    from .local import LocalStorage as LocalStorage
    from .redis.storage import RedisStorage as RedisStorage


def __getattr__(name: str) -> Any:
    if name in LOADED_WHEN_USED:
        return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
