"""The limiting algorithms, each a pair of twins: ``NAME.py`` for ``memory://``, ``NAME.lua`` for Redis."""

from __future__ import annotations

from . import sliding_window
from .base import NEVER, Algorithm, Outcome, Quota

ALGORITHMS: dict[str, Algorithm] = {
    "sliding_window": sliding_window,
}
"""Every algorithm by its name. A further one is a pair of files and a line here."""

__all__ = ["ALGORITHMS", "NEVER", "Algorithm", "Outcome", "Quota"]
