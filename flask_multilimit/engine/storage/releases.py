"""Slots that several threads give back at once, for a storage that waits for the answer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ..errors import StorageError
from ..forks import notify_child
from ..threads import Lazy
from .base import Lost, Slot


class ReleaseBatcher:
    """Gives slots back in one command: while one thread waits for the answer, others put theirs into a queue, and the
    next thread takes all of them. Thread-safe, fork-safe."""

    def __init__(self) -> None:
        self._begin()
        notify_child(self)

    def _begin(self) -> None:
        self._queue: deque[tuple[Sequence[Slot], Lost]] = deque()
        self._releasing = Lazy(lambda: threading.Lock())  # noqa: PLW0108 - what it is may be patched until then

    def _after_fork_in_child(self) -> None:
        self._begin()

    def release(self, slots: Sequence[Slot], lost: Lost, release: Callable[[Sequence[Slot]], object]) -> None:
        """Return once ``release`` has been called with ``slots``, among others. If it failed, each ``lost`` is called.
        Of several threads, the first one's ``release`` is called for all."""
        self._queue.append((slots, lost))
        with self._releasing():
            leaving = [self._queue.popleft() for _ in range(len(self._queue))]
            if not leaving:  # another thread has taken it along
                return
            try:
                release([slot for together, _ in leaving for slot in together])
            except StorageError as error:
                for _, each_lost in leaving:
                    each_lost(error)
