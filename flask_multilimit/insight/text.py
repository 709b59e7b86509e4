"""How durations, rules and subjects are written for people, wherever they are shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from ..declare.addresses import usual_network
from ..declare.limiter import Declaration
from ..declare.subjects import EVERYONE, LimitType, Subject
from ..engine import Ban, Rule
from ..engine.bans import BanRule
from ..engine.periods import LATEST_DATE, instant
from ..engine.rules import SIZES
from ..engine.text import Phrase, joined, quoted
from ..plan.plans import Plans


def duration(seconds: float | None) -> str:
    """``1.5 s``, ``12 min``, ``3.2 h``; ``never`` for a time after the last year of calendars."""
    if seconds is None or seconds > LATEST_DATE:
        return "never"
    if seconds >= 3600:
        seconds = 60 * math.ceil(seconds / 60)  # so that a moment after two hours began, they are still two hours
    for unit, size in SIZES:
        if seconds >= 2 * size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s" if seconds >= 1 or seconds == 0 else f"{math.ceil(seconds * 1000)} ms"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 100 else f"{number:.0f}"


def rate(value: float) -> str:
    """A number per second, with about three digits; ``<0.01`` for one that is rare."""
    if value < 0.005:
        return "<0.01" if value else "0"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


class LocalTime(Phrase):
    """An instant by the clock of this machine. A page shows ``at`` by the clock of its reader."""

    __slots__ = ("at",)
    at: float


def local_time(at: float) -> LocalTime:
    """``07:26:05 CET``, with the date if it is not today's."""
    then, today = instant(at).astimezone(), datetime.now().astimezone()
    text = LocalTime(then.strftime("%H:%M:%S %Z" if then.date() == today.date() else "%Y-%m-%d %H:%M:%S %Z"))
    text.at = at
    return text


def plural(number: int, noun: str, several: str = "") -> str:
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def subject_text(type_name: str, value: str, parts: Sequence[Subject] = ()) -> str:
    """A subject for people: ``ada``, ``everyone``, or ``ada + 203.0.113.7`` for one of several ``parts``."""
    if parts:
        return " + ".join(subject_text(*part) for part in parts)
    if type_name == EVERYONE.type:
        return "everyone"
    looks_typed = type_name == LimitType.IP.value and ":" in value and not usual_network(value)
    return quoted(f"{type_name}:{value}" if looks_typed else value) or "(empty)"


def shown_subject(plans: Plans, type_name: str, value: str) -> str:
    """As :func:`subject_text`; the ``plans`` know whether the type of this subject has parts."""
    return subject_text(type_name, value, plans.parts_of(Subject(type_name, value)))


def rule_text(rule: Rule) -> str:
    return ban_text(rule.ban) if isinstance(rule, BanRule) else rule.in_words


def ban_text(ban: Ban) -> str:
    text = "{time}{longer} after {n} refusals in {within_time}"
    if ban.after == 1:
        text = "{time}{longer} after 1 refusal in {within_time}"
    times = {"time": duration(ban.time), "within_time": duration(ban.within)}
    longer = Phrase(", x {factor} up to {time}", factor=f"{ban.factor:g}", time=duration(ban.most))
    return Phrase(text, **times, n=ban.after, longer=longer if ban.factor > 1 else "")


def parameters_of(rule: Rule) -> str:
    """The parameters of a rule besides its count and time."""
    burst = f"burst {rule.quota.burst}" if rule.burst is not None else ""
    delay = Phrase("queue {time}", time=duration(rule.max_delay)) if rule.max_delay else ""
    lease = f"lease {rule.lease}" if rule.lease is not None else ""
    return joined(list(filter(None, (burst, delay, lease))) or [""])


def options_of(declared: Declaration, methods: tuple[str, ...] | None) -> list[str]:
    """The options of a limiter besides its type and rules; ``methods`` are those it applies to (``None``: all)."""
    callables = ("exempt_when", "charge_when", "settle", "reserve", "on_rejected")
    conditions = [name for name in callables if getattr(declared, name)]
    options = [
        (Phrase("only {methods}", methods=", ".join(methods or ())), methods is not None),
        (f"scope {declared.scope}", declared.scope is not None),
        ("" if declared.ban is None else Phrase("bans for {ban}", ban=ban_text(declared.ban)), declared.ban),
        (Phrase("slot by subject"), declared.hash_tag == "subject"),
        (Phrase("cost by request") if callable(declared.cost) else f"cost {declared.cost}", declared.cost != 1),
        (Phrase("waits {time}", time=duration(declared.wait)), declared.wait),
        (", ".join(conditions), conditions),
        (f"key {declared.key}", declared.key is not None),
        (f"unit {declared.unit}", declared.unit is not None),
        (f"on_storage_error {declared.on_storage_error}", declared.on_storage_error is not None),
    ]
    return [text for text, holds in options if holds]
