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
    """Raise :exc:`RequestEntityTooLarge` for the body of the current request if it is larger, and
    :exc:`LengthRequired` if nobody can know."""
    length = request.content_length
    if length is None:
        raise LengthRequired
    if length > most_bytes:
        _discard(length)
        raise RequestEntityTooLarge(why)


def _discard(length: int) -> None:
    """Read what the browser sends, or else it shows no answer but says that the connection was lost."""
    if length <= MOST_DISCARDED:
        stream = get_input_stream(request.environ)
        while stream.read(BLOCK):
            continue
