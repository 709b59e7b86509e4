"""Decides which shapes of plans this process compiles: those that it checks repeatedly, up to a maximum.

Servers before Redis 7.4 and Valkey 8 keep each script until they restart. Later ones keep the 500 most recently used
scripts that came by EVAL, as ours do. Rules that depend on the request can have any number of shapes. So a process
compiles a shape only after some checks, and only a limited number of shapes. All others use the generic script, of
which there is one for each set of algorithms.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ...hits import Hit
from .compiled import Compiled, Shape, compiled, shape_of

WORTH = 16
"""The number of checks of a shape after which it is compiled."""
MOST_COMPILED = 64
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
    """Compiles a shape after ``worth`` checks. If threads collide, a count may be off by a few, which does no harm."""

    def __init__(self, worth: float = WORTH) -> None:
        self._worth = worth
        self._learned: OrderedDict[Shape, Learned] = OrderedDict()
        self.compiled: int = 0
        """The number of shapes that are compiled."""

    def of(self, hits: tuple[Hit, ...]) -> Learned | None:
        """What is known about the shape of ``hits``; ``None`` if they always use the generic script."""
        shape = shape_of(hits)
        if shape is None:
            return None
        known = self._learned.get(shape)
        if known is None:
            if self.compiled >= MOST_COMPILED:
                return None
            known = self._learned[shape] = Learned(shape)
            if len(self._learned) > MOST_COUNTED:
                self._forget_one()
        return known

    def note(self, learned: Learned) -> bool:
        """Count one more check. Return whether the shape is compiled now."""
        learned.checks += 1
        if learned.script is None and learned.checks > self._worth and self.compiled < MOST_COMPILED:
            self.compiled += 1
            learned.script = compiled(learned.shape)
        return learned.script is not None

    def _forget_one(self) -> None:
        """Forget the oldest shape that is not compiled."""
        for shape, learned in list(self._learned.items()):
            if learned.script is None:
                self._learned.pop(shape, None)
                return


SHAPES = Shapes()
"""Shared by all storages of a process, and by a child with its parent."""
