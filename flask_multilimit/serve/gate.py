"""The gate of one app: when a request is checked, and against which plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from flask import Flask, Response, has_request_context

from ..declare.advice import Stack, app_in_force, changes, gate_of_app, leave_to_response
from ..declare.decorators import RateLimiter
from ..declare.limiter import Declaration, Reaction
from ..declare.subjects import SUBJECTS_BY_TYPE, LimitType, Resolve, current_request, request_if_any
from ..engine import ConfigurationError, Decision, Hit, StorageError
from ..engine.algorithms import BAN
from ..engine.errors import brief, check_mapping
from ..engine.hits import Hits
from ..engine.limiter import unasked
from ..observe import traffic
from ..plan.hits import AppliedLimits
from .audience import key_of
from .headers import describe
from .refusal import AccessDenied, RateLimitExceeded, Refusals, StorageUnavailable
from .settle import Settlement
from .startup import Startup, validate_when_flask_run_has_loaded
from .state import NO_PLAN, AppState, Record, Records
from .verdict import AccessCheck, Verdicts

Listing = Callable[[Flask, str], Mapping[str, Iterable[RateLimiter]]]
"""Returns the limiters that an extension checks at an endpoint of an app, by where they were declared."""


@dataclass(kw_only=True, eq=False, repr=False)
class AppGate(AppState):
    """Decides every request of one app.

    A request is checked once, in one check: by the decorator of its view, or else after all ``before_request``
    functions, which may find out who the user is. If the request ends before that, because a function answers or
    raises, the limits that are not the view's own are checked then.
    """

    on_rejected: Reaction | None
    follow_changes: Callable[[], None]
    """As for :class:`.Startup`."""
    listings: Collection[Listing] = ()
    """Limits of other extensions."""

    def __post_init__(self) -> None:
        self.startup: Startup = Startup(self, follow_changes=self.follow_changes)
        self._secret = key_of(self.app, "PARTITION_KEYS") if self.settings.partition_keys else b""
        self._records = Records(self.app)
        refusals = Refusals(self.app, on_rejected=self.on_rejected)
        self._lists = AccessCheck(self, refusals)
        self.settlement: Settlement = Settlement(self, self._records)
        self.verdicts: Verdicts = Verdicts(self, self._records, refusals, self._lists, self.settlement)

    def install(self) -> None:
        """Put the gate around the handling of each request.

        Flask's hooks are not enough: none runs after the ``before_request`` functions of blueprints, an exception in
        ``after_request`` is a server error, and header fields must be complete after all other functions.
        """
        preprocess, dispatch = self.app.preprocess_request, self.app.dispatch_request
        process = self.app.process_response

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
                elif record.plan.stack is None or record.plan.early:
                    self.verdicts.check(record.plan, record)
            return answer

        @functools.wraps(dispatch)
        def dispatch_request(*arguments: Any) -> Any:
            try:
                answer = dispatch(*arguments)
            except Exception:
                record = self._records.current()
                if record is not None and not record.checked:
                    self._leave(record)
                raise
            record = self._records.current()
            if record is not None and not record.checked:
                self._leave(record, answer)
            return answer

        @functools.wraps(process)
        def process_response(*arguments: Any) -> Response:
            response = process(*arguments)
            record = self._records.current()
            if record is not None and record.decisions:
                if record.settled:
                    self.settlement.at_response(response, record)
                describe(response, record.decisions, self.settings, self._secret)
            return response

        run = self.app.run

        @functools.wraps(run)
        def run_app(*arguments: Any, **options: Any) -> None:
            self.startup.validate()
            run(*arguments, **options)

        validate_when_flask_run_has_loaded(self.startup)
        self.app.run = run_app  # type: ignore[method-assign]
        self.app.process_response = process_response  # type: ignore[assignment, method-assign]
        self.app.preprocess_request = preprocess_request  # type: ignore[method-assign]
        self.app.dispatch_request = dispatch_request  # type: ignore[method-assign]
        answer_refusals(self.app)

    def _enter(self) -> Record | None:
        """Look up the plan of the current request, and turn away denied addresses."""
        if not self.startup.finished:
            self.startup.run()
        if not self.settings.enabled:
            return None
        asked = current_request()
        plan = self.plans.of_request(asked)
        if self.access is not None:
            self._lists.turn_away(asked, self.access)
        return self._records.open(asked, plan) if plan is not None else None

    def admit(self, stack: Stack) -> frozenset[Declaration]:
        """Check the limiters of ``stack`` together with all other limits that apply. Raise unless the call may pass."""
        if not self.settings.enabled:
            self._records.note_unlimited()
            return stack.covered
        record = self._records.current()
        if record is None or record.plan is NO_PLAN:
            record = self._begun()
        if record is None or (record.plan.stack is not stack and not record.plan.is_reached_by(stack)):
            self.startup.keep_up()
            asked = request_if_any()
            self.verdicts.check(self.plans.of_service(stack, asked.method if asked else None))
            return stack.covered
        if stack.acts_at_end or changes.may_take_slots:
            leave_to_response()
        if not record.admitted:  # a decorator may call the view again for the same request
            self.verdicts.check(record.plan, record)
        # Declarations for other methods are covered as well: they do not apply.
        return (record.plan.stack or stack).covered

    def check_here(self, scope: str, options: Mapping[str, Any], subject: str | None) -> tuple[Decision, AppliedLimits]:
        """Decide on a limiter that is given in the call."""
        self.startup.keep_up()
        plan = self.plans.declared_here(scope, dict(options))
        applied = plan.apply(self._resolver(plan.limiters[0].declaration, subject))
        return self.verdicts.check_here(scope, applied) or unasked(applied.hits), applied

    def _resolver(self, declaration: Declaration, subject: str | None) -> Resolve:
        if subject is not None:
            return self.subjects.here(declaration.type_name, subject)
        if declaration.type is not LimitType.DEFAULT and not has_request_context():
            raise ConfigurationError(
                f'limiter on "{declaration.where}": the {declaration.type_name} is unknown outside of a request; '
                "pass subject="
            )
        return self.subjects.resolve

    def check_hits(self, hits: Hits, scope: str, subjects: Mapping[str, str]) -> Decision:
        """Decide on hits that no limiter of the app has made."""
        if not isinstance(hits, Hits):
            raise ConfigurationError(f"hits={brief(hits)}: give what hits_for(...) returns, or Hits([...])")
        if not isinstance(scope, str):
            raise ConfigurationError(f"scope={brief(scope)}: name what is limited, as text")
        check_mapping("subjects", subjects, SUBJECTS_BY_TYPE)
        changed = self.limiter.with_overrides(hits)
        applied = AppliedLimits.of_hits(changed or hits, subjects, scope)
        decision = None if changed is None else self.verdicts.check_here(scope, applied)
        return decision or unasked(applied.hits)

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
        return self._lists.allows(self._records.current())

    def _begun(self) -> Record | None:
        """The record of a request that was not preprocessed; ``None`` outside of a request."""
        asked = request_if_any()
        return None if asked is None else self._records.open(asked, self.plans.of_request(asked) or NO_PLAN)

    def _leave(self, record: Record | None, answer: object = None) -> None:
        """Check the limits that apply even if the view is not reached."""
        if record is None or record.checked:
            return
        try:
            self.verdicts.check_ended(self.plans.of_ended(current_request(), record.plan), record)
        except Exception:
            if isinstance(answer, Response):
                answer.close()
            raise


def gate_of(app: Flask) -> AppGate:
    """The gate of ``app``. Raises :class:`ConfigurationError` if it has no MultiLimit."""
    return cast("AppGate", gate_of_app(app))


def gate_in_force() -> AppGate:
    """The gate of the current app. Raises as :func:`gate_of`, and RuntimeError if there is no current app."""
    return gate_of(app_in_force())


_REFUSALS = (RateLimitExceeded, AccessDenied, StorageUnavailable)


def answer_refusals(app: Flask) -> None:
    """Answer a refusal in an error handler of ``app`` like one in a view. Flask alone would answer every exception of
    an error handler with a server error."""
    app.handle_user_exception = _answering(app, app.handle_user_exception)  # type: ignore[method-assign]
    app.handle_exception = _answering_last(app, app.handle_exception)  # type: ignore[method-assign]


def _answering(app: Flask, handle: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handle)
    def handle_user_exception(*arguments: Any) -> Any:
        try:
            answer = handle(*arguments)
        except _REFUSALS as refusal:
            *context, error = arguments
            if refusal is error:  # no handler takes it (TRAP_HTTP_EXCEPTIONS), or one has raised it again
                raise
            answer = _handled(handle, context, refusal)
        if type(answer) is RateLimitExceeded:  # Flask would run it as a WSGI application, which takes longer
            return answer.answer(current_request(), app.response_class)
        return answer

    return handle_user_exception


def _handled(handle: Callable[..., Any], context: list[Any], refusal: Exception) -> Any:
    """The answer of the error handlers to ``refusal``. If they are refused as well, that refusal is the answer."""
    try:
        return handle(*context, refusal)
    except _REFUSALS as again:
        if again is refusal:
            raise
        return again


def _answering_last(app: Any, handle: Callable[..., Any]) -> Callable[..., Any]:
    """For the error handler of 500, after which only the server could answer."""

    @functools.wraps(handle)
    def handle_exception(*arguments: Any) -> Any:
        *context, error = arguments  # Flask 3.2 passes its context, too
        try:
            return handle(*arguments)
        except _REFUSALS as refusal:
            if refusal is error:  # as set by PROPAGATE_EXCEPTIONS
                raise
            answer = app.handle_user_exception(*context, refusal)
            return app.finalize_request(*context, answer, from_error_handler=True)

    return handle_exception
