"""Which shapes of plans this process has compiled: those it checks again and again, and no more than a bound.

Servers before Redis 7.4 and Valkey 8 keep each script until they restart; later ones keep the 500 most recently used of
those that came by EVAL, as ours do. Rules that depend on the request can have any number of shapes. So a process
compiles a shape only when it has checked it some times, and a bounded number of shapes; all others take the generic
script, of which there is one for each set of algorithms.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ...hits import Hit
from .compiled import Shape, compiled, shape_of
from .scripts import Script

WORTH = 16
"""Checks of a shape after which it is compiled."""
MOST_COMPILED = 64
"""Shapes that a process compiles."""
MOST_COUNTED = 512
"""Shapes whose checks are counted; beyond, the count of the one that was met first is forgotten."""


@dataclass(slots=True)
class Learned:
    """What is known of one shape."""

    shape: Shape
    checks: int = 0
    script: Script | None = None
    """Known when it is compiled."""


class Shapes:
    """Compiles a shape after ``worth`` checks. Counts may be off by a few when threads meet, which does no harm."""

    def __init__(self, worth: float = WORTH) -> None:
        self._worth = worth
        self._learned: OrderedDict[Shape, Learned] = OrderedDict()
        self.compiled: int = 0
        """How many there are."""

    def of(self, hits: tuple[Hit, ...]) -> Learned | None:
        """``None`` for hits that take the generic script for ever."""
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
        """One more check; whether the shape is compiled now."""
        learned.checks += 1
        if learned.script is None and learned.checks > self._worth and self.compiled < MOST_COMPILED:
            self.compiled += 1
            learned.script = compiled(learned.shape)
        return learned.script is not None

    def _forget_one(self) -> None:
        """The one that was met first and is not compiled."""
        for shape, learned in list(self._learned.items()):
            if learned.script is None:
                self._learned.pop(shape, None)
                return


SHAPES = Shapes()
"""Shared by all storages of a process, and by a child with its parent."""
