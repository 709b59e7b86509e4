"""Ban: a subject that is refused repeatedly is refused for a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from .algorithms import BAN, Quota
from .errors import ConfigurationError
from .rules import Rule, called_with, checked, duration_of, fill_rule, time_in_words

MOST_STRIKES = 1000
MOST_FACTOR = 1000


@dataclass(frozen=True, slots=True, init=False)
class Ban:
    """After ``after`` refusals within ``within`` seconds, the subject is refused for ``time`` seconds, and longer each
    time it happens again. Frozen and hashable.

    A refusal by a rule of the limiter that has the ban is a strike. The refusal that completes ``after`` already
    reports the ban. While the ban holds, nothing is a strike: further requests do not extend it.

    A ban that begins within ``most`` seconds after the last one has ended repeats it, and lasts ``factor`` times as
    long, at most ``most``. With a ``factor`` of 1 every ban lasts ``time``.

    :param after: 1 to 1000.
    :param within: seconds (``int`` or ``float``) or a ``timedelta``, 1 ms to 400 days, in whole milliseconds; so are
        ``time`` and ``most``.
    :param factor: 1 to 1000.
    :param most: ``time`` or more.
    :raises ConfigurationError: for any other value; the message names each mistake.
    """

    after: int = 3
    within: int | float = 600
    time: int | float = 3600
    factor: int | float = 2
    most: int | float = 86_400

    def __init__(
        self,
        after: int = 3,
        within: float | timedelta = 600,
        time: float | timedelta = 3600,
        factor: float = 2,
        most: float | timedelta = 86_400,
    ) -> None:
        given = {"after": after, "within": within, "time": time, "factor": factor, "most": most}
        for name, value in checked("Ban", given, _CHECKS).items():
            object.__setattr__(self, name, value)
        if self.most < self.time:
            raise ConfigurationError(
                f"{called_with('Ban', given)}: most={self.most} is less than time={self.time}, which is how long the "
                "first ban lasts"
            )

    @property
    def rule(self) -> BanRule:
        """The rule that it is in a check."""
        return _rule_of(self)

    def __str__(self) -> str:
        time, within, most = map(time_in_words, (self.time, self.within, self.most))
        longer = f", {self.factor:g} times as long each time, at most {most}" if self.factor > 1 else ""
        return f"ban of {time} after {self.after} refusal{'s' * (self.after > 1)} in {within}{longer}"


def _strikes_of(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MOST_STRIKES:
        raise ValueError(f"must be a whole number of refusals from 1 to {MOST_STRIKES}")
    return value


def _factor_of(value: Any) -> float:
    if type(value) not in {int, float} or not 1 <= value <= MOST_FACTOR:
        raise ValueError(f"must be a number from 1, with which all bans last equally long, to {MOST_FACTOR}")
    return float(value)


_CHECKS = {
    "after": _strikes_of,
    "within": duration_of,
    "time": duration_of,
    "factor": _factor_of,
    "most": duration_of,
}


class BanRule(Rule):
    """The rule of the hit that a :class:`Ban` is. Not for ``rules``: a :class:`Ban` goes into ``ban``."""

    __slots__ = ("ban",)
    ban: Ban

    def __init__(self, ban: Ban) -> None:
        first, most = round(ban.time * 1_000_000), round(ban.most * 1_000_000)
        quota = Quota(
            window=round(ban.within * 1000) * 1000,
            count=ban.after,
            burst=0,
            max_delay=0,
            time=first,
            factor=ban.factor,
            most=most,
            memory=most if ban.factor > 1 else 0,
        )
        fill_rule(self, {"time": ban.within, "count": 0, "algorithm": BAN})
        object.__setattr__(self, "quota", quota)
        object.__setattr__(self, "longest_quota", quota)
        object.__setattr__(self, "ban", ban)

    @property
    def window(self) -> str:
        """The part of its name after the type."""
        return BAN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BanRule) and self.ban == other.ban

    def __hash__(self) -> int:
        return hash(self.ban)

    def __reduce__(self) -> tuple[Any, ...]:
        return BanRule, (self.ban,)

    def __str__(self) -> str:
        return str(self.ban)


_rule_of = lru_cache(maxsize=1024)(BanRule)
