"""The limits of one app in force: its settings, its limiter, the plans of its endpoints, and the check itself."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

from flask import Flask, Request, Response, current_app, g, has_request_context, request
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.local import LocalProxy

from ..config import Settings
from ..declare.decorators import Stack, rate_limiter
from ..declare.dynamic import DynamicRules
from ..declare.limiter import Declaration, Message, Reaction, reject_unknown_options
from ..declare.subjects import LimitType, Resolve, Subjects
from ..engine import ConfigurationError, Decision, Hit, Limiter, MemoryStorage, StorageDenied, StorageError
from ..engine.decision import PEEKED
from ..plan.endpoint import (
    Applied,
    AppliedLimits,
    Plan,
    reject_misplaced,
    reject_mixed_leases,
    reject_unserved,
    view_exemptions,
    view_stack,
)
from ..plan.sources import UNMATCHED_SCOPE, Sources
from ..signals import limits_checked, notify, request_rejected, shadow_rejected
from . import responses
from .messages import Messages, messages_for
from .responses import RateLimitExceeded, StorageUnavailable

_current_request: Callable[[], Request] = request._get_current_object  # type: ignore[attr-defined]
"""The request itself: each attribute of the proxy would look for it again."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


def _place_of_record(app: Flask) -> str:
    """Where the record of a request lies in its WSGI environment.

    Of each app: one may hand its request on to another with the same environment.
    """
    return f"flask_multilimit.record.{id(app)}"


@dataclass(frozen=True, slots=True)
class Record:
    """What has been decided for one request, in order."""

    decisions: list[Decision]
    reserved: list[tuple[Decision, Sequence[Applied]]]
    """Charges that depend on the response."""


def _request_if_any() -> Request | None:
    """Takes half as long as to ask whether there is one, and then for it."""
    try:
        return _current_request()
    except RuntimeError:  # outside of one
        return None


def _latest_decision() -> Decision:
    place = _place_of_record(current_app._get_current_object())  # type: ignore[attr-defined]
    asked = _request_if_any()
    record: Record | None = g.get(place) if asked is None else asked.environ.get(place)
    if record is None:
        raise RuntimeError("no limit has been checked for this request yet")
    return record.decisions[-1]


current_decision: Decision = LocalProxy(_latest_decision)  # type: ignore[assignment]
"""The latest :class:`Decision` of the current request, for view code; ``RuntimeError`` when nothing was checked."""


class AppGate:
    """Decides every request of one app."""

    def __init__(
        self,
        app: Flask,
        settings: Settings,
        *,
        limiter: Limiter,
        sources: Sources,
        subjects: Subjects,
        on_rejected: Reaction | None,
    ) -> None:
        self.app = app
        self.settings = settings
        self.limiter = limiter
        self.sources = sources
        self._subjects = subjects
        self._on_rejected = on_rejected
        self._lock = Lock()
        self._started = False
        self._plans: dict[tuple[str, str], Plan] = {}
        self._unmatched_plans: dict[str, Plan] = {}
        self._service_plans: WeakKeyDictionary[Stack, dict[str | None, Plan]] = WeakKeyDictionary()
        self._dynamic_rules: dict[int, DynamicRules] = {}
        self._place_of_record = _place_of_record(app)

    # The way of a request

    def before_request(self) -> Any:
        """Check limits that stand on no decorator of the view."""
        if not self._started:
            self._start()
        if self.settings.enabled:
            asked = _current_request()
            plan = self._plan_before(asked.endpoint, asked.method)
            if plan is not None and plan.stack is None:
                self.check(plan, self._subjects.resolve)

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check what ``stack`` declares, with all else that applies; raise unless the call may pass."""
        if not self.settings.enabled:
            return stack.covered
        plan = self._plan_of(stack)
        self.check(plan, self._subjects.resolve)
        # Also those that do not serve this method: that they do not apply is settled.
        return (plan.stack or stack).covered

    def after_request(self, response: Response) -> Response:
        record: Record | None = _current_request().environ.get(self._place_of_record)
        if record is not None:
            if record.reserved:
                self._settle(record, response)
            responses.describe(response, record.decisions, self.settings)
        return response

    def check(self, plan: Plan, resolve: Resolve) -> Decision | None:
        """Decide; ``None`` when no limiter applies. Raises :exc:`RateLimitExceeded`, :exc:`StorageUnavailable`."""
        try:
            applied = plan.apply(resolve)
        except ConfigurationError as error:
            raise ConfigurationError(f'limiter on "{plan.scope}": {error}') from error
        decision = self.decide(plan.scope, applied)
        if decision is not None and not decision.allowed:
            raise self.rejection(decision, applied)
        return decision

    def decide_here(self, scope: str, options: dict[str, Any], subject: str | None) -> tuple[Decision, AppliedLimits]:
        """Decide on a limiter that is declared on the spot."""
        given = {name: value for name, value in options.items() if name != "subject"}
        declaration = _declared_here(scope, given)
        resolve = self._resolver_here(declaration, subject)
        applied = self._planned(scope, [declaration], None, None).apply(resolve)
        decision = self.decide(scope, applied) if self.settings.enabled else None
        return decision or _unasked(applied), applied

    def _resolver_here(self, declaration: Declaration, subject: str | None) -> Resolve:
        if subject is not None:
            return self._subjects.given({declaration.kind: subject})
        if declaration.type is not LimitType.DEFAULT and not has_request_context():
            raise ConfigurationError(
                f'limiter on "{declaration.where}": outside of a request nobody tells the {declaration.kind}; '
                "pass subject="
            )
        return self._subjects.resolve

    def standing(self, endpoint: str | None, method: str | None, given: Mapping[str, str]) -> Sequence[Applied]:
        """The limiters at ``endpoint`` (default: that of the request) that count the ``given`` subjects (default:
        those of the request), whatever conditions and costs they depend on; by default, of all its methods."""
        if endpoint is None:
            endpoint, method = str(request.endpoint), method or request.method
        self.require_endpoint(endpoint)
        resolve = self._subjects.given(given) if given else self._subjects.resolve
        methods = [method] if method else self._methods_of(endpoint)
        plans = (self.plan_for(endpoint, each) for each in methods)
        return [applied for plan in plans for applied in plan.apply(resolve, conditions=False)]

    def _methods_of(self, endpoint: str) -> list[str]:
        return sorted({method for rule in self.app.url_map.iter_rules(endpoint) for method in rule.methods or ()})

    def require_endpoint(self, endpoint: str) -> None:
        """Raise :class:`ConfigurationError` when nothing is called so."""
        if endpoint not in self.app.view_functions:
            nearest = difflib.get_close_matches(endpoint, self.app.view_functions, n=1, cutoff=0)
            raise ConfigurationError(f'no endpoint is called "{endpoint}"; did you mean "{"".join(nearest)}"?')

    def decide(self, scope: str, applied: AppliedLimits) -> Decision | None:
        """Ask storage, keep the answer on record, and signal it."""
        hits = applied.hits
        if not hits:
            return None
        if applied.reserved:
            _require_response(applied.reserved)
        decision = self._ask(hits, applied)
        record = self._keep(decision)
        if applied.reserved and decision.allowed:
            record.reserved.append((decision, applied.reserved))
        self._signal(decision, scope, applied)
        return decision

    def _keep(self, decision: Decision) -> Record:
        """On record, the others of the same request with it."""
        asked = _request_if_any()
        if asked is None:
            # No response will tell of the others, and an app context may live for long.
            alone = Record([decision], [])
            setattr(g, self._place_of_record, alone)
            return alone
        record: Record | None = asked.environ.get(self._place_of_record)
        if record is None:
            record = asked.environ[self._place_of_record] = Record([], [])
        record.decisions.append(decision)
        return record

    def _ask(self, hits: tuple[Hit, ...], applied: AppliedLimits) -> Decision:
        try:
            decision = self.limiter.check(hits)
            if applied.may_wait and (wait := _wait(decision, applied)):
                return self.limiter.wait(decision, timeout=wait)
        except StorageDenied as error:
            raise StorageUnavailable(self._messages().failed, retry_after=math.ceil(error.retry_after)) from error
        return decision

    def _signal(self, decision: Decision, scope: str, applied: AppliedLimits) -> None:
        if not (limits_checked.receivers or shadow_rejected.receivers or request_rejected.receivers):
            return
        subjects = {each.subject.kind: each.subject.value for each in applied}
        arguments = {"decision": decision, "endpoint": scope, "subjects": subjects}
        notify(limits_checked, self.app, **arguments)
        if decision.shadowed:
            notify(shadow_rejected, self.app, **arguments)
        if not decision.allowed:
            notify(request_rejected, self.app, **arguments)

    def rejection(self, decision: Decision, applied: AppliedLimits) -> RateLimitExceeded:
        declared = _longest(decision, applied) if applied.has_answers else None
        messages = self._messages()
        message: Message | None = (declared and declared.message) or self.settings.message
        text = str(message(decision) if callable(message) else message or messages.too_many)
        react = (declared and declared.on_rejected) or self._on_rejected
        reaction = react(decision) if react is not None else None
        response = None if reaction is None else self.app.make_response(reaction)
        return RateLimitExceeded(decision, text, messages=messages, response=response)

    def _messages(self) -> Messages:
        asked = _request_if_any()
        accepted = "" if asked is None else asked.environ.get("HTTP_ACCEPT_LANGUAGE", "")
        return messages_for(self.settings.locale, accepted)

    # Charges that depend on the response

    def _settle(self, record: Record, response: Response) -> None:
        """Give back what was reserved for responses of another kind."""
        for decision, reserved in record.reserved:
            unwanted = [each.hits for each in reserved if not _charges(each.declaration, response)]
            if unwanted:
                self._refund(decision, chain.from_iterable(unwanted))

    def _refund(self, decision: Decision, hits: Iterable[Hit]) -> None:
        try:
            self.limiter.refund(decision, hits)
        except StorageError as error:
            # The response stands; the charge stands too, until it leaves its window.
            self.app.logger.error("What %s charged could not be given back: %s", decision.id, error)

    # Plans

    def plan_for(self, endpoint: str, method: str) -> Plan:
        """What applies to ``endpoint`` when called with ``method``."""
        place = (endpoint, method)
        plan = self._plans.get(place)
        if plan is None:
            plan = self._plan_for(endpoint, method)
            # A route that names no methods takes any that a client makes up.
            if method in _METHODS or method in self._methods_of(endpoint):
                self._plans[place] = plan
        return plan

    def _plan_for(self, endpoint: str, method: str) -> Plan:
        view = self.app.view_functions.get(endpoint)
        stack = view_stack(view, method)
        own = stack.declarations if stack else ()
        declarations = (
            *self.sources.for_endpoint(endpoint, method, own=own, exempt=view_exemptions(view, method)),
            *own,
        )
        reached = None if method == "OPTIONS" and self._answers_options(endpoint) else stack
        plan = self._planned(endpoint, declarations, method, reached)
        self._require_users(plan)
        return plan

    def _start(self) -> None:
        """Plan every endpoint there is, so that what is wrong shows at the first request and not at the hundredth."""
        with self._lock:
            if self._started:
                return
            self._warn_of_several_processes()
            self.plan_all()
            self._started = True

    def plan_all(self) -> None:
        """Raise :class:`ConfigurationError` for whatever is wrong in any declaration or setting of limits."""
        self.sources.reject_unknown_names()
        registered = list(self.app.view_functions.values())
        for rule in self.app.url_map.iter_rules():
            reject_misplaced(rule.endpoint, self.app.view_functions.get(rule.endpoint), registered)
            for method in rule.methods or _METHODS:
                self.plan_for(rule.endpoint, method)
        for method in _METHODS:
            self._plan_unmatched(method)
        reject_unserved(dict(self._plans))
        reject_mixed_leases([*self._plans.values(), *self._unmatched_plans.values()])

    def _warn_of_several_processes(self) -> None:
        if not request.environ.get("wsgi.multiprocess") or not self.settings.enabled:
            return
        if not self.limiter.storage.shared:
            self.app.logger.warning(
                "Several worker processes serve this app, and with MULTILIMIT_STORAGE_URI=%s each of them admits the "
                "whole of every limit. Name what they share: local:// on one machine (pip install "
                "'flask-multilimit[local]'), or a server, such as redis://localhost:6379/0.",
                self.settings.storage_uri,
            )
        elif not (workers := self.limiter.health().workers).certain:
            self.app.logger.warning(
                "Nothing tells how many worker processes serve this app. While storage is away each of them admits "
                "1/%d of every limit (%s). Set MULTILIMIT_WORKERS.",
                workers.count,
                workers.source,
            )

    def _plan_before(self, endpoint: str | None, method: str) -> Plan | None:
        if endpoint is not None:
            return self.plan_for(endpoint, method)
        if isinstance(request.routing_exception, (NotFound, MethodNotAllowed)):
            return self._plan_unmatched(method)
        return None

    def _plan_unmatched(self, method: str) -> Plan:
        known = _known(method)
        if known not in self._unmatched_plans:
            declarations = self.sources.for_unmatched()
            plan = self._planned(UNMATCHED_SCOPE, declarations, known, None)
            self._require_users(plan)
            self._unmatched_plans[known] = plan
        return self._unmatched_plans[known]

    def _plan_of(self, stack: Stack) -> Plan:
        asked = _request_if_any()
        if asked is not None and (endpoint := asked.endpoint) is not None:
            plan = self.plan_for(endpoint, asked.method)
            if plan.stack is not None and plan.stack.declarations[0] is stack.declarations[0]:
                return plan
        plans = self._service_plans.setdefault(stack, {})
        method = _method_for(stack)
        if method not in plans:
            plan = self._planned(stack.where, stack.declarations, method, None)
            self._require_users(plan)
            plans[method] = plan
        return plans[method]

    def _require_users(self, plan: Plan) -> None:
        if plan.needs_users:
            self._subjects.require_users(plan.scope)

    def _planned(
        self, scope: str, declarations: Iterable[Declaration], method: str | None, stack: Stack | None
    ) -> Plan:
        serving = [each for each in declarations if method is None or each.serves(method)]
        prefix, dynamic = self.settings.key_prefix, self._dynamic_rules
        return Plan.of(self.app, scope, serving, prefix=prefix, stack=stack, dynamic=dynamic)

    def _answers_options(self, endpoint: str) -> bool:
        """Whether Flask answers OPTIONS by itself, so that the view is never reached."""
        return any(getattr(rule, "provide_automatic_options", False) for rule in self.app.url_map.iter_rules(endpoint))


def _known(method: str) -> str:
    """Anybody may make up a method: all that are not known count as one."""
    return method if method in _METHODS else ""


def _method_for(stack: Stack) -> str | None:
    """The method that decides what of a service function applies, if it asks for any."""
    asks = any(declaration.methods for declaration in stack.declarations)
    return _known(request.method) if asks and has_request_context() else None


def _longest(decision: Decision, applied: AppliedLimits) -> Declaration:
    """The limiter that refuses for the longest."""
    longest = max(decision.violated, key=lambda status: status.retry_after)
    return next(each.declaration for each in applied if longest.hit in each.hits)


def _unasked(applied: AppliedLimits) -> Decision:
    """The decision where nothing is limited: everything passes, and no quota has been touched."""
    hits = applied.hits
    return MemoryStorage().peek(hits) if hits else Decision(PEEKED, (), (0, 0))


def _wait(decision: Decision, applied: AppliedLimits) -> float:
    """Seconds this request may be kept asleep: what every limiter that refuses, or has a queue, consents to."""
    if decision.allowed and not decision.delay:
        return 0
    keys = {status.hit.key for status in decision.violated}
    waits = (each.declaration.wait for each in applied if not keys or any(hit.key in keys for hit in each.hits))
    return min(waits) if keys else max(waits, default=0)


def _require_response(reserved: Sequence[Applied]) -> None:
    """Raise :class:`ConfigurationError` where there will be none for charges to depend on."""
    if not has_request_context():
        raise ConfigurationError(
            f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
            "call is outside of one"
        )


def _declared_here(scope: str, options: dict[str, Any]) -> Declaration:
    where = str(scope)
    reject_unknown_options(f'limiter on "{where}"', options)
    for option in ("methods", "with_defaults"):
        if option in options:
            raise ConfigurationError(f'limiter on "{where}": {option} is for declarations; here it has no meaning')
    if callable(options.get("rules")):
        raise ConfigurationError(f'limiter on "{where}": rules are given by a callable in declarations; here call it')
    return rate_limiter(**options, scope=scope).at(where)


def _charges(declaration: Declaration, response: Response) -> bool:
    charge_when = cast("Callable[[Response], bool]", declaration.charge_when)
    return charge_when(response)
