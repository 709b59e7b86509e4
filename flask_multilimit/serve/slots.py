"""The slots of a request: held from the check until the response is closed, after its last byte or when the client
disconnects.

The server closes a response by calling ``close()`` of its body. If it got no body (the view raised, or a websocket took
the connection over), the slots are released when the request is torn down. In tests, so are those of a complete
response, because Flask's test client does not close it. A copy of the request context, as threads get it, holds its own
slots until it is torn down itself, at the end of each call of a function below ``copy_current_request_context``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, request_finished
from flask.globals import request_ctx

from ..declare.advice import Holder
from ..engine.slots import KEEPER

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from flask.ctx import RequestContext

_current_context: Callable[[], RequestContext] = request_ctx._get_current_object  # type: ignore[attr-defined]
_SLOTS = "multilimit_slots"
"""The attribute of a request context that has its slots: the request itself is shared by all copies of the context."""


class RequestHolder(Holder):
    """Holds slots until the response is closed."""

    __slots__ = ("body_is_out",)

    def __init__(self) -> None:
        super().__init__()
        self.body_is_out: bool = False
        """Whether the server has the body, which it will close."""

    def begin_again(self) -> None:
        """Hold the slots that are taken until the next end."""
        self.body_is_out = self.ended = False

    def __del__(self) -> None:
        # Threads that share a context ended at the same instant, and Flask tore nothing down.
        if self.decisions or self.at_end:
            KEEPER.call_soon(self.end)


def holder_of_request() -> Holder | None:
    """The holder of slots until the current request ends; ``None`` outside of one."""
    try:
        context = _current_context()
    except RuntimeError:
        return None
    attributes = context.__dict__
    holder: RequestHolder | None = attributes.get(_SLOTS)
    if holder is None:
        holder = attributes.setdefault(_SLOTS, RequestHolder())  # threads that share a context share its holder
    elif holder.ended and _is_pushed(context):
        holder.begin_again()
    return holder


def _is_pushed(context: RequestContext) -> bool:
    """Whether work goes on in ``context``. Threads and tasks may see it after its end, and only a private attribute of
    Flask tells. If Flask drops it, slots that are taken after the first end of a context expire."""
    return bool(getattr(context, "_cv_tokens", ()))


def release_when_requests_end(app: Flask) -> None:
    """Release the slots of each request of ``app``."""
    request_finished.connect(_at_response, app)
    teardown = app.do_teardown_request

    @functools.wraps(teardown)
    def do_teardown_request(*arguments: Any, **options: Any) -> None:
        try:
            teardown(*arguments, **options)
        finally:  # a function of the app may have raised, and then there is no signal
            _at_teardown()

    app.do_teardown_request = do_teardown_request  # type: ignore[method-assign]


def _at_response(sender: Flask, response: Response, **_: Any) -> None:
    if _slots_here() is None or (sender.testing and response.is_sequence):
        return
    if not isinstance(response.get_app_iter, _BodyFor):  # a view may return the same object again and again
        response.get_app_iter = _BodyFor(response.get_app_iter)  # type: ignore[method-assign]


def _at_teardown() -> None:
    slots = _slots_here()
    if slots is not None and not slots.body_is_out:
        slots.end()


def _slots_here() -> RequestHolder | None:
    found: RequestHolder | None = _current_context().__dict__.get(_SLOTS)
    return found


class _BodyFor:
    """Makes the body of a response, for each request that it answers."""

    def __init__(self, body_for: Callable[[WSGIEnvironment], Iterable[bytes]]) -> None:
        self._body_for = body_for

    def __call__(self, environ: WSGIEnvironment) -> Iterable[bytes]:
        body, slots = self._body_for(environ), _slots_here()
        if slots is None:
            return body
        held = body if is_sent_by_server(body, environ) and _ends_when_closed(body, slots) else _Body(body, slots)
        slots.body_is_out = True
        return held


def is_sent_by_server(body: Iterable[bytes], environ: WSGIEnvironment) -> bool:
    """Whether the server knows ``body`` as a file, which it may pass to the system instead of reading it."""
    wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(wrapper, type) and isinstance(body, wrapper)


def _ends_when_closed(body: Any, slots: RequestHolder) -> bool:
    """Let ``body`` itself release ``slots`` when it is closed; false if it cannot."""
    close, thread = getattr(body, "close", None), threading.get_ident()

    def close_and_release() -> None:
        try:
            if close is not None:
                close()
        finally:
            if threading.get_ident() == thread:
                slots.end()
            else:  # waitress closes files in the thread that serves all connections, and they must not wait
                KEEPER.call_soon(slots.end)

    try:
        body.close = close_and_release
    except AttributeError:
        return False
    return True


class _Body:
    """A body that releases slots when it is closed, or garbage without being closed (as with test clients)."""

    _slots: RequestHolder | None = None

    def __init__(self, body: Iterable[bytes], slots: RequestHolder) -> None:
        self._body = body
        self._parts = iter(body)
        self._slots = slots

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._parts)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            slots, self._slots = self._slots, None
            if slots is not None:
                slots.end()

    def __del__(self) -> None:
        if self._slots is not None:  # garbage may be collected at any point of any code, so another thread releases
            KEEPER.call_soon(self._slots.end)
            self._slots = None
