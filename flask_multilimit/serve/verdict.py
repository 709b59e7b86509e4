"""The verdict of a check: asks the storage, records the answer, reports it, and raises if it refuses."""

from __future__ import annotations

from ..engine import ConfigurationError, Decision, StorageDenied
from ..engine.reply import ALLOWED
from ..plan.endpoint import ENDED_REQUEST, AppliedLimits, Plan
from ..signals import limit_event, limits_checked, request_rejected, shadow_rejected
from .access_check import AccessCheck
from .audience import check_and_tell, send_signals
from .bans import tell_of_bans
from .in_force import InForce
from .record import Record, Records
from .refusal import AccessDenied, RateLimitExceeded, Refusals
from .settle import Settlement, require_response


class Verdicts:
    """Decides the checks of one app. Each check is one command."""

    def __init__(
        self, in_force: InForce, records: Records, refusals: Refusals, lists: AccessCheck, settlement: Settlement
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
        if applied.reserved:
            require_response(applied.reserved)
        on = self._in_force
        try:
            if on.audience.present or limit_event.receivers:
                decision = check_and_tell(on.limiter, scope, applied, on.audience)
            else:
                decision = on.limiter.check(hits)
                if applied.may_wait and (wait := applied.longest_wait(decision)):
                    decision = on.limiter.wait(decision, timeout=wait)
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
            tell_of_bans(on.app, on.settings, decision, scope, applied)
        return decision
