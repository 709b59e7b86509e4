"""The gate of one app: the hooks of a request, and the verdict."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Literal, NoReturn, cast

from flask import Flask, Request, Response, has_request_context, request

from ..config import Settings
from ..declare.decorators import Stack, gate_of_app, held_by_this_call
from ..declare.limiter import Declaration, Reaction
from ..declare.subjects import LimitType, Subject, Subjects
from ..engine import ConfigurationError, ConfigurationWarning, Decision, Hit, Limiter, StorageDenied, StorageError
from ..engine.forks import tell_child
from ..observe.events import OTHERS, Audience, Outcome, event_of
from ..plan.endpoint import Applied, AppliedLimits, Plan, scope_of
from ..plan.plans import Plans
from ..plan.sources import UNMATCHED_SCOPE
from ..signals import limit_event, limits_checked, notify, request_denied, request_rejected, shadow_rejected
from .access import AccessLists, Listed
from .audience import check_aloud
from .headers import describe
from .record import NO_PLAN, Record, Records, request_if_any
from .refusal import RateLimitExceeded, Refusals
from .slots import RequestSlots
from .workers import warn_of_several_processes, warn_where_no_threads_run

_current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""The request itself: each attribute of the proxy would look for it again."""


class AppGate:
    """Decides every request of one app.

    A request is checked once, in one command: by the decorator of its view, or else after all ``before_request``
    functions, which may find out who the user is. When the request ends before that, because some function has answered
    or raised, the limits that are not the view's own are checked at that end.
    """

    def __init__(
        self,
        app: Flask,
        settings: Settings,
        *,
        limiter: Limiter,
        plans: Plans,
        subjects: Subjects,
        access: AccessLists,
        on_rejected: Reaction | None,
        audience: Audience,
    ) -> None:
        self.app = app
        self.settings = settings
        self.limiter = limiter
        self.plans = plans
        """The limits in force. A request keeps the plan that it has found first."""
        self.subjects = subjects
        self._access: AccessLists | None = None
        self.access = access
        self.audience = audience
        """Who is told of every outcome."""
        self.started: bool = False
        self._starting = Lock()
        self.steer: Callable[[], None] = _nothing
        """Called once in each process, before its first request: puts in force what is changed while the app runs."""
        self._steered = False
        tell_child(self)
        self._records = Records(app)
        self._slots = RequestSlots(app, self._records, self.release)
        self._refusals = Refusals(app, on_rejected=on_rejected)

    # The hooks

    def install(self) -> None:
        """Put the gate around what the app does for a request.

        Hooks of Flask would not do: none runs after the ``before_request`` functions of blueprints, and what
        ``after_request`` raises is a server error.
        """
        preprocess, dispatch = self.app.preprocess_request, self.app.dispatch_request

        @functools.wraps(preprocess)
        def preprocess_request(*arguments: Any) -> Any:
            record = self._enter()
            try:
                answer = preprocess(*arguments)
            except Exception:
                self._leave(record)
                raise
            if record is not None:
                if answer is not None:
                    self._leave(record, answer)
                elif record.plan.stack is None:
                    self.check(record.plan, record)
            return answer

        @functools.wraps(dispatch)
        def dispatch_request(*arguments: Any) -> Any:
            try:
                answer = dispatch(*arguments)
            except Exception:
                self._leave(self._records.current())
                raise
            record = self._records.current()
            if record is not None and not record.checked:
                self._leave(record, answer)
            return answer

        self.app.preprocess_request = preprocess_request  # type: ignore[method-assign]
        self.app.dispatch_request = dispatch_request  # type: ignore[method-assign]
        self.app.after_request(self._after_request)

    def _enter(self) -> Record | None:
        """Look up what applies to the current request, and turn away the addresses that are denied."""
        if not self._steered:
            self._start()
        if not self.settings.enabled:
            return None
        asked = _current_request()
        plan = self.plans.of_request(asked)
        if self._access is not None:
            self._turn_away(asked, self._access)
        return self._records.open(asked, plan) if plan is not None else None

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check what ``stack`` declares, with all else that applies; raise unless the call may pass."""
        if not self.settings.enabled:
            return stack.covered
        record = self._records.current()
        if record is None or record.plan is NO_PLAN:
            record = self._begun()
        if record is None or not record.plan.is_reached_by(stack):
            self.keep_up()
            asked = request_if_any()
            self.check(self.plans.of_service(stack, asked.method if asked else None))
            return stack.covered
        if stack.may_hold_slots:
            held_by_this_call.set(None)  # what the view holds, the response does
        if not record.admitted:  # a decorator that calls the view again does so for the same request
            self.check(record.plan, record)
        # Also those that do not serve this method: that they do not apply is settled.
        return (record.plan.stack or stack).covered

    def _begun(self) -> Record | None:
        """The record of a request that nobody has preprocessed; ``None`` outside of a request."""
        asked = request_if_any()
        return None if asked is None else self._records.open(asked, self.plans.of_request(asked) or NO_PLAN)

    def _leave(self, record: Record | None, answer: object = None) -> None:
        """Check what has to be checked though the view was not reached."""
        if record is None or record.checked:
            return
        try:
            self.check(record.plan.beside_view, record)
        except Exception:
            if isinstance(answer, Response):
                answer.close()
            raise

    def _after_request(self, response: Response) -> Response:
        record = self._records.current()
        if record is not None and record.decisions:
            if record.reserved:
                for decision, hits in record.unwanted_charges(response):
                    self._give_back(decision, hits)
            describe(response, record.decisions, self.settings)
        return response

    def _start(self) -> None:
        """Build all plans, so that what is wrong shows at the first request and not at the hundredth."""
        with self._starting:
            if not self.started:
                warn_of_several_processes(self.app, self.settings, self.limiter)
                warn_where_no_threads_run(self.app, self.settings)
                self.plans.build()
                self._require_users_of_lists()
                self._report_unknown_names()
                self.started = True
        self.keep_up()

    def _require_users_of_lists(self) -> None:
        if self._access is not None and LimitType.USER.value in self._access.type_names:
            self.subjects.require_users("allow and deny")

    def keep_up(self) -> None:
        """Put in force what is changed while the app runs; once in each process."""
        if not self._steered:
            with self._starting:
                if not self._steered:
                    self._steered = True
                    self.steer()

    def _after_fork_in_child(self) -> None:
        """The thread that keeps up with changes stays behind in the parent."""
        self._starting = Lock()
        self._steered = False

    def _report_unknown_names(self) -> None:
        """Raise :class:`ConfigurationError` where a developer sees it. In production only log: a limit that is meant
        for nobody must not stop the requests of everybody."""
        strict = self.settings.unknown_names == "error"
        if strict and (self.app.testing or self.app.debug):
            self.plans.require_known_names()
        for problem in self.plans.sources.unknown_names():
            self.app.logger.log(logging.ERROR if strict else logging.WARNING, "A limit applies to nothing. %s", problem)

    def validate(self) -> None:
        """Raise :class:`ConfigurationError` for whatever is wrong in declarations and settings of limits."""
        self.plans.build()
        self._require_users_of_lists()
        if self.settings.unknown_names == "error":
            self.plans.require_known_names()
        for problem in self.plans.sources.unknown_names():
            warnings.warn(problem, ConfigurationWarning, stacklevel=3)

    # Allow and deny

    @property
    def access(self) -> AccessLists:
        """Who is allowed and who is denied. To change them, assign another object."""
        return self._access or AccessLists()

    @access.setter
    def access(self, lists: AccessLists) -> None:
        self._access = lists or None

    def _turn_away(self, asked: Request, lists: AccessLists) -> None:
        """Raise :exc:`AccessDenied` for an address that is denied, unless its subject may be allowed."""
        if not lists.allows_subjects:
            listed = lists.of_address(asked)
            if listed is not None and listed.action == "deny":
                self._deny(listed)

    def is_allowed(self) -> bool:
        """Whether the current request needs no limits. Raises :exc:`AccessDenied`."""
        lists, record, asked = self._access, self._records.current(), request_if_any()
        if lists is None or record is None or asked is None:
            return False
        if record.access == "unknown":
            record.access = self._found_in(lists, asked)
        return record.access == "allowed"

    def _found_in(self, lists: AccessLists, asked: Request) -> Literal["limited", "allowed"]:
        """What the lists say, now that the user may be known."""
        by_address = lists.of_address(asked)
        listed = by_address if by_address is not None and by_address.action == "allow" else None
        listed = listed or lists.of_subjects(self._subject_of)
        if by_address is not None and (listed is None or listed.action == "deny"):
            listed = by_address
        if listed is None:
            return "limited"
        if listed.action == "deny":
            self._deny(listed)
        self._tell_of_list("allow_listed")
        return "allowed"

    def _deny(self, listed: Listed) -> NoReturn:
        self._tell_of_list("denied")
        notify(request_denied, self.app, listed=listed, endpoint=_current_request().endpoint)
        raise self._refusals.denied(listed, self.settings)

    def _tell_of_list(self, outcome: Outcome) -> None:
        if self.audience.observers or limit_event.receivers:
            endpoint = _current_request().endpoint or UNMATCHED_SCOPE
            self.audience.tell(event_of((endpoint, outcome, "list", None, 0.0, 0.0, (), None)))

    def _subject_of(self, type_name: str) -> Subject | None:
        type_ = self.plans.types.get(type_name)
        return None if type_ is None else self.subjects.resolve(type_, type_name)

    # The verdict

    def check(self, plan: Plan, record: Record | None = None) -> Decision | None:
        """Decide; ``None`` when no limiter applies. Raises :exc:`RateLimitExceeded`, :exc:`StorageUnavailable`.

        ``record`` is that of the request whose ``plan`` this is.
        """
        if record is not None:
            record.checked = True
        decision = None
        if self._access is None or not self.is_allowed():
            try:
                applied = plan.apply(self.subjects.resolve)
            except ConfigurationError as error:
                raise ConfigurationError(f'limiter on "{plan.scope}": {error}') from error
            decision = self.decide(plan.scope, applied, record)
            if decision is not None and not decision.allowed:
                raise self.rejection(decision, applied)
        if record is not None:
            record.admitted = True
        return decision

    def decide(self, scope: str, applied: AppliedLimits, record: Record | None = None) -> Decision | None:
        """Ask the storage, keep the answer on record, and tell of it: every outcome of a check comes through here."""
        hits = applied.hits
        if not hits:
            return None
        if applied.reserved:
            _require_response(applied.reserved)
        try:
            if self.audience.observers or limit_event.receivers:
                decision = check_aloud(self.limiter, scope, applied, self.audience)
            else:
                decision = self.limiter.check(hits)
                if applied.may_wait and (wait := applied.longest_wait(decision)):
                    decision = self.limiter.wait(decision, timeout=wait)
        except StorageDenied as error:
            raise self._refusals.unavailable(error, self.settings) from error
        if record is None:
            record = self._records.current() or self._records.make()
        record.decisions.append(decision)
        if applied.reserved and decision.allowed:
            record.reserved = (*record.reserved, (decision, applied.reserved))
        if applied.holds_slots and decision.allowed:
            self._hold(decision, record)
        self._tell(decision, scope, applied)
        return decision

    def _tell(self, decision: Decision, scope: str, applied: AppliedLimits) -> None:
        if not (limits_checked.receivers or shadow_rejected.receivers or request_rejected.receivers):
            return
        subjects = {each.subject.type: each.subject.value for each in applied}
        arguments = {"decision": decision, "endpoint": scope, "subjects": subjects}
        notify(limits_checked, self.app, **arguments)
        if decision.shadowed:
            notify(shadow_rejected, self.app, **arguments)
        if not decision.allowed:
            notify(request_rejected, self.app, **arguments)

    def rejection(self, decision: Decision, applied: AppliedLimits) -> RateLimitExceeded:
        """What to raise for a ``decision`` that refuses."""
        return self._refusals.too_many(decision, applied, self.settings)

    # Slots and refunds

    def _hold(self, decision: Decision, record: Record) -> None:
        """Until the end of the function or the block that was limited, or until the response is closed."""
        held = held_by_this_call.get()
        if held is not None:
            held.append(decision)
        elif request_if_any() is not None:
            self._slots.hold(decision, record)
        else:  # only the caller knows when it ends; without a release it expires
            return
        self.limiter.hold(decision)

    def release(self, decisions: Iterable[Decision]) -> None:
        """Give back the slots that ``decisions`` hold."""
        for decision in decisions:
            self.limiter.release(decision)

    def refund(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """As :meth:`Limiter.refund`; the record of this request has the result in place of ``decision``."""
        refunded = self.limiter.refund(decision, hits)
        before = self._records.replace(refunded) or decision
        if refunded.refunded != before.refunded and (self.audience.observers or limit_event.receivers):
            scope = scope_of(decision.hits) or OTHERS
            self.audience.tell(event_of((scope, "refunded", refunded.decided_by, refunded, 0.0, 0.0, (), None)))
        return refunded

    def _give_back(self, decision: Decision, hits: Iterable[Hit]) -> None:
        try:
            self.refund(decision, hits)
        except StorageError as error:
            # The response stands; the charge stands too, until it leaves its window.
            self.app.logger.error("Could not refund what the check %s charged: %s", decision.id, error)


def _nothing() -> None:
    """What there is to steer without control."""


def gate_of(app: Flask) -> AppGate:
    """The gate of ``app``. Raises :class:`ConfigurationError` when it has no MultiLimit."""
    return cast("AppGate", gate_of_app(app))


def _require_response(reserved: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` where there will be none for charges to depend on."""
    if not has_request_context():
        raise ConfigurationError(
            f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
            "call is outside of one"
        )
