"""The pages: each turns a request into a value of insight, and this into a response. ``/api/`` shows the same value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flask import Response, request
from werkzeug.exceptions import Forbidden

from ...control.control import ControlConflict
from ...control.store import KINDS
from ...engine import ConfigurationError, StorageError
from ...engine.errors import message_of, with_remedy
from ...engine.keys import is_digest
from ...engine.text import SafeLogger, quoted, unquoted
from ...insight import bans, clients
from ...insight.changes import Entries, History, document_in_force, entries, history
from ...insight.keys import slots_now
from ...insight.limits import SHOWS, Limits, limits
from ...insight.past import Past, instant_of, standing_at
from ...insight.standing import Standing, standing
from ...insight.traffic import Now, RefusedSubject, Series, looking, now, refused_subject
from ...insight.values import ROWS, Described, paged
from ...serve.gate import gate_in_force
from . import changes
from .drawing import PLANE, SPARK, Drawing, draw, group_rates, share
from .forms import read_notice, require_own_form, sign_notice
from .shell import render, url
from .visit import require_few_changes, visit

MAY_NOT = "You may look, but not change anything."
SWITCHED_OFF = "MULTILIMIT_CONTROL or MULTILIMIT_ENABLED is False: nothing can be changed."
GONE = "This entry is no longer in force."
MINUTES = (5, 15, 60)
"""The times that the page Now looks back."""
MOST_PAGES = 1_000_000
MOST_REFUSED = 10


def fields_of(value: Described) -> dict[str, Any]:
    """A value's fields by name, for a template."""
    return {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]


def in_query(**otherwise: Any) -> dict[str, Any]:
    """What the query says in place of ``otherwise``; a number where that is a number."""
    return {name: _read(request.args.get(name), default) for name, default in otherwise.items()}


def _read(text: str | None, otherwise: Any) -> Any:
    if not isinstance(otherwise, int):
        return otherwise if text is None else text
    return min(int(text), MOST_PAGES) if text and text.isascii() and text.isdigit() and len(text) < 10 else otherwise


def _keep_up() -> None:
    """Read the changes in force now, because another process may have made one a moment ago."""
    gate_in_force().applier.look()


# Now


def query_now() -> Now:
    return now(gate_in_force(), **in_query(minutes=60, endpoint=None, q="", sort="", page=1))


def now_page() -> Response:
    found = query_now()
    totals = found.totals
    everything = sum(each.amount for each in (totals.passed, totals.refused, totals.banned, totals.unanswered))
    drawings = [_drawing(each.series, found.last, slices=6, size=SPARK) for each in found.endpoints]
    return render(
        "now.html",
        **{**fields_of(found), "endpoints": list(zip(found.endpoints, drawings, strict=True))},
        who_of=lambda each: clients.client_of(gate_in_force(), each.type, each.subject).text,
        has_lists=_has_lists,
        drawing=_drawing(found.series, found.last, slices=max(found.minutes // 20, 1)),
        share=share(totals.refused.amount, everything),
        choices=MINUTES,
        slots=slots_now(gate_in_force()),
    )


def _has_lists(type_name: str, value: str) -> bool:
    """Whether lists and overrides can name this subject; networks have no type."""
    return (not type_name or type_name in gate_in_force().plans.types) and not is_digest(value)


def _drawing(series: Series, last: int, *, slices: int, size: tuple[int, int] = PLANE) -> Drawing:
    other = [banned + unanswered for banned, unanswered in zip(series.banned, series.unanswered, strict=True)]
    lines = (series.passed, series.refused, other, series.near)
    return draw(*(group_rates(line, last, slices=slices) for line in lines), size=size)


# Limits


def query_limits() -> Limits:
    _keep_up()
    gate = gate_in_force()
    with looking(gate) as memory:
        return limits(gate, memory, **in_query(q="", show="", page=1), without=request.blueprint or "")


def limits_page() -> Response:
    return render("limits.html", shows=SHOWS, **fields_of(query_limits()))


# Changes


def change_page() -> Response:
    """The form, and below it what the change would do."""
    return _change(changes.propose(gate_in_force(), changes.read(request.args)))


def make_change() -> Response:
    """Make the change that the form proposes."""
    _require_may_change(by_entry=True)
    found = changes.make(
        gate_in_force(), changes.read(request.form), force="force" in request.form, seen=request.form.get("seen")
    )
    if found.mistakes or found.preview is None:
        return _change(found)
    return _redirect_to(url("lists", done=found.preview.entry.id))


def undo() -> Response:
    """Undo an entry."""
    _require_may_change(by_entry=True)
    gate, id_ = gate_in_force(), request.form.get("id", "")
    try:
        entry = gate.applier.control.undo(id_, author=visit().author)
    except StorageError as error:
        return lists_page(problem=with_remedy(error), status=503)
    except ConfigurationError as error:
        _keep_up()
        says_why = isinstance(error, ControlConflict) or any(each.id == id_ for each in document_in_force(gate).entries)
        return lists_page(problem=message_of(error) if says_why else GONE, status=409)
    return _redirect_to(url("lists", undone=sign_notice(str(entry)[:200])))


def _require_may_change(*, by_entry: bool = False) -> None:
    """Raise :exc:`Forbidden` unless this person may change limits (with ``by_entry``, by an entry that workers follow),
    and this is one of our forms."""
    if not visit().may_change:
        raise Forbidden(MAY_NOT)
    require_own_form()
    require_few_changes()
    if by_entry and not gate_in_force().applier.enabled:
        raise Forbidden(SWITCHED_OFF)


def _redirect_to(address: str) -> Response:
    """Redirect after a change, so that a reload of the page does not repeat it."""
    return Response(status=303, headers={"Location": address})


def query_change() -> changes.Change:
    gate = gate_in_force()
    return changes.change_of(gate, changes.propose(gate, changes.read(request.args)))


def _change(found: changes.Proposal) -> Response:
    gate = gate_in_force()
    gate.plans.ensure()
    return render(
        "change.html",
        status=found.status,
        parts_at=changes.parts_at(gate, found.given.get("endpoint", "")),
        types=changes.types_of(gate.plans),
        enabled=gate.applier.enabled,
        shared=gate.applier.control.shared,
        fields=changes.FIELDS,
        most_shown=changes.MOST_DIFFERENCES,
        **fields_of(changes.change_of(gate, found)),
    )


# Subject


@dataclass(frozen=True, slots=True)
class Subject(Described):
    """Where one client stands."""

    found: Standing | None
    """``null`` if no client was named, or an impossible one."""
    mistake: str
    past: Past | None = None
    """Where it stood at the time that was asked for."""


def query_subject() -> Subject:
    return _subject()[0]


def _subject() -> tuple[Subject, int]:
    """The answer, and the status of a page with it."""
    _keep_up()
    gate = gate_in_force()
    try:
        client = _client_in(request.args, request.args.get("value", ""))
        if client is None:
            return Subject(None, ""), 200
        with looking(gate) as memory:
            endpoint = request.args.get("endpoint") or None
            found = standing(gate, client, memory, endpoint=endpoint, **in_query(page=1), rows=ROWS)
            at = request.args.get("at", "")
            past = None
            if at:
                instant = instant_of(at, gate.applier.time())
                past = standing_at(gate, client, memory, instant, endpoint=endpoint)
            return Subject(found, "", past), 200
    except StorageError as error:
        return Subject(None, with_remedy(error)), 503
    except ConfigurationError as error:
        return Subject(None, message_of(error)), 400


def _client_in(given: Mapping[str, str], value: str) -> clients.Client | None:
    """The client that a query or form names: by ``who``, as people write it, or by ``type`` and ``value``."""
    gate = gate_in_force()
    if type_name := given.get("type", ""):
        return clients.client_of(gate, type_name, value)
    text = given.get("who", "").strip()
    return clients.client_from(gate, text) if text else None


def subject_page() -> Response:
    gate, (answer, status) = gate_in_force(), _subject()
    found, most = answer.found, list[RefusedSubject]()
    with looking(gate) as memory:
        if memory is not None and found is None:
            most = [refused_subject(gate, memory, *each) for each in memory.refusals.most(MOST_REFUSED)]
    return render(
        "subject.html",
        status=status,
        who=quoted(unquoted(request.args.get("who", "").strip()) or (found.who if found else "")),
        done=read_notice("done"),
        unbanned=read_notice("unbanned"),
        has_lists=found is not None and _has_lists(found.type, found.value),
        most=most,
        plain=gate.settings.traffic_subjects == "plain",
        traffic_known=memory is not None,
        **fields_of(answer),
    )


def reset() -> Response:
    """Reset the quotas of a client, at one endpoint or everywhere."""
    _require_may_change()
    gate, endpoint = gate_in_force(), request.form.get("endpoint") or None
    try:
        client = _client_of_form()
        number = bans.reset(gate, client, endpoint)
    except (ConfigurationError, StorageError) as error:
        return _not_possible(error)
    if number:
        where = f"at {endpoint}" if endpoint else "at all endpoints"
        _add_to_history("reset", f"{quoted(client.text) or client.shown} {where}")
    return _redirect_to(_subject_url(done=sign_notice(str(number))))


def unban() -> Response:
    """Lift every ban of a client."""
    _require_may_change()
    try:
        lifted = bans.unban(gate_in_force(), _client_of_form(), author=visit().author)
    except (ConfigurationError, StorageError) as error:
        return _not_possible(error)
    if lifted.keys:
        _add_to_history("unban", quoted(lifted.who))
    return _redirect_to(_subject_url(unbanned=sign_notice(str(len(lifted.entries) + len(lifted.keys)))))


def _client_of_form() -> clients.Client:
    return _client_in(request.form, _value_of_form()) or clients.client_of(gate_in_force(), "", "")


def _value_of_form() -> str:
    return unquoted(request.form.get("value", ""))


def _subject_url(**notices: str) -> str:
    named = {"who": request.form.get("who"), "type": request.form.get("type"), "value": _value_of_form() or None}
    return url("subject", **named, **notices)


def _not_possible(error: ConfigurationError | StorageError) -> Response:
    return render("refused.html", status=409, title="", why=with_remedy(error))


def _add_to_history(what: str, entry: str) -> None:
    """Add a line to the history. The quotas are reset already, so an error is only logged."""
    if problem := bans.add_to_history(gate_in_force(), what, entry, author=visit().author):
        logger = SafeLogger(gate_in_force().app.logger)
        logger.error("Rate limits: the history does not show the %s of %s: %s", what, entry, problem)


# Lists and history


def query_lists() -> Entries:
    return entries(gate_in_force(), **in_query(kind="", q="", page=1))


def lists_page(*, problem: str = "", status: int = 200) -> Response:
    gate, found, done = gate_in_force(), query_lists(), request.args.get("done", "")
    just_made = entries(gate, q=done).entries if done else ()
    held, is_held_known = list[bans.BanInForce](), True
    try:
        held = [each for each in bans.bans(gate) if not each.id and found.q.lower() in _text_of(each).lower()]
    except (StorageError, ConfigurationError) as error:
        is_held_known = False
        problem = problem or ("" if found.problem else with_remedy(error))  # the page shows one of the entries anyway
    shown, paging_of_held = paged(held, in_query(held=1)["held"])
    return render(
        "lists.html",
        status=status,
        kinds=KINDS,
        failed=problem,
        done=next((each for each in just_made if each.id == done), None),
        undone=read_notice("undone"),
        shared=gate.applier.control.shared,
        held=shown,
        is_held_known=is_held_known,
        paging_of_held=paging_of_held,
        **fields_of(found),
    )


def _text_of(ban: bans.BanInForce) -> str:
    """What a search for a ban finds."""
    return f"{ban.who} {ban.shown} {ban.by} {ban.endpoint}"


def query_history() -> History:
    return history(gate_in_force(), **in_query(q="", page=1))


def history_page() -> Response:
    return render("history.html", **fields_of(query_history()))
