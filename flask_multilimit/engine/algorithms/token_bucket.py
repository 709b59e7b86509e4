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

charge = rate.charge
drop_future = rate.drop_future
evaluate = rate.evaluate
reset_after = rate.reset_after
settle = rate.settle
recognise = recognise_nothing


def quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    return Quota(window, count, burst or count, 0)
