"""A storage that uses a compiled script for every check that can have one, under the clock of a test.

In production a process compiles only scripts of frequent checks, and always uses the server's clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from flask_multilimit.engine import Decision, Hit, RedisStorage
from flask_multilimit.engine.hits import calendars_of, new_id
from flask_multilimit.engine.reply import completed
from flask_multilimit.engine.storage.redis.compiled import Compiled, Shape, can_be_compiled, compiled, shape_of


@lru_cache(maxsize=4096)
def compiled_of_tests(shape: Shape, *, clocked: bool) -> Compiled | None:
    return compiled(shape, clocked=clocked) if can_be_compiled(shape) else None


class CompiledStorage(RedisStorage):
    """``next_id`` is the id of the next check, for tests that compare several storages."""

    next_id: bytes | None = None

    def check(self, hits: tuple[Hit, ...], check_id: UUID | None = None) -> Decision:
        shape = shape_of(hits)
        script = None if shape is None else compiled_of_tests(shape, clocked=self.clock is not None)
        if check_id is not None or script is None:
            return super().check(hits, check_id)
        new, self.next_id = self.next_id or new_id(), None
        self.confirm()  # the storage sends releases by another connection, and does not wait for replies
        keys = [hit.key for hit in hits]
        now = [] if self.clock is None else [self.clock()]
        boundaries = [self._boundaries(hits)] if calendars_of(hits) else []
        answer: Any = self._command(self._client.eval, script.text, len(hits), *keys, *boundaries, new, *now)
        reply = completed(answer, len(hits), script.frame)
        assert reply is not None
        return Decision(new, hits, reply)
