"""The state of one app, and the record of each of its requests."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any

from flask import Flask, Request, Response, g
from werkzeug.local import LocalProxy

from ..declare.advice import Bill, app_in_force, gate_of_app
from ..declare.subjects import Subjects, current_request, request_if_any
from ..engine import Decision, Limiter
from ..engine.limiter import decide_unlimited
from ..engine.reply import ALLOWED
from ..plan.endpoint import Plan
from ..plan.plans import Plans
from .audience import AppAudience

if TYPE_CHECKING:
    from ..config import Settings
    from .access import AccessLists


@dataclass(init=False, kw_only=True, eq=False, repr=False)
class AppState:
    """What is in force in one app, as its :class:`.AppGate` holds it. Control and the test kit replace parts of it,
    each in one assignment."""

    app: Flask
    settings: Settings
    limiter: Limiter
    plans: Plans
    """The limits. A request keeps the plan that it found first."""
    subjects: Subjects
    access: AccessLists | None
    """The allow and deny lists; ``None`` if they are empty."""
    audience: AppAudience = field(init=False)
    """It hears of every outcome."""


NOT_ASKED = (None, False)
NO_PLAN = Plan("", None, ())
"""The plan of a record that is made before the plan is known, or outside of a request."""


MOST_DECISIONS = 100
"""The most decisions that a record keeps: a websocket or a stream may ask for each of its messages, for days."""


class Record(Bill):
    """What is known about one request."""

    checked: bool = False
    """Whether the plan was checked, or the part of it that the request reached."""
    admitted: bool = False
    """Whether the request passed that check."""
    answered: bool = False
    """Whether its charges were left to a response."""
    refusal: Decision | None = None
    """The latest decision that refuses."""
    access: tuple[AccessLists | None, bool] = NOT_ASKED
    """The lists that were asked last, and whether they allow the request."""
    refused: float = 0
    """For how many seconds it was refused without a decision: by a list (infinite: no end is known), or because the
    storage did not answer."""
    denial: Response | None = None
    """The response that says so, after ``after_request`` functions."""

    def __init__(self, plan: Plan) -> None:
        self.open_charges: list[tuple[Decision, Sequence[Any]]] = []  # these two instead of a call of Bill.__init__
        self.real_costs: dict[str, int] = {}
        self.plan: Plan = plan
        """The plan of its endpoint, looked up once."""
        self.decisions: list[Decision] = []
        """In the order of the checks: the first, which is usually that of the endpoint, and the latest."""

    def add(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if not decision.reply[ALLOWED]:
            self.refusal = decision
        if len(self.decisions) > MOST_DECISIONS:
            del self.decisions[1]

    def replace(self, decision: Decision) -> Decision | None:
        """Replace the decision with the same id, and return it, if there is one. Other threads may add decisions."""
        for place, each in enumerate(self.decisions):
            if each.check_id == decision.check_id:
                self.decisions[place] = decision
                return each
        return None


class Records:
    """The records of one app's requests. Each is in its request object, because an environment may run twice, or be
    passed on to another app."""

    def __init__(self, app: Flask) -> None:
        self._name = f"flask_multilimit_record_{id(app)}"

    def open(self, request: Request, plan: Plan) -> Record:
        """Begin the record of ``request``, or continue the one of an earlier check. A view may dispatch its request
        again, to another view."""
        attributes = request.__dict__
        record: Record | None = attributes.get(self._name)
        if record is None:
            record = attributes.setdefault(self._name, Record(plan))  # another thread may have made one
        elif record.plan is not plan:
            if record.plan is not NO_PLAN:
                record.checked = record.admitted = False
            record.plan = plan
        return record

    def current(self) -> Record | None:
        """The record of the current request; ``None`` outside of one, or if there is none yet."""
        try:
            found: Record | None = current_request().__dict__.get(self._name)
        except RuntimeError:
            return None
        return found  # cast() would be three calls per request

    def latest(self) -> Record | None:
        """:meth:`current`; outside of a request, the record of its last check."""
        if request_if_any() is not None:
            return self.current()
        record: Record | None = g.get(self._name)
        return record

    def mark_unlimited(self) -> None:
        """Outside of a request, replace the record of the last check, because this one had nothing to limit."""
        if request_if_any() is None:
            self.make().checked = True

    def mark_refused(self, seconds: float | None) -> None:
        """Mark the current request, if there is one, as refused without a decision, for so long if that is known."""
        if request_if_any() is not None:
            record = self.current()
            if record is None:
                record = self.make()
                record.checked = True
            record.refusal, record.refused = None, seconds or math.inf

    def make(self) -> Record:
        """A new record for the current request. Outside of a request it replaces the last one: no response shows
        several, and an app context may live long."""
        request, record = request_if_any(), Record(NO_PLAN)
        if request is None:
            setattr(g, self._name, record)
        else:
            record = request.__dict__.setdefault(self._name, record)  # another thread may have made one
        return record


def replace_method(app: Flask, name: str, function: Callable[..., Any]) -> None:
    """Put ``function`` in place of a method of ``app``. It is a method, too: a tool that wraps it, such as Scout APM,
    asks it for the app."""
    original = getattr(app, name)
    functools.update_wrapper(function, getattr(original, "__func__", original))
    if not isinstance(original, MethodType):  # its signature has no app, which inspect.signature would leave out
        vars(function).pop("__wrapped__")
    setattr(app, name, MethodType(function, app))


def _latest_decision() -> Decision:
    app, request = app_in_force(), request_if_any()
    gate_of_app(app, needed_by="current_decision: ")
    record = Records(app).latest()
    if record is not None and record.decisions:
        return record.decisions[-1]
    if record is None and request is None:
        raise RuntimeError("current_decision: outside of a request, no limited function has been called yet")
    if record is not None and not record.checked:
        raise RuntimeError(
            "current_decision: the limits of this request have not been checked yet: ask in the view or after it"
        )
    return decide_unlimited(())


current_decision: Decision = LocalProxy(_latest_decision)  # type: ignore[assignment]
"""The latest :class:`.Decision` of the current request, for view code. Where nothing limits the request now, it admits
and has no statuses. ``RuntimeError`` before the limits of the request are checked, and outside of a request before a
limited function is called."""
