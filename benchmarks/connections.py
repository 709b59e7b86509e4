"""Compares TCP with a unix socket, and shows what `max_connections` does to eight threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from flask_multilimit.engine import Limiter, StorageError, storage_from_uri

from .contenders import OURS, PATIENCE, Calls, guarded, ours_of
from .measure import Call, Variant, figures_of, in_turn
from .results import Figure, median_of
from .setting import Setting
from .threads import rate_of

PART = "connections"
RULES = "3 rules"
TCP, UNIX = "redis:// over TCP", "unix://"
THREADS = 8
MOST = (8, 4, 2)


def measure(setting: Setting) -> Iterator[Figure]:
    with setting.server_on_one_core() as server:
        calls: Calls = {}
        for case, url in ((TCP, server.tcp_url), (UNIX, server.url)):
            calls[Variant(OURS, case)] = ours_of(guarded(url))[Variant(OURS, RULES)]
            calls[Variant("PING through redis-py", case)] = redis.Redis.from_url(url).ping
        samples = in_turn(calls, rounds=setting.rounds(300), server=server.pid)
    yield from figures_of(PART, samples)
    for who in (OURS, "PING through redis-py"):
        both = zip(samples[Variant(who, UNIX)], samples[Variant(who, TCP)], strict=True)
        yield median_of(PART, who, UNIX, "times TCP", (unix.wall / tcp.wall for unix, tcp in both))
    with setting.server() as server:
        yield from _with_few_connections(setting, server.tcp_url)


def _with_few_connections(setting: Setting, url: str) -> Iterator[Figure]:
    pools: dict[str, Callable[[], Any]] = {"no limit": lambda: storage_from_uri(url, timeout=PATIENCE)}
    for most in MOST:
        pools[f"max_connections={most}"] = functools.partial(
            storage_from_uri, f"{url}?max_connections={most}", timeout=PATIENCE
        )
        pools[f"BlockingConnectionPool of {most}"] = functools.partial(_waiting, url, most)
    for who, storage in pools.items():
        limiter = Limiter(storage())
        call = ours_of(limiter)[Variant(OURS, RULES)]
        rates, failed = [], []
        for _ in range(setting.rounds(10)):
            asked = _Asked(call)
            rate = rate_of(asked, THREADS)
            rates.append(rate * (1 - asked.share_failed))
            failed.append(100 * asked.share_failed)
        limiter.close()
        yield median_of(PART, who, f"{THREADS} threads", "decisions a second", rates)
        yield median_of(PART, who, f"{THREADS} threads", "% failed", failed)


class _Asked:
    """A call that counts how often it fails. (Two threads may miss a count, which does not matter for a share.)"""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._calls = self._failures = 0

    def __call__(self) -> None:
        self._calls += 1
        try:
            self._call()
        except StorageError:
            self._failures += 1

    @property
    def share_failed(self) -> float:
        return self._failures / self._calls


def _waiting(url: str, most: int) -> redis.Redis:
    """A client whose callers wait for a connection instead of failing."""
    pool = redis.BlockingConnectionPool.from_url(
        url, max_connections=most, timeout=PATIENCE, protocol=2, retry=Retry(NoBackoff(), 0)
    )
    return redis.Redis(connection_pool=pool)
