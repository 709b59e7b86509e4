"""The gate of one app: the hooks of a request, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import Any, cast

from flask import Flask, Request, Response, has_request_context, request

from ..config import Settings
from ..declare.decorators import Stack, gate_of_app
from ..declare.limiter import Declaration, Reaction
from ..declare.subjects import LimitType, Resolve, Subject, Subjects
from ..engine import ConfigurationError, Decision, Hit, Limiter, MemoryStorage, StorageDenied, StorageError
from ..engine.hits import PEEKED, Hits
from ..engine.reply import head
from ..plan.endpoint import Applied, AppliedLimits, Plan
from ..plan.plans import Plans
from ..signals import limits_checked, notify, request_denied, request_rejected, shadow_rejected
from . import responses
from .access import AccessDenied, AccessLists, Listed
from .messages import Messages, messages_for
from .record import Record, Records, request_if_any
from .responses import RateLimitExceeded, StorageUnavailable
from .workers import warn_of_several_processes

_current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""The request itself: each attribute of the proxy would look for it again."""


class AppGate:
    """Decides every request of one app."""

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
    ) -> None:
        self.app = app
        self.settings = settings
        self.limiter = limiter
        self.plans = plans
        """What is in force. A request keeps the plan that it has found first."""
        self.subjects = subjects
        self.access = access
        """Who is allowed and who is denied; another one takes its place when that changes."""
        self._on_rejected = on_rejected
        self._lock = Lock()
        self.started = False
        self._records = Records(app)

    # The hooks

    def before_request(self) -> None:
        """Look the plan up, and check it unless a decorator of the view will."""
        if not self.started:
            self._start()
        if self.settings.enabled:
            asked = _current_request()
            plan = self.plans.of_request(asked)
            if self.access:
                self._ask_lists(
                    asked, self._records.open(asked, plan), later=plan is not None and plan.stack is not None
                )
            elif plan is not None:
                self._records.open(asked, plan)
            if plan is not None and plan.stack is None:
                self.check(plan)

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check what ``stack`` declares, with all else that applies; raise unless the call may pass."""
        if not self.settings.enabled:
            return stack.covered
        plan = self._plan_of(stack)
        self.check(plan)
        # Also those that do not serve this method: that they do not apply is settled.
        return (plan.stack or stack).covered

    def after_request(self, response: Response) -> Response:
        record = self._records.of(_current_request())
        if record is not None and record.decisions:
            if record.reserved:
                self._settle(record, response)
            responses.describe(response, record.decisions, self.settings)
        return response

    def _start(self) -> None:
        """Build all plans, so that what is wrong shows at the first request and not at the hundredth."""
        with self._lock:
            if not self.started:
                warn_of_several_processes(self.app, self.settings, self.limiter)
                self.plans.build()
                self.started = True

    def _plan_of(self, stack: Stack) -> Plan:
        """That of the request, where ``stack`` is its view's; else that of a service function."""
        asked = request_if_any()
        if asked is not None:
            record = self._records.of(asked)
            plan = (record and record.plan) or self.plans.of_request(asked)
            if plan is not None and plan.stack is not None and plan.stack.declarations[0] is stack.declarations[0]:
                return plan
        return self.plans.of_service(stack, asked.method if asked else None)

    # Allow and deny

    def _ask_lists(self, asked: Request, record: Record, *, later: bool) -> None:
        """Raise :exc:`AccessDenied` for who is denied; keep on ``record`` who is allowed.

        Addresses are known at once. Who the user is may be known only where the limits of the view are checked: then
        the lists of subjects are asked ``later``, unless one of them may allow who is denied here.
        """
        listed = self.access.of_address(asked)
        if listed is not None and listed.action == "deny" and self.access.allows_subjects:
            found = self.access.of_subjects(self._subject_of)
            listed = found if found is not None and found.action == "allow" else listed
        if listed is None and not later:
            listed = self.access.of_subjects(self._subject_of)
        if listed is not None or not later:
            self._obey(listed, record)

    def _is_allowed(self) -> bool:
        """Whether the current request needs no limits. Raises :exc:`AccessDenied`."""
        asked = request_if_any()
        record = None if asked is None else self._records.of(asked)
        if record is None:
            return False
        if record.access == "unknown":
            self._obey(self.access.of_subjects(self._subject_of), record)
        return record.access == "allowed"

    def _obey(self, listed: Listed | None, record: Record) -> None:
        if listed is not None and listed.action == "deny":
            notify(request_denied, self.app, listed=listed, endpoint=_current_request().endpoint)
            raise AccessDenied(listed, self._messages().denied)
        record.access = "limited" if listed is None else "allowed"

    def _subject_of(self, type_name: str) -> Subject | None:
        type_ = self.plans.types.get(type_name)
        return None if type_ is None else self.subjects.resolve(type_, type_name)

    # The verdict

    def check(self, plan: Plan) -> Decision | None:
        """Decide; ``None`` when no limiter applies. Raises :exc:`RateLimitExceeded`, :exc:`StorageUnavailable`."""
        if self.access and self._is_allowed():
            return None
        try:
            applied = plan.apply(self.subjects.resolve)
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{plan.scope}": {error}') from error
        decision = self._decide(plan.scope, applied)
        if decision is not None and not decision.allowed:
            raise self.rejection(decision, applied)
        return decision

    def check_here(self, scope: str, options: dict[str, Any], subject: str | None) -> tuple[Decision, AppliedLimits]:
        """Decide on a limiter that is declared where it is checked."""
        plan = self.plans.declared_here(scope, options)
        applied = plan.apply(self._resolver_here(plan.limiters[0].declaration, subject))
        asking = self.settings.enabled and not (self.access and self._is_allowed())
        decision = self._decide(scope, applied) if asking else None
        return decision or _unasked(applied), applied

    def check_hits(self, hits: Hits, scope: str, subjects: Mapping[str, str]) -> Decision:
        """Decide on hits that no limiter of the app has made."""
        applied = AppliedLimits.of_hits(hits, subjects)
        decision = self._decide(scope, applied) if self.settings.enabled else None
        return decision or _unasked(applied)

    def _resolver_here(self, declaration: Declaration, subject: str | None) -> Resolve:
        if subject is not None:
            return self.subjects.here(declaration.type_name, subject)
        if declaration.type is not LimitType.DEFAULT and not has_request_context():
            raise ConfigurationError(
                f'limiter on "{declaration.where}": outside of a request nobody tells the {declaration.type_name}; '
                "pass subject="
            )
        return self.subjects.resolve

    def _decide(self, scope: str, applied: AppliedLimits) -> Decision | None:
        """Ask storage, keep the answer on record, and tell of it."""
        hits = applied.hits
        if not hits:
            return None
        if applied.reserved:
            _require_response(applied.reserved)
        decision = self._ask(hits, applied)
        record = self._records.keep(decision)
        if applied.reserved and decision.allowed:
            record.reserved.append((decision, applied.reserved))
        self._tell(decision, scope, applied)
        return decision

    def _ask(self, hits: tuple[Hit, ...], applied: AppliedLimits) -> Decision:
        try:
            decision = self.limiter.check(hits)
            if applied.may_wait and (wait := applied.longest_wait(decision)):
                return self.limiter.wait(decision, timeout=wait)
        except StorageDenied as error:
            raise StorageUnavailable(self._messages().failed, retry_after=math.ceil(error.retry_after)) from error
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
        declared = applied.refusing_longest(decision) if applied.has_answers else None
        messages = self._messages()
        message = (declared and declared.message) or self.settings.message
        text = str(message(decision) if callable(message) else message or messages.too_many)
        react = (declared and declared.on_rejected) or self._on_rejected
        reaction = react(decision) if react is not None else None
        response = None if reaction is None else self.app.make_response(reaction)
        return RateLimitExceeded(decision, text, messages=messages, response=response)

    def _messages(self) -> Messages:
        asked = request_if_any()
        accepted = "" if asked is None else asked.environ.get("HTTP_ACCEPT_LANGUAGE", "")
        return messages_for(self.settings.locale, accepted)

    # Charges that depend on the response

    def _settle(self, record: Record, response: Response) -> None:
        """Give back what was reserved for responses of another kind."""
        for decision, reserved in record.reserved:
            unwanted = [each.hits for each in reserved if not _charges(each.declaration, response)]
            if unwanted:
                self._give_back(decision, chain.from_iterable(unwanted))

    def refund(self, decision: Decision, hits: Iterable[Hit] | None = None) -> Decision:
        """As :meth:`Limiter.refund`; the record of this request has the result in place of ``decision``."""
        refunded = self.limiter.refund(decision, hits)
        self._records.replace(refunded)
        return refunded

    def _give_back(self, decision: Decision, hits: Iterable[Hit]) -> None:
        try:
            self.refund(decision, hits)
        except StorageError as error:
            # The response stands; the charge stands too, until it leaves its window.
            self.app.logger.error("What %s charged could not be given back: %s", decision.id, error)


def gate_of(app: Flask) -> AppGate:
    """The gate of ``app``. Raises :class:`ConfigurationError` when it has no MultiLimit."""
    return cast("AppGate", gate_of_app(app))


def _unasked(applied: AppliedLimits) -> Decision:
    """The decision where nothing is limited: everything passes, and no quota has been touched."""
    hits = applied.hits
    return MemoryStorage().peek(hits) if hits else Decision(PEEKED, (), head(0), "memory")


def _require_response(reserved: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` where there will be none for charges to depend on."""
    if not has_request_context():
        raise ConfigurationError(
            f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
            "call is outside of one"
        )


def _charges(declaration: Declaration, response: Response) -> bool:
    charge_when = cast("Callable[[Response], bool]", declaration.charge_when)
    return charge_when(response)
