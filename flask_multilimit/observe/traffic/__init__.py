"""Traffic: outcomes and the most refused subjects, counted in each process, sent once a second, read by people."""

from __future__ import annotations

from ..events import OTHERS as OTHERS
from .counts import Check as Check
from .counts import Counts as Counts
from .counts import Refused as Refused
from .counts import RuleCount as RuleCount
from .counts import RuleOutcome as RuleOutcome
from .reading import RecentBans as RecentBans
from .reading import RecentTraffic as RecentTraffic
from .reading import TopSubject as TopSubject
from .reading import TrafficReader as TrafficReader
from .reading import reader_of as reader_of
