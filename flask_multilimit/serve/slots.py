"""The slots of a request, which it holds from the check until the last byte of the response, or until that is closed
because the client disconnects.

To close a response, the server calls ``close()`` of its body. If the server got no body (the view raised, or a
websocket took the connection over), the slots are released when the request is torn down. In tests, this also goes for
complete responses, because Flask's test client does not close them. A copy of the request context, as
``copy_current_request_context`` makes it for threads, holds its own slots until it is torn down: at the end of each
call of the decorated function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import IOBase
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, has_request_context, request, request_finished
from flask.globals import request_ctx
from werkzeug.wrappers import Response as BaseResponse
from werkzeug.wsgi import ClosingIterator, FileWrapper

from ..declare.advice import Holder
from ..engine.slots import KEEPER
from .state import replace_method

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from flask.ctx import RequestContext

current_context: Callable[[], RequestContext] = request_ctx._get_current_object  # type: ignore[attr-defined]
_SLOTS = "multilimit_slots"
"""The attribute of a request context with the holder of its slots. All copies of the context share the request."""


class RequestHolder(Holder):
    """Holds slots until the response is closed."""

    __slots__ = ("server_has_body",)

    def __init__(self) -> None:
        super().__init__()
        self.server_has_body: bool = False
        """Whether the server has got the body, and will close it."""


def holder_of_request() -> Holder | None:
    """The holder of slots until the current request ends; ``None`` outside of one."""
    if not has_request_context():
        return None
    context = current_context()
    holder: RequestHolder | None = vars(context).get(_SLOTS)
    if holder is None:
        holder = vars(context).setdefault(_SLOTS, RequestHolder())  # threads that share a context share its holder
    elif holder.ended and _is_pushed(context):  # until the next end
        holder.server_has_body = holder.ended = False
    return holder


def _is_pushed(context: RequestContext) -> bool:
    """Whether ``context`` is in use. Threads and tasks may still see it after its end, and only a private attribute of
    Flask tells. If Flask drops it, nobody releases slots that are taken after the first end of a context: they
    expire."""
    return bool(getattr(context, "_cv_tokens", ()))


def release_when_requests_end(app: Flask) -> None:
    """Release the slots of each request of ``app`` at its end."""
    request_finished.connect(_at_response, app)
    teardown = app.do_teardown_request

    def do_teardown_request(_: Flask, *arguments: Any, **options: Any) -> None:
        try:
            teardown(*arguments, **options)
        finally:  # if a function of the app raises, Flask sends no signal
            if (slots := _current_slots()) is not None and not slots.server_has_body:
                slots.end()

    replace_method(app, "do_teardown_request", do_teardown_request)


def _at_response(sender: Flask, response: Response, **_: Any) -> None:
    """Let the body of ``response`` hold the slots of the request that it answers."""
    attributes = vars(response)
    given = attributes.pop("get_app_iter", None)
    if isinstance(given, partial) and given.func is _make_body:  # in a copy of a response that has answered another one
        given = given.args[1]
    if _current_slots() is not None and not (sender.testing and is_complete(response)):
        given = partial(_make_body, response, given)
    if given is not None:
        attributes["get_app_iter"] = given


def _make_body(response: Response, given: Any, environ: WSGIEnvironment) -> Iterable[bytes]:
    body = type(response).get_app_iter(response, environ) if given is None else given(environ)
    slots = _current_slots()
    if slots is not None:
        if not (_is_sent_by_server(body, environ) and _release_on_close(body, slots)):
            body = _HoldingBody(body, slots)
        slots.server_has_body = True
    return body


def _current_slots() -> RequestHolder | None:
    """``None`` outside of a request, too: middleware sends a response that a view returns."""
    found: RequestHolder | None = vars(current_context()).get(_SLOTS) if has_request_context() else None
    return found


def _is_sent_by_server(body: Iterable[bytes], environ: WSGIEnvironment) -> bool:
    """Whether ``body`` is the server's own wrapper of a file, which it may hand to the system instead of reading it."""
    wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(wrapper, type) and isinstance(body, wrapper)


def is_complete(response: BaseResponse) -> bool:
    """Whether no code of the app runs any more to make the response. Of what Werkzeug calls streams, only files and the
    pages of errors are complete; the app may make any other while it is sent, whatever length it announces."""
    if response.is_sequence or "Content-Length" not in response.headers:
        return response.is_sequence
    body: Any = response.response
    if response.status_code == 206:  # the part of a file that was asked for
        body = getattr(body, "iterable", body)
    if isinstance(body, (FileWrapper, IOBase)) or _is_sent_by_server(body, request.environ):
        return True
    while isinstance(body, ClosingIterator):  # the page of an error is read from a response, which is closed then
        closing = getattr(body, "_callbacks", ())  # private; if Werkzeug drops it, the page is settled as a stream
        body = getattr(closing[-1], "__self__", None) if closing else None
    return isinstance(body, BaseResponse) and is_complete(body)


def _release_on_close(body: Any, slots: RequestHolder) -> bool:
    """Let ``body`` itself release ``slots`` when it is closed. Return false if it cannot."""
    close, thread = getattr(body, "close", None), threading.get_ident()

    def close_and_release() -> None:
        try:
            if close is not None:
                close()
        finally:
            if threading.get_ident() == thread:
                slots.end()
            else:  # waitress closes files in the thread that serves all connections, which must not wait
                KEEPER.call_soon(slots.end)

    try:
        body.close = close_and_release
    except AttributeError:
        return False
    return True


class _HoldingBody:
    """A body that releases slots after its last part, when it raises or is closed, or if it is dropped without being
    closed, as by test clients."""

    _slots: RequestHolder | None = None

    def __init__(self, body: Iterable[bytes], slots: RequestHolder) -> None:
        self._body = body
        self._parts = iter(body)
        self._slots = slots

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except BaseException:  # also StopIteration: the body has ended, but a2wsgi closes it later, and asgiref never
            if self._slots is not None:
                self._slots.release()
            raise

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
        if self._slots is not None:  # in another thread: garbage may be collected at any point of any code
            KEEPER.call_soon(self._slots.end)
