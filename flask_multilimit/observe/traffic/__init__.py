"""Traffic: outcomes and the most refused subjects, counted in each process, sent once a second, read by people."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..events import OTHERS
from .counts import Check, Counts, Refused, RuleCount, RuleOutcome

if TYPE_CHECKING:
    from .reading import BansBegun, RecentTraffic, TopSubject, TrafficReader, reader_of

__all__ = [
    "OTHERS",
    "BansBegun",
    "Check",
    "Counts",
    "RecentTraffic",
    "Refused",
    "RuleCount",
    "RuleOutcome",
    "TopSubject",
    "TrafficReader",
    "reader_of",
]


def __getattr__(name: str) -> Any:
    """Import the readers of traffic on first use: workers only write it."""
    if name in __all__:
        return getattr(import_module(".reading", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
