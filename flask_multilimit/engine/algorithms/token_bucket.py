"""Token bucket: ``burst`` tokens when full, ``count`` new ones in every ``time``; each unit takes one.

Without ``burst`` it is ``count``. The arithmetic is in ``rate.py``. Twin of ``token_bucket.lua``.
"""

from __future__ import annotations

from . import rate
from .base import COUNTED, Quota, recognise_nothing

PARAMETERS = frozenset({"burst"})
MAX_COST = COUNTED
REMEMBERS_IDS = False
INCLUDES = ("numbers", "span", "rate")

evaluate, charge, settle = rate.evaluate, rate.charge, rate.settle
reset_after, drop_future, recognise = rate.reset_after, rate.drop_future, recognise_nothing


def quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    return Quota(window, count, burst or count, 0)
