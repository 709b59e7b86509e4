"""GCRA, the generic cell rate algorithm: one unit every ``time / count``, and ``burst`` of them at once.

Without ``burst`` it is 1: units are evenly spaced, never two at once. (ITU-T I.371 and ATM Forum TM 4.0: increment
``time / count``, limit ``(burst - 1) x time / count``.) The arithmetic is in ``rate.py``. Twin of ``gcra.lua``.
"""

from __future__ import annotations

from .base import COUNTED, Quota, recognise_nothing
from .rate import charge, drop_future, evaluate, reset_after, settle

PARAMETERS = frozenset({"burst"})
MAX_COST = COUNTED
REMEMBERS_IDS = False
INCLUDES = ("numbers", "span", "rate")

recognise = recognise_nothing

# Not assignments (charge = rate.charge): type checkers of users could infer other types for these.
__all__ = [
    "INCLUDES",
    "MAX_COST",
    "PARAMETERS",
    "REMEMBERS_IDS",
    "charge",
    "drop_future",
    "evaluate",
    "quota",
    "recognise",
    "reset_after",
    "settle",
]


def quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    return Quota(window, count, burst or 1, 0)
