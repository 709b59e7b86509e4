"""Token bucket: ``burst`` tokens when full, ``count`` new ones in every ``time``; each unit takes one.

Without ``burst`` it is ``count``. The arithmetic is in ``rate.py``. Twin of ``token_bucket.lua``.
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
    return Quota(window, count, burst or count, 0)
