"""Who asks for a page, and what they may do: known once a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flask import current_app, g

from ...serve.gate import AppGate, gate_of
from .messages import Language


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of one person."""

    author: str
    """``""``: not let in."""
    may_change: bool
    language: Language
    unprotected: bool = False
    """Whether nobody authorizes: in debug mode, on this machine."""


def begin(visit: Visit) -> None:
    """From now on, this is the current request's."""
    g.multilimit_visit = visit


def visit() -> Visit:
    """That of the current request."""
    return cast("Visit", g.multilimit_visit)


def gate() -> AppGate:
    """That of the current app."""
    return gate_of(current_app)
