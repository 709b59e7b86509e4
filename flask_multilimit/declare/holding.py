"""Where decisions that hold slots are collected, if these are released at the end of a call or a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..engine import Decision

held_by_this_call: ContextVar[list[Decision] | None] = ContextVar("multilimit_held", default=None)
"""Decisions that hold slots until the current service function ends."""


@contextmanager
def holding(held: list[Decision]) -> Iterator[None]:
    """Collect in ``held`` the decisions of this block that hold slots, instead of leaving them to the response."""
    token = held_by_this_call.set(held)
    try:
        yield
    finally:
        held_by_this_call.reset(token)
