"""Token bucket: ``burst`` tokens when full, ``count`` new ones in every ``time``; each unit takes one.

Without ``burst`` it is ``count``. The arithmetic is in ``rate.py``. Twin of ``token_bucket.lua``.
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
    return Quota(window, count, burst or count, 0)
