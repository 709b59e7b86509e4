"""Gives back what checks have charged: slots when work ends, charges that do not apply to the response, and refunds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flask import Response, has_request_context

from ..declare.holding import Holder, holder_of_call
from ..engine import ConfigurationError, Decision, Hit, StorageError
from ..engine.slots import KEEPER
from ..engine.text import SafeLogger
from ..observe.events import OTHERS, Outcome
from ..plan.hits import Applied, AppliedLimits
from .audience import report
from .state import AppState, Record, Records


class Settlement:
    """Gives back charges of one app."""

    def __init__(self, in_force: AppState, records: Records) -> None:
        self._in_force = in_force
        self._records = records
        self._holder_of_request: Callable[[], Holder | None] | None = None

    def keep(self, decision: Decision, applied: AppliedLimits, record: Record) -> None:
        """Note what an allowed ``decision`` may have to give back."""
        if applied.reserved:
            record.reserved = (*record.reserved, (decision, applied.reserved))
        if applied.holds_slots:
            self._hold(decision)

    def _hold(self, decision: Decision) -> None:
        """Hold slots until the limited function or block ends, or until the response is closed."""
        holder = holder_of_call()
        if holder is None:
            holder = (self._holder_of_request or self._find_holder_of_request())()
        if holder is None or holder.ended:  # nobody knows when the work ends; without a release its slots expire
            return
        self._in_force.limiter.hold(decision)
        if not holder.takes(decision):
            self._let_expire(decision)

    def _find_holder_of_request(self) -> Callable[[], Holder | None]:
        from .slots import holder_of_request, release_when_requests_end  # noqa: PLC0415 - few limits hold slots

        release_when_requests_end(self._in_force.app)
        self._holder_of_request = holder_of_request
        return holder_of_request

    def _let_expire(self, decision: Decision) -> None:
        KEEPER.let_expire(decision)

    def settle(self, decision: Decision, units: int, hits: Iterable[Hit] | None = None) -> Decision:
        """As :meth:`Limiter.settle`. The result replaces ``decision`` in the record of this request."""
        settled = self._in_force.limiter.settle(decision, units, hits)
        before = self._records.replace(settled) or decision
        if settled.settled != before.settled:
            scope = getattr(decision.hits, "scope", None) or OTHERS
            outcome: Outcome = "settled" if units else "refunded"
            report(outcome, self._in_force.audience, endpoint=scope, decided_by=settled.decided_by, decision=settled)
        return settled

    def at_response(self, response: Response, record: Record) -> None:
        """Refund the charges that do not apply to ``response``."""
        for decision, hits in record.unwanted_charges(response):
            self._give_back(decision, hits)

    def _give_back(self, decision: Decision, hits: Iterable[Hit]) -> None:
        try:
            self.settle(decision, 0, hits)
        except StorageError as error:
            # The response is sent anyway; the charge counts until it leaves its window.
            SafeLogger(self._in_force.app.logger).error(
                "Rate limits: could not refund what the check %s charged: %s", decision.id, error
            )


def require_response(reserved: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` if there will be no response, on which the charges depend."""
    if not has_request_context():
        raise ConfigurationError(
            f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
            "call is outside of one"
        )
