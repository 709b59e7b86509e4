"""Settles what checks have charged, by the response or by what the view says, and holds slots until work ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Number
from typing import cast

from flask import Response, has_request_context

from ..declare.advice import Bill, CallBill, Holder, app_in_force, gate_of_app, holder_of_call
from ..declare.limiter import Declaration
from ..declare.subjects import request_if_any
from ..declare.written import SettleByHeader
from ..engine import ConfigurationError, Decision, Hit, StorageError
from ..engine.algorithms.base import COUNTED
from ..engine.errors import brief
from ..engine.forks import Lazy, notify_child
from ..engine.hits import OpenHit
from ..engine.slots import KEEPER
from ..engine.text import SafeLogger
from ..engine.threads import ENDING_SECONDS, Beat
from ..observe.events import OTHERS, Outcome
from ..plan.applied import Applied, AppliedLimits
from ..signals import log_once_a_minute
from .headers import without_fields
from .slots import holder_of_request, is_complete, release_when_requests_end
from .state import AppState, Record, Records

MOST_OPEN = 1000
"""The most charges of a request that wait for its response, or of a function that wait for its end: a websocket or a
task may live for days. If there are more, the estimates of the oldest stand, except the first, that of the view."""
MOST_ENDED = 10_000
"""The most streams that wait to be settled after their end. If there are more, the estimate of the oldest stands."""


class Settlement:
    """Settles charges of one app."""

    def __init__(self, in_force: AppState, records: Records) -> None:
        self._in_force = in_force
        self._records = records
        self._releases_slots = False
        self._warned = set[str]()
        self._ended = deque[Callable[[], None]](maxlen=MOST_ENDED)
        self._beat = Lazy(lambda: Beat(self._settle_ended, name="multilimit-settle", last=self._settle_ended))
        notify_child(self)

    def keep(self, decision: Decision, applied: AppliedLimits, record: Record) -> None:
        """Keep what an allowed ``decision`` may have to give back: charges that are settled, and slots."""
        if applied.settling:
            self._keep_open(decision, applied.settling, record)
        if applied.holds_slots:
            self._hold(decision)

    def _keep_open(self, decision: Decision, limiters: Sequence[Applied], record: Record) -> None:
        """Settle what a service function says itself when it ends, and everything else by the response. What an
        override adds to a function that settles nothing joins the bill of its caller."""
        holder = holder_of_call()
        bill: CallBill | None = None
        if holder is not None and (holder.bill is not None or not has_request_context()):
            bill = holder.bill = holder.bill or CallBill((), holder.at_end)
        by_function = [each for each in limiters if bill is not None and each.declaration.settle is True]
        by_response = [each for each in limiters if each not in by_function]
        if bill is not None and by_function and not bill.open_charges:
            bill.at_end.append(lambda: self._settle_now(None, bill, record, _settling_in(bill)))
        for each_bill, settling in ((record, by_response), (bill, by_function)):
            if each_bill is not None and settling:
                each_bill.open_charges.append((decision, settling))  # in one step: other threads do so, too
                if len(each_bill.open_charges) > MOST_OPEN:
                    del each_bill.open_charges[1]

    def _hold(self, decision: Decision) -> None:
        """Hold slots until the limited function or block ends, or until the response is closed."""
        holder = holder_of_call()
        if holder is None:
            holder = self._holder_of_request()
        if holder is None:  # nobody knows when the work ends, so its slots expire
            return
        is_held = False
        try:
            self._in_force.limiter.hold(decision)
            is_held = holder.hold(decision)
        finally:
            if not is_held:
                KEEPER.let_expire(decision)

    def _holder_of_request(self) -> Holder | None:
        if not self._releases_slots:  # few apps have any, so the request path is patched late
            release_when_requests_end(self._in_force.app)
            self._releases_slots = True
        return holder_of_request()

    def settle(self, decision: Decision, units: int, hits: Iterable[Hit] | None = None) -> Decision:
        """As :meth:`Limiter.settle`. The result replaces ``decision`` in the record of this request."""
        settled = self._in_force.limiter.settle(decision, units, hits)
        record = self._records.latest()
        before = None if record is None else record.replace(settled)
        self._report(before or decision, settled)
        return settled

    def at_response(self, response: Response, record: Record) -> Response:
        """Settle the charges that depend on ``response``; those of a stream when it is closed. Returns the response to
        send."""
        declarations = _settling_in(record)
        at_close = [] if is_complete(response) else [each for each in declarations if _is_known_at_the_end(each)]
        self._settle_now(response, record, record, [each for each in declarations if each not in at_close])
        record.answered = True
        for each in declarations:
            if isinstance(each.settle, SettleByHeader) and each.settle_header == "remove":
                response = without_fields(response, {each.settle.header.lower()})
        if at_close and (holder := self._holder_of_request()) is not None:
            app = self._in_force.app
            holder.at_end.append(partial(self._settle_now, response, record, record, at_close, waits=app.testing))
        return response

    def without_response(self, record: Record | None) -> None:
        """Settle what the view has said if there is no response, or not one that ``after_request`` functions let
        through: the error of the view propagates to the server, or one of these functions has raised. If
        ``gevent.Timeout`` ends the request while the response is made, the estimate stands."""
        if record is not None and not record.answered:
            said = [each for each in _settling_in(record) if each.settle is True]
            self._settle_now(None, record, record, said)

    def _settle_now(
        self,
        response: Response | None,
        bill: Bill,
        record: Record,
        declarations: Sequence[Declaration],
        *,
        waits: bool = True,
    ) -> None:
        for decision, limiters in tuple(bill.open_charges):
            units: dict[str, int] = {}
            for declaration, _, hits, _ in limiters:
                if declaration in declarations:
                    real = self._units_of(declaration, response, bill)
                    if real is not None:
                        units.update([(hit.key, real) for hit in hits if not hit.rule.holds_slots])
                        self._warn_if_capped(declaration, hits, real)
            if units and waits:
                self._settle_each(decision, units, record)
            elif units:
                self._ended.append(partial(self._settle_each, decision, units, record))
                self._beat().wake()

    def _settle_ended(self) -> None:
        """Settle streams that have ended, in the background: their workers do not wait for the storage."""
        while True:
            try:
                settle_it = self._ended.popleft()
            except IndexError:  # close() in another thread may have settled the last one
                return
            settle_it()

    def close(self) -> None:
        """Settle the streams that have ended. A later one starts another thread."""
        self._beat().finish(wait=ENDING_SECONDS)

    def _after_fork_in_child(self) -> None:
        """The parent settles them."""
        self._ended.clear()

    def _warn_if_capped(self, declaration: Declaration, hits: Iterable[Hit], units: int) -> None:
        """Warn, once for each place of limiters, if a rule cannot charge as many ``units``."""
        settled = (hit.rule for hit in hits if isinstance(hit, OpenHit))  # no slots, and no ban
        capped = next((rule for rule in settled if units > rule.implementation.MAX_COST), None)
        if capped is not None and declaration.where not in self._warned:
            self._warned.add(declaration.where)
            SafeLogger(self._in_force.app.logger).warning(
                'Rate limits: a request to the limiter on "%s" took %d units, and %s charges at most %d; give its rule '
                "another algorithm, such as sliding_window_counter",
                declaration.where,
                units,
                capped.algorithm,
                capped.implementation.MAX_COST,
            )

    def _settle_each(self, decision: Decision, units: dict[str, int], record: Record) -> None:
        latest = next((each for each in record.decisions if each.check_id == decision.check_id), decision)
        try:
            settled = self._in_force.limiter.settle_each(latest, units)
        except StorageError as error:
            # The response is sent anyway; the estimate counts until it leaves its window.
            SafeLogger(self._in_force.app.logger).error(
                "Rate limits: could not settle what the check %s charged: %s", decision.id, error
            )
            return
        record.replace(settled)
        self._report(latest, settled)

    def _units_of(self, declaration: Declaration, response: Response | None, bill: Bill) -> int | None:
        """What the work really cost; ``None`` if the estimate stands."""
        if declaration.settle is True:
            return bill.real_costs.get(declaration.shown_name)
        assert response is not None
        try:
            if declaration.charge_when is not None:
                return None if _is_charged(declaration.charge_when(response)) else 0
            units = cast("Callable[[Response], object]", declaration.settle)(response)
            return None if units is None else units_from(units)
        except Exception as error:  # the work is done; after an error, the client would request it again
            failed = "settle" if declaration.charge_when is None else "charge_when"
            stands = "estimate" if declaration.charge_when is None else "charge"
            text = '%s of the limiter on "%s" failed, so the %s stands'
            log_once_a_minute(self._in_force.app, error, text, failed, declaration.where, stands)
            return None

    def _report(self, before: Decision, settled: Decision) -> None:
        new = {key: units for key, units in settled.settled.items() if key not in before.settled}
        if new:
            scope = getattr(settled.hits, "scope", None) or OTHERS
            gives_all_back = not any(new.values()) and any(hit.cost for hit in settled.hits if hit.key in new)
            outcome: Outcome = "refunded" if gives_all_back else "settled"
            decision = settled.replaced(settled=new)
            self._in_force.audience.report(outcome, endpoint=scope, decided_by=decision.decided_by, decision=decision)


def settle(units: int, *, name: str | None = None) -> None:
    """Say what this request really costs, or this call of a limited function that is not a view, for its limiter with
    ``settle=True``: ``settle(model.tokens)``.

    The last call before the response or the function ends counts; without one, the estimate stands. In a stream, the
    request must still be there: wrap its generator in ``stream_with_context``. Where no limiter settles now
    (none with ``settle=True``, switched off, exempt, on an allow list, for other methods), nothing happens.

    :param units: a whole number, 0 or more; more than 10**9 count as 10**9.
    :param name: which limiter, by its ``name`` or its type, if several that refuse settle by what the view says.
    :raises ConfigurationError: for other units, without a ``name`` that is needed, or with one that no limiter has.
    :raises RuntimeError: outside of a request and of a limited function.
    """
    real, bill = units_from(units), _bill_in_force()
    names = [] if bill is None else [each.shown_name for each in _settling_in(bill) if each.settle is True]
    if bill is None or not names:
        return
    if name is None and len(set(names)) > 1 and len(_names_declared_for(bill, trials=False).intersection(names)) > 1:
        raise ConfigurationError(f"settle({real}): several limiters settle here; give name=, one of {', '.join(names)}")
    if name is not None and name not in names:
        if name in _names_declared_for(bill):
            return
        raise ConfigurationError(
            f"settle({real}, name={brief(name)}): the limiters that settle here: {', '.join(names)}"
        )
    bill.real_costs.update(dict.fromkeys(names if name is None else [name], real))


def _bill_in_force() -> CallBill | Record | None:
    """The bill that the current code settles: that of the innermost limited function that has one, or else that of the
    request."""
    holder = holder_of_call()
    if holder is not None and holder.bill is not None:
        return holder.bill
    if request_if_any() is not None:
        return Records(app_in_force()).current()
    if holder is None:
        raise RuntimeError(
            "settle: outside of a request and of a limited function; wrap the generator of a stream in "
            "stream_with_context"
        )
    return None


def units_from(given: object) -> int:
    """``given`` as units to charge. Raises :class:`ConfigurationError` unless it is a whole number, 0 or more."""
    if type(given) is not int or given < 0:
        raise ConfigurationError(f"settle: units={brief(given)}: give a whole number, 0 or more")
    return min(given, COUNTED)


def require_response(settling: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` if charges depend on a response, and there will be none."""
    by_response = [each.declaration for each in settling if each.hits and each.declaration.settle is not True]
    if by_response and not has_request_context():
        option = "settle" if by_response[0].settle is not None else "charge_when"
        raise ConfigurationError(f"{option} needs the response of a request, and this call is outside of one")


def _names_declared_for(bill: CallBill | Record, *, trials: bool = True) -> set[str]:
    """The names of the limiters that may settle ``bill`` by what its work says: also of those that do not apply now,
    and not of those that overrides add, which the code cannot know; without ``trials``, only of those that refuse."""
    if isinstance(bill, Record):
        made = cast("AppState", gate_of_app(app_in_force())).plans.declared.made
        declared = [each.declaration for plan in made if plan.scope == bill.plan.scope for each in plan.limiters]
    else:
        declared = list(bill.declared)
    return {each.shown_name for each in declared if each.settle is True and (trials or not each.shadow)}


def _settling_in(bill: Bill) -> list[Declaration]:
    """The limiters that settle its charges."""
    return [limiter.declaration for _, limiters in bill.open_charges for limiter in limiters]


def _is_known_at_the_end(declaration: Declaration) -> bool:
    """Whether the real cost of a stream is only known when it is closed, unlike by its status or a header field."""
    return declaration.settle is not None and not isinstance(declaration.settle, SettleByHeader)


def _is_charged(answer: object) -> bool:
    """The answer of a ``charge_when``. Raises :class:`ConfigurationError` for a number, which is no condition."""
    if not isinstance(answer, bool) and isinstance(answer, Number):
        raise ConfigurationError(
            f"charge_when returned {brief(answer)}, and it decides whether a request is charged, not how much: use "
            "settle= for that; return True or False"
        )
    return bool(answer)
