"""Decides which shapes of plans this process compiles: those that it checks repeatedly, up to a maximum.

Servers before Redis 7.4 and Valkey 8 keep each script until they restart. Later ones keep the 500 most recently used
scripts that came by EVAL, as ours do. Rules that depend on the request can have any number of shapes. So a process
compiles a shape only after some checks, and only a limited number of shapes. All others use the generic script, of
which there is one for each set of algorithms.

Limits that change while a process runs leave shapes behind that nobody checks any more. Such a shape gives its place to
another one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from ...forks import tell_child
from ...hits import Hit
from .compiled import Compiled, Shape, can_be_compiled, compiled, shape_of

WORTH = 16
"""The number of checks of a shape after which it is compiled."""
MOST_COMPILED = 64
"""The most compiled shapes that a process has at a time."""
MOST_EVER = 512
"""The most different scripts that a process compiles in its life: a server may keep each of them."""
MOST_COUNTED = 512
"""The most shapes whose checks are counted. Beyond that, the oldest count is forgotten."""
UNUSED = 600.0
"""A compiled shape gives its place to another one after so many seconds in which no hits of it were made."""


@dataclass(slots=True, eq=False, repr=False)
class Learned:
    """What is known about one shape."""

    shape: Shape
    checks: int = 0
    script: Compiled | None = None
    """``None`` until it is compiled."""
    used: float = 0.0
    """When hits of this shape were last made, by the clock of the shapes."""


class Shapes:
    """Compiles a shape after ``worth`` checks, in one thread, while others go on with the generic script. If threads
    collide, a count may be off by a few, which does no harm. Fork-safe.

    Hits keep what they send (:func:`.memoized`). So a check of compiled hits does not come here, and hits of a shape
    that has lost its place go on with its script.
    """

    def __init__(
        self,
        worth: float = WORTH,
        clock: Callable[[], float] = monotonic,
        compile_shape: Callable[[Shape], Compiled] = compiled,
    ) -> None:
        self._worth, self._clock, self._compile_shape = worth, clock, compile_shape
        self._compiled: dict[Shape, Learned] = {}
        self._counted: OrderedDict[Shape, Learned] = OrderedDict()
        self._full_until = 0.0
        """Before this, no shape gives up its place."""
        self._made: set[Shape] = set()
        """The shapes that were ever compiled: a shape that comes back has the same script again."""
        self._compiling = threading.Lock()
        tell_child(self)

    @property
    def compiled(self) -> int:
        """The number of shapes that are compiled."""
        return len(self._compiled)

    def of(self, hits: tuple[Hit, ...]) -> Learned | None:
        """What is known about the shape of ``hits``; ``None`` if they always use the generic script."""
        shape = shape_of(hits)
        if shape is None:
            return None
        known = self._compiled.get(shape)
        if known is not None:
            known.used = self._clock()
            return known
        known = self._counted.get(shape)
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
        if learned.script is not None or not self._has_room_for(learned):  # another thread has just compiled it
            return
        learned.script = self._compile_shape(learned.shape)
        learned.used = self._clock()
        self._made.add(learned.shape)
        self._counted.pop(learned.shape, None)
        self._compiled[learned.shape] = learned

    def _has_room_for(self, learned: Learned) -> bool:
        """Whether ``learned`` may be compiled. If all places are taken, the least recently used shape gives up its own
        if it has been unused for long."""
        if len(self._made) >= MOST_EVER and learned.shape not in self._made:
            return False
        if len(self._compiled) < MOST_COMPILED:
            return True
        now = self._clock()
        if now < self._full_until:
            return False
        oldest = min(list(self._compiled.values()), key=lambda each: each.used)
        if now < oldest.used + UNUSED:
            self._full_until = oldest.used + UNUSED
            return False
        self._compiled.pop(oldest.shape, None)
        return True


SHAPES = Shapes()
"""Shared by all storages of a process, and by a child with its parent."""
