"""Two questions to a log: what these limits would have done, and which counts refuse at most a given share."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from flask import Flask

from ...declare.data import LimitsFile, read_limits, validated
from ...declare.limiter import check_callable
from ...declare.subjects import LimitType, Subject, parts_of, types_in
from ...declare.written import HeaderType
from ...engine import ConfigurationError
from ...engine.errors import brief, check_iterable, check_mapping, check_text
from ...engine.rules import Rules
from ...engine.text import Phrase
from ...plan.lookups import require_endpoint
from ...plan.plans import Plans
from ...plan.sources import Sources
from ...serve.access import AccessLists, declared_lists
from ...serve.gate import AppGate, gate_of
from .logged import LoggedRequest
from .reading import Logs
from .replay import OnDecision, Replay
from .replay_plan import Replacements, ReplayPlans, real_cost_in
from .report import Report
from .resolving import ClientLists, Destination, Routes, SubjectFinder, check_fields
from .suggest import Arrivals, Suggestion, suggest_for, traffic_of, windows_of

COLLECT_AFTER = 200_000
"""How many new objects start Python's garbage collector. A replay makes few cycles, and keeps many objects."""
_SHORT_NUMBER = re.compile(r"[\d./]{1,40}(?:[eE][+-]?\d{1,2})?")

Limits = Mapping[str, Any] | str | Path
"""A file of limits, or its content."""


class LimitSet(NamedTuple):
    """The limits and lists through which requests are replayed."""

    plans: Plans
    access: AccessLists | None


def simulate(
    app: Flask,
    requests: Iterable[LoggedRequest],
    *,
    limits: Limits | None = None,
    subjects: Mapping[str, str] | None = None,
    costs: Mapping[str, int] | None = None,
    rules: Mapping[str, Rules] | None = None,
    priorities: Mapping[str, str] | None = None,
    cost_field: str = "",
    script_name: str = "",
    on_decision: OnDecision | None = None,
) -> Report:
    """What limits would have done to ``requests``, which must come in order of time (:func:`read_logs`).

    :param limits: a file of limits, or its content (``{"default_limits": "100/minute"}``). It replaces all limits that
        are not in decorators. By default, the limits in force are used.
    :param subjects: the field of the log that has the subject, by the name of the type: ``{"api_key": "X-Api-Key"}``.
    :param costs: units that replace a callable ``cost``, by endpoint or by the name of the limiter.
    :param rules: rules that replace callable ``rules``, likewise.
    :param priorities: the priority of all requests, where units are reserved, likewise.
    :param cost_field: the field of the log that has what a request really cost, where limiters have ``settle``: the
        estimate is charged first, and settled when the response was complete.
    :param script_name: the path at which the app is mounted.
    :param on_decision: called with each request and its :class:`Decision` (``None`` if no limit was checked).
    """
    for name, by_name in (("costs", costs), ("rules", rules), ("priorities", priorities)):
        check_mapping(name, by_name or {}, "a dict by endpoint or by the name of a limiter")
    check_fields(subjects or {})
    check_text("cost_field", cost_field)
    if on_decision is not None:
        check_callable("on_decision", on_decision, "the request", "its Decision")
    replay = replay_of(
        app,
        limits=limits_of(app, limits),
        subjects=subjects or {},
        replacements=Replacements(costs or {}, rules or {}, priorities or {}, cost_field),
        script_name=script_name,
        on_decision=on_decision,
    )
    run(requests, [replay])
    return replay.report(files=requests.files if isinstance(requests, Logs) else ())


def _read_fields(requests: Iterable[LoggedRequest], *names: str) -> None:
    """Let logs read the fields that are called ``names``, too."""
    if isinstance(requests, Logs):
        requests.wanted = tuple(dict.fromkeys((*requests.wanted, *filter(None, names))))


def run(requests: Iterable[LoggedRequest], replays: Sequence[Replay]) -> None:
    """Replay ``requests`` in each of ``replays``. Logs read the fields that these need."""
    _read_fields(requests, *(name for replay in replays for name in replay.fields))
    adds = [replay.add for replay in replays]
    with _rare_garbage_collection():
        for request in logged_requests(requests):
            for add in adds:
                add(request)
        for replay in replays:
            replay.finish()


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Let the garbage collector of this process run less often for a while: it takes a third of a replay's time."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], COLLECT_AFTER), 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def logged_requests(given: object) -> Iterator[LoggedRequest]:
    """The requests of logs that are ``given``. Raises :class:`ConfigurationError` for anything else."""
    if isinstance(given, Logs):
        yield from given
        return
    check_iterable("requests", given, _REQUESTS)
    for each in cast("Iterable[object]", given):
        if not isinstance(each, LoggedRequest):
            raise ConfigurationError(f"requests: {brief(each)}: give {_REQUESTS}")
        yield each


_REQUESTS = "what read_logs(...) returns, or a list of LoggedRequest"


def replay_of(
    app: Flask,
    *,
    limits: LimitSet,
    subjects: Mapping[str, str],
    replacements: Replacements,
    script_name: str = "",
    endpoint: str | None = None,
    on_decision: OnDecision | None = None,
) -> Replay:
    """A replay through ``limits``, to which requests are added, and which reports on those to ``endpoint``; ``None``:
    to all. Raises :class:`ConfigurationError`."""
    plans = limits.plans
    known = {*app.view_functions, *(limiter.declaration.name for limiter in plans.all_limiters())}
    for name in (*replacements.costs, *replacements.rules, *replacements.priorities):
        if name not in known:
            raise ConfigurationError(f"no endpoint and no limiter is called {brief(name)}")
    headers = _header_fields(plans)
    finder = SubjectFinder({**headers, **subjects}, headers.keys() - subjects.keys())
    lists = ClientLists(limits.access, plans, finder)
    routes = Routes(app, script_name, plans.unmatched_methods)
    return Replay(ReplayPlans(plans, finder, replacements, lists, endpoint), routes, on_decision)


def limits_of(app: Flask, limits: Limits | None = None) -> LimitSet:
    """The limits in force, or ``limits`` together with those of decorators."""
    gate = gate_of(app)
    if limits is None:
        gate.plans.build()
        return LimitSet(gate.plans, gate.access)
    if isinstance(limits, (str, Path)):
        name, given = Path(limits).name, read_limits(Path(limits))
    else:
        name, given = "limits", validated(LimitsFile, "limits", limits)
    written = [(lambda field: f"{name}: {field}", given)]
    plans = Plans(app, Sources.of(app, written), subjects=gate.subjects, key_prefix=gate.settings.key_prefix)
    if problems := plans.sources.idle_by_name():
        raise ConfigurationError("; ".join(problems))
    plans.build()
    return LimitSet(plans, declared_lists(written))


def _header_fields(plans: Plans) -> dict[str, str]:
    """The header fields that types take their subjects from, by the name of the type. A log must contain them."""
    found: dict[str, str] = {}
    for declared in (limiter.declaration for limiter in plans.all_limiters()):
        named = zip(parts_of(declared.type, declared.name), types_in(declared.type), strict=True)
        found.update({name: type_.header for name, type_ in named if isinstance(type_, HeaderType)})
    return found


def arrivals_of(
    app: Flask,
    requests: Iterable[LoggedRequest],
    *,
    type: str,  # noqa: A002 - the field's word
    endpoint: str | None = None,
    subjects: Mapping[str, str] | None = None,
    cost_field: str = "",
    script_name: str = "",
    most_subjects: int | None = None,
) -> Arrivals:
    """When each subject of ``type`` made its requests: those that a limit of ``endpoint``, or of the whole app, would
    count, of clients that are on no list now; until there are ``most_subjects``. With a ``cost_field``, only requests
    of which it tells the real cost."""
    gate = gate_of(app)
    if endpoint is not None:
        require_endpoint(gate.plans, endpoint)
    is_counted = cache(partial(_is_counted, _plans_with_probe(app, endpoint), endpoint))
    routes, finder = Routes(app, script_name), SubjectFinder(subjects or {})
    _read_fields(requests, *finder.fields.values(), cost_field)
    subject_of, arrivals = _subject_function(gate, type, finder), Arrivals(type, endpoint, cost_field)
    lists = ClientLists(gate.access, gate.plans, finder)
    for request in logged_requests(requests):
        if not is_counted(routes.destination_of(request)):
            continue
        known = finder.subjects_of(request)
        if lists.of(request, known) is not None:
            continue
        subject, units = subject_of(known), real_cost_in(request, cost_field) if cost_field else None
        if cost_field and units is None:
            arrivals.without_cost += 1
        elif subject is not None:
            arrivals.add(subject.value, request.at, units)
            if most_subjects is not None and len(arrivals) >= most_subjects:
                break
    return arrivals


_SUGGESTED = "suggested"


def _plans_with_probe(app: Flask, endpoint: str | None) -> Plans:
    """The limits and exemptions in force, but of the limits outside of decorators only one of ``endpoint`` or the whole
    app, which shows where it would count."""
    gate, one = gate_of(app), {"rules": "1/minute", "name": _SUGGESTED, "scope": _SUGGESTED}
    source = validated(LimitsFile, "limits", {"limits": {endpoint: one}} if endpoint else {"application_limits": one})
    sources = Sources.of(app, [("limits: {}".format, source)])._replace(exempt=gate.plans.sources.exempt)
    plans = Plans(app, sources, subjects=gate.subjects, key_prefix=gate.settings.key_prefix)
    plans.build()
    return plans


def _is_counted(plans: Plans, endpoint: str | None, destination: Destination) -> bool:
    name = destination.endpoint
    if name not in plans.app.view_functions or endpoint not in {None, name}:
        return False
    return any(each.declaration.name == _SUGGESTED for each in plans.of_endpoint(name, destination.method).limiters)


def suggest_limits(
    app: Flask,
    requests: Iterable[LoggedRequest],
    *,
    type: str = "ip",  # noqa: A002 - the field's word
    windows: Sequence[float | str] = (60,),
    refuse_at_most: float | str | Fraction = "0.1%",
    endpoint: str | None = None,
    subjects: Mapping[str, str] | None = None,
    cost_field: str = "",
    script_name: str = "",
) -> Suggestion:
    """The smallest counts that refuse at most ``refuse_at_most`` of the requests, and of the subjects.

    :param type: the type of the limits: ``ip``, ``user``, ``default``, or a key of ``subjects``.
    :param windows: seconds, or the period of a calendar: ``"calendar month in Europe/Berlin"``. For several windows,
        counts are also chosen together.
    :param endpoint: count only requests to it; by default those to the whole app.
    :param cost_field: the field of the log that has what a request really cost: counts are units, of limits that
        settle.
    """
    check_text("cost_field", cost_field)
    share, rules = share_from(refuse_at_most), windows_of(windows)
    arrivals = arrivals_of(
        app, requests, type=type, endpoint=endpoint, subjects=subjects, cost_field=cost_field, script_name=script_name
    )
    return suggest_for(traffic_of(arrivals, rules), share)


def share_from(text: float | str | Fraction) -> Fraction:
    """A share from text such as ``0.1%`` or ``0.001``. Raises :class:`ConfigurationError`."""
    written = str(text).strip()
    try:
        share = _fraction(written.removesuffix("%").strip())
    except (ValueError, ZeroDivisionError):
        raise ConfigurationError(Phrase("{given}: give a share such as 0.001 or 0.1%", given=brief(written))) from None
    share = share / 100 if written.endswith("%") else share
    if share > 1:
        more = "{given}: more than all; give a share such as 0.001 or 0.1%"
        raise ConfigurationError(Phrase(more, given=brief(written)))
    return share


def _fraction(text: str) -> Fraction:
    """The value of a number of ordinary length: 1e-99999999 would take minutes. Raises ValueError."""
    if not _SHORT_NUMBER.fullmatch(text):
        raise ValueError(text)
    return Fraction(text)


def _subject_function(
    gate: AppGate, type_: str, finder: SubjectFinder
) -> Callable[[Mapping[str, str]], Subject | None]:
    """A function that finds the subject of a request among all its subjects, for a type by its name."""
    check_text("type", type_)
    known = {each.value: each for each in LimitType}
    types = tuple(known[part] for part in type_.split("+") if part in known)
    if type_ in finder.fields and type_ not in known:
        return lambda subjects: Subject(type_, subjects[type_]) if type_ in subjects else None
    if len(types) != len(type_.split("+")):
        raise ConfigurationError(
            f"type={brief(type_)}: give {', '.join(known)}, several joined by +, or name its field (--subject)"
        )
    resolve = types[0] if len(types) == 1 else types
    given = gate.subjects.given
    return lambda subjects: given(subjects)(resolve, None)
