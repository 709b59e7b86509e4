"""Rule: how many units in how much time, by which algorithm."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from .algorithms import ALGORITHMS, CALENDAR, Algorithm, Quota, algorithm_of
from .errors import ConfigurationError, brief, is_number, message_of
from .periods import Period, periods_of, zone_named
from .text import LONGEST_RULES, Phrase, joined, plain_text

SHORTEST = 0.001
LONGEST = 400 * 86_400
"""The bounds of a rule's time, in seconds."""
MAX_COUNT = 10**9
SHORTEST_LEASED = 1
"""The shortest time of a rule with a lease, in seconds."""
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
_UNIT_OF: dict[float, str] = {seconds: unit for unit, seconds in UNITS.items()}
SIZES = (("d", 86_400), ("h", 3600), ("min", 60))
"""Units of long times, in seconds, as people read them."""

PERIODS: dict[str, int] = {
    "hour": 3600,
    "day": 25 * 3600,
    "week": 169 * 3600,
    "month": 745 * 3600,
    "year": 367 * 86_400,
}
"""The periods of a calendar and their greatest lengths in seconds: clocks may be put back by an hour."""

NAME = r"[A-Za-z0-9_.:*/-]{1,64}"
CONCURRENCY = "concurrency"
"""The algorithm that counts what is in progress."""


@dataclass(frozen=True, slots=True, init=False)
class Rule:
    """At most ``count`` units in any ``time`` seconds. Frozen and hashable.

    :param time: seconds (``int`` or ``float``) or a ``timedelta``: 1 ms to 400 days, in whole milliseconds.
    :param count: 1 to 10**9.
    :param algorithm: ``sliding_window`` (the default, exact), ``fixed_window``, ``sliding_window_counter``,
        ``token_bucket``, ``leaky_bucket`` or ``gcra``.
    :param burst: for the last three, how many units may pass at once, 1 to 10**9: the capacity of a bucket (default
        ``count``), the tolerance of ``gcra`` (default 1, evenly spaced).
    :param max_delay: for ``leaky_bucket``, the seconds that a request may wait: it becomes a queue, whose requests are
        admitted with a ``delay``.
    :param lease: for ``sliding_window`` and ``fixed_window`` of at least 1 s, how many units a process may take at
        once, 2 to ``count`` (``sliding_window``: at most 10,000), to spend them without asking the storage
        (:class:`.LeasingStorage`): for limits of very high traffic.
    :param name: the name of the rule in header fields and errors; by default the limiter's type and the window, such as
        ``ip-50s``.
    :raises ConfigurationError: for any other value; the message names each mistake.
    """

    time: int | float = 60
    count: int = 100
    algorithm: str = "sliding_window"
    burst: int | None = None
    max_delay: int | float | None = None
    lease: int | None = None
    name: str | None = None
    key_part: str = field(init=False, repr=False, compare=False)
    """The last part of its keys: rules of one limiter with the same part share one key."""
    quota: Quota = field(init=False, repr=False, compare=False)
    """The rule in integers."""
    longest_quota: Quota = field(init=False, repr=False, compare=False)
    """The :attr:`quota` that it would have with a lease: another rule of the same key may have one."""
    holds_slots: bool = field(init=False, repr=False, compare=False)
    """Whether its units are slots, in use until they are released: true for :class:`Concurrent`."""

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
        given = dict(locals())
        del given["self"]
        values = checked("Rule", given, _CHECKS)
        try:
            fill_rule(self, values)
        except ValueError as error:  # the algorithm cannot calculate with it
            raise ConfigurationError(f"{called_with('Rule', given)}: {error}") from None
        mistake = _mistake_in(self)
        if mistake:
            raise ConfigurationError(f"{called_with('Rule', given)}: {mistake}")

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The one rule that ``text`` describes: ``"100/minute"``, ``"100 per minute"``, ``"10 per 20 seconds"``,
        ``"5 at once"``, ``"10000 per calendar month"``, ``"10000 per calendar month from 15 in Europe/Berlin"``.

        Units: second, minute, hour, day, week, month (30 days), year (365 days), singular or plural.
        """
        if not isinstance(text, str):
            raise ConfigurationError(f'rule {brief(text)}: give text, such as "100/minute"')
        _check_length(text)
        normalized = " ".join(text.replace("/", " per ").split())
        count, *windows = _PER.split(normalized)
        match = _WINDOW.fullmatch(windows[0]) if len(windows) == 1 else None
        if match is None:
            calendar = calendar_in(text)
            return _parse_at_once(text, normalized) if calendar is None else _rule_written_as(text, calendar)
        units, unit = _parse_count(text, count), match["unit"].lower()
        seconds = UNITS.get(unit) or UNITS.get(unit.removesuffix("s"))
        if seconds is None:
            raise _error_in(text, _unknown(Phrase("unit"), match["unit"], UNITS))
        return _rule_written_as(text, {"time": int(match["many"] or 1) * seconds, "count": units})

    @classmethod
    def refusing(cls, time: float = 60, *, algorithm: str = "sliding_window", name: str | None = None) -> Rule:
        """A rule with a count of 0, which lets nothing pass: for code, because in a declaration it is an error."""
        return fill_rule(object.__new__(Rule), {"time": time, "count": 0, "algorithm": algorithm, "name": name})

    @property
    def lease_ms(self) -> int:
        """Milliseconds for which the units of a lease may be spent: a tenth of ``time``, at most 1 s.

        Units count for that much longer, so that one that is spent late still counts for a whole ``time``. 0 without a
        lease, and for a ``fixed_window``, whose units are spent before their window ends.
        """
        return 0 if self.lease is None else _longest_lease_ms(self)

    @property
    def window_ms(self) -> int:
        """The window in milliseconds."""
        return round(self.time * 1000)

    @property
    def implementation(self) -> Algorithm:
        """The algorithm in Python."""
        return algorithm_of(self.algorithm)

    def __hash__(self) -> int:
        return hash((self.time, self.count, self.algorithm, self.name))

    def __str__(self) -> str:
        algorithm = "" if self.algorithm in {"sliding_window", CONCURRENCY, CALENDAR} else f" by {self.algorithm}"
        lease = "" if self.lease is None else f", lease of {self.lease}"
        return f"{self.in_words}{algorithm}{lease}"

    @property
    def in_words(self) -> str:
        """Its count and its time: ``5 per minute``, ``5 per 90 s``, ``5 at once``."""
        if self.holds_slots:
            return f"{self.count} at once"
        return f"{self.count} per {_UNIT_OF.get(self.time) or time_in_words(self.time)}"

    @property
    def window(self) -> str:
        """The window in words short enough for a name: ``50s``, ``1500ms``, ``at-once``."""
        if self.holds_slots:
            return "at-once"
        return f"{self.time}s" if isinstance(self.time, int) else f"{self.window_ms}ms"


class Concurrent(Rule):
    """At most ``count`` units in progress at any instant: a slot is taken when the check passes, and released when
    the work is done.

    A view's work is done after the last byte of its response, or when the server notices that the client has hung up;
    a function's, or that of ``with multilimit.limit(...)``, when it ends. Work that lasts longer than ``timeout``
    renews its slots in the background.

    When it refuses, it is not known for how long: ``retry_after`` is ``inf``, and ``waits_for_slot`` is true.

    :param count: 1 to 10**9; in text, ``"5 at once"``.
    :param timeout: seconds (1 s to a day) after which the slots of a worker that died are free again.
    :param name: as for :class:`Rule`.
    :raises ConfigurationError: for any other value.
    """

    __slots__ = ()

    def __init__(self, count: int, timeout: float | timedelta = 60, *, name: str | None = None) -> None:
        given = {"count": count, "timeout": timeout, "name": name}
        values = checked("Concurrent", given, _CHECKS)
        fill_rule(self, {**values, "time": values["timeout"], "algorithm": CONCURRENCY})
        mistake = _mistake_in(self)
        if mistake:
            raise ConfigurationError(f"{called_with('Concurrent', given)}: {mistake}")

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Concurrent({self.count}, timeout={self.time}{name})"


class Calendar(Rule):
    """At most ``count`` units in each period of a calendar: what people mean by "10,000 a month".

    The clock of the storage decides which period it is, and the time zone when that period begins. ``retry_after``
    and ``reset_after`` end with the period.

    :param count: 1 to 10**9; in text, ``"10000 per calendar month"``, or as ``str()`` shows it:
        ``"10000 per calendar month from 15 in Europe/Berlin"``.
    :param period: ``hour``, ``day``, ``week``, ``month`` or ``year``.
    :param timezone: the name of a time zone, such as ``Europe/Berlin``.
    :param anchor: the day on which a period begins. Of a week: 1 (Monday, the default) to 7. Of a month: 1 to 31; in a
        shorter month, its last day. Of a year: ``"MM-DD"``; ``"02-29"`` is 28 February in years
        without that day.
    :param name: as for :class:`Rule`; by default the limiter's type and the period, such as ``user-month``.
    :raises ConfigurationError: for any other value, and if the system does not know the time zone.
    """

    __slots__ = ("anchor", "period", "timezone")
    __match_args__ = ("count", "period", "timezone", "anchor", "name")
    period: Period
    timezone: str
    anchor: int | str | None

    def __init__(
        self,
        count: int,
        period: Period,
        *,
        timezone: str = "UTC",
        anchor: int | str | None = None,
        name: str | None = None,
    ) -> None:
        given = {"count": count, "period": period, "timezone": timezone, "anchor": anchor, "name": name}
        values = checked("Calendar", given, _CHECKS)
        period, timezone, anchor = values["period"], values["timezone"], values["anchor"]
        mistake = _mistake_in_anchor(period, anchor)
        if mistake:
            raise ConfigurationError(Phrase("{call}: {mistake}", call=called_with("Calendar", given), mistake=mistake))
        fill_rule(self, {**values, "time": PERIODS[period], "algorithm": CALENDAR})
        anchor = _DEFAULT_ANCHORS.get(period) if anchor is None else anchor
        zone = _zone_in_key(timezone)
        quota = replace(self.quota, periods=periods_of(period, timezone, anchor))
        fields = {
            "period": period,
            "timezone": timezone,
            "anchor": anchor,
            "key_part": f"{CALENDAR}:{period}.{zone}" if anchor is None else f"{CALENDAR}:{period}.{anchor}.{zone}",
            "quota": quota,
            "longest_quota": quota,
        }
        for field_name, value in fields.items():
            object.__setattr__(self, field_name, value)

    @property
    def window(self) -> str:
        """The period, which is the part of its name after the type."""
        return self.period

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calendar) and fields_of(self) == fields_of(other)

    def __hash__(self) -> int:
        return hash((self.count, self.key_part, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        return rule_of, (fields_of(self),)

    def __repr__(self) -> str:
        timezone = "" if self.timezone == "UTC" else f", timezone={self.timezone!r}"
        anchor = "" if self.anchor == _DEFAULT_ANCHORS.get(self.period) else f", anchor={self.anchor!r}"
        name = "" if self.name is None else f", name={self.name!r}"
        return f"Calendar({self.count}, {self.period!r}{timezone}{anchor}{name})"

    @property
    def in_words(self) -> str:
        anchor = "" if self.anchor == _DEFAULT_ANCHORS.get(self.period) else f" from {self._anchor_in_words}"
        return (
            f"{self.count} per calendar {self.period}{anchor}{'' if self.timezone == 'UTC' else f' in {self.timezone}'}"
        )

    @property
    def _anchor_in_words(self) -> str:
        return _WEEKDAYS[int(self.anchor) - 1] if self.period == "week" and self.anchor else f"{self.anchor}"


_DEFAULT_ANCHORS: dict[str, int | str] = {"week": 1, "month": 1, "year": "01-01"}
"""Where a period begins unless the calendar has an anchor; hours and days have none."""
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LONGEST_ZONE_IN_KEY = 13
"""Characters. A key has no room for a longer name, and has its digest instead."""


def _zone_in_key(timezone: str) -> str:
    if len(timezone) <= _LONGEST_ZONE_IN_KEY and re.fullmatch(r"[A-Za-z0-9_/+-]+", timezone):
        return timezone
    return "*" + blake2b(timezone.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _mistake_in_anchor(period: str, anchor: object) -> str | None:
    if anchor is None:
        return None
    if period == "year":
        day = re.fullmatch(r"(\d\d)-(\d\d)", anchor, re.ASCII) if isinstance(anchor, str) else None
        if day and 1 <= int(day[1]) <= 12 and 1 <= int(day[2]) <= _DAYS_IN_MONTHS[int(day[1]) - 1]:
            return None
        return Phrase('anchor of a year must be "MM-DD", such as "04-06", got {value}', value=brief(anchor))
    if period not in _DEFAULT_ANCHORS:
        return Phrase("anchor is for weeks, months and years, not for {period}s; leave it out", period=period)
    most = 7 if period == "week" else 31
    if type(anchor) is int and 1 <= anchor <= most:
        return None
    what = "anchor of a month must be a whole number from 1 to 31, a day of the month, got {value}"
    if period == "week":
        what = "anchor of a week must be a whole number from 1 (Monday) to 7, got {value}"
    return Phrase(what, value=brief(anchor))


_DAYS_IN_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def rule_of(fields: Mapping[str, Any]) -> Rule:
    """The :class:`Rule`, :class:`Concurrent` or :class:`Calendar` with these fields. Raises
    :class:`ConfigurationError`."""
    if "period" in fields:
        return Calendar(**fields)
    rule = Rule(**fields)  # raises if fields do not belong together
    return Concurrent(rule.count, rule.time, name=rule.name) if rule.algorithm == CONCURRENCY else rule


def fields_of(rule: Rule) -> dict[str, Any]:
    """The fields of which :func:`rule_of` makes ``rule``."""
    return {name: getattr(rule, name) for name in type(rule).__match_args__}


def changed(rule: Rule, **fields: Any) -> Rule:
    """``rule`` with other values of ``fields``. Fields that it does not have may be ``None``. Raises
    :class:`ConfigurationError`."""
    known = fields_of(rule)
    return rule_of({**known, **{name: value for name, value in fields.items() if name in known or value is not None}})


def fill_rule(rule: Rule, fields: Mapping[str, Any]) -> Rule:
    """Set the ``fields`` of ``rule``, which must have been checked, and those computed from them. Returns ``rule``."""
    put, given, algorithm = object.__setattr__, fields.get, fields["algorithm"]
    for name in Rule.__match_args__:
        put(rule, name, given(name))
    longest_lease_ms = _longest_lease_ms(rule)
    quota = longest_quota = _quota(rule, longest_lease_ms)
    if longest_lease_ms and rule.lease is None:
        quota = _quota(rule, 0)
    put(rule, "quota", quota)
    put(rule, "longest_quota", longest_quota)
    put(rule, "key_part", f"{algorithm}:{rule.window_ms}")
    put(rule, "holds_slots", algorithm == CONCURRENCY)
    return rule


def _quota(rule: Rule, lease_ms: int) -> Quota:
    max_delay = None if rule.max_delay is None else round(rule.max_delay * 1_000_000)
    return rule.implementation.quota((rule.window_ms + lease_ms) * 1000, rule.count, rule.burst, max_delay)


def _longest_lease_ms(rule: Rule) -> int:
    if "lease" not in rule.implementation.PARAMETERS or rule.algorithm == "fixed_window" or rule.time < SHORTEST_LEASED:
        return 0
    return min(rule.window_ms // 10, LONGEST_LEASE_MS)


Rules = Rule | str | Iterable[Rule | str]
"""One rule or several, as objects or as text; in text, several are joined by ``;`` or ``,``."""


def rules_from(rules: Rules) -> tuple[Rule, ...]:
    """Every rule of ``rules`` in order. Raises :class:`ConfigurationError` when there is none or one is wrong."""
    given: Any = [rules] if isinstance(rules, (Rule, str)) else rules
    if isinstance(given, Mapping):
        raise ConfigurationError(f"rules={brief(rules)}: {_REMEDY_FOR_MAPPING}")
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise ConfigurationError(f'rules={brief(rules)}: give Rule objects or text such as "100/minute"')
    parsed = tuple(rule for item in given for rule in _rules_of(item))
    if not parsed:
        raise ConfigurationError("rules: none given, so nothing would be limited; leave `rules` out for one Rule()")
    return parsed


def _rules_of(item: Any) -> Iterable[Rule]:
    if isinstance(item, Rule):
        return [item]
    if isinstance(item, str):
        return rules_in(item)
    if isinstance(item, Mapping):
        raise ConfigurationError(f"rules: {brief(item)}: {_REMEDY_FOR_MAPPING}")
    raise ConfigurationError(f'rules: {brief(item)} is not a rule; give a Rule or text such as "100/minute"')


_REMEDY_FOR_MAPPING = 'a rule is not a mapping here; give Rule(time=60, count=5), or text such as "5/minute"'


# Text


def time_in_words(seconds: float) -> str:
    """``250 ms``, ``90 s``, ``10 min``, ``2 h``, ``2 d``: never rounded."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    unit, size = next((each for each in SIZES if seconds >= 2 * each[1] and not seconds % each[1]), ("s", 1))
    return f"{seconds if size == 1 else int(seconds // size)} {unit}"


@lru_cache(maxsize=1024)  # a callable may return the same text at each request
def rules_in(text: str) -> tuple[Rule, ...]:
    """The rules in ``text``, separated by ``;`` or ``,``. Raises :class:`ConfigurationError`."""
    _check_length(text)
    parts = re.split("[;,]", text)
    try:
        return tuple([Rule.parse(part) for part in parts])
    except ConfigurationError as error:
        if len(parts) == 1:
            raise
        separated = Phrase("commas and semicolons in {rules} separate rules", rules=brief(text))
        raise ConfigurationError(joined([message_of(error), separated])) from None


def _check_length(text: str) -> None:
    if len(text) > LONGEST_RULES:
        raise _error_in(text, Phrase("give at most {n} characters", n=LONGEST_RULES))


_PER = re.compile(" per ", re.IGNORECASE)
_WINDOW = re.compile(r"(?P<many>\d*) ?(?P<unit>[^\W\d]+)")
_CALENDAR = (
    r"(?P<count>[^ /]+)(?: per | ?/ ?)calendar (?P<period>[^\W\d]+)"
    r"(?: from (?P<anchor>[^ ]+))?(?: in (?P<timezone>[^ ]+))?"
)
_AT_ONCE = r"(\S+) at once"
"""For text without leading, trailing and repeated blanks, like the patterns above. The last two are rare, and not
compiled before they are used."""

_FORMS = 'write it as "100/minute", "10 per 20 seconds", "5 at once" or "100 per calendar month from 15 in Asia/Tokyo"'


def _error_in(text: str, mistake: str) -> ConfigurationError:
    return ConfigurationError(Phrase("rule {rule}: {mistake}", rule=brief(text), mistake=mistake))


def _unknown(what: Phrase, given: str, names: Iterable[str]) -> Phrase:
    choices = f"{', '.join(names)}{_nearest(given.lower(), names)}"
    return Phrase("unknown {what} {given}, use one of {choices}", what=what, given=repr(given), choices=choices)


def _parse_at_once(text: str, normalized: str) -> Rule:
    match = re.fullmatch(_AT_ONCE, normalized, re.IGNORECASE)
    if match is None:
        raise _error_in(text, Phrase(_FORMS))
    return Concurrent(_parse_count(text, match[1]))


def calendar_in(text: str) -> dict[str, Any] | None:
    """The fields of the calendar that ``text`` describes; ``None`` if it describes no calendar. Raises
    :class:`ConfigurationError`."""
    match = re.fullmatch(_CALENDAR, " ".join(text.split()), re.IGNORECASE)
    if match is None:
        return None
    fields: dict[str, Any] = {"count": _parse_count(text, match["count"]), "period": match["period"].lower()}
    if fields["period"] not in PERIODS:
        raise _error_in(text, _unknown(Phrase("period"), match["period"], PERIODS))
    if match["anchor"] is not None:
        fields["anchor"] = _parse_anchor(fields["period"], match["anchor"])
    if match["timezone"] is not None:
        fields["timezone"] = match["timezone"]
    return fields


def _parse_anchor(period: str, text: str) -> int | str:
    if period == "week" and text.title() in _WEEKDAYS:
        return 1 + _WEEKDAYS.index(text.title())
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else text


def _rule_written_as(text: str, fields: dict[str, Any]) -> Rule:
    try:
        return rule_of(fields)
    except ConfigurationError as error:
        raise _error_in(text, message_of(error)) from None


def _parse_count(text: str, count: str) -> int:
    if not (count.isascii() and count.isdigit()):
        remedy = "the count must be a whole number from 1 to {most}, got {value}"
        raise _error_in(text, Phrase(remedy, most=MAX_COUNT, value=brief(count)))
    return int(count)


# Checks


def checked(call: str, given: Mapping[str, Any], checks: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """The arguments ``given`` to ``call``, as their ``checks`` return them. Raises :class:`ConfigurationError`, which
    names every argument whose check raises ``ValueError``."""
    values, mistakes = {}, []
    for name, value in given.items():
        try:
            values[name] = checks[name](value)
        except ValueError as error:  # noqa: PERF203 - the error names all mistakes
            mistakes.append(Phrase("{name} {must}, got {value}", name=name, must=message_of(error), value=brief(value)))
    if mistakes:
        raise ConfigurationError(Phrase("{call}: {mistake}", call=called_with(call, given), mistake=joined(mistakes)))
    return values


def called_with(call: str, given: Mapping[str, Any]) -> str:
    """A call as errors show it, without options that have their default."""
    shown = {name: brief(value) for name, value in given.items()}
    changed = [f"{name}={text}" for name, text in shown.items() if text != _SHOWN_DEFAULTS.get(name)]
    return f"{call}({', '.join(changed)})"


_SHOWN_DEFAULTS = {
    **dict.fromkeys(("burst", "max_delay", "lease", "anchor", "name"), "None"),
    "algorithm": "'sliding_window'",
    "timezone": "'UTC'",
}


def duration_of(value: Any) -> int | float:
    """``value`` in seconds, an ``int`` if it is whole. Raises ``ValueError`` unless it is whole milliseconds within the
    bounds of a rule's time."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds):
        raise ValueError("must be a number of seconds or a timedelta")
    if not SHORTEST <= seconds <= LONGEST:
        raise ValueError(Phrase("must be between 0.001 (1 ms) and {most} (400 days) seconds", most=LONGEST))
    milliseconds = round(seconds * 1000)
    if abs(seconds * 1000 - milliseconds) > 1e-12 * milliseconds:
        raise ValueError("must be a whole number of milliseconds")
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def _check_units(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
        raise ValueError(Phrase("must be a whole number from 1 to {most}", most=MAX_COUNT))
    return int(value)


def _check_lease(value: Any) -> int:
    if type(value) is not int or value < 2:
        raise ValueError("must be a whole number, 2 or more")
    return value


def _check_one_of(names: Mapping[str, Any]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"must be one of {', '.join(names)}{_nearest(value, names)}")
        return plain_text(value)

    return check


def _check_zone(value: Any) -> str:
    zone_named(value)
    return plain_text(value)


def _check_name(value: Any) -> str:
    if not (isinstance(value, str) and re.fullmatch(NAME, value)):
        raise ValueError("must be 1 to 64 characters out of A-Z a-z 0-9 _ . : * / -")
    return plain_text(value)


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "time": duration_of,
    "timeout": duration_of,
    "count": _check_units,
    "algorithm": _check_one_of(ALGORITHMS),
    "burst": _optional(_check_units),
    "max_delay": _optional(duration_of),
    "lease": _optional(_check_lease),
    "period": _check_one_of(PERIODS),
    "timezone": _check_zone,
    "anchor": lambda value: plain_text(value) if isinstance(value, str) else value,  # depends on the period
    "name": _optional(_check_name),
}


def _mistake_in(rule: Rule) -> str | None:
    """Why fields that are each valid do not belong together; ``None`` if they do."""
    for name in ("burst", "max_delay", "lease"):
        if getattr(rule, name) is not None and name not in rule.implementation.PARAMETERS:
            takers = [algorithm for algorithm, twin in ALGORITHMS.items() if name in twin.PARAMETERS]
            return f"{name} works with {' and '.join(takers)}, not with {rule.algorithm}; leave it out"
    if rule.burst is not None and rule.quota.burst * rule.time > LONGEST * rule.count:
        return f"burst={rule.burst} would need more than {LONGEST} seconds (400 days) to refill"
    if rule.holds_slots and not SHORTEST_TIMEOUT <= rule.time <= LONGEST_TIMEOUT:
        return f"timeout must be between {SHORTEST_TIMEOUT} and {LONGEST_TIMEOUT} (a day) seconds"
    return None if rule.lease is None else _mistake_in_lease(rule, rule.lease)


def _mistake_in_lease(rule: Rule, lease: int) -> str | None:
    most = min(rule.count, rule.implementation.MAX_COST)
    if lease > most:
        units = f"{most} unit{'s' * (most > 1)}"
        return f"lease={brief(lease)} is more than {rule.algorithm} ever admits at once, which is {units}"
    if rule.time < SHORTEST_LEASED:
        return f"a lease needs a time of at least {SHORTEST_LEASED} second; leave it out"
    return None


def _nearest(value: object, names: Iterable[str]) -> str:
    if not isinstance(value, str) or not value:
        return ""
    match = difflib.get_close_matches(value, list(names), n=1)
    if not match:
        match = [name for name in names if name.startswith(value)][:1]
    return f" (did you mean {match[0]!r}?)" if match else ""


REFUSE_ALL = Rule.refusing()
"""The rule that lets nothing pass."""
