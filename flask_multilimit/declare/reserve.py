"""Keeps a part of each count for the requests that matter most: a load shedder in one key.

All requests ask for the same key. Those without priority ask with a rule of a smaller count, so the reserved part stays
free for those with priority, and one command decides as usual. (Stripe, "Scaling your API with rate limiters", 2017:
the fleet usage load shedder.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache

from ..engine import ConfigurationError, Rule
from ..engine.algorithms import ALGORITHMS
from ..engine.errors import brief, is_number

Priority = Callable[[], str | None]
"""Returns the priority of the current request: a name in ``reserve``, or any other text or ``None`` for the rest."""


def check_reserve(reserve: object, rules: tuple[Rule, ...]) -> None:
    """Raise :class:`ConfigurationError` unless ``reserve`` leaves a part of each of ``rules`` for all requests."""
    if not isinstance(reserve, Mapping) or not reserve:
        raise ConfigurationError(f'reserve={brief(reserve)}: give parts by priority, such as {{"critical": 0.2}}')
    for priority, part in reserve.items():
        if not isinstance(priority, str) or not priority:
            raise ConfigurationError(f"reserve={brief(reserve)}: a priority is text, not {brief(priority)}")
        if not is_number(part) or not 0 < part < 1:
            raise ConfigurationError(f"reserve={brief(reserve)}: a part is above 0 and below 1, not {brief(part)}")
    if sum(map(_exactly, reserve.values())) >= 1:
        raise ConfigurationError(f"reserve={brief(reserve)}: give less than 1 in all, or nothing is left for others")
    for rule in rules:
        reject_buckets(rule)
        if not _left_of(rule.count, _kept_from(None, reserve)):
            raise ConfigurationError(
                f"reserve={brief(reserve)} leaves nothing of Rule({rule}) for others; reserve less, or raise its count"
            )


def rule_for(priority: object, reserve: Mapping[str, float], rule: Rule) -> Rule:
    """``rule`` without the part that is reserved for the priorities before ``priority`` in ``reserve``. Raises
    :class:`ConfigurationError` for a priority that is not text, and for a rule that cannot reserve anything."""
    if priority is not None and not isinstance(priority, str):
        raise ConfigurationError(f"priority returned {brief(priority)}: return text, or None")
    return _lowered(rule, _kept_from(priority, reserve))


@lru_cache(maxsize=1024)
def _lowered(rule: Rule, kept: Fraction) -> Rule:
    reject_buckets(rule)
    if not kept:
        return rule
    count = max(_left_of(rule.count, kept), 1)
    lease = None if rule.lease is None or count < 2 else min(rule.lease, count)
    return Rule(rule.time, count, algorithm=rule.algorithm, lease=lease, name=rule.name)


def reject_buckets(rule: Rule) -> None:
    """Raise :class:`ConfigurationError` for a rule that cannot reserve anything."""
    if "burst" in rule.implementation.PARAMETERS:
        # Their state is an instant. To a smaller bucket, the state of a larger one looks like an error of the clock.
        takers = [name for name, algorithm in ALGORITHMS.items() if "burst" not in algorithm.PARAMETERS]
        raise ConfigurationError(f"reserve works with {', '.join(takers)}, not with {rule.algorithm}; leave it out")


def _kept_from(priority: str | None, reserve: Mapping[str, float]) -> Fraction:
    """The sum of the parts of all priorities before ``priority``."""
    kept = Fraction(0)
    for name, part in reserve.items():
        if name == priority:
            break
        kept += _exactly(part)
    return kept


def _left_of(units: int, kept: Fraction) -> int:
    return math.floor(units * (1 - kept))


def _exactly(part: float) -> Fraction:
    """``part`` as it was written: 0.2 is exactly a fifth, not the nearest binary number."""
    return Fraction(str(part))
