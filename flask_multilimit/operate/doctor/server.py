"""Whether a server of Redis or Valkey suits limits."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import RedisError

from ...config import PREFIX
from ...engine import Calendar, Rule
from ...engine.storage import LocalStorage
from ...engine.storage.redis.failures import code_of, storage_error
from ...engine.storage.redis.uri import address_of
from ...insight.health import kept_on_disk
from ...insight.limits import Place
from ...insight.text import duration, plural
from ...serve.gate import AppGate
from . import FIX, Finding, Severity, remedy_for

PINGS = 8
SLOW = 0.010
"""A round trip of this many seconds slows requests down noticeably."""
CLOCK_TOLERANCE = 1.0
MANY_ENTRIES = 10_000
"""Freeing a key with this many entries at once takes noticeable time."""
OLDEST_SERVER = (5,)
"""Older servers do not let a script write after it has read the clock."""


def examine_server(client: Any, gate: AppGate, endpoints: list[Place]) -> Iterator[Finding]:
    address = address_of(client) or "the server"
    try:
        trips = [_timed(client.ping) for _ in range(PINGS)]
        info = _Info(client)
    except (RedisError, OSError) as error:
        yield _mute(address, error) if code_of(error) == "NOPERM" else _unreachable(address, error)
        return
    yield _version(address, info)
    yield _latency(trips, gate.settings.storage_timeout)
    yield _clock(client)
    if info["role"] == "slave":
        yield Finding(
            "role",
            Severity.WRONG,
            f"{address} is a replica: it takes no charges.",
            f"Point {PREFIX}STORAGE_URI at the primary.",
        )
    yield _eviction(info)
    yield _lazy_freeing(client, endpoints)
    if not isinstance(gate.limiter.storage, LocalStorage):
        yield _persistence(client, info, calendars_in(endpoints))


def _mute(address: str, error: Exception) -> Finding:
    """For a server whose user may do what limits need, and nothing else."""
    text = f"{address} answers, but does not let this user look at it: {error}."
    return Finding("storage", Severity.HINT, text, "To look at everything, allow it +ping +info +config|get.")


def _unreachable(address: str, error: Exception) -> Finding:
    text = f"No answer from {address}: {type(error).__name__}: {error}"
    return Finding("storage", Severity.WRONG, text, remedy_for(storage_error(error), FIX))


class _Info:
    """INFO of a server; ``None`` for fields that it does not report."""

    def __init__(self, client: Any) -> None:
        self._fields: dict[str, Any] = client.info()

    def __getitem__(self, name: str) -> Any:
        return self._fields.get(name)


def _version(address: str, info: _Info) -> Finding:
    products = {"valkey_version": "Valkey", "dragonfly_version": "Dragonfly", "redis_version": "Redis"}
    field = next((field for field in products if info[field]), "redis_version")
    version = str(info[field] or "of unknown version")
    text = f"{products[field]} {version} at {address}."
    if field == "redis_version" and _numbers(version) and _numbers(version) < OLDEST_SERVER:
        return Finding("storage", Severity.WRONG, text, "Use Redis 6.2 or later, or Valkey.")
    return Finding("storage", Severity.OK, text)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _latency(trips: list[float], timeout: float) -> Finding:
    """The finding on the times of ``trips``, of which the first had to connect."""
    median, slowest = statistics.median(trips[1:]), max(trips[1:])
    text = f"{_milliseconds(median)} a round trip, the slowest of {len(trips) - 1} {_milliseconds(slowest)}."
    remedy = "Every limited request takes one round trip: put the server nearer to the app."
    most, near = timeout / 2, f" {PREFIX}STORAGE_TIMEOUT is {timeout:g} s."
    if slowest > most:
        return Finding("latency", Severity.WARNING, text + near, remedy)
    if trips[0] > most:
        first = f" The first, which had to connect: {_milliseconds(trips[0])}."
        return Finding("latency", Severity.WARNING, text + first + near, "Leave more time to connect: set it higher.")
    return Finding("latency", Severity.HINT, text, remedy) if median > SLOW else Finding("latency", Severity.OK, text)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _clock(client: Any) -> Finding:
    """The finding on the server's clock, by the sample with the shortest round trip."""
    samples = []
    for _ in range(3):
        begin = time.time()
        seconds, microseconds = client.time()
        end = time.time()
        samples.append((end - begin, seconds + microseconds / 1_000_000 - (begin + end) / 2))
    ahead = min(samples)[1]
    text = f"The server's is {duration(abs(ahead))} {'ahead of' if ahead >= 0 else 'behind'} this machine's."
    if abs(ahead) < CLOCK_TOLERANCE:
        return Finding("clock", Severity.OK, text)
    return Finding(
        "clock",
        Severity.WARNING,
        f"{text} Limits hold all the same: only the server's clock counts. Dates in header fields are off.",
        "Run NTP on both.",
    )


def _eviction(info: _Info) -> Finding:
    policy, most = str(info["maxmemory_policy"] or ""), info["maxmemory"]
    evicted = int(info["evicted_keys"] or 0)
    if not policy or most is None:
        return Finding("eviction", Severity.HINT, "The server does not report its maxmemory-policy.", _KEEP_ALL)
    if not most:
        return Finding("eviction", Severity.OK, "No maxmemory: nothing is evicted.")
    if policy == "noeviction":
        return Finding("eviction", Severity.OK, "noeviction: a full server refuses to charge rather than forget.")
    which = "every key" if policy.startswith("allkeys") else "every key with a TTL, as all of ours have,"
    text = f"maxmemory-policy is {policy}: when memory is full, {which} may be dropped, and with it a limit."
    if evicted:
        text += f" {plural(evicted, 'key')} evicted since the server started."
    return Finding("eviction", Severity.WARNING, text, _KEEP_ALL)


_KEEP_ALL = "Give limits a server of their own with maxmemory-policy noeviction, and enough memory."


def _setting(client: Any, name: str) -> str | None:
    """The setting ``name``; ``None`` if the server does not know it, or does not reveal it, as is common with managed
    ones."""
    try:
        value = client.config_get(name).get(name)
    except RedisError:
        return None
    return None if value is None else str(value)


def _lazy_freeing(client: Any, endpoints: list[Place]) -> Finding:
    most = max((rule.count for rule in _logged(endpoints)), default=0)
    if most < MANY_ENTRIES:
        return Finding(
            "lazy freeing",
            Severity.OK,
            f"Not needed: no key holds more than {plural(most, 'entry', 'entries')}.",
        )
    setting = _setting(client, "lazyfree-lazy-expire")
    text = f"A key of yours can hold {most} entries, and lazyfree-lazy-expire is {setting or 'not known'}."
    if setting == "yes":
        return Finding("lazy freeing", Severity.OK, text)
    return Finding(
        "lazy freeing",
        Severity.HINT,
        f"{text} When it expires, the server blocks while it frees them.",
        "CONFIG SET lazyfree-lazy-expire yes; or an algorithm that keeps a number, such as sliding_window_counter.",
    )


def _logged(endpoints: list[Place]) -> Iterator[Rule]:
    for endpoint in endpoints:
        for listed in endpoint.limiters:
            yield from (rule for _, rule in listed.planned.rules if rule.algorithm == "sliding_window")


def calendars_in(endpoints: list[Place]) -> list[str]:
    """The quotas that must last for a day or longer, in words."""
    rules = (rule for place in endpoints for listed in place.limiters for _, rule in listed.planned.rules)
    return [str(rule) for rule in rules if isinstance(rule, Calendar) and rule.period != "hour"]


def _persistence(client: Any, info: _Info, calendars: list[str]) -> Finding:
    if info["rdb_last_bgsave_status"] == "err" and _setting(client, "stop-writes-on-bgsave-error") != "no":
        return Finding(
            "persistence",
            Severity.WRONG,
            "The last snapshot failed, so the server refuses writes, and with them charges.",
            "Look at its disk and its log; or CONFIG SET stop-writes-on-bgsave-error no.",
        )
    kept = kept_on_disk(client)
    if kept == "all":
        return Finding("persistence", Severity.OK, "Append-only file: a restart keeps the limits.")
    if kept == "snapshots":
        return Finding("persistence", Severity.OK, "Snapshots: a restart forgets what was charged since the last.")
    if calendars:
        return Finding(
            "persistence",
            Severity.WARNING,
            f"None, or not known: after a restart of the server, every quota is full, also {calendars[0]}.",
            "CONFIG SET appendonly yes, and in its configuration file: a quota of a calendar must outlive a restart.",
        )
    return Finding(
        "persistence",
        Severity.HINT,
        f"{'None' if kept == 'nothing' else 'Not known'}: after a restart of the server, every quota is full.",
        "Long windows (days) deserve appendonly yes; short ones hardly need it.",
    )
