"""The bench of the engine's tests: a limiter under the clock of the test, and short ways to use it."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.cluster import RedisCluster
from redis.exceptions import ResponseError

from flask_multilimit.engine import Hit, Limiter, RedisStorage, Rule, StorageError, hits_for
from flask_multilimit.engine.rules import Rules
from flask_multilimit.engine.storage import storage_from
from flask_multilimit.engine.storage.schemes import DEFAULT_TIMEOUT
from support.clock import Clock
from support.server_clock import CLOCK_KEY
from support.waiting import until


@dataclass(frozen=True, slots=True)
class Bench:
    """A limiter on an empty storage under a clock of the test."""

    limiter: Limiter
    clock: Clock
    client: redis.Redis | RedisCluster | None
    """A client of the server or the cluster; ``None`` in memory."""

    def stored(self) -> dict[bytes, tuple[bytes | None, int]]:
        """The dump of each key, with the instant at which it expires. Empty in memory, whose state only a peek shows.

        In a cluster the instant is 0, because a charge that is taken back may move it to a later time.
        """
        client = self.client
        if client is None:
            return {}
        if isinstance(self.limiter.storage, RedisStorage):
            self.limiter.storage.confirm()  # it sends releases by another connection, and does not wait for replies
        if isinstance(client, RedisCluster):
            return {key: (client.dump(key), 0) for key in self.keys()}
        return {key: (client.dump(key), dies_at(client, key)) for key in self.keys()}

    def keys(self) -> list[bytes]:
        """The keys of limits on the server or the cluster; none in memory."""
        return [] if self.client is None else [key for key in self.client.scan_iter() if key != CLOCK_KEY]


def dies_at(client: redis.Redis, key: str | bytes) -> int:
    """The millisecond at which the key expires; -2 if there is no such key, -1 if it never expires."""
    try:
        return int(client.execute_command("PEXPIRETIME", key))  # type: ignore[no-untyped-call]
    except ResponseError:  # Redis 6.2 does not know it
        return _died_at_by_ttl(client, key)


def _died_at_by_ttl(client: redis.Redis, key: str | bytes) -> int:
    """The sum of the server's time and the rest of the key's life, both read within one millisecond."""
    while True:
        together: Any = client.pipeline()
        (seconds, before), left, (_, after) = together.time().pttl(key).time().execute()
        if left < 0:
            return int(left)
        if before // 1000 == after // 1000:
            return int(seconds * 1000 + before // 1000 + left)


def hits(rules: Rules = "5/minute", *, scope: str = "api", subject: str = "ada", cost: int = 1) -> tuple[Hit, ...]:
    return hits_for(rules, scope=scope, subject=f"user:{subject}", cost=cost)


def connect(limiter: Limiter, plan: tuple[Hit, ...]) -> None:
    """Connect to the servers of ``plan``, which may take a busy machine longer than the timeout of ``limiter``."""

    def connects() -> bool:
        with suppress(StorageError):
            return limiter.peek(plan).allowed
        return False

    until(connects)


def rule(algorithm: str, time: float = 10, count: int = 5, name: str | None = None) -> Rule:
    """A rule that admits ``count`` units at once: of all algorithms, ``gcra`` alone needs a ``burst`` for that."""
    return Rule(time, count, algorithm=algorithm, burst=count if algorithm == "gcra" else None, name=name)


def exhaust(limiter: Limiter, wanted: tuple[Hit, ...], *, most: int = 1000) -> int:
    """Check until a check is refused; returns the number of admitted checks."""
    for admitted in range(most):
        if not limiter.check(wanted).allowed:
            return admitted
    raise AssertionError(f"{most} checks were admitted, and no end")


def bare(given: Any, *, timeout: float = DEFAULT_TIMEOUT) -> Limiter:
    """A limiter on a URI or a client, without layers: each check asks the server, and each failure of the server is an
    error. A long ``timeout`` lets a test pass on a busy machine."""
    return Limiter(storage_from(given, timeout=timeout))
