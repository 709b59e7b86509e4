"""Token bucket: ``burst`` tokens when full, ``count`` new ones in every ``time``, one taken a unit.

``burst`` is ``count`` unless given. The arithmetic is in ``rate.py``. Twin of ``token_bucket.lua``.
"""

from __future__ import annotations

from . import rate
from .base import COUNTED, Quota, recognise_nothing

PARAMETERS = frozenset({"burst"})
MAX_COST = COUNTED
WITNESS = False
INCLUDES = ("numbers", "span", "rate")

evaluate = rate.evaluate
charge = rate.charge
reset_after = rate.reset_after
refund = rate.refund
recognise = recognise_nothing


def quota(window: int, count: int, burst: int | None, max_delay: int | None) -> Quota:
    return Quota(window, count, burst or count, 0)
