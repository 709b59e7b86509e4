"""Ensures that changes come from our own forms, sent by the person who opened them; limits guesses and changes."""

from __future__ import annotations

import math
import secrets

from flask import Response, current_app, g, request
from itsdangerous import BadData, SignatureExpired, URLSafeTimedSerializer
from werkzeug.exceptions import Forbidden, TooManyRequests

from ...declare.subjects import LimitType
from ...engine import Decision, hits_for
from ...engine.hits import Hits
from ...serve.gate import gate_in_force
from .visit import visit

COOKIE = "multilimit_form"
"""The cookie that binds the token of a form to the browser that opened it."""
FIELD = "token"
LIVES_SECONDS = 12 * 3600
"""After this time, a form must be opened again."""
REFUSED_VISITS = "10/minute"
"""The limit of rejected visits from one address."""
CHANGES = "60/minute"
"""The limit of changes by one person."""
SCOPE = "flask_multilimit.dashboard"

EXPIRED = "This form was opened too long ago, or by somebody else. Go back, load the page again, and send it again."
FOREIGN = "This form was not sent by a page of this dashboard, so nothing was changed."
TOO_MANY = "Too many changes in a minute. Nothing was changed; wait a little, and send it again."


def can_sign() -> bool:
    """Whether the app has a key. Without one, forged forms cannot be recognised."""
    return bool(current_app.secret_key)


def form_token() -> str:
    """The token for a form of this page, for a hidden field with the name :data:`FIELD`."""
    return str(_serializer().dumps([visit().author, _nonce()]))


def require_own_form() -> None:
    """Raise :exc:`Forbidden` unless the current request is a form that this person opened here."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        raise Forbidden(FOREIGN)
    if not can_sign():
        raise Forbidden(FOREIGN)
    try:
        given = _serializer().loads(request.form.get(FIELD, ""), max_age=LIVES_SECONDS)
    except SignatureExpired:
        raise Forbidden(EXPIRED) from None
    except BadData:
        raise Forbidden(FOREIGN) from None
    if given != [visit().author, request.cookies.get(COOKIE)]:
        raise Forbidden(EXPIRED)


def keep_nonce(response: Response, path: str) -> None:
    """Set the cookie that forms of this browser will be compared with."""
    nonce = g.get("multilimit_nonce")
    if nonce is not None and nonce != request.cookies.get(COOKIE):
        response.set_cookie(
            COOKIE, nonce, path=path, secure=request.is_secure, httponly=True, samesite="Strict"
        )  # fmt: skip


def _nonce() -> str:
    if "multilimit_nonce" not in g:
        g.multilimit_nonce = request.cookies.get(COOKIE) or secrets.token_urlsafe(16)
    return str(g.multilimit_nonce)


def _serializer() -> URLSafeTimedSerializer:
    keys = [*(current_app.config.get("SECRET_KEY_FALLBACKS") or ()), current_app.secret_key]
    return URLSafeTimedSerializer(keys, salt="flask_multilimit.dashboard.form")


# Our own limits


def require_few_refusals() -> None:
    """Raise :exc:`TooManyRequests` for an address with too many rejected visits, before ``authorize`` is called."""
    _require(gate_in_force().limiter.peek(_hits_of_address()), "")


def note_refusal() -> None:
    """Count a visit that is rejected."""
    gate_in_force().limiter.check(_hits_of_address())


def require_few_changes() -> None:
    """Count a change of this person. Raises :exc:`TooManyRequests`."""
    _require(gate_in_force().limiter.check(_hits(CHANGES, "author", visit().author)), TOO_MANY)


def _require(decision: Decision, why: str) -> None:
    if not decision.allowed:
        raise TooManyRequests(why or None, retry_after=math.ceil(decision.retry_after))


def _hits_of_address() -> Hits:
    subject = gate_in_force().subjects.resolve(LimitType.IP, None)
    return _hits(REFUSED_VISITS, "ip", "" if subject is None else subject.value)


def _hits(rules: str, type_name: str, subject: str) -> Hits:
    prefix = gate_in_force().settings.key_prefix
    return hits_for(rules, scope=SCOPE, type=type_name, subject=subject, prefix=prefix, on_storage_error="local")
