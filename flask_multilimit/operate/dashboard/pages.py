"""The pages: turn a request into facts, and these into a response."""

from __future__ import annotations

from typing import Any

from flask import Response, request
from werkzeug.exceptions import Forbidden

from ...control.store import KINDS
from ...engine import ConfigurationError, StorageError
from ...engine.errors import with_remedy
from ...engine.text import SafeLogger
from ...observe.traffic.counts import BUCKET_SECONDS
from ...serve.applier import applier_of
from ...serve.gate import gate_in_force
from . import changes, entries, limits, now, subject
from .drawing import PLANE, SPARK, Drawing, drawn, grouped
from .forms import notice_given, notice_of, require_own_form
from .numbers import share
from .paging import page_asked
from .shell import render, url
from .throttle import require_few_changes
from .visit import visit

MAY_NOT = "You may look, but not change anything."
SWITCHED_OFF = "MULTILIMIT_CONTROL or MULTILIMIT_ENABLED is False: nothing can be changed."
GONE = "This entry is no longer in force."


def now_facts() -> dict[str, Any]:
    asked = request.args
    return now.facts(
        gate_in_force(),
        endpoint=asked.get("endpoint"),
        q=asked.get("q", ""),
        sort=asked.get("sort", ""),
        page=page_asked(asked),
    )


def now_page() -> Response:
    found = now_facts()
    last, totals = found["series"]["last"], found["totals"]
    everything = sum(totals[curve]["hour"] for curve in ("passed", "refused", "other"))
    for each in found["endpoints"]:
        each["drawing"] = _drawing(each["series"], last, slices=6, size=SPARK)
    return render(
        "now.html",
        drawing=_drawing(found["series"], last, slices=3),
        share=share(totals["refused"]["hour"], everything),
        **found,
    )


def _drawing(series: dict[str, Any], last: int, *, slices: int, size: tuple[int, int] = PLANE) -> Drawing:
    nothing = [0] * len(series["passed"])
    passed, refused, other, near = (
        grouped(series.get(curve, nothing), last, slices=slices, seconds=BUCKET_SECONDS)
        for curve in ("passed", "refused", "other", "near")
    )
    return drawn(passed, refused, other, near, size=size)


# Limits


def limits_facts() -> dict[str, Any]:
    _keep_up()
    asked = request.args
    with now.looking(gate_in_force()) as hour:
        return limits.facts(
            gate_in_force(), hour, q=asked.get("q", ""), show=asked.get("show", ""), page=page_asked(asked)
        )  # fmt: skip


def limits_page() -> Response:
    return render("limits.html", shows=limits.SHOWS, **limits_facts())


def _keep_up() -> None:
    """Read the changes in force now, because another process may have made one a moment ago."""
    applier_of(gate_in_force().app).look()


# Changes


def change_page() -> Response:
    """The form, and below it what the change would do."""
    return _change(changes.proposed(gate_in_force(), changes.read(request.args)))


def make_change() -> Response:
    """Make the change that the form proposes."""
    _require_may_change()
    found = changes.made(gate_in_force(), changes.read(request.form), force="force" in request.form)
    if found.mistakes or found.preview is None:
        return _change(found)
    return _to(url("lists", done=found.preview.entry.id))


def undo() -> Response:
    """Undo an entry."""
    _require_may_change()
    try:
        entry = applier_of(gate_in_force().app).control.undo(
            request.form.get("id", ""), reason=request.form.get("reason", "").strip()[:500], author=visit().author
        )
    except StorageError as error:
        return lists_page(problem=with_remedy(error), status=503)
    except ConfigurationError:
        return lists_page(problem=GONE, status=409)
    return _to(url("lists", undone=notice_of(str(entry)[:200])))


def _require_may_change(*, changes_limits: bool = True) -> None:
    """Raise :exc:`Forbidden` unless this person may change limits and has sent one of our forms."""
    if not visit().may_change:
        raise Forbidden(MAY_NOT)
    require_own_form()
    require_few_changes(visit().author)
    if changes_limits and not applier_of(gate_in_force().app).enabled:
        raise Forbidden(SWITCHED_OFF)


def _to(address: str) -> Response:
    """Redirect after a change, so that a reload of the page does not repeat it."""
    return Response(status=303, headers={"Location": address})


def change_facts(found: changes.Proposal) -> dict[str, Any]:
    with now.looking(gate_in_force()) as hour:
        return changes.facts(gate_in_force(), hour, found)


def proposed_facts() -> dict[str, Any]:
    return change_facts(changes.proposed(gate_in_force(), changes.read(request.args)))


def _change(found: changes.Proposal) -> Response:
    gate_in_force().plans.ensure()
    shown = change_facts(found)
    endpoint = found.given.get("endpoint", "")
    return render(
        "change.html",
        status=found.status,
        parts_at=changes.parts_at(gate_in_force().plans, endpoint),
        types=sorted({"default", *gate_in_force().plans.types}),
        enabled=applier_of(gate_in_force().app).enabled,
        shared=applier_of(gate_in_force().app).control.shared,
        fields=changes.FIELDS,
        **shown,
    )


# Subject


def subject_facts() -> dict[str, Any]:
    """What the page shows, as JSON. ``found`` is ``None`` if no subject was given, or an impossible one."""
    _keep_up()
    try:
        somebody = subject.Somebody.asked(gate_in_force(), request.args)
    except ConfigurationError as error:
        return {"found": None, "mistake": str(error)}
    if somebody is None:
        return {"found": None, "mistake": ""}
    with now.looking(gate_in_force()) as hour:
        return {"found": subject.facts(gate_in_force(), hour, somebody, page=page_asked(request.args)), "mistake": ""}


def subject_page() -> Response:
    shown = subject_facts()
    found = shown["found"]
    with now.looking(gate_in_force()) as hour:
        top = [] if hour is None or found is not None else hour.top_subjects(now.MOST_SUBJECTS)
        most = [now.subject_facts(gate_in_force(), each) for each in top]
    return render(
        "subject.html",
        status=400 if shown["mistake"] else 200,
        asked=request.args.get("who") or (found["who"] if found else ""),
        done=notice_given("done"),
        found=found,
        mistake=shown["mistake"],
        most=most,
        plain=gate_in_force().settings.traffic_subjects == "plain",
    )


def reset() -> Response:
    """Reset the quotas of a subject, at one endpoint or everywhere."""
    _require_may_change(changes_limits=False)
    form = request.form
    endpoint = form.get("endpoint") or None
    somebody = subject.Somebody.of(gate_in_force(), form.get("type", ""), form.get("value", ""))
    try:
        number = subject.reset(gate_in_force(), somebody, endpoint)
    except (ConfigurationError, StorageError) as error:
        shown = with_remedy(error) if isinstance(error, StorageError) else str(error)
        return render("refused.html", status=409, title="", why=shown)
    _note_reset(f"{somebody.who or somebody.shown} {f'at {endpoint}' if endpoint else 'at all endpoints'}")
    return _to(url("subject", type=form.get("type"), value=form.get("value"), done=notice_of(str(number))))


def _note_reset(what: str) -> None:
    """Add a line to the history. The quotas are reset already, so an error does not change the answer."""
    app = gate_in_force().app
    try:
        applier_of(app).control.note("reset", what, author=visit().author)
    except (ConfigurationError, StorageError) as error:
        SafeLogger(app.logger).error("Rate limits: the history does not show the reset of %s: %s", what, error)


# Lists and history


def lists_facts() -> dict[str, Any]:
    asked = request.args
    return entries.facts(gate_in_force(), kind=asked.get("kind", ""), q=asked.get("q", ""), page=page_asked(asked))


def lists_page(*, problem: str = "", status: int = 200) -> Response:
    found = lists_facts()
    done = request.args.get("done", "")
    return render(
        "lists.html",
        status=status,
        kinds=KINDS,
        failed=problem,
        done=next((each for each in entries.all_facts(gate_in_force()) if each["id"] == done), None) if done else None,
        undone=notice_given("undone"),
        shared=applier_of(gate_in_force().app).control.shared,
        **found,
    )


def history_facts() -> dict[str, Any]:
    asked = request.args
    return entries.history_facts(gate_in_force(), q=asked.get("q", ""), page=page_asked(asked))


def history_page() -> Response:
    return render("history.html", **history_facts())
