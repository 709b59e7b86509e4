"""Keeps a part of each count for the requests that matter most: a load shedder in one key.

All requests ask for the same key. Those without priority ask with a rule of a smaller count, so the reserved part stays
free for those with priority, and one command decides as usual. (Stripe, "Scaling your API with rate limiters", 2017:
the fleet usage load shedder.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ..engine import ConfigurationError, Rule
from ..engine.algorithms import ALGORITHMS
from ..engine.errors import brief, is_number
from ..engine.rules import changed


@dataclass(frozen=True, slots=True)
class Reserve:
    """The part of each count that is kept for requests of a priority.

    ``Reserve({"critical": 0.2}, priority)`` keeps the last fifth for critical requests. Requests without priority share
    the rest.

    :param parts: by priority, the most important first: numbers above 0 that make less than 1 together.
    :param priority: returns the priority of the current request: a name in ``parts``; any other text or ``None`` for
        the rest.
    :raises ConfigurationError: for anything else; and at start-up, if nothing of a rule is left for the rest.
    """

    parts: Mapping[str, float]
    priority: Callable[[], str | None]

    def __post_init__(self) -> None:
        _check_parts(self.parts)
        if not callable(self.priority):
            raise ConfigurationError(
                f"reserve: priority={brief(self.priority)}: give a callable that returns the priority of the request"
            )

    def check_rules(self, rules: Iterable[Rule]) -> None:
        """Raise :class:`ConfigurationError` unless a part of each of ``rules`` is left for all requests."""
        for rule in rules:
            reject_buckets(rule)
            if not _left_of(rule.count, self._kept_from(None)):
                left = f"leaves nothing of Rule({rule}) for others; reserve less, or raise its count"
                raise ConfigurationError(f"reserve={brief(self.parts)} {left}")

    def rule_for(self, priority: object, rule: Rule) -> Rule:
        """``rule`` without the part that is kept for the priorities before ``priority``. Raises
        :class:`ConfigurationError` for a priority that is not text, and for a rule that cannot reserve anything."""
        if priority is not None and not isinstance(priority, str):
            raise ConfigurationError(f"priority returned {brief(priority)}: return text, or None")
        return _lowered(rule, self._kept_from(priority))

    def _kept_from(self, priority: str | None) -> Fraction:
        """The sum of the parts of all priorities before ``priority``."""
        kept = Fraction(0)
        for name, part in self.parts.items():
            if name == priority:
                break
            kept += _exactly(part)
        return kept


def _check_parts(parts: object) -> None:
    shown = f"reserve={brief(parts)}"
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigurationError(f'{shown}: give parts by priority, such as Reserve({{"critical": 0.2}}, priority)')
    for name, part in parts.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{shown}: a priority is text, not {brief(name)}")
        if not is_number(part) or not 0 < part < 1:
            raise ConfigurationError(f"{shown}: a part is above 0 and below 1, not {brief(part)}")
    if sum(map(_exactly, parts.values())) >= 1:
        raise ConfigurationError(f"{shown}: give less than 1 in all, or nothing is left for others")


@lru_cache(maxsize=1024)
def _lowered(rule: Rule, kept: Fraction) -> Rule:
    reject_buckets(rule)
    if not kept:
        return rule
    count = max(_left_of(rule.count, kept), 1)
    lease = None if rule.lease is None or count < 2 else min(rule.lease, count)
    return changed(rule, count=count, lease=lease)


def reject_buckets(rule: Rule) -> None:
    """Raise :class:`ConfigurationError` for a rule that cannot reserve anything."""
    if "burst" in rule.implementation.PARAMETERS:
        # Their state is an instant. To a smaller bucket, the state of a larger one looks like an error of the clock.
        takers = [name for name, algorithm in ALGORITHMS.items() if "burst" not in algorithm.PARAMETERS]
        raise ConfigurationError(f"reserve works with {', '.join(takers)}, not with {rule.algorithm}; leave it out")


def _left_of(units: int, kept: Fraction) -> int:
    return math.floor(units * (1 - kept))


def _exactly(part: float) -> Fraction:
    """``part`` as it was written: 0.2 is exactly a fifth, not the nearest binary number."""
    return Fraction(str(part))
