"""Storages by the names of Flask-Limiter, and the ways to use them by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flask_multilimit import ConfigurationError
from flask_multilimit.engine import Hit, Limiter, Storage, StorageError, hits_for

from .items import Granularity, RateLimitItem

ALGORITHMS = {
    "fixed-window": "fixed_window",
    "moving-window": "sliding_window",
    "sliding-window-counter": "sliding_window_counter",
}
"""Algorithms by the name of the strategy."""

_OURS = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "valkey",
    "valkeys": "valkeys",
    "redis+unix": "unix",
    "valkey+unix": "unix",
    "unix": "unix",
    "redis+sentinel": "redis+sentinel",
    "valkey+sentinel": "redis+sentinel",
    "redis+cluster": "redis+cluster",
    "valkey+cluster": "redis+cluster",
    "rediss+sentinel": "rediss+sentinel",
    "rediss+cluster": "rediss+cluster",
    "local": "local",
}
"""Our names of schemes."""
_CLIENTS = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss", "unix": "unix"}
"""Our schemes for one server, and redis-py's names for them."""
_NOT_OF_THE_CLIENT = ("key_prefix", "wrap_exceptions")
"""Options about keys and errors of Flask-Limiter, which have no meaning here."""


def storage_from(uri: str, options: Mapping[str, Any]) -> Any:
    """The argument of ``MultiLimit(storage=...)`` for a URI of Flask-Limiter: a URI of ours, or a client made with
    ``options``. Raises :class:`ConfigurationError` for a server that cannot check several limits in one step."""
    scheme, _, rest = uri.partition("://")
    if scheme == "memory":
        return "memory://"
    ours = _OURS.get(scheme)
    if ours is None:
        raise ConfigurationError(
            f'storage {scheme}://: use "redis://host:6379" or "valkey://host:6379", or on one machine "local://" '
            "(pip install 'flask-multilimit[local]'); others cannot check several limits in one step"
        )
    given = {name: value for name, value in options.items() if name not in _NOT_OF_THE_CLIENT}
    if not given:
        return f"{ours}://{rest}"
    import redis  # noqa: PLC0415 - no other storage needs it

    if "connection_pool" in given:
        return redis.Redis(**given)
    if ours not in _CLIENTS:
        raise ConfigurationError(
            f"storage options {', '.join(given)}: write them into the URI, or make the client yourself and give it to "
            "MultiLimit(app, storage=...) before the Limiter"
        )
    return redis.Redis.from_url(f"{_CLIENTS[ours]}://{rest}", **given)


class WindowStats(NamedTuple):
    """The state of a quota."""

    reset_time: float
    """Seconds since the epoch."""
    remaining: int


class StorageOfApp:
    """The value of ``Limiter.storage``."""

    def __init__(self, limiter: Limiter, reset: Callable[[], None]) -> None:
        self._limiter = limiter
        self._reset = reset

    @property
    def storage(self) -> Storage:
        """The storage object of flask_multilimit."""
        return self._limiter.storage

    def check(self) -> bool:
        """Whether it answers."""
        try:
            self.storage.peek(hits_for("1/minute", scope="flask_multilimit.compat"))
        except StorageError:
            return False
        return True

    def reset(self) -> None:
        """Reset all quotas of the app."""
        self._reset()


class Strategy:
    """The value of ``Limiter.limiter``: checks limits by hand, given an item and the identifiers of the client.

    An item is like ``RequestLimit.limit``, or one of the package limits.
    """

    def __init__(self, limiter: Limiter, algorithm: str, prefix: str) -> None:
        self._limiter = limiter
        self._algorithm = algorithm
        self._prefix = prefix

    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        """Take ``cost`` units if so many are left. Return whether they were."""
        hits = self._hits(item, identifiers, cost)
        return bool(hits) and self._limiter.check(hits).allowed

    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        """Whether ``cost`` units are left."""
        hits = self._hits(item, identifiers, cost)
        return bool(hits) and self._limiter.peek(hits).allowed

    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        hits = self._hits(item, identifiers, 1)
        if not hits:
            return WindowStats(time.time() + item.get_expiry(), 0)
        (status,) = self._limiter.peek(hits).statuses
        return WindowStats(time.time() + (status.retry_after or status.reset_after), status.remaining)

    def clear(self, item: RateLimitItem, *identifiers: str) -> None:
        """Reset the quota."""
        self._limiter.reset(self._hits(item, identifiers, 1))

    def _hits(self, item: RateLimitItem, identifiers: tuple[str, ...], cost: int) -> tuple[Hit, ...]:
        *subject, scope = map(str, identifiers) if identifiers else ("",)
        own = _item_from(item)
        if not own.amount:
            return ()
        rule = own.rule(self._algorithm)
        return hits_for(rule, scope=scope, subject="/".join(subject), type="limit", cost=cost, prefix=self._prefix)


def _item_from(item: Any) -> RateLimitItem:
    """``item`` as one of ours; it may be one of the package limits."""
    if isinstance(item, RateLimitItem):
        return item
    return RateLimitItem(item.amount, item.multiples, Granularity(*item.GRANULARITY))
