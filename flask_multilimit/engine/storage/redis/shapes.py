"""Decides which shapes of plans this process compiles: the first ones that it checks repeatedly.

Servers before Redis 7.4 and Valkey 8 keep each script until they restart. Later ones keep the 500 most recently used
scripts that came by EVAL, as ours do. Rules that depend on the request can have any number of shapes. So a process
compiles a shape only after some checks, and only a limited number of shapes in its life. All others use the generic
script, of which there is one for each set of algorithms.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ...forks import notify_child
from ...hits import Hit
from .compiled import Compiled, Shape, can_be_compiled, compiled, shape_of

WORTH = 16
"""The number of checks of a shape after which it is compiled."""
MOST_COMPILED = 256
"""The most shapes that a process compiles."""
MOST_COUNTED = 512
"""The most shapes whose checks are counted. Beyond that, the oldest count is forgotten."""


@dataclass(slots=True, eq=False, repr=False)
class Learned:
    """What is known about one shape."""

    shape: Shape
    checks: int = 0
    script: Compiled | None = None
    """``None`` until it is compiled."""


class Shapes:
    """Compiles a shape after ``worth`` checks, in one thread, while others go on with the generic script. If threads
    collide, a count may be off by a few, which does no harm. Fork-safe.

    Hits keep what they send (:func:`.memoized`), so a check of compiled hits does not come here.
    """

    def __init__(self, worth: float = WORTH, compile_shape: Callable[[Shape], Compiled] = compiled) -> None:
        self._worth, self._compile_shape = worth, compile_shape
        self._compiled: dict[Shape, Learned] = {}
        self._counted: OrderedDict[Shape, Learned] = OrderedDict()
        self._compiling = threading.Lock()
        notify_child(self)

    @property
    def compiled(self) -> int:
        """The number of shapes that are compiled."""
        return len(self._compiled)

    def of(self, hits: tuple[Hit, ...]) -> Learned | None:
        """What is known about the shape of ``hits``; ``None`` if they always use the generic script."""
        shape = shape_of(hits)
        if shape is None:
            return None
        known = self._compiled.get(shape) or self._counted.get(shape)
        if known is None:
            if not can_be_compiled(shape):
                return None
            known = self._counted[shape] = Learned(shape)
            if len(self._counted) > MOST_COUNTED:
                self._counted.popitem(last=False)
        return known

    def note(self, learned: Learned) -> bool:
        """Count one more check. Return whether the shape is compiled now."""
        learned.checks += 1
        if learned.checks > self._worth and learned.script is None and self._compiling.acquire(blocking=False):
            try:
                self._compile(learned)
            finally:
                self._compiling.release()
        return learned.script is not None

    def _after_fork_in_child(self) -> None:
        """No thread of the child process would ever release the lock."""
        self._compiling = threading.Lock()

    def _compile(self, learned: Learned) -> None:
        if learned.script is not None or len(self._compiled) >= MOST_COMPILED:  # another thread has just compiled it
            return
        learned.script = self._compile_shape(learned.shape)
        self._compiled[learned.shape] = learned
        self._counted.pop(learned.shape, None)


SHAPES = Shapes()
"""Shared by all storages of a process, and by a child with its parent."""
