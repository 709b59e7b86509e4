"""Reports each ban that begins, by one signal and one log line."""

from __future__ import annotations

import time

from flask import Flask

from ..config import Settings
from ..declare.subjects import Subject
from ..engine import BanStatus, Decision
from ..engine.text import SafeLogger
from ..plan.endpoint import AppliedLimits
from ..signals import notify, subject_banned


def tell_of_bans(app: Flask, settings: Settings, decision: Decision, scope: str, applied: AppliedLimits) -> None:
    """Report the bans that began with ``decision``, which was made at ``scope``."""
    for ban in decision.bans:
        if ban.begun and not ban.hit.shadow:
            limiter, subject = _banned(ban, applied)
            _log(app, settings, ban, scope, subject)
            notify(
                subject_banned,
                app,
                endpoint=scope,
                limiter=limiter,
                subject=subject.value,
                until=time.time() + ban.retry_after,
                level=ban.level,
                decision=decision,
            )


def _banned(ban: BanStatus, applied: AppliedLimits) -> tuple[str, Subject]:
    """The name of the limiter that bans, and the banned subject. Hits that no limiter has made hold both themselves."""
    origin = ban.hit.origin
    if origin is not None:
        return origin.type, Subject(origin.type, origin.subject)
    limiter = next(each for each in applied if ban.hit in each.hits)
    return limiter.declaration.name or limiter.declaration.type_name, limiter.subject


def _log(app: Flask, settings: Settings, ban: BanStatus, scope: str, subject: Subject) -> None:
    if settings.log == "off":
        return
    who = f" {subject.value}" if settings.log == "subjects" else ""
    again = f", repetition {ban.level}" if ban.level else ""
    whom = f" {subject.type}{who}"
    SafeLogger(app.logger).info(
        "Rate limits: banned%s for %g s at %s by %s%s", whom, ban.retry_after, scope, ban.name, again
    )
