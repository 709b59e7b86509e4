"""When each subject made its requests, and the smallest counts that refuse at most a given share of them."""

from __future__ import annotations

import json
import re
import shlex
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from math import isfinite
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from pydantic import Field, InstanceOf, PlainSerializer

from ...declare.subjects import LimitType
from ...engine import Calendar, ConfigurationError, Limiter, MemoryStorage, Rule, hits_for
from ...engine.errors import brief, check_iterable
from ...engine.periods import AROUND
from ...engine.rules import UNITS, changed, time_in_words
from ...engine.storage.forgetting import UNBOUNDED
from ...engine.text import Phrase
from ...insight.values import as_json
from .logged import MICROSECONDS, field_name

CURVE_POINTS = 40
COUNTER = "sliding_window_counter"
"""The algorithm for units: a sliding window keeps an entry for each."""
WIDE = 4
"""A gap is where the next peak is at least so many times the one below it."""
FEW = Fraction(1, 10)
"""At most this share of the subjects is above a gap."""

Counts = tuple[int, ...]
"""One count per window."""


@dataclass(slots=True)
class Requests:
    """The requests of one subject."""

    instants: array[int]
    """Microseconds, in order, 8 bytes each."""
    units: array[int] | None = None
    """What each really cost; ``None`` if requests are counted."""

    def __len__(self) -> int:
        return len(self.instants)

    def most_in(self, window: Rule, *, windows: int = 1) -> int:
        """The most requests, or units, of any of these windows, or of several in a row: a rule with this count refuses
        none. Periods of a calendar never overlap."""
        instants, costs = self.instants, [1] * len(self) if self.units is None else self.units
        periods = window.quota.periods
        length = windows * window.quota.window if periods is None else 0
        most = used = first = end = 0
        for at, cost in zip(instants, costs, strict=True):
            if periods is None:
                while instants[first] <= at - length:
                    used -= costs[first]
                    first += 1
            elif at >= end:
                used, end = 0, periods.around(at)[AROUND + 1]
            used += cost
            if used > most:  # noqa: PLR1730 - max() takes longer, at every request
                most = used
        return most

    def refused_by(self, rules: Sequence[Rule], *, cost: int = 1, most: int | None = None) -> int:
        """The number of requests that ``rules`` refuse, if each is first charged ``cost``. It stops when that is more
        than ``most``.

        Requests before the ``retry_after`` of a refusal are counted without asking the engine: it would refuse them
        all.
        """
        instants, place, refused = self.instants, 0, 0
        storage = MemoryStorage(clock=lambda: instants[place], most_keys=UNBOUNDED)
        limiter = Limiter(storage)
        hits = hits_for(rules, scope="suggest", cost=cost)
        while place < len(instants):
            decision = storage.check(hits)
            if decision.allowed:
                if self.units is not None:
                    limiter.settle(decision, self.units[place])
                place += 1
                continue
            if not isfinite(decision.retry_after):
                return refused + len(instants) - place
            admitted_at = instants[place] + round(decision.retry_after * MICROSECONDS)
            next_admitted = bisect_left(instants, admitted_at, place + 1)
            refused += next_admitted - place
            if most is not None and refused > most:
                break
            place = next_admitted
        return refused

    def split(self, at: int) -> tuple[Requests, Requests]:
        """The requests until this instant, and those after it."""
        place = bisect_right(self.instants, at)
        before, after = slice(place), slice(place, None)
        units = (None, None) if self.units is None else (self.units[before], self.units[after])
        return Requests(self.instants[before], units[0]), Requests(self.instants[after], units[1])


class Arrivals(dict[str, Requests]):
    """The requests of each subject."""

    def __init__(self, type: str, endpoint: str | None = None, cost_field: str = "") -> None:  # noqa: A002
        super().__init__()
        self.type = type
        """The type of the subjects."""
        self.endpoint = endpoint
        """``None`` for the whole app."""
        self.cost_field = cost_field
        """The field of the log that says what requests really cost; empty if they are counted."""
        self.without_cost: int = 0
        """Requests that are left out, as nothing says what they cost."""

    def add(self, subject: str, at: int, units: int | None = None) -> None:
        """Add an instant. Instants must come in order; either all of them have units, or none."""
        known = self.get(subject)
        if known is None:
            known = self[subject] = Requests(array("q"), None if units is None else array("q"))
        known.instants.append(at)
        if units is not None and known.units is not None:
            known.units.append(units)

    @property
    def requests(self) -> int:
        return sum(map(len, self.values()))

    @property
    def estimate(self) -> int | None:
        """What half of the requests cost at most, and at least 1; ``None`` if requests are counted."""
        every = sorted(units for each in self.values() for units in each.units or ())
        return max(percentile(every, 0.5), 1) if every else None

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last instant. Raises ValueError if there is none."""
        return min(each.instants[0] for each in self.values()), max(each.instants[-1] for each in self.values())

    def halves(self) -> tuple[Arrivals, Arrivals]:
        """The first and the second half of the requests. Those of one instant stay together."""
        (middle, end), requests = self.span, self.requests
        while middle < end:  # a 32-bit system has no range of more than 36 minutes to bisect
            at = (middle + end) // 2
            has_half = 2 * sum(bisect_right(each.instants, at) for each in self.values()) >= requests
            if has_half:
                end = at
            else:
                middle = at + 1
        halves = Arrivals(self.type), Arrivals(self.type)
        for subject, each in self.items():
            for half, part in zip(halves, each.split(middle), strict=True):
                if part:
                    half[subject] = part
        return halves


def windows_of(given: Sequence[float | str]) -> list[Rule]:
    """The windows, each as :func:`window_of` returns it. Raises :class:`ConfigurationError`."""
    check_iterable("windows", given, "a list of seconds")
    windows = [window_of(each) for each in given]
    if len(set(windows)) != len(windows) or not windows:
        raise ConfigurationError("give each window once")
    return windows


def window_of(given: float | str) -> Rule:
    """A window, as a rule with a count of 1: from seconds, or from text such as ``60``, ``minute``, ``20 seconds`` or
    ``calendar month in Europe/Berlin``. Raises :class:`ConfigurationError`."""
    try:
        seconds = (int(given) if given.isdecimal() else float(given)) if isinstance(given, str) else given
    except ValueError:
        return _window_named(str(given))
    return Rule(seconds, 1)


def _window_named(text: str) -> Rule:
    try:
        return Rule.parse(f"1 per {text}")
    except ConfigurationError as error:
        wrong = 'window {given}: give seconds, one of {units}, or a period: "calendar month in Europe/Berlin" ({why})'
        raise ConfigurationError(Phrase(wrong, given=brief(text), units=", ".join(UNITS), why=error)) from None


def name_of(window: Rule) -> float | str:
    """The name of a window: its seconds, or the period of its calendar."""
    return str(window).partition(" per ")[2] if isinstance(window, Calendar) else window.time


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least ``share`` of ``ordered`` do not exceed (nearest rank)."""
    return ordered[max(-int(-share * len(ordered) // 1) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Peaks:
    """The distribution of peaks: the most requests, or units, of each subject in any window."""

    window: int | float | str
    """Seconds, or the period of a calendar: ``calendar month in Europe/Berlin``."""
    p50: int
    p90: int
    p99: int
    p999: int
    max: int

    @property
    def in_words(self) -> str:
        """The window: ``60 s``, or the period."""
        return self.window if isinstance(self.window, str) else time_in_words(self.window)


@dataclass(frozen=True, slots=True)
class Refused:
    """What a choice of counts would have refused."""

    requests: int
    of_requests: int
    subjects: int
    of_subjects: int

    @property
    def share_of_requests(self) -> float:
        return self.requests / self.of_requests if self.of_requests else 0.0


def _fields(rule: Rule) -> dict[str, Any]:
    """What a file of limits says of a rule."""
    if isinstance(rule, Calendar):
        return {"count": rule.count, "per": rule.period, "timezone": rule.timezone, "anchor": rule.anchor}
    return {"time": rule.time, "count": rule.count} | ({"algorithm": COUNTER} if rule.algorithm == COUNTER else {})


@dataclass(frozen=True, slots=True)
class Choice:
    """Rules of which none could have a smaller count."""

    rules: tuple[Annotated[InstanceOf[Rule], PlainSerializer(_fields)], ...]
    refused: Refused
    later: Refused | None
    """What a choice made on the first half of the log refuses in the second; ``None`` if a half is empty."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A few subjects make far more requests than all others, with nobody in between."""

    subjects: int
    """Those below it."""
    at_most: int
    """The most requests that one of these makes in any window."""
    above: int
    """The subjects above it."""
    least: int
    """The fewest requests that one of these makes in its busiest window, as ``most``."""
    most: int


@dataclass(frozen=True)
class Counted:
    """One count, and what it would have refused."""

    count: int
    requests: int
    clients: int
    """The clients that would have been refused."""
    why: list[str]
    """``asked`` for; ``in force`` at this endpoint; the smallest that refuses ``few requests``, or ``few clients``;
    ``below a gap``, above which few clients are."""


@dataclass(frozen=True)
class Suggestion:
    """The counts that the data suggests for some windows."""

    type: str
    requests: int
    subjects: int
    first: int
    """Microseconds since 1970, as ``last``."""
    last: int
    share: Annotated[InstanceOf[Fraction], PlainSerializer(float), Field(alias="refuse_at_most")]
    """The share that may be refused."""
    peaks: tuple[Peaks, ...]
    """One for each window."""
    for_requests: tuple[Choice, ...]
    """Choices that refuse at most ``share`` of the requests: one for each window alone, and if there are several
    windows, a last one for all of them together."""
    for_subjects: tuple[Choice, ...]
    """Choices that ever refuse at most ``share`` of the subjects, likewise."""
    gaps: tuple[Gap | None, ...] = ()
    """The gap between the peaks of each window, if there is one."""
    estimate: int | None = None
    """What half of the requests really cost at most, which is charged first: then peaks, gaps and counts are units.
    ``None``: they are requests."""
    cost_field: Annotated[str, Field(exclude=True)] = ""
    """The field of the log that says what they really cost."""
    without_cost: int = 0
    """Requests that are left out, as nothing says what they cost."""
    endpoint: str | None = None
    """``None`` for the whole app."""

    @property
    def proposed(self) -> tuple[Rule, ...]:
        """The rules to paste: below the gap of a window, or else those that refuse few requests."""
        return tuple(
            changed(rule, count=gap.at_most + (self.estimate or 0)) if gap is not None else rule
            for rule, gap in zip_longest(self.for_requests[-1].rules, self.gaps)
        )

    def as_json(self) -> dict[str, Any]:
        """For ``json.dumps``."""
        return {**as_json(self), "proposed": [_fields(rule) for rule in self.proposed]}


class Traffic:
    """Arrivals, and what limits would do to them."""

    def __init__(self, arrivals: Arrivals, windows: Iterable[Rule]) -> None:
        self.arrivals = arrivals
        self.estimate: int | None = arrivals.estimate
        self.windows: tuple[Rule, ...] = tuple(sorted(windows, key=attrgetter("time")))
        """Each as a rule with a count of 1, from the shortest."""
        self.subjects: dict[str, Counts] = self._peaks(1)
        """The peak of each subject, by window."""
        self._enough = self.subjects if self.estimate is None else self._peaks(2, self.estimate)
        """By subject and window, a count that never refuses it. The counter of units weighs two windows."""
        self._alone = tuple(Traffic(arrivals, [window]) for window in self.windows) if len(self.windows) > 1 else ()

    @property
    def parts(self) -> tuple[Traffic, ...]:
        """The same arrivals with each window alone, and if there are several, with all of them."""
        return (*self._alone, self)

    def rules(self, counts: Counts) -> tuple[Rule, ...]:
        other = {} if self.estimate is None else {"algorithm": COUNTER}
        return tuple(
            changed(window, count=max(count, 1), **({} if isinstance(window, Calendar) else other))
            for window, count in zip(self.windows, counts, strict=True)
        )

    def ordered(self, number: int) -> list[int]:
        """The peaks in one window, in ascending order."""
        return sorted(peaks[number] for peaks in self.subjects.values())

    def enough(self, number: int) -> list[int]:
        """The counts of one window that never refuse the subject with the most, the one after it, and so on."""
        return sorted((counts[number] for counts in self._enough.values()), reverse=True)

    def refused_subjects(self, counts: Counts) -> int:
        """The number of subjects that ``counts`` ever refuse."""
        if self.estimate is None:
            return sum(1 for _ in self._refusable(counts))
        return sum(self._refused_of(name, counts, None) > 0 for name in self._refusable(counts))

    def refused_requests(self, counts: Counts, most: int | None = None) -> int:
        """The number of requests that ``counts`` refuse, as the engine decides; above ``most``, any number above it."""
        refused = 0
        for name in self._refusable(counts):
            refused += self._refused_of(name, counts, None if most is None else most - refused)
            if most is not None and refused > most:
                break
        return refused

    def refused(self, counts: Counts) -> Refused:
        return Refused(
            self.refused_requests(counts), self.arrivals.requests, self.refused_subjects(counts), len(self.arrivals)
        )

    def _refusable(self, counts: Counts) -> Iterator[str]:
        """The subjects that ``counts`` may refuse; if requests are counted, those that they do."""
        for name, enough in self._enough.items():
            if any(most > count for most, count in zip(enough, counts, strict=True)):
                yield name

    def _peaks(self, windows: int, margin: int = 0) -> dict[str, Counts]:
        return {
            name: tuple(requests.most_in(window, windows=windows) + margin for window in self.windows)
            for name, requests in self.arrivals.items()
        }

    def _refused_of(self, name: str, counts: Counts, most: int | None) -> int:
        return self.arrivals[name].refused_by(self.rules(counts), cost=self.estimate or 1, most=most)


Choose = Callable[[Traffic, Fraction], Counts]


def traffic_of(arrivals: Arrivals, windows: Sequence[Rule]) -> Traffic:
    """The traffic of ``arrivals``. Raises :class:`ConfigurationError` if there are none."""
    if not arrivals:
        costless = "no requests to learn from: nothing says what they cost; none has a number in the field {field}"
        none = "no requests to learn from: there is none that a limit here would count"
        raise ConfigurationError(Phrase(costless if arrivals.without_cost else none, field=brief(arrivals.cost_field)))
    return Traffic(arrivals, windows)


def suggest_for(traffic: Traffic, share: Fraction) -> Suggestion:
    """The distribution of the peaks, and the smallest counts. Raises :class:`ConfigurationError`."""
    if not 0 <= share < 1:
        raise ConfigurationError(Phrase("share={share}: give at least 0 and less than 1 (100%)", share=float(share)))
    arrivals, windows = traffic.arrivals, traffic.windows
    halves = arrivals.halves()
    halved = tuple(Traffic(half, windows) for half in halves) if all(halves) else ()
    alone = range(len(traffic.windows))
    parts = list(zip(traffic.parts, *(half.parts for half in halved), strict=True))
    begin, end = arrivals.span

    def choices(choose: Choose) -> tuple[Choice, ...]:
        return tuple(_choice(choose, share, part, halves) for part, *halves in parts)

    return Suggestion(
        type=arrivals.type,
        requests=arrivals.requests,
        subjects=len(arrivals),
        first=begin,
        last=end,
        share=share,
        peaks=tuple(_peaks(traffic, number) for number in alone),
        for_requests=choices(counts_for_requests),
        for_subjects=choices(counts_for_subjects),
        gaps=tuple(gap_in(traffic.ordered(number)) for number in alone),
        estimate=traffic.estimate,
        cost_field=arrivals.cost_field,
        without_cost=arrivals.without_cost,
        endpoint=arrivals.endpoint,
    )


def gap_in(peaks: Sequence[int]) -> Gap | None:
    """The widest gap in ``peaks``, which are in order: from one to the next, at least :data:`WIDE` times as many, with
    at most :data:`FEW` of all subjects above it."""
    first = max(len(peaks) - int(FEW * len(peaks)), 1)
    places = [place for place in range(first, len(peaks)) if peaks[place] >= WIDE * peaks[place - 1]]
    if not places:
        return None
    place = max(places, key=lambda each: peaks[each] / peaks[each - 1])
    return Gap(place, peaks[place - 1], len(peaks) - place, peaks[place], peaks[-1])


def counts_for_requests(traffic: Traffic, share: Fraction) -> Counts:
    """The smallest counts that refuse at most ``share`` of the requests."""
    most = int(share * traffic.arrivals.requests)
    return _smallest(traffic, lambda counts: traffic.refused_requests(counts, most) <= most)


def counts_for_subjects(traffic: Traffic, share: Fraction) -> Counts:
    """The smallest counts that ever refuse at most ``share`` of the subjects."""
    most = int(share * len(traffic.arrivals))
    return _smallest(traffic, lambda counts: traffic.refused_subjects(counts) <= most)


def curve(traffic: Traffic, chosen: Mapping[int, list[str]]) -> list[Counted]:
    """What different counts of the (only) window would have refused: from the count that half of the subjects exceed
    to the one that refuses nothing, and including the ``chosen`` ones, which say why.

    A larger count never refuses more, so the value of a count between two points is between their values.
    """
    ordered = traffic.ordered(0)
    low, high = percentile(ordered, 0.5), ordered[-1]
    steps = {round(low * (high / low) ** (i / CURVE_POINTS)) for i in range(CURVE_POINTS + 1)}
    return [
        Counted(count, traffic.refused_requests((count,)), traffic.refused_subjects((count,)), chosen.get(count, []))
        for count in sorted({*steps, low, high, *chosen})
    ]


def _choice(choose: Choose, share: Fraction, traffic: Traffic, halves: Sequence[Traffic]) -> Choice:
    later = halves[1].refused(choose(halves[0], share)) if halves else None
    counts = choose(traffic, share)
    return Choice(traffic.rules(counts), traffic.refused(counts), later)


def _smallest(traffic: Traffic, is_enough: Callable[[Counts], bool]) -> Counts:
    """Counts that are enough, and of which none could be smaller by one.

    Larger counts never refuse more: the engine admits each request of a subject at the same time or earlier. So at
    first, the counts of all windows are lowered until they may refuse the same number of the busiest subjects, as many
    as possible; then each count by itself, that of the shortest window first, as far as the others leave room.
    """
    ordered = [traffic.enough(number) for number in range(len(traffic.windows))]
    subjects = len(traffic.arrivals)

    def refusing(busiest: int) -> Counts:
        return tuple(peaks[busiest] for peaks in ordered)

    # bisect finds the first number of subjects that is too many
    last = bisect_left(range(subjects), True, key=lambda busiest: not is_enough(refusing(busiest))) - 1
    counts = list(refusing(max(last, 0)))
    for number, most in enumerate(list(counts)):

        def enough(count: int, number: int = number) -> bool:
            return is_enough((*counts[:number], count, *counts[number + 1 :]))

        counts[number] = 1 + bisect_left(range(1, most), True, key=enough)
    return tuple(counts)


def _peaks(traffic: Traffic, number: int) -> Peaks:
    ordered = traffic.ordered(number)
    p50, p90, p99, p999 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99, 0.999))
    return Peaks(name_of(traffic.windows[number]), p50, p90, p99, p999, ordered[-1])


# To paste


_TYPES = {each.value for each in LimitType}


class Texts(NamedTuple):
    """The proposed rules, in each form in which they can be pasted."""

    decorator: str
    toml: str
    command: str | None


def texts_to_paste(found: Suggestion) -> Texts:
    return Texts(declaration(found, found.proposed), toml(found), command_to_try(found))


def declaration(found: Suggestion, rules: Iterable[Rule]) -> str:
    """The decorator, or the limit of the app."""
    written = ", ".join(repr(rule) if isinstance(rule, Calendar) else f"Rule({_given(rule, '=')})" for rule in rules)
    settled = "" if found.estimate is None else f", cost={found.estimate}, settle={json.dumps(_settle(found))}"
    limiter = f"rate_limiter({_type(found.type)}, rules=[{written}]{settled})"
    return f"@{limiter}" if found.endpoint else f"MultiLimit(app, application_limits={limiter})"


def toml(found: Suggestion) -> str:
    """The lines of a file of limits."""
    text, settled = _text(found.proposed), ""
    tables = ", ".join(f"{{ {_given(rule, ' = ')} }}" for rule in found.proposed)
    rules = f"[{tables}]" if text is None or found.estimate is not None else json.dumps(text)
    if found.estimate is not None:
        settled = f", cost = {found.estimate}, settle = {json.dumps(_settle(found))}"
    table = f"{{ type = {json.dumps(found.type)}, rules = {rules}{settled} }}"
    return f"[limits]\n{json.dumps(found.endpoint)} = {table}" if found.endpoint else f"application_limits = {table}"


def command_to_try(found: Suggestion) -> str | None:
    """The command that tries the rules for a day, without refusing anybody. ``None`` if there is none: for rules that
    settle, count the requests to all endpoints together, or have windows of parts of a second."""
    text = _text(found.proposed)
    if text is None or found.estimate is not None or found.endpoint is None:
        return None
    words = ("set", found.endpoint, "--limit", text, "--type", found.type, "--shadow", "--for", "1d")
    return f"flask multilimit {shlex.join(words)}"


def _given(rule: Rule, equals: str) -> str:
    return ", ".join(f"{name}{equals}{json.dumps(value)}" for name, value in _fields(rule).items() if value is not None)


def _settle(found: Suggestion) -> str:
    """The field of the response that the cost field of the log shows, by its name."""
    name = field_name(found.cost_field).removeprefix("upstream_http_").removeprefix("sent_http_")
    return f"header:{name.replace('_', '-').title()}"


def _text(rules: Sequence[Rule]) -> str | None:
    """The rules as text; ``None`` if a window is no whole number of seconds, which no text can say."""
    if not all(isinstance(rule, Calendar) or isinstance(rule.time, int) for rule in rules):
        return None
    units: dict[float, str] = {seconds: f"/{unit}" for unit, seconds in UNITS.items()}

    def written(rule: Rule) -> str:
        return f"{rule.count}{units.get(rule.time) or f' per {rule.time} seconds'}"

    return "; ".join(str(rule) if isinstance(rule, Calendar) else written(rule) for rule in rules)


def _type(name: str) -> str:
    types = [part.upper() for part in name.split("+") if part in _TYPES]
    if ":" in name:
        return f"type={json.dumps(name)}"
    if not types:
        return f'type={re.sub("[^a-zA-Z0-9]", "_", name)}, name="{name}"'
    return f"type={types[0]}" if len(types) == 1 else f"type=({', '.join(types)})"
