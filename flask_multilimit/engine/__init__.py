"""The limiter itself. Knows no Flask: a Celery task can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import storage
from .bans import Ban
from .decision import BanStatus, Decision, RuleStatus
from .errors import ConfigurationError, ConfigurationWarning, MultiLimitError, StorageDenied, StorageError
from .hits import Hit, Hits, hits_for
from .limiter import Limiter
from .rules import Calendar, Concurrent, Rule
from .storage import Health, Layers, MemoryStorage, Storage, storage_from_uri

if TYPE_CHECKING:
    from .storage import ClusterStorage, DenyCache, GuardedStorage, LeasingStorage, RedisStorage

__all__ = [
    "Ban",
    "BanStatus",
    "Calendar",
    "ClusterStorage",
    "Concurrent",
    "ConfigurationError",
    "ConfigurationWarning",
    "Decision",
    "DenyCache",
    "GuardedStorage",
    "Health",
    "Hit",
    "Hits",
    "Layers",
    "LeasingStorage",
    "Limiter",
    "MemoryStorage",
    "MultiLimitError",
    "RedisStorage",
    "Rule",
    "RuleStatus",
    "Storage",
    "StorageDenied",
    "StorageError",
    "hits_for",
    "storage_from_uri",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use from ``storage``."""
    if name in __all__:
        return getattr(storage, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
