"""GCRA, the generic cell rate algorithm: one unit every ``time / count``, and ``burst`` of them at once.

Without ``burst`` it is 1: units are evenly spaced, never two at once. (ITU-T I.371 and ATM Forum TM 4.0: increment
``time / count``, limit ``(burst - 1) x time / count``.) The arithmetic is in ``rate.py``. Twin of ``gcra.lua``.
"""

from __future__ import annotations

from .base import COUNTED, Quota
from .rate import charge as charge
from .rate import drop_future as drop_future
from .rate import evaluate as evaluate
from .rate import reset_after as reset_after
from .rate import settle as settle

PARAMETERS = frozenset({"burst"})
MAX_COST = COUNTED
INCLUDES = ("numbers", "span", "rate")

recognise = None


def quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    return Quota(window, count, burst or 1, 0)
