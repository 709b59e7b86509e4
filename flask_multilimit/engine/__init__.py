"""The limiter itself. Knows no Flask: a Celery task can use it."""

from __future__ import annotations

from .decision import Decision, RuleStatus
from .errors import ConfigurationError, ConfigurationWarning, MultiLimitError, StorageDenied, StorageError
from .hits import Hit, Hits, hits_for
from .limiter import Limiter
from .rules import Concurrent, Rule
from .storage import (
    ClusterStorage,
    DenyCache,
    GuardedStorage,
    Health,
    Layers,
    LeasingStorage,
    MemoryStorage,
    RedisStorage,
    Storage,
    storage_from_uri,
)

__all__ = [
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
