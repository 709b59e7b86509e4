"""Answers refusals that no error handler answers, and refusals in error handlers, which may be limited themselves or
call a limited function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flask import Flask

from ..declare.subjects import current_request
from .refusal import AccessDenied, RateLimitExceeded, StorageUnavailable

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
