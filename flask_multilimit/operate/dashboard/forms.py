"""Ensures that changes come from our own forms, sent by the person who opened them, and that forms are small."""

from __future__ import annotations

import re
import secrets

from flask import Response, current_app, g, request
from itsdangerous import BadData, SignatureExpired
from werkzeug.exceptions import Forbidden, LengthRequired, RequestEntityTooLarge
from werkzeug.wsgi import get_input_stream

from ...engine.text import LONGEST_COOKIE, LONGEST_QUERY, quoted
from .visit import FORM, keep_cookie, serializer, visit

FIELD = "token"
LIVES_SECONDS = 12 * 3600
"""After this time, a form must be opened again."""
NOTICE_SECONDS = 300
"""The time for which the page after a change says that it was made."""
LARGEST_FORM = 100_000
"""The most bytes of a form, without the file in it."""
MOST_DISCARDED = 50_000_000
BLOCK = 65_536

EXPIRED = "This form was opened too long ago, or by somebody else. Go back, load the page again, and send it again."
FOREIGN = "This form was not sent by a page of this dashboard, so nothing was changed."


_CHANGED = re.compile('^["\\s]|[\\0\\r\\n]|\\s$')


def encode_field(text: str) -> str:
    """``text`` for a field of a form, so that it comes back unchanged. Browsers replace NULs and new lines, and we
    strip spaces from what people type, so text with these becomes JSON: clients choose their names."""
    return quoted(text) if _CHANGED.search(text) else text


def can_sign() -> bool:
    """Whether the app has a key. Without one, forged forms cannot be recognised."""
    return bool(current_app.secret_key)


def form_token() -> str:
    """The token for a form of this page, for a hidden field with the name :data:`FIELD`."""
    return str(serializer("form").dumps([visit().author, _nonce()]))


def require_own_form() -> None:
    """Raise :exc:`Forbidden` unless the current request is a form that this person opened here."""
    if is_from_other_site() or not can_sign():
        raise Forbidden(FOREIGN)
    try:
        given = serializer("form").loads(request.form.get(FIELD, "")[:LONGEST_QUERY], max_age=LIVES_SECONDS)
    except SignatureExpired:
        raise Forbidden(EXPIRED) from None
    except BadData:
        raise Forbidden(FOREIGN) from None
    if given != [visit().author, request.cookies.get(FORM)]:
        raise Forbidden(EXPIRED)


def is_from_other_site() -> bool:
    """Whether the browser says that another site made it send this request."""
    return request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}


def sign_notice(done: str) -> str:
    """What was ``done``, for the query of the next page. Nobody else can sign it."""
    return str(serializer("notice").dumps([visit().author, done]))


def read_notice(name: str) -> str:
    """What this person has just done, by the notice ``name`` in the query; empty without a valid one."""
    if not can_sign() or not (given := request.args.get(name)):
        return ""
    try:
        author, done = serializer("notice").loads(given, max_age=NOTICE_SECONDS)
    except (BadData, TypeError, ValueError):
        return ""
    return str(done) if author == visit().author else ""


def keep_nonce(response: Response, path: str) -> None:
    """Set the cookie that forms of this browser will be compared with."""
    nonce = g.get("multilimit_nonce")
    if nonce is not None and nonce != request.cookies.get(FORM):
        keep_cookie(response, FORM, nonce, path)


def require_small_body(most_bytes: int, why: str) -> None:
    """Raise :exc:`RequestEntityTooLarge` if the body of the current request is larger, and :exc:`LengthRequired` if its
    size is not known."""
    length = request.content_length
    if length is None:
        raise LengthRequired
    if length > most_bytes:
        _discard(length)
        raise RequestEntityTooLarge(why)


def _discard(length: int) -> None:
    """Read what the browser sends. Otherwise it would report a lost connection instead of showing our answer."""
    if length <= MOST_DISCARDED:
        stream = get_input_stream(request.environ)
        while stream.read(BLOCK):
            continue


def _nonce() -> str:
    if "multilimit_nonce" not in g:
        g.multilimit_nonce = request.cookies.get(FORM, "")[:LONGEST_COOKIE] or secrets.token_urlsafe(16)
    return str(g.multilimit_nonce)
