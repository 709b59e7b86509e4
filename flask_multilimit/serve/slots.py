"""The slots of a request: held from the check until the response is closed, after its last byte or when the client
disconnects.

The server closes a response by calling ``close()`` of its body. If it got no body (the view raised, or a websocket took
the connection over), the slots are released when the request is torn down. In tests, so are those of a complete
response, because Flask's test client does not close it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, request_finished, request_tearing_down

from ..engine import Decision
from ..engine.slots import KEEPER
from .record import Record, Records, SlotsInUse

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


class RequestSlots:
    """Holds the slots of requests of one app. ``release`` gives them back."""

    def __init__(self, app: Flask, records: Records, release: Callable[[Iterable[Decision]], None]) -> None:
        self._app = app
        self._records = records
        self._release = release
        self._listens = False

    def hold(self, decision: Decision, record: Record) -> None:
        """Hold slots until the response of the current request is closed."""
        if not self._listens:
            self._listens = True
            request_finished.connect(self._at_response, self._app)
            request_tearing_down.connect(self._at_teardown, self._app)
        if record.slots is None:
            record.slots = SlotsInUse()
        record.slots.decisions.append(decision)

    def _at_response(self, sender: Flask, response: Response, **_: Any) -> None:  # noqa: ARG002
        slots = self._of_current_request()
        if slots is None or (self._app.testing and response.is_sequence):
            return
        body_for = response.get_app_iter

        def body_that_tells(environ: WSGIEnvironment) -> Iterable[bytes]:
            body = body_for(environ)
            slots.body_is_out = True
            return _Body(body, lambda: self._give_back(slots))

        response.get_app_iter = body_that_tells  # type: ignore[method-assign]

    def _at_teardown(self, sender: Flask, **_: Any) -> None:  # noqa: ARG002
        slots = self._of_current_request()
        if slots is not None and not slots.body_is_out:
            self._give_back(slots)

    def _of_current_request(self) -> SlotsInUse | None:
        record = self._records.current()
        return None if record is None else record.slots

    def _give_back(self, slots: SlotsInUse) -> None:
        decisions, slots.decisions = slots.decisions, []
        self._release(decisions)


class _Body:
    """A body that releases slots when it is closed, or garbage without being closed (as with test clients)."""

    def __init__(self, body: Iterable[bytes], release: Callable[[], None]) -> None:
        self._body = body
        self._parts = iter(body)
        self._release: Callable[[], None] | None = release

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
            release, self._release = self._release, None
            if release is not None:
                release()

    def __del__(self) -> None:
        if self._release is not None:  # garbage may be collected at any point of any code, so another thread releases
            KEEPER.later(self._release)
            self._release = None
