"""No form is larger than it has to be, and none is read before its size is known."""

from __future__ import annotations

from flask import request
from werkzeug.exceptions import LengthRequired, RequestEntityTooLarge
from werkzeug.wsgi import get_input_stream

MOST_OF_A_FORM = 100_000
"""Bytes of a form without a file, or around one."""
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
    """Let the browser finish: where nobody reads what it sends, it shows no answer, but that it lost its connection."""
    if length <= MOST_DISCARDED:
        stream = get_input_stream(request.environ)
        while stream.read(BLOCK):
            continue
