"""The responses to refused requests: 429 if a limit refuses, 403 if the client is denied; 503 if limits cannot be
checked, or if what is left is kept for requests of a priority."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import uuid4
from weakref import ref

from flask import Flask
from markupsafe import escape
from werkzeug.datastructures import Headers, LanguageAccept, MIMEAccept
from werkzeug.exceptions import Forbidden, HTTPException, ServiceUnavailable, TooManyRequests
from werkzeug.http import parse_accept_header
from werkzeug.wrappers import Response

from ..declare.limiter import Message, Reaction
from ..declare.subjects import ask_callable, current_request, request_if_any
from ..engine import Calendar, ConfigurationError, Decision, MultiLimitError, Rule, StorageDenied, StorageError
from ..engine.algorithms import BAN, NEVER
from ..engine.errors import brief
from ..engine.reply import RETRY_AFTERS
from ..engine.text import LONGEST_PREFERENCE
from ..plan.applied import AppliedLimits
from ..signals import log_once_a_minute
from .access import Listed
from .headers import CONCURRENT_REQUESTS, headers_of, seconds_to_wait
from .slots import current_context
from .state import AppState, Record, Records, replace_method

if TYPE_CHECKING:
    from ..config import Settings


class Messages(NamedTuple):
    """The sentences of one language."""

    too_many: str
    failed: str
    busy: str
    denied: str
    banned: str
    wait_one: str
    wait_many: str
    units: tuple[str, str, str, str]
    never: str
    slot: str

    def wait(self, seconds: int) -> str:
        """When to try again, rounded up, in a unit that people count in."""
        if seconds == 1:
            return self.wait_one
        sizes = zip((86_400, 3600, 60), self.units, strict=False)
        size, unit = next((each for each in sizes if seconds >= 2 * each[0]), (1, self.units[-1]))
        return self.wait_many.format(n=-(-seconds // size), unit=unit)


MESSAGES = {
    "en": Messages(
        too_many="Too many requests. Please try again later.",
        failed="Rate limiting failed on the server. Please try again later.",
        busy="The service is busy. Please try again later.",
        denied="Access denied.",
        banned="You are temporarily banned.",
        wait_one="You can try again in 1 second.",
        wait_many="You can try again in {n} {unit}.",
        units=("days", "hours", "minutes", "seconds"),
        never="Waiting does not help: the request asks for more than the limit allows.",
        slot="You can try again when a request in progress has finished.",
    ),
    "zh": Messages(
        too_many="访问过于频繁,请稍候再试",
        failed="服务器限流异常,请稍候再试",
        busy="服务繁忙,请稍候再试",
        denied="拒绝访问",
        banned="您已被暂时封禁",
        wait_one="请在 1 秒后重试。",
        wait_many="请在 {n} {unit}后重试。",
        units=("天", "小时", "分钟", "秒"),
        never="等待无济于事:此请求所需超过了限额。",
        slot="请在正在处理的请求完成后重试。",
    ),
}
"""By language."""


def _messages(settings: Settings) -> Messages:
    """The sentences in the language of the app; for ``auto``, in the one that the client prefers, or English."""
    if settings.locale != "auto":
        return MESSAGES[settings.locale]
    request = request_if_any()
    accepted = "" if request is None else request.environ.get("HTTP_ACCEPT_LANGUAGE", "")
    return MESSAGES[_language_for(accepted) if len(accepted) <= LONGEST_PREFERENCE else "en"]


@lru_cache(maxsize=256)
def _language_for(accept_language: str) -> str:
    """The language that the client prefers among those with messages, whatever the region: ``zh-CN`` is ``zh``."""
    for tag, quality in parse_accept_header(accept_language, LanguageAccept):
        language = re.split("[-_]", tag.lower(), maxsplit=1)[0]
        if quality > 0 and language in MESSAGES:
            return language
    return "en"


T = TypeVar("T")

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
ABNORMAL_USAGE = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
"""Problem types of draft-ietf-httpapi-ratelimit-headers, for RFC 9457 bodies: the second is for bans, the third for
limits that cannot be checked, and for a reserve of what all clients share."""

REDUCED_CAPACITY_TITLE = "Temporary Reduced Capacity"
PROBLEM = "application/problem+json"
_OFFERED = (PROBLEM, "application/json", "text/html", "text/plain")
VARY = ("Vary", "Accept, Accept-Language")


_MARK = "flask_multilimit_mark"
"""The attribute of a request that names it in what is pickled."""


def _mark_of_request() -> str | None:
    request = request_if_any()
    mark: str | None = None if request is None else request.__dict__.setdefault(_MARK, uuid4().hex)
    return mark


class _Refusal(HTTPException):
    """A refusal of one client, whose body has the content type that the client prefers.

    Caches that pickle the errors of a view for later requests, as Flask-Caching does, would refuse all clients: in
    another request, it is restored as ``None``, which means that the cache has nothing.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__dict__ | {"response": None, "code": self.code or type(self).code}
        return _restore, (type(self), state, _mark_of_request())

    def get_response(self, environ: Any = None, scope: dict[str, Any] | None = None) -> Response:  # noqa: ARG002
        return self.answer(environ, Response)

    def answer(self, environ: Any, response_class: Callable[..., Response]) -> Response:
        """The response to a request, of a class such as that of the app."""
        if self.response is not None:
            return cast("Response", self.response)
        body, content_type = self._body(environ)
        headers = headers_of((("Content-Type", content_type), ("Content-Length", str(len(body))), VARY))
        return response_class([body], status=self.code, headers=headers)  # as Flask calls it

    def _body(self, environ: Any) -> tuple[bytes, str]:
        chosen = negotiate(environ)
        if chosen == "text/html":
            return _page(self, self._paragraphs()).encode(), "text/html; charset=utf-8"
        if chosen == "text/plain":
            return "".join(f"{each}\n" for each in self._paragraphs()).encode(), "text/plain; charset=utf-8"
        return self._problem(), PROBLEM

    def _paragraphs(self) -> tuple[str | None, ...]:
        return (self.description,)

    def _problem(self) -> bytes:
        return _as_json({"type": "about:blank", "title": self.name, "status": self.code, "detail": self.description})


def _restore(kind: type[_Refusal], state: dict[str, Any], mark: str | None) -> _Refusal | None:
    if mark is not None and _mark_of_request() not in (mark, None):
        return None
    error = kind.__new__(kind)
    error.__dict__.update(state)
    return error


class RateLimitExceeded(_Refusal, TooManyRequests, MultiLimitError):  # noqa: N818 - like werkzeug's own
    """HTTP 429, raised by the check. Error handlers for 429 or for this class receive it.

    ``code`` is 503 if only limits refuse that have a :class:`Reserve` and count all clients together: the client has
    done nothing wrong, the service is overloaded. The same error handlers receive it, because Flask looks at the class.
    """

    code: int | None = 429  # type: ignore[assignment]  # None, as in HTTPException, for a custom response

    def __init__(
        self, decision: Decision, message: str, *, messages: Messages = MESSAGES["en"], response: Response | None = None
    ) -> None:
        super().__init__(description=message, response=response)
        if response is not None:
            self.code = None  # Flask then sends the response as it is, without asking error handlers for another
        self.decision = decision
        """The decision that refuses: it says which rules refuse, and for how long."""
        self._messages = messages

    def _paragraphs(self) -> tuple[str | None, ...]:
        seconds = self.decision.retry_after
        if self.decision.waits_for_slot:
            return self.description, self._messages.slot
        if math.isfinite(seconds):
            return self.description, self._messages.wait(math.ceil(seconds))
        return tuple(dict.fromkeys((self.description, self._messages.never)))

    def _problem(self) -> bytes:
        return _problem_text(self.description, _violations(self.decision), self.code)


class StorageUnavailable(_Refusal, ServiceUnavailable, StorageError):  # noqa: N818 - like werkzeug's own
    """HTTP 503: limits could not be checked, and ``on_storage_error`` is ``"deny"``. ``__cause__`` is the reason."""

    def _problem(self) -> bytes:
        usual = {"type": REDUCED_CAPACITY, "title": REDUCED_CAPACITY_TITLE, "status": self.code}
        return _as_json(usual | {"detail": self.description, "violated-policies": []})


class AccessDenied(_Refusal, MultiLimitError):  # noqa: N818 - like werkzeug's own
    """HTTP 403, or 429: the client is on a deny list. Error handlers for the status or for this class receive it."""

    def __init__(self, listed: Listed, message: str) -> None:
        super().__init__(description=message)
        self.listed = listed
        """The entry that refuses."""
        self.ends_in: float | None = listed.ends_in
        """Seconds until the entry ends; ``None``: it lasts."""


class _Denied(AccessDenied, Forbidden):
    """Flask finds the error handler of a status by the class."""


class _DeniedForNow(AccessDenied, TooManyRequests):
    code = 429

    def __init__(self, listed: Listed, message: str) -> None:
        super().__init__(listed, message)
        self.retry_after = None if listed.ends_in is None else math.ceil(listed.ends_in)


_META = """\
<meta charset=utf-8>
<meta name=viewport content="width=device-width, initial-scale=1">
<meta name=color-scheme content="light dark">
"""


def _page(error: HTTPException, paragraphs: Iterable[str | None]) -> str:
    """A page without a language, because the paragraphs may be in any: werkzeug's own page says that it is English."""
    text = "".join(f"<p>{escape(paragraph)}</p>\n" for paragraph in paragraphs)
    title = f"<title>{error.code} {error.name}</title>\n<h1>{error.name}</h1>\n"
    return f"<!doctype html>\n{_META}{title}{text}"


def problem(error: RateLimitExceeded) -> dict[str, Any]:
    """The refusal as an RFC 9457 problem, for error handlers that add members to it."""
    if not isinstance(error, RateLimitExceeded):
        raise ConfigurationError(f"problem({brief(error)}): give the RateLimitExceeded that an error handler got")
    return _problem(error.description, _violations(error.decision), error.code)


_Violation = tuple[str, int, str, float | str | None, int | None, bool]
"""A rule that refuses, as a problem describes it: name; count; unit (empty: requests); time (text: a period of the
calendar; ``None``: the rule limits requests in progress); seconds to wait, rounded up (``None``: waiting does not help,
or nobody knows how long); whether it is a ban."""


def _violations(decision: Decision) -> tuple[_Violation, ...]:
    """The rules of ``decision.violated``, without making statuses: those would take most of the time."""
    hits = decision.hits
    return tuple(
        [
            (
                hit.name,
                hit.rule.count,
                hit.unit,
                _window_of(hit.rule),
                -(-wait // 1_000_000) if wait > 0 else None,
                hit.rule.algorithm == BAN,
            )
            for place, wait in enumerate(decision.reply[RETRY_AFTERS])
            if wait and not (hit := hits[place]).shadow
        ]
    )


def _window_of(rule: Rule) -> float | str | None:
    if isinstance(rule, Calendar):
        return rule.period
    return None if rule.holds_slots else rule.time


def _problem(detail: str | None, violations: tuple[_Violation, ...], code: int | None) -> dict[str, Any]:
    kind, title = QUOTA_EXCEEDED, "Too Many Requests"
    if code == 503:
        kind, title = REDUCED_CAPACITY, REDUCED_CAPACITY_TITLE
    elif any(ban for *_, ban in violations):
        kind, title = ABNORMAL_USAGE, "Abnormal Usage Detected"
    return {
        "type": kind,
        "title": title,
        "status": code or 429,
        "detail": detail,
        "violated-policies": [name for name, *_ in violations],
        "violations": [_members_of(violation) for violation in violations],
    }


def _members_of(violation: _Violation) -> dict[str, Any]:
    name, count, unit, window, wait, banned = violation
    if banned:
        return {"policy": name, "banned": True, "retry-after": wait}
    members: dict[str, Any] = {"policy": name, "limit": count}
    if unit:
        members["unit"] = unit
    if isinstance(window, str):
        members["period"] = window
    else:
        members |= {"unit": CONCURRENT_REQUESTS} if window is None else {"window": window}
    return members if wait is None else members | {"retry-after": wait}


@lru_cache(maxsize=256)  # a client that keeps calling gets the same text for a second
def _problem_text(detail: str | None, violations: tuple[_Violation, ...], code: int | None) -> bytes:
    return _as_json(_problem(detail, violations, code))


def _as_json(problem: dict[str, Any]) -> bytes:
    return json.dumps(problem, ensure_ascii=False).encode() + b"\n"


def negotiate(request: Any) -> str:
    """The content type for a WSGI environment, a request, or nothing."""
    accept = (getattr(request, "environ", request) or {}).get("HTTP_ACCEPT", "*/*")
    return _preferred(accept) if len(accept) <= LONGEST_PREFERENCE else PROBLEM


@lru_cache(maxsize=256)
def _preferred(accept: str) -> str:
    return str(parse_accept_header(accept, MIMEAccept).best_match(_OFFERED, PROBLEM))


class Refusals:
    """Makes the refusals of one app, as its settings and the limiters describe them."""

    def __init__(self, in_force: AppState, *, on_rejected: Reaction | None) -> None:
        self._in_force = in_force
        self._on_rejected = on_rejected

    def too_many(self, decision: Decision, applied: AppliedLimits) -> RateLimitExceeded:
        """The refusal by limits."""
        settings, messages = self._in_force.settings, _messages(self._in_force.settings)
        declared = applied.refusing_longest(decision) if applied.has_answers else None
        is_busy = declared is not None and applied.sheds_load(decision)
        message = settings.message if declared is None or declared.message is None else declared.message
        text = None if message is None else self._from_app("message", lambda: _text_of(message, decision))
        react = self._on_rejected if declared is None or declared.on_rejected is None else declared.on_rejected
        code = 503 if is_busy else 429
        response = None
        if react is not None:
            response = self._from_app("on_rejected", lambda: self._response_of(code, react, decision))
        text = text or _default_text(messages, decision, applied, is_busy=is_busy)
        error = RateLimitExceeded(decision, text, messages=messages, response=response)
        error.retry_after = seconds_to_wait(decision, 0, settings)
        if response is None:
            error.code = code
        return error

    def _response_of(self, code: int, react: Reaction, decision: Decision) -> Response | None:
        """The answer of ``react``, with status ``code`` unless it gives one: Flask's default would be 200."""
        answer = ask_callable(react, decision)
        if answer is None:
            return None
        response = self._in_force.app.make_response(answer)
        if not _has_status(answer):
            response.status_code = code
        return response

    def _from_app(self, name: str, ask: Callable[[], T]) -> T | None:
        """Ask what the app has given. ``None``, for the default refusal, if it fails or cannot be sent."""
        try:
            return ask()
        except Exception as error:
            if isinstance(error, HTTPException) or _has_handler(self._in_force.app, error):
                raise  # this is how the callback answers
            log_once_a_minute(self._in_force.app, error, "%s failed; the client gets the default refusal", name)
            return None

    def unavailable(self, error: StorageDenied) -> StorageUnavailable:
        """The refusal of a check that the storage did not answer."""
        return StorageUnavailable(_messages(self._in_force.settings).failed, retry_after=math.ceil(error.retry_after))

    def denied(self, listed: Listed) -> AccessDenied:
        """The refusal of a client that is on a deny list."""
        messages = _messages(self._in_force.settings)
        kind = _Denied if listed.status == 403 else _DeniedForNow
        return kind(listed, messages.banned if listed.banned else messages.denied)


def _default_text(messages: Messages, decision: Decision, applied: AppliedLimits, *, is_busy: bool) -> str:
    if applied.has_bans and decision.ban is not None:
        return messages.banned
    if NEVER in decision.reply[RETRY_AFTERS] and math.isinf(decision.retry_after) and not decision.waits_for_slot:
        return messages.never
    return messages.busy if is_busy else messages.too_many


def _text_of(message: Message, decision: Decision) -> str:
    """The text of ``message``, empty for the default. Raises ``UnicodeError`` for text that cannot be sent."""
    given = ask_callable(message, decision) if callable(message) else message
    text = str(given) if given else ""
    text.encode()
    return text


def _has_status(answer: object) -> bool:
    """Whether an ``answer``, as views return them, has a status: tuples may, responses and WSGI applications do."""
    body, *rest = answer if isinstance(answer, tuple) else (answer,)
    return callable(body) or (bool(rest) and not isinstance(rest[0], (Headers, dict, tuple, list, NoneType)))


def _has_handler(app: Flask, error: Exception) -> bool:
    """Whether the app has an error handler for this error, besides one for all exceptions."""
    classes = set(type(error).__mro__) - set(Exception.__mro__)
    # Lists, because Flask adds what it looks for in other threads.
    handlers = (by_class for by_code in list(app.error_handler_spec.values()) for by_class in list(by_code.values()))
    return any(not classes.isdisjoint(by_class) for by_class in handlers)


# In error handlers of the app


_REFUSALS = (RateLimitExceeded, AccessDenied, StorageUnavailable)


def answer_refusals(app: Flask) -> None:
    """Answer a refusal in an error handler of ``app`` like one in a view. Flask alone would answer every exception of
    an error handler with a server error."""
    replace_method(app, "handle_user_exception", _wrap_handling(app.handle_user_exception))
    replace_method(app, "handle_exception", _wrap_last_handling(app.handle_exception))


def _wrap_handling(handle: Callable[..., Any]) -> Callable[..., Any]:
    def handle_user_exception(app: Flask, *arguments: Any) -> Any:
        try:
            answer = handle(*arguments)
        except _REFUSALS as refusal:
            *context, error = arguments
            if refusal is error:  # no handler took it (TRAP_HTTP_EXCEPTIONS), or one has raised it again
                raise
            answer = _answer_to(handle, context, refusal)
        except Exception as failure:
            answer = arguments[-1]
            if not isinstance(answer, AccessDenied):
                raise
            log_once_a_minute(app, failure, "an error handler failed; the client gets the default refusal")
        if isinstance(answer, _REFUSALS):
            answer.with_traceback(None)  # its frames refer to the exception: each refusal would leave a reference cycle
        if type(answer) is RateLimitExceeded:  # Flask would run it as a WSGI application, which takes longer
            return answer.answer(current_request().environ, app.response_class)
        return answer

    return handle_user_exception


DENIAL_STATUSES = frozenset({403, 429})


def processed(app: Flask, process: Callable[..., Any], arguments: tuple[Any, ...], record: Record | None) -> Any:
    """The response after ``after_request`` functions. One may need what ``before_request`` functions do, and a denied
    address is refused before these."""
    try:
        return process(*arguments)
    except Exception as error:
        response = arguments[-1]
        if record is None or not record.refused or response.status_code not in DENIAL_STATUSES:
            raise
        log_once_a_minute(app, error, "an after_request function failed; the client gets the refusal without it")
        return response


def tear_down_quietly(app: Flask) -> None:
    """As :func:`processed`, for functions that tear down the current request and its app context: an exception of one
    would reach the WSGI server. Only this context is changed, so other requests do not wait."""
    context: Any = current_context()
    kept: Callable[[], Any] = ref(context)  # itself would be a reference cycle

    def pop(*arguments: Any) -> None:
        try:
            type(kept()).pop(kept(), *arguments)
        except Exception as error:
            log_once_a_minute(app, error, "a teardown function failed after a refusal")

    context.pop = pop


def _answer_to(handle: Callable[..., Any], context: list[Any], refusal: Exception) -> Any:
    """The answer of the error handlers to ``refusal``. If a limit refuses them as well, that refusal is the answer."""
    try:
        return handle(*context, refusal)
    except _REFUSALS as second:
        if second is refusal:
            raise
        return second


def _wrap_last_handling(handle: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the handling of server errors (500), whose own exceptions would reach the WSGI server."""

    def handle_exception(app: Any, *arguments: Any) -> Any:
        *context, error = arguments  # Flask 3.2 passes its context, too
        record = Records(app).current()
        if record is not None and record.denial is not None:
            log_once_a_minute(app, error, "a receiver of request_finished failed after a refusal")
            return record.denial
        try:
            return handle(*arguments)
        except _REFUSALS as refusal:
            if refusal is error:  # as set by PROPAGATE_EXCEPTIONS
                raise
            answer = app.handle_user_exception(*context, refusal)
            return app.finalize_request(*context, answer, from_error_handler=True)

    return handle_exception
