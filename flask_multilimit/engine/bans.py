"""Ban: a subject that is refused repeatedly is refused for a time. Validates data from outside."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from .algorithms import BAN, Algorithm, Quota
from .algorithms import ban as ban_algorithm
from .algorithms.ban import BanQuota
from .errors import ConfigurationError
from .rules import Rule, called_with, duration_of, reason_of

MOST_STRIKES = 1000
MOST_FACTOR = 1000


class Ban(BaseModel):
    """``after`` refusals within ``within`` seconds, and the subject is refused for ``time`` seconds: longer each time.

    A refusal by a rule of the limiter that has the ban is a strike. The refusal that completes ``after`` already
    reports the ban. While the ban holds, nothing is a strike: further requests do not lengthen it.

    A ban that begins within ``most`` seconds after the last one has ended repeats it, and lasts ``factor`` times as
    long, at most ``most``. With a ``factor`` of 1 every ban lasts ``time``.

    ``after`` is 1 to 1000. ``within``, ``time`` and ``most`` are an ``int`` or ``float`` of seconds or a
    ``timedelta``, 1 ms to 400 days, in whole milliseconds; ``most`` is ``time`` or more. ``factor`` is 1 to 1000.

    Frozen and hashable. Raises :class:`ConfigurationError` for anything else.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)

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
        try:
            super().__init__(**given)
        except ValidationError as error:
            reasons = "; ".join(reason_of(problem) for problem in error.errors())
            raise ConfigurationError(f"Ban({called_with(given)}): {reasons}") from None

    @field_validator("within", "time", "most", mode="before")
    @classmethod
    def _check_duration(cls, value: Any) -> float:
        return duration_of(value)

    @field_validator("after", mode="before")
    @classmethod
    def _check_after(cls, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= MOST_STRIKES:
            raise ValueError(f"must be a whole number of refusals from 1 to {MOST_STRIKES}")
        return value

    @field_validator("factor", mode="before")
    @classmethod
    def _check_factor(cls, value: Any) -> float:
        if type(value) not in {int, float} or not 1 <= value <= MOST_FACTOR:
            raise ValueError(
                f"must be a number from 1, with which no ban lasts longer than the first, to {MOST_FACTOR}"
            )
        return float(value)

    @model_validator(mode="after")
    def _check_most(self) -> Ban:
        if self.most < self.time:
            raise ValueError(f"most={self.most} is less than time={self.time}, which is how long the first ban lasts")
        return self

    @property
    def rule(self) -> BanRule:
        """The rule that it is in a check."""
        return _rule_of(self)

    def __str__(self) -> str:
        longer = f", {self.factor:g} times as long each time, at most {self.most} s" if self.factor > 1 else ""
        return f"ban of {self.time} s after {self.after} refusals in {self.within} s{longer}"


class BanRule(Rule):
    """The rule of the hit that a :class:`Ban` is. Not for ``rules``: a :class:`Ban` goes into ``ban``."""

    ban: Ban

    @cached_property
    def quota(self) -> BanQuota:
        ban = self.ban
        first, most = round(ban.time * 1_000_000), round(ban.most * 1_000_000)
        return BanQuota(
            window=self.window_ms * 1000,
            count=ban.after,
            burst=0,
            max_delay=0,
            time=first,
            factor=ban.factor,
            most=most,
            memory=most if ban.factor > 1 else 0,
        )

    @cached_property
    def longest_quota(self) -> Quota:
        return self.quota

    @property
    def window(self) -> str:
        """The part of its name after the type."""
        return BAN

    @property
    def implementation(self) -> Algorithm:
        return cast("Algorithm", ban_algorithm)

    def __str__(self) -> str:
        return str(self.ban)


@lru_cache(maxsize=1024)
def _rule_of(ban: Ban) -> BanRule:
    return BanRule.model_construct(time=ban.within, count=0, algorithm=BAN, ban=ban)
