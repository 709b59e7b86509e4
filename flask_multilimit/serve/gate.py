"""The gate of one app: when is a request checked, against which plan, and what do lists and storage decide."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from flask import Flask, Response, has_request_context
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from ..declare.advice import CallBill, Stack, app_in_force, gate_of_app, holder_of_call, leave_to_response
from ..declare.decorators import RateLimiter
from ..declare.limiter import Declaration, Reaction
from ..declare.subjects import (
    LimitType,
    Named,
    Resolve,
    Subject,
    address_of,
    current_request,
    parts_of,
    request_if_any,
    spelled,
)
from ..engine import ConfigurationError, Decision, Hit, StorageDenied, StorageError
from ..engine.algorithms import BAN
from ..engine.errors import brief, check_text
from ..engine.hits import Hits
from ..engine.limiter import decide_unlimited
from ..engine.reply import ALLOWED
from ..observe import traffic
from ..observe.events import Observer, Outcome
from ..plan.applied import ENDED_REQUEST, INTERRUPTED, REQUEST, About, AppliedLimits
from ..plan.endpoint import Plan, PlannedLimiter, revised
from ..plan.plans import Plans, inline_declaration
from ..plan.sources import UNMATCHED_SCOPE
from ..signals import (
    limit_event,
    limits_checked,
    log_once_a_minute,
    notify,
    request_denied,
    request_rejected,
    shadow_rejected,
)
from .applier import ControlApplier
from .audience import AppAudience, key_of
from .headers import cache_fields, describe, own_copy, unshared
from .refusal import (
    DENIAL_STATUSES,
    AccessDenied,
    RateLimitExceeded,
    Refusals,
    StorageUnavailable,
    answer_refusals,
    processed,
    tear_down_quietly,
)
from .settle import Settlement, require_response
from .startup import Startup, validate_when_app_runs, validate_when_flask_run_has_loaded
from .state import NO_PLAN, NOT_ASKED, AppState, Record, Records, replace_method

if TYPE_CHECKING:
    from .access import AccessLists, Listed

LimitsAt = Callable[[Flask, str], Mapping[str, Iterable[RateLimiter]]]
"""Returns the limiters that an extension checks at an endpoint of an app, by where they were declared."""


@dataclass(kw_only=True, eq=False, repr=False)
class AppGate(AppState):
    """Decides every request of one app.

    A request is checked once, in one check: by the decorator of its view, or else after all ``before_request``
    functions, which may find out who the user is. If the request ends before that, because a function answers or
    raises, the limits that are not the view's own are checked then.
    """

    given_storage: Any  # to MultiLimit, in place of MULTILIMIT_STORAGE_URI; None: nothing
    on_rejected: Reaction | None
    observers: Sequence[Observer] = ()
    listings: Collection[LimitsAt] = ()
    """Limits of other extensions."""

    def __post_init__(self) -> None:
        self.applier: ControlApplier = ControlApplier(self, self.look_elsewhere)
        self.audience: AppAudience = AppAudience(
            self.app, self.settings, self.limiter, self.observers, control_state=self.applier.state
        )
        self.startup: Startup = Startup(self, self.applier)
        self._secret = key_of(self.app, "PARTITION_KEYS") if self.settings.partition_keys else b""
        self._records = Records(self.app)
        self.refusals: Refusals = Refusals(self, on_rejected=self.on_rejected)
        self._access_check = AccessCheck(self, self.refusals, self._records)
        self.settlement: Settlement = Settlement(self, self._records)
        self._dispatch: Callable[..., Any] | None = None

    def install(self) -> None:
        """Put the gate around the handling of each request.

        Flask's hooks are not enough: none runs after the ``before_request`` functions of blueprints, an exception in
        ``after_request`` is a server error, and header fields must be complete after all other functions. A refusal is
        for error handlers, unless its ``on_rejected`` has made the response: frameworks that format all errors would
        answer with another.
        """
        preprocess, process = self.app.preprocess_request, self.app.process_response
        handle_last = self.app.handle_exception

        def preprocess_request(_: Flask, *arguments: Any) -> Any:
            record = self._begin_request()
            try:
                try:
                    answer = preprocess(*arguments)
                except BaseException as error:
                    self._end_early(record, error)
                    raise
                if record is not None:
                    if answer is not None:
                        self._end_early(record, answer)
                    elif record.plan.stack is None or record.plan.early:
                        self.check(record.plan, record)
            except RateLimitExceeded as refusal:
                if refusal.response is None:
                    raise
                return refusal.response
            return answer

        def process_response(_: Flask, *arguments: Any) -> Response:
            record, own, answer = self._records.current(), None, arguments[-1]
            is_refusal = record is not None and (record.refused or record.refusal is not None)
            if is_refusal and answer.status_code != 429:  # which never keeps them
                if not hasattr(answer.headers, "multilimit_added"):  # no view has sent it
                    own = cache_fields(answer)
                answer = own_copy(answer)  # so that it keeps no field of after_request functions
            answer = unshared(answer, passed_on=not is_refusal)
            arguments = (*arguments[:-1], answer)  # before these functions, which may add fields, too
            response: Response = processed(self.app, process, arguments, record)
            if response is not arguments[-1] or not isinstance(response.headers, Headers):  # apps may assign a dict
                response = unshared(response)
            record = record or self._records.current()
            if record is not None and (record.decisions or record.refused):
                if record.open_charges:
                    response = self.settlement.at_response(response, record)
                response = describe(response, record, self.settings, self._secret, own=own)
                record.denial = response if record.refused and response.status_code in DENIAL_STATUSES else None
            return response

        def handle_exception(_: Flask, *arguments: Any) -> Any:
            try:
                return handle_last(*arguments)
            finally:
                self.settlement.without_response(self._records.current())

        self.limiter.follow(self.apply_overrides)
        validate_when_flask_run_has_loaded(self.startup)
        validate_when_app_runs(self.app, self.startup)
        replace_method(self.app, "process_response", process_response)
        replace_method(self.app, "preprocess_request", preprocess_request)
        replace_method(self.app, "handle_exception", handle_exception)
        self._surround_dispatch()
        answer_refusals(self.app)

    def _surround_dispatch(self) -> None:
        """Check requests that end above the decorators of their view. At the first request, too, if another extension
        has replaced the method meanwhile, as Flask-DebugToolbar does."""
        dispatch = self.app.dispatch_request
        if getattr(dispatch, "__func__", dispatch) is self._dispatch:
            return

        def dispatch_request(_: Flask, *arguments: Any) -> Any:
            try:
                try:
                    answer = dispatch(*arguments)
                except BaseException as error:
                    record = self._records.current()
                    self._end_early(record, error)
                    if not isinstance(error, Exception):  # such as gevent.Timeout: the server gets no response
                        self.settlement.without_response(record)
                    raise
                record = self._records.current()
                if record is not None and not record.checked:
                    self._end_early(record, answer)
            except RateLimitExceeded as refusal:
                if refusal.response is None:
                    raise
                return refusal.response
            return answer

        self._dispatch = dispatch_request
        replace_method(self.app, "dispatch_request", dispatch_request)

    def _begin_request(self) -> Record | None:
        """Look up the plan of the current request, and turn away denied addresses."""
        if not self.startup.finished:
            self._surround_dispatch()
            self.startup.run()  # last: other threads no longer come here then
        if not self.settings.enabled:
            return None
        request = current_request()
        plan = self.plans.of_request(request)
        address = address_of(request)
        if self.access is not None:
            self._access_check.turn_away(address, self.access)
        return self._records.open(request, plan) if plan is not None else None

    def limiters_elsewhere(self, endpoint: str, plans: Plans) -> Iterator[PlannedLimiter]:
        """The limiters that other extensions check at ``endpoint``, with the overrides of ``plans``."""
        given = [each for listing in self.listings for each in listing(self.app, endpoint).items()]
        declarations = [limiter.at(where) for where, limiters in given for limiter in limiters]
        return plans.planner.limiters_elsewhere(endpoint, declarations)

    def look_elsewhere(self, plans: Plans) -> None:
        """Find the overrides of ``plans`` that apply to limits that other extensions check."""
        for endpoint in {route.endpoint for route in self.app.url_map.iter_rules()} if self.listings else ():
            deque(self.limiters_elsewhere(endpoint, plans), maxlen=0)

    def apply_overrides(self, hits: Hits) -> Hits | None:
        """``hits``, which no plan has made, after the overrides of their scopes; ``None`` if all are off."""
        self.startup.keep_up()
        plans = self.plans
        return revised(hits, plans.overrides) if plans.overrides else hits

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check the limiters of ``stack`` together with all other limits that apply. Raise unless the call may pass."""
        if not self.settings.enabled:
            self._records.mark_unlimited()
            return stack.covered
        record = self._records.current()
        if record is None or record.plan is NO_PLAN:
            record = self._open_record()
        own = None if record is None else record.plan.stack
        if record is None or own is None or own.declarations[0] is not stack.declarations[0]:
            self._admit_service(stack)
            return stack.covered
        if stack.acts_at_end or Stack.overrides_may_take_slots:
            leave_to_response()
        if not record.admitted:  # a decorator may call the view again for the same request
            self.check(record.plan, record)
        # Declarations for other methods are covered as well: they do not apply.
        return own.covered

    def _admit_service(self, stack: Stack) -> None:
        """Check the limiters of a function that is not the view of the request."""
        self.startup.keep_up()
        if (holder := holder_of_call()) is not None and any(each.settle is True for each in stack.declarations):
            # Also where none of them applies: it says nothing of its caller.
            holder.bill = CallBill(stack.declarations, holder.at_end)
        request = request_if_any()
        self.check(self.plans.of_service(stack, request.method if request else None))

    def check(self, plan: Plan, record: Record | None = None) -> None:
        """Check ``plan``. Raises :exc:`RateLimitExceeded`, :exc:`AccessDenied`, :exc:`StorageUnavailable`.

        ``record`` is that of the request whose ``plan`` this is; without it, the plan is that of a function. If a
        callable of a limiter raises or returns nonsense, this raises that error; in a request, after it has checked the
        other limits.
        """
        if record is not None:
            record.checked = True
        try:
            applied = self._applied(plan, record)
        except BaseException as error:
            if not isinstance(error, AccessDenied) and (record is not None or has_request_context()):
                self.check_ended(plan, record, error)
            raise
        if applied is not None:
            self._require_pass(plan, applied, record)
        if record is not None:
            record.admitted = True
        elif applied is None or not applied.hits:
            self._records.mark_unlimited()

    def check_ended(self, plan: Plan, record: Record | None, end: object) -> None:
        """Check ``plan`` for a request that ends before its view, or before the function of the plan, so that the user
        may be unknown. Raises as :meth:`check`, unless ``end``, an answer or an error, is such as gevent.Timeout: no
        refusal replaces it, it does not wait, and no function of the app is called, which may be what took so long."""
        if record is not None:
            record.checked = True
        applied, is_interrupted = None, isinstance(end, BaseException) and not isinstance(end, Exception)
        resolve = self.subjects.without_app if is_interrupted else self.subjects.resolve_if_found
        try:
            applied = self._applied(plan, record, resolve, INTERRUPTED if is_interrupted else ENDED_REQUEST)
            if applied is not None:
                if is_interrupted and applied.may_wait:
                    applied = copy(applied)  # others have it, too
                    applied.may_wait = False
                self._require_pass(plan, applied, record)
        except BaseException as error:
            if isinstance(end, Response):
                end.close()
            if is_interrupted and isinstance(error, Exception):
                if not isinstance(error, HTTPException):
                    log_once_a_minute(self.app, error, "could not check a request that was ended, at %s", plan.scope)
                return
            if applied is None and not (is_interrupted or isinstance(error, Exception)):
                self.check_ended(plan, record, error)  # a callable of a limit has been interrupted
            raise

    def _require_pass(self, plan: Plan, applied: AppliedLimits, record: Record | None) -> None:
        """Raise as :meth:`check` unless the limits of ``plan`` that apply let the request pass."""
        decision = self._decide(plan.scope, applied, record)
        if decision is not None and not decision.reply[ALLOWED]:
            raise self.refusals.too_many(decision, applied)
        if applied.failure is not None:
            raise applied.failure

    def _applied(
        self, plan: Plan, record: Record | None, resolve: Resolve | None = None, about: About = REQUEST
    ) -> AppliedLimits | None:
        """The limits that apply to the current request, which may have ended; ``None`` if a list allows it."""
        if self.access is not None and self._access_check.allows(record or self._records.current(), resolve):
            return None
        return self._apply(plan, resolve or self.subjects.resolve, about)

    def _apply(self, plan: Plan, resolve: Resolve, about: About = REQUEST) -> AppliedLimits:
        """The limits of ``plan`` that apply, without those on trial if a callable of one fails."""
        try:
            applied = plan.same_for_all or plan.apply(resolve, about)
            if applied.settling:
                require_response(applied.settling)
            return applied
        except Exception as error:
            if plan.without_trials is not plan:
                applied = self._apply(plan.without_trials, resolve, about)
                log_once_a_minute(self.app, error, "a limit on trial fails, so those at %s are left out", plan.scope)
                return applied
            if isinstance(error, ConfigurationError):
                raise ConfigurationError(f'limiter on "{plan.scope}": {error}') from error
            raise

    def _decide_inline(self, scope: str, applied: AppliedLimits) -> Decision:
        """Check limits that are given in the call. Returns a refusal; otherwise, raises as :meth:`check`."""
        decision = self._decide(scope, applied) if self.settings.enabled and not self.allows() else None
        return decision or decide_unlimited(applied.hits)

    def unavailable(self, error: StorageDenied) -> StorageUnavailable:
        """The exception to raise for a request that ``error`` denies."""
        self._records.mark_refused(error.retry_after)
        return self.refusals.unavailable(error)

    def _decide(self, scope: str, applied: AppliedLimits, record: Record | None = None) -> Decision | None:
        """Ask the storage, record the answer, and report it. Every check comes through here."""
        hits = applied.hits
        if not hits:
            return None
        try:
            if self.audience.present or limit_event.receivers:
                decision = self.audience.check_and_report(self.limiter, scope, applied)
            else:
                decision = self.limiter.check(hits)
                if applied.may_wait:
                    decision, _ = applied.wait(self.limiter, decision)
        except StorageDenied as error:
            raise self.unavailable(error) from error
        if record is None:
            record = self._records.current() or self._records.make()
        record.add(decision)
        if (applied.settling or applied.holds_slots) and decision.allowed:
            self.settlement.keep(decision, applied, record)
        if limits_checked.receivers or shadow_rejected.receivers or request_rejected.receivers:
            self.audience.send_signals(decision, scope, applied)
        if applied.has_bans and not decision.allowed:
            self.audience.report_bans(decision, scope, applied)
        return decision

    def check_inline(
        self, scope: str, options: dict[str, Any], subject: Named | None
    ) -> tuple[Decision, AppliedLimits]:
        """Decide on a limiter that is given in the call."""
        self.startup.keep_up()
        given = None if subject is None else self.subjects.clients_from(subject)
        declared = inline_declaration(scope, options, given)
        resolve: Resolve = self.subjects.resolve
        if given is not None:
            resolve = self.subjects.given(given)
        elif declared.type is not LimitType.DEFAULT and not has_request_context():
            raise ConfigurationError(
                f'limiter on "{scope}": the {declared.type_name} is unknown outside of a request; pass subject='
                f"{spelled(parts_of(declared.type, declared.name))} instead of type="
            )
        applied = self._apply(self.plans.of_inline(declared, by_subject=given is not None), resolve)
        return self._decide_inline(scope, applied), applied

    def check_hits(self, hits: Hits, scope: str, subject: Named) -> Decision:
        """Decide on hits that no limiter of the app has made."""
        if not isinstance(hits, Hits):
            raise ConfigurationError(f"hits={brief(hits)}: give what hits_for(...) returns, or Hits([...])")
        check_text("scope", scope)
        hits = hits.at(scope)
        changed = self.limiter.with_overrides(hits)
        applied = AppliedLimits.of_hits(changed or hits, subject)
        return decide_unlimited(applied.hits) if changed is None else self._decide_inline(scope, applied)

    def reset(self, hits: Iterable[Hit | str]) -> None:
        """Reset the quotas of ``hits``, or of keys in the storage. Bans among them end in the list of bans, too."""
        keys = [each if isinstance(each, str) else each.key for each in hits]
        self.limiter.reset(keys)
        bans = [key for key in keys if f":{BAN}:" in key]
        if bans and self.settings.traffic:
            with suppress(StorageError, ConfigurationError):  # the list asks the storage about each ban anyway
                traffic.reader_of(self.limiter.storage, self.settings.key_prefix).end_bans(bans)

    def allows(self) -> bool:
        """Whether a list lets the current request pass without limits. Raises :exc:`AccessDenied`."""
        return self.access is not None and self._access_check.allows(self._records.current() or self._open_record())

    def _open_record(self) -> Record | None:
        """The record of a request that was not preprocessed; ``None`` outside of a request."""
        request = request_if_any()
        return None if request is None else self._records.open(request, self.plans.of_request(request) or NO_PLAN)

    def _end_early(self, record: Record | None, end: object) -> None:
        """Check the limits of a request that ends before its view."""
        if record is not None and not record.checked:
            self.check_ended(self.plans.of_ended_request(current_request(), record.plan), record, end)


class AccessCheck:
    """Asks the lists of one app twice per request: about the address when the request begins, and about the subjects,
    which may be known only later, before its limits are checked."""

    def __init__(self, in_force: AppState, refusals: Refusals, records: Records) -> None:
        self._in_force = in_force
        self._refusals = refusals
        self._records = records

    def turn_away(self, address: str, lists: AccessLists) -> None:
        """Raise :exc:`AccessDenied` for an address that is denied, unless its subject may be allowed."""
        if not lists.allows_subjects:
            listed = lists.of_address(address)
            if listed is not None and listed.action == "deny":
                tear_down_quietly(self._in_force.app)
                self._deny(listed)

    def allows(self, record: Record | None, resolve: Resolve | None = None) -> bool:
        """Whether the current request, whose ``record`` this is, needs no limits. Raises :exc:`AccessDenied`.
        ``resolve``: how to find its subjects if it ends before its view."""
        lists = self._in_force.access
        if lists is None or record is None:
            return False
        asked_lists, allowed = record.access
        if asked_lists is not lists:  # in a websocket, they may have changed since
            record.access = lists, False  # a user_loader may call limited functions, which would ask again
            try:
                allowed = self._ask_lists(lists, record, resolve or self._in_force.subjects.resolve)
            finally:
                record.access = NOT_ASKED
            if allowed or record.checked:  # until then, the app may not know yet who the user is
                record.access = lists, allowed
        return allowed

    def _ask_lists(self, lists: AccessLists, record: Record, resolve: Resolve) -> bool:
        subjects_of = partial(self._subjects_called, resolve=resolve, plan=record.plan)
        listed = lists.of_client(address_of(current_request()), subjects_of)
        if listed is None:
            return False
        if listed.action == "deny":
            self._deny(listed)
        if record.plan.limiters or record.plan is NO_PLAN:  # without limits, being listed makes no difference
            endpoint = current_request().endpoint or UNMATCHED_SCOPE
            self._in_force.audience.report("allow_listed", endpoint=endpoint, decided_by="list")
        return True

    def _subjects_called(self, name: str, resolve: Resolve, plan: Plan) -> tuple[Subject, ...]:
        """As :meth:`.Plans.subjects_called`. A callable type may fail where no limiter counts it, or only one on
        trial: it means nobody there."""
        try:
            return self._in_force.plans.subjects_called(name, resolve, plan)
        except Exception:
            if name == LimitType.USER.value or plan.without_trials.type_called(name) is not None:
                raise
            return ()

    def _deny(self, listed: Listed) -> NoReturn:
        outcome: Outcome = "banned" if listed.banned else "denied"
        endpoint = current_request().endpoint
        who: Subject | None = Subject(listed.who.type_name, listed.who.value)
        if listed.who.network is not None:
            who = self._in_force.subjects.resolve(LimitType.IP, None)
        shown = endpoint or UNMATCHED_SCOPE
        self._in_force.audience.report(outcome, endpoint=shown, decided_by="list", who=who)
        notify(request_denied, self._in_force.app, listed=listed, endpoint=endpoint)
        self._records.mark_refused(listed.ends_in)
        raise self._refusals.denied(listed)


def gate_of(app: Flask) -> AppGate:
    """The gate of ``app``. Raises :class:`ConfigurationError` if it has no MultiLimit."""
    return cast("AppGate", gate_of_app(app))


def gate_in_force() -> AppGate:
    """The gate of the current app. Raises as :func:`gate_of`, and RuntimeError if there is no current app."""
    return gate_of(app_in_force())
