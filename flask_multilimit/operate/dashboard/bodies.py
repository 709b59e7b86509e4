"""Limits the size of forms, and reads none before its size is known."""

from __future__ import annotations

from flask import request
from werkzeug.exceptions import LengthRequired, RequestEntityTooLarge
from werkzeug.wsgi import get_input_stream

MOST_OF_A_FORM = 100_000
"""The most bytes of a form, without the file in it."""
MOST_DISCARDED = 50_000_000
BLOCK = 65_536


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
    """Read what the browser sends. Otherwise it would not show our answer, but report that the connection was lost."""
    if length <= MOST_DISCARDED:
        stream = get_input_stream(request.environ)
        while stream.read(BLOCK):
            continue
