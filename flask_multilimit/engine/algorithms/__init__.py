"""The limiting algorithms, each a pair of twins: ``NAME.py`` for ``memory://``, ``NAME.lua`` for Redis."""

from __future__ import annotations

from typing import cast

from . import (
    ban,
    calendar,
    concurrency,
    fixed_window,
    gcra,
    leaky_bucket,
    sliding_window,
    sliding_window_counter,
    token_bucket,
)
from .base import NEVER as NEVER
from .base import UNKNOWN as UNKNOWN
from .base import Algorithm as Algorithm
from .base import Outcome as Outcome
from .base import Quota as Quota

ALGORITHMS: dict[str, Algorithm] = {
    "sliding_window": sliding_window,
    "fixed_window": fixed_window,
    "sliding_window_counter": sliding_window_counter,
    "token_bucket": token_bucket,
    "leaky_bucket": leaky_bucket,
    "gcra": gcra,
    "concurrency": concurrency,
}
"""Every algorithm by its name. To add one, add a pair of files and a line here, or from outside the package a module
with its ``NAME.lua`` beside it, and run ``ALGORITHMS["NAME"] = module`` before the first rule that uses it."""

BAN = "ban"
CALENDAR = "calendar"
_RESERVED: dict[str, Algorithm] = {BAN: cast("Algorithm", ban), CALENDAR: calendar}
"""The algorithms of bans and calendars, by their names in keys and scripts. ``Rule`` does not take these names."""

SHIPPED: frozenset[Algorithm] = frozenset((*ALGORITHMS.values(), *_RESERVED.values()))
"""The algorithms of this package."""

SLIDING: frozenset[str] = frozenset(("sliding_window", "sliding_window_counter"))
"""Algorithms whose ``reset_after`` does not say when the next unit comes back. A charge of the last unit says it in
``remaining`` (``engine/reply.py``)."""

EVENLY: frozenset[str] = frozenset(name for name, algorithm in ALGORITHMS.items() if "rate" in algorithm.INCLUDES)
"""Algorithms whose units come back one after another, at an even rate."""


def algorithm_of(name: str) -> Algorithm:
    """The algorithm of a rule, of a calendar or of a ban."""
    return _RESERVED.get(name) or ALGORITHMS[name]
