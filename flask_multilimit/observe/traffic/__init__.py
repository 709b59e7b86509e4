"""Traffic: outcomes and the most refused subjects, counted in each process, sent once a second, read by people."""

from __future__ import annotations

from ..events import OTHERS
from .counts import Check, Counts, Refused, RuleCount, RuleOutcome
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
