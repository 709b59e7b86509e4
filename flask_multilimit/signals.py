"""Signals, for logging and metrics. The sender is the Flask app.

A receiver that raises cannot change the verdict: the app's logger logs the error, at most once a minute, the other
receivers are called, and the request goes on as decided. An async receiver runs as Flask runs an async view.
"""

from __future__ import annotations

from time import monotonic
from traceback import walk_tb
from typing import Any

from blinker import NamedSignal, Namespace
from flask import Flask

from .engine.text import SafeLogger
from .observe.events import QUIET_SECONDS, Event

__all__ = [
    "Event",
    "control_changed",
    "control_failed",
    "limit_event",
    "limits_checked",
    "request_denied",
    "request_rejected",
    "rules_failed",
    "shadow_rejected",
    "storage_failed",
    "storage_recovered",
    "subject_banned",
]

MOST_LINES = 1000
"""The most different lines about failures that a process remembers to log once a minute."""
_signals = Namespace()

limits_checked: NamedSignal = _signals.signal("limits-checked")
"""Sent after every check, allowed or refused. A request is one check; so is each limited function that it calls.

:param decision: the :class:`~flask_multilimit.Decision`; ``decision.id`` is the UUID of this check.
:param endpoint: the endpoint, or for a service function its qualified name.
:param subjects: who was counted, by type: ``{"ip": "203.0.113.7", "default": ""}``. Personal data.
"""

request_rejected: NamedSignal = _signals.signal("request-rejected")
"""Sent after :data:`limits_checked` when a limit refuses, before any :exc:`RateLimitExceeded` is raised.

Same arguments. ``decision.violated`` names every rule that refuses.
"""

request_denied: NamedSignal = _signals.signal("request-denied")
"""Sent when a list denies a request, before :exc:`AccessDenied` is raised. No limit is checked.

:param listed: the entry that denies it: ``who`` it is about, ``where`` it stands, and its ``status``. Personal data.
:param endpoint: the endpoint; ``None`` when the request matches no route.
"""

shadow_rejected: NamedSignal = _signals.signal("shadow-rejected")
"""Sent after :data:`limits_checked` when a limiter with ``shadow=True`` would have refused.

Same arguments. ``decision.shadowed`` names every such rule.
"""

subject_banned: NamedSignal = _signals.signal("subject-banned")
"""Sent once when a ban begins, with the refusal that was the last strike. Not sent for a shadow, which bans nobody.

:param endpoint: where that was: the endpoint, or for a service function its qualified name.
:param limiter: the name or the type of the limiter that has the ban.
:param subject: who is banned. Personal data.
:param until: when the ban ends: POSIX time, by the clock of this process.
:param level: how many bans it repeats.
:param decision: the :class:`~flask_multilimit.Decision` of that refusal.
"""

limit_event: NamedSignal = _signals.signal("limit-event")
"""Sent once for every outcome: also for a 503 or an exception because storage gave no answer, a refund or a settlement.

:param event: the :class:`Event`; ``event.outcome`` and ``event.decided_by`` say what happened.
"""

rules_failed: NamedSignal = _signals.signal("rules-failed")
"""Sent when a callable for rules starts to raise, or to return something that is not a rule.

The last good rules of each subject apply, or the ``fallback`` of the limiter, or the request fails. If several clients
may be one subject, the ``fallback`` comes first. Sent again only after the callable has worked in between.

:param where: where the limiter was declared.
:param error: what was raised.
"""

storage_failed: NamedSignal = _signals.signal("storage-failed")
"""Sent once when storage stops answering. ``MULTILIMIT_ON_STORAGE_ERROR`` decides what happens to checks.

:param health: the :class:`~flask_multilimit.engine.Health` of the storage; ``health.error`` is what went wrong.
"""

storage_recovered: NamedSignal = _signals.signal("storage-recovered")
"""Sent once when storage answers again, and the pending charges have been made.

Same argument. Sent from a background thread, outside of any request.
"""


control_changed: NamedSignal = _signals.signal("control-changed")
"""Sent in each process when it has put a change of limits or lists in force; outside of any request.

:param entries: all entries in force now.
"""

control_failed: NamedSignal = _signals.signal("control-failed")
"""Sent in each process once when it cannot read the newest control document, and the last one stays in force; or when
it leaves out overrides that do not fit its limits.

:param error: why.
"""


def notify(signal: NamedSignal, app: Flask, **arguments: Any) -> None:
    """Send ``signal``; log what a receiver raises."""
    if signal.is_muted:
        return
    for receiver in signal.receivers_for(app):
        try:
            app.ensure_sync(receiver)(app, **arguments)
        except Exception as error:  # noqa: PERF203 - a receiver cannot change the verdict, see above
            name = f"{receiver.__module__}:{getattr(receiver, '__qualname__', type(receiver).__qualname__)}"
            log_once_a_minute(app, error, "the receiver %s of the signal %r raised", name, signal.name)


def log_once_a_minute(app: Flask, error: Exception, message: str, *arguments: object) -> None:
    """Log what a callable of ``app`` raised, with its traceback. It may raise at each request, so the same line about
    the same functions is logged again only after a minute."""
    quiet_until: dict[object, float] = app.extensions.setdefault("multilimit.logged", {})
    called = frozenset(frame.f_code for frame, _ in walk_tb(error.__traceback__))  # two lambdas have one name
    line, now = (message % arguments, called), monotonic()
    if now < quiet_until.get(line, 0.0):
        return
    if len(quiet_until) >= MOST_LINES:
        quiet_until.clear()
    quiet_until[line] = now + QUIET_SECONDS
    SafeLogger(app.logger).error("Rate limits: " + message, *arguments, error=error)
