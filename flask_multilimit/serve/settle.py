"""Gives back what checks have charged: slots when work ends, charges that do not apply to the response, and refunds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flask import Response, has_request_context

from ..declare.holding import held_by_this_call
from ..engine import ConfigurationError, Decision, Hit, StorageError
from ..observe.events import OTHERS
from ..plan.endpoint import Applied, AppliedLimits, scope_of
from .audience import tell_of
from .in_force import InForce
from .record import Record, Records, request_if_any

if TYPE_CHECKING:
    from .slots import RequestSlots


class Settlement:
    """Gives back charges of one app."""

    def __init__(self, in_force: InForce, records: Records) -> None:
        self._in_force = in_force
        self._records = records
        self._slots: RequestSlots | None = None

    def keep(self, decision: Decision, applied: AppliedLimits, record: Record) -> None:
        """Note what an allowed ``decision`` may have to give back."""
        if applied.reserved:
            record.reserved = (*record.reserved, (decision, applied.reserved))
        if applied.holds_slots:
            self._hold(decision, record)

    def _hold(self, decision: Decision, record: Record) -> None:
        """Hold slots until the limited function or block ends, or until the response is closed."""
        held = held_by_this_call.get()
        if held is not None:
            held.append(decision)
        elif request_if_any() is not None:
            if self._slots is None:
                self._slots = self._request_slots()
            self._slots.hold(decision, record)
        else:  # only the caller knows when the work ends; without a release the slots expire
            return
        self._in_force.limiter.hold(decision)

    def _request_slots(self) -> RequestSlots:
        from .slots import RequestSlots  # noqa: PLC0415 - few limits hold slots

        return RequestSlots(self._in_force.app, self._records, self.release)

    def release(self, decisions: Iterable[Decision]) -> None:
        """Give back the slots that ``decisions`` hold."""
        for decision in decisions:
            self._in_force.limiter.release(decision)

    def refund(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """As :meth:`Limiter.refund`. The result replaces ``decision`` in the record of this request."""
        refunded = self._in_force.limiter.refund(decision, hits)
        before = self._records.replace(refunded) or decision
        if refunded.refunded != before.refunded:
            scope = scope_of(decision.hits) or OTHERS
            audience = self._in_force.audience
            tell_of("refunded", audience, endpoint=scope, decided_by=refunded.decided_by, decision=refunded)
        return refunded

    def at_response(self, response: Response, record: Record) -> None:
        """Refund the charges that do not apply to ``response``."""
        for decision, hits in record.unwanted_charges(response):
            self._give_back(decision, hits)

    def _give_back(self, decision: Decision, hits: Iterable[Hit]) -> None:
        try:
            self.refund(decision, hits)
        except StorageError as error:
            # The response is sent anyway; the charge counts until it leaves its window.
            self._in_force.app.logger.error("Could not refund what the check %s charged: %s", decision.id, error)


def require_response(reserved: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` if there will be no response, on which the charges depend."""
    if not has_request_context():
        raise ConfigurationError(
            f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
            "call is outside of one"
        )
