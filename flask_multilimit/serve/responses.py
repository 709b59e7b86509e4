"""What a client gets to see: the 429 with its body, the 503, and the header fields. All of it from the Decision."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from markupsafe import escape
from werkzeug.datastructures import Headers, MIMEAccept
from werkzeug.exceptions import ServiceUnavailable, TooManyRequests
from werkzeug.http import http_date, parse_accept_header
from werkzeug.wrappers import Response

from ..config import Settings
from ..engine import Decision, Hit, MultiLimitError, RuleStatus, StorageError
from ..engine.hits import memoized
from ..engine.reply import Reply, retry_afters, standings_of
from .messages import LONGEST_REMEMBERED, MESSAGES, Messages

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
"""Problem type of draft-ietf-httpapi-ratelimit-headers, for RFC 9457 bodies."""

PROBLEM = "application/problem+json"
_OFFERED = (PROBLEM, "application/json", "text/html", "text/plain")
VARY = ("Vary", "Accept, Accept-Language")


class RateLimitExceeded(TooManyRequests, MultiLimitError):  # noqa: N818 - like werkzeug's own
    """HTTP 429, raised where the check stands. An error handler for 429 or for this class gets it."""

    code: int | None = 429  # type: ignore[assignment]  # None, as in HTTPException, for a response of one's own

    def __init__(
        self, decision: Decision, message: str, *, messages: Messages = MESSAGES["en"], response: Response | None = None
    ) -> None:
        super().__init__(description=message, response=response)
        if response is not None:
            self.code = None  # else handlers of 429 would be asked for another; so Flask sends it as it is
        self.decision = decision
        """The answer of storage: which rules refuse, and until when."""
        self._messages = messages

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision, self.description), {"_messages": self._messages}

    def get_response(self, environ: Any = None, scope: dict[str, Any] | None = None) -> Response:  # noqa: ARG002
        if self.response is not None:
            return cast("Response", self.response)
        body, fields = self._written(environ)
        return Response(body, status=self.code, headers=fields)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """As a WSGI application the same as :meth:`get_response`, without a response in between: Flask runs it only to
        make a response of its own of what comes out."""
        if self.response is not None or type(self) is not RateLimitExceeded:  # who inherits may have another response
            return super().__call__(environ, start_response)
        body, fields = self._written(environ)
        self.with_traceback(None)  # its frames hold the exception in turn: for each refusal garbage to be collected
        start_response(f"{self.code} {self.name.upper()}", fields)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _written(self, environ: Any) -> tuple[bytes, list[tuple[str, str]]]:
        body, content_type = self._body(environ)
        return body, [("Content-Type", content_type), ("Content-Length", str(len(body))), VARY]

    def _body(self, environ: Any) -> tuple[bytes, str]:
        chosen = negotiate(environ)
        if chosen == "text/html":
            return self._html().encode(), "text/html; charset=utf-8"
        if chosen == "text/plain":
            return f"{self.description}\n{self._wait()}\n".encode(), "text/plain; charset=utf-8"
        return _problem_text(self.description, _violations(self.decision)), PROBLEM

    def _html(self) -> str:
        return (
            "<!doctype html>\n<meta charset=utf-8>\n<title>429 Too Many Requests</title>\n<h1>Too Many Requests</h1>\n"
            f"<p>{escape(self.description)}</p>\n<p>{self._wait()}</p>\n"
        )

    def _wait(self) -> str:
        seconds = self.decision.retry_after
        return self._messages.wait(math.ceil(seconds)) if math.isfinite(seconds) else self._messages.never


class StorageUnavailable(ServiceUnavailable, StorageError):  # noqa: N818 - like werkzeug's own
    """HTTP 503: the limits could not be checked, and ``on_storage_error`` is ``"deny"``; ``__cause__`` tells why."""

    def get_body(self, environ: Any = None, scope: dict[str, Any] | None = None) -> str:
        chosen = negotiate(environ)
        if chosen == "text/html":
            return super().get_body(environ, scope)
        if chosen == "text/plain":
            return f"{self.description}\n"
        told = {"type": "about:blank", "title": self.name, "status": self.code, "detail": self.description}
        return json.dumps(told, ensure_ascii=False)

    def get_headers(self, environ: Any = None, scope: dict[str, Any] | None = None) -> list[tuple[str, str]]:
        fields = dict(super().get_headers(environ, scope))
        chosen = negotiate(environ)
        fields["Content-Type"] = f"{chosen}; charset=utf-8" if chosen.startswith("text/") else PROBLEM
        return [*fields.items(), VARY]


def problem(error: RateLimitExceeded) -> dict[str, Any]:
    """The refusal as an RFC 9457 problem, for error handlers that add to it."""
    return _problem(error.description, _violations(error.decision))


_Violation = tuple[str, int, float, int | None]
"""What a problem says of a rule that refuses: name, count, time, and seconds to wait, rounded up (``None``: that does
not help)."""


def _violations(decision: Decision) -> tuple[_Violation, ...]:
    """As ``decision.violated``, without making statuses, which takes most of the time."""
    return tuple(
        [
            (hit.name, hit.rule.count, hit.rule.time, _whole_seconds(wait) if wait > 0 else None)
            for hit, wait in zip(decision.hits, retry_afters(decision.reply), strict=True)
            if wait and not hit.shadow
        ]
    )


def _problem(detail: str | None, violations: tuple[_Violation, ...]) -> dict[str, Any]:
    return {
        "type": QUOTA_EXCEEDED,
        "title": "Too Many Requests",
        "status": 429,
        "detail": detail,
        "violated-policies": [name for name, *_ in violations],
        "violations": [_told_of(violation) for violation in violations],
    }


def _told_of(violation: _Violation) -> dict[str, Any]:
    name, count, window, wait = violation
    told = {"policy": name, "limit": count, "window": window}
    return told if wait is None else told | {"retry-after": wait}


@lru_cache(maxsize=256)  # who keeps on asking is told the same until a second has passed
def _problem_text(detail: str | None, violations: tuple[_Violation, ...]) -> bytes:
    return json.dumps(_problem(detail, violations), ensure_ascii=False).encode()


def negotiate(asked: Any) -> str:
    """By a WSGI environment, or a request, or nothing."""
    accept = (getattr(asked, "environ", asked) or {}).get("HTTP_ACCEPT", "*/*")
    return _preferred(accept) if len(accept) <= LONGEST_REMEMBERED else PROBLEM


@lru_cache(maxsize=256)
def _preferred(accept: str) -> str:
    return str(parse_accept_header(accept, MIMEAccept).best_match(_OFFERED, PROBLEM))


def describe(response: Response, decisions: Sequence[Decision], settings: Settings) -> None:
    """Tell the client in header fields where it stands under all limits checked for its request."""
    refusal = _latest_refusal(decisions)
    if refusal is not None and response.status_code == 429:
        response.headers.set("Cache-Control", "no-store")
        _add_retry_after(response.headers, refusal, settings.retry_after)
    if settings.headers == "off" or (refusal is None and settings.headers_on != "always"):
        return
    if settings.headers == "standard" and len(decisions) == 1 and not decisions[0].refunded:
        lasting = memoized(decisions[0].hits, _lasting)
        if not lasting.has_shadow:
            _add_plain(response.headers, decisions[0].reply, lasting)
            return
    shown = [status for status in _told(decisions) if settings.shadow_headers or not status.hit.shadow]
    if shown:
        _add_fields(response.headers, shown, settings.headers)


def _latest_refusal(decisions: Sequence[Decision]) -> Decision | None:
    for decision in reversed(decisions):
        if not decision.allowed:
            return decision
    return None


class _Lasting(NamedTuple):
    """What the fields of ``standard`` say of hits, whatever the reply."""

    policy: str
    starts: tuple[str, ...]
    """Of the items of ``RateLimit``."""
    has_shadow: bool


def _lasting(hits: tuple[Hit, ...]) -> _Lasting:
    starts = tuple([f'"{hit.name}";r=' for hit in hits])
    return _kept_once(_Lasting(_policy(hits), starts, any(hit.shadow for hit in hits)))


@lru_cache(maxsize=1024)
def _kept_once(lasting: _Lasting) -> _Lasting:
    """The same object for all subjects of a plan, of whom there may be thousands."""
    return lasting


def _add_plain(headers: Headers, reply: Reply, lasting: _Lasting) -> None:
    """What :func:`_add_fields` would add for ``standard``, without making statuses, which takes most of the time."""
    items = []
    for start, (remaining, retry_after, reset_after) in zip(lasting.starts, standings_of(reply), strict=True):
        wait, left = retry_after or reset_after, remaining if remaining > 0 else 0
        # `_whole_seconds`, written out: at every request, once a rule.
        items.append(f"{start}{left};t={-(-wait // 1_000_000)}" if wait >= 0 else f"{start}{left}")
    headers.set("RateLimit-Policy", lasting.policy)
    headers.set("RateLimit", ", ".join(items))


def _whole_seconds(microseconds: int) -> int:
    """Rounded up."""
    return -(-microseconds // 1_000_000)


def _told(decisions: Sequence[Decision]) -> Iterable[RuleStatus]:
    """One status a name: of a quota that was checked several times the latest, of several quotas the tightest."""
    if len(decisions) == 1:
        return decisions[0].statuses
    told: dict[str, RuleStatus] = {}
    for status in (status for decision in decisions for status in decision.statuses):
        other = told.get(status.name, status)
        told[status.name] = status if other.hit.key == status.hit.key else _tightest([other, status])
    return told.values()


def _add_fields(headers: Headers, statuses: list[RuleStatus], which: str) -> None:
    if which in {"standard", "both"}:
        headers["RateLimit-Policy"] = _policy(tuple(status.hit for status in statuses))
        headers["RateLimit"] = ", ".join([_limit_item(status) for status in statuses])
    if which in {"legacy", "both"}:
        _add_single(headers, "X-RateLimit", _tightest(statuses), time.time())
    if which == "draft-06":
        _add_single(headers, "RateLimit", _tightest(statuses), 0)
        policies = (f"{status.rule.count};w={math.ceil(status.rule.time)}" for status in statuses)
        headers["RateLimit-Policy"] = ", ".join(policies)


def _add_retry_after(headers: Headers, decision: Decision, form: str) -> None:
    """``Retry-After`` (RFC 9110, 10.2.3), rounded up: never earlier than the truth."""
    retry_after = decision.retry_after
    if math.isfinite(retry_after):
        seconds = math.ceil(retry_after)
        headers.set("Retry-After", str(seconds) if form == "seconds" else http_date(math.ceil(time.time()) + seconds))


def _policy(hits: tuple[Hit, ...]) -> str:
    return ", ".join(f'"{hit.name}";q={hit.rule.count};w={math.ceil(hit.rule.time)}' for hit in hits)


def _limit_item(status: RuleStatus) -> str:
    """``t``: for a rule that refuses, until this request would pass; else until the quota is whole again."""
    hit, allowed, remaining, retry_after, reset_after = status
    seconds = reset_after if allowed else retry_after
    reset = f";t={math.ceil(seconds)}" if seconds != math.inf else ""
    return f'"{hit.name}";r={remaining}{reset}'


def _add_single(headers: Headers, prefix: str, status: RuleStatus, now: float) -> None:
    """Three fields for one rule; the reset counts from ``now``."""
    headers[f"{prefix}-Limit"] = str(status.rule.count)
    headers[f"{prefix}-Remaining"] = str(status.remaining)
    headers[f"{prefix}-Reset"] = str(math.ceil(now + status.reset_after))


def _tightest(statuses: Iterable[RuleStatus]) -> RuleStatus:
    """The rule that has the longest wait, else the least left."""
    return max(statuses, key=lambda status: (status.retry_after, -status.remaining))
