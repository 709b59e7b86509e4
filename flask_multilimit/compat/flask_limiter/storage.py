"""Storages by the names of Flask-Limiter, and the ways to use quotas by hand."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode

from flask_multilimit import ConfigurationError, Decision, Rule
from flask_multilimit.engine import Hit, Hits, Limiter, RuleStatus, Storage, StorageError, hits_for, storage_from_uri

from .items import GRANULARITIES, MOST_STRIKES, RateLimitItem

ALGORITHMS = {
    "fixed-window": "fixed_window",
    "moving-window": "sliding_window",
    "sliding-window-counter": "sliding_window_counter",
}
"""Algorithms by the name of the strategy."""

_SINGLE_SERVER = ("redis", "rediss", "valkey", "valkeys")
"""Schemes whose host is localhost if the URI names none, as in redis-py."""
_OTHERS = ("unix", "local", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
_IGNORED_OPTIONS = ("key_prefix", "wrap_exceptions", "use_replicas")
"""Flask-Limiter's options about keys, errors and replicas, which have no meaning here."""


def storage_from(uri: str, options: Mapping[str, Any]) -> Any:
    """The argument of ``MultiLimit(storage=...)`` for a URI of Flask-Limiter: a URI of ours, or a client made with
    ``options``. Raises :class:`ConfigurationError` for a server that cannot check several limits in one step."""
    scheme, _, rest = uri.partition("://")
    if scheme == "memory":
        return "memory://"
    ours = scheme.replace("valkey", "redis") if "+" in scheme else scheme
    ours = "unix" if ours == "redis+unix" else ours
    if ours not in (*_SINGLE_SERVER, *_OTHERS):
        raise ConfigurationError(
            f'storage {scheme}://: use "redis://host:6379" or "valkey://host:6379", or on one machine "local://" '
            "(pip install 'flask-multilimit[local]'); others cannot check several limits in one step"
        )
    if ours in _SINGLE_SERVER:
        login, at, place = rest.rpartition("@")
        rest = f"{login}{at}localhost{place}" if place[:1] in {"", ":", "/", "?"} else rest
    given = {name: value for name, value in options.items() if name not in _IGNORED_OPTIONS}
    if given:
        try:
            return _client(ours, rest, given)
        except (TypeError, ValueError) as error:
            named = ", ".join(map(str, given))
            raise ConfigurationError(f"RATELIMIT_STORAGE_OPTIONS or storage_options ({named}): {error}") from None
    return f"{ours}://{_with_login_of_sentinels(rest) if ours.endswith('+sentinel') else rest}"


def _with_login_of_sentinels(rest: str) -> str:
    """A URI without its scheme, whose user and password are also those of the sentinels, as in Flask-Limiter."""
    login, at, _ = rest.rpartition("@")
    if not at or "sentinel_password=" in rest:
        return rest
    user, _, password = login.partition(":")
    own = {"sentinel_username": unquote(user), "sentinel_password": unquote(password)}
    return f"{rest}{'&' if '?' in rest else '?'}{urlencode({name: value for name, value in own.items() if value})}"


def _client(scheme: str, rest: str, options: dict[str, Any]) -> Any:
    """A client object of redis-py, made with ``options``. Raises ``TypeError`` or ``ValueError`` if they are wrong."""
    from flask_multilimit.engine import RedisStorage  # noqa: PLC0415 - imports redis-py, which no other storage needs

    client = _made(scheme, rest, options)
    if not scheme.endswith("+cluster"):  # which raises them itself
        RedisStorage(client)
    return client


def _made(scheme: str, rest: str, options: dict[str, Any]) -> Any:
    redis: Any = import_module("redis")  # no other storage needs it
    if "connection_pool" in options:
        if not isinstance(options["connection_pool"], redis.ConnectionPool):
            raise ConfigurationError("give a pool of redis, for Valkey, too")
        return redis.Redis(**options)
    if scheme == "local":
        raise ConfigurationError("local:// takes none")
    server, _, kind = scheme.replace("valkey", "redis").partition("+")
    if not kind:
        url = f"{server}://{rest}"
        storage_from_uri(url)  # its errors tell the option that is wrong, and no password
        return redis.Redis.from_url(url, **options)
    login, _, place = rest.rpartition("@")
    user, _, password = login.partition(":")
    given: dict[str, Any] = {"username": unquote(user), "password": unquote(password), "ssl": server == "rediss"}
    options = {name: value for name, value in given.items() if value} | options
    hosts, _, service = place.partition("?")[0].partition("/")
    usual = 26379 if kind == "sentinel" else 6379
    nodes = [(host, int(port or usual)) for host, _, port in (each.partition(":") for each in hosts.split(","))]
    if kind == "cluster":
        return redis.RedisCluster(startup_nodes=[redis.cluster.ClusterNode(*node) for node in nodes], **options)
    service = options.pop("service_name", service)
    of_sentinels = options.pop("sentinel_kwargs", None) or {}  # as in Flask-Limiter, the login is also theirs
    prefixes = ("username", "password", "socket_", *(("ssl",) if server == "rediss" else ()))
    shared = {name: value for name, value in options.items() if name.startswith(prefixes)}
    return redis.Sentinel(nodes, sentinel_kwargs=shared | of_sentinels, **options).master_for(service)


class Terms(NamedTuple):
    """What all checks of a Limiter have in common."""

    algorithm: str
    prefix: str
    on_storage_error: str | None


def hit_for(item: RateLimitItem, identifiers: tuple[str, ...], cost: int, terms: Terms) -> Hit:
    """The hit of ``item``; ``identifiers`` are those of the client, and last the scope. That of a meta limit is a ban,
    or if it lets nothing pass at all, a rule."""
    *subject, scope = identifiers or ("",)
    options: dict[str, Any] = {"scope": scope, "prefix": terms.prefix, "on_storage_error": terms.on_storage_error}
    ban = item.ban(cost) if item.is_meta else None
    if item.is_meta and ban is None:
        item = replace(item, amount=0)
    who = f"{item.type_name}:{'/'.join(subject)}"
    if ban is not None:
        _, hit = hits_for("1/minute", subject=who, ban=ban, **options)  # not the hit of this rule
        return hit
    (hit,) = hits_for(item.rule(terms.algorithm), subject=who, cost=cost, **options)
    return hit


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

    def __init__(self, storage: StorageOfApp) -> None:
        self.storage = storage

    def hit(self, item: Any, *identifiers: Any, cost: int = 1) -> bool:
        """Take ``cost`` units if so many are left. Return whether they were."""
        return self.storage._limiter.check(self._hits(item, identifiers, cost)).allowed

    def test(self, item: Any, *identifiers: Any, cost: int = 1) -> bool:
        """Whether ``cost`` units are left."""
        return self.storage._limiter.peek(self._hits(item, identifiers, cost)).allowed

    def get_window_stats(self, item: Any, *identifiers: Any) -> WindowStats:
        """When the quota is reset, and what is left of it; of a meta limit, how many refusals."""
        if not item.amount:
            return WindowStats(time.time() + item.get_expiry(), 0)
        decision = self._peek(item, *identifiers)
        if decision.bans:
            (ban,) = decision.bans
            return WindowStats(time.time() + ban.reset_after, ban.strikes_left)
        statuses = decision.statuses
        seconds = max(each.retry_after or each.reset_after for each in statuses)
        return WindowStats(time.time() + seconds, min(each.remaining for each in statuses))

    def _peek(self, item: Any, *identifiers: Any) -> Decision:
        """The state of the rules in force: an override may put several in place of the item."""
        return self.storage._limiter.peek(self._hits(item, identifiers, 1))

    def clear(self, item: Any, *identifiers: Any) -> None:
        """Reset the quota."""
        self.storage._limiter.reset(self._hits(item, identifiers, 1))

    def _hits(self, item: Any, identifiers: tuple[Any, ...], cost: int) -> Hits:
        hit = hit_for(RateLimitItem.of(item), tuple(map(str, identifiers)), cost, self.storage._terms)
        return Hits([hit], scope=self.storage.endpoint)


_LADDER = (60, 3600, 86_400, 30 * 86_400, 400 * 86_400)
"""Windows, in seconds, of the counters that keep the expiry of an app's counter as their value."""
_MOST = 10**9
_KEY = re.compile(
    r"LIMITER/(?P<identifiers>.*)/(?P<amount>[0-9]{1,12})/(?P<multiples>[0-9]{1,12})/(?P<unit>[a-z]+)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class StorageOfApp:
    """The value of ``Limiter.storage``: counts by keys of the app's own, and knows those of ``RequestLimit.key``."""

    _limiter: Limiter
    _terms: Terms
    reset: Callable[[], None]
    """Resets all quotas of the app."""
    endpoint: str | None
    """Where limits are checked: its overrides apply to them."""

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

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add to a counter, which ends ``expiry`` seconds after its beginning. Return its value."""
        value = _used(self._limiter.check(self._counter(key, expiry, amount)).statuses)
        if value == amount:  # the first call stores the expiry, because other methods do not get it
            expiry_hits = self._expiry_hits(key)
            self._limiter.reset(expiry_hits)
            rung = next(number for number, window in enumerate(_LADDER) if window >= expiry)
            self._limiter.check([replace(expiry_hits[rung], cost=expiry)])
        return value

    def get(self, key: str) -> int:
        """The value of a counter, or what is used of a quota."""
        return _used(self._statuses(key))

    def get_expiry(self, key: str) -> float:
        """When it ends, in seconds since the epoch."""
        return time.time() + max((status.reset_after for status in self._statuses(key)), default=0)

    def clear(self, key: str) -> None:
        """Reset a counter, or a quota."""
        item, identifiers = _parse_quota_key(key)
        if item is None:
            self._limiter.reset([*self._hits_of(key), *self._expiry_hits(key)])
        elif item.amount > MOST_STRIKES:  # no meta limit has this key
            self._limiter.reset(self._hits_of(key))
        else:
            meta = hit_for(replace(item, is_meta=True), identifiers, 1, self._terms)
            self._limiter.reset(Hits([*self._hits_of(key), meta], scope=self.endpoint))

    def _statuses(self, key: str) -> Sequence[RuleStatus]:
        hits = self._hits_of(key)
        return self._limiter.peek(hits).statuses if hits else ()

    def _hits_of(self, key: str) -> Sequence[Hit]:
        """The hit of a quota, or of a counter if there is one."""
        item, identifiers = _parse_quota_key(key)
        if item is not None:
            return Hits([hit_for(item, identifiers, 1, self._terms)], scope=self.endpoint)
        expiry = _used(self._limiter.peek(self._expiry_hits(key)).statuses)
        return self._counter(key, expiry, 1) if expiry else []

    def _counter(self, key: str, expiry: int, amount: int) -> Hits:
        rule = Rule(time=expiry, count=_MOST, algorithm="fixed_window")
        return hits_for(rule, scope=key, subject="counter:", cost=amount, prefix=self._terms.prefix)

    def _expiry_hits(self, key: str) -> Hits:
        rules = [Rule(time=window, count=_MOST, algorithm="fixed_window") for window in _LADDER]
        return hits_for(rules, scope=key, subject="expiry:", prefix=self._terms.prefix)


def _used(statuses: Sequence[RuleStatus]) -> int:
    return max((status.rule.count - status.remaining for status in statuses), default=0)


def _parse_quota_key(key: str) -> tuple[RateLimitItem | None, tuple[str, ...]]:
    """The limit and the identifiers in a ``RequestLimit.key``; no limit for a key of the app's own."""
    match = _KEY.fullmatch(key)
    if match is None or match["unit"] not in GRANULARITIES:
        return None, ()
    item = RateLimitItem(int(match["amount"]), int(match["multiples"]), GRANULARITIES[match["unit"]])
    return item, tuple(match["identifiers"].rsplit("/", 1))
