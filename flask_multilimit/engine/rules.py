"""Rule: how many units in how much time, by which algorithm. Validates data from outside."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from .algorithms import ALGORITHMS, Algorithm, Quota
from .errors import ConfigurationError, brief, is_number

SHORTEST = 0.001
LONGEST = 400 * 86_400
MAX_COUNT = 10**9
SHORTEST_LEASED = 1
LONGEST_LEASE_MS = 1000
SHORTEST_TIMEOUT = 1
LONGEST_TIMEOUT = 86_400

UNITS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
"""Units of time in a rule's text, in seconds; a month is 30 days, a year 365."""

_TEXT = re.compile(r"\s*(?P<count>\S+?)\s*(?:/|\bper\b)\s*(?P<many>\d+)?\s*(?P<unit>[^\W\d]+)\s*", re.IGNORECASE)
_AT_ONCE = r"\s*(?P<count>\S+?)\s+at\s+once\s*"
LONGEST_COUNT = 4000
"""Digits: Python refuses to read an ``int`` of many more."""
NAME = r"[A-Za-z0-9_.:*/-]{1,64}"


class Rule(BaseModel):
    """At most ``count`` units in any ``time`` seconds.

    ``time`` is an ``int`` or ``float`` of seconds or a ``timedelta``, 1 ms to 400 days, in whole milliseconds.
    ``count`` is 1 to 10**9. ``algorithm`` is a name of the table of algorithms: ``sliding_window`` (the default,
    exact), ``fixed_window``, ``sliding_window_counter``, ``token_bucket``, ``leaky_bucket``, ``gcra``.

    ``burst``, for the last three, is how many units may pass at once, 1 to 10**9: the capacity of a bucket
    (default ``count``), the tolerance of ``gcra`` (default 1, evenly spaced). ``max_delay``, for ``leaky_bucket``,
    makes it a queue: requests are admitted with a ``delay`` of at most this many seconds.

    ``lease``, for ``sliding_window`` and ``fixed_window`` of at least 1 s, is how many units a process may take at
    once, 2 to ``count`` (``sliding_window``: at most 10,000), to spend them without asking the storage
    (:class:`.LeasingStorage`): for limits of very high traffic.

    ``name`` is the name of the rule in header fields and errors. By default it consists of the limiter's type and the
    window, such as ``ip-50s``.

    Frozen and hashable. Raises :class:`ConfigurationError` for anything else.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    time: int | float = 60
    count: int = 100
    algorithm: str = "sliding_window"
    burst: int | None = None
    max_delay: int | float | None = None
    lease: int | None = None
    name: str | None = None

    def __init__(
        self,
        time: float | timedelta = 60,
        count: int = 100,
        *,
        algorithm: str = "sliding_window",
        burst: int | None = None,
        max_delay: float | timedelta | None = None,
        lease: int | None = None,
        name: str | None = None,
    ) -> None:
        given = {
            "time": time,
            "count": count,
            "algorithm": algorithm,
            "burst": burst,
            "max_delay": max_delay,
            "lease": lease,
            "name": name,
        }
        try:
            super().__init__(**given)
        except ValidationError as error:
            reasons = "; ".join(self._reason(problem) for problem in error.errors())
            raise ConfigurationError(f"{self._call(given)}: {reasons}") from None

    @staticmethod
    def _call(given: dict[str, Any]) -> str:
        shown = {key: value for key, value in given.items() if value != _DEFAULTS[key] or key in _ALWAYS_SHOWN}
        return f"Rule({called_with(shown)})"

    @staticmethod
    def _reason(problem: Any) -> str:
        return reason_of(problem)

    @field_validator("time", "max_delay", mode="before")
    @classmethod
    def _check_duration(cls, value: Any, info: ValidationInfo) -> float | None:
        return None if value is None and info.field_name == "max_delay" else duration_of(value)

    @field_validator("count", "burst", mode="before")
    @classmethod
    def _check_units(cls, value: Any, info: ValidationInfo) -> int | None:
        if value is None and info.field_name == "burst":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
            raise ValueError(f"must be a whole number from 1 to {MAX_COUNT}")
        return int(value)

    @field_validator("lease", mode="before")
    @classmethod
    def _check_lease(cls, value: Any) -> int | None:
        if value is not None and (type(value) is not int or value < 2):
            raise ValueError("must be a whole number, 2 or more")
        return value

    @field_validator("algorithm", mode="before")
    @classmethod
    def _check_algorithm(cls, value: Any) -> str:
        if value not in ALGORITHMS if isinstance(value, str) else True:
            raise ValueError(f"must be one of {', '.join(ALGORITHMS)}{_nearest(value, ALGORITHMS)}")
        return str(value)

    @field_validator("name", mode="before")
    @classmethod
    def _check_name(cls, value: Any) -> str | None:
        if value is not None and not (isinstance(value, str) and re.fullmatch(NAME, value)):
            raise ValueError("must be 1 to 64 characters out of A-Z a-z 0-9 _ . : * / -")
        return value

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The one rule that ``text`` describes: ``"100/minute"``, ``"100 per minute"``, ``"10 per 20 seconds"``,
        ``"5 at once"``.

        Units: second, minute, hour, day, week, month (30 days), year (365 days), singular or plural.
        """
        if not isinstance(text, str):
            raise ConfigurationError(f'rule {brief(text)}: give text, such as "100/minute"')
        match = _TEXT.fullmatch(text)
        if match is None:
            return _at_once(text)
        count = _count(text, match["count"])
        unit = match["unit"].lower()
        seconds = UNITS.get(unit) or UNITS.get(unit.removesuffix("s"))
        if seconds is None:
            raise ConfigurationError(
                f"rule {brief(text)}: unknown unit {match['unit']!r}, "
                f"use one of {', '.join(UNITS)}{_nearest(unit, UNITS)}"
            )
        try:
            return cls(time=int(match["many"] or 1) * seconds, count=count)
        except (ConfigurationError, ValueError) as error:
            raise ConfigurationError(f"rule {brief(text)}: {error}") from None

    @model_validator(mode="after")
    def _check_parameters(self) -> Rule:
        for name in ("burst", "max_delay", "lease"):
            takers = [algorithm for algorithm, twin in ALGORITHMS.items() if name in twin.PARAMETERS]
            if getattr(self, name) is not None and self.algorithm not in takers:
                raise ValueError(f"{name} is taken by {' and '.join(takers)}, not by {self.algorithm}; leave it out")
        if self.quota.burst * self.time > LONGEST * self.count and self.burst is not None:
            raise ValueError(f"burst={self.burst} would need more than {LONGEST} seconds (400 days) to come back")
        if self.lease is not None:
            self._check_terms_of_lease(self.lease)
        if self.holds_slots and not SHORTEST_TIMEOUT <= self.time <= LONGEST_TIMEOUT:
            raise ValueError(f"timeout must be between {SHORTEST_TIMEOUT} and {LONGEST_TIMEOUT} (a day) seconds")
        return self

    def _check_terms_of_lease(self, lease: int) -> None:
        most = min(self.count, self.implementation.MAX_COST)
        if lease > most:
            raise ValueError(f"lease={lease} is more than {self.algorithm} ever admits at once, which is {most} units")
        if self.time < SHORTEST_LEASED:
            raise ValueError(f"a lease needs a time of at least {SHORTEST_LEASED} second; leave it out")

    @cached_property
    def quota(self) -> Quota:
        """The rule in integers."""
        return self._quota(self.lease_ms)

    @cached_property
    def longest_quota(self) -> Quota:
        """The :attr:`quota` with a lease: another rule for the same key may have one."""
        return self._quota(self._longest_lease_ms)

    def _quota(self, lease_ms: int) -> Quota:
        max_delay = None if self.max_delay is None else round(self.max_delay * 1_000_000)
        return self.implementation.quota((self.window_ms + lease_ms) * 1000, self.count, self.burst, max_delay)

    @property
    def lease_ms(self) -> int:
        """Milliseconds for which the units of a lease may be spent: a tenth of ``time``, at most 1 s.

        They are counted for that much longer, so that those that are spent late still count for a whole ``time``. 0
        without a lease, and for a ``fixed_window``, whose units are spent before their window ends.
        """
        return 0 if self.lease is None else self._longest_lease_ms

    @property
    def _longest_lease_ms(self) -> int:
        if (
            "lease" not in self.implementation.PARAMETERS
            or self.algorithm == "fixed_window"
            or self.time < SHORTEST_LEASED
        ):
            return 0
        return min(self.window_ms // 10, LONGEST_LEASE_MS)

    @property
    def window_ms(self) -> int:
        """The window in milliseconds, as in keys."""
        return round(self.time * 1000)

    @property
    def implementation(self) -> Algorithm:
        """The algorithm in Python."""
        return ALGORITHMS[self.algorithm]

    @cached_property
    def holds_slots(self) -> bool:
        """Whether its units are slots, which are in use until they are released: :class:`Concurrent`."""
        return hasattr(self.implementation, "renew")

    def __str__(self) -> str:
        if self.holds_slots:
            return f"{self.count} at once"
        algorithm = "" if self.algorithm == "sliding_window" else f" by {self.algorithm}"
        lease = "" if self.lease is None else f", lease of {self.lease}"
        return f"{self.count} per {self.window}{algorithm}{lease}"

    @property
    def window(self) -> str:
        """The window in words short enough for a name: ``50s``, ``1500ms``, ``at-once``."""
        if self.holds_slots:
            return "at-once"
        return f"{self.time}s" if isinstance(self.time, int) else f"{self.window_ms}ms"


_REMEDY_FOR_MAPPING = 'a rule is not a mapping here; give Rule(time=60, count=5), or text such as "5/minute"'

NOTHING = Rule.model_construct(time=60, count=0)
"""The rule that lets nothing pass. Only code makes it: a count of 0 in a declaration is an error."""


CONCURRENCY = "concurrency"
"""The algorithm that counts what is in progress."""


class Concurrent(Rule):
    """At most ``count`` units in progress at any instant: a slot is taken when the check passes, and given back when
    the work is done.

    A view's work is done when its response is closed, after the last byte of a stream or when the server notices that
    the client has hung up; a function's, or that of ``with multilimit.limit(...)``, when it ends. ``timeout`` seconds
    (1 s to a day) after a worker dies, its slots are free again. Work that lasts longer renews its slots in the
    background.

    ``count`` is 1 to 10**9. In text: ``"5 at once"``. When it refuses, it is not known for how long: ``retry_after`` is
    ``inf``, and ``waits_for_slot`` is true. Raises :class:`ConfigurationError`.
    """

    def __init__(self, count: int, timeout: float | timedelta = 60, *, name: str | None = None) -> None:
        super().__init__(timeout, count, algorithm=CONCURRENCY, name=name)

    @staticmethod
    def _call(given: dict[str, Any]) -> str:
        name = {} if given["name"] is None else {"name": given["name"]}
        return f"Concurrent({called_with({'count': given['count'], 'timeout': given['time'], **name})})"

    @staticmethod
    def _reason(problem: Any) -> str:
        return re.sub("^time ", "timeout ", reason_of(problem))

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Concurrent({self.count}, timeout={self.time}{name})"


def rule_of(fields: Mapping[str, Any]) -> Rule:
    """The rule with these fields, which may be a :class:`Concurrent`. Raises :class:`ConfigurationError`."""
    rule = Rule(**fields)  # fields that do not belong together are an error
    return Concurrent(rule.count, rule.time, name=rule.name) if rule.algorithm == CONCURRENCY else rule


Rules = Rule | str | Iterable[Rule | str]
"""One rule or several, as objects or as text; in text, several are joined by ``;`` or ``,``."""


def rules_from(rules: Rules) -> tuple[Rule, ...]:
    """Every rule of ``rules`` in order. Raises :class:`ConfigurationError` when there is none or one is wrong."""
    given: Any = [rules] if isinstance(rules, (Rule, str)) else rules
    if isinstance(given, Mapping):
        raise ConfigurationError(f"rules={brief(rules)}: {_REMEDY_FOR_MAPPING}")
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ConfigurationError(f'rules={brief(rules)}: give Rule objects or text such as "100/minute"')
    found = tuple(rule for item in given for rule in _rules_of(item))
    if not found:
        raise ConfigurationError("rules: none given, so nothing would be limited; leave `rules` out for one Rule()")
    return found


def _rules_of(item: Any) -> list[Rule]:
    if isinstance(item, Rule):
        return [item]
    if isinstance(item, str):
        return [Rule.parse(part) for part in re.split("[;,]", item)]
    if isinstance(item, Mapping):
        raise ConfigurationError(f"rules: {brief(item)}: {_REMEDY_FOR_MAPPING}")
    raise ConfigurationError(f'rules: {brief(item)} is not a rule; give a Rule or text such as "100/minute"')


def called_with(shown: dict[str, Any]) -> str:
    """Arguments as an error shows a call."""
    return ", ".join(f"{key}={brief(value)}" for key, value in shown.items())


def _at_once(text: str) -> Rule:
    match = re.fullmatch(_AT_ONCE, text, re.IGNORECASE)
    if match is None:
        raise ConfigurationError(f'rule {brief(text)}: write it as "100/minute", "10 per 20 seconds" or "5 at once"')
    return Concurrent(_count(text, match["count"]))


def _count(text: str, count: str) -> int:
    if not (count.isascii() and count.isdigit()) or len(count) > LONGEST_COUNT:
        raise ConfigurationError(
            f"rule {brief(text)}: the count must be a whole number from 1 to {MAX_COUNT}, got {brief(count)}"
        )
    return int(count)


_DEFAULTS = {name: field.default for name, field in Rule.model_fields.items()}
_ALWAYS_SHOWN = {"time", "count"}


def duration_of(value: Any) -> int | float:
    """Seconds in whole milliseconds, as an int where that is enough."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds):
        raise ValueError("must be a number of seconds or a timedelta")
    if not SHORTEST <= seconds <= LONGEST:
        raise ValueError(f"must be between 0.001 (1 ms) and {LONGEST} (400 days) seconds")
    milliseconds = round(seconds * 1000)
    if abs(seconds * 1000 - milliseconds) > 1e-12 * milliseconds:
        raise ValueError("must be a whole number of milliseconds")
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def reason_of(problem: Any) -> str:
    """The reason of an error that pydantic found, in our words."""
    reason = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return str(reason)
    return f"{problem['loc'][0]} {reason}, got {brief(problem['input'])}"


def _nearest(value: object, names: Iterable[str]) -> str:
    match = difflib.get_close_matches(str(value), list(names), n=1)
    if not match and isinstance(value, str) and len(value) >= 1:
        match = [name for name in names if name.startswith(value)][:1]
    return f" (did you mean {match[0]!r}?)" if match else ""
