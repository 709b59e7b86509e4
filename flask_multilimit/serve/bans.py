"""Tells of each ban that begins: one signal, one log line."""

from __future__ import annotations

import time

from flask import Flask

from ..config import Settings
from ..engine import BanStatus, Decision
from ..plan.endpoint import Applied, AppliedLimits
from ..signals import notify, subject_banned


def tell_of_bans(app: Flask, settings: Settings, decision: Decision, scope: str, applied: AppliedLimits) -> None:
    """Those that began with ``decision``, which was made at ``scope``."""
    for ban in decision.bans:
        if ban.begun and not ban.hit.shadow:
            limiter = next(each for each in applied if ban.hit in each.hits)
            _log(app, settings, ban, scope, limiter)
            notify(
                subject_banned,
                app,
                endpoint=scope,
                limiter=limiter.declaration.name or limiter.declaration.type_name,
                subject=limiter.subject.value,
                until=time.time() + ban.retry_after,
                level=ban.level,
                decision=decision,
            )


def _log(app: Flask, settings: Settings, ban: BanStatus, scope: str, limiter: Applied) -> None:
    if settings.log == "off":
        return
    who = f" {limiter.subject.value}" if settings.log == "subjects" else ""
    again = f", repetition {ban.level}" if ban.level else ""
    app.logger.info(
        "Banned%s for %g s at %s by %s%s", f" {limiter.subject.type}{who}", ban.retry_after, scope, ban.name, again
    )
