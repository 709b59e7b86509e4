"""Rate limiting for Flask: stackable limits, all of them checked in one atomic step."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import engine
from .declare.decorators import RateLimiter, exempt, rate_limiter
from .declare.subjects import LimitType
from .engine import (
    BanStatus,
    Concurrent,
    ConfigurationError,
    ConfigurationWarning,
    Decision,
    DenyCache,
    GuardedStorage,
    Health,
    Hit,
    Hits,
    Layers,
    Limiter,
    MemoryStorage,
    MultiLimitError,
    Rule,
    RuleStatus,
    Storage,
    StorageDenied,
    StorageError,
    hits_for,
    storage_from_uri,
)
from .extension import MultiLimit
from .observe.events import Event
from .serve.record import current_decision
from .serve.refusal import AccessDenied, RateLimitExceeded, StorageUnavailable, problem
from .signals import (
    control_changed,
    control_failed,
    limit_event,
    limits_checked,
    request_denied,
    request_rejected,
    rules_failed,
    shadow_rejected,
    storage_failed,
    storage_recovered,
    subject_banned,
)

DEFAULT = LimitType.DEFAULT
GLOBAL = LimitType.GLOBAL
IP = LimitType.IP
USER = LimitType.USER

_ROOMS = {
    "Control": "control.control",
    "ControlConflict": "control.control",
    "Difference": "control.preview",
    "InvalidData": "declare.mistakes",
    "Listing": "control.controls",
    "Mistake": "declare.mistakes",
    "NeedsForce": "control.control",
    "Override": "control.controls",
    "Preview": "control.preview",
    "Who": "declare.who",
    "follow_control": "following",
}
"""Names that are imported on first use: only code that changes limits needs them."""

if TYPE_CHECKING:
    from .control.control import Control, ControlConflict, NeedsForce
    from .control.controls import Listing, Override
    from .control.preview import Difference, Preview
    from .declare.mistakes import InvalidData, Mistake
    from .declare.who import Who
    from .engine import Ban, ClusterStorage, LeasingStorage, RedisStorage
    from .following import follow_control

__all__ = [
    "DEFAULT",
    "GLOBAL",
    "IP",
    "USER",
    "AccessDenied",
    "Ban",
    "BanStatus",
    "ClusterStorage",
    "Concurrent",
    "ConfigurationError",
    "ConfigurationWarning",
    "Control",
    "ControlConflict",
    "Decision",
    "DenyCache",
    "Difference",
    "Event",
    "GuardedStorage",
    "Health",
    "Hit",
    "Hits",
    "InvalidData",
    "Layers",
    "LeasingStorage",
    "LimitType",
    "Limiter",
    "Listing",
    "MemoryStorage",
    "Mistake",
    "MultiLimit",
    "MultiLimitError",
    "NeedsForce",
    "Override",
    "Preview",
    "RateLimitExceeded",
    "RateLimiter",
    "RedisStorage",
    "Rule",
    "RuleStatus",
    "Storage",
    "StorageDenied",
    "StorageError",
    "StorageUnavailable",
    "Who",
    "control_changed",
    "control_failed",
    "current_decision",
    "exempt",
    "follow_control",
    "hits_for",
    "limit_event",
    "limits_checked",
    "problem",
    "rate_limiter",
    "request_denied",
    "request_rejected",
    "rules_failed",
    "shadow_rejected",
    "storage_failed",
    "storage_from_uri",
    "storage_recovered",
    "subject_banned",
]


def __getattr__(name: str) -> Any:
    """Import a name on first use, here or from ``engine``."""
    if name in _ROOMS:
        return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
    if name in __all__:
        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
