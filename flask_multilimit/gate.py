"""The limits of one app in force: its settings, its limiter, the plans of its endpoints, and the check itself."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from flask import Flask, Response, g, has_request_context, request
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.local import LocalProxy

from . import responses
from .config import Settings
from .declaration import Declaration, Message, Reaction, reject_unknown_options
from .decorators import Stack, rate_limiter
from .engine import ConfigurationError, Decision, Hit, Limiter, MemoryStorage, StorageError
from .messages import Messages, messages_for
from .plan import Applied, Plan, hits_of, reject_misplaced, view_stack
from .responses import RateLimitExceeded, StorageUnavailable
from .signals import limits_checked, notify, request_rejected, shadow_rejected
from .sources import UNMATCHED_SCOPE, Sources
from .subjects import LimitType, Resolve, Subjects

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))

_RECORD = "flask_multilimit.record"
"""Where the record of a request lies in its WSGI environment."""


@dataclass(frozen=True, slots=True)
class Record:
    """What has been decided for one request, in order."""

    decisions: list[Decision]
    reserved: list[tuple[Decision, list[Applied]]]
    """Charges that depend on the response."""


def _record() -> Record:
    """Of the current request; outside of one, of the app context."""
    if has_request_context():
        return cast("Record", request.environ.setdefault(_RECORD, Record([], [])))
    return cast("Record", g.setdefault(_RECORD, Record([], [])))


def _latest_decision() -> Decision:
    if not (decisions := _record().decisions):
        raise RuntimeError("no limit has been checked for this request yet")
    return decisions[-1]


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
        self._service_plans: WeakKeyDictionary[Stack, Plan] = WeakKeyDictionary()

    # The way of a request

    def before_request(self) -> Any:
        """Check limits that stand on no decorator of the view."""
        if not self._started:
            self._start()
        if self.settings.enabled:
            plan = self._plan_before(request.endpoint, request.method)
            if plan is not None and plan.stack is None:
                self.check(plan, self._subjects.resolve)

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check what ``stack`` declares, with all else that applies; raise unless the call may pass."""
        if not self.settings.enabled:
            return frozenset(stack.declarations)
        plan = self._plan_of(stack)
        self.check(plan, self._subjects.resolve)
        return plan.declarations

    def after_request(self, response: Response) -> Response:
        record: Record | None = request.environ.get(_RECORD)
        if record is not None and record.decisions:
            self._settle(record, response)
            responses.describe(response, record.decisions, self.settings)
        return response

    def check(self, plan: Plan, resolve: Resolve) -> Decision | None:
        """Decide; ``None`` when no limiter applies. Raises :exc:`RateLimitExceeded`, :exc:`StorageUnavailable`."""
        applied = plan.apply(resolve)
        decision = self.decide(plan.scope, applied)
        if decision is not None and not decision.allowed:
            raise self.rejection(decision, applied)
        return decision

    def decide_here(self, scope: str, options: dict[str, Any], subject: str | None) -> tuple[Decision, list[Applied]]:
        """Decide on a limiter that is declared on the spot."""
        given = {name: value for name, value in options.items() if name != "subject"}
        reject_unknown_options(f'limiter on "{scope}"', given)
        declaration = rate_limiter(**given).at(scope)
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

    def standing(self, endpoint: str | None, method: str, given: Mapping[str, str]) -> list[Applied]:
        """The limiters at ``endpoint`` (default: that of the request) that count the ``given`` subjects (default:
        those of the request), whatever conditions and costs they depend on."""
        if endpoint is None:
            endpoint, method = str(request.endpoint), request.method
        if endpoint not in self.app.view_functions:
            nearest = difflib.get_close_matches(endpoint, self.app.view_functions, n=1, cutoff=0)
            raise ConfigurationError(f'no endpoint is called "{endpoint}"; did you mean "{"".join(nearest)}"?')
        resolve = self._subjects.given(given) if given else self._subjects.resolve
        return self.plan_for(endpoint, method).apply(resolve, conditions=False)

    def decide(self, scope: str, applied: list[Applied]) -> Decision | None:
        """Ask storage, keep the answer on record, and signal it."""
        hits = hits_of(applied)
        if not hits:
            return None
        decision = self._ask(scope, hits, applied)
        record = _record()
        record.decisions.append(decision)
        if decision.allowed:
            self._reserve(record, decision, applied)
        self._signal(decision, scope, applied)
        return decision

    def _ask(self, scope: str, hits: tuple[Hit, ...], applied: list[Applied]) -> Decision:
        try:
            decision = self.limiter.check(hits)
            wait = _wait(decision, applied)
            return self.limiter.wait(decision, timeout=wait) if wait else decision
        except StorageError as error:
            self.app.logger.error("Rate limits of %s could not be checked: %s", scope, error)
            raise StorageUnavailable(self._messages().failed) from error

    def _signal(self, decision: Decision, scope: str, applied: list[Applied]) -> None:
        subjects = {each.subject.kind: each.subject.value for each in applied}
        arguments = {"decision": decision, "endpoint": scope, "subjects": subjects}
        notify(limits_checked, self.app, **arguments)
        if decision.shadowed:
            notify(shadow_rejected, self.app, **arguments)
        if not decision.allowed:
            notify(request_rejected, self.app, **arguments)

    def rejection(self, decision: Decision, applied: list[Applied]) -> RateLimitExceeded:
        longest = max(decision.violated, key=lambda status: status.retry_after)
        declared = next(each.declaration for each in applied if longest.hit in each.hits)
        message: Message | None = declared.message or self.settings.message
        text = str(message(decision) if callable(message) else message or self._messages().too_many)
        react = declared.on_rejected or self._on_rejected
        answer = react(decision) if react is not None else None
        response = None if answer is None else self.app.make_response(answer)
        return RateLimitExceeded(decision, text, messages=self._messages(), response=response)

    def _messages(self) -> Messages:
        accept_language = request.headers.get("Accept-Language", "") if has_request_context() else ""
        return messages_for(self.settings.locale, accept_language)

    # Charges that depend on the response

    def _reserve(self, record: Record, decision: Decision, applied: list[Applied]) -> None:
        reserved = [each for each in applied if each.declaration.charge_when is not None]
        if reserved and not has_request_context():
            raise ConfigurationError(
                f'limiter on "{reserved[0].declaration.where}": charge_when needs the response of a request, and this '
                "call is outside of one"
            )
        if reserved:
            record.reserved.append((decision, reserved))

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
        if place not in self._plans:
            view = self.app.view_functions.get(endpoint)
            stack = view_stack(view, method)
            declarations = (*self.sources.for_endpoint(endpoint, view, stack), *(stack.declarations if stack else ()))
            reached = None if method == "OPTIONS" and self._answers_options(endpoint) else stack
            self._plans[place] = self._planned(endpoint, declarations, method, reached)
            self._require_users(self._plans[place])
        return self._plans[place]

    def _start(self) -> None:
        """Plan every endpoint there is, so that what is wrong shows at the first request and not at the hundredth."""
        with self._lock:
            if self._started:
                return
            self._warn_of_several_processes()
            self.sources.reject_unknown_names()
            registered = list(self.app.view_functions.values())
            for rule in self.app.url_map.iter_rules():
                reject_misplaced(rule.endpoint, self.app.view_functions.get(rule.endpoint), registered)
                for method in rule.methods or ():
                    self.plan_for(rule.endpoint, method)
            self._started = True

    def _warn_of_several_processes(self) -> None:
        if request.environ.get("wsgi.multiprocess") and not self.limiter.storage.shared:
            self.app.logger.warning(
                "Several worker processes serve this app, and with MULTILIMIT_STORAGE_URI=%s each of them admits the "
                "whole of every limit. Name a server they share, such as redis://localhost:6379/0.",
                self.settings.storage_uri,
            )

    def _plan_before(self, endpoint: str | None, method: str) -> Plan | None:
        if endpoint is not None:
            return self.plan_for(endpoint, method)
        if isinstance(request.routing_exception, (NotFound, MethodNotAllowed)):
            return self._plan_unmatched(method)
        return None

    def _plan_unmatched(self, method: str) -> Plan:
        """Without an endpoint anybody may make up a method: all that are not known share a plan."""
        known = method if method in _METHODS else ""
        if known not in self._unmatched_plans:
            declarations = self.sources.for_unmatched()
            self._unmatched_plans[known] = self._planned(UNMATCHED_SCOPE, declarations, known, None)
        return self._unmatched_plans[known]

    def _plan_of(self, stack: Stack) -> Plan:
        if has_request_context() and request.endpoint is not None:
            plan = self.plan_for(request.endpoint, request.method)
            if plan.stack is not None and plan.stack.declarations[0] is stack.declarations[0]:
                return plan
        if stack not in self._service_plans:
            plan = self._planned(stack.where, stack.declarations, None, None)
            self._require_users(plan)
            self._service_plans[stack] = plan
        return self._service_plans[stack]

    def _require_users(self, plan: Plan) -> None:
        if plan.needs_users:
            self._subjects.require_users(plan.scope)

    def _planned(
        self, scope: str, declarations: Iterable[Declaration], method: str | None, stack: Stack | None
    ) -> Plan:
        serving = [each for each in declarations if method is None or each.serves(method)]
        return Plan.of(self.app, scope, serving, prefix=self.settings.key_prefix, stack=stack)

    def _answers_options(self, endpoint: str) -> bool:
        """Whether Flask answers OPTIONS by itself, so that the view is never reached."""
        return any(getattr(rule, "provide_automatic_options", False) for rule in self.app.url_map.iter_rules(endpoint))


def _unasked(applied: list[Applied]) -> Decision:
    """The decision where nothing is limited: everything passes, and no quota has been touched."""
    hits = hits_of(applied)
    return MemoryStorage().peek(hits) if hits else Decision(uuid4(), (), True, (0, 0))


def _wait(decision: Decision, applied: list[Applied]) -> float:
    """Seconds this request may be kept asleep: what every limiter that refuses, or has a queue, consents to."""
    if decision.allowed and not decision.delay:
        return 0
    keys = {status.hit.key for status in decision.violated}
    waits = (each.declaration.wait for each in applied if not keys or any(hit.key in keys for hit in each.hits))
    return min(waits) if keys else max(waits, default=0)


def _charges(declaration: Declaration, response: Response) -> bool:
    charge_when = cast("Callable[[Response], bool]", declaration.charge_when)
    return charge_when(response)
