"""Who hears of an app's outcomes: traffic, the developer's observers, and receivers of signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from time import perf_counter, time
from typing import TYPE_CHECKING

from flask import Flask

from ..declare.subjects import EVERYONE, Subject
from ..engine import BanStatus, ConfigurationError, Decision, Health, Limiter, StorageError
from ..engine.errors import brief
from ..engine.keys import name_of_id
from ..engine.reply import ALLOWED
from ..engine.storage import HoldsUnits, KeepsTallies, layers_of
from ..engine.text import SafeLogger
from ..engine.threads import NEVER, Beat
from ..observe.events import Attached, ByList, ControlState, Counted, Event, Observer, Outcome, outcome_of
from ..observe.traffic.counts import short
from ..observe.traffic.flushing import EverySecond, Outbox, Traffic
from ..observe.traffic.log import RefusalLog
from ..observe.traffic.reading import TrafficReader, TrafficWatch
from ..plan.applied import AppliedLimits
from ..signals import (
    limit_event,
    limits_checked,
    log_once_a_minute,
    notify,
    request_rejected,
    shadow_rejected,
    subject_banned,
)

if TYPE_CHECKING:
    from ..config import Settings


class AppAudience:
    """The traffic of one app, its observers, which may ask it about the app, and the receivers of its signal."""

    def __init__(
        self,
        app: Flask,
        settings: Settings,
        limiter: Limiter,
        observers: Sequence[Observer],
        *,
        control_state: Callable[[], ControlState | None],
    ) -> None:
        """Raises :class:`ConfigurationError` if an observer cannot be attached, or a setting requires another one."""
        self._app = app
        self.name: str = app.name
        self.control: Callable[[], ControlState | None] = control_state
        self._limiter = limiter
        self._log_setting = settings.log
        self.background: EverySecond = EverySecond(app.logger)
        self.beat: Beat = self.background.beat
        """The clock of the background thread."""
        self.observers: tuple[Observer, ...] = tuple(observers)
        attached = [observer for observer in observers if isinstance(observer, Attached)]
        self._watch: TrafficWatch | None = None
        self.traffic: Traffic | None = None
        if settings.traffic:
            self.traffic = self._traffic(settings)
            if attached and isinstance(limiter.storage, KeepsTallies):
                reader = TrafficReader(limiter.storage, settings.key_prefix)
                self._watch = TrafficWatch(reader, shared=EVERYONE.type)
                self.background.add(self._watch.look)
        else:
            _reject_without_traffic(settings)
        for observer in attached:
            observer.attach(self)
        self.present: bool = bool(observers) or self.traffic is not None
        """Whether there is a listener besides receivers of the signal."""
        self.only_traffic: Traffic | None = None if observers else self.traffic
        """The traffic, if nothing else listens."""

    def _traffic(self, settings: Settings) -> Traffic:
        storage, logger = self._limiter.storage, self._app.logger
        outbox = None
        if isinstance(storage, KeepsTallies):
            outbox = Outbox(
                storage, settings.key_prefix, logger=logger, is_down=lambda: self.health().state == "failed"
            )
        return Traffic(
            self.background,
            outbox=outbox,
            log=None if settings.log == "off" else RefusalLog(logger, subjects=settings.log == "subjects"),
            subjects=settings.traffic_subjects,
            key=key_of(self._app, 'TRAFFIC_SUBJECTS="hashed"') if settings.traffic_subjects == "hashed" else b"",
        )

    def begin(self) -> None:
        """Let metrics show the bans in force before this process has counted anything."""
        if self._watch is not None:
            self.background.start()

    def check_and_report(self, limiter: Limiter, scope: str, applied: AppliedLimits) -> Decision:
        """Check, wait if the limits say so, and report the outcome. Raises :class:`StorageError`."""
        traffic = self.only_traffic
        if traffic is None or applied.may_wait or limit_event.receivers:
            return self._check_timed(limiter, scope, applied)
        # Most apps have no observer, and traffic needs neither an event nor the time that the check took.
        try:
            decision = limiter.check(applied.hits)
        except StorageError as error:
            self._count_outcome(scope, "unanswered", "nobody", applied=applied.limiters, error=error)
            raise
        if decision.reply[ALLOWED]:
            traffic.count_admitted(scope, decision, applied.limiters)
        else:
            traffic.count(scope, outcome_of(decision, 0.0), decision.decided_by, decision, applied.limiters)
        if self.beat.wakes_at == NEVER:
            self.background.start()
        return decision

    def _check_timed(self, limiter: Limiter, scope: str, applied: AppliedLimits) -> Decision:
        started, waited = perf_counter(), 0.0
        count = partial(self._count_outcome, scope, applied=applied.limiters)
        try:
            decision = limiter.check(applied.hits)
            seconds = perf_counter() - started
            if applied.may_wait:
                decision, waited = applied.wait(limiter, decision)
        except StorageError as error:
            count("unanswered", "nobody", seconds=perf_counter() - started, waited=waited, error=error)
            raise
        count(outcome_of(decision, waited), decision.decided_by, decision, seconds=seconds, waited=waited)
        return decision

    def report(
        self,
        outcome: Outcome,
        *,
        endpoint: str,
        decided_by: str,
        decision: Decision | None = None,
        who: Subject | None = None,
    ) -> None:
        """Report an outcome without a check of limits."""
        if self.present or limit_event.receivers:
            applied = () if who is None else (ByList(who),)
            self._count_outcome(endpoint, outcome, decided_by, decision, applied=applied)

    def send_signals(self, decision: Decision, scope: str, applied: AppliedLimits) -> None:
        subjects = {each.subject.type: name_of_id(*each.subject) for each in applied.limiters}
        arguments = {"decision": decision, "endpoint": scope, "subjects": subjects}
        notify(limits_checked, self._app, **arguments)
        if decision.shadowed:
            notify(shadow_rejected, self._app, **arguments)
        if not decision.allowed:
            notify(request_rejected, self._app, **arguments)

    def report_bans(self, decision: Decision, scope: str, applied: AppliedLimits) -> None:
        """Report the bans that began with ``decision``, which was made at ``scope``."""
        for ban in decision.bans:
            if ban.begun and not ban.hit.shadow:
                limiter, subject = _banned(ban, applied)
                self._log_ban(ban, scope, subject)
                notify(
                    subject_banned,
                    self._app,
                    endpoint=scope,
                    limiter=limiter,
                    subject=name_of_id(*subject),
                    until=time() + ban.retry_after,
                    level=ban.level,
                    decision=decision,
                )

    def _log_ban(self, ban: BanStatus, scope: str, subject: Subject) -> None:
        if self._log_setting == "off":
            return
        who = f"{subject.type} {short(subject.value)}" if self._log_setting == "subjects" else subject.type
        repetition = f", repetition {ban.level}" if ban.level else ""
        SafeLogger(self._app.logger).info(
            "Rate limits: banned %s for %g s at %s by %s%s", who, ban.retry_after, scope, ban.name, repetition
        )

    def _count_outcome(
        self,
        endpoint: str,
        outcome: Outcome,
        decided_by: str,
        decision: Decision | None = None,
        seconds: float = 0.0,
        waited: float = 0.0,
        applied: Sequence[Counted] = (),
        error: Exception | None = None,
    ) -> None:
        """Count one outcome. Make an :class:`Event` of it only if somebody listens."""
        if self.traffic is not None:
            self.traffic.count(endpoint, outcome, decided_by, decision, applied)
        if self.observers or limit_event.receivers:
            event = Event(endpoint, outcome, decided_by, decision, seconds, waited, applied, error)
            for observer in self.observers:
                try:
                    observer(event)
                except Exception as failure:  # noqa: PERF203 - an observer changes no verdict
                    text = "the observer %s raised; the request goes on"
                    log_once_a_minute(self._app, failure, text, brief(observer))
            if limit_event.receivers:
                notify(limit_event, self._app, event=event)
        if self.beat.wakes_at == NEVER:
            self.background.start()

    # What observers may ask: these are the methods of their ObservedApp

    def health(self) -> Health:
        return self._limiter.health()

    def leases(self) -> int:
        return sum(len(layer) for layer in layers_of(self._limiter.outermost) if isinstance(layer, HoldsUnits))

    def bans(self) -> Mapping[tuple[str, str], int] | None:
        return None if self._watch is None else self._watch.in_force()

    def top_shares(self) -> Mapping[str, float]:
        return {} if self._watch is None else self._watch.top_shares

    def every_second(self, task: Callable[[], bool], /) -> None:
        self.background.add(lambda *, ending=False: task() and not ending)


def key_of(app: Flask, setting: str) -> bytes:
    """The key for hashes, from the app's ``SECRET_KEY``. Raises :class:`ConfigurationError` without one: its message
    names the ``setting`` that needs it."""
    secret = app.secret_key
    if not secret:
        raise ConfigurationError(f"MULTILIMIT_{setting} needs a key: set SECRET_KEY before init_app")
    return blake2b(secret.encode() if isinstance(secret, str) else secret, person=b"multilimit").digest()


def _reject_without_traffic(settings: Settings) -> None:
    given = settings.model_fields_set
    for name in ("log", "traffic_subjects"):
        if name in given and getattr(settings, name) not in {"off", "none"}:
            raise ConfigurationError(
                f"MULTILIMIT_{name.upper()}={getattr(settings, name)!r} needs MULTILIMIT_TRAFFIC, which is False"
            )


def _banned(ban: BanStatus, applied: AppliedLimits) -> tuple[str, Subject]:
    """The name of the limiter that bans, and the banned subject; both are in the hit if no limiter has made it."""
    origin = ban.hit.origin
    if origin is not None:
        return origin.type, Subject(origin.type, origin.subject)
    limiter = next(each for each in applied.limiters if ban.hit in each.hits)
    return limiter.declaration.shown_name, limiter.subject
