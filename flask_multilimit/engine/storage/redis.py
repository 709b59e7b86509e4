"""Redis and Valkey: one EVALSHA a check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from ..decision import Charge, Decision, Hit
from ..errors import ConfigurationError, StorageError
from .scripts import Script, script_for

SERVER_CLOCK: bytes = b""
"""In place of an instant: let the script read the server's own clock."""


class RedisStorage:
    """Quotas in a server that all processes share.

    ``client`` is a client object of ``redis`` (``Redis``, ``RedisCluster``, a Sentinel's master) and stays its
    owner's: its time-outs and retries are used as they are. ``clock``, for tests, returns microseconds that
    take the place of the server's clock.
    """

    shared = True

    def __init__(self, client: Any, *, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._clock = clock
        self._owns_client = False

    @classmethod
    def from_url(cls, url: str, *, timeout: float) -> RedisStorage:
        """A storage with a client of its own, which waits at most ``timeout`` seconds for a connection and for a
        reply, and does not try again behind our back (redis-py's defaults wait for seconds)."""
        try:
            client = Redis.from_url(
                url,
                protocol=2,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"storage URI {redacted(url)!r}: {error}") from None
        storage = cls(client)
        storage._owns_client = True
        return storage

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        if check_id is not None:
            return self._ask(b"repeat", hits, check_id)
        check_id = uuid4()
        try:
            return self._ask(b"check", hits, check_id)
        except StorageError as error:
            # The connection was lost, before or after the charge: only the script can tell, by the id.
            if type(error.__cause__) is RedisConnectionError and _has_witness(hits):
                return self._ask(b"repeat", hits, check_id)
            raise

    def peek(self, hits: tuple[Hit, ...]) -> Decision:
        return self._ask(b"peek", hits, uuid4())

    def check_many(self, many: Sequence[tuple[Hit, ...]]) -> list[Decision]:
        ids = [uuid4() for _ in many]
        calls = [self._call_of("check", hits, b"check", id_.bytes) for hits, id_ in zip(many, ids, strict=True)]
        with self._client.pipeline(transaction=False) as pipeline:
            for script in {script.sha: script for script, _ in calls}.values():
                pipeline.script_load(script.text)
            for script, arguments in calls:
                pipeline.evalsha(script.sha, *arguments)
            replies = self._command(pipeline.execute)[-len(calls) :] if calls else []
        return [self._decision(*answer) for answer in zip(ids, many, replies, strict=True)]

    def refund(self, check_id: UUID, charges: Sequence[Charge]) -> None:
        hits = tuple(charge.hit for charge in charges)
        self._run("refund", hits, b"", check_id.bytes, *(charge.until for charge in charges))

    def reset(self, keys: Sequence[str]) -> None:
        if keys:
            self._command(self._client.unlink, *keys)

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

    def _ask(self, mode: bytes, hits: tuple[Hit, ...], check_id: UUID) -> Decision:
        return self._decision(check_id, hits, self._run("check", hits, mode, check_id.bytes))

    @staticmethod
    def _decision(check_id: UUID, hits: tuple[Hit, ...], reply: Any) -> Decision:
        if not isinstance(reply, list) or len(reply) != 2 + 3 * len(hits):
            raise StorageError(f"the reply to a check of {len(hits)} hits has the wrong shape: {reply!r:.80}")
        return Decision.from_reply(check_id, hits, reply)

    def _run(self, driver: str, hits: tuple[Hit, ...], mode: bytes, check_id: bytes, *more: int) -> Any:
        script, arguments = self._call_of(driver, hits, mode, check_id, *more)
        try:
            return self._client.evalsha(script.sha, *arguments)
        except NoScriptError:
            # Not known yet, flushed, or a fail-over went to a server that never saw it. EVAL also loads it.
            return self._command(self._client.eval, script.text, *arguments)
        except (RedisError, OSError) as error:
            raise _storage_error(error) from error

    def _call_of(
        self, driver: str, hits: tuple[Hit, ...], mode: bytes, check_id: bytes, *more: int
    ) -> tuple[Script, list[Any]]:
        """The script and what it is called with, as the head of each Lua driver says."""
        script = script_for(driver, (hit.rule.algorithm for hit in hits))
        now = SERVER_CLOCK if self._clock is None else self._clock()
        keys = [hit.key for hit in hits]
        return script, [len(hits), *keys, mode, check_id, now, *[hit.packed for hit in hits], *more]

    @staticmethod
    def _command(command: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except (RedisError, OSError) as error:
            raise _storage_error(error) from error


def redacted(url: str) -> str:
    """``url`` without user and password."""
    scheme, separator, rest = url.partition("://")
    credentials, at, address = rest.rpartition("@")
    return f"{scheme}{separator}***@{address}" if at and credentials else url


def _has_witness(hits: tuple[Hit, ...]) -> bool:
    return any(hit.cost and hit.rule.twin.WITNESS for hit in hits)


def _storage_error(error: Exception) -> StorageError:
    return StorageError(f"the rate limit storage gave no answer: {type(error).__name__}: {error}")
