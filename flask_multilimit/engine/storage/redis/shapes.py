"""Decides which shapes of plans this process compiles: those that it checks repeatedly, up to a maximum.

Servers before Redis 7.4 and Valkey 8 keep each script until they restart. Later ones keep the 500 most recently used
scripts that came by EVAL, as ours do. Rules that depend on the request can have any number of shapes. So a process
compiles a shape only after some checks, and only a limited number of shapes. All others use the generic script, of
which there is one for each set of algorithms.

Limits that change while a process runs leave shapes behind that nobody checks any more. Such a shape gives its place to
another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from ...hits import Hit
from ...text import SafeLogger
from .compiled import CannotBeCompiled, Compiled, Shape, compiled, shape_of

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

_logger = SafeLogger()


@dataclass(slots=True, eq=False, repr=False)
class Learned:
    """What is known about one shape."""

    shape: Shape
    checks: int = 0
    script: Compiled | None = None
    """``None`` until it is compiled."""
    stays_generic: bool = False
    """Whether it has no compiled script that would work."""
    used: float = 0.0
    """When hits of this shape were last made, by the clock of the shapes."""


class Shapes:
    """Compiles a shape after ``worth`` checks. If threads collide, a count may be off by a few, which does no harm.

    Hits keep what they send (:func:`.memoized`). So a check of compiled hits does not come here, and hits of a shape
    that has lost its place go on with its script.
    """

    def __init__(self, worth: float = WORTH, clock: Callable[[], float] = monotonic) -> None:
        self._worth, self._clock = worth, clock
        self._compiled: dict[Shape, Learned] = {}
        self._counted: OrderedDict[Shape, Learned] = OrderedDict()
        self._full_until = 0.0
        """Before this, no shape gives up its place."""
        self._made: set[Shape] = set()
        """The shapes that were ever compiled: a shape that comes back has the same script again."""
        self._reported: set[str] = set()

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
            known = self._counted[shape] = Learned(shape)
            if len(self._counted) > MOST_COUNTED:
                self._counted.popitem(last=False)
        return None if known.stays_generic else known

    def note(self, learned: Learned) -> bool:
        """Count one more check. Return whether the shape is compiled now."""
        learned.checks += 1
        if (
            learned.checks > self._worth
            and learned.script is None
            and not learned.stays_generic
            and self._has_room_for(learned)
        ):
            self._compile(learned)
        return learned.script is not None

    def refused(self, learned: Learned, reason: object) -> None:
        """A server rejects the compiled script: the shape keeps to the generic one."""
        if learned.stays_generic:
            return
        learned.script, learned.stays_generic = None, True
        self._compiled.pop(learned.shape, None)
        self._counted[learned.shape] = learned
        names = ", ".join(sorted({each.algorithm for each in learned.shape}))
        if names in self._reported:
            return
        self._reported.add(names)
        _logger.warning(
            "Rate limits: the server rejects the script that is compiled for a plan of %s: %s. Such plans are checked "
            "by the generic script, which takes longer. Nothing else changes; please report this with the algorithm's "
            "Lua.",
            names,
            reason,
        )

    def _compile(self, learned: Learned) -> None:
        try:
            learned.script = compiled(learned.shape)
        except CannotBeCompiled:
            learned.stays_generic = True
            return
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
