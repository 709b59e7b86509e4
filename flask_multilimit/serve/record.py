"""The record of a request: its plan, what was decided for it, and the charges that wait for its response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flask import Flask, Request, current_app, g, request
from werkzeug.local import LocalProxy

from ..engine import Decision
from ..plan.endpoint import Applied, Plan

_current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""The request itself: each attribute of the proxy would look for it again."""


def request_if_any() -> Request | None:
    """The current request; ``None`` outside of one. Takes half as long as ``has_request_context`` and ``request``."""
    try:
        return _current_request()
    except RuntimeError:
        return None


Access = Literal["unknown", "limited", "allowed"]
"""What the lists of who is allowed and denied say of a request; ``unknown`` until they have been asked."""


@dataclass(slots=True)
class Record:
    """What is known of one request."""

    plan: Plan | None
    """What applies to its endpoint, looked up once."""
    decisions: list[Decision] = field(default_factory=list)
    """In the order of the checks."""
    reserved: list[tuple[Decision, Sequence[Applied]]] = field(default_factory=list)
    """Charges that depend on the response."""
    access: Access = "unknown"


class Records:
    """The records of one app's requests. Each lies in the request object: an environment may run twice, or be handed on
    to another app."""

    def __init__(self, app: Flask) -> None:
        self._name = _name_for(app)

    def open(self, asked: Request, plan: Plan | None) -> Record:
        """Begin the record of ``asked``, or go on with the one that an earlier check has begun."""
        record: Record | None = asked.__dict__.get(self._name)
        if record is None:
            record = asked.__dict__[self._name] = Record(plan)
        else:
            record.plan = plan
        return record

    def of(self, asked: Request) -> Record | None:
        return asked.__dict__.get(self._name)

    def keep(self, decision: Decision) -> Record:
        """Put ``decision`` on the record of the current request; outside of one, in the place of the last."""
        asked = request_if_any()
        if asked is None:
            # No response tells of the others, and an app context may live for long.
            alone = Record(None, [decision])
            setattr(g, self._name, alone)
            return alone
        record = self.of(asked)
        if record is None:
            record = asked.__dict__[self._name] = Record(None)
        record.decisions.append(decision)
        return record

    def replace(self, decision: Decision) -> None:
        """Put ``decision`` in the place of the one with its id, if that is on the record of the current request."""
        asked = request_if_any()
        record: Record | None = g.get(self._name) if asked is None else self.of(asked)
        if record is not None:
            record.decisions = [decision if each.check_id == decision.check_id else each for each in record.decisions]


def _name_for(app: Flask) -> str:
    return f"flask_multilimit_record_{id(app)}"


def _latest_decision() -> Decision:
    name = _name_for(current_app._get_current_object())  # type: ignore[attr-defined]
    asked = request_if_any()
    record: Record | None = g.get(name) if asked is None else asked.__dict__.get(name)
    if record is None or not record.decisions:
        raise RuntimeError("no limit has been checked for this request yet")
    return record.decisions[-1]


current_decision: Decision = LocalProxy(_latest_decision)  # type: ignore[assignment]
"""The latest :class:`Decision` of the current request, for view code; ``RuntimeError`` when nothing was checked."""
