"""Holders collect the decisions whose slots they hold, and release the slots when their work ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..engine import Decision


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


held_by_this_call: ContextVar[Holder | None] = ContextVar("multilimit_held", default=None)
"""Holds slots until the current service function or block ends."""


@contextmanager
def holding(holder: Holder) -> Iterator[None]:
    """Let ``holder``, instead of the response, hold the slots that this block takes."""
    token = held_by_this_call.set(holder)
    try:
        yield
    finally:
        held_by_this_call.reset(token)
