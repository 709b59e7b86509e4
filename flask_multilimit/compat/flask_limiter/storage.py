"""Storages by the names of Flask-Limiter, and the ways to use quotas by hand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlencode

from flask_multilimit import ConfigurationError
from flask_multilimit.engine import Hit, Hits, Limiter, RuleStatus, Storage, StorageError, hits_for

from .items import GRANULARITIES, RateLimitItem

ALGORITHMS = {
    "fixed-window": "fixed_window",
    "moving-window": "sliding_window",
    "sliding-window-counter": "sliding_window_counter",
}
"""Algorithms by the name of the strategy."""

_OURS = {
    **{scheme: scheme for scheme in ("redis", "rediss", "valkey", "valkeys", "unix", "local")},
    **{f"{server}+unix": "unix" for server in ("redis", "valkey")},
    **{
        f"{server}{tls}+{kind}": f"redis{tls}+{kind}"
        for server in ("redis", "valkey")
        for tls in ("", "s")
        for kind in ("sentinel", "cluster")
    },
}
"""Our names of schemes."""
_NOT_OF_THE_CLIENT = ("key_prefix", "wrap_exceptions", "use_replicas")
"""Options about keys, errors and replicas of Flask-Limiter, which have no meaning here."""


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
    if ours == "local":
        raise ConfigurationError(f"storage options {', '.join(given)}: local:// takes none")
    return (
        _with_query(f"{ours}://{rest}", given)
        if "+" in ours
        else _client(f"{ours.replace('valkey', 'redis')}://{rest}", given)
    )


def _client(uri: str, options: Mapping[str, Any]) -> Any:
    """A client object of redis-py, whose options may be objects."""
    redis: Any = import_module("redis")  # no other storage needs it
    if "connection_pool" in options:
        return redis.Redis(**options)
    return redis.Redis.from_url(uri, **options)


def _with_query(uri: str, options: Mapping[str, Any]) -> str:
    """The URI of sentinels or of a cluster with ``options`` in its query, as text."""
    given = dict(options)
    service, of_sentinels = given.pop("service_name", ""), given.pop("sentinel_kwargs", None) or {}
    scheme, _, rest = uri.partition("://")
    if given.pop("ssl", False):
        scheme = scheme.replace("redis+", "rediss+")
    place, _, query = rest.partition("?")
    if service:
        place = f"{place.partition('/')[0]}/{service}"
    given |= {f"sentinel_{name}": value for name, value in of_sentinels.items()}
    if objects := [name for name, value in given.items() if not isinstance(value, (str, int, float))]:
        raise ConfigurationError(
            f"storage options {', '.join(objects)}: sentinels and clusters take text and numbers alone; give a client "
            "object to MultiLimit(app, storage=...), and leave RATELIMIT_STORAGE_URI out"
        )
    return f"{scheme}://{place}?{'&'.join(filter(None, (query, urlencode(given))))}"


class Terms(NamedTuple):
    """How a Limiter asks."""

    algorithm: str
    prefix: str
    on_storage_error: str | None


def hit_for(item: RateLimitItem, identifiers: tuple[str, ...], cost: int, terms: Terms) -> Hit:
    """The hit of ``item``; ``identifiers`` are those of the client, and last the scope."""
    (hit,) = _hits(item, item.rule(terms.algorithm), identifiers, terms, cost=cost)
    return hit


def ban_for(item: RateLimitItem, identifiers: tuple[str, ...], cost: int, terms: Terms) -> Hit:
    """The hit of a meta limit: a ban, or if it lets nothing pass at all, a rule."""
    ban = item.ban(cost)
    if ban is None:
        return hit_for(replace(item, amount=0), identifiers, cost, terms)
    *_, hit = _hits(item, "1/minute", identifiers, terms, ban=ban)  # the hit of this rule is not used
    return hit


def _hits(item: RateLimitItem, rules: Any, identifiers: tuple[str, ...], terms: Terms, **more: Any) -> Hits:
    *subject, scope = identifiers or ("",)
    policy: Any = terms.on_storage_error
    whose: dict[str, Any] = {"scope": scope, "subject": "/".join(subject), "type": item.type_name}
    return hits_for(rules, prefix=terms.prefix, on_storage_error=policy, **whose, **more)


class WindowStats(NamedTuple):
    """The state of a quota."""

    reset_time: float
    """Seconds since the epoch."""
    remaining: int


class Strategy:
    """The value of ``Limiter.limiter``: checks limits by hand, given an item and the identifiers of the client.

    An item is like ``RequestLimit.limit``, or one of the package limits. With the ``request_args`` of a
    ``RequestLimit``, or the same texts, it is the quota of that limit.
    """

    def __init__(self, limiter: Limiter, terms: Terms, storage: StorageOfApp) -> None:
        self._limiter = limiter
        self._terms = terms
        self.storage = storage

    def hit(self, item: Any, *identifiers: Any, cost: int = 1) -> bool:
        """Take ``cost`` units if so many are left. Return whether they were."""
        return self._limiter.check(self._hits(item, identifiers, cost)).allowed

    def test(self, item: Any, *identifiers: Any, cost: int = 1) -> bool:
        """Whether ``cost`` units are left."""
        return self._limiter.peek(self._hits(item, identifiers, cost)).allowed

    def get_window_stats(self, item: Any, *identifiers: Any) -> WindowStats:
        """When the quota is reset, and what is left of it."""
        if not item.amount:
            return WindowStats(time.time() + item.get_expiry(), 0)
        (status,) = self._limiter.peek(self._hits(item, identifiers, 1)).statuses
        return WindowStats(time.time() + (status.retry_after or status.reset_after), status.remaining)

    def clear(self, item: Any, *identifiers: Any) -> None:
        """Reset the quota."""
        self._limiter.reset(self._hits(item, identifiers, 1))

    def _hits(self, item: Any, identifiers: tuple[Any, ...], cost: int) -> Hits:
        own = RateLimitItem.of(item)
        make = ban_for if own.is_meta else hit_for
        return Hits([make(own, tuple(map(str, identifiers)), cost, self._terms)])


_KEY = re.compile(
    r"LIMITER/(?P<identifiers>.*)/(?P<amount>[0-9]{1,12})/(?P<multiples>[0-9]{1,12})/(?P<unit>[a-z]+)", re.DOTALL
)


class StorageOfApp:
    """The value of ``Limiter.storage``: asks about quotas, and resets them, by the keys of ``RequestLimit.key``."""

    def __init__(self, limiter: Limiter, terms: Terms, reset: Callable[[], None]) -> None:
        self._limiter = limiter
        self._terms = terms
        self.reset = reset
        """Resets all quotas of the app."""

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

    def get(self, key: str) -> int:
        """What is used of a quota; 0 for a key that is not one of a quota."""
        return max((status.rule.count - status.remaining for status in self._statuses(key)), default=0)

    def get_expiry(self, key: str) -> float:
        """When it ends, in seconds since the epoch."""
        return time.time() + max((status.reset_after for status in self._statuses(key)), default=0)

    def clear(self, key: str) -> None:
        """Reset a quota, also that of a meta limit."""
        if (found := _of_quota(key)) is not None:
            item, identifiers = found
            hits = [hit_for(item, identifiers, 1, self._terms)]
            if item.amount:
                hits.append(ban_for(replace(item, is_meta=True), identifiers, 1, self._terms))
            self._limiter.reset(hits)

    def _statuses(self, key: str) -> Sequence[RuleStatus]:
        found = _of_quota(key)
        return () if found is None else self._limiter.peek([hit_for(*found, 1, self._terms)]).statuses


def _of_quota(key: str) -> tuple[RateLimitItem, tuple[str, ...]] | None:
    """The limit and the identifiers of a ``RequestLimit.key``."""
    match = _KEY.fullmatch(key)
    if match is None or match["unit"] not in GRANULARITIES:
        return None
    item = RateLimitItem(int(match["amount"]), int(match["multiples"]), GRANULARITIES[match["unit"]])
    return item, tuple(match["identifiers"].rsplit("/", 1))
