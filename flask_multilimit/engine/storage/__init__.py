"""What answers a check: the Storage protocol, its implementations, and the way to one from a URI."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, cast

from redis.cluster import RedisCluster

from ..errors import ConfigurationError, brief
from .base import Clocked, Inspectable, Storage, StoredKey, layers_of
from .cluster.storage import ClusterStorage
from .layers.deny_cache import DENY_SECONDS, LONGEST_DENY_SECONDS, DenyCache
from .layers.guard.guard import GuardedStorage, Health
from .layers.leases import LeasingStorage
from .local.storage import LocalStorage
from .memory import MemoryStorage
from .redis.sentinel import SCHEMES as SENTINEL_SCHEMES
from .redis.storage import RedisStorage
from .redis.uri import redacted

DEFAULT_TIMEOUT = 0.1
"""Seconds that a connection may take to be made, and then that an answer may take."""

_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""Schemes of one server, and what redis-py calls them."""

_CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")


def storage_from_uri(uri: str, *, timeout: float = DEFAULT_TIMEOUT) -> Storage:
    """The storage at ``uri``: ``memory://``; ``local://``; ``redis://``, ``rediss://``, ``unix://``, ``valkey://`` or
    ``valkeys://``; ``redis+sentinel://`` or ``rediss+sentinel://``; ``redis+cluster://`` or ``rediss+cluster://``.

    ``timeout`` is in seconds. No connection is made here. Raises :class:`ConfigurationError`.
    """
    scheme, separator, rest = uri.partition("://")
    if scheme == "memory" and separator and not rest:
        return MemoryStorage()
    if scheme == "local" and separator:
        return LocalStorage.from_path(rest, timeout=timeout)
    if scheme in _SCHEMES and rest:
        return RedisStorage.from_url(f"{_SCHEMES[scheme]}://{rest}", timeout=timeout)
    if scheme in SENTINEL_SCHEMES and rest:
        return RedisStorage.from_url(uri, timeout=timeout)
    if scheme in _CLUSTER_SCHEMES and rest:
        return ClusterStorage.from_uri(uri, timeout=timeout)
    known = ", ".join(f"{name}://" for name in ("memory", "local", *_SCHEMES, *SENTINEL_SCHEMES, *_CLUSTER_SCHEMES))
    raise ConfigurationError(
        f'storage URI {redacted(uri)!r}: not one of {known}, for instance "redis://localhost:6379/0"'
    )


def storage_from(given: Any, *, timeout: float = DEFAULT_TIMEOUT) -> Storage:
    """A storage as it is, a URI's, or one around an existing client object of ``redis``."""
    if isinstance(given, str):
        return storage_from_uri(given, timeout=timeout)
    if _is_storage(given):
        return cast("Storage", given)
    if iscoroutinefunction(getattr(given, "execute_command", None)):
        raise ConfigurationError(
            f"storage={type(given).__name__} of {type(given).__module__}: a check does not await its answer; "
            "give a client that is not async, such as redis.Redis(...), or a URI"
        )
    if isinstance(given, RedisCluster):
        return ClusterStorage.from_client(given)
    if hasattr(given, "evalsha") and not isinstance(given, type):
        return RedisStorage(given)
    if hasattr(given, "master_for"):
        raise ConfigurationError("storage=Sentinel(...): give a client of the primary: sentinel.master_for(NAME)")
    shown = brief(given, without_secrets=redacted)
    raise ConfigurationError(f"storage={shown}: give a URI, a client object of redis, or a Storage")


_MEMBERS = ("check", "peek", "check_many", "refund", "reset", "close", "shared")


def _is_storage(given: object) -> bool:
    """``isinstance`` would not find what an object hands on by ``__getattr__``, from Python 3.12 on."""
    return not isinstance(given, type) and all(hasattr(given, name) for name in _MEMBERS)


__all__ = [
    "DEFAULT_TIMEOUT",
    "DENY_SECONDS",
    "LONGEST_DENY_SECONDS",
    "Clocked",
    "ClusterStorage",
    "DenyCache",
    "GuardedStorage",
    "Health",
    "Inspectable",
    "LeasingStorage",
    "LocalStorage",
    "MemoryStorage",
    "RedisStorage",
    "Storage",
    "StoredKey",
    "layers_of",
    "storage_from",
    "storage_from_uri",
]
