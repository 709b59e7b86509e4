"""Limits as text: ``"10/minute"``, ``"1 per 2 hours; 100 per day"``, ``"5/second | 100/hour"``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from flask_multilimit import Ban, ConfigurationError, Rule

LONGEST = 1000
"""Characters of a text."""
_SEPARATORS = re.compile("[,;|]")
_ITEM = re.compile(
    r"(?P<amount>[0-9]{1,12})\s*(?:/|per)\s*(?:(?P<multiples>[0-9]{1,12})\s*)?(?P<unit>[a-z]+)",
    re.IGNORECASE | re.ASCII,
)


class Granularity(NamedTuple):
    """A unit of time."""

    seconds: int
    name: str


DAY = 86_400
MOST_STRIKES = 1000
"""The most refusals that a ban waits for."""
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": DAY, "month": 30 * DAY, "year": 360 * DAY}
GRANULARITIES = {name: Granularity(seconds, name) for name, seconds in _UNITS.items()}
"""The units by name. A year is 360 days, as in Flask-Limiter."""


@dataclass(frozen=True, slots=True)
class RateLimitItem:
    """``amount`` per ``multiples`` of a unit of time."""

    amount: int
    multiples: int
    GRANULARITY: Granularity
    namespace: str = "LIMITER"
    is_meta: bool = field(default=False, compare=False)
    """Whether it is that of a meta limit, which counts refusals."""
    declared: RateLimitItem | None = field(default=None, compare=False)
    """What was declared, if an override has changed it."""

    @classmethod
    def of(cls, item: Any) -> RateLimitItem:
        """``item`` as it was declared; it may be one of the package limits."""
        if isinstance(item, cls):
            return item.declared or item
        return cls(item.amount, item.multiples or 1, Granularity(*item.GRANULARITY))

    def get_expiry(self) -> int:
        """The window in seconds."""
        return self.GRANULARITY.seconds * self.multiples

    def key_for(self, *identifiers: object) -> str:
        """The key of this limit for ``identifiers`` in Flask-Limiter, which :meth:`StorageOfApp.clear` understands.
        Keys in storage differ."""
        parts = [part.decode() if isinstance(part, bytes) else str(part) for part in identifiers]
        return "/".join([self.namespace, *parts, str(self.amount), str(self.multiples), self.GRANULARITY.name])

    def __str__(self) -> str:
        return f"{self.amount} per {self.multiples} {self.GRANULARITY.name}"

    __repr__ = __str__

    def __lt__(self, other: RateLimitItem) -> bool:
        """Compare by the unit alone: 1 per 100 seconds comes before 1 per minute."""
        return self.GRANULARITY.seconds < other.GRANULARITY.seconds

    @property
    def type_name(self) -> str:
        """Its type in keys. As in Flask-Limiter, limits of one scope, key and text share a quota."""
        return f"meta-{self.amount}" if self.is_meta else f"limit-{self.amount}"

    @lru_cache(maxsize=1024)  # noqa: B019 - so many of all items
    def rule(self, algorithm: str) -> Rule:
        """The same limit as a :class:`Rule`.

        Raises :class:`ConfigurationError` for a limit that no rule can have, such as a window of more than 400 days.
        """
        time, many = self.get_expiry(), self.multiples if self.multiples > 1 else ""
        name = f"{self.amount}/{many}{self.GRANULARITY.name}"
        if not self.amount:
            return Rule.refusing(time, algorithm=algorithm, name=name)
        return Rule(time=time, count=self.amount, algorithm=algorithm, name=name)

    @lru_cache(maxsize=1024)  # noqa: B019 - as above
    def ban(self, cost: int) -> Ban | None:
        """The ban that it is as a meta limit with this ``cost``; ``None`` if it lets nothing pass.

        Raises :class:`ConfigurationError` for more than 1000 refusals.
        """
        seconds, strikes = self.get_expiry(), self.amount - cost + 1
        if strikes > MOST_STRIKES:
            raise ConfigurationError(f"meta limit {self}: it counts at most {MOST_STRIKES} refusals; give less")
        return Ban(after=strikes, within=seconds, time=seconds, factor=1, most=seconds) if strikes > 0 else None


def parse_many(text: str, *, is_meta: bool = False) -> tuple[RateLimitItem, ...]:
    """The limits in ``text``, separated by ``;``, ``,`` or ``|``. Raises :class:`ConfigurationError`, which is a
    ``ValueError``."""
    given: object = text
    if not isinstance(given, str) or len(given) > LONGEST:
        raise ConfigurationError(f'limit {text!r:.80}: write it as text, such as "10/minute"')
    matches = [_ITEM.fullmatch(part.strip()) for part in _SEPARATORS.split(text)]
    return tuple(_item(match, text, is_meta) for match in matches)


def _item(match: re.Match[str] | None, text: str, is_meta: bool) -> RateLimitItem:
    if match is None:
        raise ConfigurationError(
            f'limit {text!r:.80}: write it as "10/minute", "10 per 2 hours" or "1/second; 100/day"'
        )
    unit = match["unit"].lower().removesuffix("s")
    if unit not in GRANULARITIES:
        known = ", ".join(GRANULARITIES)
        raise ConfigurationError(f"limit {text!r:.80}: unknown unit {match['unit']!r}, use one of {known}")
    multiples = int(match["multiples"] or 0) or 1
    return RateLimitItem(int(match["amount"]), multiples, GRANULARITIES[unit], is_meta=is_meta)
