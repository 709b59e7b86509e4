"""What a client gets to see: the 429 with its body, the 503, and the header fields. All of it from the Decision."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import escape
from werkzeug.datastructures import Headers, MIMEAccept
from werkzeug.exceptions import ServiceUnavailable, TooManyRequests
from werkzeug.http import parse_accept_header
from werkzeug.wrappers import Response

from .engine import Decision, MultiLimitError, RuleStatus, StorageError

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
"""Problem type of draft-ietf-httpapi-ratelimit-headers, for RFC 9457 bodies."""

_PROBLEM = "application/problem+json"
_OFFERED = (_PROBLEM, "application/json", "text/html", "text/plain")


class RateLimitExceeded(TooManyRequests, MultiLimitError):  # noqa: N818 - like werkzeug's own
    """HTTP 429, raised where the check stands. An error handler for 429 or for this class gets it."""

    def __init__(self, decision: Decision, message: str) -> None:
        super().__init__(description=message)
        self.decision = decision
        """The answer of storage: which rules refuse, and until when."""

    def get_response(self, environ: Any = None, scope: dict[str, Any] | None = None) -> Response:  # noqa: ARG002
        body, content_type = self._body(environ)
        response = Response(body, status=self.code, content_type=content_type)
        response.headers["Cache-Control"] = "no-store"
        response.vary.add("Accept")
        return response

    def _body(self, environ: Any) -> tuple[str, str]:
        chosen = _negotiate(environ)
        if chosen == "text/html":
            return self._html(), "text/html; charset=utf-8"
        if chosen == "text/plain":
            return f"{self.description}\n{_wait(self.decision)}\n", "text/plain; charset=utf-8"
        return json.dumps(problem(self)), _PROBLEM

    def _html(self) -> str:
        return (
            "<!doctype html>\n<html lang=en>\n<title>429 Too Many Requests</title>\n<h1>Too Many Requests</h1>\n"
            f"<p>{escape(self.description)}</p>\n<p>{_wait(self.decision)}</p>\n"
        )


class StorageUnavailable(ServiceUnavailable, StorageError):  # noqa: N818 - like werkzeug's own
    """HTTP 503: the limits could not be checked; ``__cause__`` tells why."""

    description = "Rate limiting failed on the server. Please try again later."


def problem(error: RateLimitExceeded) -> dict[str, Any]:
    """The refusal as an RFC 9457 problem, for error handlers that add to it."""
    return {
        "type": QUOTA_EXCEEDED,
        "title": "Too Many Requests",
        "status": 429,
        "detail": error.description,
        "violated-policies": [status.name for status in error.decision.violated],
        "violations": [_violation(status) for status in error.decision.violated],
    }


def _violation(status: RuleStatus) -> dict[str, Any]:
    violation = {"policy": status.name, "limit": status.rule.count, "window": status.rule.time}
    if math.isfinite(status.retry_after):
        violation["retry-after"] = math.ceil(status.retry_after)
    return violation


def _negotiate(environ: Any) -> str:
    accept = parse_accept_header((environ or {}).get("HTTP_ACCEPT", "*/*"), MIMEAccept)
    return str(accept.best_match(_OFFERED, _PROBLEM))


def _wait(decision: Decision) -> str:
    if not math.isfinite(decision.retry_after):
        return "Waiting does not help: the request asks for more than the limit ever admits."
    seconds = math.ceil(decision.retry_after)
    return f"You can try again in {seconds} second{'' if seconds == 1 else 's'}."


def add_header_fields(headers: Headers, decisions: Sequence[Decision], which: str) -> None:
    """Tell the client where it stands under all limits checked for its request."""
    statuses = [status for decision in decisions for status in decision.statuses]
    if which in {"standard", "both"}:
        headers["RateLimit-Policy"] = ", ".join(map(_policy_item, statuses))
        headers["RateLimit"] = ", ".join(map(_limit_item, statuses))
    if which in {"legacy", "both"}:
        _add_legacy(headers, _tightest(statuses))


def add_retry_after(headers: Headers, decision: Decision) -> None:
    """``Retry-After`` (RFC 9110, 10.2.3) in whole seconds, rounded up: never earlier than the truth."""
    if math.isfinite(decision.retry_after):
        headers["Retry-After"] = str(math.ceil(decision.retry_after))


def _policy_item(status: RuleStatus) -> str:
    return f'"{status.name}";q={status.rule.count};w={math.ceil(status.rule.time)}'


def _limit_item(status: RuleStatus) -> str:
    """``t``: for a rule that refuses, until this request would pass; else until the quota is whole again."""
    seconds = status.reset_after if status.allowed else status.retry_after
    reset = f";t={math.ceil(seconds)}" if math.isfinite(seconds) else ""
    return f'"{status.name}";r={status.remaining}{reset}'


def _add_legacy(headers: Headers, status: RuleStatus) -> None:
    headers["X-RateLimit-Limit"] = str(status.rule.count)
    headers["X-RateLimit-Remaining"] = str(status.remaining)
    headers["X-RateLimit-Reset"] = str(math.ceil(time.time() + status.reset_after))


def _tightest(statuses: Iterable[RuleStatus]) -> RuleStatus:
    """The rule that has the longest wait, else the least left."""
    return max(statuses, key=lambda status: (status.retry_after, -status.remaining))
