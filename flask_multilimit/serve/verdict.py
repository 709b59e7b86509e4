"""The verdict of a request: what the lists say about it, and what the storage says about its limits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn

from flask import Request

from ..declare.subjects import LimitType, Resolve, Subject, current_request
from ..engine import ConfigurationError, Decision, StorageDenied
from ..engine.reply import ALLOWED
from ..observe.events import Outcome
from ..plan.endpoint import Plan
from ..plan.hits import ENDED_REQUEST, AppliedLimits
from ..plan.sources import UNMATCHED_SCOPE
from ..signals import limit_event, limits_checked, notify, request_denied, request_rejected, shadow_rejected
from .audience import check_and_report, report, report_bans, send_signals
from .refusal import AccessDenied, RateLimitExceeded, Refusals
from .settle import Settlement, require_response
from .state import NO_PLAN, AppState, Record, Records

if TYPE_CHECKING:
    from ..declare.addresses import Who
    from .access import AccessLists, Listed


class Verdicts:
    """Decides the checks of one app."""

    def __init__(
        self, in_force: AppState, records: Records, refusals: Refusals, lists: AccessCheck, settlement: Settlement
    ) -> None:
        self._in_force = in_force
        self._records = records
        self._refusals = refusals
        self._lists = lists
        self._settlement = settlement

    def check(self, plan: Plan, record: Record | None = None) -> None:
        """Check ``plan``. Raises :exc:`RateLimitExceeded`, :exc:`AccessDenied`, :exc:`StorageUnavailable`.

        ``record`` is that of the request whose ``plan`` this is. If a subject or the rules of a limiter cannot be
        found, the request ends with that error, after the other limits have been checked.
        """
        if record is not None:
            record.checked = True
        try:
            applied = self._applied(plan, record)
        except (AccessDenied, ConfigurationError):
            raise
        except Exception:
            if record is not None:
                self.check_ended(plan, record)
            raise
        if applied is not None:
            decision = self._decide(plan.scope, applied, record)
            if decision is not None and not decision.reply[ALLOWED]:
                raise self.rejection(decision, applied)
            if applied.failure is not None:
                raise applied.failure
        if record is not None:
            record.admitted = True
        elif applied is None or not applied.hits:
            self._records.note_unlimited()

    def check_ended(self, plan: Plan, record: Record) -> None:
        """Check ``plan`` for a request that ends before its view, so that the user may be unknown. Raises as
        :meth:`check`."""
        record.checked = True
        on = self._in_force
        if on.access is None or not self._lists.allows(record, ended=True):
            applied = plan.apply(on.subjects.resolve_if_found, ENDED_REQUEST)
            decision = self._decide(plan.scope, applied, record)
            if decision is not None and not decision.reply[ALLOWED]:
                raise self.rejection(decision, applied)
            if applied.failure is not None:
                raise applied.failure

    def _applied(self, plan: Plan, record: Record | None) -> AppliedLimits | None:
        """The limits that apply to the current request; ``None`` if a list allows it."""
        on = self._in_force
        if on.access is not None and self._lists.allows(record or self._records.current()):
            return None
        try:
            applied = plan.same_for_all
            return plan.apply(on.subjects.resolve) if applied is None else applied
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{plan.scope}": {error}') from error

    def check_here(self, scope: str, applied: AppliedLimits) -> Decision | None:
        """Check limits that are given at the call; ``None`` if nothing is limited now. Raises as :meth:`check`, but
        returns a refusal."""
        on = self._in_force
        if not on.settings.enabled or (on.access is not None and self._lists.allows(self._records.current())):
            return None
        return self._decide(scope, applied)

    def rejection(self, decision: Decision, applied: AppliedLimits) -> RateLimitExceeded:
        """The exception to raise for a ``decision`` that refuses."""
        return self._refusals.too_many(decision, applied, self._in_force.settings)

    def _decide(self, scope: str, applied: AppliedLimits, record: Record | None = None) -> Decision | None:
        """Ask the storage, record the answer, and report it. Every check comes through here."""
        hits = applied.hits
        if not hits:
            return None
        if applied.settled:
            require_response(applied.settled)
        on = self._in_force
        try:
            if on.audience.present or limit_event.receivers:
                decision = check_and_report(on.limiter, scope, applied, on.audience)
            else:
                decision = on.limiter.check(hits)
                if applied.may_wait:
                    decision, _ = applied.wait(on.limiter, decision)
        except StorageDenied as error:
            raise self._refusals.unavailable(error, on.settings) from error
        if record is None:
            record = self._records.current() or self._records.make()
        record.decisions.append(decision)
        if applied.may_give_back and decision.allowed:
            self._settlement.keep(decision, applied, record)
        if limits_checked.receivers or shadow_rejected.receivers or request_rejected.receivers:
            send_signals(on.app, decision, scope, applied)
        if applied.has_bans and not decision.allowed:
            report_bans(on.app, on.settings, decision, scope, applied)
        return decision


class AccessCheck:
    """Asks the lists of one app twice per request: about the address when the request begins, and about the subjects,
    which may be known only later, before its limits are checked."""

    def __init__(self, in_force: AppState, refusals: Refusals) -> None:
        self._in_force = in_force
        self._refusals = refusals

    def turn_away(self, asked: Request, lists: AccessLists) -> None:
        """Raise :exc:`AccessDenied` for an address that is denied, unless its subject may be allowed."""
        if not lists.allows_subjects:
            listed = lists.of_address(asked.remote_addr or "")
            if listed is not None and listed.action == "deny":
                self._deny(listed)

    def allows(self, record: Record | None, *, ended: bool = False) -> bool:
        """Whether the current request, whose ``record`` this is, needs no limits. Raises :exc:`AccessDenied`.

        If it ``ended`` before its view, the user may be unknown.
        """
        lists = self._in_force.access
        if lists is None or record is None:
            return False
        if record.access == "unknown":
            record.access = self._found_in(lists, record, ended=ended)
        return record.access == "allowed"

    def _found_in(self, lists: AccessLists, record: Record, *, ended: bool) -> Literal["limited", "allowed"]:
        subjects = self._in_force.subjects
        subject_of = partial(self._subject_of, subjects.resolve_if_found if ended else subjects.resolve)
        listed = lists.of_client(current_request().remote_addr or "", subject_of)
        if listed is None:
            return "limited"
        if listed.action == "deny":
            self._deny(listed)
        if record.plan.limiters or record.plan is NO_PLAN:  # otherwise everyone passes, listed or not
            report("allow_listed", self._in_force.audience, endpoint=self._endpoint(), decided_by="list")
        return "allowed"

    def _deny(self, listed: Listed) -> NoReturn:
        outcome: Outcome = "banned" if listed.banned else "denied"
        who = self._named(listed.who)
        report(outcome, self._in_force.audience, endpoint=self._endpoint(), decided_by="list", who=who)
        notify(request_denied, self._in_force.app, listed=listed, endpoint=current_request().endpoint)
        raise self._refusals.denied(listed, self._in_force.settings)

    def _named(self, who: Who) -> Subject | None:
        """The subject of an entry; for a network, the address of the client."""
        if who.network is None:
            return Subject(who.type_name, who.value)
        return self._in_force.subjects.resolve(LimitType.IP, None)

    @staticmethod
    def _endpoint() -> str:
        return current_request().endpoint or UNMATCHED_SCOPE

    def _subject_of(self, resolve: Resolve, type_name: str) -> Subject | None:
        type_ = self._in_force.plans.types.get(type_name)
        return None if type_ is None else resolve(type_, type_name)
