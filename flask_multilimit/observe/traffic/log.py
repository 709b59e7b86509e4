"""The default log: one line a minute while something is refused."""

from __future__ import annotations

import logging
import time
from collections import Counter as Amounts
from collections.abc import Callable
from typing import Literal

from ...engine.forks import notify_child
from ...engine.text import SafeLogger
from ..events import TURNED_AWAY, Outcome
from .counts import Counts

Log = Literal["summary", "subjects", "off"]
"""``summary``: endpoints and rules; ``subjects``: also the subjects that are refused most; ``off``: no line."""

MINUTE = 60.0
NAMED = 5
"""The most rules that a line names, those that refuse most."""
NAMED_SUBJECTS = 3
"""The most subjects that a line names, those that are refused most."""


class RefusalLog:
    """Sums up refusals, and logs them a minute after the first one. Not thread-safe."""

    def __init__(
        self, logger: logging.Logger, *, subjects: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = SafeLogger(logger)
        self._names_subjects = subjects
        self._clock = clock
        self._counts = Counts()
        self._since: float | None = None
        notify_child(self)

    def _after_fork_in_child(self) -> None:
        """The parent logs what it has counted."""
        self._since = None

    def add(self, counts: Counts) -> None:
        if self._since is None:
            if not any(check.outcome in TURNED_AWAY for check in counts.checks):
                return
            self._counts, self._since = Counts(), self._clock()
        self._counts.add(counts)

    def log_if_due(self, *, at_once: bool = False) -> bool:
        """Log if the minute is over, or ``at_once``. Return whether there is something left to log."""
        if self._since is None:
            return False
        seconds = self._clock() - self._since
        if seconds < MINUTE and not at_once:
            return True
        self._logger.info("Rate limits: %s", line_of(self._counts, seconds, subjects=self._names_subjects))
        self._since = None
        return False


def line_of(counts: Counts, seconds: float, *, subjects: bool) -> str:
    """``180 refused in 60 s: search by ip-60s 178, login by user-60s 2``."""
    totals = Amounts[Outcome]()
    for check, amount in counts.checks.items():
        totals[check.outcome] += amount
    outcomes = [
        f"{totals[outcome]} {outcome}" for outcome in ("refused", "banned", "denied", "unanswered") if outcome in totals
    ]
    line = f"{', '.join(outcomes)} in {max(round(seconds), 1)} s"
    rules = {f"{each.endpoint} by {each.rule}": n for each, n in counts.rules.items() if each.did == "refuses"}
    if rules:
        line += f": {_ranked(rules, NAMED)}"
    if subjects and counts.refused:
        who = {f"{each.type} {each.subject}": n for each, n in counts.refused.items()}
        line += f". Refused most: {_ranked(who, NAMED_SUBJECTS)}"
    return line


def _ranked(amounts: dict[str, int], most: int) -> str:
    first = Amounts(amounts).most_common(most)
    more = [f"and {len(amounts) - most} more"] if len(amounts) > most else []
    return ", ".join([*(f"{name} {amount}" for name, amount in first), *more])
