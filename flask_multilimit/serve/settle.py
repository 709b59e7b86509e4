"""What a check has charged and is given back: slots at the end of what they were held for, charges that the response
does not deserve, and refunds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flask import Response, has_request_context

from ..declare.decorators import held_by_this_call
from ..engine import ConfigurationError, Decision, Hit, StorageError
from ..observe.events import OTHERS
from ..plan.endpoint import Applied, AppliedLimits, scope_of
from .audience import tell_of
from .in_force import InForce
from .record import Record, Records, request_if_any
from .slots import RequestSlots


class Settlement:
    """Of the checks of one app."""

    def __init__(self, in_force: InForce, records: Records) -> None:
        self._in_force = in_force
        self._records = records
        self._slots = RequestSlots(in_force.app, records, self.release)

    def keep(self, decision: Decision, applied: AppliedLimits, record: Record) -> None:
        """Take note of what an allowed ``decision`` may have to give back."""
        if applied.reserved:
            record.reserved = (*record.reserved, (decision, applied.reserved))
        if applied.holds_slots:
            self._hold(decision, record)

    def _hold(self, decision: Decision, record: Record) -> None:
        """Until the end of the function or the block that was limited, or until the response is closed."""
        held = held_by_this_call.get()
        if held is not None:
            held.append(decision)
        elif request_if_any() is not None:
            self._slots.hold(decision, record)
        else:  # only the caller knows when it ends; without a release it expires
            return
        self._in_force.limiter.hold(decision)

    def release(self, decisions: Iterable[Decision]) -> None:
        """Give back the slots that ``decisions`` hold."""
        for decision in decisions:
            self._in_force.limiter.release(decision)

    def refund(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """As :meth:`Limiter.refund`; the record of this request has the result in place of ``decision``."""
        refunded = self._in_force.limiter.refund(decision, hits)
        before = self._records.replace(refunded) or decision
        if refunded.refunded != before.refunded:
            scope = scope_of(decision.hits) or OTHERS
            audience = self._in_force.audience
            tell_of("refunded", audience, endpoint=scope, decided_by=refunded.decided_by, decision=refunded)
        return refunded

    def at_response(self, response: Response, record: Record) -> None:
        """Give back what was charged for responses of another kind than ``response``."""
        for decision, hits in record.unwanted_charges(response):
            self._give_back(decision, hits)

    def _give_back(self, decision: Decision, hits: Iterable[Hit]) -> None:
        try:
            self.refund(decision, hits)
        except StorageError as error:
            # The response stands; the charge stands too, until it leaves its window.
            self._in_force.app.logger.error("Could not refund what the check %s charged: %s", decision.id, error)


def require_response(reserved: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` where there will be none for charges to depend on."""
    if not has_request_context():
        raise ConfigurationError(
            f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
            "call is outside of one"
        )
