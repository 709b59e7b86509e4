"""A server whose scripts read the clock of a test in place of TIME, for storages that are otherwise as in production.

``RedisStorage(client, clock=...)`` sends the time with each check, on a path of its own. A storage without a clock asks
by the ``Wire``, with packed commands that hits memoize, and compiles the scripts of frequent checks. This module
replaces one word in the prelude of the scripts, so that a test advances the clock of such a storage, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import redis

from flask_multilimit.engine.storage.redis import compiled, scripts, storage
from flask_multilimit.engine.storage.redis.compiled import COMPILE_AFTER, Shapes
from support.clock import Clock

CLOCK_KEY = b"the clock of the test"
GIVEN_TIME = "ARGV[4]"
"""What the prelude reads first, in no other place of a script."""
TIME_OF_TEST = f"call('GETRANGE', '{CLOCK_KEY.decode()}', 0, -1)"
"""Lua that reads the clock by a command that no script of the package has."""


class ServerClock(Clock):
    """A clock that scripts read on the server of ``client``, within :func:`scripts_read_clock_of_test`."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        super().__init__()
        self._reads_before = self._all_reads()

    def set(self, now: int) -> None:
        self._client.set(CLOCK_KEY, now)

    @property
    def reads(self) -> int:
        return self._all_reads() - self._reads_before

    def _all_reads(self) -> int:
        counts: Any = self._client.info("commandstats")
        return int(counts.get("cmdstat_getrange", {"calls": 0})["calls"])


@contextmanager
def scripts_read_clock_of_test(*, compile_after: float = COMPILE_AFTER, time: str = TIME_OF_TEST) -> Iterator[None]:
    """Meanwhile the scripts of this process read the time of a :class:`ServerClock`, or other Lua. A shape is compiled
    after ``compile_after`` checks, as in a process that has just started."""
    whole_source = scripts.source

    def source(name: str) -> str:
        return whole_source(name).replace(GIVEN_TIME, time)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "source", source)
        patch.setattr(scripts, "script", cache(scripts.script.__wrapped__))
        patch.setattr(compiled, "source", source)
        patch.setattr(storage, "SHAPES", Shapes(compile_after))
        yield
