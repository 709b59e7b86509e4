"""Holders collect the decisions whose slots they hold, and release the slots when their work ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from flask import Request

from ..engine import Decision
from .subjects import request_if_any


class Holder:
    """Holds slots until some work ends: a call, a block, or a request."""

    __slots__ = ("decisions", "ended")

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.ended: bool = False
        """Nobody holds the slots that a thread or a task of this work takes after that."""

    def takes(self, decision: Decision) -> bool:
        """Hold the slots of ``decision``; false if the work has ended meanwhile, which may have released them."""
        self.decisions.append(decision)
        return not self.ended

    def end(self) -> None:
        """Release the slots."""
        self.ended = True
        decisions, self.decisions = self.decisions, []
        if decisions:
            from ..engine.slots import KEEPER  # noqa: PLC0415 - few limits hold slots

            KEEPER.release_all(decisions)


_call: ContextVar[tuple[Holder, Request | None] | None] = ContextVar("multilimit_held", default=None)
"""The holder of the service function or block that is in progress, and the request in which it was called. Requests
that begin before it ends, such as those of a test client, hold their own slots."""


@contextmanager
def holding(holder: Holder) -> Iterator[None]:
    """Let ``holder``, instead of the response, hold the slots that this block takes."""
    token = _call.set((holder, request_if_any()))
    try:
        yield
    finally:
        _call.reset(token)


def holder_of_call() -> Holder | None:
    """Holds slots until the current service function or block ends; ``None`` outside of one."""
    call = _call.get()
    return call[0] if call is not None and call[1] is request_if_any() else None


def leave_to_response() -> None:
    """The current call is that of a view, whose slots are held until the response is closed."""
    _call.set(None)


class Changes:
    """What changes at run time have brought into this process."""

    __slots__ = ("may_take_slots",)

    def __init__(self) -> None:
        self.may_take_slots: bool = False
        """Whether functions that declare no slots may take some. Once true, it stays, for calls that are in
        progress."""


changes: Final = Changes()
